// MPI-4.1 section 12.2: windows. MPI serves windows that have host memory on all ranks. gpudt serves, on all ranks,
// windows with device memory on any rank. So all ranks agree first, unless one is known to lack gpudt: that rank is in
// MPI's own call, and the others then make this call too.
#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "interpose/collectives/call_order.hpp"
#include "interpose/job/presence.hpp"
#include "interpose/rma/pending.hpp"
#include "interpose/rma/registry.hpp"
#include "interpose/rma/window_vote.hpp"
#include "interpose/streams/enqueue.hpp"
#include "interpose/streams/program_stream.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/sessions.hpp"

namespace gpudt::interpose {
namespace {

/// MPI refuses intercommunicators without communicating with other ranks.
bool is_intracommunicator(MPI_Comm comm) {
  int inter = 0;
  return comm != MPI_COMM_NULL && PMPI_Comm_test_inter(comm, &inter) == MPI_SUCCESS && inter == 0;
}

bool any_rank(MPI_Comm comm, bool mine) {
  const int vote = mine ? 1 : 0;
  int any = 0;
  PMPI_Allreduce(&vote, &any, 1, MPI_INT, MPI_MAX, comm);
  return any != 0;
}

Absence absence_in(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL;
  PMPI_Comm_group(comm, &group);
  Absence absence = presence_absence(group);
  PMPI_Group_free(&group);
  return absence;
}

struct Decision {
  bool serve;            ///< gpudt serves the window, on all ranks
  std::string obstacle;  ///< the reason why gpudt cannot serve it, or empty
};

/// All ranks with gpudt that know of each other get the same decision. `wants`: this rank has memory that only gpudt
/// can serve. `empty`: this rank has no memory in the window, and uses a GPU. gpudt also serves a window that is empty
/// on all ranks, since some MPI libraries make no window on memory that they have not allocated, not even on none.
Decision decide(const char* call, MPI_Comm comm, bool wants, bool empty) {
  if (!is_intracommunicator(comm)) return {false, {}};
  if (sessions_alone()) return {false, "windows over device memory need MPI_Init"};
  if (!presence_answers()) return {false, "the other ranks cannot see that gpudt is here: it needs /dev/shm"};
  const Absence absence = absence_in(comm);
  if (!absence.lacking.empty()) return {false, presence_complaint(absence.lacking)};
  const WindowVote all =
      vote_on_window(call, comm, {wants ? 1 : 0, active.load() ? 0 : 1, empty ? 0 : 1}, absence.unknown.empty());
  if (all.wants == 0 && all.is_mpis != 0) return {false, {}};
  return {all.cannot == 0, "gpudt is off on some rank, which has said so at MPI_Init"};
}

/// A tag for the communicator that a window is made on. Tags differ, because several threads may make windows at once.
int handle_tag() {
  constexpr unsigned first = 30000, count = 2000;
  static std::atomic<unsigned> next{0};
  return static_cast<int>(first + next.fetch_add(1) % count);
}

/// Makes a window of only this process, without memory. Open MPI can always make these, while windows of several
/// processes need remote memory access between them. A failure calls no error handler.
int make_own_window(MPI_Aint no_memory, int disp_unit, MPI_Info info, MPI_Win* win) {
  MPI_Comm self = bare_self(handle_tag());
  PMPI_Comm_set_errhandler(self, MPI_ERRORS_RETURN);
  void* nothing = nullptr;
  const int code = PMPI_Win_allocate(no_memory, disp_unit, info, self, static_cast<void*>(&nothing), win);
  PMPI_Comm_free(&self);
  return code;
}

/// Makes the handle of a window that gpudt serves: a window of this process alone or, if that fails on any rank, one of
/// all ranks by `pmpi()`, which also reports wrong arguments to the communicator's error handler.
template <class Pmpi>
int make_handle(MPI_Aint no_memory, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win, Pmpi pmpi) {
  const int code = make_own_window(no_memory, disp_unit, info, win);
  if (!any_rank(comm, code != MPI_SUCCESS)) return MPI_SUCCESS;
  if (code == MPI_SUCCESS) PMPI_Win_free(win);
  return pmpi();
}

/// Reports that device memory cannot be in the window. The ranks that lack gpudt are in MPI's own call and wait for
/// this one, as they do in MPI_Win_free: the program gets a window all the same, without memory on this rank.
int refuse(int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win, const std::string& obstacle) {
  const int code = PMPI_Win_create(nullptr, 0, disp_unit, info, comm, win);
  if (code != MPI_SUCCESS) return code;
  return fail(comm, "MPI_Win_create", MPI_ERR_OTHER, "argument base is device memory, but " + obstacle);
}

int create(void* base, MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  const bool on_device = size > 0 && active.load() && device::classify(base).on_device();
  const Decision decision = decide("MPI_Win_create", comm, on_device, size == 0 && active.load() && device::in_use());
  if (!decision.serve) {
    if (on_device && !decision.obstacle.empty() && !mpi_takes_device_memory())
      return refuse(disp_unit, info, comm, win, decision.obstacle);
    return PMPI_Win_create(base, size, disp_unit, info, comm, win);
  }
  const MPI_Aint no_memory = size < 0 ? size : 0;  // MPI refuses a negative size
  const int code = make_handle(no_memory, disp_unit, info, comm, win,
                               [&] { return PMPI_Win_create(nullptr, no_memory, disp_unit, info, comm, win); });
  if (code == MPI_SUCCESS) registry_add(*win, std::make_shared<ServedWindow>(*win, comm, base, size, disp_unit));
  return code;
}

/// The memory that will be attached is unknown: gpudt serves the window if any rank has a GPU.
int create_dynamic(MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  const bool has_device = active.load() && std::string_view(device::runtime_name()) != "none";
  const auto pmpi = [&] { return PMPI_Win_create_dynamic(info, comm, win); };
  if (!decide("MPI_Win_create_dynamic", comm, has_device, /*empty=*/false).serve) return pmpi();
  const int code = make_handle(0, 1, info, comm, win, pmpi);
  if (code == MPI_SUCCESS) registry_add(*win, std::make_shared<ServedWindow>(*win, comm));
  return code;
}

int attach(MPI_Win win, void* base, MPI_Aint size) {
  const auto served = served_window(win);
  if (served && served->memory().dynamic()) return served->attach(base, size);
  const bool on_device = size > 0 && active.load() && device::classify(base).on_device();
  if (served || !on_device || mpi_takes_device_memory()) return PMPI_Win_attach(win, base, size);
  return fail(OfWindow{win}, "MPI_Win_attach", MPI_ERR_RMA_ATTACH,
              "argument base is device memory, but not all ranks of this window have gpudt. " + presence_remedy());
}

/// Waits for accesses that are enqueued. Returns the failure of one that no call has returned.
int end_stream(MPI_Win win) {
  const auto stream = find_stream_comm(OfWindow{win});
  if (stream) wait_until([&] { return stream->calls.load() == 0; });
  const int failure = return_late_failure(stream.get());
  detach_stream(OfWindow{win});
  return failure;
}

int free_window(MPI_Win* win) {
  const MPI_Win freed = *win;
  const int failure = end_stream(freed);
  if (const auto served = served_window(freed)) {
    served->settle();
    registry_remove(freed);
  }
  engine_forget_win(freed);
  const int code = PMPI_Win_free(win);
  if (code == MPI_SUCCESS) pending_accesses.forget(freed);
  return failure != MPI_SUCCESS ? failure : code;
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Win_create(void* base, MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  return guarded(comm, "MPI_Win_create", [&] {
    settle_collectives(comm);
    return attach_if(create(base, size, disp_unit, info, comm, win), win, comm);
  });
}

GPUDT_EXPORT int MPI_Win_create_dynamic(MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  return guarded(comm, "MPI_Win_create_dynamic", [&] {
    settle_collectives(comm);
    return attach_if(create_dynamic(info, comm, win), win, comm);
  });
}

GPUDT_EXPORT int MPI_Win_attach(MPI_Win win, void* base, MPI_Aint size) {
  return guarded(OfWindow{win}, "MPI_Win_attach", [&] { return attach(win, base, size); });
}

GPUDT_EXPORT int MPI_Win_detach(MPI_Win win, const void* base) {
  const auto served = served_window(win);
  return served && served->memory().dynamic() ? served->detach(base) : PMPI_Win_detach(win, base);
}

GPUDT_EXPORT int MPI_Win_free(MPI_Win* win) {
  if (win == nullptr) return PMPI_Win_free(win);  // MPI reports it
  return guarded(OfWindow{*win}, "MPI_Win_free", [&] { return free_window(win); });
}

// Properties that the handle of a served window, which is another window's, does not have.

GPUDT_EXPORT int MPI_Win_get_attr(MPI_Win win, int keyval, void* value, int* flag) {
  const auto served = served_window(win);
  if (!served || !served->attribute(keyval, value)) return PMPI_Win_get_attr(win, keyval, value, flag);
  *flag = 1;
  return MPI_SUCCESS;
}

GPUDT_EXPORT int MPI_Win_shared_query(MPI_Win win, int rank, MPI_Aint* size, int* disp_unit, void* baseptr) {
  const auto served = served_window(win);
  if (!served) return PMPI_Win_shared_query(win, rank, size, disp_unit, baseptr);
  return served->shared_query(rank, size, disp_unit, baseptr);
}
#if defined(GPUDT_MPI_LARGE_COUNTS)
GPUDT_EXPORT int MPI_Win_shared_query_c(MPI_Win win, int rank, MPI_Aint* size, MPI_Aint* disp_unit, void* baseptr) {
  const auto served = served_window(win);
  if (!served) return PMPI_Win_shared_query_c(win, rank, size, disp_unit, baseptr);
  int unit = 0;
  const int code = served->shared_query(rank, size, &unit, baseptr);
  if (code == MPI_SUCCESS) *disp_unit = unit;
  return code;
}
#endif

GPUDT_EXPORT int MPI_Win_get_group(MPI_Win win, MPI_Group* group) {
  const auto served = served_window(win);
  return served ? served->group(group) : PMPI_Win_get_group(win, group);
}
