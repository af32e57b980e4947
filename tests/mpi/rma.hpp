// What the tests of one-sided communication share: areas of memory with guards, every kind of epoch, and every kind
// of access, as tables that tests run through.
//
// The oracle is a model: what each access does to streams of packed integers, with MPI_Pack and MPI_Unpack on host
// copies for the layouts.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/mpi_harness.hpp"
#include "tests/support/mpi_quirks.hpp"

namespace gpudt::test {

/// `count` elements of `type`: one side of an access.
struct Side {
  Type type;
  int count;
  std::string text() const { return std::to_string(count) + " x " + type.text(); }
};

/// Memory around a side's bytes, with guards and gaps.
class Area {
 public:
  Area(Place place, const Side& side);
  void fill(std::uint64_t key);  ///< every byte
  std::vector<char> read() const;
  void* address() const { return memory_.data() + image_.origin(); }  ///< the side's buffer argument
  MPI_Aint displacement() const { return image_.origin(); }           ///< the same in a window over all of the area
  char* base() const { return memory_.data(); }
  MPI_Aint bytes() const { return static_cast<MPI_Aint>(memory_.bytes()); }

 private:
  Image image_;
  Memory memory_;
};

/// A window over all of an area, with MPI_ERRORS_RETURN; displacements in bytes.
class AreaWindow {
 public:
  explicit AreaWindow(const Area& area);
  ~AreaWindow();
  AreaWindow(const AreaWindow&) = delete;
  AreaWindow& operator=(const AreaWindow&) = delete;
  operator MPI_Win() const { return window_; }  // NOLINT(google-explicit-constructor): stands in for the handle

 private:
  MPI_Win window_ = MPI_WIN_NULL;
};

/// Whether the MPI library has windows over memory of the program's: Open MPI 4.1 has none between processes for which
/// it knows no remote memory access, as with btl_vader_single_copy_mechanism=none, nor of one process. Collective when
/// asked first.
bool mpi_has_windows();
/// Of basic_places, where the memory of a window may lie on all ranks.
std::vector<Place> window_places();

/// How an access epoch towards `target` begins and ends. After `complete` the origin's buffers are the program's
/// again; after `close`, and a barrier, the data is at the target.
struct Epoch {
  const char* name;
  bool passive;
  bool completes_early;  ///< `complete` does something
  void (*open)(MPI_Win, int target, int origin);
  void (*complete)(MPI_Win, int target);
  void (*close)(MPI_Win, int target);
};
extern const std::vector<Epoch> epochs;

int right_neighbour();
int left_neighbour();

/// The arguments of an access: all that any of the calls needs.
struct Access {
  const void* origin;
  const void* compare;
  void* result;
  const Side& origin_side;
  int target;
  MPI_Aint displacement;
  const Side& target_side;
  MPI_Win window;
};

struct AccessCall {
  const char* name;
  bool with_request;  ///< only in a passive epoch
  bool single;        ///< moves one element of a predefined type
  bool fetches;       ///< writes to the result by way of an accumulate
  int (*start)(const Access&, MPI_Request*);
  /// What it does to one integer of each buffer.
  void (*model)(int origin, int compare, int& target, int& result);
};
extern const std::vector<AccessCall> access_calls;

/// Pairs of sides with equal signatures of 32-bit integers: contiguous and not, on either side.
std::vector<std::pair<Side, Side>> integer_sides(int elements);
/// What MPI_Put of a side filled with `key` makes of an area filled with `before`.
std::vector<char> after_put(const Side& target, std::uint64_t before, const Side& origin, std::uint64_t key);

/// MPI_Put of an area.
inline int put(const Area& out, const Side& origin, int rank, MPI_Aint displacement, const Side& target,
               MPI_Win window) {
  return MPI_Put(out.address(), origin.count, origin.type, rank, displacement, target.count, target.type, window);
}

}  // namespace gpudt::test

/// Ends a test case of windows that are the MPI library's own, where it has none.
#define NEEDS_WINDOWS_OF_MPI \
  if (!gpudt::test::mpi_has_windows()) return gpudt::test::not_possible("it has no windows here")
