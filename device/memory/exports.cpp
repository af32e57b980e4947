#include "device/memory/exports.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "device/memory/in_time.hpp"

namespace gpudt::device {
namespace {

/// Allocations of which it is remembered how, or that they cannot be, exported. Those with slots stay until they are
/// freed.
constexpr std::size_t most_exports = ExportTable::slot_count + 512;
/// Allocations that are looked at when another one is exported, which takes microseconds.
constexpr std::size_t looked_at_for_each = 8;

bool overlap(const Allocation& one, const Allocation& other) {
  return one.base < other.base + other.size && other.base < one.base + one.size;
}

}  // namespace

void Exports::tell(ExportTable& table) {
  const LockGuard lock(mutex_);
  table_ = &table;
  free_slots_.clear();
  for (int slot = ExportTable::slot_count; slot-- > 0;) free_slots_.push_back(slot);
}

/// The export that holds `address`, and the `bytes` bytes from there on if there is one that does.
Exports::Allocations::iterator Exports::find(const void* address, std::uint64_t bytes) {
  const std::uint64_t id = runtime_.allocation_id(address);
  const auto at = id != 0 ? exports_.find(id) : exports_.end();
  if (at != exports_.end() || in_pieces_.empty()) return at;
  return find_pieces(reinterpret_cast<std::uintptr_t>(address), bytes);
}

bool Exports::export_memory(int ordinal, const Traits& gpu, const void* address, Exported& exported, Importers by,
                            std::uint64_t bytes) {
  const LockGuard lock(mutex_);
  auto at = find(address, bytes);
  if (at == exports_.end()) {
    Allocation allocation;
    const bool of_cuda_malloc =
        runtime_.allocation_of(address, allocation) && allocation.exportable && allocation.id != 0;
    at = of_cuda_malloc ? add(ordinal, allocation) : add_pieces(ordinal, reinterpret_cast<std::uintptr_t>(address));
    if (at == exports_.end()) return false;
  } else if (!at->second.handle && !at->second.refusal.stands()) {
    try_export(ordinal, at->second);
  }
  Export& entry = at->second;
  entry.used = ++clock_;
  if (!entry.handle || !is_mappable(entry, by)) return false;
  if (entry.slot < 0) take_slot(entry);
  Exported made = {};
  std::copy_n(entry.handle->data(), sizeof made.handle, made.handle);
  made.pieces = static_cast<std::uint32_t>(entry.pieces.size());
  made.buffer_id = entry.allocation.id;
  made.base = entry.allocation.base;
  made.size = entry.allocation.size;
  std::copy_n(gpu.id.data(), sizeof made.gpu, made.gpu);
  made.mps = gpu.mps ? 1 : 0;
  made.process = process_;
  made.slot = entry.slot;
  exported = made;
  return true;
}

std::string Exports::refused(const void* address) {
  const LockGuard lock(mutex_);
  const auto at = find(address, 1);
  return at == exports_.end() || at->second.handle ? "" : at->second.refusal.why;
}

/// Looks for what has been freed, and forgets one export if there are too many.
void Exports::make_room() {
  look(looked_at_for_each);
  if (exports_.size() < most_exports) return;
  auto oldest = exports_.end();
  for (auto at = exports_.begin(); at != exports_.end(); ++at)
    if (at->second.slot < 0 && (oldest == exports_.end() || at->second.used < oldest->second.used)) oldest = at;
  forget(oldest);  // there is one: fewer have slots
}

Exports::Allocations::iterator Exports::add(int ordinal, const Allocation& allocation) {
  forget_before(allocation);
  make_room();
  const auto made = exports_.emplace(allocation.id, Export{allocation}).first;
  const Granules granules = granules_of(allocation);
  for (const auto& each : lingering_)
    if (each->granules.overlap(granules)) made->second.before.push_back(each);
  try_export(ordinal, made->second);
  return made;
}

/// None if that takes too long.
std::optional<IpcHandle> Exports::handle_of(int ordinal, std::uint64_t base) {
  const auto made = std::make_shared<IpcHandle>();
  const auto make = [=, &runtime = runtime_] { *made = runtime.ipc_export(ordinal, reinterpret_cast<void*>(base)); };
  return in_time(make) ? std::optional(*made) : std::nullopt;
}

void Exports::try_export(int ordinal, Export& entry) {
  try {
    if (entry.pieces.empty())
      entry.handle = handle_of(ordinal, entry.allocation.base);
    else
      entry.handle = handle_of_pieces(entry.allocation.id);
  } catch (const Error& error) {
    return entry.refusal.again(error.what());
  }
  if (!entry.handle) return;
  if (free_slots_.empty()) free_slots(lingering_.size());
  take_slot(entry);
}

/// Until there is a slot, others are not told when the memory is freed.
void Exports::take_slot(Export& entry) {
  if (free_slots_.empty()) return;
  entry.slot = free_slots_.back();
  free_slots_.pop_back();
  table_->slots[entry.slot].buffer_id.store(entry.allocation.id);
}

// --- what is freed ---------------------------------------------------------------------------------------------------

void Exports::look_for_freed(std::size_t most) {
  const LockGuard lock(mutex_);
  look(most);
  free_slots(most);
}

void Exports::look(std::size_t most) {
  for (std::size_t left = std::min(most, exports_.size()); left > 0; --left) {
    auto at = exports_.upper_bound(looked_at_);
    if (at == exports_.end()) at = exports_.begin();
    looked_at_ = at->first;
    if (is_gone(at->second)) forget(at);
  }
}

/// The allocation has been freed. Returns the next one.
Exports::Allocations::iterator Exports::forget(Allocations::iterator at) {
  const Export& gone = at->second;
  if (gone.slot >= 0) {
    table_->slots[gone.slot].buffer_id.store(0);
    table_->freed.fetch_add(1);
    lingering_.push_back(std::make_shared<Lingering>(Lingering{gone.slot, granules_of(gone)}));
  }
  if (const auto piece = in_pieces_.find(gone.allocation.base); piece != in_pieces_.end() && piece->second == at->first)
    in_pieces_.erase(piece);
  return exports_.erase(at);
}

/// What was exported of the addresses that `allocation` has now, or beside them.
void Exports::forget_before(const Allocation& allocation) {
  const Granules now = granules_of(allocation);
  for (auto at = exports_.begin(); at != exports_.end();) {
    const Export& before = at->second;
    const bool gone =
        overlap(before.allocation, allocation) || (granules_of(before).overlap(now) && is_gone(at->second));
    at = gone ? forget(at) : std::next(at);
  }
}

bool Exports::is_gone(Export& entry) {
  if (!entry.pieces.empty()) return !is_there(entry.pieces[entry.piece_to_look++ % entry.pieces.size()]);
  const Allocation& allocation = entry.allocation;
  return runtime_.allocation_id(reinterpret_cast<const void*>(allocation.base)) != allocation.id;
}

/// Looks at the `most` oldest that linger. A process that maps memory counts the mapping first and then looks whether
/// the memory is still there. So when no mapping is counted once buffer_id says that it is not, nobody has it mapped,
/// or ever will.
void Exports::free_slots(std::size_t most) {
  for (std::size_t left = std::min(most, lingering_.size()); left > 0; --left) {
    const std::shared_ptr<Lingering> oldest = std::move(lingering_.front());
    lingering_.pop_front();
    if (table_->slots[oldest->slot].mapped_by(all_importers))
      lingering_.push_back(oldest);
    else
      free_slots_.push_back(std::exchange(oldest->slot, -1));
  }
}

/// The driver maps it for no process that still has memory mapped which was there before.
bool Exports::is_mappable(Export& entry, Importers by) {
  std::erase_if(entry.before, [](const auto& each) { return each->slot < 0; });
  return std::none_of(entry.before.begin(), entry.before.end(),
                      [&](const auto& each) REQUIRES(mutex_) { return table_->slots[each->slot].mapped_by(by); });
}

/// None of memory in pieces: what was at the same addresses before does not keep it from being mapped.
Exports::Granules Exports::granules_of(const Export& entry) const {
  return entry.pieces.empty() ? granules_of(entry.allocation) : Granules{0, 0};
}

Exports::Granules Exports::granules_of(const Allocation& allocation) const {
  const std::uint64_t granule = runtime_.granule();
  return {allocation.base / granule * granule, (allocation.base + allocation.size + granule - 1) / granule * granule};
}

std::size_t Exports::count() const {
  const LockGuard lock(mutex_);
  return exports_.size();
}

}  // namespace gpudt::device
