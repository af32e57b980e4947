// What a transfer is to move, as it is queued or launched.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>

#include "datatype/layout.hpp"
#include "device/kernels/batch_body.hpp"
#include "device/kernels/copy_blocks_body.hpp"
#include "device/kernels/reduce_body.hpp"
#include "device/runtime/location.hpp"
#include "device/transfer/forecast.hpp"
#include "device/transfer/stream_mark.hpp"
#include "device/transfer/transfer.hpp"

namespace gpudt::device {

/// Packs or unpacks bytes [begin, end) of a message's packed stream.
struct Packing {
  Direction direction;
  const datatype::Layout* layout;  ///< null: contiguous
  datatype::Shape shape;
  void* user;  ///< the address to which the offsets of `shape` are relative
  std::int64_t begin, end;
  void* packed;            ///< where byte `begin` of the packed stream lies
  MemoryKind packed_kind;  ///< host also for another GPU's memory that kernels may not reach (Engine::copy())
  bool peer = false;       ///< one side is, or may be, memory of another GPU or process

  std::int64_t bytes() const { return end - begin; }
};

/// Moves the first bytes_ bytes of a message from one layout to another; neither is contiguous.
struct LayoutTransfer {
  Side from, to;
  datatype::Shape from_shape, to_shape;
  std::int64_t bytes_;
  bool within;  ///< both sides are memory of one GPU, and other GPUs' data arrive at the same time

  std::int64_t bytes() const { return bytes_; }
};

using Work = std::variant<Packing, LayoutTransfer>;

inline bool is_host(MemoryKind kind) {
  return kind == MemoryKind::host || kind == MemoryKind::pinned;
}
/// The address at which a span of the user's buffer begins.
inline std::uintptr_t first_of(const datatype::Span& span, const void* user) {
  return reinterpret_cast<std::uintptr_t>(user) + static_cast<std::uintptr_t>(span.begin);
}
/// The address of byte `position` of a contiguous side.
inline void* place_of(const Side& side, const datatype::Shape& shape, std::int64_t position) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(side.user) +
                                 static_cast<std::uintptr_t>(shape.offset + position));
}
inline bool kernels_reach(const Packing& packing) {
  return packing.packed_kind != MemoryKind::host;
}
inline bool kernels_reach(const LayoutTransfer&) {
  return true;
}

/// The arguments of Engine::transfer(): a plan that is kept is used again only if they are equal.
struct TransferRequest {
  Side from, to;
  std::int64_t begin, end;
  bool within;
  std::uint64_t generation;  ///< number of the GPU's context: copies of layouts on the GPU are lost with it

  bool operator==(const TransferRequest&) const = default;
};

/// The plan of a transfer. The queue and the persistent kernel hold it and, if the transfer is made again, a KeptPlan.
struct PlannedTransfer {
  const bool batchable;       ///< several can be launched by one kernel
  const int resident_blocks;  ///< thread blocks of the GPU's persistent kernel that would do it; 0: it cannot
  // Guarded by the channel's queue_mutex.
  bool job_is_final = false;      ///< `job` is there, and so are the layouts on the GPU that it reads
  int blocks = 0;                 ///< thread blocks of `job`
  std::optional<BatchJob> job{};  ///< made when first needed; copies of it get the completion of each launch
  bool forecast_lasts = false;    ///< `forecast` depends on `work` alone
  std::unique_ptr<const Forecast> forecast{};

  TransferRequest request{};  ///< set before a KeptPlan refers to the plan
  const Work work;

  PlannedTransfer(const Work& its_work, bool is_batchable, int its_resident_blocks)
      : batchable(is_batchable), resident_blocks(its_resident_blocks), work(its_work) {}
  std::int64_t bytes() const {
    return std::visit([](const auto& it) { return it.bytes(); }, work);
  }
};
using PlannedRef = std::shared_ptr<PlannedTransfer>;

/// Work of the persistent kernel (resident.hpp).
using ResidentWork = std::variant<PlannedRef, ShortReduction, ShortCopies>;
/// Work that was given to the persistent kernel, which has ended without doing it: it must be launched in another way.
struct TakenBack {
  ResidentWork work;
  Transfer::State* state;
};

/// A transfer that is launched later, perhaps with others. `state` belongs to its Transfer, whose destructor waits for
/// the launch and the end, or removes this entry while the transfer waits for `after`.
struct Queued {
  PlannedRef plan;
  Transfer::State* state;
  StreamMark after{};
};

}  // namespace gpudt::device
