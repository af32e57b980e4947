// NCCL's collectives, as a peer to measure beside: looked for at run time, so that no build needs it. One communicator
// of all processes, each on a GPU of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/memory.hpp"

namespace gpudt::bench {

/// Every function queues one call and returns when it has ended on the GPU; `count` is in bytes for those that move
/// data, in floats for those that add them. All are collective, and throw std::runtime_error if NCCL fails.
class Nccl {
 public:
  /// Of MPI_COMM_WORLD, for the current device. Null, on all ranks, where libnccl.so.2 is not found on one or refuses
  /// (several processes on one GPU); `why` says so. Collective.
  static std::shared_ptr<const Nccl> open(std::string& why);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  void broadcast(void* data, std::size_t count, int root) const;
  void gather(const void* from, void* to, std::size_t count, int root) const;
  void scatter(const void* from, void* to, std::size_t count, int root) const;
  void all_gather(const void* from, void* to, std::size_t count) const;
  void all_to_all(const void* from, void* to, std::size_t count) const;

  void all_reduce(const void* from, void* to, std::size_t count) const;
  void reduce(const void* from, void* to, std::size_t count, int root) const;
  void reduce_scatter(const void* from, void* to, std::size_t count) const;  ///< `count` floats for each process

 private:
  struct Library;
  Nccl(std::unique_ptr<Library> library, void* comm, int rank, int size);
  /// `exchange(other)` queues what goes to and comes from each process.
  template <class Exchange>
  void exchange(const Exchange& exchange_with) const;

  const std::unique_ptr<const Library> library_;
  void* const comm_;
  const int rank_, size_;
  Stream stream_;
};

/// For the way "nccl", if it is among `ways`: null, with a line of rank 0's that says why, where there is none.
/// Collective.
std::shared_ptr<const Nccl> nccl_for(const std::vector<std::string>& ways, const Machine& machine);

}  // namespace gpudt::bench
