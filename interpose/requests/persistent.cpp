#include "interpose/requests/persistent.hpp"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <utility>

#include "base/never_destroyed.hpp"

namespace gpudt::interpose {

Mutex persistent_mutex;
std::atomic<int> detail::persistent_requests{0};

namespace {

auto& start_ended = never_destroyed<std::condition_variable_any>();
auto& registry GUARDED_BY(persistent_mutex) = never_destroyed<std::unordered_map<MPI_Request, PersistentRef>>();

}  // namespace

void persistent_enter(PersistentRef persistent) {
  const LockGuard lock(persistent_mutex);
  registry[persistent->real] = std::move(persistent);
  detail::persistent_requests.fetch_add(1);
}

void persistent_adopt(Moved moved, MPI_Comm comm, MPI_Request real) {
  auto persistent = std::make_shared<Persistent>(comm);
  persistent->moved = std::move(moved);
  persistent->real = real;
  persistent_enter(std::move(persistent));
}

PersistentRef persistent_find(MPI_Request request) {
  if (persistent_count() == 0) return nullptr;
  const LockGuard lock(persistent_mutex);
  const auto entry = registry.find(request);
  return entry == registry.end() ? nullptr : entry->second;
}

PersistentRef persistent_remove(MPI_Request request) {
  if (persistent_count() == 0) return nullptr;
  const LockGuard lock(persistent_mutex);
  const auto entry = registry.find(request);
  if (entry == registry.end()) return nullptr;
  PersistentRef persistent = std::move(entry->second);
  registry.erase(entry);
  detail::persistent_requests.fetch_sub(1);
  return persistent;
}

void persistent_follow(const PersistentRef& persistent, MPI_Request before) {
  const LockGuard lock(persistent_mutex);
  auto node = registry.extract(before);  // so that it takes no memory
  if (!node) return;
  if (node.mapped() == persistent) node.key() = persistent->real;
  registry.insert(std::move(node));
}

PersistentStarting::PersistentStarting(Persistent& persistent) : persistent_(persistent) {
  const LockGuard lock(persistent_mutex);
  owner_ = persistent.owner;
  persistent.starter = std::this_thread::get_id();
}

PersistentStarting::~PersistentStarting() {
  const LockGuard lock(persistent_mutex);
  persistent_.starter = {};
  start_ended.notify_all();
}

std::shared_ptr<Payload> persistent_payload(MPI_Request request) {
  const PersistentRef persistent = persistent_find(request);
  return persistent ? persistent->moved.payload() : nullptr;
}

bool persistent_active(MPI_Request request) {
  const PersistentRef persistent = persistent_find(request);
  return persistent && persistent->active != MPI_REQUEST_NULL;
}

void persistent_exchange(std::vector<MPI_Request>& requests, std::vector<bool>& mine) {
  const LockGuard lock(persistent_mutex);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto entry = registry.find(requests[i]);
    if (entry == registry.end()) continue;
    mine[i] = true;
    requests[i] = entry->second->active;
  }
}

void persistent_completed(MPI_Request request) {
  if (const PersistentRef persistent = persistent_find(request)) persistent->active = MPI_REQUEST_NULL;
}

void persistent_forget_comm(MPI_Comm comm) {
  if (persistent_count() == 0) return;
  const auto kept = std::make_shared<const KeptHandler>(comm);
  UniqueLock lock(persistent_mutex);
  // An error handler that a start has called may free the communicator, too.
  const auto starts = [&](const auto& entry) REQUIRES(persistent_mutex) {
    const Persistent& persistent = *entry.second;
    return persistent.owner.comm == comm && persistent.starter != std::thread::id() &&
           persistent.starter != std::this_thread::get_id();
  };
  while (std::any_of(registry.begin(), registry.end(), starts)) lock.wait(start_ended);
  for (auto& [request, persistent] : registry)
    if (persistent->owner.comm == comm) persistent->owner.forget_comm(kept);
}

void persistent_stop() {
  const LockGuard lock(persistent_mutex);
  registry.clear();
  detail::persistent_requests.store(0);
}

}  // namespace gpudt::interpose
