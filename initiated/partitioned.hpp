// Partitioned communication (MPI-4.1, chapter 4) for kernels, over any MPI library: the requests of World::psend_init
// and World::precv_init, whose arguments are those of MPI_Psend_init and MPI_Precv_init. Their partitions are marked
// ready, and found arrived, in kernels alone (mpi_calls.cuh).
//
//   std::vector<Request> requests;
//   requests.push_back(world.psend_init(out, 64, 128, MPI_DOUBLE, right, tag));
//   requests.push_back(world.precv_init(in, 16, 4, column_type, left, tag));
//   world.match();                                  // collective: once for all that have been initialised
//   Arguments arguments = {world.view(64), requests[0].kernel(), requests[1].kernel()};
//   for (int round = 0; round < rounds; ++round) {
//     Request::start_all(requests);                 // MPI_Startall
//     world.run(kernel, 64, 256, &arguments);       // pready, parrived
//     Request::wait_all(requests);                  // MPI_Waitall
//   }
#pragma once

#include <memory>
#include <span>

#include "initiated/partitions.hpp"

namespace gpudt::initiated {

/// A partitioned request. It and its copies are one. To be destroyed before the World, and not while it is active. Not
/// thread-safe. Functions are not collective, and throw Error.
class Request {
 public:
  class State;  // partition_matches.hpp
  explicit Request(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// For kernels, from World::match() on; the same in all rounds. Throws if it has not been matched.
  const KernelRequest& kernel() const;

  /// MPI_Start: begins a round. Local. When it returns, kernels that run or start later may mark partitions ready, and
  /// the sender of a receive may write to the buffer.
  void start();
  /// MPI_Wait: returns when all partitions of a send have been marked ready and the buffer may be changed, or when
  /// those of a receive have arrived, for whatever reads them later. Throws after Options::timeout_seconds.
  void wait();
  /// MPI_Test: whether that is so. True if no round has been started.
  bool test();

  /// MPI_Startall and MPI_Waitall. Of several requests one start_all() takes hardly longer than one start().
  static void start_all(std::span<Request> requests);
  static void wait_all(std::span<Request> requests);

 private:
  std::shared_ptr<State> state_;
};

}  // namespace gpudt::initiated
