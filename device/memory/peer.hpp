// Memory of other processes: what this process exports, and what it has mapped of others'. Each engine has one Peers.
//
// Exporting and mapping cost microseconds to milliseconds, so both are remembered: exports by the allocation's id, and
// mappings by who exports and where. What an exporter has freed is unmapped as soon as that does not wait for the
// program's own work.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/function_ref.hpp"
#include "base/mutex.hpp"
#include "device/memory/export_table.hpp"
#include "device/memory/exports.hpp"
#include "device/memory/mapping.hpp"
#include "device/runtime/runtime.hpp"

namespace gpudt::device {

/// What a Mapping refers to; closing it is up to Peers.
struct PeerMemory {
  std::uint64_t base, size;  ///< in the exporting process
  void* address;             ///< in this process
  // Behind the mutex of Peers:
  mutable std::uint64_t used = 0;  ///< when it was used last, by the clock of Peers
  mutable bool lost = false;       ///< its context has ended
};

class Peers {
 public:
  explicit Peers(Runtime& runtime);
  /// Closes all mappings: what uses them must be done.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  Exports& exports() { return exports_; }
  bool export_memory(int ordinal, const Traits& gpu, const void* address, Exported& exported,
                     Importers by = all_importers, std::uint64_t bytes = 1) {
    return exports_.export_memory(ordinal, gpu, address, exported, by, bytes);
  }
  Mapping import_memory(int ordinal, const Exporter& exporter, const Exported& exported, std::string* why,
                        bool may_wait = true);
  Mapping imported_memory(int ordinal, std::uint64_t exporter, const Exported& exported);
  Mapping hold_again(const KnownMapping& known);
  /// Unmaps what exporters have freed, as far as nobody holds it and it does not wait for the program's work.
  /// If `under_way()`, asked only where there is something to unmap: nor for the library's own, unless that goes on for
  /// long.
  void unmap_freed(FunctionRef<bool()> under_way = [] { return false; });
  PeerStatistics statistics();
  /// The context of GPU `ordinal` has ended, and with it what was mapped for it.
  void lose(int ordinal) noexcept;

 private:
  /// An allocation of one exporter, mapped for one GPU. Only memory in pieces may be exported more than once.
  using Place =
      std::tuple<int, std::uint64_t, std::uint64_t, std::uint64_t>;  // ordinal, exporter, base, id if in pieces
  static Place place_of(int ordinal, std::uint64_t exporter, const Exported& exported) {
    return {ordinal, exporter, exported.base, exported.pieces != 0 ? exported.buffer_id : 0};
  }
  struct Import {
    int ordinal = 0;
    std::uint64_t exporter = 0;
    std::shared_ptr<const PeerMemory> memory;
    std::uint64_t buffer_id = 0;
    IpcHandle handle = {};
    bool opened = false;  ///< false: it is this process's own memory
    bool in_pieces = false;
    CountedMapping counted{};
    std::chrono::steady_clock::time_point retired_at{};
    bool held() const { return memory.use_count() > 1; }
    /// In whole pages of `page` bytes.
    bool overlaps(const Exported& exported, std::uint64_t page = 1) const {
      const auto end = [page](std::uint64_t base, std::uint64_t size) { return (base + size + page - 1) / page; };
      return memory->base / page < end(exported.base, exported.size) &&
             exported.base / page < end(memory->base, memory->size);
    }
  };
  /// Somebody whose memory has been mapped.
  struct Watched {
    ExportTable* table;
    std::uint64_t freed;  ///< the count of ExportTable::freed whose memory has been looked for
  };
  using Imports = std::map<Place, Import>;
  /// Where the one way of mapping is refused the other may work.
  using Gpus = std::tuple<int, std::uint64_t, GpuId, bool>;  // ordinal, exporter, its GPU, in pieces

  Import* find(int ordinal, std::uint64_t exporter, const Exported& exported) REQUIRES(mutex_);
  Mapping use(const std::shared_ptr<const PeerMemory>& memory) REQUIRES(mutex_);
  Mapping find_counted(int ordinal, const Exporter& exporter, const Exported& exported) REQUIRES(mutex_);
  Mapping import_now(int ordinal, const Exporter& exporter, const Exported& exported, std::string& why, bool may_wait)
      EXCLUDES(mutex_);
  Import open(int ordinal, const Exporter& exporter, const Exported& exported) REQUIRES(mutex_);
  bool is_idle(int ordinal) REQUIRES(mutex_);
  void retire_stale(int ordinal, std::uint64_t exporter, const Exported& exported) REQUIRES(mutex_);
  bool retire_freed() REQUIRES(mutex_);
  void retire_too_many(int ordinal) REQUIRES(mutex_);
  void close_retired(std::chrono::steady_clock::time_point until) REQUIRES(mutex_);
  bool has_retired(int ordinal, std::uint64_t exporter, const Exported& exported, std::uint64_t page) REQUIRES(mutex_);
  void* map_pieces(int ordinal, const Exported& exported);
  void close(const Import& import) noexcept REQUIRES(mutex_);
  Imports::iterator retire(Imports::iterator at) REQUIRES(mutex_);

  Runtime& runtime_;
  const std::uint64_t process_;  ///< a number that no other process has
  Exports exports_;
  Mutex mutex_;
  std::uint64_t clock_ GUARDED_BY(mutex_) = 0;  ///< counts uses
  Imports imports_ GUARDED_BY(mutex_);
  std::vector<Import> retired_ GUARDED_BY(mutex_);  ///< to be closed as soon as possible
  std::chrono::steady_clock::time_point close_again_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, Watched> watched_ GUARDED_BY(mutex_);
  std::map<Gpus, Refusal> refused_ GUARDED_BY(mutex_);
  std::int64_t opened_ GUARDED_BY(mutex_) = 0;
  std::uint64_t losses_ GUARDED_BY(mutex_) = 0;  ///< calls of lose()
};

}  // namespace gpudt::device
