// Receives, blocking and nonblocking.
#include <optional>
#include <utility>

#include "base/recycled.hpp"
#include "interpose/requests/point_to_point.hpp"
#include "interpose/requests/watched.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/received_on_device.hpp"
#include "interpose/transport/staged_receive.hpp"

namespace gpudt::interpose {

namespace {

/// Whether data of a basic type that have arrived in host memory may be the RTS of a short message, or a compact one.
bool may_be_named_rts(const Outgoing& into, const MPI_Status& status) {
  return peer_expects_short() && peer::has_short_length(received_bytes(status)) && peer::may_name_offer(into.data);
}

}  // namespace

/// A receive this short has room for no ordinary RTS.
bool comes_as_it_is(const BufferPeek& peek) {
  return peek.bytes_on_host >= 0 && peek.bytes_on_host < peer::shortest_rts && !peer_wants_room(peek.bytes_on_host);
}

/// The receive may have truncated an RTS, or have got that of a short message, or a compact one.
int came_as_it_is(int code, const char* call, const Outgoing& program, const SeenStatus& seen,
                  const ErrorOwner& owner) {
  if (!peer_checks()) return code;
  if (seen.refused(code) || (code == MPI_SUCCESS && !may_be_named_rts(program, *seen))) return code;
  return guarded(owner, call, [&] {
    PendingReceive none({}, MPI_COMM_NULL);
    return finish_host_receive(code, call, program, seen, owner, none);
  });
}

int receive_blocking(const BlockingReceive& pmpi, const char* call, const ReceiveBuffer& buffer,
                     const ErrorOwner& owner, const Selects& selects, MPI_Status* status) {
  const SeenStatus seen(status);
  const Outgoing program{buffer.address, buffer.count, buffer.type};
  const int count = most_from(selects, buffer.count);
  const std::int64_t began = timeline_now();
  const BufferPeek peek(buffer.address, count, buffer.type, buffer.located);
  if (!pmpi.sends_first && comes_as_it_is(peek))
    return came_as_it_is(pmpi.receive(program, seen.get()), call, program, seen, owner);
  return guarded(owner, call, [&] {
    DeviceBuffer operand{.use = Use::written};
    const From from{selects ? selects->source : MPI_ANY_SOURCE, owner.comm};
    if (!resolve(buffer.address, count, buffer.type, call, operand, peek.located, from.may_be_rts())) {
      if (!peer_checks() || (operand.is_direct() && !peer_takes_fragments()))
        return pmpi.receive(given_unstaged(operand, program), status);
      // Direct receives of any length, unlike nonblocking ones: the sender of a truncated RTS must be released.
      const std::shared_ptr<ReceivePayload> payload = operand.is_direct()
                                                          ? std::make_shared<DirectReceive>(operand, program)
                                                          : peer_blocking_receive(buffer.address, count, buffer.type);
      PendingReceive pending(selects, owner.comm);
      const int code = pmpi.receive(payload ? payload->message() : program, seen.get());
      return payload ? finish_receive(code, call, *payload, seen, owner, pending)
                     : finish_host_receive(code, call, {buffer.address, count, buffer.type}, seen, owner, pending);
    }
    const CallOnTimeline on_timeline(began, point::receive_entered, point::receive_returned);
    peer_receives_on_device();
    // Not on the stack: if MPI fails, or the thread is cancelled, it may write there later.
    const auto staged = make_recycled<StagedReceive>(std::move(operand), rts_room());
    PendingReceive pending(selects, owner.comm);
    int code = MPI_SUCCESS;
    {
      if (!pmpi.sends_first) device::about_to_wait(device::WaitKind::peer_sends);
      mark(point::posted);
      const Timed timed(Clock::mpi);
      code = pmpi.receive(staged->message(), seen.get());
    }
    return finish_receive(code, call, *staged, seen, owner, pending);
  });
}

int start_receive(StartReceive pmpi, std::shared_ptr<ReceivePayload> payload, const ErrorOwner& owner,
                  const Selects& selects, bool on_device, MPI_Request* request) {
  const Outgoing into = payload->message();
  auto operation = std::make_unique<Operation>();
  operation->moved = std::move(payload);
  operation->owner = owner;
  operation->on_device = on_device;
  const PendingReceive pending(selects, owner.comm);
  Reservation reserved(std::move(operation));
  if (reserved.error() != MPI_SUCCESS) return reserved.error();
  if (on_device) mark(point::posted);
  const int code = pmpi(into, &reserved->inner);
  return reserved.submit_issued(code, request);
}

namespace {

/// Where MPI does not report the length of a truncated message, the receive's communicator is needed to find the sender
/// of an RTS, and only watched receives know it.
bool watches_all() {
  return !truncated_statuses_tell && peer_checks();
}

}  // namespace

int receive_nonblocking(StartReceive pmpi, const char* call, const ReceiveBuffer& buffer, const ErrorOwner& owner,
                        const Selects& selects, const From& from, MPI_Request* request, std::int64_t room) {
  const auto& [buf, asked, type, located] = buffer;
  const Outgoing program{buf, asked, type};
  const int count = most_from(selects, asked);
  const std::int64_t began = timeline_now();
  const BufferPeek peek(buf, count, type, located);
  const bool from_nobody = selects && selects->source == MPI_PROC_NULL;
  if (refused_early(peek)) return MPI_SUCCESS;
  const bool nothing_to_check = peek.bytes_on_host >= peer::shortest_rts && !peer_checks();
  if (from_nobody || nothing_to_check ||
      (comes_as_it_is(peek) && !watches_all() && peer_may_pass_unchecked(peek.bytes_on_host)))
    return pmpi(program, request);
  if (peek.bytes_on_host >= 0 && peer_checks())
    return guarded(owner, call, [&] {
      WatchedBuffer watched{.program = program, .bytes = peek.bytes_on_host};
      if (peer_wants_room(watched.bytes)) watched.with_room = receive_with_room(program);
      if (!watched.with_room && peer_receives_bytes_alone()) watched.info = datatype::type_info(program.type);
      const Outgoing into = watched.with_room ? watched.with_room->message()
                            : watched.info    ? HostReceive(program.room(), count, program.type, watched.info).message()
                                              : program;
      return watched_start(pmpi, into, std::move(watched), owner, selects, request);
    });
  return guarded(owner, call, [&, buf = buf, asked = asked, type = type] {
    DeviceBuffer operand{.use = Use::written};
    const bool staged = resolve(buf, count, type, call, operand, peek.located, from.may_be_rts());
    if ((!staged || operand.division) && refused_early(operand)) return int(MPI_SUCCESS);
    if (staged) {
      const CallOnTimeline on_timeline(began, point::irecv_entered, point::irecv_returned);
      peer_receives_on_device();
      return start_receive(pmpi, make_recycled<StagedReceive>(std::move(operand), room), owner, selects,
                           /*on_device=*/true, request);
    }
    if (!operand.is_direct() && peer_may_reach_host(count, type)) {
      const datatype::TypeInfoRef info = datatype::type_info(type);
      const HostReceive in_place(buf, count, type, info);
      if (info && in_place.is_in_place())
        return watched_start(pmpi, in_place.message(), {program, info, count * info->layout().size()}, owner, selects,
                             request);
    }
    const std::shared_ptr<ReceivePayload> payload = unstaged_receive(operand, {buf, count, type});
    if (!payload && watches_all() && !operand.is_direct() && asked > 0 && type != MPI_DATATYPE_NULL) {
      if (const datatype::TypeInfoRef info = datatype::type_info(type))
        return watched_start(pmpi, program, {program, info, count * info->layout().size()}, owner, selects, request);
    }
    if (!payload) return pmpi(given_unstaged(operand, program), request);
    return start_receive(pmpi, payload, owner, selects, /*on_device=*/false, request);
  });
}

int receive_for_collective(const char* call, void* buf, int count, MPI_Datatype type, const HiddenWay& way,
                           MPI_Comm comm, MPI_Request* request) {
  return receive_nonblocking(
      [&](const Outgoing& into, MPI_Request* real) {
        const int code = hidden_receive(into.room(), into.count, into.type, way.peer, way.tag, way.comm, real);
        return code == MPI_SUCCESS ? code : raise(comm, code);
      },
      call, {buf, count, type}, {.comm = comm}, Selects{}, From{way.peer, way.comm}, request, hidden_rts_room());
}

}  // namespace gpudt::interpose
