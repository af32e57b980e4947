#include "device/sim/openings.hpp"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>

namespace gpudt::sim {
namespace {

constexpr std::uint64_t object_magic = 0x6770756474736d32;

ObjectHead* map_head(int file) {
  void* const address = mmap(nullptr, ObjectHead::bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return address == MAP_FAILED ? nullptr : static_cast<ObjectHead*>(address);
}

}  // namespace

bool OwnOpenings::make(int file) {
  head_ = map_head(file);
  if (head_ == nullptr || getrandom(&head_->nonce, sizeof head_->nonce, 0) != sizeof head_->nonce) return false;
  head_->magic = object_magic;
  return true;
}

OpeningIndex OwnOpenings::take() {
  if (!idle_.empty()) {
    const OpeningIndex index = idle_.back();
    idle_.pop_back();
    return index;
  }
  return taken_ < ObjectHead::count ? static_cast<OpeningIndex>(taken_++) : -1;
}

bool OwnOpenings::lingers(const Lingering& freed) {
  if (freed.index < 0) return false;
  if (counter(freed.index).load() == 0) {
    idle_.push_back(freed.index);
    return false;
  }
  lingering_.push_back(freed);
  return true;
}

bool OwnOpenings::lingers_at(std::size_t in_file, std::size_t bytes) const {
  return std::any_of(lingering_.begin(), lingering_.end(), [&](const Lingering& each) {
    return each.in_file < in_file + bytes && in_file < each.in_file + each.bytes;
  });
}

std::vector<OwnOpenings::Lingering> OwnOpenings::take_closed() {
  std::vector<Lingering> closed;
  std::erase_if(lingering_, [&](const Lingering& each) {
    if (counter(each.index).load() != 0) return false;
    idle_.push_back(each.index);
    closed.push_back(each);
    return true;
  });
  return closed;
}

bool OthersOpenings::knows(int file, std::uint64_t nonce) {
  if (heads_.contains(nonce)) return true;
  ObjectHead* const head = map_head(file);
  if (head == nullptr) return false;
  if (head->magic != object_magic || head->nonce != nonce) {
    munmap(head, ObjectHead::bytes);
    return false;
  }
  heads_[nonce] = head;
  return true;
}

void OthersOpenings::opened(std::uint64_t nonce, OpeningIndex index) {
  if (index >= 0) heads_.at(nonce)->openings[static_cast<std::size_t>(index)].fetch_add(1);
}

void OthersOpenings::closed(std::uint64_t nonce, OpeningIndex index) {
  if (index >= 0) heads_.at(nonce)->openings[static_cast<std::size_t>(index)].fetch_sub(1);
}

}  // namespace gpudt::sim
