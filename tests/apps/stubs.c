/* A library of MPI stubs for one process, such as sequential programs are linked to: MPI_X without PMPI_X, and
 * Fortran's procedures. Handles are integers. It counts its calls. */
#include <string.h>

static int calls = 0;

int stub_calls(void) {
  return calls;
}

static int all_is_well(void) {
  ++calls;
  return 0;
}

int MPI_Init(int* argc, char*** argv) {
  (void)argc, (void)argv;
  return all_is_well();
}
int MPI_Comm_rank(int comm, int* rank) {
  (void)comm, *rank = 0;
  return all_is_well();
}
int MPI_Allreduce(const void* from, void* to, int count, int type, int op, int comm) {
  (void)type, (void)op, (void)comm;
  memcpy(to, from, sizeof(int) * (size_t)count);
  return all_is_well();
}
int MPI_Finalize(void) {
  return all_is_well();
}

void mpi_init_(int* error) {
  *error = all_is_well();
}
void mpi_comm_rank_(const int* comm, int* rank, int* error) {
  *error = MPI_Comm_rank(*comm, rank);
}
void mpi_allreduce_(const int* from, int* to, const int* count, const int* type, const int* op, const int* comm,
                    int* error) {
  *error = MPI_Allreduce(from, to, *count, *type, *op, *comm);
}
void mpi_finalize_(int* error) {
  *error = all_is_well();
}
