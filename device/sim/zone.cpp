#include "device/sim/zone.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

namespace gpudt::sim {
namespace {

/// GPUDT_SIM_REUSE: addresses are used again at once, as CUDA does.
bool reuses_at_once() {
  static const char* const text = std::getenv("GPUDT_SIM_REUSE");
  return text != nullptr && std::string_view(text) == "1";
}

}  // namespace

bool Zone::take(std::size_t bytes, std::size_t* offset) {
  // First what lies behind the cursor, so that addresses are reused late and the use of freed memory shows.
  for (const std::size_t from : {cursor, std::size_t(0)}) {
    auto range = free.upper_bound(from);
    if (range != free.begin()) --range;
    for (; range != free.end(); ++range) {
      const std::size_t begin = std::max(range->first, from), end = range->first + range->second;
      if (end < begin || end - begin < bytes) continue;
      *offset = begin;
      if (begin > range->first)
        range->second = begin - range->first;
      else
        free.erase(range);
      if (end - begin > bytes) free[begin + bytes] = end - begin - bytes;
      if (!reuses_at_once()) cursor = begin + bytes;
      return true;
    }
  }
  return false;
}

void Zone::give(std::size_t offset, std::size_t bytes) {
  auto next = free.lower_bound(offset);
  if (next != free.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      free.erase(previous);
    }
  }
  if (next != free.end() && offset + bytes == next->first) {
    bytes += next->second;
    free.erase(next);
  }
  free[offset] = bytes;
}

}  // namespace gpudt::sim
