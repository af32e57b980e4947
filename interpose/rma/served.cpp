// Turns accesses to a served window into operations of its channel.
#include "interpose/rma/served.hpp"

#include <algorithm>

#include "datatype/basic.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {
namespace {

/// An access as the payload of the request that completes it.
class AccessRequest : public CallPayload {
 public:
  AccessRequest(OriginOperationRef access, Operation* operation) : access_(std::move(access)), operation_(operation) {}
  bool done() override {
    const DirectAccess* const direct = access_->direct.get();
    if (direct != nullptr ? !access_->direct->done() : !access_->complete.load(std::memory_order_acquire)) return false;
    operation_->error = direct != nullptr ? direct->error() : access_->error;
    if (operation_->error != MPI_SUCCESS) return true;
    operation_->error = access_->forbidden;
    operation_->forbidden = access_->forbidden != MPI_SUCCESS;
    return true;
  }

 private:
  OriginOperationRef access_;
  Operation* operation_;  ///< owns this
};

constexpr const char* by_messages = "messages to the target";

bool is_nothing(const Target& target) {
  return target.rank == MPI_PROC_NULL || target.count == 0 || datatype::size_of(target.type) == 0;
}

void check_size(std::int64_t bytes, const Target& target) {
  if (bytes != target.count * datatype::size_of(target.type))
    throw MpiError(MPI_ERR_TYPE, "the data at the origin and at the target differ in size");
}

/// Gives the operation the origin's data. Short data in host memory are packed at once.
void give(OriginOperation& operation, const char* call, const Origin& origin, const Target& target) {
  UserBuffer& source = operation.source.emplace(call, origin);
  check_size(source.bytes(), target);
  operation.header.bytes = source.bytes();
  source.start_pack();
  if (source.on_device() || source.bytes() > inline_max) return;
  operation.packed.resize(static_cast<std::size_t>(source.bytes()));
  source.copy_to(operation.packed.data());
  operation.source.reset();
}

/// Appends one element to the packed data.
void give_element(OriginOperation& operation, const char* call, const Origin& origin) {
  UserBuffer source(call, origin);
  source.start_pack();
  while (!source.done()) std::this_thread::yield();
  const std::size_t before = operation.packed.size();
  operation.packed.resize(before + static_cast<std::size_t>(source.bytes()));
  source.copy_to(operation.packed.data() + before);
  operation.header.bytes = static_cast<std::int64_t>(operation.packed.size());
}

/// Sets the buffer for the fetched data.
void take(OriginOperation& operation, const char* call, const Origin& result, const Target& target) {
  check_size(operation.destination.emplace(call, result).bytes(), target);
}

/// The operator with which MPI checks the other arguments of an accumulate.
MPI_Op operator_to_check(MPI_Op op, const Target& target) {
  return accumulates_float16(op, target.type) ? MPI_REPLACE : op;
}

void combine_with(OriginOperation& operation, MPI_Op op, const Target& target) {
  operation.header.op = operation_index(op);
  operation.header.element = element_index(element_of(target.type));
  if (operation.header.op < 0) throw MpiError(MPI_ERR_OP, "accumulates take predefined operations only");
  if (operation.header.element < 0)
    throw MpiError(MPI_ERR_TYPE, "the target datatype is not made of one predefined datatype that accumulates take");
}

}  // namespace

ServedWindow::ServedWindow(MPI_Win win, MPI_Comm comm, void* base, MPI_Aint size, int disp_unit)
    : win_(win),
      size_(size),
      flavor_(MPI_WIN_FLAVOR_CREATE),
      memory_(base, size),
      channel_(comm, memory_),
      exposed_(static_cast<std::size_t>(channel_.ranks())),
      direct_(exposed_.size()),
      locks_(exposed_.size(), Lock::none),
      posts_used_(exposed_.size(), 0),
      completes_used_(exposed_.size(), 0) {
  tell_memory(disp_unit);
  memory_.mark_again();  // last: it may throw, and other processes wait in tell_memory()
}

ServedWindow::ServedWindow(MPI_Win win, MPI_Comm comm)
    : win_(win),
      flavor_(MPI_WIN_FLAVOR_DYNAMIC),
      channel_(comm, memory_),
      direct_(static_cast<std::size_t>(channel_.ranks())),
      locks_(static_cast<std::size_t>(channel_.ranks()), Lock::none),
      posts_used_(locks_.size(), 0),
      completes_used_(locks_.size(), 0) {}

/// Collective: exchanges descriptions of memory, and sets up the locks.
void ServedWindow::tell_memory(int disp_unit) {
  const device::Location own = size_ > 0 ? device::classify(memory_.base()) : device::Location{};
  if (own.on_device()) own_gpu_ = own.ordinal;
  world_ranks_ = peer::world_ranks(channel_.comm());
  const std::vector<peer::Segment*> segments = peer::segments_of(world_ranks_);
  PMPI_Comm_rank(channel_.comm(), &own_rank_);
  if (!segments.empty()) own_lock_.emplace(*segments[static_cast<std::size_t>(own_rank_)]);
  const Exposed mine = expose(memory_.base(), size_, disp_unit, own_lock_ ? own_lock_->index() : -1);
  PMPI_Allgather(&mine, sizeof mine, MPI_BYTE, exposed_.data(), sizeof mine, MPI_BYTE, channel_.comm());
  if (segments.empty()) return forget_unreached();
  const bool all_have_locks =
      std::all_of(exposed_.begin(), exposed_.end(), [](const Exposed& each) { return each.lock >= 0; });
  if (!all_have_locks) return;
  std::vector<peer::WindowLockSet*> locks;
  for (std::size_t each = 0; each < segments.size(); ++each)
    locks.push_back(&(*segments[each])->window_locks[exposed_[each].lock]);
  node_locks_.emplace(std::move(locks));
  if (mine.on_gpu != 0) channel_.share_turn(node_locks_->turn(own_rank_));
}

/// Marks the processes that share no memory with this one: their memory cannot be mapped.
void ServedWindow::forget_unreached() {
  for (int& rank : world_ranks_)
    if (peer::world == nullptr || peer::reach_sender(rank) == nullptr) rank = MPI_UNDEFINED;
}

ServedWindow::~ServedWindow() = default;

bool ServedWindow::attribute(int keyval, void* value) const {
  if (keyval == MPI_WIN_BASE)
    *static_cast<void**>(value) = memory_.base();
  else if (keyval == MPI_WIN_SIZE)
    *static_cast<const MPI_Aint**>(value) = &size_;
  else if (keyval == MPI_WIN_CREATE_FLAVOR)
    *static_cast<const int**>(value) = &flavor_;
  else
    return false;
  return true;
}

int ServedWindow::shared_query(int rank, MPI_Aint* size, int* disp_unit, void* address) {
  return guard("MPI_Win_shared_query", [&] {
    if (exposed_.empty()) throw MpiError(MPI_ERR_RMA_FLAVOR, "the window is dynamic: it has no memory of its own");
    if (rank == MPI_PROC_NULL) {
      const auto has_memory = [](const Exposed& each) { return each.size > 0; };
      const auto first = std::find_if(exposed_.begin(), exposed_.end(), has_memory);
      rank = first == exposed_.end() ? 0 : static_cast<int>(first - exposed_.begin());
    }
    check_rank(rank);
    const auto at = static_cast<std::size_t>(rank);
    void* const base = address_of(at);
    *size = base != nullptr ? exposed_[at].size : 0;
    *disp_unit = static_cast<int>(exposed_[at].disp_unit);
    *static_cast<void**>(address) = base;
    return MPI_SUCCESS;
  });
}

void* ServedWindow::address_of(std::size_t rank) {
  const Exposed& exposed = exposed_[rank];
  if (static_cast<int>(rank) == own_rank_) return memory_.base();
  if (own_gpu_ < 0) return nullptr;
  const LockGuard lock(mutex_);
  queried_.resize(exposed_.size());
  if (!queried_[rank]) queried_[rank] = reach("MPI_Win_shared_query", own_gpu_, exposed, world_ranks_[rank]);
  return queried_[rank] ? queried_[rank].at(exposed.base) : nullptr;
}

int ServedWindow::group(MPI_Group* group) const {
  return PMPI_Comm_group(channel_.comm(), group);
}

int ServedWindow::progress() {
  const LockGuard lock(service_mutex_);
  return closed_ ? 0 : channel_.progress();
}

void ServedWindow::settle() {
  for (const int rank : all()) direct_.finish(rank);
  wait_until([this] { return channel_.quiet(); });
  PMPI_Barrier(channel_.comm());
  wait_until([this] { return channel_.quiet(); });
}

void ServedWindow::close() {
  const LockGuard lock(service_mutex_);
  closed_ = true;
}

// --- accesses --------------------------------------------------------------------------------------------------------

/// Makes the operation of an access. MPI has checked all that it can check itself.
OriginOperationRef ServedWindow::prepare(MessageKind kind, const Target& target, bool with_request) {
  check_rank(target.rank);
  auto operation = std::make_shared<OriginOperation>();
  operation->target_type = datatype::type_info(target.type);
  if (!operation->target_type) throw MpiError(MPI_ERR_TYPE, "the target datatype is not committed");
  operation->rank = target.rank;
  operation->with_request = with_request;
  operation->header.kind = kind;
  operation->header.count = target.count;
  operation->header.displacement = target.displacement;
  if (!memory_.dynamic())
    operation->header.displacement = displacement_in_bytes(target, operation->target_type->layout());
  may_access(target.rank, with_request);
  return operation;
}

void ServedWindow::check_rank(int rank) const {
  if (rank < 0 || rank >= channel_.ranks())
    throw MpiError(MPI_ERR_RANK, "there is no rank " + std::to_string(rank) + " in this window");
}

/// The displacement in the target's window. Throws MpiError if the access exceeds the window.
std::int64_t ServedWindow::displacement_in_bytes(const Target& target, const datatype::Layout& layout) const {
  const Exposed& remote = exposed_[static_cast<std::size_t>(target.rank)];
  const datatype::Span span = layout.span(target.count);
  std::int64_t place = 0, begin = 0, end = 0;
  const bool overflow = __builtin_mul_overflow(target.displacement, remote.disp_unit, &place) ||
                        __builtin_add_overflow(place, span.begin, &begin) ||
                        __builtin_add_overflow(place, span.end, &end);
  if (!overflow && begin >= 0 && end <= remote.size) return place;
  const std::string reached =
      overflow ? "beyond all memory" : "bytes " + std::to_string(begin) + " to " + std::to_string(end);
  throw MpiError(MPI_ERR_RMA_RANGE, "the access reaches " + reached + " of a window of " + std::to_string(remote.size) +
                                        " bytes on rank " + std::to_string(target.rank));
}

void ServedWindow::expect_access(int rank) {
  check_rank(rank);
  may_access(rank, /*with_request=*/true);
}

void ServedWindow::may_access(int rank, bool with_request) {
  const auto at = static_cast<std::size_t>(rank);
  UniqueLock guard(mutex_);
  if (handlers_are_silent() && (locks_[at] == Lock::wanted || locks_[at] == Lock::asked))
    throw MpiError(MPI_ERR_RMA_SYNC, "the lock has been given back; operations in streams do not wait for another");
  if (locks_[at] == Lock::wanted) {
    locks_[at] = Lock::asked;
    guard.unlock();
    acquire(rank, MPI_LOCK_SHARED);
    return;
  }
  if (locks_[at] == Lock::asked) {
    guard.unlock();
    wait_until([&] {
      const LockGuard lock(mutex_);
      return locks_[at] != Lock::asked;
    });
    return;
  }
  if (locks_[at] != Lock::none) return;
  if (with_request) throw MpiError(MPI_ERR_RMA_SYNC, "accesses with requests need a lock");
  if (fence_open_ || (targets_ && std::find(targets_->begin(), targets_->end(), rank) != targets_->end())) return;
  throw MpiError(MPI_ERR_RMA_SYNC, "there is no access epoch towards rank " + std::to_string(rank));
}

/// The error, for GPUDT_REQUIRE, of an access that is a message although this process has device memory for it. The
/// target's memory is not this process's.
int ServedWindow::forbidden(const char* call, const OriginOperation& operation, std::int64_t bytes) const {
  if (operation.direct) return MPI_SUCCESS;
  const auto at = static_cast<std::size_t>(operation.rank);
  const auto on_device = [](const std::optional<UserBuffer>& buffer) { return buffer && buffer->on_device(); };
  if (!on_device(operation.source) && !on_device(operation.destination)) return MPI_SUCCESS;
  const Shortfalls found;
  require_checks(call, {by_messages, why_not_direct(at)}, bytes);
  return found.judge(operation.rank);
}

std::optional<Went> ServedWindow::way_to(int target) {
  check_rank(target);
  const auto at = static_cast<std::size_t>(target);
  const Went direct{protocol_name(Protocol::peer)};
  const bool mappable = obstacle_to_direct_access() == nullptr && !exposed_.empty() && exposed_[at].on_gpu != 0;
  if (mappable && own_gpu_ < 0) return {};
  if (mappable && (target == own_rank_ || reach("gpudt_route_window", own_gpu_, exposed_[at], world_ranks_[at])))
    return direct;
  return Went{by_messages, why_not_direct(at)};
}

const char* ServedWindow::why_not_direct(std::size_t rank) const {
  if (const char* const obstacle = obstacle_to_direct_access()) return obstacle;
  if (exposed_.empty()) return "the window is dynamic";
  if (exposed_[rank].on_gpu == 0) return "the target's memory is host memory, or other processes cannot map it";
  if (world_ranks_[rank] < 0) return "the target shares no memory with this process";
  return "no GPU of this process reaches both sides, or GPUs do not support the operation";
}

int ServedWindow::submit(const OriginOperationRef& operation, MPI_Request* request) {
  const auto hand_over = [&] {
    if (operation->direct)
      direct_.add(operation->rank, operation->direct, operation->with_request);
    else
      channel_.submit(operation);
  };
  if (request == nullptr) {
    hand_over();
    engine_progress();
    return MPI_SUCCESS;
  }
  auto requested = std::make_unique<Operation>();
  requested->owner.win = win_;
  requested->moved = {Operation::Kind::fill, std::make_shared<AccessRequest>(operation, requested.get())};
  Reservation reserved(std::move(requested));
  if (reserved.error() != MPI_SUCCESS) return reserved.error();
  hand_over();
  return reserved.submit(/*issued=*/true, request);
}

/// Starts the access by a GPU of this process; false if none can.
bool ServedWindow::start_direct(const char* call, DirectAccess::Kind kind, const Origin& origin, const Target& target,
                                OriginOperation& operation) {
  check_size(origin.count * datatype::size_of(origin.type), target);
  if (exposed_.empty()) return false;
  const auto at = static_cast<std::size_t>(operation.rank);
  const MessageHeader& header = operation.header;
  operation.direct = DirectAccess::start(
      call, kind, origin, {exposed_[at], world_ranks_[at], operation.target_type, header.count, header.displacement},
      own_gpu_);
  return operation.direct != nullptr;
}

/// Whether the target certainly serves no access of this process now.
bool ServedWindow::none_served(int rank) const {
  return channel_.applied(rank) == channel_.submitted(rank);
}

/// Makes an accumulate by a GPU of this process, complete on return; false if none can. Does nothing while the target
/// may still serve earlier accesses of this process, so that accumulates keep their order.
bool ServedWindow::accumulate_direct(const char* call, const AccumulateBuffers& buffers, const Target& target,
                                     MPI_Op op, OriginOperation& operation) {
  for (const Origin* const each : {buffers.given, buffers.fetched})
    if (each != nullptr) check_size(each->count * datatype::size_of(each->type), target);
  const auto at = static_cast<std::size_t>(operation.rank);
  if (!node_locks_ || !none_served(operation.rank)) return false;
  const MessageHeader& header = operation.header;
  const DirectTarget there = {exposed_[at], world_ranks_[at], operation.target_type, header.count, header.displacement};
  const MPI_Datatype element = buffers.compared != nullptr ? target.type : element_of(target.type);
  if (!accumulate_by_gpu(call, buffers, there, op, element, own_gpu_, node_locks_->turn(operation.rank))) return false;
  operation.direct = std::make_shared<DirectAccess>();
  return true;
}

template <class Check, class Build>
int ServedWindow::access(const char* call, MessageKind kind, const Target& target, MPI_Request* request, Check check,
                         Build build) {
  return guard(call, [&] {
    if (const int code = check()) return code;
    if (is_nothing(target))
      return request == nullptr ? MPI_SUCCESS
                                : PMPI_Rput(nullptr, 0, MPI_BYTE, MPI_PROC_NULL, 0, 0, MPI_BYTE, win_, request);
    const OriginOperationRef operation = prepare(kind, target, request != nullptr);
    build(*operation);
    if (require_wanted)
      operation->forbidden = forbidden(call, *operation, target.count * datatype::size_of(target.type));
    if (operation->forbidden != MPI_SUCCESS && request == nullptr) require_fails_call();
    return submit(operation, request);
  });
}

int ServedWindow::put(const char* call, const Origin& origin, const Target& target, MPI_Request* request) {
  const auto check = [&] {
    return PMPI_Put(origin.buffer, origin.count, origin.type, MPI_PROC_NULL, target.displacement, target.count,
                    target.type, win_);
  };
  return access(call, MessageKind::put, target, request, check, [&](OriginOperation& operation) {
    if (!start_direct(call, DirectAccess::Kind::put, origin, target, operation)) give(operation, call, origin, target);
  });
}

int ServedWindow::get(const char* call, const Origin& result, const Target& target, MPI_Request* request) {
  const auto check = [&] {
    return PMPI_Get(const_cast<void*>(result.buffer), result.count, result.type, MPI_PROC_NULL, target.displacement,
                    target.count, target.type, win_);
  };
  return access(call, MessageKind::get, target, request, check, [&](OriginOperation& operation) {
    if (!start_direct(call, DirectAccess::Kind::get, result, target, operation)) take(operation, call, result, target);
  });
}

int ServedWindow::accumulate(const char* call, const Origin& origin, const Target& target, MPI_Op op,
                             MPI_Request* request) {
  const auto check = [&] {
    return PMPI_Accumulate(origin.buffer, origin.count, origin.type, MPI_PROC_NULL, target.displacement, target.count,
                           target.type, operator_to_check(op, target), win_);
  };
  return access(call, MessageKind::accumulate, target, request, check, [&](OriginOperation& operation) {
    combine_with(operation, op, target);
    if (!accumulate_direct(call, {.given = &origin}, target, op, operation)) give(operation, call, origin, target);
  });
}

/// MPI_Get_accumulate and MPI_Fetch_and_op.
void ServedWindow::get_and_combine(const char* call, const Origin& origin, const Origin& result, const Target& target,
                                   MPI_Op op, OriginOperation& operation) {
  combine_with(operation, op, target);
  const bool gives = op != MPI_NO_OP;
  if (accumulate_direct(call, {gives ? &origin : nullptr, &result}, target, op, operation)) return;
  take(operation, call, result, target);
  if (gives) give(operation, call, origin, target);
}

int ServedWindow::get_accumulate(const char* call, const Origin& origin, const Origin& result, const Target& target,
                                 MPI_Op op, MPI_Request* request) {
  const auto check = [&] {
    return PMPI_Get_accumulate(origin.buffer, origin.count, origin.type, const_cast<void*>(result.buffer), result.count,
                               result.type, MPI_PROC_NULL, target.displacement, target.count, target.type,
                               operator_to_check(op, target), win_);
  };
  return access(call, MessageKind::get_accumulate, target, request, check,
                [&](OriginOperation& operation) { get_and_combine(call, origin, result, target, op, operation); });
}

int ServedWindow::fetch_and_op(const void* origin, void* result, const Target& target, MPI_Op op) {
  constexpr const char* call = "MPI_Fetch_and_op";
  const auto check = [&] {
    return PMPI_Fetch_and_op(origin, result, type_to_fetch(target.type), MPI_PROC_NULL, target.displacement,
                             operator_to_check(op, target), win_);
  };
  return access(call, MessageKind::get_accumulate, target, nullptr, check, [&](OriginOperation& operation) {
    get_and_combine(call, {origin, 1, target.type}, {result, 1, target.type}, target, op, operation);
  });
}

int ServedWindow::compare_and_swap(const void* origin, const void* compare, void* result, const Target& target) {
  constexpr const char* call = "MPI_Compare_and_swap";
  const auto check = [&] {
    return PMPI_Compare_and_swap(origin, compare, result, target.type, MPI_PROC_NULL, target.displacement, win_);
  };
  return access(call, MessageKind::compare_and_swap, target, nullptr, check, [&](OriginOperation& operation) {
    const Origin given = {origin, 1, target.type}, compared = {compare, 1, target.type}, old = {result, 1, target.type};
    if (accumulate_direct(call, {&given, &old, &compared}, target, MPI_NO_OP, operation)) return;
    take(operation, call, old, target);
    give_element(operation, call, given);
    give_element(operation, call, compared);
  });
}

}  // namespace gpudt::interpose
