// Reductions of device memory where it depends on all processes, from call to call, whether GPUs do them.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/mpi/ints.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

constexpr int worth_it = 5000;  ///< ints, for GPUs

/// Of all processes of `comm`.
bool sums(MPI_Comm comm, Ints& in, Ints& out, int count, int key) {
  int me = 0, size = 0;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &size);
  in.write(ints_of(me, count, key));
  out.write(std::vector<int>(static_cast<std::size_t>(count), -1));
  return MPI_Allreduce(in.address(), out.address(), count, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS &&
         out.read() == sum_of_all(size, count, key);
}

}  // namespace

TEST_CASE("reductions on communicators that come and go", "[collective][reduce]") {
  Ints in(Place::device, worth_it), out(Place::device, worth_it);
  for (int i = 0; i < 300; ++i) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_dup(comm(), &copy));
    for (int call = 0; call < 1 + i % 3; ++call) CHECK(sums(copy, in, out, worth_it, i + call));
    MPI_OK(MPI_Comm_free(&copy));
  }
}

TEST_CASE("reductions on more communicators than there are boards", "[collective][reduce]") {
  Ints in(Place::device, worth_it), out(Place::device, worth_it);
  std::vector<MPI_Comm> copies(150, MPI_COMM_NULL);
  for (MPI_Comm& copy : copies) {
    MPI_OK(MPI_Comm_dup(comm(), &copy));
    CHECK(sums(copy, in, out, worth_it, 1));
  }
  for (const MPI_Comm copy : copies) CHECK(sums(copy, in, out, worth_it, 2));
  for (MPI_Comm& copy : copies) MPI_OK(MPI_Comm_free(&copy));
}

TEST_CASE("reductions in parts of the world", "[collective][reduce]") {
  Ints in(Place::device, worth_it), out(Place::device, worth_it);
  for (int colour = 1; colour <= 3; ++colour) {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_split(comm(), rank() % colour, -rank(), &part));
    for (int call = 0; call < 5; ++call) CHECK(sums(part, in, out, worth_it, call));
    MPI_OK(MPI_Comm_free(&part));
  }
}

TEST_CASE("reductions in which some have their data elsewhere", "[collective][reduce]") {
  Ints device_in(Place::device, worth_it), device_out(Place::device, worth_it);
  Ints host_in(Place::host, worth_it), host_out(Place::host, worth_it);
  for (int i = 0; i < 60; ++i) {
    const int turn = i % (3 * ranks());
    Ints& in = turn == rank() ? host_in : device_in;
    Ints& out = turn == ranks() + rank() ? host_out : device_out;
    CHECK(sums(comm(), in, out, worth_it, i));
  }
}

// Over nodes these go through host memory in many chunks.
TEST_CASE("reductions of many megabytes", "[collective][reduce]") {
  const int block = (3 << 20) / ranks() + 1, all = block * ranks();
  Ints in(Place::device, all), out(Place::device, all);
  CHECK(sums(comm(), in, out, all, 1));
  const std::vector<int> sum = sum_of_all(ranks(), all, 2);

  in.write(ints_of(rank(), all, 2));
  const int root = ranks() - 1;
  void* const target = rank() == root ? out.address() : nullptr;
  MPI_OK(MPI_Reduce(in.address(), target, all, MPI_INT, MPI_SUM, root, comm()));
  if (rank() == root) CHECK((out.read() == sum));

  out.write(std::vector<int>(static_cast<std::size_t>(all), -1));
  MPI_OK(MPI_Reduce_scatter_block(in.address(), out.address(), block, MPI_INT, MPI_SUM, comm()));
  std::vector<int> wanted(static_cast<std::size_t>(all), -1);
  std::copy_n(sum.begin() + std::ptrdiff_t{block} * rank(), block, wanted.begin());
  CHECK((out.read() == wanted));
  CHECK((in.read() == ints_of(rank(), all, 2)));

  MPI_OK(MPI_Allreduce(MPI_IN_PLACE, in.address(), all, MPI_INT, MPI_SUM, comm()));
  CHECK((in.read() == sum));
}

// Open MPI makes communicators one after the other: a call that made one might wait for this one, which waits for it.
TEST_CASE("reductions while a communicator is being made", "[collective][reduce]") {
  if (!reduces_beside_idup()) return not_possible("its reductions over nodes wait for MPI_Comm_idup");
  constexpr int many = 1 << 20;
  Ints in(Place::device, many), out(Place::device, many);
  MPI_Comm copy = MPI_COMM_NULL, late = MPI_COMM_NULL;
  MPI_OK(MPI_Comm_dup(comm(), &copy));
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank() == 0) MPI_OK(MPI_Comm_idup(comm(), &late, &request));
  CHECK(sums(copy, in, out, many, 1));
  if (rank() != 0) MPI_OK(MPI_Comm_idup(comm(), &late, &request));
  MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  MPI_OK(MPI_Comm_free(&late));
  MPI_OK(MPI_Comm_free(&copy));
}

// A GPU of the last node reads beyond what is there, and may not be used any more.
TEST_CASE("a reduction over nodes that fails on one fails on all", "[.][node-faults]") {
  if (!tells_of_other_nodes) return not_possible("so no reduction is gpudt's over nodes, and others wait in MPI's");
  constexpr int many = 1 << 20;
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_OK(MPI_Comm_dup(comm(), &copy));
  MPI_OK(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN));
  const int gpu = current_gpu();
  use_gpu(4);
  const int there = rank() == ranks() - 1 ? many / 2 : many;
  Ints &in = *new Ints(Place::device, there), &out = *new Ints(Place::device, many);  // they cannot be given back
  MPI_FAILS(MPI_Allreduce(in.address(), out.address(), many, MPI_INT, MPI_SUM, copy),
            there < many ? MPI_ERR_BUFFER : MPI_ERR_OTHER);
  use_gpu(gpu);
  Ints good_in(Place::device, many), good_out(Place::device, many);
  CHECK(sums(copy, good_in, good_out, many, 1));
  MPI_OK(MPI_Comm_free(&copy));
}

TEST_CASE("reductions of several threads", "[collective-threads]") {
  constexpr std::size_t threads = 3;
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE) return;
  std::vector<MPI_Comm> comms(threads, MPI_COMM_NULL);
  for (MPI_Comm& each : comms) MPI_OK(MPI_Comm_dup(comm(), &each));
  std::vector<int> wrong(threads, 0);
  std::vector<std::thread> running;
  running.reserve(threads);
  for (std::size_t t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      Ints in(Place::device, worth_it), out(Place::device, worth_it);
      for (int i = 0; i < 30; ++i)
        if (!sums(comms[t], in, out, worth_it, i)) ++wrong[t];
    });
  for (std::thread& thread : running) thread.join();
  CHECK(wrong == std::vector<int>(threads, 0));
  for (MPI_Comm& each : comms) MPI_OK(MPI_Comm_free(&each));
}
