// What the tests of operations in streams share.
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstddef>
#include <vector>

#include "include/gpudt_streams.h"
#include "tests/mpi/exchange.hpp"

namespace gpudt::test {

/// A stream of the current GPU, and a communicator on which this rank enqueues in it. Collective.
class EnqueuingStream {
 public:
  explicit EnqueuingStream(unsigned flags = cudaStreamNonBlocking, MPI_Comm of = gpudt::test::comm());
  ~EnqueuingStream();
  EnqueuingStream(const EnqueuingStream&) = delete;
  EnqueuingStream& operator=(const EnqueuingStream&) = delete;
  cudaStream_t cuda() const { return cuda_; }
  MPI_Comm comm() const { return comm_; }
  void synchronize() const { REQUIRE(cudaStreamSynchronize(cuda_) == cudaSuccess); }
  /// Keeps the stream busy for a while.
  void delay() const;

 private:
  cudaStream_t cuda_ = nullptr;
  MPIX_Stream stream_ = MPIX_STREAM_NULL;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Numbers in device memory, and as many in pinned host memory, from and to which a stream copies.
class Numbers {
 public:
  explicit Numbers(std::size_t count);
  ~Numbers();
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  double* device() const { return device_; }
  double* host() const { return host_; }
  std::size_t count() const { return count_; }
  /// Lets the stream write first, first + 1, ...
  void write(cudaStream_t stream, double first);
  /// Lets the stream copy the numbers to the host; values() returns them once that is done.
  void read(cudaStream_t stream);
  void clear(cudaStream_t stream);
  std::vector<double> values() const { return {host_, host_ + count_}; }

 private:
  std::size_t bytes() const { return count_ * sizeof(double); }
  std::size_t count_;
  double* device_ = nullptr;
  double* host_ = nullptr;
};

/// first, first + 1, ...
std::vector<double> counted(std::size_t count, double first);
/// What rank `from` writes in round `round` begins with it.
double first_of(int from, int round);
/// One of `step` numbers, from the first on.
std::vector<double> every(std::size_t step, const std::vector<double>& numbers);

int right();
int left();

}  // namespace gpudt::test
