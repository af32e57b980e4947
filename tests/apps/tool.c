/* A tool that counts calls by MPI's profiling interface, as mpiP does, and tells their numbers in MPI_Finalize. With
 * CHAINED it finds MPI's functions by dlsym, as Darshan does, and not as names that the dynamic linker binds. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>

enum { counted = 7 };
static const char* const names[counted] = {"MPI_Send", "MPI_Isend",     "MPI_Recv", "MPI_Irecv",
                                           "MPI_Wait", "MPI_Allreduce", "MPI_Bcast"};
static int calls[counted];

#ifdef CHAINED
#define BEHIND(name) (*(__typeof__(&P##name)*)&(void*){dlsym(RTLD_NEXT, "P" #name)})
#else
#define BEHIND(name) P##name
#endif

#pragma GCC visibility push(default)

int MPI_Send(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  ++calls[0];
  return BEHIND(MPI_Send)(buf, count, type, dest, tag, comm);
}

int MPI_Isend(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request* request) {
  ++calls[1];
  return BEHIND(MPI_Isend)(buf, count, type, dest, tag, comm, request);
}

int MPI_Recv(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status* status) {
  ++calls[2];
  return BEHIND(MPI_Recv)(buf, count, type, source, tag, comm, status);
}

int MPI_Irecv(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request* request) {
  ++calls[3];
  return BEHIND(MPI_Irecv)(buf, count, type, source, tag, comm, request);
}

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  ++calls[4];
  return BEHIND(MPI_Wait)(request, status);
}

int MPI_Allreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  ++calls[5];
  return BEHIND(MPI_Allreduce)(sendbuf, recvbuf, count, type, op, comm);
}

int MPI_Bcast(void* buf, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  ++calls[6];
  return BEHIND(MPI_Bcast)(buf, count, type, root, comm);
}

int MPI_Finalize(void) {
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 0; i < counted; ++i) printf("tool: rank %d %s %d\n", rank, names[i], calls[i]);
  fflush(stdout);
  return PMPI_Finalize();
}
