// The CUDA runtime's names of errors and devices; cuda_api.cpp has the others.
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "base/mutex.hpp"
#include "device/sim/api_calls.hpp"
#include "device/sim/sim_api.h"

namespace {

using gpudt::LockGuard;
using gpudt::Mutex;
using gpudt::sim::call;
using gpudt::sim::current_device;
using gpudt::sim::Executor;
using gpudt::sim::greatest_priority;
using gpudt::sim::last_error;
using gpudt::sim::Memory;
using gpudt::sim::note;
using gpudt::sim::usable;
using gpudt::sim::valid_device;

constexpr int multiprocessors = 8;

Mutex peers_mutex;
std::set<std::pair<int, int>>& peers() {
  static auto* enabled = new std::set<std::pair<int, int>>;
  return *enabled;
}

void fill_properties(cudaDeviceProp& properties, int device) {
  std::memset(&properties, 0, sizeof properties);
  std::snprintf(properties.name, sizeof properties.name, "gpudt simulated device");
  std::memcpy(properties.uuid.bytes, "gpudt-sim", sizeof "gpudt-sim");
  properties.uuid.bytes[sizeof properties.uuid.bytes - 1] = static_cast<char>(device);
  properties.totalGlobalMem = Memory::device_bytes;
  properties.sharedMemPerBlock = 48 << 10;
  properties.regsPerBlock = 65536;
  properties.warpSize = 32;
  properties.memPitch = 0x7fffffff;
  properties.maxThreadsPerBlock = 1024;
  for (int i = 0; i < 3; ++i) {
    properties.maxThreadsDim[i] = i < 2 ? 1024 : 64;
    properties.maxGridSize[i] = i < 1 ? 0x7fffffff : 65535;
  }
  properties.totalConstMem = 64 << 10;
  properties.major = 9;
  properties.multiProcessorCount = multiprocessors;
  properties.canMapHostMemory = 1;
  properties.concurrentKernels = 1;
  properties.pciBusID = GPUDT_SIM_FIRST_BUS + device;
  properties.asyncEngineCount = 2;
  properties.unifiedAddressing = 1;
  properties.maxThreadsPerMultiProcessor = 2048;
  properties.streamPrioritiesSupported = 1;
  properties.managedMemory = 1;
  properties.concurrentManagedAccess = 1;
  properties.mpsEnabled = gpudt::sim::mps_enabled() ? 1 : 0;
  properties.canUseHostPointerForRegisteredMem = 1;
  properties.hostRegisterSupported = 1;
  properties.memoryPoolsSupported = 1;
  properties.ipcEventSupported = 1;
}

/// The beginning of CUDA 12's cudaDeviceProp; what follows it is given as zeros.
struct Properties12 {
  char name[256];
  cudaUUID_t uuid;
  char luid[8];
  unsigned luidDeviceNodeMask;
  std::size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize;
  std::size_t memPitch;
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
  std::size_t totalConstMem;
  int major, minor;
  std::size_t textureAlignment, texturePitchAlignment;
  int deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated, canMapHostMemory, computeMode;
};
constexpr std::size_t properties12_bytes = 1032;

}  // namespace

// --- errors --------------------------------------------------------------------------------------------------------

cudaError_t cudaPeekAtLastError(void) {
  const cudaError_t sticky = valid_device(current_device) ? Executor::instance().sticky(current_device) : cudaSuccess;
  return sticky != cudaSuccess ? sticky : last_error;
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorString(cudaError_t error) {
  return gpudt::sim::error_string(error);
}
const char* cudaGetErrorName(cudaError_t error) {
  return gpudt::sim::error_name(error);
}

// --- devices -------------------------------------------------------------------------------------------------------

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version) return note(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  return cudaRuntimeGetVersion(version);
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return note(cudaErrorInvalidValue);
  *count = gpudt::sim::device_count();
  return note(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  const cudaError_t error = usable(device);
  if (error == cudaSuccess) current_device = device;
  return note(error);
}

cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
  return note(usable(device));
}

cudaError_t cudaGetDevice(int* device) {
  return call([&] {
    if (!device) return cudaErrorInvalidValue;
    *device = current_device;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDeviceFlags(unsigned int) {
  return cudaSuccess;
}

cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  if (!flags) return note(cudaErrorInvalidValue);
  *flags = cudaDeviceMapHost;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!properties) return note(cudaErrorInvalidValue);
  if (!valid_device(device)) return note(cudaErrorInvalidDevice);
  fill_properties(*properties, device);
  return cudaSuccess;
}

/// What CUDA 12's header maps cudaGetDeviceProperties to; its structure is another one.
extern "C" __attribute__((visibility("default"))) cudaError_t cudaGetDeviceProperties_v2(void* properties, int device) {
  cudaDeviceProp now;
  if (const cudaError_t error = cudaGetDeviceProperties(&now, device)) return error;
  if (!properties) return note(cudaErrorInvalidValue);
  Properties12 old = {};
  std::memcpy(old.name, now.name, sizeof old.name);
  old.uuid = now.uuid;
  old.totalGlobalMem = now.totalGlobalMem;
  old.sharedMemPerBlock = now.sharedMemPerBlock;
  old.regsPerBlock = now.regsPerBlock;
  old.warpSize = now.warpSize;
  old.memPitch = now.memPitch;
  old.maxThreadsPerBlock = now.maxThreadsPerBlock;
  std::memcpy(old.maxThreadsDim, now.maxThreadsDim, sizeof old.maxThreadsDim);
  std::memcpy(old.maxGridSize, now.maxGridSize, sizeof old.maxGridSize);
  old.totalConstMem = now.totalConstMem;
  old.major = now.major;
  old.deviceOverlap = 1;
  old.multiProcessorCount = now.multiProcessorCount;
  old.canMapHostMemory = now.canMapHostMemory;
  std::memset(properties, 0, properties12_bytes);
  std::memcpy(properties, &old, sizeof old);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!value) return note(cudaErrorInvalidValue);
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = properties.maxThreadsDim[2];
      break;
    case cudaDevAttrMaxGridDimX:
      *value = properties.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = properties.maxGridSize[1];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      break;
    case cudaDevAttrTotalConstantMemory:
      *value = static_cast<int>(properties.totalConstMem);
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrPciBusId:
      *value = properties.pciBusID;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = properties.asyncEngineCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
    case cudaDevAttrMpsEnabled:
      *value = properties.mpsEnabled;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
  return call([] {
    if (const cudaError_t error = gpudt::sim::capture_forbids_synchronizing(current_device)) return error;
    Executor::instance().wait_device(current_device);
    return Executor::instance().sticky(current_device);
  });
}

cudaError_t cudaDeviceReset(void) {
  const cudaError_t error = usable(current_device);
  if (error != cudaSuccess && error != Executor::instance().sticky(current_device)) return note(error);
  Executor& executor = Executor::instance();
  executor.wait_device(current_device);
  executor.destroy_device_streams(current_device);
  gpudt::sim::forget_streams_and_events(current_device);
  Memory::instance().release_device(current_device);
  executor.set_sticky(current_device, cudaSuccess);
  last_error = cudaSuccess;
  const LockGuard lock(peers_mutex);
  std::erase_if(peers(),
                [](const auto& pair) { return pair.first == current_device || pair.second == current_device; });
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!can) return note(cudaErrorInvalidValue);
  if (!valid_device(device) || !valid_device(peer)) return note(cudaErrorInvalidDevice);
  *can = device != peer && gpudt::sim::devices_are_peers();
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return call([&] {
    if (flags != 0) return cudaErrorInvalidValue;
    if (!valid_device(peer) || peer == current_device) return cudaErrorInvalidDevice;
    if (!gpudt::sim::devices_are_peers()) return cudaErrorPeerAccessUnsupported;
    const LockGuard lock(peers_mutex);
    return peers().insert({current_device, peer}).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return call([&] {
    const LockGuard lock(peers_mutex);
    return peers().erase({current_device, peer}) ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = greatest_priority;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (!id || length <= 0) return note(cudaErrorInvalidValue);
  if (!valid_device(device)) return note(cudaErrorInvalidDevice);
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0",
                static_cast<unsigned>(GPUDT_SIM_FIRST_BUS + device));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  unsigned domain = 0, bus = 0;
  if (!device || !id || std::sscanf(id, "%x:%x", &domain, &bus) != 2) return note(cudaErrorInvalidValue);
  const int number = static_cast<int>(bus) - GPUDT_SIM_FIRST_BUS;
  if (!valid_device(number)) return note(cudaErrorInvalidDevice);
  *device = number;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  return call([&] {
    if (!available || !total) return cudaErrorInvalidValue;
    *available = Memory::instance().available(current_device);
    *total = Memory::device_bytes;
    return cudaSuccess;
  });
}
