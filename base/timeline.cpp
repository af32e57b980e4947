#include "base/timeline.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <span>

#include "base/never_destroyed.hpp"

namespace gpudt {

std::atomic<bool> detail::timeline_on{false};

namespace {

struct Event {
  std::int64_t nanoseconds;
  std::int32_t thread;
  Point point;
};

// Threads may mark points when the process ends.
auto& file = never_destroyed<std::string>();
int rank;
Event* events = nullptr;
std::size_t room;
std::atomic<std::size_t> recorded{0};  ///< points, also those that there was no room for

std::int32_t this_thread() {
  static thread_local const std::int32_t id = gettid();
  return id;
}

/// The recorded points in order of time, since CallOnTimeline records the entry of a call after later points.
std::span<Event> in_order() {
  const std::span<Event> all(events, std::min(recorded.load(), room));
  std::ranges::stable_sort(all, {}, &Event::nanoseconds);
  return all;
}

void print(std::FILE* to, const Event& event) {
  std::fprintf(to, ",\n{\"name\":\"%s\",\"ph\":\"i\",\"s\":\"t\",\"ts\":%lld.%03d,\"pid\":%d,\"tid\":%d}",
               event.point.name, static_cast<long long>(event.nanoseconds / 1000),
               static_cast<int>(event.nanoseconds % 1000), rank, event.thread);
}

/// Writes the file. Returns false, with the reason in errno, if that fails.
bool write(std::size_t lost) {
  std::FILE* const to = std::fopen(file.c_str(), "w");
  if (to == nullptr) return false;
  std::fprintf(to, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"rank\":%d,\"lost\":%zu},\"traceEvents\":[\n", rank,
               lost);
  std::fprintf(to, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}", rank, rank);
  for (const Event& event : in_order()) print(to, event);
  std::fputs("\n]}\n", to);
  const bool written = std::ferror(to) == 0;
  return std::fclose(to) == 0 && written;
}

}  // namespace

bool timeline_start(const std::string& its_file, int its_rank, std::size_t capacity) {
  // Touched now, so that no point waits for memory; and kept for good, since a thread may be about to write to it.
  events = new (std::nothrow) Event[capacity]();
  if (events == nullptr) return false;
  file = its_file;
  rank = its_rank;
  room = capacity;
  recorded = 0;
  detail::timeline_on.store(true);
  return true;
}

std::string timeline_stop() {
  if (!detail::timeline_on.exchange(false)) return {};
  const std::size_t lost = recorded - std::min(recorded.load(), room);
  const bool written = write(lost);
  const int reason = errno;
  if (!written) return file + " cannot be written: " + std::strerror(reason);
  if (lost == 0) return {};
  return file + " lacks the latest " + std::to_string(lost) + " points: there is room for " + std::to_string(room);
}

std::int64_t detail::timeline_clock() noexcept {
  constexpr std::int64_t nanoseconds_per_second = 1'000'000'000;
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * nanoseconds_per_second + now.tv_nsec;
}

void detail::record(Point point, std::int64_t nanoseconds) noexcept {
  const std::size_t place = recorded.fetch_add(1, std::memory_order_relaxed);
  if (place < room) events[place] = {nanoseconds, this_thread(), point};
}

}  // namespace gpudt
