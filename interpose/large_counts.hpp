// Arguments of the large-count functions of MPI-4 (suffix _c) as the functions with int counts take them, for the
// generated wrappers (scripts/generate_large_counts.py). Host buffers whose counts are too large for int go to MPI as
// they are. With device memory, so many elements of a datatype become one of a datatype of so many; counts that must
// stay what they are (of the v and w forms, of reductions) are refused.
#pragma once

#include <mpi.h>

#include <initializer_list>
#include <limits>
#include <vector>

#include "interpose/collective.hpp"
#include "interpose/operation.hpp"

namespace gpudt::interpose {

constexpr bool fits(MPI_Count value) {
  return value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max();
}

/// Some buffer lies in device memory.
bool any_on_device(std::initializer_list<const void*> buffers);

/// MPI_ERR_COUNT, through the error handler of MPI_COMM_WORLD.
int too_large(const char* call);

int local_size(MPI_Comm comm);

/// `count` elements of a datatype.
class Elements {
 public:
  Elements(MPI_Count count, MPI_Datatype type) : count_(count), type_(type) {}
  ~Elements();
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;

  bool small() const { return fits(count_); }
  /// Makes one element of them if they are not small().
  void make();
  int count() const { return made_ != MPI_DATATYPE_NULL ? 1 : static_cast<int>(count_); }
  MPI_Datatype type() const { return made_ != MPI_DATATYPE_NULL ? made_ : type_; }

 private:
  MPI_Count count_;
  MPI_Datatype type_;
  MPI_Datatype made_ = MPI_DATATYPE_NULL;
};

/// The same array for the life of the process: MPI may read that of a pending call, and there is no telling when the
/// call is complete. Programs use few different ones.
const int* lasting(std::vector<int> array);

/// An array of counts or displacements; empty if MPI does not read it.
template <bool nonblocking>
class Narrow {
 public:
  template <class Wide, class Length>
  Narrow(const Wide* wide, MPI_Comm comm, Length length) {
    const int n = wide == nullptr || comm == MPI_COMM_NULL ? 0 : length();
    for (int i = 0; i < n; ++i) {
      fits_ = fits_ && interpose::fits(wide[i]);
      ints_.push_back(static_cast<int>(wide[i]));
    }
    if (nonblocking && n > 0) lasting_ = lasting(ints_);
  }
  bool fits() const { return fits_; }
  const int* data() const { return nonblocking ? lasting_ : ints_.data(); }

 private:
  bool fits_ = true;
  std::vector<int> ints_;
  const int* lasting_ = nullptr;
};

/// A place in a buffer, which the call moves on.
template <class Narrowed>
class NarrowPlace {
 public:
  explicit NarrowPlace(MPI_Count* wide) : wide_(wide), narrow_(static_cast<Narrowed>(*wide)) {}
  ~NarrowPlace() {
    if (used_) *wide_ = narrow_;
  }
  NarrowPlace(const NarrowPlace&) = delete;
  NarrowPlace& operator=(const NarrowPlace&) = delete;
  bool fits() const { return narrow_ == *wide_; }
  Narrowed* place() {
    used_ = true;
    return &narrow_;
  }

 private:
  MPI_Count* wide_;
  Narrowed narrow_;
  bool used_ = false;
};

}  // namespace gpudt::interpose
