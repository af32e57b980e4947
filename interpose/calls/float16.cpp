// gpudt_mpi.h: the datatypes of float16 and bfloat16.
#include "include/gpudt_mpi.h"
#include "interpose/requests/float16_types.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/mpi_lifetime.hpp"
#include "interpose/support/passed_by.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {
namespace {

/// Whether MPI works, and is the library that this one was built for: otherwise even its handles are unknown.
bool mpi_works() {
  return init_noted() && !other_mpi_noted() && (mpi_is_active() || active.load());
}

/// In processes in which gpudt is off, and so does not stop (environment.cpp). MPICH complains of types that are left.
int free_types(MPI_Comm, int, void*, void*) {
  float16_types_stop();
  return MPI_SUCCESS;
}

int give(const char* call, device::Element element, MPI_Datatype* type) {
  if (!mpi_works()) return MPI_ERR_OTHER;
  return guarded(MPI_COMM_NULL, call, [&] {
    if (type == nullptr) throw MpiError(MPI_ERR_ARG, "argument type is NULL; it takes the address of an MPI_Datatype");
    if (!active.load() && !float16_types_exist()) call_in_finalize(free_types);
    *type = float16_type(element);
    return int(MPI_SUCCESS);
  });
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int gpudt_type_float16(MPI_Datatype* type) {
  return give("gpudt_type_float16", gpudt::device::Element::float16, type);
}

GPUDT_EXPORT int gpudt_type_bfloat16(MPI_Datatype* type) {
  return give("gpudt_type_bfloat16", gpudt::device::Element::bfloat16, type);
}
