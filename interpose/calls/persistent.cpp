// The persistent forms, MPI_Start, MPI_Startall and MPI_Request_free.
#include <memory>
#include <utility>

#include "interpose/calls/enqueued_arguments.hpp"
#include "interpose/calls/persistent_collectives.hpp"
#include "interpose/collectives/call_order.hpp"
#include "interpose/requests/kept_type.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/requests/point_to_point.hpp"
#include "interpose/requests/watched.hpp"
#include "interpose/streams/enqueue.hpp"
#include "interpose/streams/free_handle.hpp"
#include "interpose/streams/program_stream.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/check.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/received_on_device.hpp"
#include "interpose/transport/staged.hpp"
#include "interpose/transport/staged_receive.hpp"

namespace gpudt::interpose {
namespace {

using SendInit = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);

/// How a persistent send or receive begins each time.
struct Form {
  NonblockingSend send;  ///< null for a receive
  int peer;
  int tag;
};

/// Gives `persistent` a payload of the class, and returns what MPI is given.
template <class Payload, class... More>
Outgoing stage(Persistent& persistent, const DeviceBuffer& operand, More... more) {
  const auto staged = std::make_shared<Payload>(operand, more...);
  persistent.moved = staged;
  persistent.operand = &staged->operand();
  return staged->message();
}

/// `init(given, request)` makes the real persistent request.
template <class Init>
int make(Init init, const char* call, const Form& form, const void* buf, int count, MPI_Datatype type, MPI_Comm comm,
         MPI_Request* request) {
  return guarded(comm, call, [&] {
    DeviceBuffer operand;
    auto persistent = std::make_shared<Persistent>(comm);
    Outgoing given{buf, count, type};
    if (form.peer != MPI_PROC_NULL &&
        resolve(buf, count, type, call, operand, {}, needs_host_memory(form.send, form.peer, comm))) {
      if (form.send == nullptr) peer_receives_on_device();
      if (form.send == nullptr)
        given = stage<StagedReceive>(*persistent, operand, rts_room());
      else
        given = stage<StagedSend>(*persistent, operand);
    } else if (form.send == nullptr && form.peer != MPI_PROC_NULL) {
      if (const std::shared_ptr<ReceivePayload> payload = unstaged_receive(operand, given, /*lasts=*/true)) {
        given = payload->message();
        persistent->moved = payload;
      }
    }
    if (!persistent->moved) given = given_unstaged(operand, given);
    if (form.send != nullptr) peer_sends_plain_again(count, type, form.peer, form.tag, comm);
    if (!persistent->moved) return init(given, request);
    persistent->peer = form.peer;
    persistent->tag = form.tag;
    persistent->send = form.send;
    const int code = init(given, &persistent->real);
    if (code != MPI_SUCCESS) return code;
    const MPI_Request made = persistent->real;
    persistent_enter(std::move(persistent));
    *request = made;
    return code;
  });
}

/// Lets the start of a request be enqueued, if its communicator has a stream: as `nonblocking`, this library's
/// function. (The real request could not be started then: Open MPI may give it another handle.)
template <class Nonblocking, class Buffer>
int in_stream(const char* call, int code, Nonblocking nonblocking, Buffer* buf, int count, MPI_Datatype type, int peer,
              int tag, MPI_Comm comm, const MPI_Request* request) {
  if (code != MPI_SUCCESS || !find_stream_comm(comm)) return code;
  return guarded(comm, call, [&] {
    enqueued::prepare(comm, enqueued::Buffer<Buffer*, int>{buf, count, type}, enqueued::Datatype{type});
    const auto kept = std::make_shared<KeptType>(type);
    startable_add(
        comm, *request,
        {.start = [=](MPI_Request* started) { return nonblocking(buf, count, kept->get(), peer, tag, comm, started); },
         .is_message = true});
    return int(MPI_SUCCESS);
  });
}

int send_init(SendInit pmpi, NonblockingSend each, NonblockingSend own, const char* call, const void* buf, int count,
              MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request* request) {
  const int code = make([&](const Outgoing& out,
                            MPI_Request* real) { return pmpi(out.data, out.count, out.type, dest, tag, comm, real); },
                        call, {each, dest, tag}, buf, count, type, comm, request);
  return in_stream(call, code, own, buf, count, type, dest, tag, comm, request);
}

bool sends(const Persistent& persistent) {
  return persistent.moved.is(Operation::Kind::send);
}
bool receives(const Persistent& persistent) {
  return persistent.moved.is(Operation::Kind::receive);
}

/// Whether a start starts the real request. Sends and receives on staging memory use new requests as long as the
/// communicator is known: Open MPI 4.1 loses the data of a persistent buffered send that is started again.
bool starts_real(const Persistent& persistent, const ErrorOwner& owner) {
  return persistent.operand == nullptr || owner.comm == MPI_COMM_NULL;
}

/// Gives MPI a receive, a buffered send or a collective at once, its data packed: these start in program order.
int start_now(Persistent& persistent, const ErrorOwner& owner, MPI_Request* inner) {
  if (sends(persistent)) engine_order(owner.comm, persistent.peer);
  if (!receives(persistent)) persistent.moved->wait();
  if (starts_real(persistent, owner)) {
    const int code = PMPI_Start(&persistent.real);  // Open MPI may exchange it for another
    *inner = persistent.real;
    return code;
  }
  if (receives(persistent)) {
    const Outgoing into = persistent.moved.in().message();
    mark(point::posted);
    return PMPI_Irecv(into.room(), into.count, into.type, persistent.peer, persistent.tag, owner.comm, inner);
  }
  const Outgoing out = persistent.moved.out().message();
  mark(point::given);
  return persistent.send(out.data, out.count, out.type, persistent.peer, persistent.tag, owner.comm, inner);
}

int start_ours(const PersistentRef& persistent, const ErrorOwner& owner) {
  if (persistent->active != MPI_REQUEST_NULL)
    return fail(owner, "MPI_Start", MPI_ERR_REQUEST, "the persistent request is active already");
  auto operation = std::make_unique<Operation>();
  operation->moved = persistent->moved;
  operation->owner = owner;
  operation->on_device = persistent->operand != nullptr;
  operation->channel = {owner.comm, persistent->peer};
  operation->tag = persistent->tag;
  operation->keep = persistent;
  operation->lasting = starts_real(*persistent, owner);
  if (!operation->lasting) operation->send = persistent->send;
  persistent->moved->restart();
  if (check_wanted && persistent->operand != nullptr) {
    DeviceBuffer started = *persistent->operand;
    started.use = receives(*persistent) ? Use::written : Use::read;
    operation->checked = check_operand("MPI_Start", started);
  }
  bool offers = false;
  if (sends(*persistent) && !operation->lasting) {
    const Destination to{persistent->peer, persistent->tag, owner.comm};
    Sender sender = sender_for(*persistent->operand, to, is_buffered(operation->send), persistent->moved.shared_out());
    operation->moved = std::move(sender.payload);
    offers = sender.offers;
  }
  Reservation reserved(std::move(operation));
  if (reserved.error() != MPI_SUCCESS) return reserved.error();
  reserved->moved.start_pack();
  if (sends(*persistent) && !is_buffered(persistent->send) && !reserved->lasting)
    return reserved.submit_send(offers, &persistent->active);
  const PendingReceive pending(receives(*persistent) ? Selects({persistent->peer, persistent->tag}) : Selects(),
                               owner.comm);
  const int code = start_now(*persistent, owner, &reserved->inner);
  return reserved.submit_issued(code, &persistent->active);
}

/// Gives MPI the start of a collective that GPUs do not do after all.
int start_late(Persistent& persistent, LateCall& late) {
  report_fallback(Fallback::nonblocking_collective);
  const std::shared_ptr<CallPayload> payload = persistent.moved.shared_call();
  payload->restart();
  payload->start_pack();
  payload->wait();
  late.staged = payload;
  MPI_Request inner = persistent.real;
  const int code = PMPI_Start(&inner);
  if (code == MPI_SUCCESS) late.inner = inner;
  return code;
}

/// Starts a collective that GPUs do if all processes agree.
int start_asked(const PersistentRef& persistent, const ErrorOwner& owner) {
  std::unique_ptr<BoardCall> offered;
  // Without its communicator the start could not be given to MPI later.
  if (!std::exchange(persistent->has_answered, true)) offered = persistent->offer->next(owner.comm == MPI_COMM_NULL);
  int code = MPI_SUCCESS;
  if (offered) {
    code = start_offered(
        {"MPI_Start", &persistent->active}, owner, std::move(offered),
        [persistent](const Call& call) { return start_late(*persistent, *call.late); }, persistent);
  } else {
    report_fallback(Fallback::nonblocking_collective);
    code = start_ours(persistent, owner);
  }
  persistent->has_answered = code != MPI_SUCCESS;
  return code;
}

int start_any(MPI_Request* request) {
  if (const PersistentRef persistent = persistent_find(*request)) {
    const PersistentStarting starting(*persistent);
    const int code = guarded(starting.owner(), "MPI_Start", [&] {
      const bool is_asked = persistent->offer && persistent->active == MPI_REQUEST_NULL;
      return is_asked ? start_asked(persistent, starting.owner()) : start_ours(persistent, starting.owner());
    });
    if (persistent->real != *request) persistent_follow(persistent, std::exchange(*request, persistent->real));
    return code;
  }
  return guarded(MPI_COMM_NULL, "MPI_Start", [&] {
    engine_order_all();
    order_direct();
    return PMPI_Start(request);
  });
}

int start_followed(MPI_Request* request) {
  const MPI_Request before = *request;
  const int code = start_any(request);
  startable_follow(before, *request);
  return code;
}

int start(MPI_Request* request) {
  if (request == nullptr) return PMPI_Start(request);  // MPI reports it
  const int code = startable_expect_inactive("MPI_Start", *request);
  return code == MPI_SUCCESS ? start_followed(request) : code;
}

int free_request(MPI_Request* request) {
  const PersistentRef persistent = persistent_remove(*request);
  if (!persistent) {
    WatchedReceive* const watched = watched_find(*request);
    if (watched == nullptr) return PMPI_Request_free(request);
    return guarded(MPI_COMM_NULL, "MPI_Request_free", [&] { return watched->free(request); });
  }
  *request = MPI_REQUEST_NULL;
  return persistent->active == MPI_REQUEST_NULL ? MPI_SUCCESS : PMPI_Request_free(&persistent->active);
}

}  // namespace

void persistent_offers(MPI_Request request, std::unique_ptr<PersistentOffer> offer) {
  if (const PersistentRef persistent = persistent_find(request)) persistent->offer = std::move(offer);
}

void persistent_in_stream(MPI_Comm comm, MPI_Request request) {
  startable_add(comm, request,
                {.start =
                     [=](MPI_Request* started) {
                       *started = request;
                       return start_followed(started);
                     },
                 .persistent = true});
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Send_init(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                               MPI_Request* request) {
  return send_init(PMPI_Send_init, PMPI_Isend, MPI_Isend, "MPI_Send_init", buf, count, type, dest, tag, comm, request);
}
GPUDT_EXPORT int MPI_Bsend_init(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                                MPI_Request* request) {
  return send_init(PMPI_Bsend_init, PMPI_Ibsend, MPI_Ibsend, "MPI_Bsend_init", buf, count, type, dest, tag, comm,
                   request);
}
GPUDT_EXPORT int MPI_Ssend_init(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                                MPI_Request* request) {
  return send_init(PMPI_Ssend_init, PMPI_Issend, MPI_Issend, "MPI_Ssend_init", buf, count, type, dest, tag, comm,
                   request);
}
GPUDT_EXPORT int MPI_Rsend_init(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                                MPI_Request* request) {
  return send_init(PMPI_Rsend_init, PMPI_Irsend, MPI_Irsend, "MPI_Rsend_init", buf, count, type, dest, tag, comm,
                   request);
}

GPUDT_EXPORT int MPI_Recv_init(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                               MPI_Request* request) {
  constexpr const char* call = "MPI_Recv_init";
  const int code = make(
      [&](const Outgoing& into, MPI_Request* real) {
        return PMPI_Recv_init(into.room(), into.count, into.type, source, tag, comm, real);
      },
      call, {nullptr, source, tag}, buf, count, type, comm, request);
  return in_stream(call, code, MPI_Irecv, buf, count, type, source, tag, comm, request);
}

GPUDT_EXPORT int MPI_Start(MPI_Request* request) {
  return start(request);
}

GPUDT_EXPORT int MPI_Startall(int count, MPI_Request* requests) {
  if ((persistent_count() == 0 && !any_startables()) || requests == nullptr)
    return guarded(MPI_COMM_NULL, "MPI_Startall", [&] {
      engine_order_all();
      order_direct();
      return PMPI_Startall(count, requests);
    });
  const gpudt::device::Gathering gathering(gpudt::device::Gathering::long_bytes);
  for (int i = 0; i < count; ++i) {
    const int code = start(&requests[i]);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

GPUDT_EXPORT int MPI_Request_free(MPI_Request* request) {
  if (request == nullptr) return PMPI_Request_free(request);
  if (!startable_forget(*request)) return free_request(request);
  return guarded(MPI_COMM_NULL, "MPI_Request_free",
                 [&] { return free_handle(request, MPI_REQUEST_NULL, free_request); });
}

// Open MPI 4.1 loses a message that one thread sends to its own process while another one cancels the receive that it
// would match (docs/mpi-faults.md): so the engine sends none meanwhile.
GPUDT_EXPORT int MPI_Cancel(MPI_Request* request) {
  if (request == nullptr) return PMPI_Cancel(request);
  const PersistentRef persistent = persistent_find(*request);
  MPI_Request* const real = persistent ? &persistent->active : request;
  return engine_without_polls([real] { return PMPI_Cancel(real); });
}
