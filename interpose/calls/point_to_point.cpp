// MPI-4.1 chapter 3: sends, receives and MPI_Sendrecv. Each wrapper names its PMPI function; the work is in
// requests/sends.cpp and requests/receives.cpp.
#include <optional>

#include "base/recycled.hpp"
#include "interpose/requests/matched.hpp"
#include "interpose/requests/point_to_point.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/staged.hpp"
#include "interpose/transport/staged_receive.hpp"

namespace gpudt::interpose {
namespace {

/// A payload with room for an RTS, if the matched message is one and the receive may be too short for it; else null.
/// MPI reports wrong arguments. May throw device::Error and std::bad_alloc.
std::shared_ptr<ReceivePayload> matched_with_room(const char* call, const MessageReceive& received, void* buf,
                                                  int count, MPI_Datatype type) {
  if (!received.is_rts() || count < 0) return nullptr;
  const datatype::TypeInfoRef info = datatype::type_info(type);
  if (!info || count * info->layout().size() > ReceiveWithRoom::most_room) return nullptr;
  DeviceBuffer operand{.use = Use::written};
  if (!resolve_mapped(buf, count, type, call, operand)) return std::make_shared<ReceiveWithRoom>(buf, count, info);
  return make_recycled<StagedReceive>(std::move(operand), ReceiveWithRoom::most_room);
}

/// What a receive of the message matches, as far as that is known. All messages from MPI_PROC_NULL may get one request,
/// which must not be watched.
Selects selects_of(const MessageReceive& received) {
  return received.is_from_nobody() ? Selects({MPI_PROC_NULL, MPI_ANY_TAG}) : Selects();
}

int receive_matched(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
  constexpr const char* call = "MPI_Mrecv";
  const MessageReceive received(message);
  const std::shared_ptr<ReceivePayload> payload = matched_with_room(call, received, buf, count, type);
  const auto receive = [&](const Outgoing& into, MPI_Status* seen) {
    return PMPI_Mrecv(into.room(), into.count, into.type, message, seen);
  };
  if (!payload)
    return receive_blocking({receive}, call, {buf, count, type}, received.owner(), selects_of(received), status);
  return guarded(received.owner(), call, [&] {
    const SeenStatus seen(status);
    const int code = receive(payload->message(), seen.get());
    PendingReceive none({}, MPI_COMM_NULL);
    return finish_receive(code, call, *payload, seen, received.owner(), none);
  });
}

int start_receive_matched(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  constexpr const char* call = "MPI_Imrecv";
  const MessageReceive received(message);
  const auto start = [&](const Outgoing& into, MPI_Request* real) {
    return PMPI_Imrecv(into.room(), into.count, into.type, message, real);
  };
  const std::shared_ptr<ReceivePayload> payload = matched_with_room(call, received, buf, count, type);
  if (!payload)
    return receive_nonblocking(start, call, {buf, count, type}, received.owner(), selects_of(received), From{},
                               request);
  return guarded(received.owner(), call,
                 [&] { return start_receive(start, payload, received.owner(), {}, /*on_device=*/true, request); });
}

int sendrecv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag, void* recvbuf,
             int recvcount, MPI_Datatype recvtype, int source, int recvtag, MPI_Comm comm, MPI_Status* status) {
  constexpr const char* call = "MPI_Sendrecv";
  const Selector selector{source, recvtag};
  BufferPeek going(sendbuf, dest == MPI_PROC_NULL ? 0 : sendcount, sendtype);
  const BufferPeek coming(recvbuf, most_from(selector, recvcount), recvtype);
  if (goes_as_it_is(going) && comes_as_it_is(coming)) {
    const SeenStatus seen(status);
    const int code = PMPI_Sendrecv(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source,
                                   recvtag, comm, seen.get());
    return came_as_it_is(code, call, {recvbuf, recvcount, recvtype}, seen, {.comm = comm});
  }
  // The sender of the incoming message may wait until this process receives it, so this one must not wait for its own
  // send first.
  if (peer_checks() && valid_target(comm, dest, sendtag) && valid_source(comm, source, recvtag)) {
    MPI_Request sent = MPI_REQUEST_NULL;
    // Sends only when nothing can fail any more in the preparation of the receive.
    const auto exchange = [&](const Outgoing& into, MPI_Status* seen) {
      const int code = send_nonblocking(PMPI_Isend, call, sendbuf, sendcount, sendtype, dest, sendtag, comm, &sent,
                                        {.comm = comm}, going.located);
      if (code != MPI_SUCCESS) return code;
      device::about_to_wait(device::WaitKind::peer_sends);
      return PMPI_Recv(into.room(), into.count, into.type, source, recvtag, comm, seen);
    };
    const int code = receive_blocking({.receive = exchange, .sends_first = true}, call,
                                      {recvbuf, recvcount, recvtype, coming.located}, {.comm = comm}, selector, status);
    const Timed timed(Clock::transfer);
    const int other = MPI_Wait(&sent, MPI_STATUS_IGNORE);
    return code == MPI_SUCCESS ? other : code;
  }
  DeviceBuffer out{.use = Use::read};
  const bool pack = dest != MPI_PROC_NULL &&
                    resolve(sendbuf, sendcount, sendtype, call, out, going.located, peer_exchanges_rts(dest, comm));
  std::optional<StagedSend> packed;
  if (pack) {
    packed.emplace(out);
    packed->start_pack();
  }
  const Outgoing given = packed ? packed->message() : given_unstaged(out, {sendbuf, sendcount, sendtype});
  engine_order(comm, dest);
  peer_sends_plain(sendcount, sendtype, dest, sendtag, comm);
  const auto exchange = [&](const Outgoing& into, MPI_Status* seen) {
    if (packed) {
      device::about_to_wait(device::WaitKind::transfer);
      packed->wait();
    }
    return PMPI_Sendrecv(given.data, given.count, given.type, dest, sendtag, into.room(), into.count, into.type, source,
                         recvtag, comm, seen);
  };
  return receive_blocking({.receive = exchange, .sends_first = true}, call,
                          {recvbuf, recvcount, recvtype, coming.located}, {.comm = comm}, selector, status);
}

}  // namespace

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Send(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  return send_blocking(PMPI_Send, "MPI_Send", buf, count, type, dest, tag, comm);
}
GPUDT_EXPORT int MPI_Bsend(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  return send_blocking(PMPI_Bsend, "MPI_Bsend", buf, count, type, dest, tag, comm);
}
GPUDT_EXPORT int MPI_Ssend(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  return send_blocking(PMPI_Ssend, "MPI_Ssend", buf, count, type, dest, tag, comm);
}
GPUDT_EXPORT int MPI_Rsend(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  return send_blocking(PMPI_Rsend, "MPI_Rsend", buf, count, type, dest, tag, comm);
}

GPUDT_EXPORT int MPI_Isend(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                           MPI_Request* request) {
  return send_nonblocking(PMPI_Isend, "MPI_Isend", buf, count, type, dest, tag, comm, request, {.comm = comm});
}
GPUDT_EXPORT int MPI_Ibsend(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                            MPI_Request* request) {
  return send_nonblocking(PMPI_Ibsend, "MPI_Ibsend", buf, count, type, dest, tag, comm, request, {.comm = comm});
}
GPUDT_EXPORT int MPI_Issend(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                            MPI_Request* request) {
  return send_nonblocking(PMPI_Issend, "MPI_Issend", buf, count, type, dest, tag, comm, request, {.comm = comm});
}
GPUDT_EXPORT int MPI_Irsend(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                            MPI_Request* request) {
  return send_nonblocking(PMPI_Irsend, "MPI_Irsend", buf, count, type, dest, tag, comm, request, {.comm = comm});
}

GPUDT_EXPORT int MPI_Recv(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                          MPI_Status* status) {
  const auto receive = [&](const Outgoing& into, MPI_Status* seen) {
    return PMPI_Recv(into.room(), into.count, into.type, source, tag, comm, seen);
  };
  return receive_blocking({receive}, "MPI_Recv", {buf, count, type}, {.comm = comm}, Selector{source, tag}, status);
}
GPUDT_EXPORT int MPI_Mrecv(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
  return raising(MPI_COMM_NULL, "MPI_Mrecv", [&] { return receive_matched(buf, count, type, message, status); });
}
GPUDT_EXPORT int MPI_Irecv(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                           MPI_Request* request) {
  return receive_nonblocking(
      [&](const Outgoing& into, MPI_Request* real) {
        return PMPI_Irecv(into.room(), into.count, into.type, source, tag, comm, real);
      },
      "MPI_Irecv", {buf, count, type}, {.comm = comm}, Selector{source, tag}, From{source, comm}, request);
}
GPUDT_EXPORT int MPI_Imrecv(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  return raising(MPI_COMM_NULL, "MPI_Imrecv",
                 [&] { return start_receive_matched(buf, count, type, message, request); });
}

GPUDT_EXPORT int MPI_Sendrecv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag,
                              void* recvbuf, int recvcount, MPI_Datatype recvtype, int source, int recvtag,
                              MPI_Comm comm, MPI_Status* status) {
  return guarded(comm, "MPI_Sendrecv", [&] {
    return sendrecv(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source, recvtag, comm,
                    status);
  });
}
