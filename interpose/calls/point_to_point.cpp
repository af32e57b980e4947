// MPI-4.1 chapter 3: receives, blocking and nonblocking, and MPI_Sendrecv. Each wrapper names its PMPI function; the
// work that they share is in the templates above them.
#include <optional>
#include <type_traits>

#include "interpose/calls/sends.hpp"
#include "interpose/requests/matched.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/point_to_point.hpp"
#include "interpose/requests/watched.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/received_on_device.hpp"
#include "interpose/transport/staged.hpp"

namespace gpudt::interpose {

namespace {

/// True of short receives into host memory: no RTS has room in them but those of short messages.
bool comes_as_it_is(const BufferPeek& peek) {
  return peek.bytes_on_host >= 0 && peek.bytes_on_host < peer::shortest_rts;
}
/// The same of blocking ones, which get room where that is needed.
bool comes_as_it_is_now(const BufferPeek& peek) {
  return comes_as_it_is(peek) && !peer_wants_room(peek.bytes_on_host);
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

/// The sender of a receive, as far as it is known.
struct From {
  int source = MPI_ANY_SOURCE;
  MPI_Comm comm = MPI_COMM_NULL;

  /// Whether the message may be an RTS of a process of this node, which is read in host memory.
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
  try {
    while (cancelled == 0 && !staged.is_readable(bytes)) {  // waits for the copy of its first bytes
    }
    if (cancelled == 0) staged.announced(bytes);  // if it is an RTS, its sender hears of the failure
  } catch (const std::exception&) {               // the first failure is told
  }
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
      // Direct ones of any length, unlike nonblocking ones: a truncated RTS must release its sender.
      const std::shared_ptr<Payload> payload = operand.is_direct() ? std::make_shared<DirectReceive>(operand, program)
                                                                   : peer_blocking_receive(buf, count, type);
      PendingReceive pending(selects, owner.comm);
      if (payload) {
        const int code = pmpi(payload->message(), seen.get());
        return finish_receive(code, call, *payload, seen, owner, pending);
      }
      const int code = pmpi(program, seen.get());
      return seen.refused(code) ? code : peer_received_on_host(code, call, buf, count, type, *seen, owner, pending);
    }
    const CallOnTimeline on_timeline(began, point::receive_entered, point::receive_returned);
    peer_receives_on_device();
    Staged staged(operand, rts_room());
    PendingReceive pending(selects, owner.comm);
    int code = MPI_SUCCESS;
    {
      if constexpr (does == Does::receive) device::about_to_wait(device::WaitKind::peer_sends);
      mark(point::posted);
      const Timed timed(Clock::mpi);
      code = receive_staged(pmpi, staged, seen.get());
    }
    return finish_receive(code, call, staged, seen, owner, pending);
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
  if (on_device) mark(point::posted);
  const int code = pmpi(into, &reserved->inner);
  return reserved.submit_issued(code, request);
}

/// Starts a receive into the program's buffer on the host as a watched receive.
template <class Receive>
int start_watched(Receive pmpi, const Outgoing& into, const WatchedBuffer& buffer, const ErrorOwner& owner,
                  const Selects& selects, MPI_Request* request) {
  const PendingReceive pending(selects, owner.comm);
  WatchedPlace place(buffer, owner);
  MPI_Request made = MPI_REQUEST_NULL;
  const int code = pmpi(into, &made);
  if (code != MPI_SUCCESS) return code;
  if (made != MPI_REQUEST_NULL) place.enter(made);  // none: MPICH 5 has told an error handler alone
  *request = made;
  return code;
}

/// Where MPI does not tell how long a message was that was too long for a receive: the receive's communicator is needed
/// then to find the sender, which only a watched receive knows.
bool watches_all() {
  return !truncated_statuses_tell && peer_checks();
}

/// `pmpi(into, request)` starts the receive. `from`: as `selects` says, or of a hidden receive or a matched message,
/// which select nothing that a probe could see.
template <class Receive>
int receive_nonblocking(Receive pmpi, const char* call, void* buf, int asked, MPI_Datatype type,
                        const ErrorOwner& owner, const Selects& selects, const From& from, MPI_Request* request,
                        std::int64_t room = rts_room()) {
  Outgoing into{buf, asked, type};
  const int count = most_from(selects, asked);
  const std::int64_t began = timeline_now();
  const BufferPeek peek(buf, count, type);
  const bool from_nobody = selects && selects->source == MPI_PROC_NULL;
  if (from_nobody || (comes_as_it_is_now(peek) && !watches_all() && peer_may_pass_unchecked(peek.bytes_on_host)))
    return pmpi(into, request);
  if (peek.bytes_on_host >= 0 && peer_checks())
    return guarded(owner, call, [&] {
      const std::shared_ptr<ReceiveWithRoom> with_room = receive_with_room(into);
      return start_watched(pmpi, with_room ? with_room->message() : into,
                           {into, nullptr, peek.bytes_on_host, with_room}, owner, selects, request);
    });
  return guarded(owner, call, [&] {
    DeviceBuffer operand{.use = Use::written};
    std::shared_ptr<Payload> payload;
    const bool on_device = resolve(buf, count, type, call, operand, peek.located, from.may_be_rts());
    if (on_device) {
      peer_receives_on_device();
      payload = std::make_shared<Staged>(operand, room);
      into = payload->message();
    } else if (!operand.is_direct() && peer_may_reach_host(count, type)) {
      const datatype::TypeInfoRef info = datatype::type_info(type);
      const HostReceive in_place(buf, count, type, info);
      if (info && in_place.is_in_place())
        return start_watched(pmpi, in_place.message(), {into, info, count * info->layout().size()}, owner, selects,
                             request);
    }
    if (!on_device && (payload = unstaged_receive(operand, {buf, count, type}))) into = payload->message();
    if (!payload && watches_all() && !operand.is_direct() && into.count > 0 && into.type != MPI_DATATYPE_NULL) {
      if (const datatype::TypeInfoRef info = datatype::type_info(type))
        return start_watched(pmpi, into, {into, info, count * info->layout().size()}, owner, selects, request);
    }
    if (!payload) return pmpi(given_unstaged(operand, into), request);
    const CallOnTimeline on_timeline(on_device ? began : 0, point::irecv_entered, point::irecv_returned);
    auto operation = std::make_unique<Operation>();
    operation->payload = payload;
    operation->owner = owner;
    operation->on_device = on_device;
    return start_receive(pmpi, std::move(operation), into, selects, request);
  });
}

/// Of a matched message that is known to be an RTS, where the receive has not even room for that. MPI is to report what
/// else is wrong with the arguments. May throw std::bad_alloc.
std::shared_ptr<ReceiveWithRoom> matched_with_room(const MessageReceive& received, void* buf, int count,
                                                   MPI_Datatype type) {
  if (!received.is_rts() || count < 0) return nullptr;
  const datatype::TypeInfoRef info = datatype::type_info(type);
  if (!info || count * info->layout().size() > ReceiveWithRoom::most_room) return nullptr;
  return std::make_shared<ReceiveWithRoom>(buf, count, type, info);
}

int receive_matched(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
  constexpr const char* call = "MPI_Mrecv";
  const MessageReceive received(message);
  const std::shared_ptr<ReceiveWithRoom> payload = matched_with_room(received, buf, count, type);
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
    return finish_receive(code, call, *payload, seen, received.owner(), none);
  });
}

int start_receive_matched(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  constexpr const char* call = "MPI_Imrecv";
  const MessageReceive received(message);
  const auto start = [&](const Outgoing& into, MPI_Request* real) {
    return PMPI_Imrecv(into.room(), into.count, into.type, message, real);
  };
  const std::shared_ptr<ReceiveWithRoom> payload = matched_with_room(received, buf, count, type);
  if (!payload) return receive_nonblocking(start, call, buf, count, type, received.owner(), Selects{}, From{}, request);
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
  // The sender of what comes may wait until this process takes it, so that this one may not wait for its own send
  // first.
  if (peer_checks() && valid_target(comm, dest, sendtag) && valid_source(comm, source, recvtag)) {
    MPI_Request sent = MPI_REQUEST_NULL;
    // Sent when nothing can fail any more that the receive needs first.
    const auto exchange = [&](const Outgoing& into, MPI_Status* seen) {
      const int code = send_nonblocking(PMPI_Isend, call, sendbuf, sendcount, sendtype, dest, sendtag, comm, &sent,
                                        {.comm = comm}, going.located);
      if (code != MPI_SUCCESS) return code;
      device::about_to_wait(device::WaitKind::peer_sends);
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

int receive_for_collective(const char* call, void* buf, int count, MPI_Datatype type, const HiddenWay& way,
                           MPI_Comm comm, MPI_Request* request) {
  return receive_nonblocking(
      [&](const Outgoing& into, MPI_Request* real) {
        const int code = hidden_receive(into.room(), into.count, into.type, way.peer, way.tag, way.comm, real);
        return code == MPI_SUCCESS ? code : raise(comm, code);
      },
      call, buf, count, type, {.comm = comm}, Selects{}, From{way.peer, way.comm}, request, hidden_rts_room());
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

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
      "MPI_Irecv", buf, count, type, {.comm = comm}, Selector{source, tag}, From{source, comm}, request);
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
