// The buffers of one collective operation, staged where they are device memory.
//
// A wrapper declares each of its buffer arguments, gets back what to give to MPI in its place, and then runs the
// call, blocking or not. Inputs are packed before the call starts, so that collectives are issued in program order;
// outputs are unpacked after it has completed. Counts are unchanged (twin types), so that MPI chooses the same
// algorithm on ranks that stage and on ranks that do not.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "interpose/operation.hpp"

namespace gpudt::interpose {

/// Whether MPI reads a buffer argument, writes it, or both.
enum class Role { in, out, inout };

/// (buffer, datatype) as MPI is to see it.
struct Given {
  void* buffer;
  MPI_Datatype type;
};

/// The same with displacements, for the v forms.
struct GivenV {
  void* buffer;
  MPI_Datatype type;
  const int* displs;
};

/// The same with a type and a byte displacement for each block, for the w forms.
template <class Displacement>
struct GivenW {
  void* buffer;
  const MPI_Datatype* types;
  const Displacement* displs;
};

class Collective {
 public:
  Collective(const char* call, MPI_Comm comm);
  ~Collective();

  /// `count` elements. MPI_IN_PLACE and host memory are given back unchanged. May throw device::Error.
  Given buffer(Role role, const void* address, std::int64_t count, MPI_Datatype type);
  /// The same for a reduction: MPI sees the user's own layout, which its operator needs.
  Given reduction(Role role, const void* address, std::int64_t count, MPI_Datatype type);
  /// `blocks` blocks of counts[i] elements, displs[i] extents from the address.
  GivenV buffer_v(Role role, const void* address, int blocks, const int* counts, const int* displs, MPI_Datatype type);
  /// `blocks` blocks of counts[i] elements of types[i], displs[i] bytes from the address.
  template <class Displacement>
  GivenW<Displacement> buffer_w(Role role, const void* address, int blocks, const int* counts,
                                const Displacement* displs, const MPI_Datatype* types);

  /// Runs `blocking()`.
  template <class Blocking>
  int run(Blocking blocking) {
    wait_inputs();
    const int code = blocking();
    if (code == MPI_SUCCESS) finish_outputs();
    return code;
  }

  /// Runs `blocking()`, or `nonblocking(request)` if the user wants a request.
  template <class Blocking, class Nonblocking>
  int run(MPI_Request* request, Blocking blocking, Nonblocking nonblocking) {
    return request == nullptr ? run(blocking) : start(request, nonblocking);
  }

  /// Runs `nonblocking(request)`.
  template <class Nonblocking>
  int start(MPI_Request* request, Nonblocking nonblocking) {
    wait_inputs();
    if (!staged()) return nonblocking(request);
    MPI_Request inner = MPI_REQUEST_NULL;
    const int code = nonblocking(&inner);
    return code == MPI_SUCCESS ? submit(inner, request) : code;
  }

  /// For a caller that finishes the call itself: what is staged, inputs packed; null if nothing is. Outputs are
  /// unpacked by start_unpack() of any number of bytes.
  std::shared_ptr<Payload> hand_over();

 private:
  class Buffers;
  bool staged() const;
  void wait_inputs();
  void finish_outputs();
  int submit(MPI_Request inner, MPI_Request* request);
  void* stage(Role role, const Operand& operand);

  const char* call_;
  MPI_Comm comm_;
  std::shared_ptr<Buffers> buffers_;
};

// --- who takes part --------------------------------------------------------------------------------------------------

/// Blocks in the v-shaped buffers of a collective: processes in the group, in the remote group of an intercommunicator.
int collective_peers(MPI_Comm comm);
/// Blocks that a process gives and gets in an exchange.
struct Blocks {
  int out_of;
  int into;
};
/// Those of a neighbourhood collective, one for each neighbour (MPI-4.1 section 8.6); none without a topology.
Blocks neighbours(MPI_Comm comm);
/// This process gives to, or gets from, all others as the root.
bool is_root(MPI_Comm comm, int root);
/// This process is one of those that the root serves; the root of an intracommunicator serves itself.
bool is_served(MPI_Comm comm, int root);

}  // namespace gpudt::interpose
