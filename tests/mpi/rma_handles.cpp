// What gpudt serves needs no windows of the MPI library's: windows of one process, where there is no remote memory
// access, and what such windows tell about themselves. (The runs in meson.build take it from Open MPI.)
#include <algorithm>
#include <cstdint>
#include <limits>

#include "tests/mpi/rma.hpp"

using namespace gpudt::test;

namespace {

constexpr MPI_Aint farthest = std::numeric_limits<MPI_Aint>::max();

/// A window over `count` integers in device memory, on rank 0 alone: all others have as many on the host.
class IntegerWindow {
 public:
  IntegerWindow(MPI_Comm of, int count, int disp_unit = sizeof(int))
      : memory_(rank() == 0 || of == MPI_COMM_SELF ? Place::device : Place::host, bytes(count)) {
    const std::vector<int> zeros(static_cast<std::size_t>(count), 0);
    memory_.write(zeros.data(), bytes(count));
    MPI_OK(MPI_Win_create(memory_.data(), static_cast<MPI_Aint>(bytes(count)), disp_unit, MPI_INFO_NULL, of, &window_));
    MPI_OK(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN));
  }
  ~IntegerWindow() {
    if (window_ != MPI_WIN_NULL) MPI_OK(MPI_Win_free(&window_));
  }
  IntegerWindow(const IntegerWindow&) = delete;
  IntegerWindow& operator=(const IntegerWindow&) = delete;
  operator MPI_Win() const { return window_; }  // NOLINT(google-explicit-constructor): stands in for the handle
  std::vector<int> read() const {
    std::vector<int> values(memory_.bytes() / sizeof(int));
    memory_.read(values.data(), memory_.bytes());
    return values;
  }
  const void* base() const { return memory_.data(); }
  void free() { MPI_OK(MPI_Win_free(&window_)); }

 private:
  static std::size_t bytes(int count) { return static_cast<std::size_t>(count) * sizeof(int); }
  Memory memory_;
  MPI_Win window_ = MPI_WIN_NULL;
};

int deleted = 0;
int count_deletion(MPI_Win, int, void*, void*) {
  ++deleted;
  return MPI_SUCCESS;
}

}  // namespace

TEST_CASE("a window with device memory on one rank carries what the program gives it", "[rma][handle]") {
  IntegerWindow window(comm(), 10);
  char name[MPI_MAX_OBJECT_NAME] = "";
  int length = 0, found = 0, keyval = MPI_KEYVAL_INVALID, mine = 5;
  MPI_OK(MPI_Win_set_name(window, "halo"));
  MPI_OK(MPI_Win_get_name(window, name, &length));
  CHECK(std::string(name) == "halo");
  MPI_OK(MPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, count_deletion, &keyval, nullptr));
  MPI_OK(MPI_Win_set_attr(window, keyval, &mine));
  int* given = nullptr;
  MPI_OK(MPI_Win_get_attr(window, keyval, static_cast<void*>(&given), &found));
  CHECK((found != 0 && given == &mine));
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_OK(MPI_Win_get_errhandler(window, &handler));
  CHECK(handler == MPI_ERRORS_RETURN);
  MPI_OK(MPI_Errhandler_free(&handler));
  MPI_Info info = MPI_INFO_NULL;
  MPI_OK(MPI_Win_get_info(window, &info));
  MPI_OK(MPI_Win_set_info(window, info));
  MPI_OK(MPI_Info_free(&info));
  deleted = 0;
  window.free();
  CHECK(deleted == 1);
  MPI_OK(MPI_Win_free_keyval(&keyval));
}

TEST_CASE("a dynamic window knows its attributes and its group", "[rma][handle]") {
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, comm(), &window));
  void* base = &window;
  const MPI_Aint* size = nullptr;
  const int *disp_unit = nullptr, *flavor = nullptr;
  int found = 0, same = MPI_UNEQUAL;
  MPI_OK(MPI_Win_get_attr(window, MPI_WIN_BASE, static_cast<void*>(&base), &found));
  CHECK((found != 0 && base == MPI_BOTTOM));
  MPI_OK(MPI_Win_get_attr(window, MPI_WIN_SIZE, static_cast<void*>(&size), &found));
  CHECK((found != 0 && *size == 0));
  MPI_OK(MPI_Win_get_attr(window, MPI_WIN_DISP_UNIT, static_cast<void*>(&disp_unit), &found));
  CHECK((found != 0 && *disp_unit == 1));
  MPI_OK(MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, static_cast<void*>(&flavor), &found));
  CHECK((found != 0 && *flavor == MPI_WIN_FLAVOR_DYNAMIC));
  MPI_Group group = MPI_GROUP_NULL, wanted = MPI_GROUP_NULL;
  MPI_OK(MPI_Win_get_group(window, &group));
  PMPI_Comm_group(comm(), &wanted);
  PMPI_Group_compare(group, wanted, &same);
  CHECK(same == MPI_IDENT);
  PMPI_Group_free(&group);
  PMPI_Group_free(&wanted);
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("a window of device memory of one process", "[rma][handle]") {
  IntegerWindow window(MPI_COMM_SELF, 4);
  Memory out(Place::device, 2 * sizeof(int)), back(Place::device, sizeof(int));
  const int values[] = {7, 8};
  out.write(values, sizeof values);
  MPI_OK(MPI_Win_fence(0, window));
  MPI_OK(MPI_Put(out.data(), 2, MPI_INT, 0, 1, 2, MPI_INT, window));
  MPI_OK(MPI_Win_fence(0, window));
  MPI_OK(MPI_Accumulate(out.data(), 1, MPI_INT, 0, 1, 1, MPI_INT, MPI_SUM, window));
  MPI_OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, window));
  MPI_Group group = MPI_GROUP_NULL;
  MPI_OK(MPI_Win_get_group(window, &group));
  MPI_OK(MPI_Win_post(group, 0, window));
  MPI_OK(MPI_Win_start(group, 0, window));
  MPI_OK(MPI_Put(out.data(), 1, MPI_INT, 0, 3, 1, MPI_INT, window));
  MPI_OK(MPI_Win_complete(window));
  MPI_OK(MPI_Win_wait(window));
  MPI_OK(MPI_Group_free(&group));
  MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window));
  MPI_OK(MPI_Get(back.data(), 1, MPI_INT, 0, 1, 1, MPI_INT, window));
  MPI_OK(MPI_Win_flush(0, window));
  MPI_OK(MPI_Win_unlock(0, window));
  int fetched = 0;
  back.read(&fetched, sizeof fetched);
  CHECK(fetched == 14);
  CHECK(window.read() == std::vector<int>{0, 14, 8, 7});
}

TEST_CASE("displacements that overflow are out of the window's range", "[rma][handle]") {
  IntegerWindow window(comm(), 10, 8);
  const std::vector<int> before = window.read();
  const int value = 1;
  lock_step();
  MPI_OK(MPI_Win_lock_all(0, window));
  // 2^61 units of 8 bytes come round to 0.
  for (const MPI_Aint place : {farthest, farthest / 4 + 1, farthest / 8 + 1})
    MPI_FAILS(MPI_Put(&value, 1, MPI_INT, 0, place, 1, MPI_INT, window), MPI_ERR_RMA_RANGE);
  // Elements so far apart that the third one comes round to the first.
  MPI_Datatype wide = MPI_DATATYPE_NULL;
  MPI_OK(MPI_Type_create_resized(MPI_INT, 0, farthest / 2 + 1, &wide));
  MPI_OK(MPI_Type_commit(&wide));
  const int values[] = {1, 2, 3, 4, 5};
  MPI_FAILS(MPI_Put(values, 5, MPI_INT, 0, 0, 5, wide, window), MPI_ERR_RMA_RANGE);
  MPI_OK(MPI_Type_free(&wide));
  MPI_OK(MPI_Win_unlock_all(window));
  lock_step();
  CHECK(window.read() == before);
}

TEST_CASE("regions and accesses that reach round the end of memory", "[rma][handle]") {
  MPI_Win window = MPI_WIN_NULL;
  Memory memory(Place::device, sizeof(int));
  MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  MPI_FAILS(MPI_Win_attach(window, reinterpret_cast<void*>(-16), 32), MPI_ERR_RMA_ATTACH);
  MPI_OK(MPI_Win_attach(window, memory.data(), sizeof(int)));
  lock_step();
  const int value = 1;
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, right_neighbour(), 0, window));
  MPI_OK(MPI_Put(&value, 1, MPI_INT, right_neighbour(), farthest - 1, 1, MPI_INT, window));
  MPI_FAILS(MPI_Win_unlock(right_neighbour(), window), MPI_ERR_RMA_RANGE);
  lock_step();
  MPI_OK(MPI_Win_detach(window, memory.data()));
  MPI_OK(MPI_Win_free(&window));
}
