#include "interpose/rma/window_memory.hpp"

#include <iterator>

#include "datatype/runs.hpp"
#include "interpose/support/log.hpp"

namespace gpudt::interpose {
namespace {

using Regions = std::map<std::uintptr_t, std::int64_t>;

std::uintptr_t end_of(const Regions::value_type& region) {
  return region.first + static_cast<std::uintptr_t>(region.second);
}

struct Held {
  bool all;         ///< by regions without gaps between them
  bool one_region;  ///< and by one of these alone
};

/// Whether regions hold the bytes from `begin` to before `end`.
Held held(const Regions& regions, std::uintptr_t begin, std::uintptr_t end) {
  auto next = regions.upper_bound(begin);
  if (next == regions.begin()) return {false, false};
  std::uintptr_t reached = end_of(*std::prev(next));
  if (reached >= end) return {true, true};
  for (; reached < end && next != regions.end() && next->first == reached; ++next) reached = end_of(*next);
  return {reached >= end, false};
}

/// Whether regions hold each run of the elements.
bool hold_runs(const Regions& regions, std::uintptr_t address, const datatype::Layout& layout, std::int64_t count) {
  bool all = true;
  for (std::int64_t element = 0; element < count && all; ++element)
    datatype::for_each_run(layout, element * layout.size(), (element + 1) * layout.size(),
                           [&](std::int64_t at, std::int64_t, std::int64_t length) {
                             const std::uintptr_t begin = address + static_cast<std::uintptr_t>(at);
                             all = all && held(regions, begin, begin + static_cast<std::uintptr_t>(length)).all;
                           });
  return all;
}

}  // namespace

WindowMemory::WindowMemory(void* base, std::int64_t size) : base_(base), size_(size) {
  const LockGuard lock(mutex_);
  if (size > 0) note_memory(reinterpret_cast<std::uintptr_t>(base), size);
}

void WindowMemory::note_memory(std::uintptr_t begin, std::int64_t size) {
  const auto on_gpu = [](std::uintptr_t at) { return device::classify(reinterpret_cast<const void*>(at)).on_device(); };
  if (on_gpu(begin) && on_gpu(begin + static_cast<std::uintptr_t>(size) - 1)) on_gpu_.insert(begin);
}

bool WindowMemory::was_on_gpu(const void* address) const {
  const LockGuard lock(mutex_);
  if (!dynamic_) return !on_gpu_.empty();
  const auto next = regions_.upper_bound(reinterpret_cast<std::uintptr_t>(address));
  return next != regions_.begin() && on_gpu_.contains(std::prev(next)->first);
}

bool WindowMemory::attach(void* base, std::int64_t size) {
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  if (begin + static_cast<std::uintptr_t>(size) < begin) return false;
  const LockGuard lock(mutex_);
  if (size == 0) {
    empty_regions_.insert(begin);
    return true;
  }
  const auto next = regions_.lower_bound(begin);
  if (next != regions_.end() && begin + static_cast<std::uintptr_t>(size) > next->first) return false;
  if (next != regions_.begin() && end_of(*std::prev(next)) > begin) return false;
  note_memory(begin, size);
  return regions_.emplace(begin, size).second;
}

bool WindowMemory::detach(const void* base) {
  const LockGuard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  on_gpu_.erase(begin);
  if (regions_.erase(begin) != 0) return true;
  const auto empty = empty_regions_.find(begin);
  if (empty == empty_regions_.end()) return false;
  empty_regions_.erase(empty);
  return true;
}

std::vector<std::pair<std::uintptr_t, std::int64_t>> WindowMemory::regions() const {
  const LockGuard lock(mutex_);
  return {regions_.begin(), regions_.end()};
}

void WindowMemory::mark_again() {
  const LockGuard lock(mutex_);
  const auto mark = [this](const void* begin) REQUIRES(mutex_) {
    const device::Location location = device::classify(begin);
    if (location.on_device()) after_[location.ordinal] = device::mark_default_stream(location.ordinal);
  };
  if (size_ > 0) mark(base_);
  for (const auto& [begin, size] : regions_) mark(reinterpret_cast<const void*>(begin));
}

device::StreamMark WindowMemory::after(int ordinal) const {
  const LockGuard lock(mutex_);
  const auto found = after_.find(ordinal);
  return found == after_.end() ? device::StreamMark() : found->second;
}

std::optional<void*> WindowMemory::address(std::int64_t displacement, const datatype::Layout& layout,
                                           std::int64_t count) const {
  const datatype::Span span = layout.span(count);
  std::int64_t low = 0, high = 0;
  if (__builtin_add_overflow(displacement, span.begin, &low) || __builtin_add_overflow(displacement, span.end, &high) ||
      low < 0)
    return std::nullopt;
  if (!dynamic_) {
    if (high > size_) return std::nullopt;
    return static_cast<char*>(base_) + displacement;
  }
  const auto begin = static_cast<std::uintptr_t>(low), end = static_cast<std::uintptr_t>(high);
  const auto place = static_cast<std::uintptr_t>(displacement);
  void* const address = reinterpret_cast<void*>(place);
  const LockGuard lock(mutex_);
  if (regions_.empty() || begin < regions_.begin()->first || end > end_of(*regions_.rbegin())) return std::nullopt;
  const Held bytes = held(regions_, begin, end);
  if (bytes.one_region) return address;
  if (!bytes.all && !hold_runs(regions_, place, layout, count)) return std::nullopt;
  const auto* const first = reinterpret_cast<const void*>(place + static_cast<std::uintptr_t>(layout.true_lb()));
  if (device::one_memory(layout, count, address, device::region_of(first))) return address;
  log_error("an access to this process's window: its target lies in several memories; make an access to each");
  return std::nullopt;
}

}  // namespace gpudt::interpose
