// The data of accesses to a served window, at the origin and at the target.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <optional>

#include "datatype/layout.hpp"
#include "device/device.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/rma/access.hpp"
#include "interpose/rma/pending.hpp"
#include "interpose/transport/staged.hpp"

namespace gpudt::interpose {

/// A buffer argument at the origin, from which MPI sends or into which it receives: host memory itself, or staging
/// memory for device memory.
class UserBuffer {
 public:
  /// Throws device::Error.
  UserBuffer(const char* call, const Origin& origin);

  std::int64_t bytes() const { return bytes_; }
  void start_pack();
  void start_unpack();
  /// Whether the last pack or unpack is done. May throw device::Error.
  bool done() { return !staged_ || staged_->done(); }
  bool on_device() const { return staged_ != nullptr; }

  /// The arguments for MPI, between pack and unpack.
  void* address() const;
  int count() const { return count_; }
  MPI_Datatype type() const { return staged_ ? staged_->operand().packed_type() : type_->get(); }
  /// Copies all packed bytes; at most INT_MAX of them.
  void copy_to(std::byte* packed) const;
  void copy_from(const std::byte* packed) const;

 private:
  void* buffer_;
  int count_;
  std::int64_t bytes_ = 0;
  std::optional<KeptType> type_;    ///< of host memory
  std::unique_ptr<Staged> staged_;  ///< device memory
};

/// Packed bytes that are to be written to the target's memory, or have been read from it.
class Block {
 public:
  Block() = default;
  /// Takes memory for transfers by GPU `ordinal`, or on the host if it is negative. Throws device::Error or
  /// std::bad_alloc.
  Block(int ordinal, std::int64_t bytes);
  std::byte* data() const;
  device::MemoryKind memory_kind() const { return staging_.memory_kind(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
  device::Staging staging_;
  std::unique_ptr<std::byte[]> heap_;
};

/// The place of an access in the target's own memory.
class TargetPlace {
 public:
  TargetPlace(datatype::LayoutRef layout, std::int64_t count, void* address);
  int ordinal() const { return location_.on_device() ? location_.ordinal : -1; }
  const void* first() const;  ///< where its data begin
  /// Reads and writes wait for the work before `mark`.
  void order_after(const device::StreamMark& mark) { after_ = mark; }
  std::int64_t bytes() const { return count_ * layout_->size(); }
  /// After a failure: whether it is certainly no memory.
  bool is_missing() const;
  /// Copies between the target's memory and a whole block, which must have been made for ordinal(). In host memory the
  /// copy is complete on return. Throws device::Error.
  device::Transfer start_read(const Block& block) const;
  device::Transfer start_write(const Block& block) const;

 private:
  void* contiguous() const;

  datatype::LayoutRef layout_;
  std::int64_t count_;
  void* address_;
  device::Location location_;
  device::StreamMark after_;
};

}  // namespace gpudt::interpose
