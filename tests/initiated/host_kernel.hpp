// The process itself in the place of its kernels, on the simulated device: what it reads and writes by copies, and the
// commands that it gives to its proxy.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "initiated/world.hpp"

namespace gpudt::test {

inline void require(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("wrong: " + what);
}

inline std::vector<char> read(const void* from, std::int64_t bytes) {
  std::vector<char> to(static_cast<std::size_t>(bytes));
  initiated::check(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return to;
}
template <class T>
T read_one(const T* from) {
  T value = {};
  initiated::check(cudaMemcpy(&value, from, sizeof value, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return value;
}
inline void write(void* to, const void* from, std::size_t bytes) {
  initiated::check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  initiated::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}
inline void write(void* to, const std::vector<char>& from) {
  write(to, from.data(), from.size());
}

/// The main program of a test of Worlds: `test(options)` in each process, with a GPU. Returns the exit status; 77 if
/// MPI has no MPI_THREAD_MULTIPLE.
template <class Test>
int run_world_test(int argc, char** argv, const Test& test) {
  int level = 0, rank = 0, devices = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  if (level < MPI_THREAD_MULTIPLE) return 77;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    initiated::check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    initiated::check(cudaSetDevice(rank % devices), "cudaSetDevice");
    initiated::Options options;
    options.ranks = 2;
    options.timeout_seconds = 20;
    test(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "process %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}

/// What ProxyQueue asks of a kernel's thread, with counters of the host.
struct HostAccess {
  static std::uint64_t next(std::uint64_t* word) { return (*word)++; }
  static std::uint64_t count(const std::uint64_t* word) { return *word; }
  static std::uint64_t load(const std::uint64_t* word) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
  }
  static std::uint64_t seen(const std::uint64_t* word) { return *word; }
  static void raise(std::uint64_t* word, std::uint64_t value) { *word = value; }
  static void publish(std::uint64_t* word, std::uint64_t value) {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  static void poll() { std::this_thread::yield(); }
};

/// The ring of a World's proxy. One of a World, which counts its tickets.
class HostRing {
 public:
  explicit HostRing(const initiated::KernelWorld& kernel)
      : port_{kernel.proxy.slots, kernel.proxy.completed, &tickets_, &seen_} {}
  HostRing(const HostRing&) = delete;
  HostRing& operator=(const HostRing&) = delete;

  const initiated::ProxyQueue<HostAccess>& queue() const { return queue_; }
  /// Contiguous bytes, as many as a slot holds.
  void put(int target, int memory, std::int64_t offset, const std::vector<char>& data) {
    const std::uint64_t ticket = queue_.take();
    initiated::ProxyCommand command = {initiated::ProxyCall::put, target, memory, 0, offset};
    command.bytes = static_cast<std::int64_t>(data.size());
    std::memcpy(queue_.slot(ticket).payload, data.data(), data.size());
    queue_.publish(ticket, command);
  }
  void word(int target, int memory, std::int64_t offset, std::uint64_t value) {
    initiated::ProxyCommand command = {initiated::ProxyCall::word, target, memory, 0, offset};
    command.word = value;
    queue_.publish(queue_.take(), command);
  }

 private:
  std::uint64_t tickets_ = 0, seen_ = 0;
  initiated::ProxyPort port_;
  HostAccess access_;
  initiated::ProxyQueue<HostAccess> queue_{port_, access_};
};

}  // namespace gpudt::test
