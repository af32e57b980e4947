// gpudt_mpi.h: where the memory of dynamic windows is.
#include <cstdlib>
#include <vector>

#include "include/gpudt_mpi.h"
#include "interpose/rma/registry.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"

namespace gpudt::interpose {
namespace {

constexpr const char* call = "gpudt_win_regions";

int copy_out(const std::vector<AttachedRegion>& found, gpudt_region** regions, int* count) {
  auto* const all = static_cast<gpudt_region*>(std::malloc((found.size() + 1) * sizeof(gpudt_region)));
  if (all == nullptr) throw MpiError(MPI_ERR_NO_MEM, "no memory for the array of regions");
  for (std::size_t i = 0; i < found.size(); ++i) {
    const AttachedRegion& each = found[i];
    all[i] = {each.rank, each.on_gpu ? 1 : 0, static_cast<MPI_Aint>(each.address), static_cast<MPI_Aint>(each.size),
              each.here};
  }
  *regions = all;
  *count = static_cast<int>(found.size());
  return MPI_SUCCESS;
}

int win_regions(MPI_Win win, int gpu, gpudt_region** regions, int* count) {
  const auto served = served_window(win);
  if (!served)
    throw MpiError(MPI_ERR_RMA_FLAVOR,
                   "argument win is not dynamic, or not all its processes have gpudt, or none has a GPU");
  std::vector<AttachedRegion> found;
  const int code = served->regions(gpu, found);
  if (code != MPI_SUCCESS) return code;
  if (regions == nullptr || count == nullptr)  // only now: that was collective
    throw MpiError(MPI_ERR_ARG, "arguments regions and count must not be NULL: they take addresses");
  return copy_out(found, regions, count);
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int gpudt_win_regions(MPI_Win win, int gpu, gpudt_region** regions, int* count) {
  if (win == MPI_WIN_NULL)
    return fail(MPI_Comm{MPI_COMM_NULL}, call, MPI_ERR_WIN, "argument win is MPI_WIN_NULL; it takes windows");
  return guarded(OfWindow{win}, call, [&] { return win_regions(win, gpu, regions, count); });
}
