// A stretch of memory that a call reads or writes, in some kind of memory, and its double on the host: the same call on
// the double, under its PMPI_ name, says what the memory must hold afterwards.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/mpi_harness.hpp"

namespace gpudt::test {

class Region {
 public:
  /// `count` elements of `type`, `displ` bytes from the address that MPI is given.
  struct Block {
    MPI_Aint displ;
    std::int64_t count;
    MPI_Datatype type;
    bool undefined = false;  ///< the call may leave anything in it
  };

  /// The types must be committed, and may be freed afterwards. `skew` shifts the
  /// alignment of the address.
  Region(Place place, const std::vector<Block>& blocks, std::size_t skew = 0);

  /// Another pattern for each key, in the data as in gaps and guards.
  void fill(std::uint64_t key);
  /// Replaces the data by packed ones, in the order of the type maps.
  void put(const Stream& packed);

  /// The data as fill() left them, packed in the order of the blocks.
  Stream packed() const;
  /// The data may be these as well as what the double holds, until fill().
  void accept(const Stream& packed);

  void* address() const { return memory_.data() + origin_; }
  void* reference() { return reference_.data() + origin_; }

  /// Empty if the data are what the double holds, and all other bytes as they were; else the first difference.
  std::string difference() const;
  /// The same, but the data may be anything.
  std::string difference_outside() const;

 private:
  void unpack(std::vector<char>& image, const Stream& packed) const;
  void mark(bool undefined, std::vector<char>& bytes) const;
  bool differs(const std::vector<char>& found, const std::vector<char>& wanted, bool data_too) const;
  std::string compare(const std::vector<char>& wanted, bool data_too) const;

  std::vector<Block> blocks_;
  std::size_t packed_bytes_ = 0;
  std::ptrdiff_t origin_ = 0;
  std::vector<char> initial_, reference_, accepted_;
  std::vector<char> is_data_, is_undefined_;  ///< for each byte of the memory, 0 or 1
  Memory memory_;
};

}  // namespace gpudt::test
