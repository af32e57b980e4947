// A request for kinds (MPI_Session_init, the argument of an MPI start-up mechanism) asks for no less than what is
// provided here: MPI may provide more than what is requested, and provides the same for all objects. Assertions
// (mpi_assert_memory_alloc_kinds) are hints, which only MPI itself looks at.
#include "interpose/calls/memory_kinds.hpp"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/never_destroyed.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/export.hpp"

namespace gpudt::interpose {
namespace {

constexpr const char* key = "mpi_memory_alloc_kinds";
constexpr const char* least_kinds = "mpi,system";  ///< the default of the standard
/// Of the MPI Forum's side document "Memory Allocation Kinds".
constexpr const char* cuda_kinds[] = {"cuda", "cuda:device", "cuda:host", "cuda:managed"};

struct Kinds {
  std::string provided;
  /// MPI_INFO_ENV where that is writable, which Fortran sees, too; else a copy that takes its place.
  MPI_Info environment = MPI_INFO_NULL;
  std::optional<std::string> before;  ///< the value in MPI_INFO_ENV
};
auto& kinds = never_destroyed<Kinds>();
std::atomic<bool> started{false};

std::optional<std::string> value_in(MPI_Info info) {
  int length = 0, found = 0;
  if (PMPI_Info_get_valuelen(info, key, &length, &found) != MPI_SUCCESS || found == 0) return {};
  std::vector<char> value(static_cast<std::size_t>(length) + 1);
  PMPI_Info_get(info, key, length, value.data(), &found);
  return std::string(value.data());
}

/// What the MPI library itself provides; no value if it does not know of kinds.
std::optional<std::string> provided_by_mpi(bool world) {
  MPI_Info info = MPI_INFO_NULL;
  if (!world || PMPI_Comm_get_info(MPI_COMM_WORLD, &info) != MPI_SUCCESS) return {};
  std::optional<std::string> value = value_in(info);
  PMPI_Info_free(&info);
  return value;
}

std::string with_cuda(std::string provided) {
  std::vector<std::string> there;
  std::istringstream list(provided);
  for (std::string kind; std::getline(list, kind, ',');) there.push_back(kind);
  for (const char* const kind : cuda_kinds)
    if (std::find(there.begin(), there.end(), kind) == there.end())
      provided += (provided.empty() ? "" : ",") + std::string(kind);
  return provided;
}

/// Completes what MPI has answered with `code`. Returns `code`.
int complete(int code, const MPI_Info* info) {
  if (code == MPI_SUCCESS && started.load(std::memory_order_acquire)) PMPI_Info_set(*info, key, kinds.provided.c_str());
  return code;
}

/// What MPI is given in place of `info`.
MPI_Info completed(MPI_Info info) {
  const bool is_replaced = !environment_is_writable && info == MPI_INFO_ENV && started.load(std::memory_order_acquire);
  return is_replaced ? kinds.environment : info;
}

}  // namespace

void memory_kinds_start(bool world) {
  if (started.load()) return;
  kinds.provided = with_cuda(provided_by_mpi(world).value_or(least_kinds));
  kinds.before = value_in(MPI_INFO_ENV);
  kinds.environment = MPI_INFO_ENV;
  if (!environment_is_writable) PMPI_Info_dup(MPI_INFO_ENV, &kinds.environment);
  PMPI_Info_set(kinds.environment, key, kinds.provided.c_str());
  started.store(true, std::memory_order_release);
}

void memory_kinds_stop() {
  if (!started.exchange(false)) return;
  if (!environment_is_writable)
    PMPI_Info_free(&kinds.environment);
  else if (kinds.before)
    PMPI_Info_set(MPI_INFO_ENV, key, kinds.before->c_str());
  else
    PMPI_Info_delete(MPI_INFO_ENV, key);
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Comm_get_info(MPI_Comm comm, MPI_Info* info_used) {
  return complete(PMPI_Comm_get_info(comm, info_used), info_used);
}
GPUDT_EXPORT int MPI_Win_get_info(MPI_Win win, MPI_Info* info_used) {
  return complete(PMPI_Win_get_info(win, info_used), info_used);
}
GPUDT_EXPORT int MPI_File_get_info(MPI_File file, MPI_Info* info_used) {
  return complete(PMPI_File_get_info(file, info_used), info_used);
}

GPUDT_EXPORT int MPI_Info_get(MPI_Info info, const char* name, int length, char* value, int* flag) {
  return PMPI_Info_get(completed(info), name, length, value, flag);
}
GPUDT_EXPORT int MPI_Info_get_valuelen(MPI_Info info, const char* name, int* length, int* flag) {
  return PMPI_Info_get_valuelen(completed(info), name, length, flag);
}
#if defined(GPUDT_MPI_INFO_GET_STRING)
GPUDT_EXPORT int MPI_Info_get_string(MPI_Info info, const char* name, int* length, char* value, int* flag) {
  return PMPI_Info_get_string(completed(info), name, length, value, flag);
}
#endif
GPUDT_EXPORT int MPI_Info_get_nkeys(MPI_Info info, int* keys) {
  return PMPI_Info_get_nkeys(completed(info), keys);
}
GPUDT_EXPORT int MPI_Info_get_nthkey(MPI_Info info, int number, char* name) {
  return PMPI_Info_get_nthkey(completed(info), number, name);
}
GPUDT_EXPORT int MPI_Info_dup(MPI_Info info, MPI_Info* copy) {
  return PMPI_Info_dup(completed(info), copy);
}

#if defined(GPUDT_MPI_SESSIONS)
GPUDT_EXPORT int MPI_Session_get_info(MPI_Session session, MPI_Info* info_used) {
  return complete(PMPI_Session_get_info(session, info_used), info_used);
}
#endif
