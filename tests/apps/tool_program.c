/* Messages and collectives on device memory, verified, between two ranks; counts its own calls, and tells their numbers
 * at the end in the words of the tool that does the same (tool.c). */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { block = 2, stride = 3 };

static int rank, other, wrong;
static int sends, isends, recvs, irecvs, waits, allreduces, bcasts;

static void cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(error));
  exit(3);
}

/* Blocks of numbers with gaps between them, in device memory. */
struct field {
  int length;
  double* host;
  double* device;
  MPI_Datatype type;
};

static struct field make(int blocks) {
  struct field field = {blocks * stride, malloc(sizeof(double) * (size_t)(blocks * stride)), NULL, MPI_DATATYPE_NULL};
  cuda(cudaMalloc((void**)&field.device, sizeof(double) * (size_t)field.length));
  MPI_Type_vector(blocks, block, stride, MPI_DOUBLE, &field.type);
  MPI_Type_commit(&field.type);
  return field;
}

static void unmake(struct field* field) {
  MPI_Type_free(&field->type);
  cuda(cudaFree(field->device));
  free(field->host);
}

/* `scale` times its place everywhere. */
static void fill(struct field* field, double scale) {
  for (int i = 0; i < field->length; ++i) field->host[i] = scale * i;
  cuda(cudaMemcpy(field->device, field->host, sizeof(double) * (size_t)field->length, cudaMemcpyHostToDevice));
  cuda(cudaDeviceSynchronize());
}

/* The blocks are as fill() with `scale` would make them, the gaps as with `gaps`. */
static void expect(const char* what, struct field* field, double scale, double gaps) {
  cuda(cudaMemcpy(field->host, field->device, sizeof(double) * (size_t)field->length, cudaMemcpyDeviceToHost));
  for (int i = 0; i < field->length; ++i) {
    if (field->host[i] == (i % stride < block ? scale : gaps) * i) continue;
    fprintf(stderr, "rank %d: %s of %d numbers: number %d is %g\n", rank, what, field->length, i, field->host[i]);
    wrong = 1;
    return;
  }
}

static void send(struct field* field) {
  ++sends;
  MPI_Send(field->device, 1, field->type, other, 1, MPI_COMM_WORLD);
}

static void receive(struct field* field) {
  ++recvs;
  MPI_Recv(field->device, 1, field->type, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void wait_for(MPI_Request* request) {
  ++waits;
  MPI_Wait(request, MPI_STATUS_IGNORE);
}

static void blocking(struct field* out, struct field* in) {
  fill(out, 1 + rank);
  fill(in, -1);
  if (rank == 0) send(out);
  receive(in);
  if (rank == 1) send(out);
  expect("MPI_Recv", in, 1 + other, -1);
}

static void nonblocking(struct field* out, struct field* in) {
  MPI_Request requests[2];
  fill(out, 3 + rank);
  fill(in, -1);
  ++irecvs;
  MPI_Irecv(in->device, 1, in->type, other, 2, MPI_COMM_WORLD, &requests[0]);
  ++isends;
  MPI_Isend(out->device, 1, out->type, other, 2, MPI_COMM_WORLD, &requests[1]);
  wait_for(&requests[0]);
  wait_for(&requests[1]);
  expect("MPI_Irecv", in, 3 + other, -1);
}

/* Open MPI makes another call of this one. */
static void replaced(struct field* field) {
  fill(field, 5 + rank);
  MPI_Sendrecv_replace(field->device, 1, field->type, rank == 0 ? other : MPI_PROC_NULL, 3,
                       rank == 0 ? MPI_PROC_NULL : other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  expect("MPI_Sendrecv_replace", field, 5, 5 + rank);
}

static void collectives(struct field* out, struct field* in) {
  fill(out, 7 + rank);
  ++bcasts;
  MPI_Bcast(out->device, 1, out->type, 0, MPI_COMM_WORLD);
  expect("MPI_Bcast", out, 7, 7 + rank);
  fill(out, 9 + rank);
  fill(in, -1);
  ++allreduces;
  MPI_Allreduce(out->device, in->device, out->length, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  expect("MPI_Allreduce", in, 9 + 10, 9 + 10);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  other = 1 - rank;
  for (int blocks = 2; blocks <= 200000; blocks *= 10) {
    struct field out = make(blocks), in = make(blocks);
    blocking(&out, &in);
    for (int i = 0; i < 3; ++i) nonblocking(&out, &in);
    replaced(&out);
    collectives(&out, &in);
    unmake(&out);
    unmake(&in);
  }
  printf("program: rank %d MPI_Send %d\n", rank, sends);
  printf("program: rank %d MPI_Isend %d\n", rank, isends);
  printf("program: rank %d MPI_Recv %d\n", rank, recvs);
  printf("program: rank %d MPI_Irecv %d\n", rank, irecvs);
  printf("program: rank %d MPI_Wait %d\n", rank, waits);
  printf("program: rank %d MPI_Allreduce %d\n", rank, allreduces);
  printf("program: rank %d MPI_Bcast %d\n", rank, bcasts);
  fflush(stdout);
  MPI_Finalize();
  return wrong;
}
