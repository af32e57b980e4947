// Lists of CPUs as the kernel writes them, such as "0-3,8,10-11", and where it writes those of NUMA nodes.
#pragma once

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

namespace gpudt {

inline constexpr int most_numa_nodes = 64;  ///< that are looked at

inline std::string cpu_list_file(int numa_node) {
  return "/sys/devices/system/node/node" + std::to_string(numa_node) + "/cpulist";
}

/// Calls `act(first, last)` for each part of `list`; malformed ones are left out.
template <class Act>
void for_each_range(std::string_view list, Act act) {
  while (!list.empty()) {
    const std::string_view range = list.substr(0, list.find(','));
    const char* const end = range.data() + range.size();
    int first = -1;
    auto [at, error] = std::from_chars(range.data(), end, first);
    int last = first;
    if (at != end && *at == '-') error = std::from_chars(at + 1, end, last).ec;
    if (error == std::errc() && first >= 0) act(first, last);
    list.remove_prefix(std::min(list.size(), range.size() + 1));
  }
}

}  // namespace gpudt
