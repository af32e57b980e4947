// Staging memory: blocks of pinned-mapped and of device memory in size classes, reused, bounded and counted.
//
// Pinning and freeing memory takes the driver from tens of microseconds to milliseconds, and freeing waits for the GPU,
// so blocks are kept for reuse up to a bound. Small blocks are cut from slabs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/mutex.hpp"
#include "device/memory/staging.hpp"
#include "device/runtime/runtime.hpp"

namespace gpudt::device {

class Pool {
 public:
  struct Bounds {
    std::size_t limit = 0;                             ///< bytes in use and idle, of all kinds; 0: none
    std::size_t cache = ~static_cast<std::size_t>(0);  ///< idle bytes kept for reuse
  };

  /// Closes the pool in place of deleting it: close().
  struct Closer {
    void operator()(Pool* pool) const noexcept { pool->close(); }
  };
  using Owner = std::unique_ptr<Pool, Closer>;

  /// `runtime` must outlive the owner's call of close(), not the pool.
  static Owner make(Runtime& runtime, Bounds bounds) { return Owner(new Pool(runtime, bounds)); }

  /// See device::acquire().
  Staging acquire(StagingKind kind, int ordinal, std::size_t bytes);
  /// See device::try_acquire().
  Staging try_acquire(StagingKind kind, int ordinal, std::size_t bytes);
  /// acquire() that returns an empty Staging if the driver does not answer within `time` (in_time()) and the time that
  /// it needs to pin this number of bytes.
  Staging acquire_within(std::chrono::milliseconds time, StagingKind kind, int ordinal, std::size_t bytes);
  /// See device::acquire_packed().
  Staging acquire_packed(int ordinal, std::size_t bytes);
  void release(void* data, void* chunk) noexcept;
  StagingStatistics statistics(StagingKind kind) const noexcept;
  /// See device::staging_room().
  std::size_t room() const noexcept;

  /// The context of GPU `ordinal` was destroyed: its blocks are gone or no longer registered, and are not reused once
  /// their holders release them.
  void lose(int ordinal) noexcept;

  /// Frees all memory, that in use too: no work may be using it. Blocks still held can be destroyed later; the pool
  /// itself goes with the last of them.
  void close() noexcept;

  /// The capacity of a block for `bytes` bytes.
  static std::size_t class_bytes(std::size_t bytes);
  /// `chunk`: that of a Staging.
  static StagingKind kind_of(const void* chunk);

 private:
  /// What blocks must agree in to stand in for one another. Every GPU reaches mapped memory too, but only until the
  /// context that has registered it ends.
  struct Class {
    StagingKind kind;
    int ordinal;
    std::size_t bytes;
    bool operator<(const Class& other) const {
      return std::tie(kind, ordinal, bytes) < std::tie(other.kind, other.ordinal, other.bytes);
    }
  };
  struct Chunk;
  struct Block {
    void* data;
    Chunk* chunk;
  };
  /// The blocks of each class that are not in use.
  using Idle = std::map<Class, std::vector<Block>>;
  /// One allocation of the runtime: a slab of equal blocks, or a single one.
  struct Chunk {
    void* address;
    std::size_t blocks, used;
    Idle::value_type* idle;  ///< the idle blocks of its class
    bool lost = false;
    std::uint64_t idle_since = 0;  ///< the value of Pool::releases_ when it became idle
    const Class& of() const { return idle->first; }
    std::size_t bytes() const { return blocks * of().bytes; }
  };
  using Chunks = std::map<void*, std::unique_ptr<Chunk>>;

  Pool(Runtime& runtime, Bounds bounds) : runtime_(&runtime), bounds_(bounds) {}
  ~Pool() = default;

  Staging staging_of(const Block& block) REQUIRES(mutex_);
  Block take_idle(const Class& wanted, bool longer) REQUIRES(mutex_);
  Block grow(const Class& wanted) REQUIRES(mutex_);
  void* allocate(const Class& wanted, std::size_t bytes) EXCLUDES(mutex_);
  void free_chunk(const Chunk& chunk) noexcept;
  std::size_t slab_blocks(const Class& wanted) const REQUIRES(mutex_);
  void trim() EXCLUDES(mutex_);
  std::vector<std::unique_ptr<Chunk>> remove_idle(std::size_t keep) REQUIRES(mutex_);
  std::unique_ptr<Chunk> take_out(Chunk& chunk) REQUIRES(mutex_);
  StagingStatistics& statistics_of(StagingKind kind) REQUIRES(mutex_) { return statistics_[static_cast<int>(kind)]; }
  std::size_t allocated() const REQUIRES(mutex_) { return statistics_[0].allocated + statistics_[1].allocated; }

  Runtime* runtime_;
  const Bounds bounds_;
  mutable Mutex mutex_;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::size_t held_ GUARDED_BY(mutex_) = 0;        // blocks in use
  std::size_t idle_bytes_ GUARDED_BY(mutex_) = 0;  // of chunks without a block in use
  std::uint64_t releases_ GUARDED_BY(mutex_) = 0;
  Idle idle_ GUARDED_BY(mutex_);
  Chunks chunks_ GUARDED_BY(mutex_);
  StagingStatistics statistics_[2] GUARDED_BY(mutex_);
};

}  // namespace gpudt::device
