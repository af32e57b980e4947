// The name of this machine's processor: what a GPU costs to use depends on it, too. Needs no library.
#pragma once

#include <fstream>
#include <string>

namespace gpudt::device {

/// The first model name in /proc/cpuinfo, or "unknown CPU".
inline std::string host_cpu() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace gpudt::device
