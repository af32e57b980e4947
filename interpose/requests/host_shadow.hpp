// A host copy of the buffer in the user's layout, for operations that only MPI can do (user-defined reduction
// operators, external32).
#pragma once

#include <cstddef>
#include <memory>

#include "interpose/requests/operation.hpp"
#include "interpose/transport/staged.hpp"

namespace gpudt::interpose {

/// Packing copies the operand's data here through staging memory, unpacking copies all of them back. Gaps between
/// blocks are not touched on either side.
class HostShadow : public CallPayload {
 public:
  /// Takes memory for the span of `operand`, aligned as the user's; undefined contents. For an operand that is divided
  /// among memories it reserves addresses only, so that gaps take no pages. Throws std::bad_alloc and gpudt::Exception.
  explicit HostShadow(const DeviceBuffer& operand);

  /// The address that stands for the user's buffer argument.
  void* buffer() const;
  void restart() override { staged_.restart(); }
  void start_pack() override;
  void start_unpack(std::int64_t bytes) override;
  bool done() override;
  void wait() override;
  void each_reported(VisitReported visit) const override { staged_.each_reported(visit); }

  /// Packs or unpacks, and waits. May throw device::Error.
  void fill();
  void spill();

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };

  void arrived();

  Staged staged_;
  std::uintptr_t base_ = 0;  ///< what stands for the address of the user's buffer
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<std::byte, Unmap> mapped_{nullptr, Unmap{0}};  ///< instead of memory_ for a divided operand
  bool filling_ = false;                                         ///< staging memory holds data for this memory
};

}  // namespace gpudt::interpose
