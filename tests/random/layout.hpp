// Datatypes of the randomised program, with their type maps: what a message should hold is computed without MPI.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/random/session.hpp"
#include "tests/support/random_type.hpp"

namespace gpudt::test {

/// `count` elements of a datatype. Move-only; frees a derived type.
class Layout {
 public:
  /// `bytes` bytes as MPI_BYTE, arranged at random; nothing overlaps, and elements do not interleave.
  static Layout of_bytes(Dice& dice, std::int64_t bytes);
  /// The same, as one element, however many are used of it.
  static Layout element_of_bytes(Dice& dice, std::int64_t bytes);
  /// Elements of a random datatype of any signature, to be received as MPI_PACKED, or sent as such if `receivable`.
  static Layout random(Dice& dice, bool receivable);
  static Layout packed(std::int64_t bytes);
  static Layout plain(std::int64_t bytes);  ///< MPI_BYTE
  ~Layout();
  Layout(Layout&& other) noexcept;
  Layout& operator=(Layout&& other) noexcept;

  MPI_Datatype type() const { return type_; }
  int count() const { return count_; }
  const std::string& text() const { return text_; }
  std::int64_t element_size() const { return size_; }
  std::int64_t extent() const { return extent_; }
  std::int64_t bytes() const { return size_ * count_; }
  /// First byte, and one past the last one, that `count` elements touch, from the buffer's address; 0 if none.
  std::int64_t low(std::int64_t count) const;
  std::int64_t high(std::int64_t count) const;
  std::int64_t low() const { return low(count_); }
  std::int64_t high() const { return high(count_); }
  /// Packs `stream.size()` bytes from `base`, or unpacks them there; possibly fewer than the elements have.
  void gather(const char* base, std::vector<char>& stream) const;
  void scatter(char* base, const std::vector<char>& stream) const;
  /// MPI_Type_free now: what is under way goes on, says MPI.
  void free_type();

 private:
  Layout() = default;
  void set_one_map(std::vector<MapRun> map, std::int64_t extent);
  /// Calls visit(displacement, length) for the runs that hold the first `bytes` bytes.
  template <class Visit>
  void for_each_run(std::int64_t bytes, Visit&& visit) const;

  MPI_Datatype type_ = MPI_BYTE;
  bool owned_ = false;
  int count_ = 0;
  std::string text_;
  std::vector<MapRun> map_;
  std::int64_t size_ = 0, extent_ = 0, low_ = 0, high_ = 0;
};

/// A buffer in an arena.
struct Spot {
  Arena* arena = nullptr;
  std::ptrdiff_t offset = 0;
  char* address() const { return arena->address(offset); }
  char* image() const { return arena->image(offset); }
  const char* found() const { return arena->found(offset); }
};

/// Reserves memory for the layout.
Spot reserve(Context& context, Place place, const Layout& layout, std::int64_t count, int skew = 0);

}  // namespace gpudt::test
