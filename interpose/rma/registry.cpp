// Finds served windows, and drives them.
#include "interpose/rma/registry.hpp"

#include <atomic>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

SharedMutex mutex;
auto& windows GUARDED_BY(mutex) = never_destroyed<std::unordered_map<MPI_Win, std::shared_ptr<ServedWindow>>>();
std::atomic<std::size_t> count{0};

/// Logs exceptions of this library, so that other windows advance.
int driven_once(ServedWindow& window) {
  try {
    return window.progress();
  } catch (const std::exception& error) {
    log_own("one-sided communication", error);
    return 0;
  }
}

class AllWindows : public Polled {
 public:
  bool due() override { return true; }
  int poll(Tests) override {
    std::vector<std::shared_ptr<ServedWindow>> driven;
    {
      const SharedLock lock(mutex);
      driven.reserve(windows.size());
      for (const auto& [handle, window] : windows) driven.push_back(window);
    }
    int events = 0;
    for (const auto& window : driven) events += driven_once(*window);
    return events;
  }
};
auto& all_windows = never_destroyed<AllWindows>();

}  // namespace

std::shared_ptr<ServedWindow> served_window(MPI_Win win) {
  if (count.load(std::memory_order_acquire) == 0) return nullptr;
  const SharedLock lock(mutex);
  const auto entry = windows.find(win);
  return entry == windows.end() ? nullptr : entry->second;
}

void registry_add(MPI_Win win, std::shared_ptr<ServedWindow> window) {
  {
    const LockGuard lock(mutex);
    windows[win] = std::move(window);
    count.store(windows.size(), std::memory_order_release);
  }
  engine_register(EnginePart::windows, &all_windows);
}

void registry_remove(MPI_Win win) {
  std::shared_ptr<ServedWindow> window;
  bool last = false;
  {
    const LockGuard lock(mutex);
    const auto entry = windows.find(win);
    if (entry == windows.end()) return;
    window = std::move(entry->second);
    windows.erase(entry);
    last = windows.empty();
    count.store(windows.size(), std::memory_order_release);
  }
  window->close();
  if (last) engine_register(EnginePart::windows, nullptr);
}

void registry_clear() {
  engine_register(EnginePart::windows, nullptr);
  const LockGuard lock(mutex);
  for (const auto& [handle, window] : windows) window->close();
  windows.clear();
  count.store(0, std::memory_order_release);
}

}  // namespace gpudt::interpose
