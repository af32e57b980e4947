#include "tests/random/arena.hpp"

#include <algorithm>

#include "tests/random/session.hpp"

namespace gpudt::test {
namespace {

constexpr std::size_t guard_bytes = 64, alignment = 64;

}  // namespace

void Arena::clear(bool release) {
  used_ = 0;
  ignored_.clear();
  if (release) memory_.reset();
}

std::ptrdiff_t Arena::reserve(std::int64_t low, std::int64_t high, int skew) {
  const std::size_t begin = used_ + guard_bytes + static_cast<std::size_t>(skew);
  used_ = (begin + static_cast<std::size_t>(high - low) + guard_bytes + alignment - 1) / alignment * alignment;
  return static_cast<std::ptrdiff_t>(begin) - low;
}

void Arena::prepare(std::uint64_t key) {
  image_.resize(used_);
  fill_pattern(image_.data(), image_.size(), mix(key, static_cast<std::uint64_t>(place_)));
  if (used_ != 0 && (!memory_ || memory_->bytes() < used_)) {
    memory_.reset();
    memory_.emplace(place_, used_);
  }
}

void Arena::upload() {
  if (used_ != 0) memory_->write(image_.data(), used_);
}

void Arena::download() {
  found_.resize(used_);
  if (used_ != 0) memory_->read(found_.data(), used_);
}

std::string Arena::difference(std::size_t& wrong) const {
  std::vector<char> found = found_;
  for (const auto& [from, to] : ignored_) std::copy(image_.begin() + from, image_.begin() + to, found.begin() + from);
  const auto [here, there] = std::mismatch(found.begin(), found.end(), image_.begin());
  if (here == found.end()) return "";
  for (std::size_t i = 0; i < found.size(); ++i) wrong += found[i] != image_[i] ? 1 : 0;
  return std::string(place_name(place_)) + " memory, offset " + std::to_string(here - found.begin()) + ": found " +
         std::to_string(static_cast<unsigned char>(*here)) + ", expected " +
         std::to_string(static_cast<unsigned char>(*there));
}

}  // namespace gpudt::test
