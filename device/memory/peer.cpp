#include "device/memory/peer.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace gpudt::device {
namespace {

/// The number of allocations whose handles, or refusals, are cached.
constexpr std::size_t most_exports = 1024;
/// The number of mappings kept, unless more of them are in use.
constexpr std::size_t most_imports = 64;

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    number = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) ^
             (static_cast<std::uint64_t>(getpid()) << 40);
  return number;
}

template <class Bytes, class Given>
Bytes bytes_of(const Given& given) {
  Bytes bytes;
  static_assert(sizeof bytes == sizeof given);
  std::memcpy(bytes.data(), given, sizeof given);
  return bytes;
}

IpcHandle handle_of(const Exported& exported) {
  return bytes_of<IpcHandle>(exported.handle);
}

/// The least recently used element that `may_go`, or the end.
template <class Map, class MayGo>
typename Map::iterator least_recent(Map& map, const MayGo& may_go) {
  auto found = map.end();
  for (auto at = map.begin(); at != map.end(); ++at)
    if (may_go(at->second) && (found == map.end() || at->second.used < found->second.used)) found = at;
  return found;
}

}  // namespace

void* Mapping::at(std::uint64_t exporters_address) const {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory_->address) +
                                 static_cast<std::uintptr_t>(exporters_address - memory_->base));
}

Peers::Peers(Runtime& runtime) : runtime_(runtime), process_(random_number()) {}

Peers::~Peers() {
  for (auto& [place, import] : imports_) close(import);
  for (Import& import : retired_) close(import);
}

// --- exports --------------------------------------------------------------------------------------------------------

bool Peers::export_memory(int ordinal, const GpuId& gpu, const void* address, Exported& exported) {
  const std::uint64_t id = runtime_.allocation_id(address);
  const LockGuard lock(mutex_);
  auto at = id != 0 ? exports_.find(id) : exports_.end();
  if (at == exports_.end()) {
    Allocation allocation;
    if (!runtime_.allocation_of(address, allocation) || !allocation.exportable || allocation.id == 0) return false;
    if (exports_.size() >= most_exports) exports_.erase(least_recent(exports_, [](const Export&) { return true; }));
    at = exports_.emplace(allocation.id, Export{allocation}).first;
    try_export(ordinal, at->second);
  } else if (!at->second.handle && !at->second.refusal.stands()) {
    try_export(ordinal, at->second);
  }
  at->second.used = ++clock_;
  if (!at->second.handle) return false;
  const Allocation& allocation = at->second.allocation;
  Exported made = {};
  std::copy_n(at->second.handle->data(), sizeof made.handle, made.handle);
  made.buffer_id = allocation.id;
  made.base = allocation.base;
  made.size = allocation.size;
  std::copy_n(gpu.data(), sizeof made.gpu, made.gpu);
  made.process = process_;
  exported = made;
  return true;
}

void Peers::try_export(int ordinal, Export& entry) {
  try {
    entry.handle = runtime_.ipc_export(ordinal, reinterpret_cast<void*>(entry.allocation.base));
  } catch (const Error& error) {
    entry.refusal.again(error.what());
  }
}

// --- imports --------------------------------------------------------------------------------------------------------

/// Empty if it is not mapped yet.
Mapping Peers::find(int ordinal, std::uint64_t exporter, const Exported& exported) {
  const auto at = imports_.find({ordinal, exporter, exported.base});
  const bool same =
      at != imports_.end() && at->second.buffer_id == exported.buffer_id && at->second.handle == handle_of(exported);
  if (!same) return {};
  at->second.used = ++clock_;
  return Mapping(at->second.memory);
}

Mapping Peers::imported_memory(int ordinal, std::uint64_t exporter, const Exported& exported) {
  const LockGuard lock(mutex_);
  return find(ordinal, exporter, exported);
}

Mapping Peers::import_memory(int ordinal, std::uint64_t exporter, const Exported& exported, std::string* why) {
  const LockGuard lock(mutex_);
  if (Mapping known = find(ordinal, exporter, exported)) return known;
  const Gpus gpus = {ordinal, exporter, bytes_of<GpuId>(exported.gpu)};
  if (const auto at = refused_.find(gpus); at != refused_.end() && at->second.stands()) {
    if (why) *why = at->second.why;
    return {};
  }
  if (is_idle(ordinal)) {
    drop_stale(ordinal, exporter, exported);
    make_room();
  } else if (is_stale(ordinal, exporter, exported)) {
    if (why) *why = "memory that was mapped in its place cannot be unmapped while the GPU works";
    return {};
  }
  try {
    Import& made = imports_.emplace(Place{ordinal, exporter, exported.base}, open(ordinal, exported)).first->second;
    made.used = ++clock_;
    refused_.erase(gpus);
    return Mapping(made.memory);
  } catch (const Error& error) {
    refused_[gpus].again(error.what());
    if (why) *why = error.what();
    return {};
  }
}

Peers::Import Peers::open(int ordinal, const Exported& exported) {
  const bool own = exported.process == process_;
  const int peer = own ? runtime_.classify(reinterpret_cast<const void*>(exported.base)).ordinal
                       : runtime_.find_gpu(bytes_of<GpuId>(exported.gpu));
  // A GPU that this process does not see may be reached nevertheless.
  if (peer >= 0 && peer != ordinal && !runtime_.can_access_peer(ordinal, peer))
    throw Error(Failure::runtime,
                "GPU " + std::to_string(ordinal) + " cannot access memory of GPU " + std::to_string(peer));
  auto memory = std::make_shared<PeerMemory>(PeerMemory{exported.base, exported.size, nullptr});
  if (own) {
    if (peer >= 0 && peer != ordinal) runtime_.enable_peer_access(ordinal, peer);
    memory->address = reinterpret_cast<void*>(exported.base);
  } else {
    memory->address = runtime_.ipc_open(ordinal, handle_of(exported));
    ++opened_;
  }
  return {ordinal, std::move(memory), exported.buffer_id, handle_of(exported), !own, 0};
}

/// Whether mappings may be closed. Closing waits for all work of the GPU, which may itself wait for what the program
/// does after this MPI call. Only the default stream is queried, and the streams that it waits for.
bool Peers::is_idle(int ordinal) {
  try {
    return runtime_.default_stream_idle(ordinal, /*while_capturing=*/false);
  } catch (const Error&) {
    return false;
  }
}

/// The next mapping from `at` on that overlaps the addresses of `exported`, or the end. The exporter has freed its
/// memory.
Peers::Imports::iterator Peers::next_stale(Imports::iterator at, int ordinal, std::uint64_t exporter,
                                           const Exported& exported) {
  for (; at != imports_.end(); ++at) {
    if (std::get<0>(at->first) != ordinal || std::get<1>(at->first) != exporter) return imports_.end();
    const PeerMemory& memory = *at->second.memory;
    if (memory.base < exported.base + exported.size && exported.base < memory.base + memory.size) return at;
  }
  return at;
}

bool Peers::is_stale(int ordinal, std::uint64_t exporter, const Exported& exported) {
  return next_stale(imports_.lower_bound({ordinal, exporter, 0}), ordinal, exporter, exported) != imports_.end();
}

/// Runtimes refuse to map an allocation while an earlier one at its addresses is still mapped.
void Peers::drop_stale(int ordinal, std::uint64_t exporter, const Exported& exported) {
  auto at = next_stale(imports_.lower_bound({ordinal, exporter, 0}), ordinal, exporter, exported);
  while (at != imports_.end()) {
    const auto stale = at++;
    retire(stale);
    at = next_stale(at, ordinal, exporter, exported);
  }
}

/// Closes what is out of date and not held any more, and the least recently used if there are too many.
void Peers::make_room() {
  const auto done =
      std::partition(retired_.begin(), retired_.end(), [](const Import& import) { return import.held(); });
  std::for_each(done, retired_.end(), [&](Import& import) REQUIRES(mutex_) { close(import); });
  retired_.erase(done, retired_.end());
  while (imports_.size() >= most_imports) {
    const auto oldest = least_recent(imports_, [](const Import& import) { return !import.held(); });
    if (oldest == imports_.end()) return;
    close(oldest->second);
    imports_.erase(oldest);
  }
}

void Peers::retire(Imports::iterator at) {
  if (at->second.held())
    retired_.push_back(std::move(at->second));
  else
    close(at->second);
  imports_.erase(at);
}

void Peers::close(Import& import) noexcept {
  if (!import.opened) return;
  runtime_.ipc_close(import.ordinal, import.memory->address);
  --opened_;
}

void Peers::lose(int ordinal) noexcept {
  const LockGuard lock(mutex_);
  const auto lost = [&](const Import& import) REQUIRES(mutex_) {
    const bool its = import.ordinal == ordinal;
    if (its && import.opened) --opened_;
    return its;
  };
  std::erase_if(imports_, [&](const auto& entry) REQUIRES(mutex_) { return lost(entry.second); });
  std::erase_if(retired_, lost);
}

PeerStatistics Peers::statistics() {
  const LockGuard lock(mutex_);
  return {static_cast<std::int64_t>(exports_.size()), opened_};
}

}  // namespace gpudt::device
