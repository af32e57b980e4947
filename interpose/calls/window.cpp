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

int create(void* base, MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  const bool on_device = size > 0 && active.load() && device::classify(base).on_device();
  if (!can_ask(comm) || !any_rank(comm, on_device)) return PMPI_Win_create(base, size, disp_unit, info, comm, win);
  const MPI_Aint no_memory = size < 0 ? size : 0;  // a negative size is for MPI to refuse
  const int code = PMPI_Win_create(nullptr, no_memory, disp_unit, info, comm, win);
  if (code == MPI_SUCCESS) registry_add(*win, std::make_shared<ServedWindow>(*win, comm, base, size, disp_unit));
  return code;
}

/// What will be attached is not known yet: with a GPU in reach of any rank it may be device memory.
int create_dynamic(MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  const bool has_device = active.load() && std::string_view(device::runtime_name()) != "none";
  const bool serve = can_ask(comm) && any_rank(comm, has_device);
  const int code = PMPI_Win_create_dynamic(info, comm, win);
  if (code == MPI_SUCCESS && serve) registry_add(*win, std::make_shared<ServedWindow>(*win, comm));
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

/// Where the window lies is what MPI does not know of a served one.
GPUDT_EXPORT int MPI_Win_get_attr(MPI_Win win, int keyval, void* value, int* flag) {
  const auto served = keyval == MPI_WIN_BASE || keyval == MPI_WIN_SIZE ? served_window(win) : nullptr;
  if (!served || served->memory().dynamic()) return PMPI_Win_get_attr(win, keyval, value, flag);
  if (keyval == MPI_WIN_BASE)
    *static_cast<void**>(value) = served->memory().base();
  else
    *static_cast<const MPI_Aint**>(value) = served->size_attribute();
  *flag = 1;
  return MPI_SUCCESS;
}
