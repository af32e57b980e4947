// Two Peers play two processes, over a runtime that counts.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "device/memory/gates.hpp"
#include "device/memory/peer.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/stub_runtime.hpp"

namespace gpudt::test {

using namespace gpudt::device;

inline constexpr std::uint64_t page = 4096;
inline constexpr std::uint64_t stub_granule = 4096;  ///< StubRuntime's
inline Traits with_id(const GpuId& id) {
  Traits made;
  made.id = id;
  return made;
}
inline const Traits gpu = with_id({7}), far_gpu = with_id({8});

/// Allocations are what the test says; a handle opens at an address of its own.
class PeerRuntime final : public StubRuntime {
 public:
  Location classify(const void* address) noexcept override {
    return holder(address) != allocations.end() ? Location{MemoryKind::device, 1} : Location{};
  }
  bool allocation_of(const void* address, Allocation& allocation) noexcept override {
    const auto at = holder(address);
    if (at == allocations.end()) return false;
    allocation = at->second;
    return true;
  }
  int find_gpu(const GpuId& id) noexcept override { return id == far_gpu.id ? 3 : id == gpu.id ? 1 : -1; }
  bool default_stream_idle(int, bool) override { return !busy; }
  bool can_access_peer(int, int peer) override { return peer != 3; }
  void enable_peer_access(int, int peer) override { enabled.insert(peer); }
  IpcHandle ipc_export(int, void* base) override {
    ++exports;
    if (refuse) throw Error(Failure::runtime, "no handle");
    IpcHandle handle = {};
    const Allocation& allocation = allocations.at(reinterpret_cast<std::uint64_t>(base));
    std::memcpy(handle.data(), &allocation.id, sizeof allocation.id);
    return handle;
  }
  void* ipc_open(int, const IpcHandle&) override {
    for (; launching; std::this_thread::yield()) waits = true;
    ++opens;
    if (refuse) throw Error(Failure::runtime, "will not open");
    next += 1 << 20;
    open.insert(reinterpret_cast<void*>(next));
    return reinterpret_cast<void*>(next);
  }
  /// Wrong while gates may be taken, since it waits for streams.
  void ipc_close(int, void* address) noexcept override {
    wrong += open.erase(address) == 1 ? 0 : 1;
    if (!Gates::taking.try_lock()) return;
    Gates::taking.unlock();
    ++wrong;
  }

  bool piece_of(const void* address, Piece& piece) noexcept override {
    const auto at = pieces.upper_bound(reinterpret_cast<std::uint64_t>(address));
    if (at == pieces.begin() ||
        reinterpret_cast<std::uint64_t>(address) >= std::prev(at)->second.base + std::prev(at)->second.size)
      return false;
    piece = std::prev(at)->second;
    return true;
  }
  int share_piece(int, std::uint64_t base) override {
    if (refuse) throw Error(Failure::runtime, "no handle");
    shared.push_back(base);
    return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  void* map_pieces(int, std::span<const SharedPiece> given) override {
    for (const SharedPiece& each : given) wrong += fcntl(each.file, F_GETFD) < 0 ? 1 : 0;
    return ipc_open(0, {});
  }
  void unmap_pieces(int, void* address, std::uint64_t) noexcept override { ipc_close(0, address); }

  void map_piece(std::uint64_t base, std::uint64_t size, int ordinal = 1) {
    pieces[base] = {++last_id, base, size, ordinal};
  }
  void allocate(std::uint64_t base, std::uint64_t size, bool exportable = true) {
    allocations[base] = {++last_id, base, size, exportable};
  }

  std::map<std::uint64_t, Allocation> allocations;
  std::map<std::uint64_t, Piece> pieces;
  std::vector<std::uint64_t> shared;  ///< the addresses of the pieces
  std::set<int> enabled;
  std::set<void*> open;
  int exports = 0, opens = 0, wrong = 0;
  bool refuse = false, busy = false;
  std::atomic<bool> launching{false};  ///< memory is mapped only afterwards
  std::atomic<bool> waits{false};      ///< a mapping has waited for that

 private:
  std::map<std::uint64_t, Allocation>::const_iterator holder(const void* given) const {
    const auto address = reinterpret_cast<std::uint64_t>(given);
    auto at = allocations.upper_bound(address);
    if (at == allocations.begin()) return allocations.end();
    --at;
    return address - at->first < at->second.size ? at : allocations.end();
  }
  std::uint64_t last_id = 0;
  std::uintptr_t next = std::uintptr_t{1} << 40;
};

/// One process that exports and one that imports.
struct Pair {
  PeerRuntime theirs, ours;
  Peers exporter{theirs}, importer{ours};

  Exported exported(std::uint64_t address, const Traits& from = gpu) {
    Exported made = {};
    REQUIRE(exporter.export_memory(0, from, reinterpret_cast<void*>(address), made));
    return made;
  }
  Mapping map(const Exported& given, std::uint64_t who = 5) {
    std::string why;
    Mapping mapping = importer.import_memory(0, who, given, &why);
    INFO(why);
    REQUIRE(mapping);
    return mapping;
  }
};

struct Table {
  std::unique_ptr<ExportTable> table = std::make_unique<ExportTable>();
};
/// A pair whose exporter tells in a table what it has freed.
struct Telling : Table, Pair {
  Telling() { exporter.exports().tell(*table); }
  Mapping import(const Exported& given, std::string* why = nullptr) {
    return importer.import_memory(0, {5, table.get()}, given, why);
  }
  /// What both processes do while they are inside MPI.
  void poll() {
    exporter.exports().look_for_freed(2);
    importer.unmap_freed();
  }
};

}  // namespace gpudt::test
