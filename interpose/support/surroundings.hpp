// What a rank sees of its node: the CPUs to which it is bound, the GPUs, and what a container may withhold. The report
// makes hints of it (report_placement.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/device.hpp"

namespace gpudt::interpose::report {

inline constexpr std::size_t most_visible = 16;

/// Plain bytes, since each rank sends them to rank 0.
struct Surroundings {
  struct Gpu {
    unsigned char id[16];
    char pci[16];            ///< "0000:3b:00.0"
    std::int32_t numa_node;  ///< -1 if unknown
  };
  char node[40];                               ///< the same in all containers of a node; empty if unknown
  std::uint64_t ipc_namespace, pid_namespace;  ///< 0 if unknown
  std::uint64_t shared_memory;                 ///< which file system /dev/shm is; 0 if unknown
  std::uint64_t numa_nodes;                    ///< a bit for each that has a CPU of this thread; 0 if unknown
  std::int64_t locked_memory;                  ///< the limit in bytes; -1 if there is none
  std::int32_t ptrace_scope;                   ///< of the Yama security module; 0 without it, or if it does not matter
  std::int32_t has_infiniband, has_mps;
  std::int32_t gpu_count;
  Gpu gpus[most_visible];  ///< those that this process sees
};

/// `root` stands before the names of the system's files; it is empty except in tests.
Surroundings look_around(const std::string& root, const std::vector<device::VisibleGpu>& gpus);

}  // namespace gpudt::interpose::report
