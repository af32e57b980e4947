#include "pingpong/common/machine.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "device/choice/host_cpu.hpp"

namespace gpudt::bench {
namespace {

/// A function of a library that may or may not be loaded.
template <class Function>
Function* loaded_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

bool mpi_is_cuda_aware() {
  auto* query = loaded_function<int()>("MPIX_Query_cuda_support");
  return query != nullptr && query() == 1;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

/// "Open MPI v4.1.4", without the packager's remarks.
std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  PMPI_Get_library_version(text, &length);
  const std::string version(text);
  return version.substr(0, version.find_first_of(",\n"));
}

std::string gpu_name(int gpu) {
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
  return properties.name;
}

}  // namespace

bool device_is_simulated() {
  return dlsym(RTLD_DEFAULT, "gpudt_sim_api") != nullptr;
}

Machine examine_machine(int rank) {
  Machine machine;
  machine.host = host_name();
  machine.cpu = device::host_cpu();
  machine.mpi_library = mpi_library();
  if (auto* version = loaded_function<const char*()>("gpudt_version")) machine.gpudt_version = version();
  if (cudaGetDeviceCount(&machine.gpu_count) != cudaSuccess) machine.gpu_count = 0;
  if (machine.gpu_count == 0) {
    machine.gpu_name = "no GPU";
    return machine;
  }
  machine.gpu = rank % machine.gpu_count;
  machine.simulated = device_is_simulated();
  machine.gpu_name = machine.simulated ? "simulated device" : gpu_name(machine.gpu);
  return machine;
}

void use_gpu(const Machine& machine) {
  if (machine.gpu >= 0) cuda_check(cudaSetDevice(machine.gpu), "cudaSetDevice");
}

std::string describe(const Machine& machine) {
  const std::string gpu =
      machine.gpu_count > 1 ? fmt::format("{} x {}", machine.gpu_count, machine.gpu_name) : machine.gpu_name;
  return fmt::format("{}; {}; {}", gpu, machine.mpi_library,
                     machine.gpudt_version.empty() ? "gpudt is NOT loaded" : "gpudt " + machine.gpudt_version);
}

nlohmann::json to_json(const Machine& machine) {
  return {{"host", machine.host},
          {"cpu", machine.cpu},
          {"gpu", machine.gpu_name},
          {"gpu_count", machine.gpu_count},
          {"simulated", machine.simulated},
          {"mpi_library", machine.mpi_library},
          {"gpudt_version", machine.gpudt_version}};
}

bool mpi_takes_device_memory(const Machine& machine) {
  return !machine.gpudt_version.empty() || mpi_is_cuda_aware();
}

void require(const Machine& machine, Place place, bool through_mpi) {
  if (place == Place::host) return;
  if (machine.gpu_count == 0) {
    throw Refusal(
        fmt::format("{} memory needs a GPU, and none is to be found here.\nPreload libgpudt-sim.so for the "
                    "simulated device, or ask for host memory.",
                    place_name(place)));
  }
  if (through_mpi && on_device(place) && !mpi_takes_device_memory(machine)) {
    throw Refusal(
        fmt::format("gpudt is not loaded, and {} cannot read {} memory without it: it would crash.\n"
                    "Preload it: mpirun -x LD_PRELOAD=libgpudt-pmpi.so ...",
                    machine.mpi_library, place_name(place)));
  }
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  }
  return 0;
}

}  // namespace gpudt::bench
