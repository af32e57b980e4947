// Tells datatypes that were made from MPI's own.
#pragma once

#include <mpi.h>

namespace gpudt::test {

/// `type` was made, and is to be freed.
inline bool is_derived(MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL) return false;
  int combiner = MPI_COMBINER_NAMED;
#ifdef GPUDT_MPI_LARGE_COUNTS  // the other fails for types that were made with large counts
  MPI_Count ints = 0, addresses = 0, counts = 0, types = 0;
  PMPI_Type_get_envelope_c(type, &ints, &addresses, &counts, &types, &combiner);
#else
  int ints = 0, addresses = 0, types = 0;
  PMPI_Type_get_envelope(type, &ints, &addresses, &types, &combiner);
#endif
  return combiner != MPI_COMBINER_NAMED;
}

}  // namespace gpudt::test
