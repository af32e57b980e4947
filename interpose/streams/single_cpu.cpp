#include "interpose/streams/single_cpu.hpp"

#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "base/cpu_list.hpp"

namespace gpudt::interpose {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The CPUs of the NUMA node of `cpu`, or all where the kernel does not tell.
cpu_set_t neighbours(int cpu) {
  for (int node = 0; node < most_numa_nodes; ++node) {
    const cpu_set_t cpus = cpus_of(read(cpu_list_file(node)));
    if (CPU_ISSET(static_cast<unsigned>(cpu), &cpus)) return cpus;
  }
  return cpus_of(read("/sys/devices/system/cpu/online"));
}

int first_of(const cpu_set_t& cpus) {
  int cpu = 0;
  while (cpu < CPU_SETSIZE && !CPU_ISSET(static_cast<unsigned>(cpu), &cpus)) ++cpu;
  return cpu;
}

}  // namespace

cpu_set_t cpus_of(std::string_view list) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for_each_range(list, [&](int first, int last) {
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) CPU_SET(static_cast<unsigned>(cpu), &cpus);
  });
  return cpus;
}

void leave_single_cpu() noexcept try {
  cpu_set_t bound;
  if (sched_getaffinity(0, sizeof bound, &bound) != 0 || CPU_COUNT(&bound) != 1) return;
  const cpu_set_t more = neighbours(first_of(bound));
  sched_setaffinity(0, sizeof more, &more);  // the kernel leaves out what the job's cpuset does not have
} catch (const std::exception&) {
  // Without memory for a path the thread stays where it is.
}

}  // namespace gpudt::interpose
