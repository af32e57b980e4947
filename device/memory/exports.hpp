// The memory that this process has exported to others. What it frees is told in the table, so that they unmap it:
// before that the driver neither gives the memory back nor maps another allocation of these addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/backoff.hpp"
#include "base/mutex.hpp"
#include "device/memory/export_table.hpp"
#include "device/memory/handle_server.hpp"
#include "device/memory/mapping.hpp"
#include "device/runtime/runtime.hpp"

namespace gpudt::device {

/// What the runtime has refused. It may have been for want of something that is there later: so it is asked again,
/// after twice as many questions each time.
struct Refusal {
  std::string why;
  Backoff<32, 4096> asking{};
  /// Whether the refusal still stands, so that the runtime is not asked again yet.
  bool stands() { return asking.passes(); }
  void again(const char* reason) {
    why = reason;
    asking.failed();
  }
};

/// Thread-safe.
class Exports {
 public:
  Exports(Runtime& runtime, std::uint64_t process) : runtime_(runtime), process_(process) {}
  Exports(const Exports&) = delete;
  Exports& operator=(const Exports&) = delete;

  /// See device::tell_exports().
  void tell(ExportTable& table);
  /// See device::export_memory().
  bool export_memory(int ordinal, const Traits& gpu, const void* address, Exported& exported, Importers by,
                     std::uint64_t bytes = 1);
  /// Why the memory at `address` was not exported; empty if it was not refused.
  std::string refused(const void* address);
  /// Looks whether the next `most` allocations are still there, and whether others have unmapped what is not.
  void look_for_freed(std::size_t most);
  std::size_t count() const;

 private:
  /// Addresses in whole granules. The driver takes several short allocations from one granule, and maps it as a whole.
  struct Granules {
    std::uint64_t begin, end;
    bool overlap(const Granules& other) const { return begin < other.end && other.begin < end; }
  };
  /// Freed memory that others may still have mapped.
  struct Lingering {
    int slot;  ///< negative: nobody has it mapped any more
    Granules granules;
  };
  struct Export {
    Allocation allocation;
    std::optional<IpcHandle> handle{};  ///< none: it cannot be exported, as far as is known
    int slot = -1;                      ///< in the table; negative: none
    /// What was at these addresses before. What is freed beside it in one granule later does no harm: the granule is
    /// the same memory.
    std::vector<std::shared_ptr<const Lingering>> before{};
    std::uint64_t used = 0;
    Refusal refusal{};
    std::vector<Piece> pieces{};    ///< one behind the other; none: an allocation of cudaMalloc
    std::size_t piece_to_look = 0;  ///< which one is_gone() looks at next
    /// Whether all of [first, end) is in it.
    bool holds(std::uint64_t first, std::uint64_t end) const {
      return first >= allocation.base && end <= allocation.base + allocation.size;
    }
  };
  using Allocations = std::map<std::uint64_t, Export>;  ///< by id, for memory in pieces one of our own

  Allocations::iterator find(const void* address, std::uint64_t bytes) REQUIRES(mutex_);
  Allocations::iterator add(int ordinal, const Allocation& allocation) REQUIRES(mutex_);
  void make_room() REQUIRES(mutex_);
  std::optional<IpcHandle> handle_of(int ordinal, std::uint64_t base);
  void try_export(int ordinal, Export& entry) REQUIRES(mutex_);
  void look(std::size_t most) REQUIRES(mutex_);
  Allocations::iterator forget(Allocations::iterator at) REQUIRES(mutex_);
  bool is_gone(Export& entry);
  void forget_before(const Allocation& allocation) REQUIRES(mutex_);
  void free_slots(std::size_t most) REQUIRES(mutex_);
  void take_slot(Export& entry) REQUIRES(mutex_);
  bool is_mappable(Export& entry, Importers by) REQUIRES(mutex_);
  Granules granules_of(const Export& entry) const;
  Granules granules_of(const Allocation& allocation) const;

  // Memory in pieces (shared_exports.cpp).
  Allocations::iterator find_pieces(std::uint64_t first, std::uint64_t bytes) REQUIRES(mutex_);
  Allocations::iterator add_pieces(int ordinal, std::uint64_t first) REQUIRES(mutex_);
  bool is_there(const Piece& piece);
  bool are_there(const Export& entry, std::uint64_t first, std::uint64_t end);
  bool is_too_short(const Export& entry, std::uint64_t first, std::uint64_t end);
  IpcHandle handle_of_pieces(std::uint64_t id) REQUIRES(mutex_);
  std::vector<PassedPiece> pass(std::uint64_t id) EXCLUDES(mutex_);

  Runtime& runtime_;
  const std::uint64_t process_;
  mutable Mutex mutex_;
  std::uint64_t clock_ GUARDED_BY(mutex_) = 0;  ///< counts uses
  Allocations exports_ GUARDED_BY(mutex_);
  std::uint64_t looked_at_ GUARDED_BY(mutex_) = 0;  ///< the id up to which look() has come
  ExportTable* table_ GUARDED_BY(mutex_) = nullptr;
  std::vector<int> free_slots_ GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Lingering>> lingering_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> in_pieces_ GUARDED_BY(mutex_);  ///< base -> id of the latest
  std::uint64_t made_in_pieces_ GUARDED_BY(mutex_) = 0;
  std::unique_ptr<HandleServer> server_;  ///< made at the first need, with mutex_ held; ends before the rest goes
};

}  // namespace gpudt::device
