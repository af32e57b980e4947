// Memory of other processes: what this process exports, and what it has mapped of others'. Each engine has one Peers.
//
// Exporting and mapping cost microseconds to milliseconds, so both are remembered: exports by the allocation's id, and
// mappings by who exports and where.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/backoff.hpp"
#include "base/mutex.hpp"
#include "device/memory/mapping.hpp"
#include "device/runtime/runtime.hpp"

namespace gpudt::device {

/// What a Mapping refers to; closing it is up to Peers.
struct PeerMemory {
  std::uint64_t base, size;  ///< in the exporting process
  void* address;             ///< in this process
};

class Peers {
 public:
  explicit Peers(Runtime& runtime);
  /// Closes all mappings: what uses them must be done.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  bool export_memory(int ordinal, const GpuId& gpu, const void* address, Exported& exported);
  Mapping import_memory(int ordinal, std::uint64_t exporter, const Exported& exported, std::string* why);
  Mapping imported_memory(int ordinal, std::uint64_t exporter, const Exported& exported);
  PeerStatistics statistics();
  /// The context of GPU `ordinal` has ended, and with it what was mapped for it.
  void lose(int ordinal) noexcept;

 private:
  /// An export or mapping that the runtime has refused. The cause may be temporary, so it is tried again after a
  /// back-off.
  struct Refusal {
    std::string why;
    Backoff<32, 4096> asking{};
    /// Whether the refusal still stands, so that the runtime is not tried again yet.
    bool stands() { return asking.passes(); }
    void again(const char* reason) {
      why = reason;
      asking.failed();
    }
  };
  struct Export {
    Allocation allocation;
    std::optional<IpcHandle> handle{};  ///< none: it cannot be exported, as far as is known
    std::uint64_t used = 0;
    Refusal refusal{};
  };
  /// An allocation of one exporter, mapped for one GPU.
  using Place = std::tuple<int, std::uint64_t, std::uint64_t>;  // ordinal, exporter, base
  struct Import {
    int ordinal = 0;
    std::shared_ptr<const PeerMemory> memory;
    std::uint64_t buffer_id = 0;
    IpcHandle handle = {};
    bool opened = false;  ///< false: it is this process's own memory
    std::uint64_t used = 0;
    bool held() const { return memory.use_count() > 1; }
  };
  using Imports = std::map<Place, Import>;
  using Gpus = std::tuple<int, std::uint64_t, GpuId>;  // ordinal, exporter, its GPU

  void try_export(int ordinal, Export& entry);
  Mapping find(int ordinal, std::uint64_t exporter, const Exported& exported) REQUIRES(mutex_);
  Import open(int ordinal, const Exported& exported) REQUIRES(mutex_);
  bool is_idle(int ordinal) REQUIRES(mutex_);
  Imports::iterator next_stale(Imports::iterator at, int ordinal, std::uint64_t exporter, const Exported& exported)
      REQUIRES(mutex_);
  bool is_stale(int ordinal, std::uint64_t exporter, const Exported& exported) REQUIRES(mutex_);
  void drop_stale(int ordinal, std::uint64_t exporter, const Exported& exported) REQUIRES(mutex_);
  void make_room() REQUIRES(mutex_);
  void close(Import& import) noexcept REQUIRES(mutex_);
  void retire(Imports::iterator at) REQUIRES(mutex_);

  Runtime& runtime_;
  const std::uint64_t process_;  ///< a number that no other process has
  Mutex mutex_;
  std::uint64_t clock_ GUARDED_BY(mutex_) = 0;  ///< counts uses
  std::map<std::uint64_t, Export> exports_ GUARDED_BY(mutex_);
  Imports imports_ GUARDED_BY(mutex_);
  std::vector<Import> retired_ GUARDED_BY(mutex_);  ///< out of date, but still held
  std::map<Gpus, Refusal> refused_ GUARDED_BY(mutex_);
  std::int64_t opened_ GUARDED_BY(mutex_) = 0;
};

}  // namespace gpudt::device
