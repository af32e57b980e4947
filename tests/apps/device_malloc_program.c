/* An MPI program for host memory, which device_malloc.c makes one for device memory. */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { number = 5000 };

static int on_device(const void* address) {
  struct cudaPointerAttributes attributes;
  return cudaPointerGetAttributes(&attributes, address) == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
}

int main(int argc, char** argv) {
  int* const before = malloc(sizeof *before);
  MPI_Init(&argc, &argv);
  int rank = 0, wrong = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int* out = malloc(number / 2 * sizeof *out);
  for (int i = 0; i < number / 2; ++i) out[i] = 3 * i + rank;
  out = realloc(out, number * sizeof *out);
  for (int i = number / 2; i < number; ++i) out[i] = 3 * i + rank;
  int* const in = calloc(number, sizeof *in);
  void* const aligned = aligned_alloc(64, 64 * sizeof *in);
  for (int i = 0; i < number; ++i) wrong += in[i] != 0;
  wrong += on_device(before) + !on_device(out) + !on_device(in) + !on_device(aligned);
  MPI_Sendrecv(out, number, MPI_INT, 1 - rank, 0, in, number, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (int i = 0; i < number; ++i) wrong += in[i] != 3 * i + 1 - rank;
  free(aligned);
  free(in);
  free(out);
  free(before);
  printf("rank %d: %d wrong\n", rank, wrong);
  MPI_Finalize();
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
