// MPI in streams of a GPU (include/gpudt_streams.h). Each call keeps its arguments and, when its stream comes to it, is
// the library's nonblocking function of that name.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "datatype/decode.hpp"
#include "include/gpudt_streams.h"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/requests/point_to_point.hpp"
#include "interpose/streams/enqueue.hpp"
#include "interpose/streams/program_stream.hpp"
#include "interpose/streams/service.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/loaded.hpp"
#include "interpose/support/report.hpp"

namespace gpudt::interpose {
namespace {

/// MPICH's function of this name, which serves streams other than of GPUs; null if there is none.
template <class Function>
Function* mpi_function(const char* name) {
  return reinterpret_cast<Function*>(global_function(name));
}

// --- streams and communicators ---------------------------------------------------------------------------------------

/// The value of a key; empty if it has none.
std::string info_value(MPI_Info info, const char* key) {
  char value[MPI_MAX_INFO_VAL + 1] = "";
  int found = 0;
  if (info != MPI_INFO_NULL) PMPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &found);
  return found != 0 ? value : "";
}

int hex_digit(char digit) {
  constexpr const char* digits = "0123456789abcdef";
  const char* const at = std::strchr(digits, digit);
  return digit == '\0' || at == nullptr ? -1 : static_cast<int>(at - digits);
}

/// The stream that MPIX_Info_set_hex has put into the info object. Throws MpiError.
void* stream_in(const std::string& value) {
  void* stream = nullptr;
  unsigned char bytes[sizeof stream] = {};
  bool is_hex = value.size() == 2 * sizeof stream;
  for (std::size_t i = 0; is_hex && i < sizeof stream; ++i) {
    const int high = hex_digit(value[2 * i]), low = hex_digit(value[2 * i + 1]);
    is_hex = high >= 0 && low >= 0;
    bytes[i] = static_cast<unsigned char>(16 * high + low);
  }
  if (!is_hex)
    throw MpiError(MPI_ERR_INFO_VALUE, "the key \"value\" of the info object has no cudaStream_t (MPIX_Info_set_hex)");
  std::memcpy(&stream, bytes, sizeof stream);
  return stream;
}

void need_threads() {
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE)
    throw MpiError(MPI_ERR_OTHER,
                   "it needs MPI_THREAD_MULTIPLE: request that level from MPI_Init_thread (programs that are linked to "
                   "MPIX_Stream_create get it from any MPI_Init)");
}

int create(MPI_Info info, MPIX_Stream* stream) {
  if (info_value(info, "type") != "cudaStream_t")
    throw MpiError(MPI_ERR_INFO_VALUE, "the info object must have the key \"type\" with the value \"cudaStream_t\"");
  if (!active.load() || std::strcmp(device::runtime_name(), "none") == 0)
    throw MpiError(MPI_ERR_OTHER, "there is no GPU, or gpudt is off");
  void* const handle = stream_in(info_value(info, "value"));
  need_threads();
  auto made = std::make_shared<ProgramStream>(handle);
  service_add(made, {MPI_Testsome, MPI_Cancel, MPI_Request_free});
  *stream = make_stream_handle(std::move(made));
  return MPI_SUCCESS;
}

int comm_create(MPI_Comm comm, MPIX_Stream stream, MPI_Comm* made) {
  const std::shared_ptr<ProgramStream> found = find_stream(stream);
  if (!found && stream != MPIX_STREAM_NULL) throw MpiError(MPI_ERR_ARG, "the stream is not valid");
  const int code = MPI_Comm_dup(comm, made);
  if (code == MPI_SUCCESS && found) attach_stream(*made, found);
  return code;
}

// --- arguments, which MPI checks otherwise only when the stream comes to the call
// -------------------------------------

void check(int count, MPI_Datatype type) {
  if (count < 0) throw MpiError(MPI_ERR_COUNT, "the count is negative");
  if (type == MPI_DATATYPE_NULL) throw MpiError(MPI_ERR_TYPE, "the datatype is null");
}

void check_rank(bool valid) {
  if (!valid) throw MpiError(MPI_ERR_RANK, "the rank or the tag is not valid");
}

void check_target(MPI_Comm comm, int dest, int tag) {
  check_rank(dest == MPI_PROC_NULL || valid_target(comm, dest, tag));
}
void check_source(MPI_Comm comm, int source, int tag) {
  check_rank(source == MPI_PROC_NULL || valid_source(comm, source, tag));
}

/// Runs `put()`, which enqueues, after `arguments()`, which throws MpiError. Without the library's own stream the
/// former reports the error.
template <class Arguments, class Put>
int checked(const char* call, MPI_Comm comm, Arguments arguments, Put put) {
  int code = MPI_SUCCESS;
  if (find_stream_comm(comm))
    code = raising(comm, call, [&] {
      arguments();
      return int(MPI_SUCCESS);
    });
  return code == MPI_SUCCESS ? put() : code;
}

template <class Value>
std::vector<Value> copied(const Value* values, int count) {
  return values == nullptr ? std::vector<Value>() : std::vector<Value>(values, values + count);
}

/// An exchange of the w form with copies of its arrays.
template <class Displacement>
struct Blockwise {
  std::vector<int> counts;
  std::vector<Displacement> displs;
  std::vector<MPI_Datatype> types;

  Blockwise(int blocks, const int* its_counts, const Displacement* its_displs, const MPI_Datatype* its_types)
      : counts(copied(its_counts, blocks)), displs(copied(its_displs, blocks)), types(copied(its_types, blocks)) {}
};

template <class Displacement, class Nonblocking>
int enqueue_blockwise(const char* call, Nonblocking nonblocking, Blocks blocks, const void* sendbuf,
                      const int* sendcounts, const Displacement* sdispls, const MPI_Datatype* sendtypes, void* recvbuf,
                      const int* recvcounts, const Displacement* rdispls, const MPI_Datatype* recvtypes,
                      MPI_Comm comm) {
  const bool in_place = sendbuf == MPI_IN_PLACE;
  const Blockwise<Displacement> out(in_place ? 0 : blocks.out_of, sendcounts, sdispls, sendtypes);
  const Blockwise<Displacement> in(blocks.into, recvcounts, rdispls, recvtypes);
  return enqueue(call, comm, MPI_STATUS_IGNORE, [=](MPI_Request* request) {
    return nonblocking(sendbuf, out.counts.data(), out.displs.data(), out.types.data(), recvbuf, in.counts.data(),
                       in.displs.data(), in.types.data(), comm, request);
  });
}

/// Enqueues a collective of two buffers and one block of either.
template <class Nonblocking, class... Arguments>
int enqueue_collective(const char* call, MPI_Comm comm, int count, MPI_Datatype type, Nonblocking nonblocking,
                       Arguments... arguments) {
  return checked(
      call, comm, [=] { check(count, type); },
      [=] {
        return enqueue(call, comm, MPI_STATUS_IGNORE,
                       [=](MPI_Request* request) { return nonblocking(arguments..., comm, request); });
      });
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPIX_Info_set_hex(MPI_Info info, const char* key, const void* value, int value_size) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < value_size; ++i) {
    const unsigned byte = static_cast<const unsigned char*>(value)[i];
    text += {digits[byte / 16], digits[byte % 16]};
  }
  return PMPI_Info_set(info, key, text.c_str());
}

GPUDT_EXPORT int MPIX_Stream_create(MPI_Info info, MPIX_Stream* stream) {
  auto* const mpi = mpi_function<int(MPI_Info, MPIX_Stream*)>("MPIX_Stream_create");
  if (mpi != nullptr && (!active.load() || info_value(info, "type").empty())) return mpi(info, stream);
  return guarded(MPI_COMM_NULL, "MPIX_Stream_create", [&] { return create(info, stream); });
}

GPUDT_EXPORT int MPIX_Stream_free(MPIX_Stream* stream) {
  if (stream != nullptr && forget_stream_handle(*stream)) {
    *stream = MPIX_STREAM_NULL;
    return MPI_SUCCESS;
  }
  if (auto* const mpi = mpi_function<int(MPIX_Stream*)>("MPIX_Stream_free")) return mpi(stream);
  return fail(MPI_COMM_NULL, "MPIX_Stream_free", MPI_ERR_ARG, "the stream is not valid");
}

GPUDT_EXPORT int MPIX_Stream_comm_create(MPI_Comm comm, MPIX_Stream stream, MPI_Comm* newcomm) {
  auto* const mpi = mpi_function<int(MPI_Comm, MPIX_Stream, MPI_Comm*)>("MPIX_Stream_comm_create");
  if (mpi != nullptr && (!active.load() || (stream != MPIX_STREAM_NULL && !find_stream(stream))))
    return mpi(comm, stream, newcomm);
  return guarded(comm, "MPIX_Stream_comm_create", [&] { return comm_create(comm, stream, newcomm); });
}

// --- messages --------------------------------------------------------------------------------------------------------

namespace {

StartEnqueued send_of(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  return [=](MPI_Request* request) { return MPI_Isend(buf, count, type, dest, tag, comm, request); };
}
StartEnqueued receive_of(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm) {
  return [=](MPI_Request* request) { return MPI_Irecv(buf, count, type, source, tag, comm, request); };
}

}  // namespace

GPUDT_EXPORT int MPIX_Send_enqueue(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  constexpr const char* call = "MPIX_Send_enqueue";
  return checked(
      call, comm, [=] { check(count, type), check_target(comm, dest, tag); },
      [=] { return enqueue(call, comm, MPI_STATUS_IGNORE, send_of(buf, count, type, dest, tag, comm)); });
}

GPUDT_EXPORT int MPIX_Recv_enqueue(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                                   MPI_Status* status) {
  constexpr const char* call = "MPIX_Recv_enqueue";
  return checked(
      call, comm, [=] { check(count, type), check_source(comm, source, tag); },
      [=] { return enqueue(call, comm, status, receive_of(buf, count, type, source, tag, comm)); });
}

GPUDT_EXPORT int MPIX_Isend_enqueue(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                                    MPI_Request* request) {
  constexpr const char* call = "MPIX_Isend_enqueue";
  return checked(
      call, comm, [=] { check(count, type), check_target(comm, dest, tag); },
      [=] { return enqueue_nonblocking(call, comm, request, send_of(buf, count, type, dest, tag, comm)); });
}

GPUDT_EXPORT int MPIX_Irecv_enqueue(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                                    MPI_Request* request) {
  constexpr const char* call = "MPIX_Irecv_enqueue";
  return checked(
      call, comm, [=] { check(count, type), check_source(comm, source, tag); },
      [=] { return enqueue_nonblocking(call, comm, request, receive_of(buf, count, type, source, tag, comm)); });
}

GPUDT_EXPORT int MPIX_Wait_enqueue(MPI_Request* request, MPI_Status* status) {
  return enqueue_wait("MPIX_Wait_enqueue", 1, request, status == MPI_STATUS_IGNORE ? MPI_STATUSES_IGNORE : status);
}

GPUDT_EXPORT int MPIX_Waitall_enqueue(int count, MPI_Request requests[], MPI_Status* statuses) {
  return enqueue_wait("MPIX_Waitall_enqueue", count, requests, statuses);
}

// --- collectives -----------------------------------------------------------------------------------------------------

GPUDT_EXPORT int MPIX_Allreduce_enqueue(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op,
                                        MPI_Comm comm) {
  return enqueue_collective("MPIX_Allreduce_enqueue", comm, count, type, MPI_Iallreduce, sendbuf, recvbuf, count, type,
                            op);
}

GPUDT_EXPORT int MPIX_Reduce_scatter_block_enqueue(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type,
                                                   MPI_Op op, MPI_Comm comm) {
  return enqueue_collective("MPIX_Reduce_scatter_block_enqueue", comm, count, type, MPI_Ireduce_scatter_block, sendbuf,
                            recvbuf, count, type, op);
}

GPUDT_EXPORT int MPIX_Bcast_enqueue(void* buf, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  return enqueue_collective("MPIX_Bcast_enqueue", comm, count, type, MPI_Ibcast, buf, count, type, root);
}

GPUDT_EXPORT int MPIX_Allgather_enqueue(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                        int recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  return enqueue_collective("MPIX_Allgather_enqueue", comm, recvcount, recvtype, MPI_Iallgather, sendbuf, sendcount,
                            sendtype, recvbuf, recvcount, recvtype);
}

GPUDT_EXPORT int MPIX_Alltoall_enqueue(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                       int recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  return enqueue_collective("MPIX_Alltoall_enqueue", comm, recvcount, recvtype, MPI_Ialltoall, sendbuf, sendcount,
                            sendtype, recvbuf, recvcount, recvtype);
}

GPUDT_EXPORT int MPIX_Allgatherv_enqueue(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                         const int recvcounts[], const int displs[], MPI_Datatype recvtype,
                                         MPI_Comm comm) {
  const int blocks = peers_of(comm);
  return enqueue("MPIX_Allgatherv_enqueue", comm, MPI_STATUS_IGNORE,
                 [=, counts = copied(recvcounts, blocks), places = copied(displs, blocks)](MPI_Request* request) {
                   return MPI_Iallgatherv(sendbuf, sendcount, sendtype, recvbuf, counts.data(), places.data(), recvtype,
                                          comm, request);
                 });
}

GPUDT_EXPORT int MPIX_Alltoallv_enqueue(const void* sendbuf, const int sendcounts[], const int sdispls[],
                                        MPI_Datatype sendtype, void* recvbuf, const int recvcounts[],
                                        const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm) {
  const int blocks = peers_of(comm);
  const Blockwise<int> out(sendbuf == MPI_IN_PLACE ? 0 : blocks, sendcounts, sdispls, nullptr);
  const Blockwise<int> in(blocks, recvcounts, rdispls, nullptr);
  return enqueue("MPIX_Alltoallv_enqueue", comm, MPI_STATUS_IGNORE, [=](MPI_Request* request) {
    return MPI_Ialltoallv(sendbuf, out.counts.data(), out.displs.data(), sendtype, recvbuf, in.counts.data(),
                          in.displs.data(), recvtype, comm, request);
  });
}

GPUDT_EXPORT int MPIX_Alltoallw_enqueue(const void* sendbuf, const int sendcounts[], const int sdispls[],
                                        const MPI_Datatype sendtypes[], void* recvbuf, const int recvcounts[],
                                        const int rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm) {
  const int blocks = peers_of(comm);
  return enqueue_blockwise("MPIX_Alltoallw_enqueue", MPI_Ialltoallw, {blocks, blocks}, sendbuf, sendcounts, sdispls,
                           sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm);
}

GPUDT_EXPORT int MPIX_Neighbor_alltoallw_enqueue(const void* sendbuf, const int sendcounts[], const MPI_Aint sdispls[],
                                                 const MPI_Datatype sendtypes[], void* recvbuf, const int recvcounts[],
                                                 const MPI_Aint rdispls[], const MPI_Datatype recvtypes[],
                                                 MPI_Comm comm) {
  return enqueue_blockwise("MPIX_Neighbor_alltoallw_enqueue", MPI_Ineighbor_alltoallw, neighbours(comm), sendbuf,
                           sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm);
}
