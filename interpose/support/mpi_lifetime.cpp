#include "interpose/support/mpi_lifetime.hpp"

namespace gpudt::interpose {

bool mpi_is_active() {
  int begun = 0, ended = 0;
  PMPI_Initialized(&begun);
  PMPI_Finalized(&ended);
  return begun != 0 && ended == 0;
}

void call_in_finalize(MPI_Comm_delete_attr_function* function) {
  int key = MPI_KEYVAL_INVALID;
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, function, &key, nullptr);
  PMPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
  PMPI_Comm_free_keyval(&key);
}

}  // namespace gpudt::interpose
