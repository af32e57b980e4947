#include "interpose/requests/arrival.hpp"

#include <string>

#include "interpose/transport/peer/from_host.hpp"

namespace gpudt::interpose {

void Arrival::came_plain(const ReceivePayload& payload, std::int64_t taken, FunctionRef<MPI_Comm()> comm) const {
  if (peer::rts_index(bytes) >= 0) peer_received_plain(bytes, source, comm());
  if (taken >= least_from_host && peer_checks() && payload.prefers_offers())
    publish_wish_for_offers(source, tag, comm());
}

bool Arrival::may_be_lost_rts(int code) const {
  return is_truncation(code) && (!truncated_statuses_tell || peer_may_be_rts(bytes));
}

void Arrival::release(ReceivePayload& payload, MPI_Comm comm, std::int64_t context) const {
  if (payload.truncated(bytes)) return;
  MPI_Status status{};
  status.MPI_SOURCE = source;
  status.MPI_TAG = tag;
  PMPI_Status_set_elements_x(&status, MPI_BYTE, bytes);
  if (comm != MPI_COMM_NULL)
    peer_truncated(comm, status);
  else
    peer_truncated_in(context, status);
}

int finish_receive(int code, const char* call, ReceivePayload& payload, const SeenStatus& seen, const ErrorOwner& owner,
                   PendingReceive& pending) {
  if (seen.refused(code) || (code != MPI_SUCCESS && !is_truncation(code))) return code;
  Arrival arrival;
  arrival.note(*seen);
  if (code != MPI_SUCCESS) {
    if (arrival.may_be_lost_rts(code)) arrival.release(payload, owner.comm);
    return code;
  }
  const std::int64_t delivered = arrival.bytes;
  try {
    wait_until([&] { return payload.is_readable(delivered); }, for_message);
  } catch (...) {
    arrival.release(payload, owner.comm);
    throw;
  }
  arrival.recognise(payload, [&] { return owner.comm; });
  require_names(arrival.source);
  pending.over();
  if (arrival.bytes != delivered) PMPI_Status_set_elements_x(&*seen, MPI_BYTE, arrival.bytes);
  payload.start_unpack(arrival.bytes);
  payload.wait();
  if (arrival.error == MPI_SUCCESS) return code;
  return fail(
      owner, call, arrival.error,
      "the message is longer than the " + std::to_string(arrival.bytes) + " bytes that the receive has room for");
}

int finish_host_receive(int code, const char* call, const Outgoing& program, const SeenStatus& seen,
                        const ErrorOwner& owner, PendingReceive& pending) {
  if (seen.refused(code) || (code == MPI_SUCCESS && !peer_may_be_rts(received_bytes(*seen)))) return code;
  const bool readable = code == MPI_SUCCESS || is_truncation(code);
  HostReceive receive(program.room(), program.count, program.type,
                      readable ? datatype::type_info(program.type) : nullptr);
  receive.came_in_place();
  return finish_receive(code, call, receive, seen, owner, pending);
}

}  // namespace gpudt::interpose
