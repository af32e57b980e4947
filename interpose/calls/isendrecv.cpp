// MPI-4.1 section 3.11: MPI_Sendrecv_replace, MPI_Isendrecv and MPI_Isendrecv_replace.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "datatype/reference.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/point_to_point.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/received_on_device.hpp"
#include "interpose/transport/staged.hpp"
#include "interpose/transport/staged_receive.hpp"

namespace gpudt::interpose {
namespace {

/// A packed copy of host memory that is to be sent, and that a receive will overwrite. It is not in staging memory, so
/// that programs that use only host memory touch no GPU.
class PackedCopy : public SendPayload {
 public:
  PackedCopy(const void* buf, int count, const datatype::TypeInfo& info)
      : count_(count),
        type_(info.packed_type()),
        packed_(std::make_unique<std::byte[]>(static_cast<std::size_t>(count * info.layout().size()))) {
    datatype::pack(info.layout(), count, buf, 0, count * info.layout().size(), packed_.get());
  }
  Outgoing message() const override { return {packed_.get(), count_, type_}; }
  bool done() override { return true; }

 private:
  int count_;
  MPI_Datatype type_;
  std::unique_ptr<std::byte[]> packed_;
};

struct ReplaceArguments {
  void* buf;
  int count;
  MPI_Datatype type;
  int dest, sendtag, source, recvtag;
  MPI_Comm comm;

  int call_replace(const Outgoing& both, MPI_Status* status) const {
    return PMPI_Sendrecv_replace(both.room(), both.count, both.type, dest, sendtag, source, recvtag, comm, status);
  }
  int call_sendrecv(const Outgoing& out, const Outgoing& in, MPI_Status* status) const {
    return PMPI_Sendrecv(out.data, out.count, out.type, dest, sendtag, in.room(), in.count, in.type, source, recvtag,
                         comm, status);
  }
  /// Whether MPI accepts the ranks and tags; if not, PMPI_Sendrecv_replace is to report it.
  bool are_valid() const {
    return (dest == MPI_PROC_NULL || valid_target(comm, dest, sendtag)) &&
           (source == MPI_PROC_NULL || valid_source(comm, source, recvtag));
  }
  /// Whether the other process may wait for this one to fetch its message, an RTS, while this one waits until its own
  /// message of `bytes` bytes is received. MPI buffers short messages.
  bool may_deadlock(std::int64_t bytes) const {
    return peer_checks() && bytes > peer::longest_buffered && dest != MPI_PROC_NULL && source != MPI_PROC_NULL &&
           are_valid();
  }
};

constexpr const char* replace_call = "MPI_Sendrecv_replace";

int received(int code, ReceivePayload& in, const ReplaceArguments& args, const SeenStatus& seen,
             PendingReceive& pending) {
  return finish_receive(code, replace_call, in, seen, {.comm = args.comm}, pending);
}

/// Sends `out`, a copy, and receives into `in`. Waits for the send last (ReplaceArguments::may_deadlock()).
int exchange(const ReplaceArguments& args, const Outgoing& out, ReceivePayload& in, const SeenStatus& seen,
             PendingReceive& pending) {
  const Outgoing into = in.message();
  struct Sent {
    MPI_Request request = MPI_REQUEST_NULL;
    ~Sent() { PMPI_Wait(&request, MPI_STATUS_IGNORE); }
  } sent;
  int code = PMPI_Isend(out.data, out.count, out.type, args.dest, args.sendtag, args.comm, &sent.request);
  if (code != MPI_SUCCESS) return code;
  code = PMPI_Recv(into.room(), into.count, into.type, args.source, args.recvtag, args.comm, seen.get());
  code = received(code, in, args, seen, pending);
  const int other = PMPI_Wait(&sent.request, MPI_STATUS_IGNORE);
  return code == MPI_SUCCESS ? other : code;
}

/// The type of a buffer that needs exchange(); null for others.
datatype::TypeInfoRef info_of_long(const ReplaceArguments& args) {
  if (args.count <= 0 || args.type == MPI_DATATYPE_NULL) return nullptr;
  datatype::TypeInfoRef info = datatype::type_info(args.type);
  if (!info || !args.may_deadlock(args.count * info->layout().size())) return nullptr;
  return args.buf == MPI_BOTTOM && info->layout().true_lb() == 0 ? nullptr : info;
}

int replace_on_host(const ReplaceArguments& args, const SeenStatus& seen, PendingReceive& pending) {
  if (const datatype::TypeInfoRef info = info_of_long(args)) {
    const PackedCopy out(args.buf, args.count, *info);
    HostReceive in(args.buf, args.count, args.type, info);
    return exchange(args, out.message(), in, seen, pending);
  }
  const Outgoing program{args.buf, args.count, args.type};
  if (const auto packed = peer_blocking_receive(args.buf, args.count, args.type, /*apart=*/true))
    return received(args.call_sendrecv(program, packed->message(), seen.get()), *packed, args, seen, pending);
  const int code = args.call_replace(program, seen.get());
  return finish_host_receive(code, replace_call, program, seen, {.comm = args.comm}, pending);
}

void pack(StagedSend& out) {
  out.start_pack();
  device::about_to_wait(device::WaitKind::transfer);
  out.wait();
}

int replace_through_host(const ReplaceArguments& args, const DeviceBuffer& operand, const SeenStatus& seen,
                         PendingReceive& pending) {
  peer_receives_on_device();
  StagedSend out(operand);
  pack(out);
  if (operand.reported && args.dest != MPI_PROC_NULL)  // the received data may go another way
    require_checks(replace_call, operand.reported->went(), operand.bytes());
  if (!args.are_valid()) return args.call_replace(out.message(), seen.get());
  const auto in = make_recycled<StagedReceive>(operand, rts_room());
  if (rts_room() <= operand.bytes() && args.may_deadlock(operand.bytes()))
    return exchange(args, out.message(), *in, seen, pending);
  return received(args.call_sendrecv(out.message(), in->message(), seen.get()), *in, args, seen, pending);
}

/// Packs into device memory: MPI_Sendrecv_replace would copy the outgoing data on the host (mpi_takes_device_memory()).
int replace_through_device(const ReplaceArguments& args, const DeviceBuffer& operand, const SeenStatus& seen,
                           PendingReceive& pending) {
  DeviceBuffer copied = operand;
  copied.protocol = Protocol::device_staging;
  StagedSend out(copied);
  pack(out);
  if (!args.are_valid()) return args.call_replace(out.message(), seen.get());
  const Outgoing program{args.buf, args.count, args.type};
  std::unique_ptr<ReceivePayload> in;
  if (operand.is_direct())
    in = std::make_unique<DirectReceive>(operand, program);
  else
    in = std::make_unique<StagedReceive>(operand, rts_room());
  if (args.may_deadlock(operand.bytes())) return exchange(args, out.message(), *in, seen, pending);
  return received(args.call_sendrecv(out.message(), in->message(), seen.get()), *in, args, seen, pending);
}

int sendrecv_replace(const ReplaceArguments& args, MPI_Status* status) {
  const auto& [buf, count, type, dest, sendtag, source, recvtag, comm] = args;
  DeviceBuffer operand;
  engine_order(comm, dest);
  peer_sends_plain(count, type, dest, sendtag, comm);
  const SeenStatus seen(status);
  PendingReceive pending(Selector{source, recvtag}, comm);
  const bool staged = resolve(buf, count, type, replace_call, operand, {}, peer_exchanges_rts(source, comm));
  if (!staged && !operand.is_direct())
    return peer_checks() ? replace_on_host(args, seen, pending) : args.call_replace({buf, count, type}, status);
  return operand.protocol == Protocol::mapped_staging ? replace_through_host(args, operand, seen, pending)
                                                      : replace_through_device(args, operand, seen, pending);
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Sendrecv_replace(void* buf, int count, MPI_Datatype type, int dest, int sendtag, int source,
                                      int recvtag, MPI_Comm comm, MPI_Status* status) {
  return guarded(comm, replace_call, [&] {
    return sendrecv_replace({buf, count, type, dest, sendtag, source, recvtag, comm}, status);
  });
}

#ifdef GPUDT_MPI_ISENDRECV

namespace gpudt::interpose {
namespace {

/// The receive of an MPI_Isendrecv, which is done once its send is complete, too.
class ReceivedAndSent : public ReceivePayload {
 public:
  ReceivedAndSent(std::shared_ptr<SendPayload> out, std::shared_ptr<ReceivePayload> in)
      : out_(std::move(out)), in_(std::move(in)) {}
  /// Waits for the send, which is still under way only after an error.
  ~ReceivedAndSent() override { PMPI_Wait(&send, MPI_STATUS_IGNORE); }
  Outgoing message() const override { return in_ ? in_->message() : Outgoing{nullptr, 0, MPI_BYTE}; }
  bool is_readable(std::int64_t bytes) override { return !in_ || in_->is_readable(bytes); }
  Announced announced(std::int64_t bytes) override { return in_ ? in_->announced(bytes) : Announced{bytes}; }
  bool truncated(std::int64_t bytes) override { return in_ && in_->truncated(bytes); }
  void start_unpack(std::int64_t bytes) override {
    if (in_) in_->start_unpack(bytes);
  }
  bool done() override {
    int sent = 1;
    PMPI_Test(&send, &sent, MPI_STATUS_IGNORE);
    return sent != 0 && (!in_ || in_->done());
  }
  void abandon() override {
    if (in_) in_->abandon();
  }
  void each_reported(VisitReported visit) const override {
    if (out_) out_->each_reported(visit);
    if (in_) in_->each_reported(visit);
  }

  MPI_Request send = MPI_REQUEST_NULL;

 private:
  std::shared_ptr<SendPayload> out_;
  std::shared_ptr<ReceivePayload> in_;
};

/// The send or the receive of an MPI_Isendrecv, with the SendPayload or ReceivePayload that MPI is given instead of the
/// program's buffer, if needed.
template <class Sort>
struct Half {
  const void* buf;
  int count;
  MPI_Datatype type;
  int peer;
  int tag;
  std::shared_ptr<Sort> payload{};
  DeviceBuffer operand{};

  /// Makes the payload for a buffer in device memory that MPI cannot take. True if it did. May throw device::Error.
  template <class Staging, class... More>
  bool stage(const char* call, bool host_memory_only, More... more) {
    if (peer == MPI_PROC_NULL || !resolve(buf, count, type, call, operand, {}, host_memory_only)) return false;
    payload = std::make_shared<Staging>(operand, more...);
    return true;
  }
  Outgoing given() const { return payload ? payload->message() : given_unstaged(operand, {buf, count, type}); }
};

/// A copy of host memory that is sent and replaced; null if there is nothing to send.
std::shared_ptr<SendPayload> copy_of(const Half<SendPayload>& out) {
  const datatype::TypeInfoRef info =
      out.count > 0 && out.peer != MPI_PROC_NULL ? datatype::type_info(out.type) : nullptr;
  return info ? std::make_shared<PackedCopy>(out.buf, out.count, *info) : nullptr;
}

/// Starts an MPI_Isendrecv: by `pmpi(out, in)` if MPI can have both buffers as they are, otherwise by MPI_Isend and
/// MPI_Irecv, since the status of MPICH's MPI_Isendrecv is useless. Device memory that is replaced is always staged.
template <class Pmpi>
int isendrecv(const char* call, Half<SendPayload> out, Half<ReceivePayload> in, MPI_Comm comm, MPI_Request* request,
              Pmpi pmpi) {
  return guarded(comm, call, [&] {
    const bool replaces = out.buf == in.buf;
    const bool sends = out.stage<StagedSend>(call, replaces || peer_exchanges_rts(out.peer, comm));
    const bool receives = in.stage<StagedReceive>(call, replaces || peer_exchanges_rts(in.peer, comm), rts_room());
    // Has room for an RTS from the start, as persistent receives: the engine does not check receives of MPI_Isendrecv.
    if (!receives && in.peer != MPI_PROC_NULL)
      in.payload = unstaged_receive(in.operand, {in.buf, in.count, in.type}, /*lasts=*/true);
    engine_order(comm, out.peer);
    peer_sends_plain(out.count, out.type, out.peer, out.tag, comm);
    if (!out.payload && !in.payload) return pmpi(out.given(), in.given());
    if (replaces && !out.payload) out.payload = copy_of(out);
    auto operation = std::make_unique<Operation>();
    const auto payload = std::make_shared<ReceivedAndSent>(out.payload, in.payload);
    operation->moved = payload;
    operation->owner.comm = comm;
    operation->on_device = sends || receives;
    if (out.payload) {
      out.payload->start_pack();
      out.payload->wait();
    }
    const PendingReceive pending(Selector{in.peer, in.tag}, comm);
    Reservation reserved(std::move(operation));
    if (reserved.error() != MPI_SUCCESS) return reserved.error();
    const Outgoing going = out.given(), coming = in.given();
    int code = PMPI_Isend(going.data, going.count, going.type, out.peer, out.tag, comm, &payload->send);
    const bool refused = !returns_handled_errors && payload->send == MPI_REQUEST_NULL;
    if (code == MPI_SUCCESS && refused) return code;  // an error handler has been called
    if (code == MPI_SUCCESS)
      code = PMPI_Irecv(const_cast<void*>(coming.data), coming.count, coming.type, in.peer, in.tag, comm,
                        &reserved->inner);
    return reserved.submit_issued(code, request);
  });
}

}  // namespace
}  // namespace gpudt::interpose

GPUDT_EXPORT int MPI_Isendrecv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag,
                               void* recvbuf, int recvcount, MPI_Datatype recvtype, int source, int recvtag,
                               MPI_Comm comm, MPI_Request* request) {
  return isendrecv("MPI_Isendrecv", {sendbuf, sendcount, sendtype, dest, sendtag},
                   {recvbuf, recvcount, recvtype, source, recvtag}, comm, request,
                   [&](const Outgoing& out, const Outgoing& in) {
                     return PMPI_Isendrecv(out.data, out.count, out.type, dest, sendtag, in.room(), in.count, in.type,
                                           source, recvtag, comm, request);
                   });
}
GPUDT_EXPORT int MPI_Isendrecv_replace(void* buf, int count, MPI_Datatype type, int dest, int sendtag, int source,
                                       int recvtag, MPI_Comm comm, MPI_Request* request) {
  return isendrecv("MPI_Isendrecv_replace", {buf, count, type, dest, sendtag}, {buf, count, type, source, recvtag},
                   comm, request, [&](const Outgoing& both, const Outgoing&) {
                     return PMPI_Isendrecv_replace(both.room(), both.count, both.type, dest, sendtag, source, recvtag,
                                                   comm, request);
                   });
}

#endif
