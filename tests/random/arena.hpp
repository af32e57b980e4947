// Buffers of one round in one piece of memory, with guard zones between them, and beside it what it should hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/mpi_harness.hpp"

namespace gpudt::test {

class Arena {
 public:
  explicit Arena(Place place) : place_(place) {}

  void clear(bool release);
  /// Room for the bytes from `low` to `high`, seen from a buffer's address: the offset of that address, which may lie
  /// outside. `skew` shifts the alignment.
  std::ptrdiff_t reserve(std::int64_t low, std::int64_t high, int skew);
  void prepare(std::uint64_t key);
  void upload();
  void download();

  char* address(std::ptrdiff_t offset) { return memory_->data() + offset; }
  char* image(std::ptrdiff_t offset) { return image_.data() + offset; }
  const char* found(std::ptrdiff_t offset) const { return found_.data() + offset; }
  /// These bytes may hold anything: nothing is known of them after an error.
  void ignore(std::ptrdiff_t from, std::ptrdiff_t to) { ignored_.emplace_back(from, to); }
  /// Empty, or the first wrong byte; adds the number of wrong ones.
  std::string difference(std::size_t& wrong) const;

 private:
  Place place_;
  std::size_t used_ = 0;
  std::vector<char> image_, found_;
  std::vector<std::pair<std::ptrdiff_t, std::ptrdiff_t>> ignored_;
  std::optional<Memory> memory_;
};

}  // namespace gpudt::test
