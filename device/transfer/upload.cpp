#include "device/transfer/upload.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "device/memory/in_time.hpp"
#include "device/transfer/channel.hpp"
#include "device/transfer/engine.hpp"

namespace gpudt::device {

/// May run after stop() and in any thread. Transfers that read the image hold the layout, so none is under way.
Upload::~Upload() = default;

datatype::Program Upload::program(Engine& engine, Channel& channel, const datatype::Layout& layout,
                                  std::chrono::milliseconds time) {
  const LockGuard lock(mutex_);
  if (generation_ != channel.generation()) make(engine, channel, layout, time);
  if (copying_) {
    if (copying_->landed()) {
      copying_.reset();
      source_ = {};
    } else if (channel_ != &channel) {
      channel_->copied_for(channel);
    }
  }
  return program_;
}

std::uint64_t Upload::next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

bool Upload::same_program(const datatype::Layout& layout, const Upload& other, const datatype::Layout& others_layout) {
  if (this == &other) return true;
  const LockGuard lock(mutex_);
  if (compared_ != other.number_) {
    const auto mine = layout.serialised(), others = others_layout.serialised();
    same_ = std::equal(mine.begin(), mine.end(), others.begin(), others.end());
    compared_ = other.number_;
  }
  return same_;
}

bool Upload::there() {
  const LockGuard lock(mutex_);
  return !copying_;
}

void Upload::make(Engine& engine, Channel& channel, const datatype::Layout& layout, std::chrono::milliseconds time) {
  generation_ = 0;
  const auto bytes = layout.serialised();
  copying_.reset();
  source_ = engine.uploads().acquire_within(time, StagingKind::mapped, channel.ordinal(), bytes.size());
  if (!source_)
    throw Error(Failure::out_of_memory,
                "no memory for a layout can be had in time while operations are enqueued in streams");
  std::memcpy(source_.data(), bytes.data(), bytes.size());
  image_ = engine.uploads().try_acquire(StagingKind::device, channel.ordinal(), bytes.size());
  if (image_)
    copying_ = channel.start_copy(image_.data(), source_.data(), bytes.size());
  else
    image_ = std::move(source_);
  const datatype::Program host = layout.program();
  const auto moved = [&](const void* address) REQUIRES(mutex_) -> const void* {
    const auto offset = static_cast<const std::byte*>(address) - bytes.data();
    return static_cast<const std::byte*>(image_.data()) + offset;
  };
  program_.nodes = static_cast<const datatype::Node*>(moved(host.nodes));
  program_.lookaside = static_cast<const std::int64_t*>(moved(host.lookaside));
  channel_ = &channel;
  generation_ = channel.generation();
}

}  // namespace gpudt::device
