// The timeline of messages (GPUDT_TIMELINE): points in time, kept in memory and written to a file at the end.
// Times are CLOCK_MONOTONIC's, which the processes of a node share, so that their files can be merged.
//
// Without a timeline a point costs one branch on a global. With one it costs some tens of nanoseconds: the clock is
// read, and the next of a fixed number of places is taken.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpudt {

/// Something that happens at one time; each room has a list of its own (points.hpp).
struct Point {
  const char* name;  ///< in the file
};

/// The number of points that are kept (24 MiB); further ones are only counted.
inline constexpr std::size_t timeline_capacity = std::size_t{1} << 20;

/// Begins to record points for `file`, which timeline_stop() writes. False if there is no memory for them.
bool timeline_start(const std::string& file, int rank, std::size_t capacity = timeline_capacity);
/// Stops recording and writes the file: Chrome's trace-event format, one point a line, in order of time. Call it when
/// no other thread marks points. Returns a warning if the file cannot be written or lacks points, else an empty string.
std::string timeline_stop();

namespace detail {
[[gnu::visibility("hidden")]] extern std::atomic<bool> timeline_on;
void record(Point point, std::int64_t nanoseconds) noexcept;
std::int64_t timeline_clock() noexcept;
}  // namespace detail

inline bool timeline_on() {
  return detail::timeline_on.load(std::memory_order_relaxed);
}

/// Records `point` with the current time.
inline void mark(Point point) {
  if (timeline_on()) [[unlikely]]
    detail::record(point, detail::timeline_clock());
}

/// Current time, for an event that may be recorded later; 0 if no timeline is being written.
inline std::int64_t timeline_now() {
  if (timeline_on()) [[unlikely]]
    return detail::timeline_clock();
  return 0;
}

/// A call whose buffer has turned out to be in device memory.
class CallOnTimeline {
 public:
  /// `began`: timeline_now() when it was entered; 0: the call is not recorded.
  CallOnTimeline(std::int64_t began, Point entered, Point returned) : began_(began), returned_(returned) {
    if (began_ != 0) [[unlikely]]
      detail::record(entered, began_);
  }
  ~CallOnTimeline() {
    if (began_ != 0) [[unlikely]]
      mark(returned_);
  }
  CallOnTimeline(const CallOnTimeline&) = delete;
  CallOnTimeline& operator=(const CallOnTimeline&) = delete;

 private:
  const std::int64_t began_;
  const Point returned_;
};

}  // namespace gpudt
