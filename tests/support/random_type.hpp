// Random MPI datatypes: trees of every combiner of MPI-3.1, with what the standard says they mean.
//
// Beside the MPI datatype each tree carries its type map, expanded run by run straight from the definitions in
// MPI-3.1 chapter 4: an oracle that depends on neither gpudt nor the MPI library's own pack (extents apart, which
// the library pads as it likes).
#pragma once

#include <mpi.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace gpudt::test {

struct RandomTypeLimits {
  int depth = 5;                 ///< combiners on the longest path
  std::int64_t max_span = 4096;  ///< bytes from the lowest to the highest byte touched, lb, ub and 0, of one element
  std::int64_t max_runs = 1000;  ///< contiguous runs of one element
  int max_blocks = 8;            ///< most blocks of one combiner
  bool unpack_safe = false;      ///< no two bytes of a message of any count coincide
  bool large_counts = false;     ///< most constructors in their form with large counts (MPI-4)
  bool mpi_bugs = false;         ///< also types that Open MPI gets wrong itself (see RandomType::mpi_bug)
};

/// Contiguous bytes of a type map.
struct MapRun {
  std::int64_t displ;
  std::int64_t length;
};

/// A committed datatype; freed with the object. Must not outlive MPI.
class RandomType {
 public:
  /// Reproducible: the same state of `random` and the same limits make the same tree.
  RandomType(std::mt19937_64& random, const RandomTypeLimits& limits);
  ~RandomType();
  RandomType(RandomType&& other) noexcept;
  RandomType& operator=(RandomType&&) = delete;

  MPI_Datatype handle() const { return handle_; }
  /// How it was made, on one line: "vector(3,2,-4, resized(-8,32, INT))".
  const std::string& description() const { return description_; }
  /// The bytes of one element in packing order, neighbours joined.
  const std::vector<MapRun>& map() const { return map_; }
  std::int64_t size() const { return size_; }  ///< packed bytes of one element
  std::int64_t lb() const { return lb_; }
  std::int64_t extent() const { return extent_; }  ///< may be negative or less than the true extent
  /// The lowest byte that `count` elements touch and one past the highest, from the buffer's address; 0 if none.
  std::int64_t low(std::int64_t count) const;
  std::int64_t high(std::int64_t count) const;
  /// Two bytes of a message may coincide: not to be received or unpacked into.
  bool overlaps() const { return overlaps_; }
  /// Why MPI_Pack may not be trusted with this type; nullptr if it may. Found in Open MPI 4.1.4:
  /// a vector or hvector whose blocks start -1 byte apart is taken to be contiguous, and so is a message of more than
  /// one element whose bounds a struct member without bytes has moved.
  const char* mpi_bug() const { return mpi_bug_; }

 private:
  MPI_Datatype handle_ = MPI_DATATYPE_NULL;
  bool owned_ = false;  ///< predefined types are not
  std::string description_;
  std::vector<MapRun> map_;
  std::int64_t size_ = 0, lb_ = 0, extent_ = 0, low_ = 0, high_ = 0;
  bool overlaps_ = false;
  const char* mpi_bug_ = nullptr;
};

}  // namespace gpudt::test
