#include <bootstrap_device_host/nvshmem_uniqueid.h>
#include <nvshmem_host.h>

#include <cstdlib>

#include "initiated/nvshmem.hpp"

// Defined in NVSHMEM's device archive, with which programs are linked; declared in a header for nvcc alone.
int nvshmemx_collective_launch(const void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t stream);

namespace gpudt::initiated {
namespace {

class NvshmemWire final : public Wire {
 public:
  NvshmemWire(MPI_Comm comm, int process, int processes)
      : processes_(processes), who_("process " + std::to_string(process) + ": ") {
    // Multicast is not used here, and not to be had in every container.
    setenv("NVSHMEM_DISABLE_NVLS", "1", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    int code = process == 0 ? nvshmemx_get_uniqueid(&id) : 0;
    broadcast(comm, &code, sizeof code);
    if (code != 0) throw Error("World: NVSHMEM has no unique id (code " + std::to_string(code) + ")");
    broadcast(comm, &id, sizeof id);
    nvshmemx_set_attr_uniqueid_args(process, processes, &id, &attributes);
    code = nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes);
    if (code != 0) throw Error("World: " + who_ + "NVSHMEM does not start (code " + std::to_string(code) + ")");
    if (nvshmem_n_pes() != processes || nvshmem_my_pe() != process)
      throw Error("World: " + who_ + "NVSHMEM is started already, for other processes");
    if (PMPI_Comm_dup(comm, &comm_) != MPI_SUCCESS) throw Error("World: " + who_ + "MPI_Comm_dup failed");
  }
  ~NvshmemWire() override {
    nvshmem_finalize();
    int ended = 0;
    PMPI_Finalized(&ended);
    if (ended == 0) PMPI_Comm_free(&comm_);
  }

  const char* name() const override { return "NVSHMEM"; }
  bool symmetric() const override { return true; }

  WiredMemory allocate(std::size_t bytes) override {
    WiredMemory memory;
    memory.base = static_cast<char*>(nvshmem_align(256, (bytes + 255) / 256 * 256));
    if (memory.base == nullptr)
      throw Error("World: " + who_ + "no " + std::to_string(bytes) +
                  " bytes of symmetric memory (NVSHMEM_SYMMETRIC_SIZE says how much there may be)");
    for (int process = 0; process < processes_; ++process) {
      memory.there.push_back(static_cast<char*>(nvshmem_ptr(memory.base, process)));
      memory.bytes.push_back(static_cast<MPI_Aint>(bytes));
    }
    check(cudaMemset(memory.base, 0, bytes), "World: cudaMemset");
    check(cudaDeviceSynchronize(), "World: cudaDeviceSynchronize");
    nvshmem_barrier_all();  // the memory of all is zero
    return memory;
  }
  void free(const WiredMemory& memory) override { nvshmem_free(memory.base); }
  std::vector<MPI_Aint> gather(MPI_Aint mine) override {
    std::vector<MPI_Aint> all(static_cast<std::size_t>(processes_));
    if (PMPI_Allgather(&mine, 1, MPI_AINT, all.data(), 1, MPI_AINT, comm_) != MPI_SUCCESS)
      throw Error("World: " + who_ + "MPI_Allgather failed");
    return all;
  }
  void barrier() override { nvshmem_barrier_all(); }
  void launch(const void* kernel, int blocks, int threads, void** arguments, std::size_t shared_bytes,
              cudaStream_t stream) override {
    const int code = nvshmemx_collective_launch(kernel, dim3(static_cast<unsigned>(blocks)),
                                                dim3(static_cast<unsigned>(threads)), arguments, shared_bytes, stream);
    if (code != 0)
      throw Error("World::launch: " + who_ + "NVSHMEM does not start the kernel (code " + std::to_string(code) + ")");
  }

 private:
  static void broadcast(MPI_Comm comm, void* data, int bytes) {
    if (PMPI_Bcast(data, bytes, MPI_BYTE, 0, comm) != MPI_SUCCESS) throw Error("World: MPI_Bcast failed");
  }

  int processes_;
  std::string who_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace

std::unique_ptr<Wire> nvshmem_wire(MPI_Comm comm, int process, int processes) {
  return std::make_unique<NvshmemWire>(comm, process, processes);
}

}  // namespace gpudt::initiated
