// What a process tells those that map its memory, in memory that it shares with them: which allocations it has exported
// are still there. They tell it which of these they have mapped.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "device/memory/mapping.hpp"

namespace gpudt::device {

/// Processes that map memory, as a set of groups: process `number` of the node is in group number % count.
struct Importers {
  static constexpr int count = 32;
  std::uint32_t groups;
  static constexpr Importers process(int number) { return {std::uint32_t{1} << group_of(number)}; }
  static constexpr int group_of(int number) { return number % count; }
  bool has(int group) const { return (groups >> group & 1U) != 0; }
  Importers& operator|=(const Importers& others) {
    groups |= others.groups;
    return *this;
  }
};
inline constexpr Importers no_importers{0}, all_importers{~std::uint32_t{0}};

struct ExportTable {
  static constexpr int slot_count = 1024;
  struct Slot {
    std::atomic<std::uint64_t> buffer_id;  ///< of the allocation; 0: none, or it has been freed
    /// Number of mappings of the allocation, by group of the processes that have them.
    std::atomic<std::uint16_t> mappings[Importers::count];
    bool mapped_by(Importers importers) const {
      for (int group = 0; group < Importers::count; ++group)
        if (importers.has(group) && mappings[group].load() != 0) return true;
      return false;
    }
  };
  alignas(64) std::atomic<std::uint64_t> freed;  ///< counts the allocations that the exporter has seen to be freed
  alignas(64) Slot slots[slot_count];
};

/// A process whose memory is mapped.
struct Exporter {
  // NOLINTNEXTLINE(google-explicit-constructor): the number alone says who it is
  Exporter(std::uint64_t its_number, ExportTable* its_table = nullptr, int its_importer = 0)
      : number(its_number), table(its_table), importer(its_importer) {}
  /// Null if the table does not have the allocation.
  ExportTable::Slot* slot_of(const Exported& exported) const {
    const bool there =
        table != nullptr && exported.buffer_id != 0 && exported.slot >= 0 && exported.slot < ExportTable::slot_count;
    return there ? &table->slots[exported.slot] : nullptr;
  }

  std::uint64_t number;  ///< the rank in MPI_COMM_WORLD
  ExportTable* table;    ///< null: it tells nothing. Stays until stop()
  int importer;          ///< the number on the node of the process that maps (Importers)
};

/// Counts a mapping in the exporter's table as long as it lives.
class CountedMapping {
 public:
  CountedMapping() = default;
  CountedMapping(const Exporter& exporter, const Exported& exported)
      : slot_(exporter.slot_of(exported)),
        group_(Importers::group_of(exporter.importer)),
        buffer_id_(exported.buffer_id) {
    if (slot_ != nullptr) slot_->mappings[group_].fetch_add(1);  // before buffer_id is read: see Exports::free_slots()
  }
  CountedMapping(CountedMapping&& other) noexcept
      : slot_(std::exchange(other.slot_, nullptr)), group_(other.group_), buffer_id_(other.buffer_id_) {}
  CountedMapping& operator=(CountedMapping&& other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(group_, other.group_);
    std::swap(buffer_id_, other.buffer_id_);
    return *this;
  }
  ~CountedMapping() {
    if (slot_ != nullptr) slot_->mappings[group_].fetch_sub(1);
  }
  /// False if the exporter's table had no slot for the memory.
  explicit operator bool() const { return slot_ != nullptr; }
  /// Whether the exporter has freed the memory.
  bool freed() const { return slot_ != nullptr && slot_->buffer_id.load() != buffer_id_; }

 private:
  ExportTable::Slot* slot_ = nullptr;
  int group_ = 0;
  std::uint64_t buffer_id_ = 0;
};

}  // namespace gpudt::device
