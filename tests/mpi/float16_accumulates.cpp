// float16 and bfloat16 (gpudt_mpi.h): accumulates of every kind, to memory of the host and of GPUs.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/mpi/float16_values.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

class Window {
 public:
  Window(void* base, int count) {
    MPI_OK(
        MPI_Win_create(base, MPI_Aint{count} * MPI_Aint{sizeof(Bits)}, sizeof(Bits), MPI_INFO_NULL, comm(), &handle_));
    MPI_Win_set_errhandler(handle_, MPI_ERRORS_RETURN);
  }
  ~Window() { MPI_Win_free(&handle_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  operator MPI_Win() const { return handle_; }  // NOLINT(google-explicit-constructor): stands in for the handle

 private:
  MPI_Win handle_ = MPI_WIN_NULL;
};

constexpr int window_count = 3000;

/// The window's error handler is to be called. (Open MPI's handles are addresses: such a call crashes.)
void check_refusal_of_no_type(MPI_Win window) {
#ifdef MPICH_VERSION
  constexpr MPI_Datatype none = 0x12345678;
  int number = 0;
  MPI_FAILS(MPI_Accumulate(&number, 1, MPI_INT, 0, 0, 1, none, MPI_SUM, window), MPI_ERR_TYPE);
#else
  static_cast<void>(window);
#endif
}

/// Each process accumulates to the next one, all elements or every third one, and gets what was there before.
void check_accumulates(const Half& kind, const HalfOperator& op, Place there, Place here, bool strided) {
  INFO(kind.name << ", " << op.name << ", from " << place_name(here) << " to " << place_name(there)
                 << (strided ? ", strided" : ""));
  step(std::string("accumulates of ") + kind.name);
  const Type third = vector(window_count / 3, 1, 3, kind.handle());
  const int count = strided ? 1 : window_count, stride = strided ? 3 : 1, target = (rank() + 1) % ranks();
  const MPI_Datatype type = strided ? MPI_Datatype(third) : kind.handle();
  const Values before = input(kind, 0, window_count, 0), given = input(kind, 1, window_count, 0);
  Values once = before, twice;
  for (std::size_t i = 0; i < once.size(); i += static_cast<std::size_t>(stride))
    once[i] = combined(kind, op, given[i], before[i]);
  twice = once;
  for (std::size_t i = 0; i < once.size(); i += static_cast<std::size_t>(stride))
    twice[i] = combined(kind, op, given[i], once[i]);
  twice[1] = combined(kind, op, given[0], twice[1]);

  Elements memory(there, window_count), origin(here, window_count), fetched(here, window_count), one(here, 1);
  memory.write(before);
  origin.write(given);
  fetched.write(Values(window_count, 0));
  Window window(memory.address(), window_count);
  MPI_OK(MPI_Win_fence(0, window));
  MPI_OK(MPI_Accumulate(origin.address(), count, type, target, 0, count, type, op.handle, window));
  MPI_OK(MPI_Get_accumulate(origin.address(), count, type, fetched.address(), count, type, target, 0, count, type,
                            op.handle, window));
  MPI_OK(MPI_Fetch_and_op(origin.address(), one.address(), kind.handle(), target, 1, op.handle, window));
  MPI_OK(MPI_Win_fence(0, window));
  CHECK(wrong(memory.read(window_count), twice) == "");
  Values old(window_count, 0);
  for (std::size_t i = 0; i < old.size(); i += static_cast<std::size_t>(stride)) old[i] = once[i];
  CHECK(wrong(fetched.read(window_count), old) == "");
  CHECK(wrong(one.read(1), {strided ? before[1] : combined(kind, op, given[1], once[1])}) == "");
}

}  // namespace

// First, while no process has the type. Only rank 0 asks for it.
TEST_CASE("threads make the type of float16, and accumulate to a process that has not asked for it",
          "[float16][accumulate][first]") {
  Elements memory(Place::device, 4), origin(Place::host, 4);
  memory.write(Values(4, 0x3c00));
  origin.write(Values(4, 0x4000));
  Window window(memory.address(), 4);
  MPI_OK(MPI_Win_fence(0, window));
  if (rank() == 0) {
    std::array<MPI_Datatype, 4> made = {};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < made.size(); ++i) {
      threads.emplace_back([&made, i] { gpudt_type_float16(&made[i]); });
      if (!several_threads()) threads.back().join();
    }
    for (std::thread& each : threads)
      if (each.joinable()) each.join();
    CHECK((std::ranges::count(made, made[0]) == 4 && made[0] != MPI_DATATYPE_NULL));
    MPI_OK(MPI_Accumulate(origin.address(), 4, made[0], last_rank(), 0, 4, made[0], MPI_SUM, window));
  }
  MPI_OK(MPI_Win_fence(0, window));
  CHECK((memory.read(4) == Values(4, rank() == last_rank() ? 0x4200 : 0x3c00)));
}

TEST_CASE("accumulates of float16 and bfloat16 to memory of GPUs", "[float16][accumulate]") {
  for (const Half& kind : kinds)
    for (const HalfOperator& op : operators)
      for (const Place here : basic_places)
        for (const bool strided : {false, true}) check_accumulates(kind, op, Place::device, here, strided);
}

TEST_CASE("windows with memory of a GPU on one rank accumulate float16", "[float16][accumulate]") {
  for (const Place here : basic_places)
    check_accumulates(kinds[0], operators[0], rank() == 0 ? Place::device : Place::host, here, /*strided=*/false);
}

TEST_CASE("accumulates of float16 by operators that do not take it", "[float16][accumulate]") {
  Elements memory(Place::device, window_count), origin(Place::host, window_count);
  memory.write(Values(window_count, 3));
  origin.write(Values(window_count, 5));
  Window window(memory.address(), window_count);
  const MPI_Datatype type = kinds[0].handle();
  MPI_OK(MPI_Win_fence(0, window));
  for (const MPI_Op op : {MPI_BAND, MPI_LAND, MPI_BXOR})
    MPI_FAILS(MPI_Accumulate(origin.address(), 4, type, 0, 0, 4, type, op, window), MPI_ERR_OP);
  check_refusal_of_no_type(window);
  Elements old(Place::host, 1);
  if (rank() == 0) {
    MPI_OK(MPI_Accumulate(origin.address(), 4, type, 0, 0, 4, type, MPI_REPLACE, window));
    MPI_OK(MPI_Fetch_and_op(origin.address(), old.address(), type, 0, 5, MPI_REPLACE, window));
  }
  MPI_OK(MPI_Win_fence(0, window));
  if (rank() != 0) return;
  CHECK((memory.read(7) == Values{5, 5, 5, 5, 3, 5, 3}));
  CHECK((old.read(1) == Values{3}));
}

TEST_CASE("windows of the host's memory refuse to accumulate float16", "[float16][accumulate]") {
  std::vector<char> own;
  MPI_Win window = MPI_WIN_NULL;
  char* const base = make_host_window(64, comm(), own, &window);
  std::memset(base, 0, 64);
  MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
  Elements host(Place::host, 8), device(Place::device, 8);
  const MPI_Datatype type = kinds[0].handle();
  const Type strided = vector(2, 1, 2, type);
  MPI_OK(MPI_Win_fence(0, window));
  for (const Elements* const buffer : {&host, &device}) {
    void* const at = buffer->address();
    MPI_FAILS(MPI_Accumulate(at, 4, type, 0, 0, 4, type, MPI_SUM, window), MPI_ERR_OP);
    MPI_FAILS(MPI_Accumulate(at, 1, strided, 0, 0, 1, strided, MPI_MAX, window), MPI_ERR_OP);
    MPI_FAILS(MPI_Accumulate(at, 4, type, 0, 0, 4, type, MPI_BAND, window), MPI_ERR_OP);
    MPI_FAILS(MPI_Get_accumulate(at, 1, type, at, 1, type, 0, 0, 1, type, MPI_SUM, window), MPI_ERR_OP);
    MPI_FAILS(MPI_Fetch_and_op(at, at, type, 0, 0, MPI_SUM, window), MPI_ERR_OP);
  }
  for (const MPI_Datatype to : {type, MPI_Datatype(strided)})
    MPI_OK(MPI_Accumulate(host.address(), 4, type, MPI_PROC_NULL, 0, to == type ? 4 : 2, to, MPI_SUM, window));
  MPI_OK(MPI_Fetch_and_op(host.address(), host.address(), type, MPI_PROC_NULL, 0, MPI_SUM, window));
  check_refusal_of_no_type(window);
  const Values given = {1, 2, 3, 4, 5, 6, 7, 8};
  host.write(given);
  if (rank() == 0) MPI_OK(MPI_Accumulate(host.address(), 8, type, ranks() - 1, 0, 8, type, MPI_REPLACE, window));
  MPI_OK(MPI_Win_fence(0, window));
  Elements old(Place::host, 1);
  if (rank() == 0) MPI_OK(MPI_Fetch_and_op(host.address(), old.address(), type, ranks() - 1, 0, MPI_NO_OP, window));
  MPI_OK(MPI_Win_fence(0, window));
  if (rank() == 0) CHECK((old.read(1) == Values{given[0]}));
  if (rank() == ranks() - 1) CHECK(std::memcmp(base, given.data(), 16) == 0);
  MPI_OK(MPI_Win_free(&window));
}
