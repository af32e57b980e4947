#include "initiated/attached.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <span>

#include "include/gpudt_mpi.h"
#include "initiated/mpi_error.hpp"

namespace gpudt::initiated {
namespace {

/// While it lives, errors of a window are returned: they become an Error, whatever the program's handler does.
class ErrorsReturned {
 public:
  explicit ErrorsReturned(MPI_Win window) : window_(window) {
    PMPI_Win_get_errhandler(window_, &before_);
    PMPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
  }
  ~ErrorsReturned() {
    PMPI_Win_set_errhandler(window_, before_);
    if (before_ != MPI_ERRORS_ARE_FATAL && before_ != MPI_ERRORS_RETURN) PMPI_Errhandler_free(&before_);
  }
  ErrorsReturned(const ErrorsReturned&) = delete;
  ErrorsReturned& operator=(const ErrorsReturned&) = delete;

 private:
  MPI_Win window_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

/// What gpudt_win_regions() gives.
struct Regions {
  struct Free {
    void operator()(gpudt_region* all) const { std::free(all); }
  };
  std::unique_ptr<gpudt_region, Free> all;
  int count = 0;
  std::span<const gpudt_region> span() const { return {all.get(), static_cast<std::size_t>(count)}; }
};

Regions ask_for_regions(MPI_Win window, int device, const std::string& who) {
  // Programs without such windows need not be linked with a library that has the function.
  const auto win_regions = reinterpret_cast<decltype(&gpudt_win_regions)>(dlsym(RTLD_DEFAULT, "gpudt_win_regions"));
  if (win_regions == nullptr) throw Error(who + "this libgpudt-pmpi has no gpudt_win_regions: load that of this build");
  const ErrorsReturned returned(window);
  gpudt_region* all = nullptr;
  Regions regions;
  if (const int code = win_regions(window, device, &all, &regions.count); code != MPI_SUCCESS)
    throw Error(who + "gpudt_win_regions: " + mpi_error_text(code));
  regions.all.reset(all);
  return regions;
}

/// Puts a region behind others of its process: as one with the last, if it goes on there.
void append(std::vector<WindowRegion>& list, const gpudt_region& region) {
  const auto begin = static_cast<std::int64_t>(region.address), end = begin + static_cast<std::int64_t>(region.size);
  const std::int64_t distance = reinterpret_cast<std::intptr_t>(region.here) - begin;
  if (!list.empty() && list.back().end == begin && list.back().distance == distance)
    list.back().end = end;
  else
    list.push_back({begin, end, distance});
}

}  // namespace

std::string reach_remedy() {
  return "it takes memory of cudaMalloc, or of cuMemCreate with file descriptors as handles in up to 128 pieces, on "
         "GPUs of this node that reach each other, without GPUDT_ORDER (GPUDT_TRACE=1 tells why memory is not mapped)";
}

int flavor_of(MPI_Win window, const std::string& who) {
  int* flavor = nullptr;
  int found = 0;
  if (MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, static_cast<void*>(&flavor), &found) != MPI_SUCCESS || found == 0)
    throw Error(who + "argument win has no MPI_WIN_CREATE_FLAVOR");
  if (*flavor != MPI_WIN_FLAVOR_CREATE && *flavor != MPI_WIN_FLAVOR_DYNAMIC)
    throw Error(who +
                "argument win is of MPI_Win_allocate or MPI_Win_allocate_shared, whose memory is the host's: use "
                "MPI_Win_create over device memory, or World::allocate");
  return *flavor;
}

WiredMemory addresses_of(MPI_Win window, int processes, const std::string& who) {
  int* base = nullptr;
  int found = 0;
  if (MPI_Win_get_attr(window, MPI_WIN_BASE, static_cast<void*>(&base), &found) != MPI_SUCCESS)
    throw Error(who + "MPI_Win_get_attr of MPI_WIN_BASE");
  const ErrorsReturned returned(window);
  WiredMemory memory;
  memory.base = reinterpret_cast<char*>(base);
  for (int process = 0; process < processes; ++process) {
    MPI_Aint bytes = 0;
    int unit = 1;
    char* there = nullptr;
    if (const int code = MPI_Win_shared_query(window, process, &bytes, &unit, static_cast<void*>(&there));
        code != MPI_SUCCESS)
      throw Error(who + "argument win has no memory of GPUs (MPI_Win_shared_query: " + mpi_error_text(code) +
                  "): give MPI_Win_create device memory on every process");
    memory.there.push_back(there);
    memory.bytes.push_back(bytes);
    memory.units.push_back(unit);
  }
  return memory;
}

std::vector<std::vector<WindowRegion>> regions_of(MPI_Win window, int processes, int device, bool all,
                                                  const std::string& who) {
  const Regions regions = ask_for_regions(window, device, who);
  std::vector<std::vector<WindowRegion>> of(static_cast<std::size_t>(processes));
  for (const gpudt_region& region : regions.span()) {
    if (region.on_gpu == 0 || region.size == 0) continue;
    if (region.here == nullptr && !all) continue;
    if (region.here == nullptr)
      throw Error(who + "argument win has " + std::to_string(region.size) + " bytes attached at address " +
                  std::to_string(region.address) + " of process " + std::to_string(region.rank) +
                  ", which this GPU does not reach: " + reach_remedy());
    append(of[static_cast<std::size_t>(region.rank)], region);
  }
  return of;
}

}  // namespace gpudt::initiated
