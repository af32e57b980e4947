#include "device/memory/pool.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <new>

#include "device/memory/in_time.hpp"

namespace gpudt::device {
namespace {

constexpr std::size_t smallest_block = 512;
constexpr std::size_t slab_bytes = std::size_t(256) << 10;    ///< blocks up to a quarter of it are cut from slabs,
constexpr std::size_t slab_share = 4;                         ///< which take a quarter of what is left at most
constexpr std::size_t doubling_until = std::size_t(1) << 20;  ///< classes are powers of two up to here,
constexpr std::size_t steps_per_doubling = 8;                 ///< and above it this number for each doubling
constexpr std::size_t bytes_per_ms = std::size_t(1) << 20;    ///< that the driver pins at least
constexpr std::align_val_t ordinary_alignment{256};
constexpr std::size_t largest_request = std::size_t(1) << 60;

std::string kind_name(StagingKind kind) {
  return kind == StagingKind::mapped ? "pinned host" : "device";
}

}  // namespace

void Staging::give_back() noexcept {
  if (pool_)
    pool_->release(data_, chunk_);
  else
    ::operator delete(data_, ordinary_alignment);
}

MemoryKind Staging::memory_kind() const {
  if (chunk_ == nullptr) return MemoryKind::host;
  return Pool::kind_of(chunk_) == StagingKind::mapped ? MemoryKind::pinned : MemoryKind::device;
}

StagingKind Pool::kind_of(const void* chunk) {
  return static_cast<const Chunk*>(chunk)->of().kind;
}

std::size_t Pool::class_bytes(std::size_t bytes) {
  if (bytes <= doubling_until) return std::bit_ceil(std::max(bytes, smallest_block));
  const std::size_t step = std::bit_floor(bytes - 1) / steps_per_doubling;
  return (bytes + step - 1) / step * step;
}

Staging Pool::acquire(StagingKind kind, int ordinal, std::size_t bytes) {
  if (Staging staging = acquire_within(long_time, kind, ordinal, bytes)) return staging;
  throw Error(Failure::out_of_memory, "staging memory: " + std::to_string(bytes) + " bytes of " + kind_name(kind) +
                                          " memory cannot be had in time while operations are enqueued in streams");
}

Staging Pool::try_acquire(StagingKind kind, int ordinal, std::size_t bytes) try {
  return acquire_within(short_time, kind, ordinal, bytes);
} catch (const Error& error) {
  if (error.failure() != Failure::out_of_memory) throw;
  return {};
}

Staging Pool::acquire_packed(int ordinal, std::size_t bytes) {
  if (Staging staging = acquire_within(short_time, StagingKind::mapped, ordinal, bytes)) return staging;
  Staging ordinary;
  ordinary.data_ = ::operator new(std::max(bytes, smallest_block), ordinary_alignment);
  ordinary.capacity_ = std::max(bytes, smallest_block);
  return ordinary;
}

Staging Pool::acquire_within(std::chrono::milliseconds time, StagingKind kind, int ordinal, std::size_t bytes) {
  if (bytes > largest_request)
    throw Error(Failure::out_of_memory, "staging memory: " + std::to_string(bytes) + " bytes asked for");
  const Class wanted = {kind, ordinal, class_bytes(bytes)};
  {
    const LockGuard lock(mutex_);
    if (const Block block = take_idle(wanted, /*longer=*/false); block.data != nullptr) return staging_of(block);
  }
  const auto made = std::make_shared<Staging>();  // it goes back to the pool if it comes too late
  const auto make = [=, this] {
    const LockGuard lock(mutex_);
    if (const Block block = grow(wanted); block.data != nullptr) *made = staging_of(block);
  };
  if (in_time(make, time + std::chrono::milliseconds(wanted.bytes / bytes_per_ms)) && *made) return std::move(*made);
  const LockGuard lock(mutex_);
  const Block block = take_idle(wanted, /*longer=*/true);
  return block.data != nullptr ? staging_of(block) : Staging();
}

Staging Pool::staging_of(const Block& block) {
  const Class& its = block.chunk->of();
  ++held_;
  StagingStatistics& statistics = statistics_of(its.kind);
  statistics.in_use += its.bytes;
  statistics.peak_in_use = std::max(statistics.peak_in_use, statistics.in_use);
  Staging staging;
  staging.pool_ = this;
  staging.data_ = block.data;
  staging.chunk_ = block.chunk;
  staging.capacity_ = its.bytes;
  return staging;
}

/// An idle block of the class or, if `longer`, the shortest one that is long enough. Its `data` is null if there is
/// none.
Pool::Block Pool::take_idle(const Class& wanted, bool longer) {
  auto at = longer ? idle_.lower_bound(wanted) : idle_.find(wanted);
  const auto stands_in = [&]() REQUIRES(mutex_) {
    return at != idle_.end() && at->first.kind == wanted.kind && at->first.ordinal == wanted.ordinal;
  };
  while (longer && stands_in() && at->second.empty()) ++at;
  if (!stands_in() || at->second.empty()) return {};
  const Block block = at->second.back();
  at->second.pop_back();
  if (block.chunk->used++ == 0) idle_bytes_ -= block.chunk->bytes();
  return block;
}

/// Blocks of a new chunk: one, or for small blocks a slab's worth, less if the limit is near: a block of another class
/// may be wanted beside it.
std::size_t Pool::slab_blocks(const Class& wanted) const {
  if (wanted.bytes > slab_bytes / 4) return 1;
  if (bounds_.limit == 0) return slab_bytes / wanted.bytes;
  const std::size_t room = bounds_.limit - std::min(bounds_.limit, allocated());
  return std::max<std::size_t>(std::min(slab_bytes, room / slab_share) / wanted.bytes, 1);
}

/// Allocates a chunk and takes one of its blocks. The mutex is not held while the runtime allocates and frees. The
/// block is empty if something has to be freed before, which may wait for streams, and a gate is taken.
Pool::Block Pool::grow(const Class& wanted) {
  std::vector<std::unique_ptr<Chunk>> freed;
  if (bounds_.limit != 0 && allocated() + wanted.bytes > bounds_.limit) {
    const std::size_t excess = allocated() + wanted.bytes - bounds_.limit;
    if (excess <= idle_bytes_ && !no_gate_is_taken()) return {};
    freed = remove_idle(idle_bytes_ - std::min(idle_bytes_, excess));
  }
  const std::size_t held = allocated();
  const bool fits = bounds_.limit == 0 || held + wanted.bytes <= bounds_.limit;
  const std::size_t blocks = slab_blocks(wanted), bytes = blocks * wanted.bytes;
  StagingStatistics& statistics = statistics_of(wanted.kind);
  if (fits) {  // taken now, so that another thread cannot pass the limit meanwhile
    statistics.allocated += bytes;
    statistics.peak_allocated = std::max(statistics.peak_allocated, statistics.allocated);
  }
  void* address = nullptr;
  try {
    const Unlocked unlocked(mutex_);
    for (const auto& chunk : freed) free_chunk(*chunk);
    if (!fits)
      throw Error(Failure::out_of_memory, "staging memory: " + std::to_string(wanted.bytes) + " bytes of " +
                                              kind_name(wanted.kind) + " memory asked for with " +
                                              std::to_string(held) + " bytes in use, but GPUDT_STAGING_LIMIT is " +
                                              std::to_string(bounds_.limit) + " bytes");
    address = allocate(wanted, bytes);
  } catch (...) {
    if (fits) statistics.allocated -= bytes;
    throw;
  }
  const auto idle = idle_.try_emplace(wanted).first;
  Chunk* const chunk = (chunks_[address] = std::make_unique<Chunk>(Chunk{address, blocks, 1, &*idle})).get();
  // Held in reverse, so that blocks are taken in the order of their addresses.
  for (std::size_t i = blocks; i-- > 1;)
    idle->second.push_back({static_cast<char*>(address) + i * wanted.bytes, chunk});
  return {address, chunk};
}

/// Allocates from the runtime; if it has no memory left, frees the idle blocks and tries once more.
void* Pool::allocate(const Class& wanted, std::size_t bytes) {
  const auto ask = [&] {
    return wanted.kind == StagingKind::mapped ? runtime_->mapped_alloc(wanted.ordinal, bytes)
                                              : runtime_->device_alloc(wanted.ordinal, bytes);
  };
  try {
    return ask();
  } catch (const Error& error) {
    if (error.failure() != Failure::out_of_memory || !no_gate_is_taken()) throw;
  }
  std::vector<std::unique_ptr<Chunk>> freed;
  {
    const LockGuard lock(mutex_);
    freed = remove_idle(0);
  }
  for (const auto& chunk : freed) free_chunk(*chunk);
  return ask();
}

void Pool::free_chunk(const Chunk& chunk) noexcept {
  if (chunk.of().kind == StagingKind::mapped)
    runtime_->mapped_free(chunk.of().ordinal, chunk.address);
  else if (!chunk.lost)
    runtime_->device_free(chunk.of().ordinal, chunk.address);
}

/// Takes wholly idle chunks out, those first that have been idle for longest, until at most `keep` idle bytes are left:
/// what was used last is likely to be wanted next. The caller frees them.
std::vector<std::unique_ptr<Pool::Chunk>> Pool::remove_idle(std::size_t keep) {
  std::vector<std::unique_ptr<Chunk>> removed;
  if (idle_bytes_ <= keep) return removed;
  std::vector<Chunk*> idle;
  for (const auto& entry : chunks_)
    if (entry.second->used == 0) idle.push_back(entry.second.get());
  std::stable_sort(idle.begin(), idle.end(), [](Chunk* a, Chunk* b) { return a->idle_since < b->idle_since; });
  for (Chunk* chunk : idle) {
    if (idle_bytes_ <= keep) break;
    idle_bytes_ -= chunk->bytes();
    removed.push_back(take_out(*chunk));
  }
  return removed;
}

/// Removes a chunk without a block in use.
std::unique_ptr<Pool::Chunk> Pool::take_out(Chunk& chunk) {
  statistics_of(chunk.of().kind).allocated -= chunk.bytes();
  std::erase_if(chunk.idle->second, [&](const Block& block) { return block.chunk == &chunk; });
  return std::move(chunks_.extract(chunk.address).mapped());
}

void Pool::lose(int ordinal) noexcept {
  const LockGuard lock(mutex_);
  for (auto at = chunks_.begin(); at != chunks_.end();) {
    Chunk& chunk = *at++->second;
    if (chunk.of().ordinal != ordinal) continue;
    chunk.lost = true;
    std::erase_if(chunk.idle->second, [&](const Block& block) { return block.chunk == &chunk; });
    if (chunk.used != 0) continue;
    idle_bytes_ -= chunk.bytes();
    free_chunk(*take_out(chunk));
  }
}

void Pool::release(void* data, void* of) noexcept {
  bool last = false, full = false;
  {
    const LockGuard lock(mutex_);
    last = --held_ == 0 && closed_;
    if (!closed_) {
      Chunk& chunk = *static_cast<Chunk*>(of);  // which lasts as long as one of its blocks is in use
      statistics_of(chunk.of().kind).in_use -= chunk.of().bytes;
      --chunk.used;
      if (!chunk.lost) chunk.idle->second.push_back({data, &chunk});
      if (chunk.used == 0 && chunk.lost)
        free_chunk(*take_out(chunk));
      else if (chunk.used == 0) {
        idle_bytes_ += chunk.bytes();
        chunk.idle_since = ++releases_;
      }
      full = idle_bytes_ > bounds_.cache;
    }
  }
  if (full) trim();
  if (last) delete this;
}

/// Frees what is idle beyond the bound, which may wait for streams: later, if a gate is taken.
void Pool::trim() {
  const auto work = [this] {
    std::vector<std::unique_ptr<Chunk>> freed;
    {
      const LockGuard lock(mutex_);
      freed = remove_idle(bounds_.cache);
    }
    for (const auto& chunk : freed) free_chunk(*chunk);
  };
  in_time(work, std::chrono::milliseconds(0));
}

std::size_t Pool::room() const noexcept {
  if (bounds_.limit == 0) return std::numeric_limits<std::size_t>::max();
  const LockGuard lock(mutex_);
  return bounds_.limit - std::min(bounds_.limit, allocated() - idle_bytes_);
}

StagingStatistics Pool::statistics(StagingKind kind) const noexcept {
  const LockGuard lock(mutex_);
  return statistics_[static_cast<int>(kind)];
}

void Pool::close() noexcept {
  Chunks chunks;
  bool held = false;
  {
    const LockGuard lock(mutex_);
    closed_ = true;
    chunks.swap(chunks_);
    held = held_ > 0;
  }
  for (const auto& entry : chunks) free_chunk(*entry.second);
  if (!held) delete this;
}

}  // namespace gpudt::device
