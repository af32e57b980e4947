// The simulated device's virtual memory management: addresses that are reserved, and physical memory that is mapped
// there. Memory whose handle may be a file descriptor is a memory object of its own, which ends with a page that says
// whose it is.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "device/sim/context_lock.hpp"
#include "device/sim/memory.hpp"

namespace gpudt::sim {

struct ObjectTail {
  std::uint64_t magic, bytes;
  std::int64_t device;
  std::atomic<std::uint32_t> foreign;  ///< mappings in other processes
};

namespace {

constexpr std::size_t physical_granularity = std::size_t{2} << 20;
constexpr char handle_name[] = "gpudt-sim-handle";
constexpr std::uint64_t handle_magic = 0x6770756474736d68;

ObjectTail* map_tail(int file, std::size_t bytes) {
  void* const tail = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(bytes));
  return tail == MAP_FAILED ? nullptr : static_cast<ObjectTail*>(tail);
}

}  // namespace

int make_object(std::size_t bytes, int device) {
  const int file = memfd_create(handle_name, MFD_CLOEXEC);
  const ObjectTail tail = {handle_magic, bytes, device, 0};
  if (file >= 0 && (ftruncate(file, static_cast<off_t>(bytes + page)) != 0 ||
                    pwrite(file, &tail, sizeof tail, static_cast<off_t>(bytes)) != sizeof tail)) {
    close(file);
    return -1;
  }
  return file;
}

int device_of_object(int file, std::size_t* bytes) {
  struct stat status = {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= static_cast<off_t>(page)) return -1;
  ObjectTail tail{};
  const auto size = static_cast<std::size_t>(status.st_size) - page;
  if (pread(file, &tail, sizeof tail, static_cast<off_t>(size)) != sizeof tail || tail.magic != handle_magic ||
      tail.bytes != size)
    return -1;
  *bytes = size;
  return static_cast<int>(tail.device);
}

cudaError_t Memory::reserve(std::size_t bytes, std::size_t alignment, void** address) {
  if (bytes > size_) return cudaErrorMemoryAllocation;
  const LockGuard lock(mutex_);
  std::size_t taken = 0;
  if (!device_zone_.take(bytes + alignment + page, &taken)) return cudaErrorMemoryAllocation;
  const auto base = reinterpret_cast<std::size_t>(user_);
  const std::size_t offset = round_up(base + taken, alignment) - base;
  // What lies around it, but for the guard page, is free again.
  if (offset > taken) device_zone_.give(taken, offset - taken);
  if (offset < taken + alignment) device_zone_.give(offset + bytes + page, taken + alignment - offset);
  reserved_[offset] = bytes;
  *address = user_ + offset;
  return cudaSuccess;
}

cudaError_t Memory::unreserve(void* address, std::size_t bytes) {
  const LockGuard lock(mutex_);
  const auto at = in_arena(address) ? reserved_.find(offset_of(address)) : reserved_.end();
  if (at == reserved_.end() || at->second != bytes) return cudaErrorInvalidValue;
  const auto mapped = blocks_.lower_bound(at->first);
  if (mapped != blocks_.end() && mapped->first < at->first + bytes) return cudaErrorInvalidValue;
  device_zone_.give(at->first, bytes + page);
  reserved_.erase(at);
  return cudaSuccess;
}

cudaError_t Memory::map(void* address, std::size_t bytes, int device, const Object& object) {
  const ContextChange alone;
  const LockGuard lock(mutex_);
  if (!in_arena(address)) return cudaErrorInvalidValue;
  const std::size_t offset = offset_of(address);
  auto range = reserved_.upper_bound(offset);
  if (range == reserved_.begin()) return cudaErrorInvalidValue;
  --range;
  if (offset + bytes > range->first + range->second) return cudaErrorInvalidValue;
  const auto next = blocks_.lower_bound(offset);
  if (next != blocks_.end() && next->first < offset + bytes) return cudaErrorInvalidValue;
  if (next != blocks_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > offset)
    return cudaErrorInvalidValue;
  if (!object.foreign && used_[device] + bytes > device_bytes) return cudaErrorMemoryAllocation;
  ObjectTail* const tail = object.file >= 0 ? map_tail(object.file, bytes) : nullptr;
  if (object.file >= 0 && (tail == nullptr || !map_file(offset, bytes, object.file, 0))) {
    if (tail != nullptr) munmap(tail, page);
    return cudaErrorMemoryAllocation;
  }
  Block block;
  block.region = block.in_file = offset;
  block.region_bytes = block.bytes = bytes;
  block.kind = Kind::device;
  block.device = device;
  block.id = next_id_++;
  block.reserved = true;
  block.object = object;
  block.tail = tail;
  if (object.foreign) tail->foreign.fetch_add(1);
  if (!object.foreign) used_[device] += bytes;
  blocks_.emplace(offset, std::move(block));
  return cudaSuccess;
}

std::pair<Memory::Blocks::iterator, Memory::Blocks::iterator> Memory::mappings(void* address, std::size_t bytes) {
  const std::pair<Blocks::iterator, Blocks::iterator> none = {blocks_.end(), blocks_.end()};
  if (!in_arena(address)) return none;
  std::size_t offset = offset_of(address);
  const std::size_t end = offset + bytes;
  const auto first = blocks_.find(offset);
  auto last = first;
  while (offset < end) {
    if (last == blocks_.end() || last->first != offset || !last->second.reserved) return none;
    offset += last->second.bytes;
    ++last;
  }
  return offset == end ? std::pair(first, last) : none;
}

cudaError_t Memory::allow(void* address, std::size_t bytes) {
  const ContextChange alone;
  const LockGuard lock(mutex_);
  const auto [first, last] = mappings(address, bytes);
  if (first == last) return cudaErrorInvalidValue;
  for (auto at = first; at != last; ++at)
    if (!protect(at->second, true)) return cudaErrorMemoryAllocation;
  return cudaSuccess;
}

cudaError_t Memory::unmap(void* address, std::size_t bytes) {
  const ContextChange alone;
  const LockGuard lock(mutex_);
  const auto [first, last] = mappings(address, bytes);
  if (first == last) return cudaErrorInvalidValue;
  for (auto at = first; at != last;) remove(at++);
  return cudaSuccess;
}

cudaError_t Memory::map_objects(std::size_t count, const int* files, const std::size_t* sizes, void** address) {
  std::size_t bytes = 0, mapped = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += sizes[i];
  void* reserved = nullptr;
  if (const cudaError_t error = reserve(bytes, physical_granularity, &reserved)) return error;
  auto* const begin = static_cast<char*>(reserved);
  cudaError_t error = cudaSuccess;
  for (std::size_t i = 0; i < count && error == cudaSuccess; ++i) {
    std::size_t there = 0;
    const int device = device_of_object(files[i], &there);
    error = device < 0 || there != sizes[i] ? cudaErrorMapBufferObjectFailed
                                            : map(begin + mapped, sizes[i], device, {files[i], /*foreign=*/true});
    if (error == cudaSuccess) mapped += sizes[i];
  }
  if (error == cudaSuccess) error = allow(begin, bytes);
  if (error == cudaSuccess) {
    *address = reserved;
    return error;
  }
  if (mapped != 0) unmap(begin, mapped);
  unreserve(reserved, bytes);
  return error;
}

/// An object is no longer mapped. As in CUDA, its memory is not free while others have it mapped.
void Memory::count_out_object(const Block& block) {
  if (block.object.foreign) {
    block.tail->foreign.fetch_sub(1);
    munmap(block.tail, page);
  } else {
    lingering_objects_.push_back(block);
    give_back_objects();
  }
}

void Memory::give_back_objects() {
  std::erase_if(lingering_objects_, [&](const Block& block) REQUIRES(mutex_) {
    if (block.tail->foreign.load() != 0) return false;
    used_[block.device] -= block.region_bytes;
    munmap(block.tail, page);
    return true;
  });
}

bool Memory::piece(const void* address, Lookup& found, int& file) const {
  if (!in_arena(address)) return false;
  const SharedLock lock(mutex_);
  const auto at = containing(address);
  if (at == blocks_.end() || at->second.object.file < 0 || at->second.object.foreign) return false;
  const Block& block = at->second;
  found = {block.kind, block.device, user_ + at->first, block.bytes, block.flags, block.id, false};
  file = block.object.file;
  return true;
}

}  // namespace gpudt::sim
