#include "interpose/transport/lazy_room.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"

namespace gpudt::interpose {
namespace {

constexpr std::size_t least_room = 128 << 10;
/// Number of each length that are kept, because mmap and the first page fault take some microseconds.
constexpr std::size_t most_kept = 64;
/// Bytes at the beginning whose pages are kept, since an RTS comes there.
constexpr std::size_t pages_kept = 4096;

Mutex kept_mutex;
auto& kept GUARDED_BY(kept_mutex) = never_destroyed<std::map<std::size_t, std::vector<std::byte*>>>();

std::byte* take_kept(std::size_t bytes) {
  const LockGuard lock(kept_mutex);
  std::vector<std::byte*>& rooms = kept[bytes];
  rooms.reserve(most_kept);  // so that keep() does not allocate
  if (rooms.empty()) return nullptr;
  std::byte* const data = rooms.back();
  rooms.pop_back();
  return data;
}

bool keep(std::byte* data, std::size_t bytes) {
  const LockGuard lock(kept_mutex);
  const auto rooms = kept.find(bytes);
  if (rooms == kept.end() || rooms->second.size() == most_kept) return false;
  rooms->second.push_back(data);
  return true;
}

}  // namespace

LazyRoom LazyRoom::of(std::size_t bytes) {
  LazyRoom room;
  room.bytes_ = std::bit_ceil(std::max(bytes, least_room));
  room.data_ = take_kept(room.bytes_);
  if (room.data_ != nullptr) return room;
  void* const made =
      mmap(nullptr, room.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return LazyRoom();
  madvise(made, room.bytes_, MADV_DONTDUMP);
  room.data_ = static_cast<std::byte*>(made);
  return room;
}

void LazyRoom::give_back() noexcept {
  if (written_ > pages_kept) madvise(data_ + pages_kept, bytes_ - pages_kept, MADV_DONTNEED);
  if (!keep(data_, bytes_)) munmap(data_, bytes_);
}

void LazyRoom::swap(LazyRoom& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(written_, other.written_);
}

void lazy_rooms_stop() {
  const LockGuard lock(kept_mutex);
  for (const auto& [bytes, rooms] : kept)
    for (std::byte* const data : rooms) munmap(data, bytes);
  kept.clear();
}

}  // namespace gpudt::interpose
