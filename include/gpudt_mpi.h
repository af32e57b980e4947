/* gpudt_mpi.h: which way data in GPU memory go, and why; where the memory of dynamic windows is; float16 and bfloat16.
 * C99 and C++. Needs mpi.h; gpudt.h needs none.
 *
 * Each gpudt_route_ function sets *way to one of the values below and writes at most `size` bytes to `text`, the end of
 * the string included: the way as docs/report.md names it and, if it leads through the host, the reason ("mapped
 * staging: GPUDT_PROTOCOL"). `text` may be NULL if `size` is 0. They return MPI_SUCCESS or the code of an error, for
 * which they have called the error handler of the communicator or window, or of MPI_COMM_WORLD for a request. They send
 * nothing.
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

/* Memory that a process has attached to a dynamic window. */
typedef struct gpudt_region {
  int rank;         /* of that process, in the window */
  int on_gpu;       /* 1: memory of a GPU; 0: of the host */
  MPI_Aint address; /* in that process, as from MPI_Get_address */
  MPI_Aint size;    /* bytes */
  void* here;       /* where GPU `gpu` of this process reaches it by loads and stores; NULL if it does not */
} gpudt_region;

/* Counterpart of MPI_Win_shared_query for dynamic windows: sets *regions to an array, sorted by rank and address, of
 * the regions that are attached to `win` now (MPI_Win_attach), and *count to its length. The array is allocated by
 * malloc; the caller frees it. `gpu`: a CUDA device number of this process. It reaches memory of cudaMalloc, and of
 * cuMemCreate with file descriptors as handles, of processes of its node, unless GPUDT_ORDER or GPUDT_CHECK is set;
 * else `here` is NULL. The addresses are valid until the memory is detached or the window freed, those of cuMemCreate
 * also until the next call if more has been mapped beside the memory. Memory that was mapped by this call stays
 * allocated after its owner frees it, until the next call or MPI_Win_free.
 *
 * Collective over the processes of the window, which attach and detach nothing meanwhile. Returns MPI_SUCCESS or the
 * code of an error, for which it has called the window's handler: MPI_ERR_RMA_FLAVOR for other windows, and for those
 * that gpudt does not serve (a process without gpudt, none with a GPU). */
int gpudt_win_regions(MPI_Win win, int gpu, gpudt_region** regions, int* count);

/* Set *type to the datatype of IEEE's binary16 (CUDA's __half), or of bfloat16. It is like a predefined one: committed,
 * the same handle in each call; MPI_Type_free only sets its argument to MPI_DATATYPE_NULL. But MPI_Get_elements and
 * MPI_Pack_external see two bytes, MPI_Type_get_envelope and _get_contents a derived type, and reductions take no copy
 * that MPI_Type_dup makes (MPI_ERR_OP). It is valid until MPI_Finalize, without MPI_Init until the last session ends;
 * with GPUDT_DISABLE=1 no longer in callbacks that the program had set on MPI_COMM_SELF before the first call.
 *
 * MPI_SUM, MPI_PROD, MPI_MIN and MPI_MAX take it in all reductions, of memory of the host or of GPUs, and in
 * accumulates to windows that have memory of a GPU on some rank. In accumulates to other windows these four, and
 * everywhere the other operators that MPI_FLOAT does not take, give MPI_ERR_OP. MPI_REPLACE, MPI_NO_OP and user-defined
 * operators do what they do with any datatype. GPUs combine elements in the order of ranks, the host in that which MPI
 * chooses for user-defined operators.
 *   - Each sum and product is rounded to the nearest value, ties to even, as by __hadd and __hmul and in NCCL. Values
 *     too large become infinite, subnormal ones are kept, what is not a number becomes 0x7fff. The program's mode of
 *     rounding, and whether it flushes subnormal floats, change nothing.
 *   - MPI_MIN and MPI_MAX compare by IEEE's totalOrder: -0 is less than 0, and what is not a number lies beyond the
 *     infinite value of its sign.
 *
 * Over MPICH 5 reductions of its own types, MPIX_C_FLOAT16 and MPIX_BFLOAT16, give the same results; MPICH 4.0 aborts.
 * Accumulates of them to windows without memory of GPUs are MPICH's. Formats of 8 bits can be sent as MPI_BYTE; they
 * are not reduced.
 *
 * Both return MPI_SUCCESS or, before MPI_Init, after MPI_Finalize and where MPI_Init has not come through the library
 * or that was built for another MPI, MPI_ERR_OTHER without calling an error handler. Other errors go to the handler of
 * MPI_COMM_WORLD. Thread-safe; they send nothing. They work with GPUDT_DISABLE=1, too. */
int gpudt_type_float16(MPI_Datatype* type);
int gpudt_type_bfloat16(MPI_Datatype* type);

#ifdef __cplusplus
}
#endif

#endif
