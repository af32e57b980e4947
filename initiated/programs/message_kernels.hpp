// The kernels of the programs that measure messages: what they are told. Each function gives a kernel to launch.
#pragma once

#include <driver_types.h>

#include "initiated/kernel_world.hpp"
#include "initiated/layout.hpp"

namespace gpudt::initiated::programs {

/// How a message is moved.
enum class Mode : std::int32_t {
  ranks,  ///< each block is a rank, which puts a part of the message and notifies its partner
  grid,   ///< all blocks put the message together, and notify once
  iput,   ///< by one block through nvshmem_iput: 8-byte blocks at one stride
  bare,   ///< what the hardware allows: stores and a flag by each block, nothing else; contiguous, or as for iput
};

/// Of Mode::bare: where each block's flag is, from the window's end.
constexpr std::int64_t flag_spacing = 128, flags_bytes = 128 * flag_spacing;

/// GPU 0 sends to GPU 1, which sends back, again and again: packed bytes [0, bytes) of one layout. The window holds
/// what is sent at `send`, what is received at `receive`. Other GPUs do nothing.
struct PingPong {
  KernelWorld world;
  Window window;
  KernelLayout layout;  ///< of both sides
  std::int64_t bytes, send, receive;
  std::int64_t iput_stride;  ///< in words
  Mode mode;
  std::int32_t contiguous;  ///< the layout is left out
  std::int32_t iterations;
  std::uint64_t flags_set;  ///< Mode::bare: how often each flag has been set by the launches before
};
const void* pingpong_kernel();

/// Ranks `first` and `second` notify each other in turns, with `bytes` of data or without.
struct NotifyPingPong {
  KernelWorld world;
  Window window;
  std::int64_t bytes;
  std::int32_t first, second;
  std::int32_t with_data, wildcards;
  std::int32_t iterations;
};
const void* notify_kernel();

/// Ranks of GPU 0 put `bytes` each to their fellows of GPU `to_gpu` (or, on GPU 0 itself, `shift` ranks further), which
/// answer with a notification (dCUDA, section 5.3). Ranks from `senders` on do nothing.
struct OneWay {
  KernelWorld world;
  Window window;  ///< `bytes` for each rank, twice
  std::int64_t bytes;
  std::int32_t to_gpu, shift, senders;
  std::int32_t iterations;
};
const void* one_way_kernel();

/// GPUrdma, section 7: 30 blocks. GPU 0 sends all; GPU 1 sends back what it has got, all together or each block when
/// its part is there.
struct Throughput {
  KernelWorld world;
  Window window;  ///< what is sent, then what is received
  std::int64_t bytes;
  std::int32_t overlap;
  std::int32_t iterations;
};
const void* throughput_kernel();

constexpr int vector_length = 32;  // of floats, and of the matrix's side

/// GPUrdma, section 7: GPU 0 sends batches of vectors, GPU 1 multiplies each by a matrix that it keeps in shared memory
/// and sends the products back. The batches lie one behind the other at the window's beginning on GPU 0, and the
/// results behind them.
struct MatrixVectors {
  KernelWorld world;
  Window window;  ///< [batch] vectors to come, then [total] given, then [total] results
  const float* matrix;
  std::int64_t batch, total;  ///< vectors
};
const void* matrix_vectors_kernel();

/// The same work for the host to start: one batch.
struct MatrixVectorsOnce {
  const float* matrix;
  const float* vectors;
  float* products;
  std::int64_t count;
};
void launch_matrix_vectors(const MatrixVectorsOnce& arguments, int blocks, cudaStream_t stream);

}  // namespace gpudt::initiated::programs
