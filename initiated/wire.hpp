// What connects the GPUs of a World: memory that kernels of all of them reach, and the start of kernels that run at the
// same time. MPI's windows (mpi_wire, on one node), these and a proxy (proxy_wire), or NVSHMEM (nvshmem.hpp).
#pragma once

#include <mpi.h>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "initiated/error.hpp"

namespace gpudt::initiated {

struct KernelWorld;

/// Throws Error("<what>: <CUDA's message>") unless `status` is cudaSuccess.
void check(cudaError_t status, const std::string& what);
/// Throws Error("<what>: <MPI's message>") unless `code` is MPI_SUCCESS.
void check_mpi(int code, const std::string& what);

/// Memory of all GPUs. The Wire owns it.
struct WiredMemory {
  char* base = nullptr;  ///< on this process's GPU
  /// [GPU]: the address of that GPU's for loads and stores by this one; null if it is not reached so.
  std::vector<char*> there;
  std::vector<MPI_Aint> bytes;  ///< [GPU]; 0 where it is not reached
  std::vector<int> units;       ///< [GPU]: bytes of a displacement; empty: all are 1
};

/// Functions are collective unless stated otherwise; name(), symmetric(), goes_far() and launch() are not. Failures are
/// thrown as Error, by all processes where one of them has no memory.
class Wire {
 public:
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// What the summary of a program calls it.
  virtual const char* name() const = 0;
  /// Whether all memory of a GPU is at one distance from that of another, for all allocations.
  virtual bool symmetric() const = 0;
  /// Whether GPUs are reached that loads and stores do not reach.
  virtual bool goes_far() const { return symmetric(); }
  /// `bytes`, the same everywhere and more than 0, aligned to 256; zeros.
  virtual WiredMemory allocate(std::size_t bytes) = 0;
  /// No GPU may use it any more.
  virtual void free(const WiredMemory& memory) = 0;
  virtual void barrier() = 0;
  /// What each process gives, by process.
  virtual std::vector<MPI_Aint> gather(MPI_Aint mine) = 0;
  /// Starts the kernel on the current device, with all its blocks at the same time.
  virtual void launch(const void* kernel, int blocks, int threads, void** arguments, std::size_t shared_bytes,
                      cudaStream_t stream) = 0;

  // For those that need it:

  /// Once, not collective, when the World's own memory, of `bytes`, is laid out (KernelWorld::rings is its begin): says
  /// what kernels are to know.
  virtual void join(KernelWorld& /*kernel*/, std::int64_t /*bytes*/) {}
  /// This process's part of window `id`, as long as it is not hidden. Not collective; hide() is.
  virtual void expose(std::int32_t /*id*/, char* /*base*/, std::int64_t /*bytes*/) {}
  virtual void hide(std::int32_t /*id*/) {}
  /// By the host: a word of 8 bytes at `offset` of another process's part of window `id`, some time later. Not
  /// collective. Throws Error where there is no proxy.
  virtual void store_word(int /*process*/, std::int32_t /*id*/, std::int64_t /*offset*/, std::uint64_t /*word*/) {
    throw Error(std::string(name()) + " has no proxy, by which hosts write to GPUs that they do not reach");
  }
  /// A kernel has ended: waits until what it has put is at its targets. Not collective.
  virtual void settle() {}
  /// Before memory is freed at the end, when kernels have ended. `all`: by all processes, else by this one alone, and
  /// the Wire will not be destroyed.
  virtual void end(bool /*all*/) {}

 protected:
  Wire() = default;
};

/// Makes a Wire for the processes of `comm`, of which this one is number `process` of `processes`. Collective.
using WireMaker = std::unique_ptr<Wire> (*)(MPI_Comm comm, int process, int processes);

/// Device memory in MPI windows, which libgpudt-pmpi maps: all GPUs must be of one node and reach each other. The
/// program must be linked with libgpudt-pmpi or run with it preloaded, and end the World before MPI.
std::unique_ptr<Wire> mpi_wire(MPI_Comm comm, int process, int processes);

/// The same for GPUs of several nodes: those that do not reach each other, or none if Options::direct is false, are
/// reached through a thread of each process, which sends by MPI what kernels put into pinned host memory (proxy.hpp).
/// Needs MPI_THREAD_MULTIPLE. Over MPI, kernels, copies and waits of the host are as with mpi_wire.
std::unique_ptr<Wire> proxy_wire(MPI_Comm comm, int process, int processes);

/// mpi_wire where all processes share memory, else proxy_wire.
std::unique_ptr<Wire> usual_wire(MPI_Comm comm, int process, int processes);

}  // namespace gpudt::initiated
