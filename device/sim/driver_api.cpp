// The driver's names for virtual memory management (cuMem...), on the simulated device. Physical memory has a place
// only while it is mapped, so a handle can be mapped once, whole, and forgets its contents when it is unmapped, unless
// the handle may be a file descriptor.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <map>

#include "base/mutex.hpp"
#include "device/sim/include/cuda.h"
#include "device/sim/memory.hpp"
#include "device/sim/operations.hpp"

using gpudt::LockGuard;
using gpudt::Mutex;
using gpudt::sim::Memory;

namespace {

constexpr std::size_t granularity = std::size_t(2) << 20;

/// What cuMemCreate made.
struct Physical {
  std::size_t bytes = 0;
  int device = 0;
  gpudt::sim::Object object{};
  bool mapped = false, released = false;
};

struct Handles {
  Mutex mutex;
  std::map<CUmemGenericAllocationHandle, Physical> made GUARDED_BY(mutex);
  std::map<CUdeviceptr, CUmemGenericAllocationHandle> mapped GUARDED_BY(mutex);  // by the address
  CUmemGenericAllocationHandle next GUARDED_BY(mutex) = 1;

  /// Released memory lives until it is unmapped.
  void forget(CUmemGenericAllocationHandle handle) REQUIRES(mutex) {
    const Physical& physical = made.at(handle);
    if (!physical.released || physical.mapped) return;
    if (physical.object.file >= 0) close(physical.object.file);
    made.erase(handle);
  }
};

/// Never destroyed, like the memory.
Handles& handles() {
  static auto* instance = new Handles;
  return *instance;
}

CUresult result(cudaError_t error) {
  return static_cast<CUresult>(error);  // the errors used here have the same numbers
}

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

bool whole(std::size_t size) {
  return size > 0 && size % granularity == 0;
}

bool supported(const CUmemAllocationProp* properties) {
  return properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
          properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         gpudt::sim::usable(properties->location.id) == cudaSuccess;
}

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* size, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
  if (!size || !supported(properties)) return CUDA_ERROR_INVALID_VALUE;
  *size = granularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr, unsigned long long) {
  if (!address || !whole(size) || alignment > granularity) return CUDA_ERROR_INVALID_VALUE;
  void* reserved = nullptr;
  const cudaError_t error = Memory::instance().reserve(size, granularity, &reserved);
  if (error == cudaSuccess) *address = reinterpret_cast<CUdeviceptr>(reserved);
  return result(error);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return result(Memory::instance().unreserve(pointer(address), size));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties,
                     unsigned long long) {
  if (!handle || !whole(size) || !supported(properties)) return CUDA_ERROR_INVALID_VALUE;
  gpudt::sim::Object object;
  if (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    object.file = gpudt::sim::make_object(size, properties->location.id);
    if (object.file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Handles& all = handles();
  LockGuard lock(all.mutex);
  *handle = all.next++;
  all.made[*handle] = {size, properties->location.id, object};
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long) {
  Handles& all = handles();
  LockGuard lock(all.mutex);
  const auto at = all.made.find(handle);
  if (!shareable || at == all.made.end() || at->second.released || at->second.object.file < 0 ||
      type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  const int file = fcntl(at->second.object.file, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *static_cast<int*>(shareable) = file;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  Physical imported;
  const auto given = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  imported.device = gpudt::sim::device_of_object(given, &imported.bytes);
  if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || imported.device < 0)
    return CUDA_ERROR_INVALID_VALUE;
  imported.object = {fcntl(given, F_DUPFD_CLOEXEC, 0), /*foreign=*/true};
  if (imported.object.file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Handles& all = handles();
  LockGuard lock(all.mutex);
  *handle = all.next++;
  all.made[*handle] = imported;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Handles& all = handles();
  LockGuard lock(all.mutex);
  const auto at = all.made.find(handle);
  if (at == all.made.end() || at->second.released) return CUDA_ERROR_INVALID_VALUE;
  at->second.released = true;
  all.forget(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  Handles& all = handles();
  LockGuard lock(all.mutex);
  const auto at = all.made.find(handle);
  if (at == all.made.end() || at->second.released || offset + size > at->second.bytes) return CUDA_ERROR_INVALID_VALUE;
  Physical& physical = at->second;
  if (physical.mapped || size != physical.bytes) return CUDA_ERROR_NOT_SUPPORTED;
  const cudaError_t error = Memory::instance().map(pointer(address), size, physical.device, physical.object);
  if (error == cudaSuccess) {
    physical.mapped = true;
    all.mapped[address] = handle;
  }
  return result(error);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  Handles& all = handles();
  LockGuard lock(all.mutex);
  const cudaError_t error = Memory::instance().unmap(pointer(address), size);
  if (error != cudaSuccess) return result(error);
  for (auto at = all.mapped.lower_bound(address); at != all.mapped.end() && at->first < address + size;) {
    all.made.at(at->second).mapped = false;
    all.forget(at->second);
    at = all.mapped.erase(at);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count) {
  if (!access || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i)
    if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_NOT_SUPPORTED;
  return result(Memory::instance().allow(pointer(address), size));
}
