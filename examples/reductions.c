/* Reductions of arrays in GPU memory: a sum over all processes, and each process's part of another.
   mpicc reductions.c -o reductions -lcudart && mpirun -n 4 -x LD_PRELOAD=libgpudt-pmpi.so ./reductions */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { part = 1000 }; /* elements for each process */

int main(int argc, char** argv) {
  int rank, size, gpus = 1, errors = 0, all;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);

  const int count = part * size;
  const size_t bytes = (size_t)count * sizeof(double);
  double *host = malloc(bytes), *given, *sum, *mine;
  for (int i = 0; i < count; ++i) host[i] = i + rank;
  cudaMalloc((void**)&given, bytes);
  cudaMalloc((void**)&sum, bytes);
  cudaMalloc((void**)&mine, part * sizeof(double));
  cudaMemcpy(given, host, bytes, cudaMemcpyHostToDevice);
  cudaDeviceSynchronize(); /* MPI does not wait for the program's own work on the GPU */

  MPI_Allreduce(given, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Reduce_scatter_block(given, mine, part, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);

  cudaMemcpy(host, sum, bytes, cudaMemcpyDeviceToHost);
  for (int i = 0; i < count; ++i) errors += host[i] != (double)size * i + size * (size - 1) / 2;
  cudaMemcpy(host, mine, part * sizeof(double), cudaMemcpyDeviceToHost);
  for (int i = 0; i < part; ++i) errors += host[i] != rank * part + i + size - 1;
  MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("reductions: %d processes, %s\n", size, all == 0 ? "all right" : "WRONG");
  cudaFree(given);
  cudaFree(sum);
  cudaFree(mine);
  free(host);
  MPI_Finalize();
  return all != 0;
}
