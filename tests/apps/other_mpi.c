// An ordinary MPI program on host memory: what goes around a ring comes back. To be run with a libgpudt-pmpi.so that
// was built for another MPI library, and so refuses to make datatypes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm ring = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &ring);
  MPI_Comm_rank(ring, &rank);
  MPI_Comm_size(ring, &ranks);

  MPI_Datatype pairs = MPI_DATATYPE_NULL;
  MPI_Type_vector(100, 1, 2, MPI_INT, &pairs);
  MPI_Type_commit(&pairs);
  int out[200], in[200], right = 1;
  for (int i = 0; i < 200; ++i) {
    out[i] = rank * 1000 + i;
    in[i] = -1;
  }
  MPI_Request requests[2];
  MPI_Irecv(in, 1, pairs, (rank + ranks - 1) % ranks, 7, ring, &requests[0]);
  MPI_Isend(out, 1, pairs, (rank + 1) % ranks, 7, ring, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  for (int i = 0; i < 200; ++i) right = right && in[i] == (i % 2 == 0 ? (rank + ranks - 1) % ranks * 1000 + i : -1);

  int sum = -1, all_right = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, ring);
  right = right && sum == ranks * (ranks - 1) / 2;
  MPI_Allreduce(&right, &all_right, 1, MPI_INT, MPI_MIN, ring);
  MPI_Type_free(&pairs);
  MPI_Comm_free(&ring);
  int (*const make)(MPI_Datatype*) = (int (*)(MPI_Datatype*))dlsym(RTLD_DEFAULT, "gpudt_type_float16");
  if (make != NULL) all_right = all_right && make(&pairs) != MPI_SUCCESS;
  if (rank == 0) printf("%s\n", all_right ? "right" : "WRONG");
  MPI_Finalize();
  return all_right ? 0 : 1;
}
