/* Two-dimensional halo exchange: a grid in GPU memory, its rows and columns as MPI datatypes.
   mpicc halo2d.c -o halo2d -lcudart && mpirun -n 4 -x LD_PRELOAD=libgpudt-pmpi.so ./halo2d */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { n = 64, width = n + 2 }; /* inner cells in each direction; with the halo */

static double value(int rank, int row, int column) {
  return rank * 1e6 + row * 1e3 + column;
}

/* The inner cell of `rank` on that side, as seen from beyond it. */
static int wrong(const double* cells, int rank, int row, int column, int their_row, int their_column) {
  return rank != MPI_PROC_NULL && cells[row * width + column] != value(rank, their_row, their_column);
}

int main(int argc, char** argv) {
  int rank, size, dims[2] = {0, 0}, periods[2] = {1, 1}, gpus = 1, up, down, left, right, errors = 0, all;
  double *grid, *host = malloc(width * width * sizeof(double));
  MPI_Comm comm;
  MPI_Datatype row, column;

  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Dims_create(size, 2, dims);
  MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &comm);
  MPI_Comm_rank(comm, &rank);
  MPI_Cart_shift(comm, 0, 1, &up, &down);
  MPI_Cart_shift(comm, 1, 1, &left, &right);
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);

  for (int i = 0; i < width; ++i)
    for (int j = 0; j < width; ++j) host[i * width + j] = value(rank, i, j);
  cudaMalloc((void**)&grid, width * width * sizeof(double));
  cudaMemcpy(grid, host, width * width * sizeof(double), cudaMemcpyHostToDevice);
  cudaDeviceSynchronize(); /* MPI does not wait for the program's own work on the GPU */

  MPI_Type_contiguous(n, MPI_DOUBLE, &row);
  MPI_Type_vector(n, 1, width, MPI_DOUBLE, &column);
  MPI_Type_commit(&row);
  MPI_Type_commit(&column);
#define CELL(i, j) (grid + (i)*width + (j))
  MPI_Request requests[8];
  MPI_Irecv(CELL(0, 1), 1, row, up, 0, comm, &requests[0]);
  MPI_Irecv(CELL(n + 1, 1), 1, row, down, 1, comm, &requests[1]);
  MPI_Irecv(CELL(1, 0), 1, column, left, 2, comm, &requests[2]);
  MPI_Irecv(CELL(1, n + 1), 1, column, right, 3, comm, &requests[3]);
  MPI_Isend(CELL(n, 1), 1, row, down, 0, comm, &requests[4]);
  MPI_Isend(CELL(1, 1), 1, row, up, 1, comm, &requests[5]);
  MPI_Isend(CELL(1, n), 1, column, right, 2, comm, &requests[6]);
  MPI_Isend(CELL(1, 1), 1, column, left, 3, comm, &requests[7]);
  MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);

  cudaMemcpy(host, grid, width * width * sizeof(double), cudaMemcpyDeviceToHost);
  for (int i = 1; i <= n; ++i) {
    errors += wrong(host, up, 0, i, n, i) + wrong(host, down, n + 1, i, 1, i);
    errors += wrong(host, left, i, 0, i, n) + wrong(host, right, i, n + 1, i, 1);
  }
  MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("halo2d: %d x %d processes, %s\n", dims[0], dims[1], all == 0 ? "all right" : "WRONG");
  MPI_Type_free(&row);
  MPI_Type_free(&column);
  MPI_Comm_free(&comm);
  cudaFree(grid);
  free(host);
  MPI_Finalize();
  return all != 0;
}
