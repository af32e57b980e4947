// The host's part of dCUDA's interface (thesis, section 3.3.1), over World. One difference: memory of windows comes
// from dcuda_host_malloc(), since GPUs reach symmetric memory alone.
//
// All functions but dcuda_host_get_rank_info and _get_timings are collective. Errors are thrown as
// gpudt::initiated::Error.
#pragma once

#include <cstddef>
#include <vector>

#include "initiated/kernel_world.hpp"

constexpr int dcuda_most_windows = 16;  ///< at a time, of each communicator
constexpr int dcuda_most_timings = 256;

namespace gpudt::initiated {
struct Options;  // world.hpp
}

/// What a kernel gets: in device memory.
struct dcuda_context {  // NOLINT(readability-identifier-naming): as dCUDA has it
  gpudt::initiated::KernelWorld world;
  gpudt::initiated::Window heap;    ///< of dcuda_host_malloc
  gpudt::initiated::Window places;  ///< [2 * dcuda_most_windows][rank] of dcuda_place
  void* data;                       ///< dcuda_get_data
  unsigned long long started;       ///< nanoseconds
  int timings;                      ///< how many there are
  double milliseconds[dcuda_most_timings];
};
struct dcuda_place {        // NOLINT(readability-identifier-naming): as dCUDA has it
  long long offset, bytes;  ///< of a rank's window, in the heap
};

struct dcuda_host_context;
using dcuda_host_context_handle = dcuda_host_context*;
using dcuda_context_handle = dcuda_context*;
using dcuda_kernel_t = void (*)(dcuda_context_handle);

struct dcuda_rank_info {  // NOLINT(readability-identifier-naming): as dCUDA has it
  int rank_count;         ///< total number of ranks
  int rank_responsible;   ///< number of ranks of this process
  int rank_start;         ///< the first of them
  int device_count;       ///< processes, and so devices, of this node
  int device_index;       ///< this one's among them
  int node_count;
  int node_index;
  int process_count;
  int process_index;
};

/// Starts MPI (with MPI_THREAD_MULTIPLE) unless that has been done, and a World. There are as many ranks as blocks of
/// `threads_per_rank` threads can run at the same time, at most 264 for each device (dCUDA: 208).
void dcuda_host_init(int argc, char* argv[], dcuda_host_context_handle* context, dcuda_kernel_t kernel,
                     int threads_per_rank, std::size_t heap_bytes = std::size_t{256} << 20,
                     const gpudt::initiated::Options* options = nullptr);
void dcuda_host_get_rank_info(dcuda_host_context_handle context, dcuda_rank_info* info);
/// Symmetric memory, aligned to 256 bytes; it stays until dcuda_host_finish.
void* dcuda_host_malloc(dcuda_host_context_handle context, std::size_t bytes);
/// Copies `gpu_size` bytes to the device, runs the kernel, and copies them back; the milliseconds that it took.
double dcuda_host_run(dcuda_host_context_handle context, void* gpu_data = nullptr, std::size_t gpu_size = 0);
/// Milliseconds between the kernel's calls of dcuda_start_cpu_timer and _stop_cpu_timer.
std::vector<double> dcuda_host_get_timings(dcuda_host_context_handle context);
/// Ends MPI, if dcuda_host_init has started it.
void dcuda_host_finish(dcuda_host_context_handle context);
