// MPI-4.1 section 6.9.7: local reductions.
#include "interpose/collectives/aliases.hpp"
#include "interpose/collectives/reductions.hpp"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/requests/float16_types.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"

using namespace gpudt::interpose;

namespace {

template <class Count>
int reduce_local(const char* call, int (*pmpi)(const void*, void*, Count, MPI_Datatype, MPI_Op), const void* inbuf,
                 void* inoutbuf, Count count, MPI_Datatype type, MPI_Op op) {
  return guarded(MPI_COMM_WORLD, call, [&]() -> int {
    const bool alias = is_alias(inbuf, inoutbuf);
    if (!alias && reduce_locally(call, inbuf, inoutbuf, count, type, op)) return MPI_SUCCESS;
    CallBuffers c(call, {.comm = MPI_COMM_WORLD});
    const Given inout = c.reduction(Role::inout, inoutbuf, count, type);
    const Given in = alias ? inout : c.reduction(Role::in, inbuf, count, type);
    return c.run([&] { return pmpi(in.buffer, inout.buffer, count, type, operator_for_mpi(op, type)); });
  });
}

}  // namespace

GPUDT_EXPORT int MPI_Reduce_local(const void* inbuf, void* inoutbuf, int count, MPI_Datatype type, MPI_Op op) {
  return reduce_local("MPI_Reduce_local", PMPI_Reduce_local, inbuf, inoutbuf, count, type, op);
}
#if defined(GPUDT_MPI_LARGE_COUNTS)
GPUDT_EXPORT int MPI_Reduce_local_c(const void* inbuf, void* inoutbuf, MPI_Count count, MPI_Datatype type, MPI_Op op) {
  return reduce_local("MPI_Reduce_local_c", PMPI_Reduce_local_c, inbuf, inoutbuf, count, type, op);
}
#endif
