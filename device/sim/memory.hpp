// The simulated device's memory: one sparse memory object (memfd) per process, mapped twice. The first mapping holds
// the addresses that the program sees; device memory is PROT_NONE there, so that a host access faults. The second, the
// alias, lies at a fixed distance and is what kernels and copies use. Allocations are separated by inaccessible pages
// and end at one (to 256 bytes), so an access out of bounds faults as well.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "device/sim/include/cuda_runtime_api.h"
#include "device/sim/openings.hpp"
#include "device/sim/zone.hpp"

namespace gpudt::sim {

constexpr std::size_t page = 4096;  ///< bytes

constexpr std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

enum class Kind : int { host = 0, pinned = 1, device = 2, managed = 3 };  // cudaMemoryType

/// The memory object of a handle that may be a file descriptor.
struct Object {
  int file = -1;         ///< -1: the memory has none of its own. Open while the memory is mapped, unless `foreign`
  bool foreign = false;  ///< made by another process, or imported
};

/// What is behind the memory in such an object, shared by all processes that map it.
struct ObjectTail;

struct Block {
  std::size_t region = 0;        ///< offset in the arena of its accessible pages
  std::size_t region_bytes = 0;  ///< their size
  std::size_t bytes = 0;         ///< as requested
  std::size_t in_file = 0;       ///< offset of the region in the memory object, whether ours or another process's
  Kind kind = Kind::host;
  int device = -1;
  std::uint64_t id = 0;     ///< unique in the process, as CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool exportable = false;  ///< memory from cudaMalloc
  bool reserved = false;    ///< mapped into addresses that were reserved before
  Object object;
  ObjectTail* tail = nullptr;  ///< of the object
  unsigned flags = 0;          ///< of cudaHostAlloc
  std::string opened_from;     ///< the handle it was opened with, and opened_for; empty: our own memory
  int opened_for = -1;         ///< the device that reaches it there
  int openings = 0;
  OpeningIndex exported = -1;  ///< what counts other processes' openings of it
};

struct Lookup {
  Kind kind = Kind::host;
  int device = -1;
  char* begin = nullptr;
  std::size_t bytes = 0;
  unsigned flags = 0;
  std::uint64_t id = 0;
  bool exportable = false;
};

class Memory {
 public:
  /// Made at the first call, never destroyed: worker threads may outlive main().
  static Memory& instance();
  /// The instance, if there is one already.
  static Memory* existing();

  cudaError_t allocate(Kind kind, int device, std::size_t bytes, void** address, bool exportable = false,
                       unsigned flags = 0);
  /// `address` must be what allocate() returned, of device or managed memory (`pinned` false) or pinned (true).
  cudaError_t release(void* address, bool pinned);
  void release_device(int device);  ///< everything of this device, and what has been opened for it

  // Virtual memory management. Sizes are whole pages; a range is one or several neighbouring mappings.
  cudaError_t reserve(std::size_t bytes, std::size_t alignment, void** address);
  cudaError_t unreserve(void* address, std::size_t bytes);  ///< nothing may be mapped there
  cudaError_t map(void* address, std::size_t bytes, int device, const Object& object);
  cudaError_t allow(void* address, std::size_t bytes);  ///< before this, the device cannot reach what is mapped
  cudaError_t unmap(void* address, std::size_t bytes);
  /// Reserves addresses, and maps objects there, one behind the other, of which each has the size given.
  cudaError_t map_objects(std::size_t count, const int* files, const std::size_t* sizes, void** address);
  /// The mapping of a handle that may be a file descriptor, `file`; false if there is none of this process at
  /// `address`.
  bool piece(const void* address, Lookup& found, int& file) const;

  cudaError_t register_host(void* address, std::size_t bytes, int device, unsigned flags);
  cudaError_t unregister_host(void* address);

  Lookup find(const void* address) const;
  bool in_arena(const void* address) const {
    return static_cast<std::size_t>(static_cast<const char*>(address) - user_) < size_;
  }
  /// Where worker threads reach this memory: the alias of device memory, freed or not, otherwise the address itself.
  char* alias(const void* address) const {
    char* plain = static_cast<char*>(const_cast<void*>(address));
    return in_device_zone(address) ? plain + alias_distance() : plain;
  }
  /// Whether `address` lies where only device memory does, freed or not.
  bool in_device_zone(const void* address) const {
    return static_cast<std::size_t>(static_cast<const char*>(address) - device_begin()) < device_zone_bytes();
  }
  const char* device_begin() const { return user_ + host_zone_bytes; }
  std::size_t device_zone_bytes() const { return size_ ? size_ - host_zone_bytes : 0; }
  std::ptrdiff_t alias_distance() const { return alias_ - user_; }
  /// Whether [address, address + bytes) lies in one allocation, or in neighbouring mappings, or wholly in memory that
  /// is not ours.
  bool range_valid(const void* address, std::size_t bytes) const;

  /// Without what has been freed while other processes have it open, as in CUDA.
  std::size_t available(int device);

  cudaError_t export_handle(const void* address, cudaIpcMemHandle_t* handle);
  /// Opens the memory for `device`, as CUDA does for the current context. Refused while an earlier allocation of these
  /// addresses is open.
  cudaError_t open_handle(const cudaIpcMemHandle_t& handle, int device, int devices, void** address);
  cudaError_t close_handle(void* address);

  static constexpr std::size_t device_bytes = std::size_t(64) << 30;     ///< of one device
  static constexpr std::size_t host_zone_bytes = std::size_t(64) << 30;  ///< addresses for pinned and managed memory

 private:
  Memory();
  using Blocks = std::map<std::size_t, Block>;  // by the offset of the first byte
  std::size_t offset_of(const void* address) const {
    return static_cast<std::size_t>(static_cast<const char*>(address) - user_);
  }
  Blocks::const_iterator containing(const void* address) const REQUIRES_SHARED(mutex_);
  /// The mappings that make up exactly this range, as [first, last); empty if there are none.
  std::pair<Blocks::iterator, Blocks::iterator> mappings(void* address, std::size_t bytes) REQUIRES(mutex_);
  cudaError_t place(Block block, int file, void** address) REQUIRES(mutex_);
  bool find_in_file(Block& block) REQUIRES(mutex_);
  void free_in_file(std::size_t in_file, std::size_t bytes) REQUIRES(mutex_);
  void give_back_closed() REQUIRES(mutex_);
  void remove(Blocks::iterator at) REQUIRES(mutex_);
  void count_in(const Block& block) REQUIRES(mutex_);
  bool count_out(const Block& block) REQUIRES(mutex_);
  void count_out_object(const Block& block) REQUIRES(mutex_);
  void give_back_objects() REQUIRES(mutex_);
  Zone& zone(Kind kind) REQUIRES(mutex_);
  bool protect(const Block& block, bool accessible);
  bool has_older_open(const cudaIpcMemHandle_t& handle, int device) const REQUIRES(mutex_);
  bool map_file(std::size_t region, std::size_t bytes, int file, std::size_t file_offset);

  struct Registered {
    std::size_t bytes;
    int device;
    unsigned flags;
  };

  bool host_access_ = false;
  int file_ = -1;
  std::size_t size_ = 0;
  char* user_ = nullptr;
  char* alias_ = nullptr;
  mutable SharedMutex mutex_;
  Blocks blocks_ GUARDED_BY(mutex_);
  Zone host_zone_ GUARDED_BY(mutex_), device_zone_ GUARDED_BY(mutex_);
  /// Offsets in the memory object for allocations at addresses of older ones that other processes have open.
  Zone other_offsets_ GUARDED_BY(mutex_);
  std::map<std::size_t, std::size_t> reserved_ GUARDED_BY(mutex_);  // ranges of addresses: offset -> bytes
  std::map<const char*, Registered> registered_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> registered_count_{0};
  std::map<int, std::size_t> used_ GUARDED_BY(mutex_);  // by device; -1: pinned
  std::map<std::string, std::size_t> opened_ GUARDED_BY(mutex_);
  /// Objects of this process that it has unmapped while others have them mapped: the devices still have less memory.
  std::vector<Block> lingering_objects_ GUARDED_BY(mutex_);
  OwnOpenings own_openings_ GUARDED_BY(mutex_);
  OthersOpenings others_openings_ GUARDED_BY(mutex_);
  std::uint64_t next_id_ GUARDED_BY(mutex_) = 1;
};

/// Makes the memory object of a handle that may be a file descriptor; -1 if that is impossible.
int make_object(std::size_t bytes, int device);
/// The device whose memory the object is, and its size; negative if the file is no such object.
int device_of_object(int file, std::size_t* bytes);

/// The number of devices: GPUDT_SIM_DEVICES, 0 to 16, by default 2.
int device_count();

/// Whether the devices reach each other's memory: unless GPUDT_SIM_PEERS is 0.
bool devices_are_peers();

/// Whether the devices say that CUDA MPS serves the process: if GPUDT_SIM_MPS is 1.
bool mps_enabled();

}  // namespace gpudt::sim
