// Sleeps between the looks at something that is waited for.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace gpudt {

/// Sleeps for an eighth of the time that the caller has `waited` so far, within bounds. On a virtual machine a sleep
/// takes 20 us of a processor, however short it is: the longer a wait, the fewer looks.
inline void nap_after(std::chrono::steady_clock::duration waited) {
  using std::chrono::microseconds;
  std::this_thread::sleep_for(
      std::clamp<std::chrono::steady_clock::duration>(waited / 8, microseconds(20), microseconds(200)));
}

/// Looks until `done()` is true.
template <class Done>
void nap_until(const Done& done) {
  const auto began = std::chrono::steady_clock::now();
  while (!done()) nap_after(std::chrono::steady_clock::now() - began);
}

}  // namespace gpudt
