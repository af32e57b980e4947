/* What a user builds against gpudt as it is installed: a vector in GPU memory goes to the other ranks in a ring. */
#include <cuda_runtime_api.h>
#include <gpudt.h>
#include <gpudt_mpi.h>
#include <mpi.h>
#include <stdio.h>

enum { count = 1000, stride = 3 };

int main(int argc, char** argv) {
  static int host[count * stride];
  int rank, size, wrong = 0, all_wrong = 0;
  int *out = NULL, *in = NULL;
  MPI_Datatype vector, half;
  wrong += gpudt_type_float16(&half) != MPI_ERR_OTHER; /* MPI does not work yet */
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 0; i < count * stride; ++i) host[i] = rank * 100000 + i;
  if (cudaMalloc((void**)&out, sizeof host) != cudaSuccess || cudaMalloc((void**)&in, sizeof host) != cudaSuccess)
    MPI_Abort(MPI_COMM_WORLD, 2);
  cudaMemcpy(out, host, sizeof host, cudaMemcpyHostToDevice);
  cudaMemset(in, 0, sizeof host);
  cudaDeviceSynchronize();
  MPI_Type_vector(count, 1, stride, MPI_INT, &vector);
  MPI_Type_commit(&vector);
  const int left = (rank + size - 1) % size;
  MPI_Sendrecv(out, 1, vector, (rank + 1) % size, 0, in, 1, vector, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  cudaMemcpy(host, in, sizeof host, cudaMemcpyDeviceToHost);
  for (int i = 0; i < count * stride; ++i) wrong += host[i] != (i % stride == 0 ? left * 100000 + i : 0);
  MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("gpudt %s, active %d, %d wrong\n", gpudt_version(), gpudt_active(), all_wrong);
  MPI_Type_free(&vector);
  cudaFree(out);
  cudaFree(in);
  MPI_Finalize();
  return all_wrong != 0 || gpudt_type_float16(&half) != MPI_ERR_OTHER;
}
