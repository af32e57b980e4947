// Functions that are collective over a communicator and have no buffer: barriers, and those that make communicators,
// windows and files. They take their place among the collectives on the communicator (collectives/call_order.hpp).
#include <mpi.h>

#include <memory>
#include <type_traits>

#include "interpose/calls/persistent_collectives.hpp"
#include "interpose/collectives/call_order.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/arithmetic.hpp"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/streams/free_handle.hpp"
#include "interpose/streams/program_stream.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/transport/peer/peer.hpp"

#if defined(GPUDT_MPIX_PERSISTENT_COLLECTIVES)
#include <mpi-ext.h>
#endif

namespace gpudt::interpose {
namespace {

/// Starts a nonblocking function in its place among the collectives.
template <class... Args>
int start(const Call& call, int (*blocking)(MPI_Comm, Args...),
          std::type_identity_t<int (*)(MPI_Comm, Args..., MPI_Request*)> nonblocking, MPI_Comm comm, Args... args) {
  return guarded(comm, call.name, [&] {
    return start_in_order(call, comm, nullptr, [=](const Call& call) {
      return CallBuffers(call.name, {.comm = comm})
          .run(call, Forms<MPI_Comm, Args...>{blocking, nonblocking, nullptr}, comm, args...);
    });
  });
}

/// To be called before a call that makes a communicator. Some MPI libraries return MPI_SUCCESS if the call fails and an
/// error handler is called; then `*made` stays MPI_COMM_NULL.
void expect_communicator(MPI_Comm* made) {
  if (!returns_handled_errors && made != nullptr) *made = MPI_COMM_NULL;
}

void has_communicator(MPI_Comm comm, const MPI_Comm* made) {
  if (made != nullptr) peer_has_communicator(comm, *made);
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

#define GPUDT_LIST(...) __VA_ARGS__
/// Defines MPI_<name>, which waits until no collective waits on the communicator. The two lists are bracketed.
#define GPUDT_SETTLING(name, comm, parameters, arguments) \
  GPUDT_EXPORT int MPI_##name(GPUDT_LIST parameters) {    \
    settle_collectives(comm);                             \
    return PMPI_##name(GPUDT_LIST arguments);             \
  }
/// GPUDT_SETTLING for a function that makes the communicator `*made`.
#define GPUDT_MAKING(name, comm, parameters, arguments)    \
  GPUDT_EXPORT int MPI_##name(GPUDT_LIST parameters) {     \
    settle_collectives(comm);                              \
    expect_communicator(made);                             \
    const int code = PMPI_##name(GPUDT_LIST arguments);    \
    if (code == MPI_SUCCESS) has_communicator(comm, made); \
    return code;                                           \
  }

// --- MPI-4.1 chapter 6: barriers -------------------------------------------------------------------------------------

GPUDT_SETTLING(Barrier, comm, (MPI_Comm comm), (comm))

GPUDT_EXPORT int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  return start({"MPI_Ibarrier", request}, PMPI_Barrier, PMPI_Ibarrier, comm);
}

#define GPUDT_BARRIER_INIT(prefix)                                                             \
  GPUDT_EXPORT int prefix##_Barrier_init(MPI_Comm comm, MPI_Info info, MPI_Request* request) { \
    return guarded(comm, #prefix "_Barrier_init", [&] {                                        \
      settle_collectives(comm);                                                                \
      const int code = P##prefix##_Barrier_init(comm, info, request);                          \
      if (code == MPI_SUCCESS) persistent_in_stream(comm, *request);                           \
      return code;                                                                             \
    });                                                                                        \
  }
#if defined(GPUDT_MPI_PERSISTENT_COLLECTIVES)
GPUDT_BARRIER_INIT(MPI)
#elif defined(GPUDT_MPIX_PERSISTENT_COLLECTIVES)
GPUDT_BARRIER_INIT(MPIX)
#endif

// --- chapters 7, 8 and 11: communicators -----------------------------------------------------------------------------

GPUDT_MAKING(Comm_dup, comm, (MPI_Comm comm, MPI_Comm* made), (comm, made))
GPUDT_MAKING(Comm_dup_with_info, comm, (MPI_Comm comm, MPI_Info info, MPI_Comm* made), (comm, info, made))
GPUDT_MAKING(Comm_create, comm, (MPI_Comm comm, MPI_Group group, MPI_Comm* made), (comm, group, made))
GPUDT_MAKING(Comm_split, comm, (MPI_Comm comm, int color, int key, MPI_Comm* made), (comm, color, key, made))
GPUDT_MAKING(Comm_split_type, comm, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made),
             (comm, type, key, info, made))
GPUDT_SETTLING(Intercomm_create, local,
               (MPI_Comm local, int leader, MPI_Comm peer, int remote, int tag, MPI_Comm* made),
               (local, leader, peer, remote, tag, made))
GPUDT_MAKING(Cart_create, comm,
             (MPI_Comm comm, int ndims, const int* dims, const int* periods, int reorder, MPI_Comm* made),
             (comm, ndims, dims, periods, reorder, made))
GPUDT_MAKING(Cart_sub, comm, (MPI_Comm comm, const int* remain, MPI_Comm* made), (comm, remain, made))
GPUDT_MAKING(Graph_create, comm,
             (MPI_Comm comm, int nodes, const int* index, const int* edges, int reorder, MPI_Comm* made),
             (comm, nodes, index, edges, reorder, made))
GPUDT_MAKING(Dist_graph_create, comm,
             (MPI_Comm comm, int count, const int* sources, const int* degrees, const int* destinations,
              const int* weights, MPI_Info info, int reorder, MPI_Comm* made),
             (comm, count, sources, degrees, destinations, weights, info, reorder, made))
GPUDT_MAKING(Dist_graph_create_adjacent, comm,
             (MPI_Comm comm, int indegree, const int* sources, const int* source_weights, int outdegree,
              const int* destinations, const int* destination_weights, MPI_Info info, int reorder, MPI_Comm* made),
             (comm, indegree, sources, source_weights, outdegree, destinations, destination_weights, info, reorder,
              made))
GPUDT_SETTLING(Comm_spawn, comm,
               (const char* command, char** argv, int processes, MPI_Info info, int root, MPI_Comm comm, MPI_Comm* made,
                int* codes),
               (command, argv, processes, info, root, comm, made, codes))
GPUDT_SETTLING(Comm_spawn_multiple, comm,
               (int count, char** commands, char*** argvs, const int* processes, const MPI_Info* infos, int root,
                MPI_Comm comm, MPI_Comm* made, int* codes),
               (count, commands, argvs, processes, infos, root, comm, made, codes))
GPUDT_SETTLING(Comm_accept, comm, (const char* port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm* made),
               (port, info, root, comm, made))
GPUDT_SETTLING(Comm_connect, comm, (const char* port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm* made),
               (port, info, root, comm, made))

GPUDT_EXPORT int MPI_Comm_idup(MPI_Comm comm, MPI_Comm* made, MPI_Request* request) {
  return start({"MPI_Comm_idup", request}, PMPI_Comm_dup, PMPI_Comm_idup, comm, made);
}
#if defined(GPUDT_MPI_COMM_IDUP_WITH_INFO)
GPUDT_EXPORT int MPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm* made, MPI_Request* request) {
  // A call that waits needs a copy of the info, which the program may free.
  MPI_Info kept = info;
  if (info != MPI_INFO_NULL && collectives_wait(comm)) PMPI_Info_dup(info, &kept);
  const auto freed = std::shared_ptr<void>(nullptr, [kept, info](void*) mutable {
    if (kept != info) PMPI_Info_free(&kept);
  });
  return guarded(comm, "MPI_Comm_idup_with_info", [&] {
    return start_in_order({"MPI_Comm_idup_with_info", request}, comm, nullptr, [=](const Call& call) {
      static_cast<void>(freed);
      return CallBuffers(call.name, {.comm = comm})
          .run(call, Forms<MPI_Comm, MPI_Info, MPI_Comm*>{PMPI_Comm_dup_with_info, PMPI_Comm_idup_with_info, nullptr},
               comm, kept, made);
    });
  });
}
#endif

// --- chapters 12 and 14: windows and files without a buffer ----------------------------------------------------------

#define GPUDT_ALLOCATING(name)                                                                                        \
  GPUDT_EXPORT int MPI_##name(MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* win) { \
    return guarded(comm, "MPI_" #name, [&] {                                                                          \
      settle_collectives(comm);                                                                                       \
      return attach_if(PMPI_##name(size, disp_unit, info, comm, base, win), win, comm);                               \
    });                                                                                                               \
  }
GPUDT_ALLOCATING(Win_allocate)
GPUDT_ALLOCATING(Win_allocate_shared)
GPUDT_SETTLING(File_open, comm, (MPI_Comm comm, const char* name, int mode, MPI_Info info, MPI_File* file),
               (comm, name, mode, info, file))

// --- handles that a call may still need ------------------------------------------------------------------------------

GPUDT_EXPORT int MPI_Op_free(MPI_Op* op) {
  if (op == nullptr || *op == MPI_OP_NULL || is_predefined_operator(*op)) return PMPI_Op_free(op);  // MPI reports it
  return free_handle(op, MPI_OP_NULL,
                     [](MPI_Op* unused) { return free_op_later(unused) ? MPI_SUCCESS : PMPI_Op_free(unused); });
}
