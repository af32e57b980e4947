// Where a program runs: the GPU of this rank, real or simulated, the MPI library, and whether gpudt is loaded.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

#include "pingpong/common/memory.hpp"

namespace gpudt::bench {

/// The program cannot do what it was asked to do here; the message says how to make it possible.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Machine {
  int gpu_count = 0;  ///< 0 also without a driver
  int gpu = -1;       ///< the one of this rank: rank % gpu_count
  bool simulated = false;
  std::string gpu_name;       ///< "no GPU" without one
  std::string gpudt_version;  ///< empty: not loaded
  std::string host, cpu, mpi_library;
};

/// Looks around, without creating a CUDA context, but initialises the driver. Needs an initialised MPI library.
Machine examine_machine(int rank);

/// Whether the simulated device stands behind CUDA's names.
bool device_is_simulated();

/// Makes the rank's GPU, if it has one, the current device.
void use_gpu(const Machine& machine);

/// One line for the head of a table.
std::string describe(const Machine& machine);

nlohmann::json to_json(const Machine& machine);

/// Whether MPI takes addresses of device memory: gpudt is loaded, or MPI itself knows about GPUs.
bool mpi_takes_device_memory(const Machine& machine);

/// Throws Refusal if `place` needs a GPU and there is none, or is memory that MPI cannot read without gpudt.
/// `through_mpi`: the buffer is given to MPI as it is.
void require(const Machine& machine, Place place, bool through_mpi);

/// The rank that the launcher gave to this process, or 0; before MPI_Init, so that one rank alone prints --help.
int launched_rank();

}  // namespace gpudt::bench
