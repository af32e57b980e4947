/* gpudt_mpi.h: which way data in GPU memory go, and why. C99 and C++. Needs mpi.h; gpudt.h needs none.
 *
 * Each function sets *way to one of the values below and writes at most `size` bytes to `text`, the end of the string
 * included: the way as docs/report.md names it and, if it leads through the host, the reason ("mapped staging:
 * GPUDT_PROTOCOL"). `text` may be NULL if `size` is 0. They return MPI_SUCCESS or the code of an error, for which they
 * have called the error handler of the communicator or window, or of MPI_COMM_WORLD for a request. They send nothing.
 *
 * To make a way through the host an error, set GPUDT_REQUIRE=gpu in the environment.
 */
#ifndef GPUDT_MPI_H
#define GPUDT_MPI_H

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUDT_WAY_HOST 0 /* through memory of the host */
#define GPUDT_WAY_GPU 1  /* from GPU to GPU, or in GPU memory given to an MPI library that takes it */
#define GPUDT_WAY_NONE \
  2 /* gpudt has nothing to do with it: no data in GPU memory, gpudt is off, MPI serves the window */
#define GPUDT_WAY_OPEN 3 /* not decided yet, or not known: `text` tells why */

/* How a standard send of (buf, count, datatype) to rank `dest` of `comm` would go now. A way by GPUs is the sender's
 * view: the receiver may have its buffer on the host, or a GPU that does not reach the sender's memory, of which the
 * first message tells. For collectives see the reasons of GPUDT_REQUIRE. */
int gpudt_route_message(const void* buf, MPI_Count count, MPI_Datatype datatype, int dest, MPI_Comm comm, int* way,
                        char* text, int size);

/* How the data of a request of a nonblocking or started persistent operation go, or have gone, before the request is
 * completed by MPI_Wait or the like. Known only with GPUDT_REPORT, or with GPUDT_REQUIRE other than none. A request of
 * a receive is open until its message has come. */
int gpudt_route_request(MPI_Request request, int* way, char* text, int size);

/* How accesses of this process's GPU to the memory of rank `target` in `win` go. Accumulates that GPUs do not support,
 * and accesses with a buffer of several memories, go through the host nevertheless. */
int gpudt_route_window(MPI_Win win, int target, int* way, char* text, int size);

#ifdef __cplusplus
}
#endif

#endif
