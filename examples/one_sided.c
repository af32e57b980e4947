/* One-sided communication: each process puts a block into the next one's GPU memory, gets it back, and counts itself
   in. mpicc one_sided.c -o one_sided -lcudart && mpirun -n 4 -x LD_PRELOAD=libgpudt-pmpi.so ./one_sided */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { count = 1000, bytes = count * sizeof(int) };

int main(int argc, char** argv) {
  int rank, size, gpus = 1, errors = 0, all, counter;
  int *shared, *block, *one, host[count + 1] = {0};
  MPI_Win window;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);

  cudaMalloc((void**)&shared, bytes + sizeof(int)); /* the block, and a counter behind it */
  cudaMalloc((void**)&block, bytes);
  cudaMalloc((void**)&one, sizeof(int));
  cudaMemcpy(shared, host, sizeof host, cudaMemcpyHostToDevice);
  for (int i = 0; i < count; ++i) host[i] = rank * count + i;
  cudaMemcpy(block, host, bytes, cudaMemcpyHostToDevice);
  counter = 1;
  cudaMemcpy(one, &counter, sizeof counter, cudaMemcpyHostToDevice);
  cudaDeviceSynchronize(); /* MPI does not wait for the program's own work on the GPU */

  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  MPI_Win_create(shared, bytes + sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  MPI_Put(block, count, MPI_INT, next, 0, count, MPI_INT, window);
  MPI_Win_flush(next, window); /* it is in the next one's memory, who need not call MPI for that */
  cudaMemset(block, 0, bytes);
  cudaDeviceSynchronize();
  MPI_Get(block, count, MPI_INT, next, 0, count, MPI_INT, window);
  MPI_Accumulate(one, 1, MPI_INT, 0, count, 1, MPI_INT, MPI_SUM, window);
  MPI_Win_unlock_all(window);
  MPI_Barrier(MPI_COMM_WORLD);

  cudaMemcpy(host, block, bytes, cudaMemcpyDeviceToHost);
  for (int i = 0; i < count; ++i) errors += host[i] != rank * count + i;
  cudaMemcpy(host, shared, bytes + sizeof(int), cudaMemcpyDeviceToHost);
  for (int i = 0; i < count; ++i) errors += host[i] != previous * count + i;
  if (rank == 0) errors += host[count] != size;
  MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("one_sided: %d processes, %s\n", size, all == 0 ? "all right" : "WRONG");
  MPI_Win_free(&window);
  cudaFree(shared);
  cudaFree(block);
  cudaFree(one);
  MPI_Finalize();
  return all != 0;
}
