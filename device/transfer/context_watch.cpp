#include "device/transfer/context_watch.hpp"

#include <chrono>

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

/// Younger answers are reused. Ending a context takes longer, so the thread that has ended one gets a new answer.
constexpr std::uint64_t shortest_end_ns = 200'000;

/// Nanoseconds or, where the processor counts at least as fast (x86), its own ticks: a call of the system's clock takes
/// several times as long, and a message needs it four times.
std::int64_t ticks() {
#if defined(__x86_64__)
  return static_cast<std::int64_t>(__builtin_ia32_rdtsc());
#else
  return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

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

/// Pinned memory has no id, but is pinned no longer when its context has ended.
bool ContextWatch::gone() const noexcept {
  if (kind_ == MemoryKind::pinned) return runtime_.classify(memory_).kind != MemoryKind::pinned;
  return id_ != 0 && runtime_.allocation_id(memory_) != id_;
}

bool ContextWatch::ended() const noexcept {
  if (ended_.load(std::memory_order_acquire)) return true;
  const std::int64_t now = ticks();
  const auto since = static_cast<std::uint64_t>(now - asked_.load(std::memory_order_relaxed));
  if (!runtime_.works_on_host() && since < shortest_end_ns) return false;
  if (gone()) {
    ended_.store(true, std::memory_order_release);
    return true;
  }
  asked_.store(now, std::memory_order_relaxed);
  return false;
}

std::string ContextWatch::complaint(int ordinal) {
  return "GPU " + std::to_string(ordinal) +
         ": its context has ended (cudaDeviceReset or cuCtxDestroy) while a transfer was under way";
}

}  // namespace gpudt::device
