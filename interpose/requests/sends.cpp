// Sends, blocking and nonblocking.
#include "interpose/requests/point_to_point.hpp"

#include <atomic>
#include <optional>
#include <utility>

#include "interpose/requests/call_buffers.hpp"
#include "interpose/support/early_start.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/support/sessions.hpp"
#include "interpose/transport/peer/from_host.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

bool valid_rank(MPI_Comm comm, int peer) {
  return peer >= 0 && peer < peers_of(comm);
}

bool valid_tag(MPI_Comm comm, int tag) {
  static std::atomic<int> known_bound{-1};  // it never changes
  if (tag < 0 || tag <= known_bound.load(std::memory_order_relaxed)) return tag >= 0;
  void* bound = nullptr;
  int found = 0;
  PMPI_Comm_get_attr(sessions_alone() ? comm : MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &found);
  if (found == 0) return true;
  known_bound.store(*static_cast<int*>(bound), std::memory_order_relaxed);
  return tag <= *static_cast<int*>(bound);
}

bool valid_target(MPI_Comm comm, int peer, int tag) {
  return comm != MPI_COMM_NULL && valid_rank(comm, peer) && valid_tag(comm, tag);
}

bool valid_source(MPI_Comm comm, int peer, int tag) {
  return comm != MPI_COMM_NULL && (peer == MPI_ANY_SOURCE || valid_rank(comm, peer)) &&
         (tag == MPI_ANY_TAG || valid_tag(comm, tag));
}

bool refused_early(const BufferPeek& peek) {
  if (!EarlyStart::is_active() || (peek.bytes_on_host < 0 && !check_wanted && !mpi_takes_device_memory())) return false;
  return EarlyStart::refuse();
}

bool refused_early(const DeviceBuffer& operand) {
  if (!EarlyStart::refuse()) return false;
  if (operand.reported) operand.reported->drop();
  return true;
}

namespace {

/// Whether MPI's return code shows if MPI refuses a send.
bool tells_refusal(MPI_Comm comm, int peer, int tag) {
  return returns_handled_errors || valid_target(comm, peer, tag);
}

template <class Pmpi, class... More>
int send_now(Pmpi pmpi, const Outgoing& out, int dest, int tag, MPI_Comm comm, More... more) {
  return pmpi(out.data, out.count, out.type, dest, tag, comm, more...);
}

/// Gives MPI the RTS of an offer, and returns when it has been sent. With several threads it uses a nonblocking send:
/// plain messages of other threads may wait until MPI has the RTS, and a blocking send may return much later.
int send_token(BlockingSend pmpi, SendPayload& offer, int dest, int tag, MPI_Comm comm) {
  const Outgoing rts = offer.message();
  if (offer.goes_synchronously()) pmpi = PMPI_Ssend;
  mark(point::given);
  if (!peer_has_threads()) {
    const int code = send_now(pmpi, rts, dest, tag, comm);
    offer.given();
    return code;
  }
  const NonblockingSend nonblocking = pmpi == PMPI_Ssend ? PMPI_Issend : pmpi == PMPI_Rsend ? PMPI_Irsend : PMPI_Isend;
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = send_now(nonblocking, rts, dest, tag, comm, &request);
  offer.given();
  return code == MPI_SUCCESS ? PMPI_Wait(&request, MPI_STATUS_IGNORE) : code;
}

/// Returns when the receiver has the data.
int send_offer(BlockingSend pmpi, SendPayload& offer, const Destination& to) {
  const int code = send_token(pmpi, offer, to.rank, to.tag, to.comm);
  if (code != MPI_SUCCESS && !valid_target(to.comm, to.rank, to.tag)) offer.recalled();  // MPI has not sent it
  if (code != MPI_SUCCESS) return code;
  mark(point::sent);
  offer.sent();
  device::about_to_wait(device::WaitKind::peer_reads);
  offer.wait();
  return code;
}

/// The offer of contiguous data in host memory that their receiver wants for a GPU; null if MPI is to have them.
std::shared_ptr<SendPayload> host_offer(BlockingSend pmpi, const Outgoing& program, const Destination& to) {
  if (program.count <= 0 || program.type == MPI_DATATYPE_NULL || !peer_checks() || is_buffered(pmpi)) return nullptr;
  const std::int64_t bytes = program.count * datatype::size_of(program.type);
  if (!should_offer_from_host(bytes, to.rank, to.tag, to.comm) || !tells_refusal(to.comm, to.rank, to.tag))
    return nullptr;
  DeviceBuffer operand{.buffer = program.room(), .count = program.count, .ordinal = -1};
  operand.info = datatype::type_info(program.type);
  if (!operand.info || !operand.info->layout().is_contiguous(operand.count)) return nullptr;
  if (program.data == MPI_BOTTOM && operand.info->layout().true_lb() == 0) return nullptr;  // MPI reports it
  return host_sender_for(operand, to);
}

}  // namespace

int send_blocking(BlockingSend pmpi, const char* call, const void* buf, int count, MPI_Datatype type, int dest, int tag,
                  MPI_Comm comm) {
  if (dest == MPI_PROC_NULL) return pmpi(buf, count, type, dest, tag, comm);
  const std::int64_t began = timeline_now();
  const BufferPeek peek(buf, count, type);
  if (goes_as_it_is(peek) && !should_offer_from_host(peek.bytes_on_host, dest, tag, comm))
    return pmpi(buf, count, type, dest, tag, comm);
  return guarded(comm, call, [&] {
    DeviceBuffer operand{.use = Use::read};
    if (!resolve(buf, count, type, call, operand, peek.located, needs_host_memory(pmpi, dest, comm))) {
      const auto offer = operand.is_direct() ? nullptr : host_offer(pmpi, {buf, count, type}, {dest, tag, comm});
      engine_order(comm, dest);
      if (offer) return send_offer(pmpi, *offer, {dest, tag, comm});
      peer_sends_plain(count, type, dest, tag, comm);
      return send_now(pmpi, given_unstaged(operand, {buf, count, type}), dest, tag, comm);
    }
    const CallOnTimeline on_timeline(began, point::send_entered, point::send_returned);
    if (!tells_refusal(comm, dest, tag)) return pmpi(buf, count, type, dest, tag, comm);
    require_names(dest);
    // Its receive is mostly still to come, until when an offer would be in vain.
    const bool to_itself = operand.bytes() < peer::least_offered && peer_is_itself(comm, dest);
    const auto [payload, offers] = sender_for(operand, {dest, tag, comm}, is_buffered(pmpi) || to_itself);
    payload->start_pack();
    engine_order(comm, dest);
    if (offers) return send_offer(pmpi, *payload, {dest, tag, comm});
    device::about_to_wait(device::WaitKind::transfer);
    payload->wait();
    peer_sends_plain(operand.bytes(), dest, tag, comm);
    const Timed timed(Clock::mpi);
    mark(point::given);
    const int code = send_now(pmpi, payload->message(), dest, tag, comm);
    mark(point::sent);
    return code;
  });
}

int send_nonblocking(NonblockingSend pmpi, const char* call, const void* buf, int count, MPI_Datatype type, int dest,
                     int tag, MPI_Comm comm, MPI_Request* request, const ErrorOwner& owner, Located located) {
  if (dest == MPI_PROC_NULL) return pmpi(buf, count, type, dest, tag, comm, request);
  const std::int64_t began = timeline_now();
  const BufferPeek peek(buf, count, type, located);
  // The receive of a ready send need not be posted before its stream comes to it.
  if (refused_early(peek) || (pmpi == PMPI_Irsend && EarlyStart::refuse())) return MPI_SUCCESS;
  if (goes_as_it_is(peek)) return pmpi(buf, count, type, dest, tag, comm, request);
  return guarded(owner, call, [&] {
    DeviceBuffer operand{.use = Use::read};
    const bool staged = resolve(buf, count, type, call, operand, peek.located, needs_host_memory(pmpi, dest, comm));
    if ((!staged || operand.division) && refused_early(operand)) return int(MPI_SUCCESS);
    if (!staged) {
      engine_order(comm, dest);
      peer_sends_plain(count, type, dest, tag, comm);
      return send_now(pmpi, given_unstaged(operand, {buf, count, type}), dest, tag, comm, request);
    }
    const CallOnTimeline on_timeline(began, point::isend_entered, point::isend_returned);
    if (pmpi != hidden_send && !valid_target(comm, dest, tag)) return pmpi(buf, count, type, dest, tag, comm, request);
    auto [payload, offers] = sender_for(operand, {dest, tag, comm}, is_buffered(pmpi));
    // Later sends, which go at once, would overtake the message while it waits to be packed, or wait for it.
    if (!offers && refused_early(operand)) return int(MPI_SUCCESS);
    if (!offers) peer_sends_plain(operand.bytes(), dest, tag, comm);
    SendPayload& out = *payload;
    out.start_pack();
    auto operation = std::make_unique<Operation>();
    operation->moved = std::move(payload);
    operation->owner = owner;
    operation->channel = {comm, dest};
    operation->tag = tag;
    operation->send = pmpi;
    Reservation reserved(std::move(operation));
    if (reserved.error() != MPI_SUCCESS) return reserved.error();
    if (!is_buffered(pmpi)) return reserved.submit_send(offers, request);
    engine_order(comm, dest);
    out.wait();
    mark(point::given);
    const int code = send_now(pmpi, out.message(), dest, tag, comm, &reserved->inner);
    return reserved.submit_issued(code, request);
  });
}

int send_for_collective(const char* call, const void* buf, int count, MPI_Datatype type, const HiddenWay& way,
                        MPI_Comm comm, MPI_Request* request) {
  return send_nonblocking(hidden_send, call, buf, count, type, way.peer, way.tag, way.comm, request, {.comm = comm});
}

}  // namespace gpudt::interpose
