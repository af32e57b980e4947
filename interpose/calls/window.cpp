// MPI-4.1 section 12.2: windows. Those over host memory on all ranks stay with MPI; a window with device memory on any
// rank is served by gpudt on all of them.
#include <memory>
#include <string_view>

#include "interpose/rma/pending.hpp"
#include "interpose/rma/registry.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"

namespace gpudt::interpose {
namespace {

/// MPI itself refuses these, without a word to the other ranks.
bool can_ask(MPI_Comm comm) {
  if (!active.load(std::memory_order_acquire) || comm == MPI_COMM_NULL) return false;
  int inter = 0;
  return PMPI_Comm_test_inter(comm, &inter) == MPI_SUCCESS && inter == 0;
}

bool any_rank(MPI_Comm comm, bool mine) {
  const int vote = mine ? 1 : 0;
  int any = 0;
  PMPI_Allreduce(&vote, &any, 1, MPI_INT, MPI_MAX, comm);
  return any != 0;
}

/// Tags of the communicators that windows are made on, each another: several threads may make windows at once.
int handle_tag() {
  constexpr unsigned first = 30000, count = 2000;
  static std::atomic<unsigned> next{0};
  return static_cast<int>(first + next.fetch_add(1) % count);
}

/// A window of this process alone, without memory. Open MPI has these whatever reaches the other processes, while
/// windows of several processes need remote memory access between them. No error handler hears of a failure.
int make_own_window(MPI_Aint no_memory, int disp_unit, MPI_Info info, MPI_Win* win) {
  MPI_Comm self = bare_self(handle_tag());
  PMPI_Comm_set_errhandler(self, MPI_ERRORS_RETURN);
  void* nothing = nullptr;
  const int code = PMPI_Win_allocate(no_memory, disp_unit, info, self, static_cast<void*>(&nothing), win);
  PMPI_Comm_free(&self);
  return code;
}

/// The handle of a window that gpudt serves. If there is none of one process alone, it is that of all, by `pmpi()`,
/// which also tells the communicator's error handler what is wrong with the arguments.
template <class Pmpi>
int make_handle(MPI_Aint no_memory, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win, Pmpi pmpi) {
  const int code = make_own_window(no_memory, disp_unit, info, win);
  if (!any_rank(comm, code != MPI_SUCCESS)) return MPI_SUCCESS;
  if (code == MPI_SUCCESS) PMPI_Win_free(win);
  return pmpi();
}

int create(void* base, MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  const bool on_device = size > 0 && active.load() && device::classify(base).on_device();
  if (!can_ask(comm) || !any_rank(comm, on_device)) return PMPI_Win_create(base, size, disp_unit, info, comm, win);
  const MPI_Aint no_memory = size < 0 ? size : 0;  // a negative size is for MPI to refuse
  const int code = make_handle(no_memory, disp_unit, info, comm, win,
                               [&] { return PMPI_Win_create(nullptr, no_memory, disp_unit, info, comm, win); });
  if (code == MPI_SUCCESS) registry_add(*win, std::make_shared<ServedWindow>(*win, comm, base, size, disp_unit));
  return code;
}

/// What will be attached is not known yet: with a GPU in reach of any rank it may be device memory.
int create_dynamic(MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  const bool has_device = active.load() && std::string_view(device::runtime_name()) != "none";
  const bool serve = can_ask(comm) && any_rank(comm, has_device);
  const auto pmpi = [&] { return PMPI_Win_create_dynamic(info, comm, win); };
  if (!serve) return pmpi();
  const int code = make_handle(0, 1, info, comm, win, pmpi);
  if (code == MPI_SUCCESS) registry_add(*win, std::make_shared<ServedWindow>(*win, comm));
  return code;
}

int free_window(MPI_Win* win) {
  const MPI_Win freed = *win;
  if (const auto served = served_window(freed)) {
    served->settle();
    registry_remove(freed);
  }
  engine_forget_win(freed);
  const int code = PMPI_Win_free(win);
  if (code == MPI_SUCCESS) pending_accesses.forget(freed);
  return code;
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Win_create(void* base, MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  return guarded(comm, "MPI_Win_create", [&] { return create(base, size, disp_unit, info, comm, win); });
}

GPUDT_EXPORT int MPI_Win_create_dynamic(MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  return guarded(comm, "MPI_Win_create_dynamic", [&] { return create_dynamic(info, comm, win); });
}

GPUDT_EXPORT int MPI_Win_attach(MPI_Win win, void* base, MPI_Aint size) {
  const auto served = served_window(win);
  return served && served->memory().dynamic() ? served->attach(base, size) : PMPI_Win_attach(win, base, size);
}

GPUDT_EXPORT int MPI_Win_detach(MPI_Win win, const void* base) {
  const auto served = served_window(win);
  return served && served->memory().dynamic() ? served->detach(base) : PMPI_Win_detach(win, base);
}

GPUDT_EXPORT int MPI_Win_free(MPI_Win* win) {
  return guarded(OfWindow{*win}, "MPI_Win_free", [&] { return free_window(win); });
}

// What MPI does not know of a served window, whose handle is another one's.

GPUDT_EXPORT int MPI_Win_get_attr(MPI_Win win, int keyval, void* value, int* flag) {
  const auto served = served_window(win);
  if (!served || !served->attribute(keyval, value)) return PMPI_Win_get_attr(win, keyval, value, flag);
  *flag = 1;
  return MPI_SUCCESS;
}

GPUDT_EXPORT int MPI_Win_get_group(MPI_Win win, MPI_Group* group) {
  const auto served = served_window(win);
  return served ? served->group(group) : PMPI_Win_get_group(win, group);
}
