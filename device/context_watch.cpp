#include "device/context_watch.hpp"

namespace gpudt::device {
namespace {

constexpr std::size_t least_allocation = 256;

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

/// A GPU takes longer to end a context, so that in a thread that does so, nothing can have happened since.
constexpr std::chrono::microseconds shortest_end{200};

}  // namespace

ContextWatch::ContextWatch(Runtime& runtime, int ordinal)
    : runtime_(runtime),
      ordinal_(ordinal),
      number_(next_number()),
      memory_(runtime.device_alloc(ordinal, least_allocation)),
      id_(runtime.allocation_id(memory_)) {}

ContextWatch::~ContextWatch() {
  asked_.store(0);
  if (!ended()) runtime_.device_free(ordinal_, memory_);
}

bool ContextWatch::ended() const noexcept {
  if (ended_.load(std::memory_order_acquire)) return true;
  if (id_ == 0) return false;
  const Clock::time_point now = Clock::now(), asked{Clock::duration(asked_.load(std::memory_order_relaxed))};
  if (!runtime_.works_on_host() && now - asked < shortest_end) return false;
  if (runtime_.allocation_id(memory_) != id_) {
    ended_.store(true, std::memory_order_release);
    return true;
  }
  asked_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  return false;
}

void ContextWatch::check() const {
  if (ended()) throw Error(Failure::runtime, complaint(ordinal_));
}

std::string ContextWatch::complaint(int ordinal) {
  return "GPU " + std::to_string(ordinal) +
         ": its context has ended (cudaDeviceReset or cuCtxDestroy) while a transfer was under way";
}

}  // namespace gpudt::device
