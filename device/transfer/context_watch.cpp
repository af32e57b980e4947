#include "device/transfer/context_watch.hpp"

namespace gpudt::device {
namespace {

constexpr std::size_t least_allocation = 256;

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

void* alloc_canary(Runtime& runtime, int ordinal, MemoryKind& kind) {
  try {
    return runtime.device_alloc(ordinal, least_allocation);
  } catch (const Error& error) {
    if (error.failure() != Failure::out_of_memory) throw;
  }
  kind = MemoryKind::pinned;
  return runtime.mapped_alloc(ordinal, least_allocation);
}

/// A GPU takes longer to end a context, so that in a thread that does so, nothing can have happened since.
constexpr std::chrono::microseconds shortest_end{200};

}  // namespace

ContextWatch::ContextWatch(Runtime& runtime, int ordinal)
    : runtime_(runtime),
      ordinal_(ordinal),
      number_(next_number()),
      memory_(alloc_canary(runtime, ordinal, kind_)),
      id_(kind_ == MemoryKind::device ? runtime.allocation_id(memory_) : 0) {}

ContextWatch::~ContextWatch() {
  asked_.store(0);
  if (kind_ == MemoryKind::pinned)
    runtime_.mapped_free(ordinal_, memory_);
  else if (!ended())
    runtime_.device_free(ordinal_, memory_);
}

/// Pinned memory has no id, but is the host's alone when its context has ended.
bool ContextWatch::gone() const noexcept {
  if (kind_ == MemoryKind::pinned) return runtime_.classify(memory_).kind != MemoryKind::pinned;
  return id_ != 0 && runtime_.allocation_id(memory_) != id_;
}

bool ContextWatch::ended() const noexcept {
  if (ended_.load(std::memory_order_acquire)) return true;
  const Clock::time_point now = Clock::now(), asked{Clock::duration(asked_.load(std::memory_order_relaxed))};
  if (!runtime_.works_on_host() && now - asked < shortest_end) return false;
  if (gone()) {
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
