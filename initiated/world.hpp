// The host's side of communication that kernels start: GPUs that reach each other, windows, layouts, and launches whose
// blocks all run at the same time. The device's side is device.cuh.
//
// Ranks are thread blocks, as in dCUDA (Gysi et al.; in the thesis, sections 3.1 to 3.3): rank r of n on each GPU is
// block r mod n of process r / n. With one rank per GPU a block speaks for its GPU. One process for each GPU.
//
// Functions that are collective must be called by all processes of the World's communicator, in the same order. What
// goes wrong is thrown as Error, whose text names the call, the process and the argument.
#pragma once

#include <mpi.h>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "initiated/kernel_world.hpp"
#include "initiated/layout.hpp"
#include "initiated/partitioned.hpp"
#include "initiated/wire.hpp"

namespace gpudt::initiated {

struct Options {
  /// Most ranks (or blocks) of a GPU in any launch: the memory of their queues is laid out for so many,
  /// and 32 KiB for each, where blocks keep the places of what they have moved.
  int ranks = 264;
  /// Notifications that a rank can hold from each GPU before it consumes them: a power of two from 32 to 2^23. Who
  /// sends more waits until some have been consumed.
  int notifications = 1024;
  /// What connects the GPUs; null: usual_wire.
  WireMaker wire = nullptr;
  /// false, with a proxy or NVSHMEM: never by loads and stores to other GPUs' (symmetric) memory, but packed and put,
  /// as between nodes.
  bool direct = true;
  /// After so long a wait of a kernel's prints what it waits for and ends the program; 0: never.
  double timeout_seconds = 0;
  /// For each rank, where data have to be packed; a multiple of 16.
  std::int64_t staging_bytes = 64 << 10;
};

/// An MPI datatype, and how many elements of it, for kernels. The datatype may be freed afterwards. Owns device memory
/// of the current device, which must be the World's.
class Layout {
 public:
  /// The datatype need not be committed. Not collective.
  Layout(MPI_Datatype type, std::int64_t count);
  /// The same; `layout` is what gpudt has made of the datatype.
  Layout(const datatype::Layout& layout, std::int64_t count);
  Layout(Layout&&) noexcept;
  Layout& operator=(Layout&&) noexcept;
  ~Layout();

  /// Plain data for kernel parameters; valid as long as the Layout.
  const KernelLayout& kernel() const { return kernel_; }
  std::int64_t size() const { return kernel_.total; }  ///< packed bytes
  /// Puts the plain data into device memory too, for kernels that choose among many. Lives as long as the Layout.
  const KernelLayout* on_device();

 private:
  KernelLayout kernel_;
  void* program_ = nullptr;
  KernelLayout* copy_ = nullptr;
};

/// An MPI datatype for the calls of mpi_calls.cuh, with which its count comes. It may be freed afterwards. Owns device
/// memory of the current device, which must be the World's.
class Datatype {
 public:
  /// The datatype need not be committed. Not collective.
  explicit Datatype(MPI_Datatype type);
  Datatype(Datatype&&) noexcept;
  Datatype& operator=(Datatype&&) noexcept;
  ~Datatype();

  /// Plain data for kernel parameters; valid as long as the Datatype.
  const KernelType& kernel() const { return kernel_; }

 private:
  KernelType kernel_;
  void* program_ = nullptr;
};

/// All GPUs of a communicator. One at a time in a process.
class World {
 public:
  class State;  // world_state.hpp
  /// Collective. MPI must be initialised, the current device be the process's GPU, and no other process of the node
  /// have the same one.
  explicit World(MPI_Comm comm, const Options& options = {});
  /// Collective. Waits for the device. Before MPI_Finalize; with NVSHMEM also after it.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int gpu() const;   ///< the process's rank in the communicator
  int gpus() const;  ///< its size
  const Options& options() const;
  /// Whether all other GPUs are reached by loads and stores.
  bool reaches_all() const;
  const char* wire() const;  ///< its name

  /// Collective: a window of `bytes` (the same everywhere), zeroed, aligned to 256 bytes. At most 2046 windows in a
  /// World's life.
  Window allocate(std::int64_t bytes);
  /// Collective: the device memory of an MPI window over the World's processes in the same order, for kernels. Offsets
  /// are bytes, whatever the displacement unit is. The MPI window is freed behind the Window.
  /// - Of MPI_Win_create: each process may have as much as it likes, but not nothing.
  /// - Of MPI_Win_create_dynamic: what is attached when this is called (MPI_Win_attach) of memory of GPUs; perhaps
  ///   nothing. Offsets are addresses of the target's process. What is attached later is for a later Window; what is
  ///   detached may not be used by kernels any more. One access lies in one region, or in regions side by side in one
  ///   allocation.
  /// Throws Error, in all processes, for a window of MPI_Win_allocate, and if a GPU does not reach the memory; with a
  /// proxy it reaches that of MPI_Win_create on other nodes.
  Window attach(MPI_Win win);
  /// Collective. The memory may not be in use.
  void free(Window& window);

  /// MPI_Psend_init and MPI_Precv_init with the World's communicator (partitioned.hpp): `partitions` of `count`
  /// elements each, to or from process `dest` or `source`, or MPI_PROC_NULL. Not collective, and the datatype may be
  /// freed afterwards. A buffer that is received into is memory that attach() takes, in one allocation.
  Request psend_init(const void* buf, int partitions, std::int64_t count, MPI_Datatype datatype, int dest, int tag);
  Request precv_init(void* buf, int partitions, std::int64_t count, MPI_Datatype datatype, int source, int tag);
  /// Collective, unlike anything of MPI: matches all requests that have been initialised since the last call, sends and
  /// receives of two processes with one tag in the order of their calls, and makes what kernels need. What belongs to
  /// requests that have been destroyed in all processes is freed. Throws Error, in all processes, where a request is
  /// left over, two have not as many bytes, or a GPU does not reach a buffer; then none of these requests is matched,
  /// or will be.
  void match();

  /// What kernels are told, for a launch with so many ranks on each GPU: as many as blocks, or 1.
  KernelWorld view(int ranks_per_gpu) const;

  /// The most blocks of `threads` threads that can be resident at the same time.
  int most_blocks(const void* kernel, int threads, std::size_t shared_bytes = 0) const;
  /// Collective: starts `kernel`, which takes one parameter (at `argument`), on all GPUs with as many blocks. `threads`
  /// is a multiple of 32. Throws where the blocks cannot all be resident (a rank that does not run would be waited for
  /// for ever). Returns when the kernel is under way; its ends is the stream's.
  void launch(const void* kernel, int blocks, int threads, const void* argument, std::size_t shared_bytes = 0,
              cudaStream_t stream = nullptr);
  /// Collective: launch() and wait for the stream, and for what the kernel has put through a proxy.
  void run(const void* kernel, int blocks, int threads, const void* argument, std::size_t shared_bytes = 0,
           cudaStream_t stream = nullptr);

  /// Collective: all processes, and all that their kernels have put.
  void barrier();

 private:
  std::unique_ptr<State> state_;
};

}  // namespace gpudt::initiated
