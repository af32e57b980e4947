// On the simulated device, whose table launches them, or on GPUs.
#include "tests/mpi/stream_kernels.hpp"

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "device/sim/sim_api.h"
#include "tests/support/catch.hpp"

namespace gpudt::test {
namespace {

/// Null on GPUs.
const gpudt_sim_api_table* simulated() {
  const auto entry = reinterpret_cast<decltype(&gpudt_sim_api)>(dlsym(RTLD_DEFAULT, "gpudt_sim_api"));
  return entry == nullptr ? nullptr : entry();
}

/// Where a kernel of the simulated device reaches device memory.
template <class T>
T* reached(T* address) {
  const char* begin = nullptr;
  std::size_t bytes = 0;
  std::ptrdiff_t distance = 0;
  simulated()->device_range(&begin, &bytes, &distance);
  return reinterpret_cast<T*>(reinterpret_cast<std::intptr_t>(address) + distance);
}

template <class Kernel>
void simulate(const Kernel& kernel, cudaStream_t stream) {
  const auto run = [](void* given) { (*static_cast<const Kernel*>(given))(); };
  REQUIRE(simulated()->launch(stream, run, &kernel, sizeof kernel) == cudaSuccess);
}

}  // namespace

void launch_add(double* numbers, std::size_t count, double value, int microseconds, cudaStream_t stream) {
#if GPUDT_STREAM_KERNELS
  if (simulated() == nullptr) return launch_add_on_gpu(numbers, count, value, microseconds, stream);
#endif
  const auto add = [=, numbers = reached(numbers)] {
    if (microseconds != 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    for (std::size_t i = 0; i < count; ++i) numbers[i] += value;
  };
  simulate(add, stream);
}

void launch_append(const double* numbers, std::size_t count, std::size_t step, double* log, int* entries,
                   cudaStream_t stream) {
#if GPUDT_STREAM_KERNELS
  if (simulated() == nullptr) return launch_append_on_gpu(numbers, count, step, log, entries, stream);
#endif
  const auto append = [=, numbers = reached(numbers), log = reached(log), entries = reached(entries)] {
    bool wrong = false;
    for (std::size_t i = 0; i < count; i += step) wrong = wrong || numbers[i] != numbers[0] + static_cast<double>(i);
    log[(*entries)++] = wrong ? -1.0 : numbers[0];
  };
  simulate(append, stream);
}

}  // namespace gpudt::test
