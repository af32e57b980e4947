// gpudt-initiated-dcuda: a program as dCUDA's are written (initiated/dcuda.cuh, dcuda_host.hpp), which tests its calls:
// ranks in a row exchange pieces with their neighbours. With the argument `proxy` GPUs reach each other as between
// nodes.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include "initiated/programs/dcuda_kernels.hpp"
#include "initiated/world.hpp"

namespace {

using gpudt::initiated::check;
using gpudt::initiated::programs::DcudaRing;

/// A process's GPU is to be chosen before dcuda_host_init.
void choose_gpu() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  const char* const local = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  const char* const other = std::getenv("MPI_LOCALRANKID");
  const char* const text = local != nullptr ? local : other;
  check(cudaSetDevice(text != nullptr ? std::atoi(text) % count : 0), "cudaSetDevice");
}

int run(int argc, char** argv) {
  choose_gpu();
  dcuda_host_context_handle context = nullptr;
  gpudt::initiated::Options options;
  options.timeout_seconds = 30;
  if (argc > 1 && std::strcmp(argv[1], "proxy") == 0) {
    options.wire = gpudt::initiated::proxy_wire;
    options.direct = false;
  }
  constexpr int words = 100, steps = 500, threads = 128;
  dcuda_host_init(argc, argv, &context, gpudt::initiated::programs::dcuda_ring_kernel(), threads, std::size_t{4} << 20,
                  &options);
  dcuda_rank_info info;
  dcuda_host_get_rank_info(context, &info);
  DcudaRing ring = {};
  // One piece for each rank of the device, and one at each end.
  ring.field = static_cast<double*>(
      dcuda_host_malloc(context, static_cast<std::size_t>(info.rank_responsible + 2) * words * sizeof(double)));
  ring.words = words;
  ring.steps = steps;
  const double milliseconds = dcuda_host_run(context, &ring, sizeof ring);
  const std::vector<double> timings = dcuda_host_get_timings(context);
  if (info.process_index == 0)
    fmt::print("{} ranks on {} devices: {} steps in {:.2f} ms, the kernel's own clock {:.2f} ms\n", info.rank_count,
               info.process_count, steps, milliseconds, timings.empty() ? 0 : timings.front());
  if (ring.wrong != 0) fmt::print("process {}: {} times wrong\n", info.process_index, ring.wrong);
  dcuda_host_finish(context);
  return ring.wrong == 0 && timings.size() == 1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  alarm(60);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpudt-initiated-dcuda: {}\n", error.what());
    std::_Exit(1);
  }
}
