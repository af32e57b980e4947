// Windows of every flavour with device memory in them, what they tell about themselves, and their errors.
#include <algorithm>

#include "tests/mpi/rma.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

MPI_Win create(const Area& area, int disp_unit = 1) {
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(area.base(), area.bytes(), disp_unit, MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  return window;
}

Side integers(int count) {
  return {plain(MPI_INT), count};
}

}  // namespace

TEST_CASE("a window of device memory knows its attributes and its group", "[rma][window]") {
  const Side side = integers(10 + rank());
  for (const Place place : window_places()) {
    const Area area(place, side);
    MPI_Win window = create(area, 4);
    void* base = nullptr;
    const MPI_Aint* size = nullptr;
    const int *disp_unit = nullptr, *flavor = nullptr;
    int found = 0;
    MPI_OK(MPI_Win_get_attr(window, MPI_WIN_BASE, &base, &found));
    CHECK((found != 0 && base == area.base()));
    MPI_OK(MPI_Win_get_attr(window, MPI_WIN_SIZE, static_cast<void*>(&size), &found));
    CHECK((found != 0 && *size == area.bytes()));
    MPI_OK(MPI_Win_get_attr(window, MPI_WIN_DISP_UNIT, static_cast<void*>(&disp_unit), &found));
    CHECK((found != 0 && *disp_unit == 4));
    MPI_OK(MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, static_cast<void*>(&flavor), &found));
    CHECK((found != 0 && *flavor == MPI_WIN_FLAVOR_CREATE));
    const int* model = nullptr;
    MPI_OK(MPI_Win_get_attr(window, MPI_WIN_MODEL, static_cast<void*>(&model), &found));
    CHECK((found != 0 && (*model == MPI_WIN_UNIFIED || *model == MPI_WIN_SEPARATE)));
    MPI_Group group = MPI_GROUP_NULL, wanted = MPI_GROUP_NULL;
    MPI_OK(MPI_Win_get_group(window, &group));
    PMPI_Comm_group(comm(), &wanted);
    int same = MPI_UNEQUAL;
    PMPI_Group_compare(group, wanted, &same);
    CHECK(same == MPI_IDENT);
    PMPI_Group_free(&group);
    PMPI_Group_free(&wanted);
    MPI_OK(MPI_Win_free(&window));
    CHECK(window == MPI_WIN_NULL);
  }
}

TEST_CASE("a window of no bytes of device memory is one", "[rma][device-window]") {
  const Memory memory(Place::device, 64);
  struct Exposed {
    void* base;
    MPI_Aint size;
  };
  const Exposed some = {memory.data(), rank() == 0 ? 64 : 0};
  for (const Exposed& exposed : {Exposed{memory.data(), 0}, Exposed{nullptr, 0}, some}) {
    MPI_Win window = MPI_WIN_NULL;
    MPI_OK(MPI_Win_create(exposed.base, exposed.size, 1, MPI_INFO_NULL, comm(), &window));
    MPI_OK(MPI_Win_lock_all(0, window));
    MPI_OK(MPI_Put(memory.data(), 0, MPI_BYTE, (rank() + 1) % ranks(), 0, 0, MPI_BYTE, window));
    MPI_OK(MPI_Win_flush_all(window));
    MPI_OK(MPI_Win_unlock_all(window));
    MPI_OK(MPI_Win_free(&window));
  }
}

TEST_CASE("each rank has its own displacement unit, and one has no memory", "[rma][window]") {
  constexpr int each = 16;
  const auto bytes = static_cast<std::size_t>(ranks() * each) * sizeof(int);
  const bool empty = rank() == 1;
  Memory memory(rank() % 2 == 0 ? Place::device : Place::host, bytes), out(Place::device, each * sizeof(int));
  const std::vector<int> before(bytes / sizeof(int), -1), mine(each, rank());
  memory.write(before.data(), bytes);
  out.write(mine.data(), each * sizeof(int));
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(empty ? nullptr : memory.data(), empty ? 0 : static_cast<MPI_Aint>(bytes), 1 << rank(),
                        MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  MPI_OK(MPI_Win_fence(0, window));
  for (int target = 0; target < ranks(); ++target) {
    const MPI_Aint place = rank() * each * static_cast<MPI_Aint>(sizeof(int)) / (1 << target);
    const int code = MPI_Put(out.data(), each, MPI_INT, target, place, each, MPI_INT, window);
    if (target != 1)
      MPI_OK(code);
    else
      MPI_FAILS(code, MPI_ERR_RMA_RANGE);
  }
  MPI_OK(MPI_Win_fence(0, window));
  std::vector<int> after(before.size());
  memory.read(after.data(), bytes);
  for (int from = 0; from < ranks(); ++from)
    for (int i = 0; i < each; ++i) CHECK(after[static_cast<std::size_t>(from * each + i)] == (empty ? -1 : from));
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("no receive of the program's gets what making a window sends", "[rma][window]") {
  int came = -1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(&came, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &request));
  MPI_Win window = create(Area(Place::device, integers(10)));
  const int next = (rank() + 1) % ranks(), told = rank();
  MPI_OK(MPI_Send(&told, 1, MPI_INT, next, 5, comm()));
  MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(came == (rank() + ranks() - 1) % ranks());
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("puts and gets with unlike random types", "[rma][window]") {
  auto random = random_numbers("rma");
  for (int i = 0; i < scaled(40); ++i) {
    Pair pair = random_pair(random);
    const Side near{std::move(pair.send), 2}, far{std::move(pair.receive), 2};
    INFO(near.text() << " to " << far.text());
    step(near.text() + " to " + far.text());
    const bool served = i % 2 == 0 || !mpi_has_windows();
    const Place places[] = {served ? Place::device : Place::host, i % 3 == 0 ? Place::host : Place::device};
    Area area(places[rank() % 2], far), out(Place::device, near), back(places[0], near);
    MPI_Win window = create(area);
    area.fill(key_of(rank(), 1));
    out.fill(key_of(rank(), 2));
    back.fill(key_of(rank(), 3));
    MPI_OK(MPI_Win_fence(0, window));
    MPI_OK(put(out, near, right_neighbour(), area.displacement(), far, window));
    MPI_OK(MPI_Win_fence(0, window));
    CHECK(area.read() == after_put(far, key_of(rank(), 1), near, key_of(left_neighbour(), 2)));
    MPI_OK(MPI_Get(back.address(), 2, near.type, right_neighbour(), area.displacement(), 2, far.type, window));
    MPI_OK(MPI_Win_fence(0, window));
    CHECK(back.read() == after_put(near, key_of(rank(), 3), near, key_of(rank(), 2)));
    MPI_OK(MPI_Win_free(&window));
  }
}

TEST_CASE("windows over every kind of memory", "[rma][window]") {
  const Side side{vector(50, 3, 5, MPI_INT), 1};
  for (const Place place : all_places)
    for (const Place other : all_places) {
      if (on_host(place) && !mpi_has_windows()) continue;
      INFO(place_name(other) << " to " << place_name(place));
      Area area(place, side), out(other, side);
      MPI_Win window = create(area);
      area.fill(key_of(rank(), 1));
      out.fill(key_of(rank(), 2));
      MPI_OK(MPI_Win_fence(0, window));
      MPI_OK(put(out, side, right_neighbour(), area.displacement(), side, window));
      MPI_OK(MPI_Win_fence(0, window));
      CHECK(area.read() == after_put(side, key_of(rank(), 1), side, key_of(left_neighbour(), 2)));
      MPI_OK(MPI_Win_free(&window));
    }
}

TEST_CASE("datatypes freed before the accesses complete", "[rma][window]") {
  const Side kept{vector(5000, 3, 5, MPI_INT), 1};
  for (const Place place : basic_places) {
    Area area(Place::device, kept), out(place, kept), back(place, kept);
    MPI_Win window = create(area);
    area.fill(key_of(rank(), 1));
    out.fill(key_of(rank(), 2));
    back.fill(key_of(rank(), 3));
    lock_step();
    Type put_type = vector(5000, 3, 5, MPI_INT), get_type = vector(5000, 3, 5, MPI_INT);
    MPI_OK(MPI_Win_lock_all(0, window));
    MPI_OK(MPI_Put(out.address(), 1, put_type, right_neighbour(), area.displacement(), 1, put_type, window));
    put_type.free();
    MPI_OK(MPI_Win_flush(right_neighbour(), window));
    MPI_OK(MPI_Get(back.address(), 1, get_type, right_neighbour(), area.displacement(), 1, get_type, window));
    get_type.free();
    MPI_OK(MPI_Win_unlock_all(window));
    CHECK(back.read() == after_put(kept, key_of(rank(), 3), kept, key_of(rank(), 2)));
    MPI_OK(MPI_Win_free(&window));
  }
}

TEST_CASE("several windows at once, on communicators of their own", "[rma][window]") {
  const Side side{vector(30, 1, 2, MPI_INT), 1};
  MPI_Comm reversed = MPI_COMM_NULL;
  // All in reverse order. Open MPI 4.1 now and then fails to make windows on two halves of a node at once.
  PMPI_Comm_split(comm(), 0, -rank(), &reversed);
  int mine = 0, size = 0;
  PMPI_Comm_rank(reversed, &mine);
  PMPI_Comm_size(reversed, &size);
  Area first(Place::device, side), second(Place::device, side), third(window_places().front(), side),
      out(Place::device, side);
  MPI_Win windows[] = {create(first), MPI_WIN_NULL, create(third)};
  MPI_OK(MPI_Win_create(second.base(), second.bytes(), 1, MPI_INFO_NULL, reversed, &windows[1]));
  first.fill(key_of(rank(), 1));
  second.fill(key_of(mine, 2));
  third.fill(key_of(rank(), 3));
  out.fill(key_of(rank(), 4));
  for (MPI_Win window : windows) MPI_OK(MPI_Win_fence(0, window));
  MPI_OK(put(out, side, right_neighbour(), first.displacement(), side, windows[0]));
  MPI_OK(put(out, side, (mine + 1) % size, second.displacement(), side, windows[1]));
  MPI_OK(put(out, side, left_neighbour(), third.displacement(), side, windows[2]));
  for (MPI_Win window : windows) MPI_OK(MPI_Win_fence(0, window));
  std::vector<int> world(static_cast<std::size_t>(size));
  const int self = rank();
  PMPI_Allgather(&self, 1, MPI_INT, world.data(), 1, MPI_INT, reversed);
  const int before_me = world[static_cast<std::size_t>((mine + size - 1) % size)];
  CHECK(first.read() == after_put(side, key_of(rank(), 1), side, key_of(left_neighbour(), 4)));
  CHECK(second.read() == after_put(side, key_of(mine, 2), side, key_of(before_me, 4)));
  CHECK(third.read() == after_put(side, key_of(rank(), 3), side, key_of(right_neighbour(), 4)));
  for (MPI_Win& window : windows) MPI_OK(MPI_Win_free(&window));
  PMPI_Comm_free(&reversed);
}

TEST_CASE("device buffers with memory that MPI allocates", "[rma][window]") {
  const Side side = integers(1000);
  const auto bytes = static_cast<MPI_Aint>(1000 * sizeof(int));
  for (const bool shared : {false, true}) {
    int* base = nullptr;
    MPI_Win window = MPI_WIN_NULL;
    MPI_OK(shared
               ? MPI_Win_allocate_shared(bytes, sizeof(int), MPI_INFO_NULL, comm(), static_cast<void*>(&base), &window)
               : MPI_Win_allocate(bytes, sizeof(int), MPI_INFO_NULL, comm(), static_cast<void*>(&base), &window));
    Memory out(Place::device, static_cast<std::size_t>(bytes)), back(Place::device, static_cast<std::size_t>(bytes));
    const std::vector<int> mine(1000, rank() + 1);
    out.write(mine.data(), static_cast<std::size_t>(bytes));
    MPI_OK(MPI_Win_fence(0, window));
    MPI_OK(MPI_Put(out.data(), 1000, MPI_INT, right_neighbour(), 0, 1000, MPI_INT, window));
    MPI_OK(MPI_Win_fence(0, window));
    for (int i = 0; i < 1000; ++i) REQUIRE(base[i] == left_neighbour() + 1);
    MPI_OK(MPI_Win_fence(0, window));
    MPI_OK(MPI_Accumulate(out.data(), 1000, MPI_INT, right_neighbour(), 0, 1000, MPI_INT, MPI_SUM, window));
    MPI_OK(MPI_Win_fence(0, window));
    MPI_OK(MPI_Get(back.data(), 1000, MPI_INT, right_neighbour(), 0, 1000, MPI_INT, window));
    MPI_OK(MPI_Win_fence(0, window));
    std::vector<int> got(1000);
    back.read(got.data(), static_cast<std::size_t>(bytes));
    CHECK(got == std::vector<int>(1000, 2 * (rank() + 1)));
    MPI_OK(MPI_Win_free(&window));
  }
}

TEST_CASE("every rank starts towards one that has posted to all", "[rma][window]") {
  constexpr int each = 500;
  const auto bytes = static_cast<std::size_t>(ranks() * each) * sizeof(int);
  for (const int assert : {0, int{MPI_MODE_NOCHECK}}) {
    Memory memory(rank() == 0 ? Place::device : Place::host, bytes), out(Place::device, each * sizeof(int));
    const std::vector<int> mine(each, rank() + 1);
    out.write(mine.data(), each * sizeof(int));
    MPI_Win window = MPI_WIN_NULL;
    MPI_OK(MPI_Win_create(memory.data(), static_cast<MPI_Aint>(bytes), sizeof(int), MPI_INFO_NULL, comm(), &window));
    MPI_Group all = MPI_GROUP_NULL, first = MPI_GROUP_NULL;
    const int zero = 0;
    PMPI_Comm_group(comm(), &all);
    PMPI_Group_incl(all, 1, &zero, &first);
    for (int round = 0; round < 5; ++round) {
      const std::vector<int> none(bytes / sizeof(int), 0);
      memory.write(none.data(), bytes);
      if (rank() == 0) MPI_OK(MPI_Win_post(all, assert, window));
      if (assert != 0) lock_step();  // unchecked: the program sees to it that posts come first
      MPI_OK(MPI_Win_start(first, assert, window));
      MPI_OK(MPI_Put(out.data(), each, MPI_INT, 0, rank() * each, each, MPI_INT, window));
      MPI_OK(MPI_Win_complete(window));
      if (rank() != 0) continue;
      MPI_OK(MPI_Win_wait(window));
      std::vector<int> after(none.size());
      memory.read(after.data(), bytes);
      for (int from = 0; from < ranks(); ++from)
        CHECK(std::count(after.begin() + from * each, after.begin() + (from + 1) * each, from + 1) == each);
    }
    PMPI_Group_free(&all);
    PMPI_Group_free(&first);
    MPI_OK(MPI_Win_free(&window));
  }
}

TEST_CASE("accesses to nobody and of nothing", "[rma][window]") {
  const Side side = integers(4);
  Area area(Place::device, side), out(Place::device, side), result(Place::device, side);
  MPI_Win window = create(area);
  area.fill(key_of(rank(), 1));
  result.fill(key_of(rank(), 2));
  const auto before = area.read(), untouched = result.read();
  lock_step();
  MPI_OK(MPI_Win_lock_all(0, window));
  MPI_OK(put(out, side, MPI_PROC_NULL, 0, side, window));
  MPI_OK(MPI_Get(result.address(), 4, MPI_INT, MPI_PROC_NULL, 0, 4, MPI_INT, window));
  MPI_OK(MPI_Get(result.address(), 0, MPI_INT, rank(), 0, 0, MPI_INT, window));
  MPI_OK(MPI_Fetch_and_op(out.address(), result.address(), MPI_INT, MPI_PROC_NULL, 0, MPI_SUM, window));
  MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  MPI_OK(MPI_Rput(out.address(), 4, MPI_INT, MPI_PROC_NULL, 0, 4, MPI_INT, window, &requests[0]));
  MPI_OK(MPI_Rget(result.address(), 0, MPI_INT, rank(), 0, 0, MPI_INT, window, &requests[1]));
  MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
  MPI_OK(MPI_Win_unlock_all(window));
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, MPI_PROC_NULL, 0, window));
  MPI_OK(MPI_Win_unlock(MPI_PROC_NULL, window));
  lock_step();
  CHECK(area.read() == before);
  CHECK(result.read() == untouched);
  MPI_OK(MPI_Win_free(&window));
}

namespace {

int handler_calls = 0;
void count_call(MPI_Win*, int*, ...) {
  ++handler_calls;
}

void add(void*, void*, int*, MPI_Datatype*) {}

}  // namespace

TEST_CASE("errors go to the window's error handler, and the window stays usable", "[rma][window]") {
  MPICH5_CANNOT("it goes on with an access when it has told the handler of an error");
  const Side side = integers(4);
  Area area(Place::device, side), out(Place::device, side);
  MPI_Win window = create(area);
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_OK(MPI_Win_create_errhandler(count_call, &handler));
  MPI_OK(MPI_Win_set_errhandler(window, handler));
  area.fill(key_of(rank(), 1));
  out.fill(key_of(rank(), 2));
  handler_calls = 0;
  const auto put_at = [&](int rank, MPI_Aint place, int count) {
    return MPI_Put(out.address(), count, MPI_INT, rank, place, count, MPI_INT, window);
  };
  // No epoch.
  MPI_FAILS(put_at(rank(), 0, 1), MPI_ERR_RMA_SYNC);
  MPI_FAILS(MPI_Win_unlock(rank(), window), MPI_ERR_RMA_SYNC);
  MPI_FAILS(MPI_Win_unlock_all(window), MPI_ERR_RMA_SYNC);
  MPI_FAILS(MPI_Win_flush(rank(), window), MPI_ERR_RMA_SYNC);
  MPI_FAILS(MPI_Win_complete(window), MPI_ERR_RMA_SYNC);
  MPI_FAILS(MPI_Win_wait(window), MPI_ERR_RMA_SYNC);
  int flag = 0;
  MPI_FAILS(MPI_Win_test(window, &flag), MPI_ERR_RMA_SYNC);
  // Arguments.
  MPI_FAILS(MPI_Win_lock(12345, rank(), 0, window), MPI_ERR_LOCKTYPE);
  MPI_FAILS(MPI_Win_lock(MPI_LOCK_SHARED, ranks(), 0, window), MPI_ERR_RANK);
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, rank(), 0, window));
  MPI_FAILS(MPI_Win_lock(MPI_LOCK_SHARED, rank(), 0, window), MPI_ERR_RMA_SYNC);
  MPI_FAILS(put_at(ranks(), 0, 1), MPI_ERR_RANK);
  MPI_FAILS(put_at(rank(), -4, 1), MPI_ERR_DISP);
  MPI_FAILS(put_at(rank(), area.bytes() - 8, 3), MPI_ERR_RMA_RANGE);
  MPI_FAILS(put_at(rank(), 0, -1), MPI_ERR_COUNT);
  MPI_FAILS(MPI_Put(out.address(), 3, MPI_INT, rank(), 0, 4, MPI_INT, window), MPI_ERR_TYPE);
  MPI_FAILS(MPI_Put(out.address(), 1, MPI_DATATYPE_NULL, rank(), 0, 1, MPI_INT, window), MPI_ERR_TYPE);
  MPI_Op own = MPI_OP_NULL;
  MPI_OK(MPI_Op_create(add, 1, &own));
  MPI_FAILS(MPI_Accumulate(out.address(), 1, MPI_INT, rank(), 0, 1, MPI_INT, own, window), MPI_ERR_OP);
  // MPICH finds operators that are not for the type at work alone.
  if (!mpich)
    MPI_FAILS(MPI_Accumulate(out.address(), 1, MPI_FLOAT, rank(), 0, 1, MPI_FLOAT, MPI_BAND, window), MPI_ERR_OP);
  MPI_OK(MPI_Op_free(&own));
  CHECK(handler_calls == (mpich ? 17 : 18));
  CHECK(area.read() == after_put(side, key_of(rank(), 1), integers(0), 0));
  // And then something right.
  MPI_OK(put_at(rank(), area.displacement(), 4));
  MPI_OK(MPI_Win_unlock(rank(), window));
  CHECK(area.read() == after_put(side, key_of(rank(), 1), side, key_of(rank(), 2)));
  MPI_OK(MPI_Errhandler_free(&handler));
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("windows come and go without leaving anything behind", "[rma][window]") {
  const Side side = integers(100);
  for (int i = 0; i < scaled(30); ++i) {
    Area area(Place::device, side), out(Place::host, side);
    area.fill(key_of(rank(), 1));
    out.fill(key_of(rank(), i));
    MPI_Win window = create(area);
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, right_neighbour(), 0, window));
    MPI_OK(put(out, side, right_neighbour(), area.displacement(), side, window));
    MPI_OK(MPI_Win_unlock(right_neighbour(), window));
    // No barrier: freeing waits for all.
    MPI_OK(MPI_Win_free(&window));
    CHECK(area.read() == after_put(side, key_of(rank(), 1), side, key_of(left_neighbour(), i)));
  }
}

TEST_CASE("an origin without staging memory fails in the access, and the epoch goes on", "[rma-staging]") {
  constexpr int large = 1 << 20;  // integers: more than GPUDT_STAGING_LIMIT in this run
  const Side side = integers(large);
  for (const Place target : window_places()) {
    INFO(place_name(target));
    step(place_name(target));
    Area area(target, side), out(Place::device, side), result(Place::device, side);
    MPI_Win window = create(area);
    area.fill(key_of(rank(), 1));
    out.fill(key_of(rank(), 3));
    result.fill(key_of(rank(), 2));
    const auto before = area.read(), untouched = result.read();
    lock_step();
    const int to = right_neighbour();
    const MPI_Aint place = area.displacement();
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, to, 0, window));
    MPI_FAILS(put(out, side, to, place, side, window), MPI_ERR_NO_MEM);
    MPI_FAILS(MPI_Rput(out.address(), large, MPI_INT, to, place, large, MPI_INT, window, &request), MPI_ERR_NO_MEM);
    MPI_FAILS(MPI_Get(result.address(), large, MPI_INT, to, place, large, MPI_INT, window), MPI_ERR_NO_MEM);
    MPI_FAILS(MPI_Rget(result.address(), large, MPI_INT, to, place, large, MPI_INT, window, &request), MPI_ERR_NO_MEM);
    MPI_FAILS(MPI_Accumulate(out.address(), large, MPI_INT, to, place, large, MPI_INT, MPI_SUM, window),
              MPI_ERR_NO_MEM);
    MPI_FAILS(MPI_Get_accumulate(out.address(), large, MPI_INT, result.address(), large, MPI_INT, to, place, large,
                                 MPI_INT, MPI_SUM, window),
              MPI_ERR_NO_MEM);
    CHECK(request == MPI_REQUEST_NULL);
    // What fits goes on, in the same epoch.
    MPI_OK(MPI_Get(result.address(), 1000, MPI_INT, to, place, 1000, MPI_INT, window));
    MPI_OK(MPI_Win_unlock(to, window));
    CHECK(result.read() != untouched);
    lock_step();
    CHECK(area.read() == before);
    MPI_OK(MPI_Win_free(&window));
  }
}

TEST_CASE("a target without staging memory refuses, and goes on", "[rma-staging]") {
  constexpr int large = 1 << 20;  // integers: more than GPUDT_STAGING_LIMIT in this run
  const Side side = integers(large);
  Area area(Place::device, side), out(Place::host, side), result(Place::host, side);
  MPI_Win window = create(area);
  area.fill(key_of(rank(), 1));
  result.fill(key_of(rank(), 2));
  const auto before = area.read(), untouched = result.read();
  lock_step();
  const auto lock = [&] { MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, right_neighbour(), 0, window)); };
  const auto unlock = [&] { return MPI_Win_unlock(right_neighbour(), window); };
  lock();
  MPI_OK(put(out, side, right_neighbour(), area.displacement(), side, window));
  MPI_FAILS(unlock(), MPI_ERR_NO_MEM);
  lock();
  MPI_OK(MPI_Get(result.address(), large, MPI_INT, right_neighbour(), area.displacement(), large, MPI_INT, window));
  MPI_FAILS(unlock(), MPI_ERR_NO_MEM);
  lock();
  MPI_OK(MPI_Accumulate(out.address(), large, MPI_INT, right_neighbour(), area.displacement(), large, MPI_INT, MPI_SUM,
                        window));
  MPI_FAILS(unlock(), MPI_ERR_NO_MEM);
  lock();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Rget(result.address(), large, MPI_INT, right_neighbour(), area.displacement(), large, MPI_INT, window,
                  &request));
  MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_NO_MEM);
  MPI_OK(unlock());
  lock_step();
  CHECK(area.read() == before);
  CHECK(result.read() == untouched);
  // What fits goes on.
  out.fill(key_of(rank(), 3));
  lock();
  MPI_OK(MPI_Put(out.address(), 1000, MPI_INT, right_neighbour(), area.displacement(), 1000, MPI_INT, window));
  MPI_OK(MPI_Get(result.address(), 1000, MPI_INT, right_neighbour(), area.displacement(), 1000, MPI_INT, window));
  MPI_OK(unlock());
  lock_step();
  CHECK(area.read() != before);
  CHECK(result.read() != untouched);
  MPI_OK(MPI_Win_free(&window));
}
