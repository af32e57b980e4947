// MPICH's constants without a value in mpi_f08. They are variables of its libraries, or the program's copies.
#include "interpose/fortran/constants.hpp"

#include <dlfcn.h>

#include <atomic>

#include "interpose/support/loaded.hpp"

namespace gpudt::interpose::fortran {

namespace {

/// The program's copy, or else the variable of any loaded library. Null if there is none yet.
const void* constant(const char* name) {
  const void* const first = dlsym(RTLD_DEFAULT, name);
  return first != nullptr ? first : loaded_function(name);
}

bool is(const void* address, const char* name, std::atomic<const void*>& known) {
  if (known.load(std::memory_order_relaxed) == nullptr) known.store(constant(name), std::memory_order_relaxed);
  return address != nullptr && address == known.load(std::memory_order_relaxed);
}

}  // namespace

bool is_bottom(const void* address) {
  static std::atomic<const void*> known{nullptr};
  return is(address, "MPIR_F08_MPI_BOTTOM", known);
}
bool is_in_place(const void* address) {
  static std::atomic<const void*> known{nullptr};
  return is(address, "MPIR_F08_MPI_IN_PLACE", known);
}
bool is_status_ignore(const void* address) {
  static std::atomic<const void*> known{nullptr};
  return is(address, "MPIR_F08_MPI_STATUS_IGNORE_OBJ", known);
}
bool is_statuses_ignore(const void* address) {
  static std::atomic<const void*> known{nullptr};
  return is(address, "MPIR_F08_MPI_STATUSES_IGNORE_OBJ", known);
}

}  // namespace gpudt::interpose::fortran
