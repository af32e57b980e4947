#include "device/sim/memory.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/mutex.hpp"
#include "base/numbers.hpp"
#include "device/sim/context_lock.hpp"

namespace gpudt::sim {
namespace {

constexpr std::size_t granularity = 256;  // alignment that cudaMalloc promises
constexpr int max_devices = 16;
constexpr char object_name[] = "gpudt-sim";

/// What is inside a cudaIpcMemHandle_t.
struct Handle {
  std::uint64_t nonce;
  std::uint64_t id;
  std::uint64_t region, in_file;
  std::uint64_t bytes;
  OpeningIndex opening, unused;
  std::int32_t process, file;
  std::int32_t device, kind;
};
static_assert(sizeof(Handle) <= CUDA_IPC_HANDLE_SIZE);

std::size_t region_bytes_of(std::size_t bytes) {
  return round_up(bytes, page);
}

Handle inside_of(const char* handle) {
  Handle inside;
  std::memcpy(&inside, handle, sizeof inside);
  return inside;
}

/// The device whose reset frees the block.
int holder(const Block& block) {
  if (block.object.foreign) return -1;
  return block.opened_from.empty() ? block.device : block.opened_for;
}

/// Whose memory a block takes up: its device's, or the host's (-1).
int account(const Block& block) {
  return block.kind == Kind::pinned ? -1 : block.device;
}

std::atomic<Memory*> existing_memory{nullptr};

/// A value that libgpudt-pmpi.so refuses (interpose/support/config.cpp) leaves the default.
int setting(const char* variable, int by_default, int most = 1) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? by_default : parse_number(text, most).value_or(by_default);
}

}  // namespace

int device_count() {
  static const int count = setting("GPUDT_SIM_DEVICES", 2, max_devices);
  return count;
}

bool devices_are_peers() {
  static const bool peers = setting("GPUDT_SIM_PEERS", 1) != 0;
  return peers;
}

bool mps_enabled() {
  static const bool enabled = setting("GPUDT_SIM_MPS", 0) != 0;
  return enabled;
}

Memory& Memory::instance() {
  static Memory* memory = new Memory;
  return *memory;
}

Memory* Memory::existing() {
  return existing_memory.load(std::memory_order_acquire);
}

Memory::Memory() {
  host_access_ = setting("GPUDT_SIM_HOST_ACCESS", 0) != 0;
  size_ = host_zone_bytes + static_cast<std::size_t>(device_count()) * device_bytes;
  file_ = memfd_create(object_name, MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(2 * size_)) != 0 || !own_openings_.make(file_)) {
    std::perror("gpudt-sim: cannot create the memory of the simulated device");
    size_ = 0;
    return;
  }
  void* user = mmap(nullptr, size_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  void* alias = mmap(nullptr, size_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (user == MAP_FAILED || alias == MAP_FAILED) {
    std::perror("gpudt-sim: cannot reserve addresses for the simulated device");
    size_ = 0;
    return;
  }
  madvise(user, size_, MADV_DONTDUMP);
  madvise(alias, size_, MADV_DONTDUMP);
  user_ = static_cast<char*>(user);
  alias_ = static_cast<char*>(alias);
  host_zone_.give(ObjectHead::bytes, host_zone_bytes - ObjectHead::bytes);
  device_zone_.give(host_zone_bytes, size_ - host_zone_bytes);
  other_offsets_.give(size_, size_);
  existing_memory.store(this, std::memory_order_release);
}

Zone& Memory::zone(Kind kind) {
  return kind == Kind::device ? device_zone_ : host_zone_;
}

bool Memory::protect(const Block& block, bool accessible) {
  const bool host = block.kind != Kind::device || host_access_;
  const int reach = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
  return mprotect(alias_ + block.region, block.region_bytes, reach) == 0 &&
         mprotect(user_ + block.region, block.region_bytes, host ? reach : PROT_NONE) == 0;
}

/// Maps part of a file in place of a region, without access. The kernel merges mappings again only if they are alike,
/// so they get the flags and the advice of those in the constructor.
bool Memory::map_file(std::size_t region, std::size_t bytes, int file, std::size_t file_offset) {
  return std::ranges::all_of(std::array{user_, alias_}, [&](char* view) {
    return mmap(view + region, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                static_cast<off_t>(file_offset)) != MAP_FAILED &&
           madvise(view + region, bytes, MADV_DONTDUMP) == 0;
  });
}

/// As a rule at the offset of the region.
bool Memory::find_in_file(Block& block) {
  block.in_file = block.region;
  return !own_openings_.lingers_at(block.region, block.region_bytes) ||
         other_offsets_.take(block.region_bytes, &block.in_file);
}

void Memory::free_in_file(std::size_t in_file, std::size_t bytes) {
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(in_file), static_cast<off_t>(bytes));
  if (in_file >= size_) other_offsets_.give(in_file, bytes);
}

void Memory::give_back_closed() {
  give_back_objects();
  for (const OwnOpenings::Lingering& each : own_openings_.take_closed()) {
    used_[each.account] -= each.bytes;
    free_in_file(each.in_file, each.bytes);
  }
}

cudaError_t Memory::place(Block block, int file, void** address) {
  // One guard page after the block; the guard before it is that of its predecessor (or the head's).
  std::size_t region = 0;
  if (!zone(block.kind).take(block.region_bytes + page, &region)) return cudaErrorMemoryAllocation;
  block.region = region;
  const bool own = file == file_;
  if (own && !find_in_file(block)) {
    zone(block.kind).give(region, block.region_bytes + page);
    return cudaErrorMemoryAllocation;
  }
  const bool there = own && block.in_file == region;
  const bool mapped = there || map_file(region, block.region_bytes, file, block.in_file);
  const std::size_t begin = region + block.region_bytes - round_up(block.bytes, granularity);
  const auto at = blocks_.emplace(begin, std::move(block)).first;
  count_in(at->second);
  if (!mapped || !protect(at->second, true)) {
    remove(at);
    return cudaErrorMemoryAllocation;
  }
  *address = user_ + begin;
  return cudaSuccess;
}

void Memory::count_in(const Block& block) {
  if (block.opened_from.empty()) {
    used_[account(block)] += block.region_bytes;
  } else {
    const Handle from = inside_of(block.opened_from.data());
    others_openings_.opened(from.nonce, from.opening);
  }
}

/// Returns whether memory of this process is free now.
bool Memory::count_out(const Block& block) {
  if (block.object.file >= 0) {
    count_out_object(block);
    return false;
  }
  if (!block.opened_from.empty()) {
    const Handle from = inside_of(block.opened_from.data());
    others_openings_.closed(from.nonce, from.opening);
    return false;
  }
  if (own_openings_.lingers({block.exported, account(block), block.in_file, block.region_bytes})) return false;
  used_[account(block)] -= block.region_bytes;
  return true;
}

void Memory::remove(Blocks::iterator at) {
  const Block& block = at->second;
  bool restored = protect(block, false);
  const bool own = block.opened_from.empty();
  if (!own || block.object.file >= 0 || block.in_file != block.region)
    restored = map_file(block.region, block.region_bytes, file_, block.region) && restored;
  if (!own) opened_.erase(block.opened_from);
  if (count_out(block)) free_in_file(block.in_file, block.region_bytes);
  // Addresses that the system did not let us take back are never used again.
  if (restored && !block.reserved) zone(block.kind).give(block.region, block.region_bytes + page);
  blocks_.erase(at);
}

cudaError_t Memory::allocate(Kind kind, int device, std::size_t bytes, void** address, bool exportable,
                             unsigned flags) {
  if (bytes == 0) {
    *address = nullptr;
    return cudaSuccess;
  }
  if (bytes > size_) return cudaErrorMemoryAllocation;
  const ContextChange alone;
  const LockGuard lock(mutex_);
  Block block;
  block.region_bytes = region_bytes_of(bytes);
  block.bytes = bytes;
  block.kind = kind;
  block.device = device;
  give_back_closed();
  if (kind != Kind::pinned && used_[account(block)] + block.region_bytes > device_bytes)
    return cudaErrorMemoryAllocation;
  block.id = next_id_++;
  block.exportable = exportable;
  block.flags = flags;
  return place(std::move(block), file_, address);
}

cudaError_t Memory::release(void* address, bool pinned) {
  if (!address) return cudaSuccess;
  const LockGuard lock(mutex_);
  const auto at = in_arena(address) ? blocks_.find(offset_of(address)) : blocks_.end();
  if (at == blocks_.end() || (at->second.kind == Kind::pinned) != pinned || !at->second.opened_from.empty() ||
      at->second.reserved)
    return cudaErrorInvalidValue;
  remove(at);
  return cudaSuccess;
}

void Memory::release_device(int device) {
  const LockGuard lock(mutex_);
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    const auto block = at++;
    if (holder(block->second) == device) remove(block);
  }
  std::erase_if(registered_, [device](const auto& entry) { return entry.second.device == device; });
  registered_count_ = registered_.size();
}

cudaError_t Memory::register_host(void* address, std::size_t bytes, int device, unsigned flags) {
  if (!address || bytes == 0 || in_arena(address)) return cudaErrorInvalidValue;
  const char* begin = static_cast<const char*>(address);
  const ContextChange alone;
  const LockGuard lock(mutex_);
  const auto next = registered_.lower_bound(begin);
  if (next != registered_.end() && next->first < begin + bytes) return cudaErrorHostMemoryAlreadyRegistered;
  if (next != registered_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > begin)
    return cudaErrorHostMemoryAlreadyRegistered;
  registered_.emplace(begin, Registered{bytes, device, flags});
  registered_count_ = registered_.size();
  return cudaSuccess;
}

cudaError_t Memory::unregister_host(void* address) {
  const ContextChange alone;
  const LockGuard lock(mutex_);
  if (registered_.erase(static_cast<const char*>(address)) == 0) return cudaErrorHostMemoryNotRegistered;
  registered_count_ = registered_.size();
  return cudaSuccess;
}

Memory::Blocks::const_iterator Memory::containing(const void* address) const {
  const std::size_t offset = offset_of(address);
  auto at = blocks_.upper_bound(offset);
  if (at == blocks_.begin()) return blocks_.end();
  --at;
  return offset - at->first < at->second.bytes ? at : blocks_.end();
}

Lookup Memory::find(const void* address) const {
  Lookup found;
  if (in_arena(address)) {
    const SharedLock lock(mutex_);
    const auto at = containing(address);
    if (at == blocks_.end()) return found;
    const Block& block = at->second;
    const bool exportable = block.exportable && block.opened_from.empty();
    return {block.kind, block.device, user_ + at->first, block.bytes, block.flags, block.id, exportable};
  }
  if (registered_count_.load(std::memory_order_relaxed) == 0) return found;
  const SharedLock lock(mutex_);
  auto at = registered_.upper_bound(static_cast<const char*>(address));
  if (at == registered_.begin()) return found;
  --at;
  if (static_cast<const char*>(address) >= at->first + at->second.bytes) return found;
  return {Kind::pinned, at->second.device, const_cast<char*>(at->first), at->second.bytes, at->second.flags, 0, false};
}

bool Memory::range_valid(const void* address, std::size_t bytes) const {
  if (!in_arena(address)) return true;
  const SharedLock lock(mutex_);
  const std::size_t end = offset_of(address) + bytes;
  auto at = containing(address);
  if (at == blocks_.end()) return false;
  while (at->first + at->second.bytes < end) {
    const auto next = std::next(at);
    const bool joined = next != blocks_.end() && next->second.reserved && at->second.reserved &&
                        next->first == at->first + at->second.bytes;
    if (!joined) return false;
    at = next;
  }
  return true;
}

std::size_t Memory::available(int device) {
  const LockGuard lock(mutex_);
  give_back_closed();
  const auto used = used_.find(device);
  return device_bytes - (used == used_.end() ? 0 : used->second);
}

cudaError_t Memory::export_handle(const void* address, cudaIpcMemHandle_t* handle) {
  const LockGuard lock(mutex_);
  if (!in_arena(address)) return cudaErrorInvalidValue;
  const auto holds = containing(address);
  if (holds == blocks_.end() || !holds->second.exportable || !holds->second.opened_from.empty())
    return cudaErrorInvalidValue;
  Block& block = blocks_.at(holds->first);
  if (block.exported < 0) block.exported = own_openings_.take();
  const Handle inside = {own_openings_.nonce(),
                         block.id,
                         block.region,
                         block.in_file,
                         block.bytes,
                         block.exported,
                         0,
                         getpid(),
                         file_,
                         block.device,
                         static_cast<std::int32_t>(block.kind)};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &inside, sizeof inside);
  return cudaSuccess;
}

/// Whether an earlier allocation of these addresses of the process is open for `device`.
bool Memory::has_older_open(const cudaIpcMemHandle_t& handle, int device) const {
  const Handle wanted = inside_of(handle.reserved);
  return std::ranges::any_of(opened_, [&](const auto& entry) REQUIRES_SHARED(mutex_) {
    const Handle open = inside_of(entry.first.data());
    return blocks_.at(entry.second).opened_for == device && open.nonce == wanted.nonce && open.id != wanted.id &&
           open.region < wanted.region + region_bytes_of(wanted.bytes) &&
           wanted.region < open.region + region_bytes_of(open.bytes);
  });
}

cudaError_t Memory::open_handle(const cudaIpcMemHandle_t& handle, int device, int devices, void** address) {
  const Handle inside = inside_of(handle.reserved);
  if (inside.process == getpid()) return cudaErrorDeviceUninitialized;  // as CUDA: not in the exporting process
  if (inside.device < 0 || inside.device >= devices) return cudaErrorInvalidDevice;
  const std::string key = std::string(handle.reserved, sizeof handle.reserved) + std::to_string(device);
  const ContextChange alone;
  const LockGuard lock(mutex_);
  if (const auto open = opened_.find(key); open != opened_.end()) {
    ++blocks_.at(open->second).openings;
    *address = user_ + open->second;
    return cudaSuccess;
  }
  if (has_older_open(handle, device)) return cudaErrorMapBufferObjectFailed;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", inside.process, inside.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  struct stat status = {};
  const bool right = file >= 0 && others_openings_.knows(file, inside.nonce) && fstat(file, &status) == 0 &&
                     inside.in_file + region_bytes_of(inside.bytes) <= static_cast<std::uint64_t>(status.st_size);
  cudaError_t error = cudaErrorMapBufferObjectFailed;
  if (right) {
    Block block;
    block.region_bytes = region_bytes_of(inside.bytes);
    block.in_file = inside.in_file;
    block.bytes = inside.bytes;
    block.kind = static_cast<Kind>(inside.kind);
    block.device = inside.device;
    block.id = next_id_++;
    block.opened_from = key;
    block.opened_for = device;
    block.openings = 1;
    error = place(std::move(block), file, address);
    if (error == cudaSuccess) opened_[key] = offset_of(*address);
  }
  if (file >= 0) close(file);
  return error;
}

cudaError_t Memory::close_handle(void* address) {
  const ContextChange alone;
  const LockGuard lock(mutex_);
  const auto at = in_arena(address) ? blocks_.find(offset_of(address)) : blocks_.end();
  if (at == blocks_.end() || at->second.opened_from.empty()) return cudaErrorInvalidValue;
  if (--at->second.openings == 0) remove(at);
  return cudaSuccess;
}

}  // namespace gpudt::sim
