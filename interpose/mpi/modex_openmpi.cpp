// Open MPI exchanges addresses by PMIx: each process puts its data and commits them, then all processes enter a fence
// that collects the data. This file defines PMIx_Commit, which Open MPI calls instead of PMIx's own, and which
// puts one more number. So the number takes the same PMIx library and connection as Open MPI's data, and is available
// after the fence. An Open MPI 4 that was built with its own PMIx under other names, or is started by PMI-2, never
// calls the function; then nothing is known. Over Open MPI 5 it puts nothing: PRRTE 3.0 delivers the data to some nodes
// and not to others, so that processes would get different answers.
#include "interpose/mpi/modex.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/mpi/pmix_openmpi.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/passed_by.hpp"

namespace gpudt::interpose {
namespace {

// From pmix_common.h, like those in pmix_openmpi.hpp.
constexpr std::uint16_t pmix_bool = 1, pmix_int32 = 9;
constexpr std::uint8_t pmix_global = 3;
struct PmixValue {
  std::uint16_t type = 0;
  union {
    bool flag;
    std::int32_t number;
    std::uint64_t room[3] = {};
  } data;
};
struct PmixInfo {
  char key[512] = "";
  std::uint32_t flags = 0;
  PmixValue value;
};
struct PmixProcess {
  char job[256] = "";
  std::uint32_t rank = 0;
};
using Put = int(std::uint8_t scope, const char* key, PmixValue* value);
using Commit = int();
using Get = int(const PmixProcess* process, const char* key, const PmixInfo* directives, std::size_t count,
                PmixValue** value);

constexpr const char* own_key = "gpudt.collectives";
constexpr int not_asked = -1;

/// The number that the next commit puts; 0: none.
std::atomic<int> offer{0};

struct Modex {
  Mutex mutex;
  Get* get GUARDED_BY(mutex) = nullptr;      ///< null if this process has put no number: then it gets none
  PmixProcess asked GUARDED_BY(mutex);       ///< in the job of this process
  std::vector<int> known GUARDED_BY(mutex);  ///< by rank
};
auto& modex = never_destroyed<Modex>();

bool is_set(const char* variable, bool otherwise) {
  const auto* const value = static_cast<const bool*>(dlsym(RTLD_DEFAULT, variable));
  return value == nullptr ? otherwise : *value;
}

/// Whether the fence in MPI_Init waits for all processes, and gives the data of each to all.
bool fence_collects() {
  const bool is_openmpi4 = dlsym(RTLD_DEFAULT, "opal_pmix") != nullptr;
  return is_openmpi4 && is_set("opal_pmix_collect_all_data", false) && !is_set("opal_pmix_base_async_modex", true) &&
         !is_set("ompi_async_mpi_init", true);
}

void tell(int what, const void* caller) {
  auto* const put = pmix_of<Put>(caller, "PMIx_Put");
  auto* const get = pmix_of<Get>(caller, "PMIx_Get");
  const char* const job = std::getenv("PMIX_NAMESPACE");
  if (put == nullptr || get == nullptr || job == nullptr || !fence_collects()) return;
  const LockGuard lock(modex.mutex);
  if (std::strlen(job) >= sizeof modex.asked.job) return;
  std::strcpy(modex.asked.job, job);
  PmixValue value;
  value.type = pmix_int32;
  value.data.number = what;
  if (put(pmix_global, own_key, &value) == pmix_success) modex.get = get;
}

/// `directive`: the PMIx key that limits where PMIx searches. Returns a PMIx code.
int look_up(int world_rank, const char* directive, int& found) REQUIRES(modex.mutex) {
  PmixInfo info;
  std::strcpy(info.key, directive);
  info.value.type = pmix_bool;
  info.value.data.flag = true;
  modex.asked.rank = static_cast<std::uint32_t>(world_rank);
  PmixValue* value = nullptr;
  const int code = modex.get(&modex.asked, own_key, &info, 1, &value);
  if (code == pmix_success && value != nullptr && value->type == pmix_int32) found = value->data.number;
  std::free(value);
  return code;
}

}  // namespace

void modex_offer(int what) {
  offer.store(what);
}

int modex_offered(int world_rank) {
  const LockGuard lock(modex.mutex);
  if (modex.get == nullptr || world_rank < 0) return 0;
  const auto rank = static_cast<std::size_t>(world_rank);
  if (modex.known.size() <= rank) modex.known.resize(rank + 1, not_asked);
  if (modex.known[rank] != not_asked) return modex.known[rank];
  int found = 0;
  // Searches the data of this process, then those of the node's server: neither contacts other nodes, nor waits.
  if (look_up(world_rank, "pmix.optional", found) != pmix_success) look_up(world_rank, "pmix.immediate", found);
  return modex.known[rank] = found;
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

/// Called by Open MPI, or by the program itself.
GPUDT_EXPORT int PMIx_Commit() {
  const void* const caller = __builtin_return_address(0);
  warn_if_passed_by();
  if (const int what = offer.exchange(0); what != 0) tell(what, caller);
  auto* const commit = pmix_of<Commit>(caller, "PMIx_Commit");
  return commit == nullptr ? pmix_not_found : commit();
}
