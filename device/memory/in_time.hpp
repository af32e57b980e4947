// Calls of the driver that wait until no thread is launching work: those that allocate, free, register or map memory,
// and perhaps those that make streams and events. A launch waits for room in the queue of its stream, and so perhaps
// for an operation that the program has enqueued there (gates.hpp). A thread that may have to carry that operation out
// makes such calls by in_time() alone.
#pragma once

#include <chrono>
#include <functional>

namespace gpudt::device {

/// More than such a call takes on a busy machine, unless a launch of the program waits for room.
constexpr std::chrono::milliseconds short_time{50};
/// For those who cannot do without.
constexpr std::chrono::milliseconds long_time{10000};

/// Does `work` and returns true; throws what `work` throws. While no gate is taken the calling thread does it, and no
/// gate is taken meanwhile. Otherwise a helper thread does it, and false means that it has timed out after `time`: then
/// it may still be done later, or never, so that what it uses must last until end_helper(). With `time` 0 it is done
/// only if no gate is taken. One `work` runs at a time; a call of in_time() in it does the inner work at once. The
/// caller holds no mutex that `work` takes.
bool in_time(std::function<void()> work, std::chrono::milliseconds time = short_time);

/// Whether the caller is work that no gate can be taken beside, so that it may wait for the program's streams.
bool no_gate_is_taken() noexcept;

/// Waits for what is under way, and ends the helper thread. No stream may be waiting at a gate.
void end_helper() noexcept;

}  // namespace gpudt::device
