// The serialised layout in the memory of one GPU; created on first use and cached on the Layout.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "base/mutex.hpp"
#include "datatype/layout.hpp"
#include "device/memory/in_time.hpp"
#include "device/memory/staging.hpp"
#include "device/transfer/state.hpp"

namespace gpudt::device {

class Engine;

class Upload final : public datatype::Attachment {
 public:
  static Upload& of(const datatype::Layout& layout, int ordinal) {
    return static_cast<Upload&>(layout.attachment(ordinal, [] { return std::make_unique<Upload>(); }));
  }
  ~Upload() override;

  /// The layout's address for work that is given to `channel` from now on. Throws Error, also if there is no memory for
  /// it within `time`.
  datatype::Program program(Engine& engine, Channel& channel, const datatype::Layout& layout,
                            std::chrono::milliseconds time = long_time);
  /// Unique among the first 2^32 uploads; never 0.
  std::uint32_t number() const { return static_cast<std::uint32_t>(number_ % UINT32_MAX) + 1; }
  /// Whether the last call of program() found the layout on the GPU already.
  bool there();
  /// Whether this layout's serialised form equals another's byte for byte. The answer for the latest other layout is
  /// remembered.
  bool same_program(const datatype::Layout& layout, const Upload& other, const datatype::Layout& others_layout);

 private:
  static std::uint64_t next_number();
  void make(Engine& engine, Channel& channel, const datatype::Layout& layout, std::chrono::milliseconds time)
      REQUIRES(mutex_);

  const std::uint64_t number_ = next_number();  // unique
  Mutex mutex_;
  std::uint64_t compared_ GUARDED_BY(mutex_) = 0;  // number_ of the upload of the latest comparison; 0: none yet
  bool same_ GUARDED_BY(mutex_) = false;
  std::uint64_t generation_ GUARDED_BY(mutex_) = 0;  // of the context that the members below belong to; 0: none yet
  datatype::Program program_ GUARDED_BY(mutex_);
  Staging image_ GUARDED_BY(mutex_);               // on the GPU; pinned if the GPU has no memory left
  Staging source_ GUARDED_BY(mutex_);              // pinned, until the copy has been made
  StateOwner copying_ GUARDED_BY(mutex_);          // the transfer that makes the copy
  Channel* channel_ GUARDED_BY(mutex_) = nullptr;  // whose stream copies the image
};

}  // namespace gpudt::device
