/* gpudt_streams.h: MPI in CUDA streams, with the names and prototypes of MPICH. Over MPICH the functions of gpudt take
 * the place of MPICH's own; over other MPI libraries there are only gpudt's. C99 and C++. Include mpi.h before it.
 *
 * An enqueued operation begins when all work that the stream was given before has completed, and what the stream is
 * given afterwards sees its result. The calls return at once. Buffers, datatypes with any layout, and counts are those
 * of the MPI function of the same name; buffers may be in device or host memory, and must stay until the operation is
 * complete. Datatypes, operators and communicators may be freed at once. Statuses are written when the operation
 * completes: synchronise with the stream before you read them.
 *
 * In a stream that is being captured, an operation becomes part of the graph: each launch communicates anew, with what
 * the buffers hold then. Buffers, statuses and arguments must stay as long as the graph. Launches of executable graphs
 * made of one capture must not overlap.
 *
 * All functions return an MPI error code and call the error handler of the communicator. Failures of an operation that
 * show up later go to that handler in the next call that enqueues on the communicator, in MPI_Comm_free,
 * MPI_Comm_disconnect, or MPI_Finalize; those of operations that are under way when the communicator is freed are not
 * reported. The operation then counts as complete, so that the stream goes on. Wrong arguments are found at once; what
 * only MPI finds, when the stream comes to the operation, it reports to the handler then, in a thread of gpudt.
 *
 * Needs MPI_THREAD_MULTIPLE. A program that is linked to MPIX_Stream_create gets it from MPI_Init, too.
 */
#ifndef GPUDT_STREAMS_H
#define GPUDT_STREAMS_H

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MPIX_STREAM_NULL
typedef int MPIX_Stream;
#define MPIX_STREAM_NULL ((MPIX_Stream)0x3c000000)
#endif

/* Makes a stream of MPI of a CUDA stream, which must exist until MPIX_Stream_free. Keys of `info`: "type" with the
 * value "cudaStream_t", and "value", which MPIX_Info_set_hex sets from a variable of that type. Local. The first call
 * takes some milliseconds. Errors: MPI_ERR_INFO_VALUE if a key is missing or wrong, MPI_ERR_OTHER if there is no GPU or
 * too little support for threads. */
int MPIX_Stream_create(MPI_Info info, MPIX_Stream* stream);
/* Frees the handle and sets it to MPIX_STREAM_NULL. Operations that are enqueued go on. */
int MPIX_Stream_free(MPIX_Stream* stream);
/* Makes a duplicate of `comm` on which this process enqueues in `stream`; with MPIX_STREAM_NULL it cannot enqueue.
 * Collective. Ordinary MPI calls on the new communicator match enqueued ones of other processes. */
int MPIX_Stream_comm_create(MPI_Comm comm, MPIX_Stream stream, MPI_Comm* newcomm);
/* Sets `key` to the `value_size` bytes at `value`, in hexadecimal. */
int MPIX_Info_set_hex(MPI_Info info, const char* key, const void* value, int value_size);

/* Messages. The request of MPIX_Isend_enqueue or MPIX_Irecv_enqueue is for MPIX_Wait_enqueue and MPIX_Waitall_enqueue
 * (requests of one stream), which make the stream wait and set it to MPI_REQUEST_NULL, in a graph within the same
 * capture; outside of graphs MPI_Wait and MPI_Test take it, too. */
int MPIX_Send_enqueue(const void* buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm);
int MPIX_Recv_enqueue(void* buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                      MPI_Status* status);
int MPIX_Isend_enqueue(const void* buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                       MPI_Request* request);
int MPIX_Irecv_enqueue(void* buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                       MPI_Request* request);
/* Start persistent requests, of messages and collectives, that were made on communicators with streams; these must not
 * have been freed. Between its start and MPIX_Wait_enqueue or MPIX_Waitall_enqueue, which leave it inactive, no other
 * function takes the request. */
int MPIX_Start_enqueue(MPI_Request* request);
int MPIX_Startall_enqueue(int count, MPI_Request array_of_requests[]);
int MPIX_Wait_enqueue(MPI_Request* request, MPI_Status* status);
int MPIX_Waitall_enqueue(int count, MPI_Request array_of_requests[], MPI_Status* array_of_statuses);

/* Collectives. MPICH has the first. */
int MPIX_Allreduce_enqueue(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op,
                           MPI_Comm comm);
int MPIX_Reduce_scatter_block_enqueue(const void* sendbuf, void* recvbuf, int recvcount, MPI_Datatype datatype,
                                      MPI_Op op, MPI_Comm comm);
int MPIX_Bcast_enqueue(void* buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm);
int MPIX_Allgather_enqueue(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                           MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Allgatherv_enqueue(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                            const int recvcounts[], const int displs[], MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Alltoall_enqueue(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                          MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Alltoallv_enqueue(const void* sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype,
                           void* recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype,
                           MPI_Comm comm);
int MPIX_Alltoallw_enqueue(const void* sendbuf, const int sendcounts[], const int sdispls[],
                           const MPI_Datatype sendtypes[], void* recvbuf, const int recvcounts[], const int rdispls[],
                           const MPI_Datatype recvtypes[], MPI_Comm comm);
int MPIX_Neighbor_alltoallw_enqueue(const void* sendbuf, const int sendcounts[], const MPI_Aint sdispls[],
                                    const MPI_Datatype sendtypes[], void* recvbuf, const int recvcounts[],
                                    const MPI_Aint rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm);

/* Accesses to windows that were made on a communicator with a stream, which is the window's stream. The process must
 * have locked the target (MPI_Win_lock, MPI_Win_lock_all; the call checks that there is an epoch) before the call,
 * until the stream has passed, or in a graph its last launch: an access without its lock fails (MPI_ERR_RMA_SYNC), and
 * does not wait for it. When the stream has passed a put, its data are in the target's memory, and a process that gets
 * a later message of this one sees them; no flush is needed. But if all ranks have host memory in the window, MPI
 * serves it: then the stream passes a put when its buffer may be used again, and the data have come after the program's
 * flush.
 * Failures go to the window's error handler, at the latest in MPI_Win_free. */
int MPIX_Put_enqueue(const void* origin_addr, int origin_count, MPI_Datatype origin_datatype, int target_rank,
                     MPI_Aint target_disp, int target_count, MPI_Datatype target_datatype, MPI_Win win);
int MPIX_Get_enqueue(void* origin_addr, int origin_count, MPI_Datatype origin_datatype, int target_rank,
                     MPI_Aint target_disp, int target_count, MPI_Datatype target_datatype, MPI_Win win);

/* The same with large counts. Without those of MPI-4 in the MPI library, counts beyond 2147483647 are errors
 * (MPI_ERR_COUNT). Persistent requests of such counts, and windows with such a displacement unit, are of no stream. */
int MPIX_Send_enqueue_c(const void* buf, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm);
int MPIX_Recv_enqueue_c(void* buf, MPI_Count count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                        MPI_Status* status);
int MPIX_Isend_enqueue_c(const void* buf, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                         MPI_Request* request);
int MPIX_Irecv_enqueue_c(void* buf, MPI_Count count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                         MPI_Request* request);
int MPIX_Allreduce_enqueue_c(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                             MPI_Comm comm);
int MPIX_Reduce_scatter_block_enqueue_c(const void* sendbuf, void* recvbuf, MPI_Count recvcount, MPI_Datatype datatype,
                                        MPI_Op op, MPI_Comm comm);
int MPIX_Bcast_enqueue_c(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm);
int MPIX_Allgather_enqueue_c(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                             MPI_Count recvcount, MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Allgatherv_enqueue_c(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                              const MPI_Count recvcounts[], const MPI_Aint displs[], MPI_Datatype recvtype,
                              MPI_Comm comm);
int MPIX_Alltoall_enqueue_c(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                            MPI_Count recvcount, MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Alltoallv_enqueue_c(const void* sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[],
                             MPI_Datatype sendtype, void* recvbuf, const MPI_Count recvcounts[],
                             const MPI_Aint rdispls[], MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Alltoallw_enqueue_c(const void* sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[],
                             const MPI_Datatype sendtypes[], void* recvbuf, const MPI_Count recvcounts[],
                             const MPI_Aint rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm);
int MPIX_Neighbor_alltoallw_enqueue_c(const void* sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[],
                                      const MPI_Datatype sendtypes[], void* recvbuf, const MPI_Count recvcounts[],
                                      const MPI_Aint rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm);
int MPIX_Put_enqueue_c(const void* origin_addr, MPI_Count origin_count, MPI_Datatype origin_datatype, int target_rank,
                       MPI_Aint target_disp, MPI_Count target_count, MPI_Datatype target_datatype, MPI_Win win);
int MPIX_Get_enqueue_c(void* origin_addr, MPI_Count origin_count, MPI_Datatype origin_datatype, int target_rank,
                       MPI_Aint target_disp, MPI_Count target_count, MPI_Datatype target_datatype, MPI_Win win);

#ifdef __cplusplus
}
#endif

#endif
