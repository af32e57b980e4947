/* gpudt.h: what libgpudt-pmpi.so exports beside MPI's own names.
 *
 * A program needs none of this: gpudt works on unmodified MPI programs, preloaded (LD_PRELOAD) or linked before the MPI
 * library (-lgpudt-pmpi). These functions let a program ask whether the library is there. C99 and C++.
 *
 * A program that should run both with and without the library looks these functions up with dlsym(RTLD_DEFAULT, ...),
 * or declares them weak and tests their addresses against NULL.
 */
#ifndef GPUDT_H
#define GPUDT_H

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is loaded, as "MAJOR.MINOR.PATCH".
 *
 * Returns a string with static storage duration: do not free it. Never NULL. May be called at any time, before MPI_Init
 * and after MPI_Finalize too, from any thread.
 */
const char* gpudt_version(void);

/* Whether MPI calls take GPU pointers in this process now.
 *
 * Returns 1 between MPI_Init and MPI_Finalize if the library has found a GPU runtime (CUDA, or the simulated device
 * libgpudt-sim.so). Returns 0 otherwise:
 *   - before MPI_Init (or MPI_Init_thread) and after MPI_Finalize;
 *   - with GPUDT_DISABLE=1 or GPUDT_DEVICE=none, and where no GPU runtime can be loaded;
 *   - where the library was built for another family of MPI libraries than the program runs over, which it says on
 *     standard error when it is loaded.
 * Where it returns 0, all calls go to the MPI library as they are, and GPU pointers crash in an MPI library that does
 * not support them.
 *
 * The answer is for this process only; other processes may run without the library.
 * May be called at any time, from any thread; it neither communicates nor calls the GPU driver.
 */
int gpudt_active(void);

/* Counters of this process since MPI_Init: number `index`, from 0 on. Sets *name to a string with static storage
 * duration and *value to the count; either may be NULL. Returns 1, or 0 where there is no such counter.
 *
 *   buffers_by_gpus, bytes_by_gpus              buffers in GPU memory whose data GPUs moved
 *   buffers_through_host, bytes_through_host    those whose data went through memory of the host
 *   messages_offered                            messages that the receiver's GPU was to fetch. Of these:
 *   messages_refused, messages_declined         through shared memory: the receiver could not fetch, or sender write
 * them messages_buffered                           short ones, copied away since no receive came in time
 *   messages_packed, messages_put               packed first by the sender's GPU; written by it
 *   messages_in_fragments                       to other nodes
 *   collectives_by_gpus                         collective calls
 *   messages_from_host                          from host memory, offered to the receiver's GPU
 *
 * They count only with GPUDT_REPORT, or with GPUDT_REQUIRE other than none. May be called at any time, from any thread.
 * Then they are performance variables of MPI's tool interface, too (MPI_T_pvar_...), named gpudt_buffers_by_gpus etc.:
 * of class counter, read-only, not bound to objects; a handle counts between MPI_T_pvar_start and MPI_T_pvar_stop.
 */
int gpudt_counter(int index, const char** name, long long* value);

/* The library also answers the questions of CUDA-aware MPI libraries, which are declared in their own headers:
 *
 *   int MPIX_Query_cuda_support(void)                      Open MPI, mpi-ext.h
 *   int MPIX_GPU_query_support(int gpu_type, int* answer)  MPICH, mpi.h
 *
 * Both answer 1 (for CUDA) while gpudt_active() returns 1, and otherwise what the MPI library itself answers, or 0 if
 * it has no such function. The MPI_* names, in C and in Fortran, are those of the MPI standard.
 */

#ifdef __cplusplus
}
#endif

#endif
