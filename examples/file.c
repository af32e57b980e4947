/* A file written by all processes from GPU memory: each has a column of blocks of one matrix, and reads it back.
   mpicc file.c -o file -lcudart && mpirun -n 4 -x LD_PRELOAD=libgpudt-pmpi.so ./file /tmp/matrix */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { rows = 100, columns = 32 }; /* of a process's part */

int main(int argc, char** argv) {
  int rank, size, gpus = 1, errors = 0, all;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);

  double *part, *host = malloc(rows * columns * sizeof(double));
  for (int i = 0; i < rows * columns; ++i) host[i] = rank * 1e6 + i;
  cudaMalloc((void**)&part, rows * columns * sizeof(double));
  cudaMemcpy(part, host, rows * columns * sizeof(double), cudaMemcpyHostToDevice);
  cudaDeviceSynchronize(); /* MPI does not wait for the program's own work on the GPU */

  /* Where the part lies in the file: a matrix with the parts side by side. */
  const int sizes[2] = {rows, columns * size}, subsizes[2] = {rows, columns}, starts[2] = {0, columns * rank};
  MPI_Datatype place;
  MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, &place);
  MPI_Type_commit(&place);
  MPI_File file;
  MPI_File_open(MPI_COMM_WORLD, argc > 1 ? argv[1] : "matrix",
                MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file);
  MPI_File_set_view(file, 0, MPI_DOUBLE, place, "native", MPI_INFO_NULL);
  MPI_File_write_at_all(file, 0, part, rows * columns, MPI_DOUBLE, MPI_STATUS_IGNORE);
  cudaMemset(part, 0, rows * columns * sizeof(double));
  cudaDeviceSynchronize();
  MPI_File_read_at_all(file, 0, part, rows * columns, MPI_DOUBLE, MPI_STATUS_IGNORE);
  MPI_File_close(&file);

  cudaMemcpy(host, part, rows * columns * sizeof(double), cudaMemcpyDeviceToHost);
  for (int i = 0; i < rows * columns; ++i) errors += host[i] != rank * 1e6 + i;
  MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("file: %d processes, %s\n", size, all == 0 ? "all right" : "WRONG");
  MPI_Type_free(&place);
  cudaFree(part);
  free(host);
  MPI_Finalize();
  return all != 0;
}
