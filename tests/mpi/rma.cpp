// Areas, windows, epochs and accesses for the tests of one-sided communication.
#include "tests/mpi/rma.hpp"

#include <algorithm>
#include <iterator>

namespace gpudt::test {

Area::Area(Place place, const Side& side) : image_(side.type, side.count), memory_(place, image_.bytes().size()) {
  memory_.write(image_.bytes().data(), image_.bytes().size());
}

void Area::fill(std::uint64_t key) {
  image_.fill(key);
  memory_.write(image_.bytes().data(), image_.bytes().size());
}

std::vector<char> Area::read() const {
  std::vector<char> bytes(memory_.bytes());
  memory_.read(bytes.data(), bytes.size());
  return bytes;
}

AreaWindow::AreaWindow(const Area& area) {
  MPI_OK(MPI_Win_create(area.base(), area.bytes(), 1, MPI_INFO_NULL, comm(), &window_));
  MPI_OK(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN));
}

AreaWindow::~AreaWindow() {
  MPI_OK(MPI_Win_free(&window_));
}

bool mpi_has_windows() {
  static const bool found = [] {
    int memory = 0;
    MPI_Comm quiet = MPI_COMM_NULL;
    PMPI_Comm_dup(comm(), &quiet);
    PMPI_Comm_set_errhandler(quiet, MPI_ERRORS_RETURN);
    MPI_Win window = MPI_WIN_NULL;
    const bool made = PMPI_Win_create(&memory, sizeof memory, 1, MPI_INFO_NULL, quiet, &window) == MPI_SUCCESS;
    if (made) PMPI_Win_free(&window);
    PMPI_Comm_free(&quiet);
    return made;
  }();
  return found;
}

std::vector<Place> window_places() {
  if (mpi_has_windows()) return {std::begin(basic_places), std::end(basic_places)};
  return {Place::device};
}

int right_neighbour() {
  return (rank() + 1) % ranks();
}

int left_neighbour() {
  return (rank() + ranks() - 1) % ranks();
}

// --- epochs ----------------------------------------------------------------------------------------------------------

namespace {

void nothing(MPI_Win, int) {}

void open_fence(MPI_Win window, int, int) {
  MPI_OK(MPI_Win_fence(0, window));
}
void close_fence(MPI_Win window, int) {
  MPI_OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, window));
}

MPI_Group group_of(int member) {
  MPI_Group all = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  PMPI_Comm_group(comm(), &all);
  PMPI_Group_incl(all, 1, &member, &group);
  PMPI_Group_free(&all);
  return group;
}

void open_pscw(MPI_Win window, int target, int origin) {
  MPI_Group origins = group_of(origin), targets = group_of(target);
  MPI_OK(MPI_Win_post(origins, 0, window));
  MPI_OK(MPI_Win_start(targets, 0, window));
  PMPI_Group_free(&origins);
  PMPI_Group_free(&targets);
}
void close_pscw(MPI_Win window, int) {
  MPI_OK(MPI_Win_complete(window));
  MPI_OK(MPI_Win_wait(window));
}
void close_pscw_test(MPI_Win window, int) {
  MPI_OK(MPI_Win_complete(window));
  int done = 0;
  while (done == 0) MPI_OK(MPI_Win_test(window, &done));
}

void open_shared(MPI_Win window, int target, int) {
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window));
}
void open_exclusive(MPI_Win window, int target, int) {
  MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window));
}
void open_unchecked(MPI_Win window, int target, int) {
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, target, MPI_MODE_NOCHECK, window));
}
void close_lock(MPI_Win window, int target) {
  MPI_OK(MPI_Win_unlock(target, window));
}
void open_lock_all(MPI_Win window, int, int) {
  MPI_OK(MPI_Win_lock_all(0, window));
}
void close_lock_all(MPI_Win window, int) {
  MPI_OK(MPI_Win_unlock_all(window));
}
void flush(MPI_Win window, int target) {
  MPI_OK(MPI_Win_flush(target, window));
}
void flush_and_sync(MPI_Win window, int target) {
  flush(window, target);
  MPI_OK(MPI_Win_sync(window));
}
void flush_all(MPI_Win window, int) {
  MPI_OK(MPI_Win_flush_all(window));
}
void flush_local(MPI_Win window, int target) {
  MPI_OK(MPI_Win_flush_local(target, window));
}
void flush_local_all(MPI_Win window, int) {
  MPI_OK(MPI_Win_flush_local_all(window));
}

}  // namespace

const std::vector<Epoch> epochs = {
    {"fence", false, false, open_fence, nothing, close_fence},
    {"post/start/complete/wait", false, false, open_pscw, nothing, close_pscw},
    {"post/start/complete/test", false, false, open_pscw, nothing, close_pscw_test},
    {"shared lock", true, false, open_shared, nothing, close_lock},
    {"exclusive lock", true, false, open_exclusive, nothing, close_lock},
    {"unchecked lock", true, false, open_unchecked, nothing, close_lock},
    {"lock_all", true, false, open_lock_all, nothing, close_lock_all},
    {"lock, flush", true, true, open_shared, flush, close_lock},
    {"lock, flush_local", true, true, open_shared, flush_local, close_lock},
    {"lock_all, flush, sync", true, true, open_lock_all, flush_and_sync, close_lock_all},
    {"lock_all, flush_all", true, true, open_lock_all, flush_all, close_lock_all},
    {"lock_all, flush_local_all", true, true, open_lock_all, flush_local_all, close_lock_all},
};

// --- accesses --------------------------------------------------------------------------------------------------------

namespace {

int put(const Access& a, MPI_Request*) {
  return MPI_Put(a.origin, a.origin_side.count, a.origin_side.type, a.target, a.displacement, a.target_side.count,
                 a.target_side.type, a.window);
}
int rput(const Access& a, MPI_Request* request) {
  return MPI_Rput(a.origin, a.origin_side.count, a.origin_side.type, a.target, a.displacement, a.target_side.count,
                  a.target_side.type, a.window, request);
}
int get(const Access& a, MPI_Request*) {
  return MPI_Get(a.result, a.origin_side.count, a.origin_side.type, a.target, a.displacement, a.target_side.count,
                 a.target_side.type, a.window);
}
int rget(const Access& a, MPI_Request* request) {
  return MPI_Rget(a.result, a.origin_side.count, a.origin_side.type, a.target, a.displacement, a.target_side.count,
                  a.target_side.type, a.window, request);
}
constexpr int sum = 0, bxor = 1, max = 2, replace = 3, no_op = 4;
MPI_Op operation_of(int index) {
  const MPI_Op operations[] = {MPI_SUM, MPI_BXOR, MPI_MAX, MPI_REPLACE, MPI_NO_OP};
  return operations[index];
}
template <int op>
int accumulate(const Access& a, MPI_Request*) {
  return MPI_Accumulate(a.origin, a.origin_side.count, a.origin_side.type, a.target, a.displacement,
                        a.target_side.count, a.target_side.type, operation_of(op), a.window);
}
template <int op>
int raccumulate(const Access& a, MPI_Request* request) {
  return MPI_Raccumulate(a.origin, a.origin_side.count, a.origin_side.type, a.target, a.displacement,
                         a.target_side.count, a.target_side.type, operation_of(op), a.window, request);
}
template <int op>
int get_accumulate(const Access& a, MPI_Request*) {
  return MPI_Get_accumulate(a.origin, a.origin_side.count, a.origin_side.type, a.result, a.origin_side.count,
                            a.origin_side.type, a.target, a.displacement, a.target_side.count, a.target_side.type,
                            operation_of(op), a.window);
}
template <int op>
int rget_accumulate(const Access& a, MPI_Request* request) {
  return MPI_Rget_accumulate(a.origin, a.origin_side.count, a.origin_side.type, a.result, a.origin_side.count,
                             a.origin_side.type, a.target, a.displacement, a.target_side.count, a.target_side.type,
                             operation_of(op), a.window, request);
}
template <int op>
int fetch_and_op(const Access& a, MPI_Request*) {
  return MPI_Fetch_and_op(a.origin, a.result, a.origin_side.type, a.target, a.displacement, operation_of(op), a.window);
}
int compare_and_swap(const Access& a, MPI_Request*) {
  return MPI_Compare_and_swap(a.origin, a.compare, a.result, a.origin_side.type, a.target, a.displacement, a.window);
}

void put_model(int origin, int, int& target, int&) {
  target = origin;
}
void get_model(int, int, int& target, int& result) {
  result = target;
}
void swap_model(int origin, int compare, int& target, int& result) {
  result = target;
  if (target == compare) target = origin;
}
template <int op>
void accumulate_model(int origin, int, int& target, int&) {
  const auto sum_of = [](int a, int b) {
    return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
  };
  const int outcomes[] = {sum_of(target, origin), target ^ origin, std::max(target, origin), origin, target};
  target = outcomes[op];
}
template <int op>
void fetch_model(int origin, int compare, int& target, int& result) {
  result = target;
  accumulate_model<op>(origin, compare, target, result);
}

}  // namespace

const std::vector<AccessCall> access_calls = {
    {"Put", false, false, false, put, put_model},
    {"Rput", true, false, false, rput, put_model},
    {"Get", false, false, false, get, get_model},
    {"Rget", true, false, false, rget, get_model},
    {"Accumulate(SUM)", false, false, false, accumulate<sum>, accumulate_model<sum>},
    {"Accumulate(REPLACE)", false, false, false, accumulate<replace>, accumulate_model<replace>},
    {"Raccumulate(BXOR)", true, false, false, raccumulate<bxor>, accumulate_model<bxor>},
    {"Get_accumulate(MAX)", false, false, true, get_accumulate<max>, fetch_model<max>},
    {"Get_accumulate(NO_OP)", false, false, true, get_accumulate<no_op>, fetch_model<no_op>},
    {"Get_accumulate(REPLACE)", false, false, true, get_accumulate<replace>, fetch_model<replace>},
    {"Rget_accumulate(SUM)", true, false, true, rget_accumulate<sum>, fetch_model<sum>},
    {"Fetch_and_op(SUM)", false, true, false, fetch_and_op<sum>, fetch_model<sum>},
    {"Fetch_and_op(NO_OP)", false, true, false, fetch_and_op<no_op>, fetch_model<no_op>},
    {"Fetch_and_op(REPLACE)", false, true, false, fetch_and_op<replace>, fetch_model<replace>},
    {"Compare_and_swap", false, true, false, compare_and_swap, swap_model},
};

// --- types -----------------------------------------------------------------------------------------------------------

namespace {

Side dense(int elements) {
  return {plain(MPI_INT), elements};
}

Side strided(int elements) {
  return {vector(elements / 2, 2, 3, MPI_INT), 1};
}

/// Blocks of unlike length, out of order, with an extent that leaves a gap.
Side listed(int elements) {
  const int lengths[] = {1, 3}, displs[] = {5, 1};
  MPI_Datatype blocks = MPI_DATATYPE_NULL, type = MPI_DATATYPE_NULL;
  PMPI_Type_indexed(2, lengths, displs, MPI_INT, &blocks);
  PMPI_Type_create_resized(blocks, 0, 7 * static_cast<MPI_Aint>(sizeof(int)), &type);
  PMPI_Type_free(&blocks);
  PMPI_Type_commit(&type);
  return {Type(type, "resized(indexed({1,3} at {5,1} INT))"), elements / 4};
}

}  // namespace

std::vector<char> after_put(const Side& target, std::uint64_t before, const Side& origin, std::uint64_t key) {
  Image image(target.type, target.count);
  image.fill(before);
  unpack_into(image, target.type, target.count, stream_of(origin.type, origin.count, key));
  return image.bytes();
}

std::vector<std::pair<Side, Side>> integer_sides(int elements) {
  std::vector<std::pair<Side, Side>> sides;
  sides.emplace_back(dense(elements), dense(elements));
  sides.emplace_back(strided(elements), dense(elements));
  sides.emplace_back(dense(elements), listed(elements));
  sides.emplace_back(listed(elements), strided(elements));
  return sides;
}

}  // namespace gpudt::test
