// The buffers of one collective operation, staged where they are device memory.
//
// A wrapper declares each of its buffer arguments, gets back what to give to MPI in its place, and then runs the call:
// blocking, nonblocking or persistent. Inputs are packed before the call starts, so that collectives are issued in
// program order; outputs are unpacked after it has completed. MPI gets the packed type with the program's count, so it
// chooses the same algorithm on ranks that stage and on ranks that do not.
#pragma once

#include <mpi.h>

#include <bitset>
#include <memory>
#include <type_traits>
#include <vector>

#include "interpose/requests/operation.hpp"
#include "interpose/support/report.hpp"

namespace gpudt::interpose {

/// Whether MPI reads a buffer argument, writes it, or both.
enum class Role { in, out, inout };

/// (buffer, datatype) as MPI is to see it.
struct Given {
  void* buffer;
  MPI_Datatype type;
};

/// (buffer, datatype, displacements) as MPI is to see them, for the v forms.
template <class Displacement>
struct GivenV {
  void* buffer;
  MPI_Datatype type;
  const Displacement* displs;
};

/// A buffer with a type and a byte displacement for each block, as MPI is to see them, for the w forms.
template <class Displacement>
struct GivenW {
  void* buffer;
  const MPI_Datatype* types;
  const Displacement* displs;
};

/// The most dimensions of a cartesian grid on which neighbourhood collectives work with device memory.
inline constexpr std::size_t max_grid_dims = 64;
/// The blocks of a neighbourhood collective whose neighbour is MPI_PROC_NULL.
using Absent = std::bitset<2 * max_grid_dims>;

/// `bytes` behind `address`, which may be MPI_BOTTOM.
inline const void* shifted(const void* address, std::int64_t bytes) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(address) + static_cast<std::uintptr_t>(bytes));
}

/// A nonblocking call that MPI is given later than the program made it.
struct LateCall {
  MPI_Request inner = MPI_REQUEST_NULL;   ///< MPI's request
  std::shared_ptr<CallPayload> staged{};  ///< its staged buffers, inputs packed; null if none
};

/// Which of the three forms of a collective the user calls.
struct Call {
  const char* name;
  MPI_Request* request = nullptr;  ///< null: blocking
  bool persistent = false;
  MPI_Info info = MPI_INFO_NULL;  ///< of a persistent call
  LateCall* late = nullptr;       ///< set: a nonblocking call that is made late; `request` stays as it is

  bool blocks() const { return request == nullptr; }
};

/// MPI's own functions for the three forms. `persistent` is null where MPI has none, and is then never called.
template <class... Args>
struct Forms {
  int (*blocking)(Args...);
  std::type_identity_t<int (*)(Args..., MPI_Request*)> nonblocking;  // Args are deduced from `blocking`
  std::type_identity_t<int (*)(Args..., MPI_Info, MPI_Request*)> persistent;
};
// For Clang before 17, which does not deduce it.
template <class... Args, class... Others>
Forms(int (*)(Args...), Others...) -> Forms<Args...>;

/// A block of a buffer argument that is staged.
struct StagedBlock {
  DeviceBuffer operand;
  std::int64_t place;  ///< bytes from the beginning of the staging memory
};

class CallBuffers {
 public:
  CallBuffers(const char* call, ErrorOwner owner);
  ~CallBuffers();

  /// Declares a buffer of `count` elements. MPI_IN_PLACE and host memory are returned unchanged. Throws device::Error.
  Given buffer(Role role, const void* address, std::int64_t count, MPI_Datatype type);
  /// buffer() for a reduction: MPI sees the user's own layout, which its operator needs.
  Given reduction(Role role, const void* address, std::int64_t count, MPI_Datatype type);
  /// Declares `blocks` blocks of counts[i] elements, displs[i] extents from the address. All lie in the same memory as
  /// the first, unless the address is MPI_BOTTOM. MPI leaves the blocks of absent neighbours alone.
  template <class Count, class Displacement>
  GivenV<Displacement> buffer_v(Role role, const void* address, int blocks, const Count* counts,
                                const Displacement* displs, MPI_Datatype type, const Absent& absent = {});
  /// Declares `blocks` blocks of counts[i] elements of types[i], displs[i] bytes from the address. With MPI_BOTTOM each
  /// may lie in memory of its own.
  template <class Count, class Displacement>
  GivenW<Displacement> buffer_w(Role role, const void* address, int blocks, const Count* counts,
                                const Displacement* displs, const MPI_Datatype* types, const Absent& absent = {});

  template <class... Args>
  int run(const Call& call, const Forms<Args...>& pmpi, std::type_identity_t<Args>... args) {
    if (call.persistent)
      return prepare(call.request, [&](MPI_Request* request) { return pmpi.persistent(args..., call.info, request); });
    if (call.late != nullptr)
      return start_late(*call.late, [&](MPI_Request* request) { return pmpi.nonblocking(args..., request); });
    if (call.request != nullptr)
      return start(call.request, [&](MPI_Request* request) { return pmpi.nonblocking(args..., request); });
    return run([&] { return pmpi.blocking(args...); });
  }

  template <class Blocking>
  int run(Blocking blocking) {
    if (!staged()) return blocking();
    pack_inputs();
    device::about_to_wait(device::WaitKind::group);
    const int code = in_mpi(blocking);
    if (code == MPI_SUCCESS) unpack_outputs();
    return code;
  }

  template <class Nonblocking>
  int start(MPI_Request* request, Nonblocking nonblocking) {
    pack_inputs();
    if (!staged()) return nonblocking(request);
    report_fallback(Fallback::nonblocking_collective);
    Reservation reserved(operation());
    if (reserved.error() != MPI_SUCCESS) return reserved.error();
    const int code = nonblocking(&reserved->inner);
    return reserved.submit_issued(code, request);
  }

  /// Runs `nonblocking(request)` for a caller that completes the call itself; inputs are packed.
  template <class Nonblocking>
  int start_late(LateCall& late, Nonblocking nonblocking) {
    late.staged = hand_over();
    if (late.staged) report_fallback(Fallback::nonblocking_collective);
    return nonblocking(&late.inner);
  }

  /// The staged buffers, inputs packed, for a caller that completes the call itself; null if none is staged.
  /// start_unpack() of any number of bytes unpacks all outputs.
  std::shared_ptr<CallPayload> hand_over();

 private:
  class Buffers;
  bool staged() const { return buffers_ != nullptr; }
  void pack_inputs();
  void unpack_outputs();
  std::unique_ptr<Operation> operation() const;
  void adopt(MPI_Request inner, MPI_Request* request);
  Buffers& buffers();
  void* stage(Role role, const DeviceBuffer& operand);
  /// Stages the blocks of one argument in `bytes` bytes of staging memory.
  void* stage(Role role, std::vector<StagedBlock> blocks, std::int64_t bytes);

  template <class Init>
  int prepare(MPI_Request* request, Init init) {
    if (!staged()) return init(request);
    MPI_Request inner = MPI_REQUEST_NULL;
    const int code = init(&inner);
    if (code == MPI_SUCCESS) adopt(inner, request);
    return code;
  }

  const char* call_;
  ErrorOwner owner_;
  std::shared_ptr<Buffers> buffers_;
};

// --- who takes part --------------------------------------------------------------------------------------------------

/// The number of processes that messages of `comm` may go to: its group, or the remote group of an intercommunicator.
/// The buffers of its v and w collectives have one block for each.
int peers_of(MPI_Comm comm);
/// Whether it is an intercommunicator.
bool is_between_groups(MPI_Comm comm);
/// The numbers of blocks that a process sends and receives in an exchange.
struct Blocks {
  int out_of;
  int into;
};
/// The blocks of a neighbourhood collective, one for each neighbour (MPI-4.1 section 8.6); none without a topology.
Blocks neighbours(MPI_Comm comm);
/// The neighbours' ranks in the order of their blocks, MPI_PROC_NULL among them.
struct Edges {
  std::vector<int> out_of, into;
};
Edges edges(MPI_Comm comm);
/// Throws MpiError for a grid of more than max_grid_dims dimensions.
Absent absent_neighbours(MPI_Comm comm);
bool is_root(MPI_Comm comm, int root);
/// Whether this process exchanges data with the root. The root of an intracommunicator does so with itself.
bool is_served(MPI_Comm comm, int root);

}  // namespace gpudt::interpose
