// Host memory in the user's own layout: for what only MPI can do with the data, which needs its datatype (reductions
// with user-defined operators, changes of representation).
#pragma once

#include <cstddef>
#include <memory>

#include "interpose/requests/operation.hpp"

namespace gpudt::interpose {

/// Packing brings the operand's data here by way of staging memory, unpacking brings all of it back. Gaps between
/// blocks are not touched on either side.
class HostImage : public Payload {
 public:
  /// Memory for the span of `operand`, aligned as the user's; undefined contents. May throw std::bad_alloc.
  explicit HostImage(const DeviceBuffer& operand);

  /// The address that stands for the user's buffer argument.
  void* buffer() const;
  void start_pack() override;
  void start_unpack(std::int64_t bytes) override;
  bool done() override;
  void wait() override;

  /// Packs or unpacks, and waits. May throw device::Error.
  void fill();
  void spill();

 private:
  void arrived();

  Staged staged_;
  std::uintptr_t base_ = 0;  ///< of the user's buffer, moved here
  std::unique_ptr<std::byte[]> memory_;
  bool filling_ = false;  ///< staging memory holds what belongs here
};

}  // namespace gpudt::interpose
