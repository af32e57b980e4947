// The persistent forms, MPI_Start, MPI_Startall and MPI_Request_free.
#include "interpose/requests/persistent.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/calls/persistent_collectives.hpp"
#include "interpose/calls/sends.hpp"
#include "interpose/collectives/call_order.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/watched.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/check.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/received_on_device.hpp"
#include "interpose/transport/staged.hpp"

namespace gpudt::interpose {
namespace {

Mutex registry_mutex;

struct Persistent {
  Operation::Kind kind = Operation::Kind::send;
  std::shared_ptr<Payload> payload;
  const DeviceBuffer* operand = nullptr;  ///< of sends from and receives into device memory; lives in the payload
  /// The communicator or, once the user has freed it, its error handler.
  ErrorOwner owner GUARDED_BY(registry_mutex);
  std::thread::id starter GUARDED_BY(registry_mutex);  ///< the thread that is starting it, if one is
  int peer = MPI_PROC_NULL;
  int tag = 0;
  NonblockingSend send = nullptr;
  MPI_Request real = MPI_REQUEST_NULL;     ///< on the staging memory; also the user's handle
  MPI_Request active = MPI_REQUEST_NULL;   ///< the generalized request while started
  std::unique_ptr<PersistentOffer> offer;  ///< of a collective whose starts all processes are asked about
  bool has_answered = false;               ///< about a start that has failed, to be made again

  explicit Persistent(MPI_Comm comm) : owner{.comm = comm} {}
  Persistent(const Persistent&) = delete;
  Persistent& operator=(const Persistent&) = delete;
  ~Persistent() {
    if (real != MPI_REQUEST_NULL) PMPI_Request_free(&real);
  }
};

using PersistentRef = std::shared_ptr<Persistent>;

auto& start_ended = never_destroyed<std::condition_variable>();
auto& registry GUARDED_BY(registry_mutex) = never_destroyed<std::unordered_map<MPI_Request, PersistentRef>>();
std::atomic<int> registered{0};

PersistentRef find(MPI_Request request) {
  if (persistent_count() == 0) return nullptr;
  const LockGuard lock(registry_mutex);
  const auto entry = registry.find(request);
  return entry == registry.end() ? nullptr : entry->second;
}

void enter(PersistentRef persistent) {
  const LockGuard lock(registry_mutex);
  registry[persistent->real] = std::move(persistent);
  registered.fetch_add(1);
}

using SendInit = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);

/// How a persistent send or receive begins each time.
struct Form {
  Operation::Kind kind;
  NonblockingSend send;  ///< null for a receive
  int peer;
  int tag;
};

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
      if (form.kind == Operation::Kind::receive) peer_receives_on_device();
      const bool receives = form.kind == Operation::Kind::receive;
      const auto staged = receives ? std::make_shared<Staged>(operand, rts_room()) : std::make_shared<Staged>(operand);
      persistent->payload = staged;
      persistent->operand = &staged->operand();
      given = staged->message();
    } else if (form.kind == Operation::Kind::receive && form.peer != MPI_PROC_NULL) {
      persistent->payload = unstaged_receive(operand, given, /*lasts=*/true);
      if (persistent->payload) given = persistent->payload->message();
    }
    if (!persistent->payload) given = given_unstaged(operand, given);
    if (form.kind == Operation::Kind::send) peer_sends_plain_again(count, type, form.peer, form.tag, comm);
    if (!persistent->payload) return init(given, request);
    persistent->kind = form.kind;
    persistent->peer = form.peer;
    persistent->tag = form.tag;
    persistent->send = form.send;
    const int code = init(given, &persistent->real);
    if (code != MPI_SUCCESS) return code;
    const MPI_Request made = persistent->real;
    enter(std::move(persistent));
    *request = made;
    return code;
  });
}

int send_init(SendInit pmpi, NonblockingSend each, const char* call, const void* buf, int count, MPI_Datatype type,
              int dest, int tag, MPI_Comm comm, MPI_Request* request) {
  return make([&](const Outgoing& out,
                  MPI_Request* real) { return pmpi(out.data, out.count, out.type, dest, tag, comm, real); },
              call, {Operation::Kind::send, each, dest, tag}, buf, count, type, comm, request);
}

/// The real request of a send or receive on staging memory is not started as long as the communicator is known: Open
/// MPI 4.1 loses the data of a buffered one that is started again.
bool starts_real(const Persistent& persistent, const ErrorOwner& owner) {
  return persistent.operand == nullptr || owner.comm == MPI_COMM_NULL;
}

/// Gives it to MPI at once, its data packed: a receive, a buffered send, or a collective, which start in program order.
int start_now(Persistent& persistent, const ErrorOwner& owner, MPI_Request* inner) {
  if (persistent.kind == Operation::Kind::send) engine_order(owner.comm, persistent.peer);
  if (persistent.kind != Operation::Kind::receive) persistent.payload->wait();
  if (starts_real(persistent, owner)) {
    const int code = PMPI_Start(&persistent.real);  // Open MPI may exchange it for another
    *inner = persistent.real;
    return code;
  }
  const Outgoing out = persistent.payload->message();
  mark(persistent.kind == Operation::Kind::receive ? point::posted : point::given);
  if (persistent.kind == Operation::Kind::receive)
    return PMPI_Irecv(const_cast<void*>(out.data), out.count, out.type, persistent.peer, persistent.tag, owner.comm,
                      inner);
  return persistent.send(out.data, out.count, out.type, persistent.peer, persistent.tag, owner.comm, inner);
}

/// While it lives, the communicator of a persistent request that is being started stays: another thread that frees it
/// waits.
class Starting {
 public:
  explicit Starting(Persistent& persistent) : persistent_(persistent) {
    const LockGuard lock(registry_mutex);
    owner_ = persistent.owner;
    persistent.starter = std::this_thread::get_id();
  }
  ~Starting() {
    const LockGuard lock(registry_mutex);
    persistent_.starter = {};
    start_ended.notify_all();
  }
  Starting(const Starting&) = delete;
  Starting& operator=(const Starting&) = delete;
  const ErrorOwner& owner() const { return owner_; }

 private:
  Persistent& persistent_;
  ErrorOwner owner_;
};

/// The request is known by the handle that MPI has given it in place of `before`.
void follow(const PersistentRef& persistent, MPI_Request before) {
  const LockGuard lock(registry_mutex);
  auto node = registry.extract(before);  // so that it takes no memory
  if (!node) return;
  if (node.mapped() == persistent) node.key() = persistent->real;
  registry.insert(std::move(node));
}

int start_ours(const PersistentRef& persistent, const ErrorOwner& owner) {
  if (persistent->active != MPI_REQUEST_NULL)
    return fail(owner, "MPI_Start", MPI_ERR_REQUEST, "the persistent request is active already");
  auto operation = std::make_unique<Operation>();
  operation->kind = persistent->kind;
  operation->payload = persistent->payload;
  operation->owner = owner;
  operation->on_device = persistent->operand != nullptr;
  operation->channel = {owner.comm, persistent->peer};
  operation->tag = persistent->tag;
  operation->keep = persistent;
  operation->lasting = starts_real(*persistent, owner);
  if (!operation->lasting) operation->send = persistent->send;
  persistent->payload->restart();
  if (check_wanted && persistent->operand != nullptr) {
    DeviceBuffer started = *persistent->operand;
    started.use = persistent->kind == Operation::Kind::receive ? Use::written : Use::read;
    operation->checked = check_operand("MPI_Start", started);
  }
  bool offers = false;
  if (operation->kind == Operation::Kind::send && !operation->lasting) {
    const Destination to{persistent->peer, persistent->tag, owner.comm};
    Sender sender = sender_for(*persistent->operand, to, is_buffered(operation->send), persistent->payload);
    operation->payload = std::move(sender.payload);
    offers = sender.offers;
  }
  Reservation reserved(std::move(operation));
  if (reserved.error() != MPI_SUCCESS) return reserved.error();
  if (persistent->kind != Operation::Kind::receive) reserved->payload->start_pack();
  if (persistent->kind == Operation::Kind::send && !is_buffered(persistent->send) && !reserved->lasting)
    return reserved.submit_send(offers, &persistent->active);
  const bool receives = persistent->kind == Operation::Kind::receive;
  const PendingReceive pending(receives ? Selects({persistent->peer, persistent->tag}) : Selects(), owner.comm);
  const int code = start_now(*persistent, owner, &reserved->inner);
  return reserved.submit_issued(code, &persistent->active);
}

/// Gives MPI a start that GPUs do not do after all.
int start_late(Persistent& persistent, LateCall& late) {
  report_fallback(Fallback::nonblocking_collective);
  persistent.payload->restart();
  persistent.payload->start_pack();
  persistent.payload->wait();
  late.staged = persistent.payload;
  MPI_Request inner = persistent.real;
  const int code = PMPI_Start(&inner);
  if (code == MPI_SUCCESS) late.inner = inner;
  return code;
}

/// By GPUs, if all processes agree.
int start_asked(const PersistentRef& persistent, const ErrorOwner& owner) {
  std::unique_ptr<BoardCall> offered;
  // Of a communicator that has been freed MPI could not be given the start late.
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

int start(MPI_Request* request) {
  if (const PersistentRef persistent = find(*request)) {
    const Starting starting(*persistent);
    const int code = guarded(starting.owner(), "MPI_Start", [&] {
      const bool is_asked = persistent->offer && persistent->active == MPI_REQUEST_NULL;
      return is_asked ? start_asked(persistent, starting.owner()) : start_ours(persistent, starting.owner());
    });
    if (persistent->real != *request) follow(persistent, std::exchange(*request, persistent->real));
    return code;
  }
  return guarded(MPI_COMM_NULL, "MPI_Start", [&] {
    engine_order_all();
    order_direct();
    return PMPI_Start(request);
  });
}

}  // namespace

void persistent_adopt(Operation::Kind kind, std::shared_ptr<Payload> payload, MPI_Comm comm, MPI_Request real) {
  auto persistent = std::make_shared<Persistent>(comm);
  persistent->kind = kind;
  persistent->payload = std::move(payload);
  persistent->real = real;
  enter(std::move(persistent));
}

void persistent_offers(MPI_Request request, std::unique_ptr<PersistentOffer> offer) {
  if (const PersistentRef persistent = find(request)) persistent->offer = std::move(offer);
}

std::shared_ptr<Payload> persistent_payload(MPI_Request request) {
  const PersistentRef persistent = find(request);
  return persistent ? persistent->payload : nullptr;
}

bool persistent_active(MPI_Request request) {
  const PersistentRef persistent = find(request);
  return persistent && persistent->active != MPI_REQUEST_NULL;
}

int persistent_count() {
  return registered.load(std::memory_order_relaxed);
}

void persistent_exchange(std::vector<MPI_Request>& requests, std::vector<bool>& mine) {
  mine.assign(requests.size(), false);
  if (persistent_count() == 0) return;
  const LockGuard lock(registry_mutex);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto entry = registry.find(requests[i]);
    if (entry == registry.end()) continue;
    mine[i] = true;
    requests[i] = entry->second->active;
  }
}

void persistent_completed(MPI_Request request) {
  if (const PersistentRef persistent = find(request)) persistent->active = MPI_REQUEST_NULL;
}

void persistent_forget_comm(MPI_Comm comm) {
  if (persistent_count() == 0) return;
  const auto kept = std::make_shared<const KeptHandler>(comm);
  UniqueLock lock(registry_mutex);
  // An error handler that a start has called may free the communicator, too.
  const auto starts = [&](const auto& entry) REQUIRES(registry_mutex) {
    const Persistent& persistent = *entry.second;
    return persistent.owner.comm == comm && persistent.starter != std::thread::id() &&
           persistent.starter != std::this_thread::get_id();
  };
  while (std::any_of(registry.begin(), registry.end(), starts)) lock.wait(start_ended);
  for (auto& [request, persistent] : registry)
    if (persistent->owner.comm == comm) persistent->owner.forget_comm(kept);
}

void persistent_stop() {
  const LockGuard lock(registry_mutex);
  registry.clear();
  registered.store(0);
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Send_init(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                               MPI_Request* request) {
  return send_init(PMPI_Send_init, PMPI_Isend, "MPI_Send_init", buf, count, type, dest, tag, comm, request);
}
GPUDT_EXPORT int MPI_Bsend_init(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                                MPI_Request* request) {
  return send_init(PMPI_Bsend_init, PMPI_Ibsend, "MPI_Bsend_init", buf, count, type, dest, tag, comm, request);
}
GPUDT_EXPORT int MPI_Ssend_init(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                                MPI_Request* request) {
  return send_init(PMPI_Ssend_init, PMPI_Issend, "MPI_Ssend_init", buf, count, type, dest, tag, comm, request);
}
GPUDT_EXPORT int MPI_Rsend_init(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                                MPI_Request* request) {
  return send_init(PMPI_Rsend_init, PMPI_Irsend, "MPI_Rsend_init", buf, count, type, dest, tag, comm, request);
}

GPUDT_EXPORT int MPI_Recv_init(void* buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                               MPI_Request* request) {
  return make(
      [&](const Outgoing& into, MPI_Request* real) {
        return PMPI_Recv_init(into.room(), into.count, into.type, source, tag, comm, real);
      },
      "MPI_Recv_init", {Operation::Kind::receive, nullptr, source, tag}, buf, count, type, comm, request);
}

GPUDT_EXPORT int MPI_Start(MPI_Request* request) {
  return start(request);
}

GPUDT_EXPORT int MPI_Startall(int count, MPI_Request* requests) {
  if (persistent_count() == 0)
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

// The registry's reference goes; an active operation keeps its own until it has completed.
GPUDT_EXPORT int MPI_Request_free(MPI_Request* request) {
  const PersistentRef persistent = find(*request);
  if (!persistent) {
    WatchedReceive* const watched = watched_find(*request);
    if (watched == nullptr) return PMPI_Request_free(request);
    return guarded(MPI_COMM_NULL, "MPI_Request_free", [&] { return watched->free(request); });
  }
  {
    const gpudt::LockGuard lock(registry_mutex);
    registry.erase(*request);
    registered.fetch_sub(1);
  }
  *request = MPI_REQUEST_NULL;
  return persistent->active == MPI_REQUEST_NULL ? MPI_SUCCESS : PMPI_Request_free(&persistent->active);
}

GPUDT_EXPORT int MPI_Cancel(MPI_Request* request) {
  const PersistentRef persistent = find(*request);
  return PMPI_Cancel(persistent ? &persistent->active : request);
}
