#include "device/memory/peer.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "device/memory/gates.hpp"
#include "device/memory/in_time.hpp"

namespace gpudt::device {
namespace {

/// The number of mappings kept, unless more of them are in use, or receives into host memory have made them.
constexpr std::size_t most_imports = 64;
/// After what could not be closed, it is tried again so much later.
constexpr std::chrono::microseconds closing_pause{100};
/// How long a mapping stays open while transfers of the library's own are under way, which closing waits for: some
/// transfers of the usual length, since a program that exchanges data again and again is in MPI only while they run.
constexpr std::chrono::microseconds longest_open{200};
/// No count of ExportTable::freed.
constexpr std::uint64_t never_counted = ~std::uint64_t{0};

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

}  // namespace

void* Mapping::at(std::uint64_t exporters_address) const {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory_->address) +
                                 static_cast<std::uintptr_t>(exporters_address - memory_->base));
}

Peers::Peers(Runtime& runtime) : runtime_(runtime), process_(random_number()), exports_(runtime, process_) {}

Peers::~Peers() {
  const LockGuard none_is_taken(Gates::taking);
  for (auto& [place, import] : imports_) close(import);
  for (Import& import : retired_) close(import);
}

// --- imports --------------------------------------------------------------------------------------------------------

/// Null if it is not mapped yet.
Peers::Import* Peers::find(int ordinal, std::uint64_t exporter, const Exported& exported) {
  const auto at = imports_.find(place_of(ordinal, exporter, exported));
  const bool same =
      at != imports_.end() && at->second.buffer_id == exported.buffer_id && at->second.handle == handle_of(exported);
  return same ? &at->second : nullptr;
}

Mapping Peers::use(const std::shared_ptr<const PeerMemory>& memory) {
  memory->used = ++clock_;
  return Mapping(memory);
}

Mapping Peers::imported_memory(int ordinal, std::uint64_t exporter, const Exported& exported) {
  const LockGuard lock(mutex_);
  const Import* const known = find(ordinal, exporter, exported);
  return known != nullptr ? use(known->memory) : Mapping();
}

/// Under the mutex: what nobody holds may be closed at any other time.
Mapping Peers::hold_again(const KnownMapping& known) {
  const LockGuard lock(mutex_);
  const std::shared_ptr<const PeerMemory> memory = known.memory_.lock();
  return memory != nullptr && !memory->lost ? use(memory) : Mapping();
}

/// find(), after which the exporter sees that this process has the memory mapped.
Mapping Peers::find_counted(int ordinal, const Exporter& exporter, const Exported& exported) {
  Import* const known = find(ordinal, exporter.number, exported);
  if (known == nullptr) return {};
  CountedMapping& counted = known->counted;
  if (!counted && known->opened) counted = CountedMapping(exporter, exported);  // it has a slot now
  return use(known->memory);
}

Mapping Peers::import_memory(int ordinal, const Exporter& exporter, const Exported& exported, std::string* why,
                             bool may_wait) {
  {
    const LockGuard lock(mutex_);
    if (Mapping known = find_counted(ordinal, exporter, exported)) return known;
  }
  struct Answer {
    Mapping mapping{};
    std::string why{};
  };
  const auto answer = std::make_shared<Answer>();
  const bool answered =
      in_time([=, this] { answer->mapping = import_now(ordinal, exporter, exported, answer->why, may_wait); });
  if (why) *why = answered ? answer->why : "mapping it has timed out, while operations are enqueued in streams";
  return answered ? std::move(answer->mapping) : Mapping();
}

/// Work of in_time(). Empty, with the reason, if the memory cannot be mapped.
Mapping Peers::import_now(int ordinal, const Exporter& exporter, const Exported& exported, std::string& why,
                          bool may_wait) {
  const LockGuard lock(mutex_);
  const auto refuse = [&](const std::string& reason) {
    why = reason;
    return Mapping();
  };
  if (Mapping known = find_counted(ordinal, exporter, exported)) return known;
  const Gpus gpus = {ordinal, exporter.number, bytes_of<GpuId>(exported.gpu), exported.pieces != 0};
  if (const auto at = refused_.find(gpus); at != refused_.end() && at->second.stands()) return refuse(at->second.why);
  retire_stale(ordinal, exporter.number, exported);
  retire_freed();
  if (may_wait) {
    retire_too_many(ordinal);
    close_retired(std::chrono::steady_clock::time_point::max());
  }
  // What is held may be let go of at any time, so that it is tried nevertheless.
  if (has_retired(ordinal, exporter.number, exported, /*page=*/1) && !(may_wait && is_idle(ordinal)))
    return refuse("memory that was mapped in its place cannot be unmapped while the GPU works");
  try {
    Import made = open(ordinal, exporter, exported);
    if (made.memory == nullptr) return refuse("its owner has freed the memory");
    Mapping mapping = use(made.memory);
    imports_.emplace(place_of(ordinal, exporter.number, exported), std::move(made));
    refused_.erase(gpus);
    return mapping;
  } catch (const Error& error) {
    // What has not been closed yet may be the reason, which will not last.
    if (!has_retired(ordinal, exporter.number, exported, runtime_.granule())) refused_[gpus].again(error.what());
    return refuse(error.what());
  }
}

/// Without memory if its owner has freed it.
Peers::Import Peers::open(int ordinal, const Exporter& exporter, const Exported& exported) {
  const bool mine = exported.process == process_;
  const int peer = mine ? runtime_.classify(reinterpret_cast<const void*>(exported.base)).ordinal
                        : runtime_.find_gpu(bytes_of<GpuId>(exported.gpu));
  // A GPU that this process does not see may be reached nevertheless.
  if (peer >= 0 && peer != ordinal && !runtime_.can_access_peer(ordinal, peer))
    throw Error(Failure::runtime,
                "GPU " + std::to_string(ordinal) + " cannot access memory of GPU " + std::to_string(peer));
  // Peer access is to allocations of cudaMalloc; pieces are mapped for each GPU.
  const bool own = mine && (exported.pieces == 0 || peer == ordinal);
  auto memory = std::make_shared<PeerMemory>(PeerMemory{exported.base, exported.size, nullptr});
  CountedMapping counted;
  if (own) {
    const Unlocked unlocked(mutex_);
    if (peer >= 0 && peer != ordinal) runtime_.enable_peer_access(ordinal, peer);
    memory->address = reinterpret_cast<void*>(exported.base);
  } else {
    counted = CountedMapping(exporter, exported);
    if (counted.freed()) return {};
    const std::uint64_t before = losses_;
    try {
      const Unlocked unlocked(mutex_);
      memory->address =
          exported.pieces != 0 ? map_pieces(ordinal, exported) : runtime_.ipc_open(ordinal, handle_of(exported));
    } catch (const Error& error) {
      if (peer >= 0) throw;
      throw Error(error.failure(), std::string("this process does not see the GPU that has the memory "
                                               "(CUDA_VISIBLE_DEVICES, or the job's cgroup): ") +
                                       error.what());
    }
    if (losses_ != before) throw Error(Failure::runtime, "the GPU's context has ended");
    ++opened_;
    // It is looked for once more whether this memory has been freed: perhaps while it was mapped.
    if (exporter.table != nullptr) watched_.insert_or_assign(exporter.number, Watched{exporter.table, never_counted});
  }
  return {ordinal, exporter.number,      std::move(memory), exported.buffer_id, handle_of(exported),
          !own,    exported.pieces != 0, std::move(counted)};
}

void* Peers::map_pieces(int ordinal, const Exported& exported) {
  const std::vector<PassedPiece> passed = ask_for_pieces(handle_of(exported));
  std::vector<SharedPiece> pieces;
  std::uint64_t bytes = 0;
  for (const PassedPiece& each : passed) {
    pieces.push_back({each.file.get(), each.size});
    bytes += each.size;
  }
  if (bytes != exported.size || passed.size() != exported.pieces)
    throw Error(Failure::runtime, "the pieces of the memory are not those that were described");
  return runtime_.map_pieces(ordinal, pieces);
}

// --- what is unmapped ------------------------------------------------------------------------------------------------

/// Whether mappings may be closed. Closing waits for all work of the GPU, which may itself wait for what the program
/// does after this MPI call. Only the default stream is queried, and the streams that it waits for; and none may have
/// enqueued operations.
bool Peers::is_idle(int ordinal) {
  if (Gates::any_taken()) return false;
  try {
    return runtime_.default_stream_idle(ordinal, /*while_capturing=*/false);
  } catch (const Error&) {
    return false;
  }
}

void Peers::unmap_freed(FunctionRef<bool()> under_way) {
  std::chrono::steady_clock::time_point until;
  {
    const LockGuard lock(mutex_);
    const bool more = retire_freed();
    if (retired_.empty()) return;
    until = std::chrono::steady_clock::now();
    if (!more && until < close_again_) return;
    close_again_ = until + closing_pause;
  }
  if (under_way()) until -= longest_open;
  const auto close = [=, this] {
    const LockGuard lock(mutex_);
    close_retired(until);
  };
  in_time(close, std::chrono::milliseconds(0));
}

/// What was mapped of addresses that `exported` has now is no more: the exporter has freed it. Exports of pieces may
/// overlap: those that the exporter's table has are told when they are freed.
void Peers::retire_stale(int ordinal, std::uint64_t exporter, const Exported& exported) {
  const auto is_stale = [&](const Import& import) {
    return import.in_pieces == (exported.pieces != 0) && import.overlaps(exported) &&
           !(import.in_pieces && import.counted);
  };
  for (auto at = imports_.lower_bound({ordinal, exporter, 0, 0}); at != imports_.end();) {
    if (std::get<0>(at->first) != ordinal || std::get<1>(at->first) != exporter) return;
    at = is_stale(at->second) ? retire(at) : std::next(at);
  }
}

/// What exporters have told to be freed; false if there is nothing new.
bool Peers::retire_freed() {
  bool more = false;
  for (auto& [number, watched] : watched_) {
    const std::uint64_t freed = watched.table->freed.load(std::memory_order_acquire);
    more = more || freed != watched.freed;
    watched.freed = freed;
  }
  for (auto at = more ? imports_.begin() : imports_.end(); at != imports_.end();)
    at = at->second.counted.freed() ? retire(at) : std::next(at);
  return more;
}

/// Retires the least recently used mappings that nobody holds, if there are too many. Only if they can be closed now:
/// one that stays mapped could not be used any more, nor mapped a second time.
void Peers::retire_too_many(int ordinal) {
  if (imports_.size() < most_imports || !is_idle(ordinal)) return;
  while (imports_.size() >= most_imports) {
    auto oldest = imports_.end();
    for (auto at = imports_.begin(); at != imports_.end(); ++at)
      if (at->second.ordinal == ordinal && !at->second.held() &&
          (oldest == imports_.end() || at->second.memory->used < oldest->second.memory->used))
        oldest = at;
    if (oldest == imports_.end()) return;
    retire(oldest);
  }
}

/// What was retired by `until` and nobody holds, of GPUs that have nothing to do. None while gates are taken.
void Peers::close_retired(std::chrono::steady_clock::time_point until) {
  if (retired_.empty() || !no_gate_is_taken()) return;
  std::map<int, bool> idle;  // by GPU
  std::erase_if(retired_, [&](const Import& import) REQUIRES(mutex_) {
    if (import.held() || import.retired_at > until) return false;
    if (!import.opened) return true;
    const auto [at, is_new] = idle.try_emplace(import.ordinal, false);
    if (is_new) at->second = is_idle(import.ordinal);
    if (at->second) close(import);
    return at->second;
  });
  if (!retired_.empty()) close_again_ = std::chrono::steady_clock::now() + closing_pause;
}

/// Whether memory that was in pages of `exported` before is still mapped, where runtimes refuse to map another
/// allocation.
bool Peers::has_retired(int ordinal, std::uint64_t exporter, const Exported& exported, std::uint64_t page) {
  if (exported.pieces != 0) return false;
  return std::any_of(retired_.begin(), retired_.end(), [&](const Import& import) {
    return !import.in_pieces && import.ordinal == ordinal && import.exporter == exporter &&
           import.overlaps(exported, page);
  });
}

/// Returns the next one.
Peers::Imports::iterator Peers::retire(Imports::iterator at) {
  retired_.push_back(std::move(at->second));
  retired_.back().retired_at = std::chrono::steady_clock::now();
  return imports_.erase(at);
}

void Peers::close(const Import& import) noexcept {
  if (!import.opened) return;
  if (import.in_pieces)
    runtime_.unmap_pieces(import.ordinal, import.memory->address, import.memory->size);
  else
    runtime_.ipc_close(import.ordinal, import.memory->address);
  --opened_;
}

void Peers::lose(int ordinal) noexcept {
  const LockGuard lock(mutex_);
  ++losses_;
  const auto lost = [&](const Import& import) REQUIRES(mutex_) {
    const bool its = import.ordinal == ordinal;
    if (its) import.memory->lost = true;
    if (its && import.in_pieces)
      close(import);  // these do not belong to the context
    else if (its && import.opened)
      --opened_;
    return its;
  };
  std::erase_if(imports_, [&](const auto& entry) REQUIRES(mutex_) { return lost(entry.second); });
  std::erase_if(retired_, lost);
}

PeerStatistics Peers::statistics() {
  const LockGuard lock(mutex_);
  return {static_cast<std::int64_t>(exports_.count()), opened_};
}

}  // namespace gpudt::device
