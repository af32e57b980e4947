// MPI-4.1 chapter 12: accesses to windows from device memory, and the synchronisation calls that complete them.
#include "interpose/rma/access.hpp"

#include <limits>
#include <memory>
#include <utility>

#include "datatype/basic.hpp"
#include "interpose/calls/enqueued_access.hpp"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/rma/message.hpp"
#include "interpose/rma/pending.hpp"
#include "interpose/rma/registry.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"

namespace gpudt::interpose {
namespace {

/// Gives an access to MPI by `pmpi()`, on what `buffers` has staged, and remembers it until it is complete.
template <class Call>
int access(CallBuffers& buffers, int rank, MPI_Win win, Call pmpi) {
  const std::shared_ptr<CallPayload> staged = buffers.hand_over();
  const int code = pmpi();
  if (staged && code == MPI_SUCCESS) pending_accesses.add(win, pending_result(rank, staged));
  return code;
}

/// Gives an access with a request to MPI by `pmpi(request)`, and remembers it until it is complete.
template <class Call>
int access(CallBuffers& buffers, int rank, MPI_Win win, MPI_Request* request, Call pmpi) {
  const std::shared_ptr<CallPayload> staged = buffers.hand_over();
  const int code = buffers.start(request, pmpi);
  if (staged && code == MPI_SUCCESS) pending_accesses.add(win, pending_request(rank, staged));
  return code;
}

/// Lets MPI check everything but the data: handles, ranks, types and the state of the epoch. Returns its error code.
int check_put(const DeviceBuffer& operand, const Target& target, MPI_Win win) {
  return PMPI_Put(nullptr, 0, operand.packed_type(), target.rank, target.displacement, 0, target.type, win);
}

int put(const Origin& origin, const Target& target, MPI_Win win) {
  if (const auto served = served_window(win)) return served->put("MPI_Put", origin, target, nullptr);
  DeviceBuffer operand{.use = Use::read};
  if (target.rank == MPI_PROC_NULL || !resolve_mapped(origin.buffer, origin.count, origin.type, "MPI_Put", operand))
    return PMPI_Put(origin.buffer, origin.count, origin.type, target.rank, target.displacement, target.count,
                    target.type, win);
  if (const int code = check_put(operand, target, win)) return code;
  pending_accesses.add(win, pending_put(operand, target));
  return MPI_SUCCESS;
}

/// A buffer of an access, staged if it is device memory. Nothing moves to or from MPI_PROC_NULL.
Given given(CallBuffers& buffers, Role role, const Origin& origin, int rank) {
  if (rank == MPI_PROC_NULL) return {const_cast<void*>(origin.buffer), origin.type};
  return buffers.buffer(role, origin.buffer, origin.count, origin.type);
}

/// A buffer of an accumulate, for which MPI must know the element type of the data. Packed data are contiguous
/// elements, unless MPI knows the element type only with gaps (MPI_DOUBLE_INT); then MPI gets the user's layout.
class GivenElements {
 public:
  GivenElements(CallBuffers& buffers, Role role, const Origin& origin, int rank)
      : buffer(const_cast<void*>(origin.buffer)), type(origin.type) {
    DeviceBuffer operand;
    if (rank == MPI_PROC_NULL || !resolve_layout(origin.buffer, origin.count, origin.type, operand)) return;
    const MPI_Datatype element = element_of(type);
    const std::int64_t elements = element == type ? 0 : packed_elements(operand, element);
    if (elements == 0) {
      buffer = buffers.reduction(role, origin.buffer, origin.count, origin.type).buffer;
      return;
    }
    buffer = buffers.buffer(role, origin.buffer, origin.count, origin.type).buffer;
    PMPI_Type_contiguous(static_cast<int>(elements), element, &type);
    PMPI_Type_commit(&type);
    owned_ = true;
  }
  ~GivenElements() {
    if (owned_) PMPI_Type_free(&type);
  }
  GivenElements(const GivenElements&) = delete;
  GivenElements& operator=(const GivenElements&) = delete;

  void* buffer;
  MPI_Datatype type;

 private:
  /// The number of elements in one item of the origin's datatype, packed; 0 if these are not contiguous elements.
  static std::int64_t packed_elements(const DeviceBuffer& operand, MPI_Datatype element) {
    if (element == MPI_DATATYPE_NULL) return 0;
    MPI_Aint lb = 0, extent = 0;
    PMPI_Type_get_extent(element, &lb, &extent);
    const std::int64_t size = datatype::size_of(element);
    const std::int64_t elements = operand.info->layout().size() / size;
    return extent == size && elements <= std::numeric_limits<int>::max() ? elements : 0;
  }

  bool owned_ = false;
};

/// The operator to give to MPI, which would refuse float16 and bfloat16, or combine their bytes.
MPI_Op operator_to_give(MPI_Op op, const Target& target) {
  if (!accumulates_float16(op, target.type)) return op;
  if (target.rank == MPI_PROC_NULL) return MPI_REPLACE;
  throw MpiError(MPI_ERR_OP, "float16 and bfloat16 are accumulated only in windows with memory of a GPU on some rank");
}

int rput(const Origin& origin, const Target& target, MPI_Win win, MPI_Request* request) {
  if (const auto served = served_window(win)) return served->put("MPI_Rput", origin, target, request);
  CallBuffers buffers("MPI_Rput", {.win = win});
  const Given from = given(buffers, Role::in, origin, target.rank);
  return access(buffers, target.rank, win, request, [&](MPI_Request* real) {
    return PMPI_Rput(from.buffer, origin.count, from.type, target.rank, target.displacement, target.count, target.type,
                     win, real);
  });
}

int get(const char* call, const Origin& origin, const Target& target, MPI_Win win, MPI_Request* request) {
  if (const auto served = served_window(win)) return served->get(call, origin, target, request);
  CallBuffers buffers(call, {.win = win});
  const Given to = given(buffers, Role::out, origin, target.rank);
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
  if (const auto served = served_window(win)) return served->accumulate(call, origin, target, op, request);
  const MPI_Op passed_op = operator_to_give(op, target);
  CallBuffers buffers(call, {.win = win});
  const GivenElements from(buffers, Role::in, origin, target.rank);
  if (request == nullptr)
    return access(buffers, target.rank, win, [&] {
      return PMPI_Accumulate(from.buffer, origin.count, from.type, target.rank, target.displacement, target.count,
                             target.type, passed_op, win);
    });
  return access(buffers, target.rank, win, request, [&](MPI_Request* real) {
    return PMPI_Raccumulate(from.buffer, origin.count, from.type, target.rank, target.displacement, target.count,
                            target.type, passed_op, win, real);
  });
}

int get_accumulate(const char* call, const Origin& origin, const Origin& result, const Target& target, MPI_Op op,
                   MPI_Win win, MPI_Request* request) {
  if (const auto served = served_window(win)) return served->get_accumulate(call, origin, result, target, op, request);
  const MPI_Op passed_op = operator_to_give(op, target);
  CallBuffers buffers(call, {.win = win});
  // MPI_NO_OP reads nothing from the origin, whatever its arguments say.
  const GivenElements from(buffers, Role::in, origin, op == MPI_NO_OP ? MPI_PROC_NULL : target.rank);
  const GivenElements to(buffers, Role::out, result, target.rank);
  if (request == nullptr)
    return access(buffers, target.rank, win, [&] {
      return PMPI_Get_accumulate(from.buffer, origin.count, from.type, to.buffer, result.count, to.type, target.rank,
                                 target.displacement, target.count, target.type, passed_op, win);
    });
  return access(buffers, target.rank, win, request, [&](MPI_Request* real) {
    return PMPI_Rget_accumulate(from.buffer, origin.count, from.type, to.buffer, result.count, to.type, target.rank,
                                target.displacement, target.count, target.type, passed_op, win, real);
  });
}

int fetch_and_op(const void* origin, void* result, MPI_Datatype type, int rank, MPI_Aint displacement, MPI_Op op,
                 MPI_Win win) {
  if (const auto served = served_window(win))
    return served->fetch_and_op(origin, result, {rank, displacement, 1, type}, op);
  const MPI_Op passed_op = operator_to_give(op, {rank, displacement, 1, type});
  CallBuffers buffers("MPI_Fetch_and_op", {.win = win});
  const GivenElements from(buffers, Role::in, {origin, 1, type}, rank);
  const GivenElements to(buffers, Role::out, {result, 1, type}, rank);
  return access(buffers, rank, win, [&] {
    return PMPI_Fetch_and_op(from.buffer, to.buffer, type_to_fetch(type), rank, displacement, passed_op, win);
  });
}

int compare_and_swap(const void* origin, const void* compare, void* result, MPI_Datatype type, int rank,
                     MPI_Aint displacement, MPI_Win win) {
  if (const auto served = served_window(win))
    return served->compare_and_swap(origin, compare, result, {rank, displacement, 1, type});
  CallBuffers buffers("MPI_Compare_and_swap", {.win = win});
  const GivenElements from(buffers, Role::in, {origin, 1, type}, rank);
  const GivenElements with(buffers, Role::in, {compare, 1, type}, rank);
  const GivenElements to(buffers, Role::out, {result, 1, type}, rank);
  return access(buffers, rank, win, [&] {
    return PMPI_Compare_and_swap(from.buffer, with.buffer, to.buffer, type, rank, displacement, win);
  });
}

/// Makes a call that completes the accesses to `rank` of a window: by `own(served window)` or `pmpi()`.
template <class Own, class Pmpi>
int synchronise(const char* call, MPI_Win win, int rank, Own own, Pmpi pmpi) {
  return guarded(OfWindow{win}, call, [&] {
    const auto served = served_window(win);
    return served ? own(*served) : pending_accesses.synchronise(call, win, rank, pmpi);
  });
}

/// Makes a call that completes no access: by `own(served window)` or `pmpi()`.
template <class Own, class Pmpi>
int dispatch(MPI_Win win, Own own, Pmpi pmpi) {
  const auto served = served_window(win);
  return served ? own(*served) : pmpi();
}

}  // namespace

void one_sided_stop() {
  registry_clear();
  pending_accesses.clear();
}

namespace enqueued {

int access_steps(int rank, MPI_Win win, bool lands, StartEnqueued start, Steps* steps) {
  *steps = {std::move(start)};
  if (rank == MPI_PROC_NULL) return MPI_SUCCESS;
  const auto served = served_window(win);
  if (!served) return PMPI_Put(nullptr, 0, MPI_BYTE, rank, 0, 0, MPI_BYTE, win);  // MPI checks the epoch
  served->expect_access(rank);
  if (!lands) return MPI_SUCCESS;
  const auto before = std::make_shared<std::uint64_t>();
  steps->start = [=, start = std::move(steps->start)](MPI_Request* request) {
    const auto served = served_window(win);
    if (served) *before = served->submitted(rank);
    return start(request);
  };
  steps->then = [=](MPI_Request* request) {  // what a GPU has put is at the target already
    const auto served = served_window(win);
    const bool by_target = served && served->submitted(rank) != *before;
    return by_target ? served->flush_later("MPIX_Put_enqueue", rank, request) : MPI_SUCCESS;
  };
  return MPI_SUCCESS;
}

}  // namespace enqueued

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

// --- accesses --------------------------------------------------------------------------------------------------------

GPUDT_EXPORT int MPI_Put(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                         int target_count, MPI_Datatype target_type, MPI_Win win) {
  return guarded(OfWindow{win}, "MPI_Put", [&] {
    return put({origin, count, type}, {rank, displacement, target_count, target_type}, win);
  });
}

GPUDT_EXPORT int MPI_Rput(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                          int target_count, MPI_Datatype target_type, MPI_Win win, MPI_Request* request) {
  return guarded(OfWindow{win}, "MPI_Rput", [&] {
    return rput({origin, count, type}, {rank, displacement, target_count, target_type}, win, request);
  });
}

GPUDT_EXPORT int MPI_Get(void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement, int target_count,
                         MPI_Datatype target_type, MPI_Win win) {
  return guarded(OfWindow{win}, "MPI_Get", [&] {
    return get("MPI_Get", {origin, count, type}, {rank, displacement, target_count, target_type}, win, nullptr);
  });
}

GPUDT_EXPORT int MPI_Rget(void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement, int target_count,
                          MPI_Datatype target_type, MPI_Win win, MPI_Request* request) {
  return guarded(OfWindow{win}, "MPI_Rget", [&] {
    return get("MPI_Rget", {origin, count, type}, {rank, displacement, target_count, target_type}, win, request);
  });
}

GPUDT_EXPORT int MPI_Accumulate(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                                int target_count, MPI_Datatype target_type, MPI_Op op, MPI_Win win) {
  return guarded(OfWindow{win}, "MPI_Accumulate", [&] {
    return accumulate("MPI_Accumulate", {origin, count, type}, {rank, displacement, target_count, target_type}, op, win,
                      nullptr);
  });
}

GPUDT_EXPORT int MPI_Raccumulate(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                                 int target_count, MPI_Datatype target_type, MPI_Op op, MPI_Win win,
                                 MPI_Request* request) {
  return guarded(OfWindow{win}, "MPI_Raccumulate", [&] {
    return accumulate("MPI_Raccumulate", {origin, count, type}, {rank, displacement, target_count, target_type}, op,
                      win, request);
  });
}

GPUDT_EXPORT int MPI_Get_accumulate(const void* origin, int count, MPI_Datatype type, void* result, int result_count,
                                    MPI_Datatype result_type, int rank, MPI_Aint displacement, int target_count,
                                    MPI_Datatype target_type, MPI_Op op, MPI_Win win) {
  return guarded(OfWindow{win}, "MPI_Get_accumulate", [&] {
    return get_accumulate("MPI_Get_accumulate", {origin, count, type}, {result, result_count, result_type},
                          {rank, displacement, target_count, target_type}, op, win, nullptr);
  });
}

GPUDT_EXPORT int MPI_Rget_accumulate(const void* origin, int count, MPI_Datatype type, void* result, int result_count,
                                     MPI_Datatype result_type, int rank, MPI_Aint displacement, int target_count,
                                     MPI_Datatype target_type, MPI_Op op, MPI_Win win, MPI_Request* request) {
  return guarded(OfWindow{win}, "MPI_Rget_accumulate", [&] {
    return get_accumulate("MPI_Rget_accumulate", {origin, count, type}, {result, result_count, result_type},
                          {rank, displacement, target_count, target_type}, op, win, request);
  });
}

GPUDT_EXPORT int MPI_Fetch_and_op(const void* origin, void* result, MPI_Datatype type, int rank, MPI_Aint displacement,
                                  MPI_Op op, MPI_Win win) {
  return guarded(OfWindow{win}, "MPI_Fetch_and_op",
                 [&] { return fetch_and_op(origin, result, type, rank, displacement, op, win); });
}

GPUDT_EXPORT int MPI_Compare_and_swap(const void* origin, const void* compare, void* result, MPI_Datatype type,
                                      int rank, MPI_Aint displacement, MPI_Win win) {
  return guarded(OfWindow{win}, "MPI_Compare_and_swap",
                 [&] { return compare_and_swap(origin, compare, result, type, rank, displacement, win); });
}

// --- synchronisation -------------------------------------------------------------------------------------------------

GPUDT_EXPORT int MPI_Win_fence(int assert, MPI_Win win) {
  return synchronise(
      "MPI_Win_fence", win, all_ranks, [&](ServedWindow& served) { return served.fence(assert); },
      [&] { return PMPI_Win_fence(assert, win); });
}
GPUDT_EXPORT int MPI_Win_start(MPI_Group group, int assert, MPI_Win win) {
  return dispatch(
      win, [&](ServedWindow& served) { return served.start(group, assert); },
      [&] { return PMPI_Win_start(group, assert, win); });
}
GPUDT_EXPORT int MPI_Win_complete(MPI_Win win) {
  return synchronise(
      "MPI_Win_complete", win, all_ranks, [](ServedWindow& served) { return served.complete(); },
      [&] { return PMPI_Win_complete(win); });
}
GPUDT_EXPORT int MPI_Win_post(MPI_Group group, int assert, MPI_Win win) {
  return dispatch(
      win, [&](ServedWindow& served) { return served.post(group, assert); },
      [&] { return PMPI_Win_post(group, assert, win); });
}
GPUDT_EXPORT int MPI_Win_wait(MPI_Win win) {
  return dispatch(
      win, [](ServedWindow& served) { return served.wait(); }, [&] { return PMPI_Win_wait(win); });
}
GPUDT_EXPORT int MPI_Win_test(MPI_Win win, int* flag) {
  return dispatch(
      win, [&](ServedWindow& served) { return served.test(flag); }, [&] { return PMPI_Win_test(win, flag); });
}
GPUDT_EXPORT int MPI_Win_lock(int type, int rank, int assert, MPI_Win win) {
  return dispatch(
      win, [&](ServedWindow& served) { return served.lock(type, rank, assert); },
      [&] { return PMPI_Win_lock(type, rank, assert, win); });
}
GPUDT_EXPORT int MPI_Win_unlock(int rank, MPI_Win win) {
  return synchronise(
      "MPI_Win_unlock", win, rank, [&](ServedWindow& served) { return served.unlock(rank); },
      [&] { return PMPI_Win_unlock(rank, win); });
}
GPUDT_EXPORT int MPI_Win_lock_all(int assert, MPI_Win win) {
  return dispatch(
      win, [&](ServedWindow& served) { return served.lock_all(assert); },
      [&] { return PMPI_Win_lock_all(assert, win); });
}
GPUDT_EXPORT int MPI_Win_unlock_all(MPI_Win win) {
  return synchronise(
      "MPI_Win_unlock_all", win, all_ranks, [](ServedWindow& served) { return served.unlock_all(); },
      [&] { return PMPI_Win_unlock_all(win); });
}
GPUDT_EXPORT int MPI_Win_flush(int rank, MPI_Win win) {
  constexpr const char* call = "MPI_Win_flush";
  return synchronise(
      call, win, rank, [&](ServedWindow& served) { return served.flush(call, rank); },
      [&] { return PMPI_Win_flush(rank, win); });
}
GPUDT_EXPORT int MPI_Win_flush_all(MPI_Win win) {
  constexpr const char* call = "MPI_Win_flush_all";
  return synchronise(
      call, win, all_ranks, [](ServedWindow& served) { return served.flush(call, all_ranks); },
      [&] { return PMPI_Win_flush_all(win); });
}
GPUDT_EXPORT int MPI_Win_flush_local(int rank, MPI_Win win) {
  constexpr const char* call = "MPI_Win_flush_local";
  return synchronise(
      call, win, rank, [&](ServedWindow& served) { return served.flush_local(call, rank); },
      [&] { return PMPI_Win_flush_local(rank, win); });
}
GPUDT_EXPORT int MPI_Win_flush_local_all(MPI_Win win) {
  constexpr const char* call = "MPI_Win_flush_local_all";
  return synchronise(
      call, win, all_ranks, [](ServedWindow& served) { return served.flush_local(call, all_ranks); },
      [&] { return PMPI_Win_flush_local_all(win); });
}
GPUDT_EXPORT int MPI_Win_sync(MPI_Win win) {
  return dispatch(
      win, [](ServedWindow& served) { return served.sync(); }, [&] { return PMPI_Win_sync(win); });
}
