#include <dlfcn.h>

#include <algorithm>
#include <map>

#include "initiated/attached.hpp"
#include "initiated/wire.hpp"

namespace gpudt::initiated {
namespace {

/// MPI_Win_shared_query of device memory is gpudt's: MPI libraries know shared windows alone.
void check_gpudt(const std::string& who) {
  using Active = int (*)();
  const auto active = reinterpret_cast<Active>(dlsym(RTLD_DEFAULT, "gpudt_active"));
  if (active == nullptr || active() == 0)
    throw Error("World: " + who + "libgpudt-pmpi is not active in this process: preload it (LD_PRELOAD) or link it");
}

class MpiWire final : public Wire {
 public:
  MpiWire(MPI_Comm comm, int process, int processes)
      : processes_(processes), who_("process " + std::to_string(process) + ": ") {
    check_gpudt(who_);
    check_mpi(PMPI_Comm_dup(comm, &comm_), "World: " + who_ + "MPI_Comm_dup");
    PMPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~MpiWire() override { PMPI_Comm_free(&comm_); }

  const char* name() const override { return "MPI windows"; }
  bool symmetric() const override { return false; }

  WiredMemory allocate(std::size_t bytes) override {
    void* base = nullptr;
    const cudaError_t status = allocate_here(bytes, base);
    int failed = status != cudaSuccess ? 1 : 0;
    check_mpi(PMPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, comm_), "World: " + who_ + "MPI_Allreduce");
    if (failed != 0) {
      cudaFree(base);
      check(status, "World: " + who_ + std::to_string(bytes) + " bytes of device memory");
      throw Error("World: " + who_ + "another process has no " + std::to_string(bytes) + " bytes of device memory");
    }
    MPI_Win window = MPI_WIN_NULL;
    check_mpi(MPI_Win_create(base, static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, comm_, &window),
              "World: " + who_ + "MPI_Win_create");
    windows_[static_cast<char*>(base)] = window;
    return addresses_of(window, processes_, "World: " + who_);
  }

  void free(const WiredMemory& memory) override {
    const auto found = windows_.find(memory.base);
    if (found == windows_.end()) return;
    MPI_Win_free(&found->second);
    cudaFree(memory.base);
    windows_.erase(found);
  }

  std::vector<MPI_Aint> gather(MPI_Aint mine) override {
    std::vector<MPI_Aint> all(static_cast<std::size_t>(processes_));
    check_mpi(PMPI_Allgather(&mine, 1, MPI_AINT, all.data(), 1, MPI_AINT, comm_), "World: " + who_ + "MPI_Allgather");
    return all;
  }
  void barrier() override { check_mpi(PMPI_Barrier(comm_), "World: " + who_ + "MPI_Barrier"); }

  void launch(const void* kernel, int blocks, int threads, void** arguments, std::size_t shared_bytes,
              cudaStream_t stream) override {
    check(cudaLaunchCooperativeKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
                                      arguments, shared_bytes, stream),
          "World::launch: " + who_ + "cudaLaunchCooperativeKernel");
  }

 private:
  static cudaError_t allocate_here(std::size_t bytes, void*& base) {
    cudaError_t status = cudaMalloc(&base, bytes);
    if (status == cudaSuccess) status = cudaMemset(base, 0, bytes);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    return status;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int processes_;
  std::string who_;
  std::map<const char*, MPI_Win> windows_;
};

}  // namespace

std::unique_ptr<Wire> mpi_wire(MPI_Comm comm, int process, int processes) {
  return std::make_unique<MpiWire>(comm, process, processes);
}

}  // namespace gpudt::initiated
