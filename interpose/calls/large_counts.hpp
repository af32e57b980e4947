// Counts of the large-count functions of MPI-4 (suffix _c) as the functions with int counts take them, for the
// generated wrappers (scripts/generate/large_counts.py). Host buffers whose counts are too large for int go to MPI as
// they are. For device memory, a count beyond int becomes one element of a new contiguous datatype.
#pragma once

#include <mpi.h>

#include <initializer_list>
#include <limits>

#include "interpose/requests/operation.hpp"

namespace gpudt::interpose {

constexpr bool fits(MPI_Count value) {
  return value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max();
}

/// Whether any of the buffers may lie in device memory; with MPI_BOTTOM one may.
bool any_on_device(std::initializer_list<const void*> buffers);

/// Whether a receive needs gpudt: a buffer may lie in device memory, or an RTS may arrive in host memory.
bool any_on_device_or_rts(std::initializer_list<const void*> buffers);

/// Raises MPI_ERR_DISP on MPI_COMM_WORLD, for a displacement unit beyond int, and returns it.
int too_large(const char* call);

/// `count` elements of a datatype, with an int count for MPI.
class Elements {
 public:
  Elements(MPI_Count count, MPI_Datatype type) : count_(count), type_(type) {}
  ~Elements();
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;

  bool small() const { return fits(count_); }
  /// Makes a datatype of all of them, which the object owns, if they are not small().
  void make();
  int count() const { return made_ != MPI_DATATYPE_NULL ? 1 : static_cast<int>(count_); }
  MPI_Datatype type() const { return made_ != MPI_DATATYPE_NULL ? made_ : type_; }

 private:
  MPI_Count count_;
  MPI_Datatype type_;
  MPI_Datatype made_ = MPI_DATATYPE_NULL;
};

}  // namespace gpudt::interpose
