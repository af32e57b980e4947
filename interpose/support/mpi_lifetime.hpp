// From MPI_Init to MPI_Finalize.
#pragma once

#include <mpi.h>

namespace gpudt::interpose {

/// Whether MPI is initialized and not finalized, by MPI_Init. Sessions do not count.
bool mpi_is_active();
/// Has MPI_Finalize call `function` at its beginning, as the delete callback of an attribute of MPI_COMM_SELF: before
/// those that were set earlier.
void call_in_finalize(MPI_Comm_delete_attr_function* function);

}  // namespace gpudt::interpose
