// MPI-4.1 chapter 12: accesses to windows from device memory, and the synchronisation calls that complete them.
#include "interpose/one_sided.hpp"

#include <memory>

#include "interpose/collective.hpp"
#include "interpose/errors.hpp"
#include "interpose/export.hpp"
#include "interpose/window_pending.hpp"

namespace gpudt::interpose {
namespace {

/// Gives an access to MPI by `pmpi()`, on what `buffers` has staged, and remembers it until it is complete.
template <class Call>
int access(Collective& buffers, int rank, MPI_Win win, Call pmpi) {
  const std::shared_ptr<Payload> staged = buffers.hand_over();
  const int code = pmpi();
  if (staged && code == MPI_SUCCESS) pending_accesses.add(win, pending_result(rank, staged));
  return code;
}

/// The same by `pmpi(request)`, for an access that a request completes.
template <class Call>
int access(Collective& buffers, int rank, MPI_Win win, MPI_Request* request, Call pmpi) {
  const std::shared_ptr<Payload> staged = buffers.hand_over();
  const int code = buffers.start(request, pmpi);
  if (staged && code == MPI_SUCCESS) pending_accesses.add(win, pending_request(rank, staged));
  return code;
}

/// MPI's own verdict on everything but the data: handles, ranks, types and the state of the epoch.
int check_put(const Operand& operand, const Target& target, MPI_Win win) {
  return PMPI_Put(nullptr, 0, operand.twin(), target.rank, target.displacement, 0, target.type, win);
}

int put(const Origin& origin, const Target& target, MPI_Win win) {
  Operand operand;
  if (target.rank == MPI_PROC_NULL || !resolve_mapped(origin.buffer, origin.count, origin.type, "MPI_Put", operand))
    return PMPI_Put(origin.buffer, origin.count, origin.type, target.rank, target.displacement, target.count,
                    target.type, win);
  if (const int code = check_put(operand, target, win)) return code;
  pending_accesses.add(win, pending_put(operand, target));
  return MPI_SUCCESS;
}

enum class Shown { by_size, by_element };  ///< what MPI must know of the data's type

/// A buffer of an access, staged if it is device memory. Nothing moves to or from MPI_PROC_NULL.
Given given(Collective& buffers, Role role, Shown shown, const Origin& origin, int rank) {
  if (rank == MPI_PROC_NULL) return {const_cast<void*>(origin.buffer), origin.type};
  return shown == Shown::by_size ? buffers.buffer(role, origin.buffer, origin.count, origin.type)
                                 : buffers.reduction(role, origin.buffer, origin.count, origin.type);
}

int rput(const Origin& origin, const Target& target, MPI_Win win, MPI_Request* request) {
  Collective buffers("MPI_Rput", MPI_COMM_NULL);
  const Given from = given(buffers, Role::in, Shown::by_size, origin, target.rank);
  return access(buffers, target.rank, win, request, [&](MPI_Request* real) {
    return PMPI_Rput(from.buffer, origin.count, from.type, target.rank, target.displacement, target.count, target.type,
                     win, real);
  });
}

int get(const char* call, const Origin& origin, const Target& target, MPI_Win win, MPI_Request* request) {
  Collective buffers(call, MPI_COMM_NULL);
  const Given to = given(buffers, Role::out, Shown::by_size, origin, target.rank);
  if (request == nullptr)
    return access(buffers, target.rank, win, [&] {
      return PMPI_Get(to.buffer, origin.count, to.type, target.rank, target.displacement, target.count, target.type,
                      win);
    });
  return access(buffers, target.rank, win, request, [&](MPI_Request* real) {
    return PMPI_Rget(to.buffer, origin.count, to.type, target.rank, target.displacement, target.count, target.type, win,
                     real);
  });
}

int accumulate(const char* call, const Origin& origin, const Target& target, MPI_Op op, MPI_Win win,
               MPI_Request* request) {
  Collective buffers(call, MPI_COMM_NULL);
  const Given from = given(buffers, Role::in, Shown::by_element, origin, target.rank);
  if (request == nullptr)
    return access(buffers, target.rank, win, [&] {
      return PMPI_Accumulate(from.buffer, origin.count, from.type, target.rank, target.displacement, target.count,
                             target.type, op, win);
    });
  return access(buffers, target.rank, win, request, [&](MPI_Request* real) {
    return PMPI_Raccumulate(from.buffer, origin.count, from.type, target.rank, target.displacement, target.count,
                            target.type, op, win, real);
  });
}

int get_accumulate(const char* call, const Origin& origin, const Origin& result, const Target& target, MPI_Op op,
                   MPI_Win win, MPI_Request* request) {
  Collective buffers(call, MPI_COMM_NULL);
  // MPI_NO_OP reads nothing from the origin, whatever its arguments say.
  const Given from = op == MPI_NO_OP ? Given{const_cast<void*>(origin.buffer), origin.type}
                                     : given(buffers, Role::in, Shown::by_element, origin, target.rank);
  const Given to = given(buffers, Role::out, Shown::by_element, result, target.rank);
  if (request == nullptr)
    return access(buffers, target.rank, win, [&] {
      return PMPI_Get_accumulate(from.buffer, origin.count, from.type, to.buffer, result.count, to.type, target.rank,
                                 target.displacement, target.count, target.type, op, win);
    });
  return access(buffers, target.rank, win, request, [&](MPI_Request* real) {
    return PMPI_Rget_accumulate(from.buffer, origin.count, from.type, to.buffer, result.count, to.type, target.rank,
                                target.displacement, target.count, target.type, op, win, real);
  });
}

int fetch_and_op(const void* origin, void* result, MPI_Datatype type, int rank, MPI_Aint displacement, MPI_Op op,
                 MPI_Win win) {
  Collective buffers("MPI_Fetch_and_op", MPI_COMM_NULL);
  const Given from = given(buffers, Role::in, Shown::by_element, {origin, 1, type}, rank);
  const Given to = given(buffers, Role::out, Shown::by_element, {result, 1, type}, rank);
  return access(buffers, rank, win,
                [&] { return PMPI_Fetch_and_op(from.buffer, to.buffer, type, rank, displacement, op, win); });
}

int compare_and_swap(const void* origin, const void* compare, void* result, MPI_Datatype type, int rank,
                     MPI_Aint displacement, MPI_Win win) {
  Collective buffers("MPI_Compare_and_swap", MPI_COMM_NULL);
  const Given from = given(buffers, Role::in, Shown::by_element, {origin, 1, type}, rank);
  const Given with = given(buffers, Role::in, Shown::by_element, {compare, 1, type}, rank);
  const Given to = given(buffers, Role::out, Shown::by_element, {result, 1, type}, rank);
  return access(buffers, rank, win, [&] {
    return PMPI_Compare_and_swap(from.buffer, with.buffer, to.buffer, type, rank, displacement, win);
  });
}

/// Wraps a call that completes the window's accesses to `rank`.
template <class Sync>
int synchronise(const char* call, MPI_Win win, int rank, Sync pmpi) {
  return pending_accesses.synchronise(call, win, rank, pmpi);
}

}  // namespace

void one_sided_stop() {
  pending_accesses.clear();
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

// --- accesses --------------------------------------------------------------------------------------------------------

GPUDT_EXPORT int MPI_Put(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                         int target_count, MPI_Datatype target_type, MPI_Win win) {
  return guarded(win, "MPI_Put", [&] {
    return put({origin, count, type}, {rank, displacement, target_count, target_type}, win);
  });
}

GPUDT_EXPORT int MPI_Rput(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                          int target_count, MPI_Datatype target_type, MPI_Win win, MPI_Request* request) {
  return guarded(win, "MPI_Rput", [&] {
    return rput({origin, count, type}, {rank, displacement, target_count, target_type}, win, request);
  });
}

GPUDT_EXPORT int MPI_Get(void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement, int target_count,
                         MPI_Datatype target_type, MPI_Win win) {
  return guarded(win, "MPI_Get", [&] {
    return get("MPI_Get", {origin, count, type}, {rank, displacement, target_count, target_type}, win, nullptr);
  });
}

GPUDT_EXPORT int MPI_Rget(void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement, int target_count,
                          MPI_Datatype target_type, MPI_Win win, MPI_Request* request) {
  return guarded(win, "MPI_Rget", [&] {
    return get("MPI_Rget", {origin, count, type}, {rank, displacement, target_count, target_type}, win, request);
  });
}

GPUDT_EXPORT int MPI_Accumulate(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                                int target_count, MPI_Datatype target_type, MPI_Op op, MPI_Win win) {
  return guarded(win, "MPI_Accumulate", [&] {
    return accumulate("MPI_Accumulate", {origin, count, type}, {rank, displacement, target_count, target_type}, op, win,
                      nullptr);
  });
}

GPUDT_EXPORT int MPI_Raccumulate(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                                 int target_count, MPI_Datatype target_type, MPI_Op op, MPI_Win win,
                                 MPI_Request* request) {
  return guarded(win, "MPI_Raccumulate", [&] {
    return accumulate("MPI_Raccumulate", {origin, count, type}, {rank, displacement, target_count, target_type}, op,
                      win, request);
  });
}

GPUDT_EXPORT int MPI_Get_accumulate(const void* origin, int count, MPI_Datatype type, void* result, int result_count,
                                    MPI_Datatype result_type, int rank, MPI_Aint displacement, int target_count,
                                    MPI_Datatype target_type, MPI_Op op, MPI_Win win) {
  return guarded(win, "MPI_Get_accumulate", [&] {
    return get_accumulate("MPI_Get_accumulate", {origin, count, type}, {result, result_count, result_type},
                          {rank, displacement, target_count, target_type}, op, win, nullptr);
  });
}

GPUDT_EXPORT int MPI_Rget_accumulate(const void* origin, int count, MPI_Datatype type, void* result, int result_count,
                                     MPI_Datatype result_type, int rank, MPI_Aint displacement, int target_count,
                                     MPI_Datatype target_type, MPI_Op op, MPI_Win win, MPI_Request* request) {
  return guarded(win, "MPI_Rget_accumulate", [&] {
    return get_accumulate("MPI_Rget_accumulate", {origin, count, type}, {result, result_count, result_type},
                          {rank, displacement, target_count, target_type}, op, win, request);
  });
}

GPUDT_EXPORT int MPI_Fetch_and_op(const void* origin, void* result, MPI_Datatype type, int rank, MPI_Aint displacement,
                                  MPI_Op op, MPI_Win win) {
  return guarded(win, "MPI_Fetch_and_op",
                 [&] { return fetch_and_op(origin, result, type, rank, displacement, op, win); });
}

GPUDT_EXPORT int MPI_Compare_and_swap(const void* origin, const void* compare, void* result, MPI_Datatype type,
                                      int rank, MPI_Aint displacement, MPI_Win win) {
  return guarded(win, "MPI_Compare_and_swap",
                 [&] { return compare_and_swap(origin, compare, result, type, rank, displacement, win); });
}

// --- synchronisation -------------------------------------------------------------------------------------------------

GPUDT_EXPORT int MPI_Win_fence(int assert, MPI_Win win) {
  return synchronise("MPI_Win_fence", win, all_ranks, [&] { return PMPI_Win_fence(assert, win); });
}
GPUDT_EXPORT int MPI_Win_complete(MPI_Win win) {
  return synchronise("MPI_Win_complete", win, all_ranks, [&] { return PMPI_Win_complete(win); });
}
GPUDT_EXPORT int MPI_Win_unlock(int rank, MPI_Win win) {
  return synchronise("MPI_Win_unlock", win, rank, [&] { return PMPI_Win_unlock(rank, win); });
}
GPUDT_EXPORT int MPI_Win_unlock_all(MPI_Win win) {
  return synchronise("MPI_Win_unlock_all", win, all_ranks, [&] { return PMPI_Win_unlock_all(win); });
}
GPUDT_EXPORT int MPI_Win_flush(int rank, MPI_Win win) {
  return synchronise("MPI_Win_flush", win, rank, [&] { return PMPI_Win_flush(rank, win); });
}
GPUDT_EXPORT int MPI_Win_flush_all(MPI_Win win) {
  return synchronise("MPI_Win_flush_all", win, all_ranks, [&] { return PMPI_Win_flush_all(win); });
}
GPUDT_EXPORT int MPI_Win_flush_local(int rank, MPI_Win win) {
  return synchronise("MPI_Win_flush_local", win, rank, [&] { return PMPI_Win_flush_local(rank, win); });
}
GPUDT_EXPORT int MPI_Win_flush_local_all(MPI_Win win) {
  return synchronise("MPI_Win_flush_local_all", win, all_ranks, [&] { return PMPI_Win_flush_local_all(win); });
}
GPUDT_EXPORT int MPI_Win_free(MPI_Win* win) {
  const MPI_Win freed = *win;
  const int code = PMPI_Win_free(win);
  if (code == MPI_SUCCESS) pending_accesses.forget(freed);
  return code;
}

// A window over device memory would crash in MPI at the first access from another rank.
GPUDT_EXPORT int MPI_Win_create(void* base, MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  if (size > 0 && active.load() && gpudt::device::classify(base).on_device())
    return fail(comm, "MPI_Win_create", MPI_ERR_BASE,
                "argument base is device memory; windows over device memory are not supported: use host memory "
                "for the window (the origin of MPI_Put and MPI_Rput may be device memory)");
  return PMPI_Win_create(base, size, disp_unit, info, comm, win);
}
