// MPI-4.1 section 3.11: MPI_Sendrecv_replace, MPI_Isendrecv and MPI_Isendrecv_replace.
#include <memory>
#include <utility>

#include "interpose/requests/operation.hpp"
#include "interpose/requests/staged.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {
namespace {

int sendrecv_replace(void* buf, int count, MPI_Datatype type, int dest, int sendtag, int source, int recvtag,
                     MPI_Comm comm, MPI_Status* status) {
  constexpr const char* call = "MPI_Sendrecv_replace";
  DeviceBuffer operand;
  engine_order(comm, dest);
  peer_sends_plain(count, type, dest, sendtag, comm);
  const SeenStatus seen(status);
  PendingReceive pending(Selector{source, recvtag}, comm);
  if (!resolve(buf, count, type, call, operand)) {
    if (!peer_checks()) return PMPI_Sendrecv_replace(buf, count, type, dest, sendtag, source, recvtag, comm, status);
    if (const auto packed = peer_packed_receive(buf, count, type)) {
      packed->start_pack();
      const Outgoing both = packed->message();
      const int code = PMPI_Sendrecv_replace(const_cast<void*>(both.data), count, both.type, dest, sendtag, source,
                                             recvtag, comm, seen.get());
      return peer_received(code, call, *packed, *seen, {.comm = comm}, pending);
    }
    const int code = PMPI_Sendrecv_replace(buf, count, type, dest, sendtag, source, recvtag, comm, seen.get());
    return peer_received_on_host(code, call, buf, count, type, *seen, {.comm = comm}, pending);
  }
  Staged staged(operand);
  staged.start_pack();
  device::about_to_wait(device::WaitKind::transfer);
  staged.wait();
  const int code = PMPI_Sendrecv_replace(staged.data(), count, operand.packed_type(), dest, sendtag, source, recvtag,
                                         comm, seen.get());
  return peer_received(code, call, staged, *seen, {.comm = comm}, pending);
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Sendrecv_replace(void* buf, int count, MPI_Datatype type, int dest, int sendtag, int source,
                                      int recvtag, MPI_Comm comm, MPI_Status* status) {
  return guarded(comm, "MPI_Sendrecv_replace",
                 [&] { return sendrecv_replace(buf, count, type, dest, sendtag, source, recvtag, comm, status); });
}

#ifdef GPUDT_MPI_ISENDRECV

namespace gpudt::interpose {
namespace {

/// What comes in, with a send that must be complete, too, before the two are.
class ReceivedAndSent : public Payload {
 public:
  ReceivedAndSent(StagedRef out, StagedRef in) : out_(std::move(out)), in_(std::move(in)) {}
  /// Only after an error is the send still under way.
  ~ReceivedAndSent() override { PMPI_Wait(&send, MPI_STATUS_IGNORE); }
  void start_pack() override {
    if (out_) out_->start_pack();
  }
  void start_unpack(std::int64_t bytes) override {
    if (in_ && bytes != 0) in_->start_unpack(bytes);
  }
  bool done() override {
    int sent = 1;
    PMPI_Test(&send, &sent, MPI_STATUS_IGNORE);
    return sent != 0 && (!in_ || in_->done());
  }
  void wait() override {
    for (const StagedRef& staged : {out_, in_})
      if (staged) staged->wait();
  }
  bool always_unpacks() const override { return true; }

  MPI_Request send = MPI_REQUEST_NULL;

 private:
  StagedRef out_, in_;
};

/// One half of it, on staging memory if that is what it needs.
struct Half {
  const void* buf;
  int count;
  MPI_Datatype type;
  int peer;
  int tag;
  StagedRef staged{};

  /// May throw device::Error.
  bool stage(const char* call) {
    DeviceBuffer operand;
    if (peer == MPI_PROC_NULL || !resolve(buf, count, type, call, operand)) return false;
    staged = std::make_shared<Staged>(operand);
    return true;
  }
  void* data() const { return staged ? staged->data() : const_cast<void*>(buf); }
  MPI_Datatype given() const { return staged ? staged->operand().packed_type() : type; }
};

/// Two operations of MPI's: the status of MPICH's own MPI_Isendrecv says nothing. Whatever is on a device goes by
/// `pmpi()`.
template <class Pmpi>
int isendrecv(const char* call, Half out, Half in, MPI_Comm comm, MPI_Request* request, Pmpi pmpi) {
  return guarded(comm, call, [&] {
    const bool sends = out.stage(call), receives = in.stage(call);
    if (!sends && !receives) {
      engine_order(comm, out.peer);
      peer_sends_plain(out.count, out.type, out.peer, out.tag, comm);
      return pmpi();
    }
    auto operation = std::make_unique<Operation>();
    const auto payload = std::make_shared<ReceivedAndSent>(out.staged, in.staged);
    operation->kind = Operation::Kind::receive;
    operation->owner.comm = comm;
    operation->payload = payload;
    payload->start_pack();
    engine_order(comm, out.peer);
    peer_sends_plain(out.count, out.type, out.peer, out.tag, comm);
    payload->wait();
    Reservation reserved(std::move(operation));
    if (reserved.error() != MPI_SUCCESS) return reserved.error();
    int code = PMPI_Isend(out.data(), out.count, out.given(), out.peer, out.tag, comm, &payload->send);
    if (code == MPI_SUCCESS)
      code = PMPI_Irecv(in.data(), in.count, in.given(), in.peer, in.tag, comm, &reserved->inner);
    return reserved.submit_issued(code, request);
  });
}

}  // namespace
}  // namespace gpudt::interpose

GPUDT_EXPORT int MPI_Isendrecv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag,
                               void* recvbuf, int recvcount, MPI_Datatype recvtype, int source, int recvtag,
                               MPI_Comm comm, MPI_Request* request) {
  return isendrecv("MPI_Isendrecv", {sendbuf, sendcount, sendtype, dest, sendtag},
                   {recvbuf, recvcount, recvtype, source, recvtag}, comm, request, [&] {
                     return PMPI_Isendrecv(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype,
                                           source, recvtag, comm, request);
                   });
}
GPUDT_EXPORT int MPI_Isendrecv_replace(void* buf, int count, MPI_Datatype type, int dest, int sendtag, int source,
                                       int recvtag, MPI_Comm comm, MPI_Request* request) {
  return isendrecv(
      "MPI_Isendrecv_replace", {buf, count, type, dest, sendtag}, {buf, count, type, source, recvtag}, comm, request,
      [&] { return PMPI_Isendrecv_replace(buf, count, type, dest, sendtag, source, recvtag, comm, request); });
}

#endif
