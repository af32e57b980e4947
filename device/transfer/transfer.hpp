// Transfers under way, and what describes them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "datatype/layout.hpp"

namespace gpudt::device {

/// What moves data between a program's buffers and staging memory.
enum class Way {
  automatic,  ///< what the model of costs says (chooser.hpp)
  kernel,
  copy,  ///< the copy engine wherever it can
};

enum class Direction { pack, unpack };

/// A transfer under way. Movable. Destroying it before it is done waits for it, since the GPU still uses the buffers;
/// if its mark has not been reached, it is cancelled instead. Only one thread at a time may use it.
class Transfer {
 public:
  struct State;
  /// Waits for, or cancels, what has been started.
  struct End {
    void operator()(State* state) const noexcept;
    void operator()(class PageableTransfer* pageable) const noexcept;
  };
  using StateOwner = std::unique_ptr<State, End>;
  using PageableOwner = std::unique_ptr<PageableTransfer, End>;

  Transfer() noexcept = default;
  explicit Transfer(StateOwner state) noexcept : state_(std::move(state)) {}
  explicit Transfer(PageableOwner pageable) noexcept : pageable_(std::move(pageable)) {}

  /// True once the data has arrived; stays true. Throws Error if the GPU reports a failure.
  bool done() { return (!state_ && !pageable_) || has_ended(); }
  /// Polls until done().
  void wait();
  explicit operator bool() const { return state_ != nullptr || pageable_ != nullptr; }
  Way way() const;  ///< kernel or copy; automatic if there was nothing to move

 private:
  bool has_ended();

  StateOwner state_;
  PageableOwner pageable_;  ///< in place of a state
};

/// One side of a transfer: `count` elements of `layout` at `user`, an address that GPUs know (Mapping::at()), possibly
/// MPI_BOTTOM.
struct Side {
  const datatype::Layout* layout = nullptr;
  std::int64_t count = 0;
  void* user = nullptr;

  bool operator==(const Side&) const = default;
};

/// The plan of a transfer that is made again and again. device::transfer() makes it at the first time, and another one
/// where the arguments differ. Layouts are compared by their addresses: once one of them is freed, the plan may not be
/// passed again, since another layout may get the address. One thread at a time may use a variable of this type.
using KeptPlan = std::shared_ptr<struct PlannedTransfer>;

/// The two sides of a transfer of all of `from`'s bytes, as many as `to` has.
struct SidePair {
  Side from, to;
};
struct PreparedTransfers;  // prepared.hpp

/// While a Gathering lives, transfers that its thread starts are queued; its end launches them together, several by one
/// kernel where that is cheaper. done() of one of them launches those started so far. A launch that fails is reported
/// by done() of its transfer.
class Gathering {
 public:
  /// The limit for single messages: the parts of one message, which are to overlap with each other, are longer.
  static constexpr std::int64_t short_bytes = (256 << 10) - 1;
  /// For longer transfers the launch is a small part of the time, and a kernel of their own is faster.
  static constexpr std::int64_t long_bytes = 4 << 20;
  /// Transfers longer than `most_bytes` are not queued.
  explicit Gathering(std::int64_t most_bytes) noexcept
      : outer_(std::exchange(gathered_bytes, std::max(gathered_bytes, most_bytes))) {}
  ~Gathering() {
    gathered_bytes = outer_;
    if (outer_ == 0) launch();
  }
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;
  /// The longest transfer that this thread gathers; 0: none.
  static std::int64_t longest() { return gathered_bytes; }

 private:
  static void launch() noexcept;
  static constinit thread_local std::int64_t gathered_bytes;
  std::int64_t outer_;
};

/// Numbers of transfers so far: by kernels and by copies; launches of several transfers, and the transfers in them;
/// transfers (or probes) with a start delay; transfers that the persistent kernel has done.
struct Movements {
  std::int64_t kernels = 0, copies = 0, batches = 0, batched = 0, late = 0, resident = 0;
};
/// What a thread waits for. Waits of one kind are expected to last about as long as the one before.
enum class WaitKind {
  peer_reads,  ///< another process, to take data from this one
  peer_sends,  ///< another process, to give data to this one
  several,     ///< some of these at once
  group,       ///< several processes, which all exchange data
  transfer,    ///< a transfer that the thread has started
  enqueued,    ///< what is enqueued in streams, until no_more_enqueued()
};
inline constexpr int wait_kinds = 6;

/// A GPU that this process has used.
struct UsedGpu {
  int ordinal;
  std::string name;
  std::array<unsigned char, 16> id;  ///< the UUID
};

}  // namespace gpudt::device
