// Reductions of device memory where it depends on all processes, from call to call, whether GPUs do them.
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::test;

namespace {

constexpr int enough = 5000;  ///< ints, for GPUs to be worth it

/// `count` ints of `key`'s, each process's others.
std::vector<int> ints_of(int process, int count, int key) {
  std::vector<int> ints;
  for (int i = 0; i < count; ++i) ints.push_back((process + 1) * (i % 1000) + key);
  return ints;
}

std::vector<int> sum_of_all(int processes, int count, int key) {
  std::vector<int> sum(static_cast<std::size_t>(count), 0);
  for (int process = 0; process < processes; ++process) {
    const std::vector<int> ints = ints_of(process, count, key);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += ints[i];
  }
  return sum;
}

class Ints {
 public:
  Ints(Place place, int count) : count_(count), memory_(place, static_cast<std::size_t>(count) * sizeof(int)) {}
  void write(const std::vector<int>& ints) { memory_.write(ints.data(), ints.size() * sizeof(int)); }
  std::vector<int> read() const {
    std::vector<int> ints(static_cast<std::size_t>(count_));
    memory_.read(ints.data(), ints.size() * sizeof(int));
    return ints;
  }
  void* address() const { return memory_.data(); }

 private:
  int count_;
  Memory memory_;
};

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
  Ints in(Place::device, enough), out(Place::device, enough);
  for (int i = 0; i < 300; ++i) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_dup(comm(), &copy));
    for (int call = 0; call < 1 + i % 3; ++call) CHECK(sums(copy, in, out, enough, i + call));
    MPI_OK(MPI_Comm_free(&copy));
  }
}

TEST_CASE("reductions on more communicators than there are boards", "[collective][reduce]") {
  Ints in(Place::device, enough), out(Place::device, enough);
  std::vector<MPI_Comm> copies(150, MPI_COMM_NULL);
  for (MPI_Comm& copy : copies) {
    MPI_OK(MPI_Comm_dup(comm(), &copy));
    CHECK(sums(copy, in, out, enough, 1));
  }
  for (const MPI_Comm copy : copies) CHECK(sums(copy, in, out, enough, 2));
  for (MPI_Comm& copy : copies) MPI_OK(MPI_Comm_free(&copy));
}

TEST_CASE("reductions in parts of the world", "[collective][reduce]") {
  Ints in(Place::device, enough), out(Place::device, enough);
  for (int colour = 1; colour <= 3; ++colour) {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_split(comm(), rank() % colour, -rank(), &part));
    for (int call = 0; call < 5; ++call) CHECK(sums(part, in, out, enough, call));
    MPI_OK(MPI_Comm_free(&part));
  }
}

TEST_CASE("reductions in which some have their data elsewhere", "[collective][reduce]") {
  Ints device_in(Place::device, enough), device_out(Place::device, enough);
  Ints host_in(Place::host, enough), host_out(Place::host, enough);
  for (int i = 0; i < 60; ++i) {
    const int turn = i % (3 * ranks());
    Ints& in = turn == rank() ? host_in : device_in;
    Ints& out = turn == ranks() + rank() ? host_out : device_out;
    CHECK(sums(comm(), in, out, enough, i));
  }
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
      Ints in(Place::device, enough), out(Place::device, enough);
      for (int i = 0; i < 30; ++i)
        if (!sums(comms[t], in, out, enough, i)) ++wrong[t];
    });
  for (std::thread& thread : running) thread.join();
  CHECK(wrong == std::vector<int>(threads, 0));
  for (MPI_Comm& each : comms) MPI_OK(MPI_Comm_free(&each));
}
