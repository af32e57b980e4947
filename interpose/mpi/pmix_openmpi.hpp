// The PMIx library that Open MPI calls, which gpudt is built without. What stands here is the same in all versions from
// 2 on, which are all called libpmix.so.2 (pmix_common.h).
#pragma once

namespace gpudt::interpose {

constexpr int pmix_success = 0, pmix_not_found = -46, pmix_model_declared = -147;

/// The function of this name in the PMIx library of the caller, never this library's own; null if there is none, or no
/// memory to find it. If Open MPI has loaded PMIx only for a plug-in, it is among the dependencies of that plug-in.
void* pmix_function(const void* caller, const char* name) noexcept;

template <class Function>
Function* pmix_of(const void* caller, const char* name) {
  return reinterpret_cast<Function*>(pmix_function(caller, name));
}

}  // namespace gpudt::interpose
