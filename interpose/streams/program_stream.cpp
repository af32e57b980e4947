#include "interpose/streams/program_stream.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/never_destroyed.hpp"
#include "interpose/streams/service.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

/// Calls of a stream that begin early at a time. The next ones begin while the stream carries out the first; more would
/// be polled in vain.
constexpr std::size_t most_early = 4;
constexpr int first_handle = 0x7c000000;  ///< MPICH's own handles of streams begin otherwise

/// Handles are few: programs make some streams and keep them.
struct Known {
  Mutex mutex;
  std::unordered_map<int, std::shared_ptr<ProgramStream>> streams GUARDED_BY(mutex);
  std::unordered_map<MPI_Comm, std::shared_ptr<StreamComm>> comms GUARDED_BY(mutex);
  std::unordered_map<MPI_Win, std::shared_ptr<StreamComm>> windows GUARDED_BY(mutex);
  int next_handle GUARDED_BY(mutex) = first_handle;
};
auto& known = never_destroyed<Known>();

/// Whether the stream has come to the call, which is in no graph.
bool has_come_to(const EnqueuedCall* call) {
  return call->gate->has_told(call->passage);
}

/// Whether a launch of its graph has come to the call, which has not begun.
bool has_told(const EnqueuedCall* call) {
  return !call->under_way && call->gate->told() == device::Gate::in_graph;
}

/// Counts one more graph of a call that is part of one. Throws MpiError if all are gone.
void count_graph(EnqueuedCall& call) {
  int graphs = call.graphs.load(std::memory_order_acquire);
  do {
    if (graphs == 0) throw MpiError(MPI_ERR_REQUEST, "the graph of the operation is gone");
  } while (!call.graphs.compare_exchange_weak(graphs, graphs + 1, std::memory_order_acq_rel));
}

/// A graph of the call, with all that was made of it, is gone. CUDA calls it in threads that must not call CUDA or MPI:
/// the thread of the streams shares the call as long as there are graphs, and may then destroy it.
void released_by_graph(void* data) {
  static_cast<EnqueuedCall*>(data)->graphs.fetch_sub(1, std::memory_order_acq_rel);
  service_wake();
}

}  // namespace

Mutex& outcome_mutex() {
  static Mutex& mutex = never_destroyed<Mutex>();
  return mutex;
}

// --- streams ---------------------------------------------------------------------------------------------------------

ProgramStream::ProgramStream(void* handle) : handle_(handle), gpu_(device::stream_gpu(handle)) {
  device::prepare_for_streams(gpu_);
}

/// Lets the graph under capture, which is counted already, use the call.
void ProgramStream::keep(EnqueuedCall* call) {
  device::keep_with_graph(gpu_, handle_, released_by_graph, call);
}

/// Lets the thread know of the call. Nothing fails here.
void ProgramStream::share(EnqueuedCall* call) {
  call->retain();
  service_counts(*call);
  const LockGuard lock(mutex_);
  (last_incoming_ == nullptr ? first_incoming_ : last_incoming_->next_incoming) = call;
  last_incoming_ = call;
  has_incoming_.store(true, std::memory_order_release);
}

void ProgramStream::enqueue(EnqueuedCall* call, bool waits) {
  if (abandoned_.load())
    throw MpiError(MPI_ERR_OTHER, "its MPIX_Stream was made before MPI_Finalize: make another one");
  call->in_graph = is_captured();
  call->gate = device::take_gate(gpu_, call->in_graph);
  device::Meeting meeting;
  const LockGuard in_order(enqueuing_);
  if (call->in_graph) {
    call->passage = device::Gate::in_graph;
    call->graphs.store(1, std::memory_order_relaxed);  // before share(): calls of no graph are forgotten
    share(call);                                       // before anything fails: see released_by_graph()
    keep(call);
  } else {
    call->passage = call->gate->next();
  }
  call->gate->tell_in(meeting, call->passage);
  if (waits) call->gate->wait_in(meeting, call->passage, call->in_graph);
  device::meet(gpu_, meeting, handle_);
  if (!call->in_graph) share(call);
}

void ProgramStream::wait_for(const std::vector<EnqueuedCall*>& calls) {
  const bool captured = is_captured();
  const LockGuard in_order(enqueuing_);
  for (std::size_t begin = 0; begin < calls.size(); begin += device::Meeting::most_waits) {
    const std::size_t end = std::min(begin + device::Meeting::most_waits, calls.size());
    device::Meeting meeting;
    for (std::size_t i = begin; i < end; ++i) {
      if (captured) {
        count_graph(*calls[i]);
        keep(calls[i]);
      }
      calls[i]->gate->wait_in(meeting, calls[i]->passage, calls[i]->in_graph);
    }
    device::meet(gpu_, meeting, handle_);
  }
}

void ProgramStream::take_incoming() {
  if (!has_incoming_.load(std::memory_order_acquire)) return;
  const LockGuard lock(mutex_);
  for (; first_incoming_ != nullptr; first_incoming_ = first_incoming_->next_incoming)
    if (first_incoming_->in_graph)
      in_graphs_.push_back(first_incoming_);
    else
      plain_.push_back(first_incoming_);
  last_incoming_ = nullptr;
  has_incoming_.store(false, std::memory_order_relaxed);
}

bool ProgramStream::pass_early() {
  bool any = false;
  for (; !plain_.empty() && plain_.front()->is_early && has_come_to(plain_.front()); plain_.pop_front()) {
    plain_.front()->is_early = false;
    any = true;
  }
  return any;
}

EnqueuedCall* ProgramStream::next_begun() {
  const auto found = std::find_if(in_graphs_.begin(), in_graphs_.end(), has_told) - in_graphs_.begin();
  const bool in_graph = found < std::ssize(in_graphs_);
  // What the stream came to before this gate shows by now, and comes first: calls outside of graphs, behind which the
  // graph was launched, even if they were enqueued a moment ago, and those before it in the graph.
  if (in_graph) take_incoming();
  if (!plain_.empty() && !plain_.front()->is_early && has_come_to(plain_.front())) {
    EnqueuedCall* const call = plain_.front();
    plain_.pop_front();
    return call;
  }
  if (!in_graph) return nullptr;
  EnqueuedCall* const call = *std::find_if(in_graphs_.begin(), in_graphs_.begin() + found, has_told);
  call->gate->take_told();
  return call;
}

/// None while there are graphs, whose calls may come between: what is enqueued later must not be matched before.
EnqueuedCall* ProgramStream::next_early() {
  if (!in_graphs_.empty()) return nullptr;
  const auto end = plain_.begin() + static_cast<std::ptrdiff_t>(std::min(plain_.size(), most_early));
  const auto next = std::find_if(plain_.begin(), end, [](const EnqueuedCall* call) { return !call->is_early; });
  return next != end && (*next)->steps.is_message && !(*next)->waits_for_stream ? *next : nullptr;
}

int ProgramStream::forget_graphs() {
  const auto gone = std::stable_partition(in_graphs_.begin(), in_graphs_.end(), [](const EnqueuedCall* call) {
    return call->under_way || call->graphs.load(std::memory_order_acquire) != 0 || has_told(call);  // in this order
  });
  const auto count = static_cast<int>(in_graphs_.end() - gone);
  const std::vector<EnqueuedCall*> forgotten(gone, in_graphs_.end());
  in_graphs_.erase(gone, in_graphs_.end());
  for (EnqueuedCall* const call : forgotten) {
    call->forgotten.store(true, std::memory_order_release);
    call->release();
  }
  return count;
}

std::uint64_t ProgramStream::first_number(std::uint64_t otherwise) const {
  std::uint64_t first = plain_.empty() ? otherwise : std::min(otherwise, plain_.front()->number);
  for (const EnqueuedCall* const call : in_graphs_) first = std::min(first, call->number);
  return first;
}

int ProgramStream::abandon() {
  abandoned_.store(true);
  take_incoming();
  const auto count = static_cast<int>(plain_.size());
  for (EnqueuedCall* const call : plain_) {
    call->gate->give_up(call->passage);
    call->gate->open(call->passage);
    if (!call->is_early) call->release();  // otherwise the thread has its request
  }
  plain_.clear();
  for (EnqueuedCall* const call : in_graphs_) call->gate->open(call->passage);
  in_graphs_.clear();
  return count;
}

// --- handles ---------------------------------------------------------------------------------------------------------

int make_stream_handle(std::shared_ptr<ProgramStream> stream) {
  const LockGuard lock(known.mutex);
  const int handle = known.next_handle;
  known.streams.emplace(handle, std::move(stream));
  ++known.next_handle;
  return handle;
}

std::shared_ptr<ProgramStream> find_stream(int handle) {
  const LockGuard lock(known.mutex);
  const auto at = known.streams.find(handle);
  return at == known.streams.end() ? nullptr : at->second;
}

bool forget_stream_handle(int handle) {
  const LockGuard lock(known.mutex);
  return known.streams.erase(handle) != 0;
}

namespace {

template <class Handle>
std::shared_ptr<StreamComm> find(const std::unordered_map<Handle, std::shared_ptr<StreamComm>>& all, Handle handle) {
  const auto at = all.find(handle);
  return at == all.end() ? nullptr : at->second;
}

template <class Handle>
std::shared_ptr<StreamComm> take(std::unordered_map<Handle, std::shared_ptr<StreamComm>>& all, Handle handle) {
  std::shared_ptr<StreamComm> found = find(all, handle);
  all.erase(handle);
  return found;
}

}  // namespace

void attach_stream(MPI_Comm comm, std::shared_ptr<ProgramStream> stream) {
  auto made = std::make_shared<StreamComm>(comm, MPI_WIN_NULL, std::move(stream));
  const LockGuard lock(known.mutex);
  known.comms.insert_or_assign(comm, std::move(made));
}

int attach_if(int code, const MPI_Win* win, MPI_Comm comm) {
  const std::shared_ptr<StreamComm> found = code == MPI_SUCCESS ? find_stream_comm(comm) : nullptr;
  if (!found) return code;
  auto made = std::make_shared<StreamComm>(MPI_COMM_NULL, *win, found->stream);
  const LockGuard lock(known.mutex);
  known.windows.insert_or_assign(*win, std::move(made));
  return code;
}

std::shared_ptr<StreamComm> find_stream_comm(MPI_Comm comm) {
  const LockGuard lock(known.mutex);
  return find(known.comms, comm);
}

std::shared_ptr<StreamComm> find_stream_comm(OfWindow window) {
  const LockGuard lock(known.mutex);
  return find(known.windows, window.win);
}

std::shared_ptr<StreamComm> detach_stream(MPI_Comm comm) {
  const LockGuard lock(known.mutex);
  return take(known.comms, comm);
}

std::shared_ptr<StreamComm> detach_stream(OfWindow window) {
  const LockGuard lock(known.mutex);
  return take(known.windows, window.win);
}

std::vector<std::shared_ptr<StreamComm>> stream_comms() {
  const LockGuard lock(known.mutex);
  std::vector<std::shared_ptr<StreamComm>> all;
  all.reserve(known.comms.size() + known.windows.size());
  for (const auto& [comm, found] : known.comms) all.push_back(found);
  for (const auto& [win, found] : known.windows) all.push_back(found);
  return all;
}

}  // namespace gpudt::interpose
