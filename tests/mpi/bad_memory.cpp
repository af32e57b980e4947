// Memory that is not what the program says: buffers that reach beyond their allocation, memory that is freed while a
// message is under way, windows over freed memory. Who has made the mistake gets an error, and so does who cannot have
// the data; nobody crashes, and the others' GPUs work on.
//
// To be run on simulated devices, of which each test spoils some: a GPU that has failed fails for ever.
#include <cuda_runtime_api.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int few = 4096;  ///< bytes: an allocation has one page

void check_others_go_on() {
  const Type type = vector(5000, 1, 2);
  exchange_both_ways({type, 1, Place::device, type, 1, Place::device}, 5);
}

/// Memory on a GPU that is not the current one. It is not given back: where that GPU has failed, that fails, too.
char* memory_on(int gpu, std::size_t bytes) {
  const int before = current_gpu();
  use_gpu(gpu);
  char* const data = (new Memory(Place::device, bytes))->data();
  use_gpu(before);
  return data;
}

/// Freed memory may stay where another process has it mapped, or maps it before its owner can tell.
bool is_either(int code, int wanted) {
  return code == MPI_SUCCESS || error_class(code) == wanted;
}

void free_on(int gpu, void* data) {
  const int before = current_gpu();
  use_gpu(gpu);
  CHECK(cudaFree(data) == cudaSuccess);
  use_gpu(before);
}

/// Messages of 64 KiB and 4 MiB, for one end of which the GPU `gpu` that it is told has too little memory. Afterwards
/// other messages go on. `send` and `receive` are called with (comm, gpu, bytes).
template <class Send, class Receive>
void exchange_too_much(const Send& send, const Receive& receive) {
  if (!all_have_partners()) return;
  int gpu = 2;
  for (const int bytes : {64 << 10, 4 << 20}) {
    step(std::to_string(bytes) + " B");
    const ErrorComm errors(false);
    MPI_OK(MPI_Barrier(errors));  // now all know it, so that messages are offered
    if (rank() % 2 == 0)
      send(errors, gpu, bytes);
    else
      receive(errors, gpu, bytes);
    check_others_go_on();
    ++gpu;
  }
}

}  // namespace

TEST_CASE("a send of more than its allocation has fails at both ends", "[.][bad-memory]") {
  exchange_too_much(
      [](MPI_Comm errors, int gpu, int bytes) {
        MPI_FAILS(MPI_Send(memory_on(gpu, few), bytes, MPI_BYTE, partner(), 1, errors), MPI_ERR_BUFFER);
      },
      [](MPI_Comm errors, int, int bytes) {
        const Memory in(Place::device, static_cast<std::size_t>(bytes));
        MPI_FAILS(MPI_Recv(in.data(), bytes, MPI_BYTE, partner(), 1, errors, MPI_STATUS_IGNORE), MPI_ERR_OTHER);
      });
}

TEST_CASE("a receive of more than its allocation has fails there alone", "[.][bad-memory]") {
  exchange_too_much(
      [](MPI_Comm errors, int, int bytes) {
        const Memory out(Place::device, static_cast<std::size_t>(bytes));
        MPI_OK(MPI_Send(out.data(), bytes, MPI_BYTE, partner(), 1, errors));
      },
      [](MPI_Comm errors, int gpu, int bytes) {
        char* const in = memory_on(gpu, few);
        MPI_FAILS(MPI_Recv(in, bytes, MPI_BYTE, partner(), 1, errors, MPI_STATUS_IGNORE), MPI_ERR_BUFFER);
      });
}

TEST_CASE("memory that is freed before its message is received crashes nobody", "[.][bad-memory]") {
  if (!all_have_partners()) return;
  constexpr int bytes = 64 << 10;
  const ErrorComm errors(false);
  MPI_OK(MPI_Barrier(errors));  // now all know it, so that messages are offered
  if (rank() % 2 == 0) {
    char* const out = memory_on(4, bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Isend(out, bytes, MPI_BYTE, partner(), 1, errors, &request));
    free_on(4, out);
    MPI_OK(MPI_Send(nullptr, 0, MPI_BYTE, partner(), 2, comm()));
    CHECK(is_either(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_BUFFER));
  } else {
    const Memory in(Place::device, bytes);
    MPI_OK(MPI_Recv(nullptr, 0, MPI_BYTE, partner(), 2, comm(), MPI_STATUS_IGNORE));
    CHECK(is_either(MPI_Recv(in.data(), bytes, MPI_BYTE, partner(), 1, errors, MPI_STATUS_IGNORE), MPI_ERR_OTHER));
  }
  check_others_go_on();
}

TEST_CASE("a collective for which one process has too little memory fails on all", "[.][bad-memory]") {
  constexpr int count = 16 << 10, bytes = 4 * count;
  for (const bool by_kernels : {false, true}) {
    step(by_kernels ? "by kernels" : "as messages");
    const ErrorComm errors(false);
    const int gpu = (by_kernels ? 5 : 7) + rank() % 2;
    char *const data = memory_on(gpu, rank() == 0 ? few : bytes), *const result = memory_on(gpu, bytes);
    const int code = by_kernels ? MPI_Allreduce(data, result, count, MPI_INT, MPI_SUM, errors)
                                : MPI_Bcast(data, count, MPI_INT, 0, errors);
    CHECK(error_class(code) == (rank() == 0 ? MPI_ERR_BUFFER : MPI_ERR_OTHER));
    check_others_go_on();
  }
}

TEST_CASE("calls of one process that reach beyond their memory fail", "[.][bad-memory]") {
  constexpr int bytes = 64 << 10;
  const ErrorComm errors(false);
  std::vector<char> packed(bytes);
  int position = 0;
  MPI_FAILS(MPI_Pack(memory_on(9, few), bytes, MPI_BYTE, packed.data(), bytes, &position, errors), MPI_ERR_BUFFER);
  char *const in = memory_on(10, 4 * few), *const inout = memory_on(10, few);
  MPI_OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  MPI_FAILS(MPI_Reduce_local(in, inout, few, MPI_INT, MPI_SUM), MPI_ERR_BUFFER);
  MPI_OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
  check_others_go_on();
}

namespace {

constexpr int window_bytes = 64 << 10;

/// A window in which even ranks reach their partner's memory by the returned displacement.
MPI_Aint expose(bool dynamic, char* memory, MPI_Win& window) {
  MPI_Aint mine = 0, theirs = 0;
  if (dynamic) {
    MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, comm(), &window));
    MPI_OK(MPI_Win_attach(window, memory, window_bytes));
    MPI_OK(MPI_Get_address(memory, &mine));
  } else {
    MPI_OK(MPI_Win_create(memory, window_bytes, 1, MPI_INFO_NULL, comm(), &window));
  }
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  MPI_OK(MPI_Sendrecv(&mine, 1, MPI_AINT, partner(), 1, &theirs, 1, MPI_AINT, partner(), 1, comm(), MPI_STATUS_IGNORE));
  return theirs;
}

/// The error of an access, by `kind`, and its epoch.
int access(int kind, void* data, MPI_Aint place, MPI_Win window) {
  constexpr int count = window_bytes / 4;
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, partner(), 0, window));
  const int code = kind == 0 ? MPI_Put(data, count, MPI_INT, partner(), place, count, MPI_INT, window)
                   : kind == 1
                       ? MPI_Get(data, count, MPI_INT, partner(), place, count, MPI_INT, window)
                       : MPI_Accumulate(data, count, MPI_INT, partner(), place, count, MPI_INT, MPI_SUM, window);
  const int unlocked = MPI_Win_unlock(partner(), window);
  return code != MPI_SUCCESS ? code : unlocked;
}

}  // namespace

TEST_CASE("accesses that reach beyond memory of their origin or target fail", "[.][bad-memory]") {
  if (!all_have_partners()) return;
  for (const bool of_origin : {true, false}) {
    step(of_origin ? "origin" : "target");
    const bool is_short = rank() % 2 == (of_origin ? 0 : 1);
    const Memory whole(Place::device, window_bytes);
    char* const data = is_short ? memory_on(of_origin ? 11 : 12, few) : whole.data();
    MPI_Win window = MPI_WIN_NULL;
    const MPI_Aint place = expose(/*dynamic=*/false, rank() % 2 == 0 ? whole.data() : data, window);
    if (rank() % 2 == 0) MPI_FAILS(access(0, data, place, window), of_origin ? MPI_ERR_BUFFER : MPI_ERR_RMA_RANGE);
    MPI_OK(MPI_Barrier(comm()));
    MPI_OK(MPI_Win_free(&window));
    check_others_go_on();
  }
}

TEST_CASE("accesses to memory that has been freed fail, and nobody else", "[.][bad-memory]") {
  if (!all_have_partners()) return;
  for (const bool dynamic : {false, true})
    for (const int kind : {0, 1, 2}) {
      step(std::string(dynamic ? "dynamic" : "created") + ", kind " + std::to_string(kind));
      const Memory data(Place::device, window_bytes);
      std::optional<Memory> exposed(std::in_place, Place::device, window_bytes);
      MPI_Win window = MPI_WIN_NULL;
      const MPI_Aint place = expose(dynamic, exposed->data(), window);
      if (rank() % 2 != 0) exposed.reset();
      MPI_OK(MPI_Barrier(comm()));
      if (rank() % 2 == 0) {
        const int code = access(kind, data.data(), place, window);
        if (dynamic)  // which targets serve
          MPI_FAILS(code, MPI_ERR_RMA_RANGE);
        else
          CHECK(is_either(code, MPI_ERR_RMA_RANGE));
      }
      MPI_OK(MPI_Barrier(comm()));
      MPI_OK(MPI_Win_free(&window));
      check_others_go_on();
    }
}

TEST_CASE("accesses to memory that was mapped before it was freed crash nobody", "[.][bad-memory]") {
  if (!all_have_partners()) return;
  const Memory data(Place::device, window_bytes);
  std::optional<Memory> exposed(std::in_place, Place::device, window_bytes);
  MPI_Win window = MPI_WIN_NULL;
  const MPI_Aint place = expose(/*dynamic=*/false, exposed->data(), window);
  if (rank() % 2 == 0) MPI_OK(access(0, data.data(), place, window));
  MPI_OK(MPI_Barrier(comm()));
  if (rank() % 2 != 0) exposed.reset();
  MPI_OK(MPI_Barrier(comm()));
  if (rank() % 2 == 0) CHECK(is_either(access(0, data.data(), place, window), MPI_ERR_RMA_RANGE));
  MPI_OK(MPI_Barrier(comm()));
  MPI_OK(MPI_Win_free(&window));
  check_others_go_on();
}
