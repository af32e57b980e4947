// MPI-4.1 chapter 3: blocking and nonblocking point-to-point. Each wrapper names its PMPI function; the work that
// they share is in the templates above them.
#include <optional>
#include <type_traits>

#include "device/timeline.hpp"
#include "interpose/requests/matched.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/requests/point_to_point.hpp"
#include "interpose/requests/received_on_device.hpp"
#include "interpose/requests/staged.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using device::CallOnTimeline;
using device::mark;
using device::Point;
using device::timeline_now;

namespace {

/// True if MPI will accept (peer, tag) for a send on `comm`. Otherwise MPI itself is to report the error, at once,
/// not when the deferred send is issued.
bool valid_target(MPI_Comm comm, int peer, int tag) {
  if (comm == MPI_COMM_NULL || tag < 0) return false;
  int inter = 0, size = 0;
  PMPI_Comm_test_inter(comm, &inter);
  if (inter != 0)
    PMPI_Comm_remote_size(comm, &size);
  else
    PMPI_Comm_size(comm, &size);
  void* bound = nullptr;
  int found = 0;
  PMPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &found);
  return peer >= 0 && peer < size && (found == 0 || tag <= *static_cast<int*>(bound));
}

/// Whether MPI's return code would tell if it refused that.
bool tells_refusal(MPI_Comm comm, int peer, int tag) {
  return returns_handled_errors || valid_target(comm, peer, tag);
}

template <class Pmpi, class... More>
int send_now(Pmpi pmpi, const Outgoing& out, int dest, int tag, MPI_Comm comm, More... more) {
  return pmpi(out.data, out.count, out.type, dest, tag, comm, more...);
}

/// Gives MPI the RTS of an offer, and returns when it has been sent. In other threads plain messages may wait for MPI
/// to have it: a synchronous send, or one that waits for its receive, tells so too late. And while MPI sends it, the
/// default stream is marked.
int send_token(BlockingSend pmpi, RendezvousSender& offer, int dest, int tag, MPI_Comm comm) {
  const Outgoing rts = offer.message();
  mark(Point::given);
  if (!peer_has_threads() && !offer.marks_late()) {
    const int code = send_now(pmpi, rts, dest, tag, comm);
    offer.given();
    return code;
  }
  const NonblockingSend nonblocking = pmpi == PMPI_Ssend ? PMPI_Issend : pmpi == PMPI_Rsend ? PMPI_Irsend : PMPI_Isend;
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = send_now(nonblocking, rts, dest, tag, comm, &request);
  offer.given();
  if (code != MPI_SUCCESS) return code;
  try {
    offer.mark();
  } catch (...) {
    offer.start_unpack(0);  // the receiver may have the RTS, and is to hear that there is no message
    PMPI_Wait(&request, MPI_STATUS_IGNORE);
    throw;
  }
  return PMPI_Wait(&request, MPI_STATUS_IGNORE);
}

/// True of nearly all that programs send from host memory: MPI can have it as it is, and nothing is to go before it.
bool goes_as_it_is(const BufferPeek& peek) {
  return peek.bytes_on_host >= 0 && peer::rts_index(peek.bytes_on_host) < 0 && !engine_defers();
}

/// Whether MPI is given no device memory: it may be told of an RTS, or it copies the data, which the host then does in
/// some libraries that take device memory otherwise (Open MPI with UCX).
template <class Pmpi>
bool goes_from_host(Pmpi pmpi, int dest, MPI_Comm comm) {
  return is_buffered(pmpi) || peer_exchanges_rts(dest, comm);
}

/// Null if the message does not go by peer transfer.
template <class Pmpi>
std::shared_ptr<RendezvousSender> offered(Pmpi pmpi, const DeviceBuffer& operand, int dest, int tag, MPI_Comm comm) {
  return is_buffered(pmpi) || operand.division ? nullptr : RendezvousSender::of(operand, dest, tag, comm);
}

int send_blocking(BlockingSend pmpi, const char* call, const void* buf, int count, MPI_Datatype type, int dest, int tag,
                  MPI_Comm comm) {
  if (dest == MPI_PROC_NULL) return pmpi(buf, count, type, dest, tag, comm);
  const std::int64_t began = timeline_now();
  const BufferPeek peek(buf, count, type);
  if (goes_as_it_is(peek)) return pmpi(buf, count, type, dest, tag, comm);
  return guarded(comm, call, [&] {
    DeviceBuffer operand{.use = Use::read, .blocking = true};
    if (!resolve(buf, count, type, call, operand, peek.located, goes_from_host(pmpi, dest, comm))) {
      engine_order(comm, dest);
      peer_sends_plain(count, type, dest, tag, comm);
      return send_now(pmpi, given_unstaged(operand, {buf, count, type}), dest, tag, comm);
    }
    const CallOnTimeline on_timeline(began, Point::send_entered, Point::send_returned);
    if (!tells_refusal(comm, dest, tag)) return pmpi(buf, count, type, dest, tag, comm);
    if (const auto offer = offered(pmpi, operand, dest, tag, comm)) {
      engine_order(comm, dest);
      const int code = send_token(pmpi, *offer, dest, tag, comm);
      if (code != MPI_SUCCESS) return code;
      mark(Point::sent);
      offer->start_unpack(0);
      device::about_to_wait(device::WaitKind::receiver);
      offer->wait();
      return code;
    }
    Staged staged(operand);
    staged.start_pack();
    engine_order(comm, dest);
    device::about_to_wait(device::WaitKind::transfer);
    staged.wait();
    peer_sends_plain(operand.bytes(), dest, tag, comm);
    const Timed timed(Clock::mpi);
    mark(Point::given);
    const int code = send_now(pmpi, staged.message(), dest, tag, comm);
    mark(Point::sent);
    return code;
  });
}

/// `owner`: who hears of errors.
int send_nonblocking(NonblockingSend pmpi, const char* call, const void* buf, int count, MPI_Datatype type, int dest,
                     int tag, MPI_Comm comm, MPI_Request* request, const ErrorOwner& owner, Located located = {}) {
  if (dest == MPI_PROC_NULL) return pmpi(buf, count, type, dest, tag, comm, request);
  const std::int64_t began = timeline_now();
  const BufferPeek peek(buf, count, type, located);
  if (goes_as_it_is(peek)) return pmpi(buf, count, type, dest, tag, comm, request);
  return guarded(owner, call, [&] {
    DeviceBuffer operand{.use = Use::read};
    if (!resolve(buf, count, type, call, operand, peek.located, goes_from_host(pmpi, dest, comm))) {
      engine_order(comm, dest);
      peer_sends_plain(count, type, dest, tag, comm);
      return send_now(pmpi, given_unstaged(operand, {buf, count, type}), dest, tag, comm, request);
    }
    const CallOnTimeline on_timeline(began, Point::isend_entered, Point::isend_returned);
    if (pmpi != hidden_send && !valid_target(comm, dest, tag)) return pmpi(buf, count, type, dest, tag, comm, request);
    std::shared_ptr<Payload> payload = offered(pmpi, operand, dest, tag, comm);
    const bool offers = payload != nullptr;
    if (!offers) {
      payload = std::make_shared<Staged>(operand);
      peer_sends_plain(operand.bytes(), dest, tag, comm);
    }
    payload->start_pack();
    auto operation = std::make_unique<Operation>();
    operation->payload = payload;
    operation->owner = owner;
    operation->channel = {comm, dest};
    operation->tag = tag;
    operation->send = pmpi;
    Reservation reserved(std::move(operation));
    if (reserved.error() != MPI_SUCCESS) return reserved.error();
    if (!is_buffered(pmpi)) return reserved.submit_send(offers, request);
    engine_order(comm, dest);
    payload->wait();
    mark(Point::given);
    const int code = send_now(pmpi, payload->message(), dest, tag, comm, &reserved->inner);
    return reserved.submit_issued(code, request);
  });
}

/// True of short receives into host memory: no RTS has room in them but those of short messages.
bool comes_as_it_is(const BufferPeek& peek) {
  return peek.bytes_on_host >= 0 && peek.bytes_on_host < peer::shortest_rts;
}
/// The same of blocking ones, which get room where that is needed.
bool comes_as_it_is_now(const BufferPeek& peek) {
  return comes_as_it_is(peek) && rts_room() == 0;
}

/// Of data of a basic type that have come to host memory.
bool may_be_short_rts(const Outgoing& into, const MPI_Status& status) {
  return peer_expects_short() && peer::has_short_length(received_bytes(status)) && peer::may_name_offer(into.data);
}

/// After such a receive, which has returned `code` and `status`: an RTS may have been too long for it, or that of a
/// short message may be there.
int came_as_it_is(int code, const char* call, const Outgoing& program, const SeenStatus& seen,
                  const ErrorOwner& owner) {
  if (!peer_checks()) return code;
  MPI_Status& status = *seen;
  if (seen.refused(code) || (code == MPI_SUCCESS && !may_be_short_rts(program, status))) return code;
  return guarded(owner, call, [&] {
    PendingReceive none({}, MPI_COMM_NULL);
    return peer_received_on_host(code, call, program.room(), program.count, program.type, status, owner, none);
  });
}

/// Who sends what a receive gets, as far as that is known.
struct From {
  int source = MPI_ANY_SOURCE;
  MPI_Comm comm = MPI_COMM_NULL;

  /// Of a receive into device memory: an RTS of processes of the node, which only the host can read.
  bool may_be_rts() const { return peer_exchanges_rts(source, comm); }
};

/// What the function does that is given to receive_blocking().
enum class Does { receive, send_first };

/// A receive that can be started, and waited for then, with errors for the same handler.
#ifdef OPEN_MPI
template <class Receive>
constexpr bool starts = std::is_invocable_v<Receive, const Outgoing&, MPI_Request*>;
#else
template <class Receive>
constexpr bool starts = false;  // errors of MPICH's requests go to the handler of MPI_COMM_WORLD
#endif

/// Of a receive that MPI has, and that cannot be carried on with: no message comes to the staging memory any more.
void end_receive(MPI_Request request, Staged& staged) {
  MPI_Status status{};
  int cancelled = 0;
  MPI_Count bytes = 0;
  PMPI_Cancel(&request);
  if (PMPI_Wait(&request, &status) != MPI_SUCCESS) return;
  PMPI_Test_cancelled(&status, &cancelled);
  PMPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  while (cancelled == 0 && !staged.is_readable(bytes)) {
  }
  if (cancelled == 0) staged.announced(bytes);  // if it is an RTS, its sender hears of the failure
  staged.abandon();
}

/// Into staging memory. The default stream is marked while the message may be under way.
template <class Receive>
int receive_staged(Receive pmpi, Staged& staged, MPI_Status* status) {
  if constexpr (starts<Receive>) {
    if (!staged.operand().after.made()) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (const int code = pmpi(staged.message(), &request); code != MPI_SUCCESS) return code;
      try {
        staged.operand().after.make();
      } catch (...) {
        end_receive(request, staged);
        throw;
      }
      return PMPI_Wait(&request, status);
    }
  }
  return pmpi(staged.message(), status);
}

/// Elements that a receive may bring.
int most_from(const Selects& selects, int count) {
  return selects && selects->source == MPI_PROC_NULL ? 0 : count;
}

/// `pmpi(into, status)` receives; the bytes that came are unpacked, the others stay as they were.
template <Does does = Does::receive, class Receive>
int receive_blocking(Receive pmpi, const char* call, void* buf, int asked, MPI_Datatype type, const ErrorOwner& owner,
                     const Selects& selects, MPI_Status* status, Located located = {}) {
  const SeenStatus seen(status);
  const Outgoing program{buf, asked, type};
  const int count = most_from(selects, asked);
  const std::int64_t began = timeline_now();
  const BufferPeek peek(buf, count, type, located);
  if (does == Does::receive && comes_as_it_is_now(peek))
    return came_as_it_is(pmpi(program, seen.get()), call, program, seen, owner);
  return guarded(owner, call, [&] {
    DeviceBuffer operand{.use = Use::written, .blocking = starts<Receive>};
    const From from{selects ? selects->source : MPI_ANY_SOURCE, owner.comm};
    if (!resolve(buf, count, type, call, operand, peek.located, from.may_be_rts())) {
      if (!peer_checks() || (operand.is_direct() && !peer_takes_fragments()))
        return pmpi(given_unstaged(operand, program), status);
      const std::shared_ptr<Payload> packed = operand.is_direct() ? std::make_shared<DirectReceive>(operand, program)
                                                                  : peer_blocking_receive(buf, count, type);
      PendingReceive pending(selects, owner.comm);
      if (packed) {
        const int code = pmpi(packed->message(), seen.get());
        return seen.refused(code) ? code : peer_received(code, call, *packed, *seen, owner, pending);
      }
      const int code = pmpi(program, seen.get());
      return seen.refused(code) ? code : peer_received_on_host(code, call, buf, count, type, *seen, owner, pending);
    }
    const CallOnTimeline on_timeline(began, Point::receive_entered, Point::receive_returned);
    peer_receives_on_device();
    Staged staged(operand, rts_room());
    PendingReceive pending(selects, owner.comm);
    int code = MPI_SUCCESS;
    {
      if constexpr (does == Does::receive) device::about_to_wait(device::WaitKind::message);
      mark(Point::posted);
      const Timed timed(Clock::mpi);
      code = receive_staged(pmpi, staged, seen.get());
    }
    return seen.refused(code) ? code : peer_received(code, call, staged, *seen, owner, pending);
  });
}

/// `pmpi(into, request)` starts the receive.
template <class Receive>
int start_receive(Receive pmpi, std::unique_ptr<Operation> operation, const Outgoing& into, const Selects& selects,
                  MPI_Request* request) {
  operation->kind = Operation::Kind::receive;
  const bool on_device = operation->on_device;
  const PendingReceive pending(selects, operation->owner.comm);
  Reservation reserved(std::move(operation));
  if (reserved.error() != MPI_SUCCESS) return reserved.error();
  if (on_device) mark(Point::posted);
  const int code = pmpi(into, &reserved->inner);
  return reserved.submit_issued(code, request);
}

template <class Receive>
int receive_nonblocking(Receive pmpi, const char* call, void* buf, int asked, MPI_Datatype type,
                        const ErrorOwner& owner, const Selects& selects, const From& from, MPI_Request* request,
                        std::int64_t room = rts_room()) {
  Outgoing into{buf, asked, type};
  const int count = most_from(selects, asked);
  const std::int64_t began = timeline_now();
  const BufferPeek peek(buf, count, type);
  if (comes_as_it_is(peek) && peer_may_pass_unchecked(peek.bytes_on_host)) return pmpi(into, request);
  return guarded(owner, call, [&] {
    DeviceBuffer operand{.use = Use::written};
    std::shared_ptr<Payload> payload;
    const bool on_device = resolve(buf, count, type, call, operand, peek.located, from.may_be_rts());
    if (on_device) {
      peer_receives_on_device();
      payload = std::make_shared<Staged>(operand, room);
      into = payload->message();
    } else if (!operand.is_direct()) {
      payload = peer_host_receive(buf, count, type);
      if (payload) into = payload->message();
    } else {
      payload = direct_receive(operand, into);
      if (payload) into = payload->message();
    }
    if (!payload) return pmpi(given_unstaged(operand, into), request);
    const CallOnTimeline on_timeline(on_device ? began : 0, Point::irecv_entered, Point::irecv_returned);
    auto operation = std::make_unique<Operation>();
    operation->payload = payload;
    operation->owner = owner;
    operation->on_device = on_device;
    return start_receive(pmpi, std::move(operation), into, selects, request);
  });
}

/// Of a matched message that is known to be an RTS, where the receive has not even room for that. MPI is to report what
/// else is wrong with the arguments. May throw std::bad_alloc.
std::shared_ptr<ReceiveWithRoom> receive_with_room(const MessageReceive& received, void* buf, int count,
                                                   MPI_Datatype type) {
  if (!received.is_rts() || count < 0) return nullptr;
  const datatype::TypeInfoRef info = datatype::type_info(type);
  if (!info || count * info->layout().size() > ReceiveWithRoom::most_room) return nullptr;
  return std::make_shared<ReceiveWithRoom>(buf, count, type, info);
}

int receive_matched(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
  constexpr const char* call = "MPI_Mrecv";
  const MessageReceive received(message);
  const std::shared_ptr<ReceiveWithRoom> payload = receive_with_room(received, buf, count, type);
  if (!payload)
    return receive_blocking(
        [&](const Outgoing& into, MPI_Status* seen) {
          return PMPI_Mrecv(into.room(), into.count, into.type, message, seen);
        },
        call, buf, count, type, received.owner(), {}, status);
  return guarded(received.owner(), call, [&] {
    const SeenStatus seen(status);
    const Outgoing into = payload->message();
    const int code = PMPI_Mrecv(into.room(), into.count, into.type, message, seen.get());
    PendingReceive none({}, MPI_COMM_NULL);
    return seen.refused(code) ? code : peer_received(code, call, *payload, *seen, received.owner(), none);
  });
}

int start_receive_matched(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  constexpr const char* call = "MPI_Imrecv";
  const MessageReceive received(message);
  const auto start = [&](const Outgoing& into, MPI_Request* real) {
    return PMPI_Imrecv(into.room(), into.count, into.type, message, real);
  };
  const std::shared_ptr<ReceiveWithRoom> payload = receive_with_room(received, buf, count, type);
  if (!payload) return receive_nonblocking(start, call, buf, count, type, received.owner(), {}, {}, request);
  return guarded(received.owner(), call, [&] {
    auto operation = std::make_unique<Operation>();
    operation->payload = payload;
    operation->owner = received.owner();
    return start_receive(start, std::move(operation), payload->message(), {}, request);
  });
}

int sendrecv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag, void* recvbuf,
             int recvcount, MPI_Datatype recvtype, int source, int recvtag, MPI_Comm comm, MPI_Status* status) {
  constexpr const char* call = "MPI_Sendrecv";
  const Selector selector{source, recvtag};
  BufferPeek going(sendbuf, dest == MPI_PROC_NULL ? 0 : sendcount, sendtype);
  const BufferPeek coming(recvbuf, most_from(selector, recvcount), recvtype);
  if (goes_as_it_is(going) && comes_as_it_is_now(coming)) {
    const SeenStatus seen(status);
    const int code = PMPI_Sendrecv(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source,
                                   recvtag, comm, seen.get());
    return came_as_it_is(code, call, {recvbuf, recvcount, recvtype}, seen, {.comm = comm});
  }
  if (dest != MPI_PROC_NULL && RendezvousSender::likely(sendbuf, sendcount, sendtype, going.located, dest, comm) &&
      tells_refusal(comm, dest, sendtag)) {
    MPI_Request sent = MPI_REQUEST_NULL;
    // Sent when nothing can fail any more that the receive needs first.
    const auto exchange = [&](const Outgoing& into, MPI_Status* seen) {
      const int code = send_nonblocking(PMPI_Isend, call, sendbuf, sendcount, sendtype, dest, sendtag, comm, &sent,
                                        {.comm = comm}, going.located);
      if (code != MPI_SUCCESS) return code;
      device::about_to_wait(device::WaitKind::message);
      return PMPI_Recv(into.room(), into.count, into.type, source, recvtag, comm, seen);
    };
    const int code = receive_blocking<Does::send_first>(exchange, call, recvbuf, recvcount, recvtype, {.comm = comm},
                                                        selector, status, coming.located);
    const Timed timed(Clock::transfer);
    const int other = MPI_Wait(&sent, MPI_STATUS_IGNORE);
    return code == MPI_SUCCESS ? other : code;
  }
  DeviceBuffer out{.use = Use::read};
  const bool pack = dest != MPI_PROC_NULL &&
                    resolve(sendbuf, sendcount, sendtype, call, out, going.located, peer_exchanges_rts(dest, comm));
  std::optional<Staged> packed;
  if (pack) {
    packed.emplace(out);
    packed->start_pack();
  }
  const Outgoing given = packed ? packed->message() : given_unstaged(out, {sendbuf, sendcount, sendtype});
  engine_order(comm, dest);
  peer_sends_plain(sendcount, sendtype, dest, sendtag, comm);
  return receive_blocking<Does::send_first>(
      [&](const Outgoing& into, MPI_Status* seen) {
        if (packed) {
          device::about_to_wait(device::WaitKind::transfer);
          packed->wait();
        }
        return PMPI_Sendrecv(given.data, given.count, given.type, dest, sendtag, into.room(), into.count, into.type,
                             source, recvtag, comm, seen);
      },
      call, recvbuf, recvcount, recvtype, {.comm = comm}, selector, status, coming.located);
}

}  // namespace

int send_for_collective(const char* call, const void* buf, int count, MPI_Datatype type, const HiddenWay& way,
                        MPI_Comm comm, MPI_Request* request) {
  return send_nonblocking(hidden_send, call, buf, count, type, way.peer, way.tag, way.comm, request, {.comm = comm});
}

int receive_for_collective(const char* call, void* buf, int count, MPI_Datatype type, const HiddenWay& way,
                           MPI_Comm comm, MPI_Request* request) {
  return receive_nonblocking(
      [&](const Outgoing& into, MPI_Request* real) {
        const int code = hidden_receive(into.room(), into.count, into.type, way.peer, way.tag, way.comm, real);
        return code == MPI_SUCCESS ? code : raise(comm, code);
      },
      call, buf, count, type, {.comm = comm}, {}, {way.peer, way.comm}, request, hidden_rts_room());
}

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
  struct {
    int source, tag;
    MPI_Comm comm;
    int operator()(const Outgoing& into, MPI_Status* seen) const {
      return PMPI_Recv(into.room(), into.count, into.type, source, tag, comm, seen);
    }
    int operator()(const Outgoing& into, MPI_Request* request) const {
      return PMPI_Irecv(into.room(), into.count, into.type, source, tag, comm, request);
    }
  } const receive{source, tag, comm};
  return receive_blocking(receive, "MPI_Recv", buf, count, type, {.comm = comm}, Selector{source, tag}, status);
}
GPUDT_EXPORT int MPI_Mrecv(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
  return guarded(MPI_COMM_NULL, "MPI_Mrecv", [&] { return receive_matched(buf, count, type, message, status); });
}
GPUDT_EXPORT int MPI_Irecv(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                           MPI_Request* request) {
  return receive_nonblocking(
      [&](const Outgoing& into, MPI_Request* real) {
        return PMPI_Irecv(into.room(), into.count, into.type, source, tag, comm, real);
      },
      "MPI_Irecv", buf, count, type, {.comm = comm}, Selector{source, tag}, {source, comm}, request);
}
GPUDT_EXPORT int MPI_Imrecv(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  return guarded(MPI_COMM_NULL, "MPI_Imrecv",
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
