#include "interpose/support/passed_by.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/support/config.hpp"

namespace gpudt::interpose {
namespace {

std::atomic<bool> noted{false}, other_mpi{false};

bool is_disabled() {
  std::vector<std::string> complaints;
  return read_config(complaints).disable;
}

/// Whether the driver's library or the simulated device is loaded.
bool has_gpu_runtime() {
  if (dlsym(RTLD_DEFAULT, "gpudt_sim_api") != nullptr) return true;
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

}  // namespace

void note_init() {
  noted.store(true, std::memory_order_relaxed);
}

bool init_noted() {
  return noted.load(std::memory_order_relaxed);
}

void note_other_mpi() {
  other_mpi.store(true, std::memory_order_relaxed);
  note_init();
}

bool other_mpi_noted() {
  return other_mpi.load(std::memory_order_relaxed);
}

void warn_if_passed_by() {
  if (init_noted() || !is_first_rank() || !has_gpu_runtime() || is_disabled()) return;
  std::fputs("gpudt is off: MPI_Init has not come through it (" GPUDT_PASSED_BY
             "). GPU pointers go to MPI as they are: see docs/troubleshooting.md\n",
             stderr);
}

bool is_first_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* const rank = std::getenv(name)) return std::string_view(rank) == "0";
  return true;
}

}  // namespace gpudt::interpose
