// Contexts, and memory: of this process and of others.
#include "device/cuda/runtime.hpp"

#include <cctype>
#include <cstring>
#include <optional>

#include "device/cuda/kernels.hpp"
#include "device/cuda/make_runtime.hpp"

namespace gpudt::device {

/// The context that is used on a GPU: that of the first memory seen on this GPU, since kernels of one context wait for
/// those of others, else the primary one. The first call loads the kernels.
CUcontext CudaRuntime::context(int ordinal) {
  if (ordinal < 0 || ordinal >= most_gpus) fail(cudaErrorInvalidDevice, "select a GPU");
  auto& known = contexts_[static_cast<std::size_t>(ordinal)];
  if (const CUcontext context = known.load(std::memory_order_acquire)) return context;
  LockGuard lock(preparing_);
  if (const CUcontext context = known.load(std::memory_order_acquire)) return context;
  CUcontext caller = nullptr;
  driver_->ctx_get_current(&caller);
  const CUcontext of_memory = seen_[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
  cudaError_t error = cudaSuccess;
  if (of_memory == nullptr || driver_->ctx_set_current(of_memory) != CUDA_SUCCESS) error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) {
    const Relaxed relaxed;
    error = cudaFree(nullptr);  // creates the context where cudaSetDevice does not
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_kernels());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_transfer_kernels());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_batch_kernel());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_resident_kernel());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_reduce_kernels());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_copy_blocks_kernel());
  }
  CUcontext context = nullptr;
  driver_->ctx_get_current(&context);
  driver_->ctx_set_current(caller);
  check(error, "select a GPU and load the kernels");
  known.store(context, std::memory_order_release);
  return context;
}

void CudaRuntime::forget(int ordinal) noexcept {
  contexts_[static_cast<std::size_t>(ordinal)].store(nullptr);
  seen_[static_cast<std::size_t>(ordinal)].store(nullptr);
}

Location CudaRuntime::classify(const void* address) noexcept {
  // One query for several attributes, which returns zeros for pageable memory: a query for a single attribute fails
  // there, and a failure takes the driver several times as long.
  unsigned type = 0, managed = 0;
  unsigned long long id = 0;
  int ordinal = -1;
  CUcontext context = nullptr;  // null for memory of no context, such as a pool's
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_CONTEXT,
                                      CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&type, &managed, &ordinal, static_cast<void*>(&context), &id};
  // An uninitialised driver answers with an error: then there is no device memory.
  if (driver_->pointer_get_attributes(5, attributes, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS ||
      type == 0)
    return {};
  if (type == CU_MEMORYTYPE_HOST && managed == 0) return {MemoryKind::pinned, -1};
  if (ordinal < 0) return {};
  if (context != nullptr && ordinal < most_gpus) note_context(ordinal, context);
  return {managed != 0 ? MemoryKind::managed : MemoryKind::device, ordinal, id};
}

void CudaRuntime::note_context(int ordinal, CUcontext context) noexcept {
  auto& seen = seen_[static_cast<std::size_t>(ordinal)];
  CUcontext none = nullptr;
  if (seen.load(std::memory_order_relaxed) == nullptr) seen.compare_exchange_strong(none, context);
}

namespace {

bool is_served_by_mps(int ordinal) noexcept {
  constexpr auto mps_enabled = static_cast<cudaDeviceAttr>(133);  // cudaDevAttrMpsEnabled, unknown to early CUDA 12
  int enabled = 0;
  if (cudaDeviceGetAttribute(&enabled, mps_enabled, ordinal) == cudaSuccess) return enabled != 0;
  cudaGetLastError();
  return false;
}

}  // namespace

Traits CudaRuntime::traits(int ordinal) {
  const Current current(*this, ordinal);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  return {properties.multiProcessorCount, properties.name, id_of(ordinal), 10 * properties.major + properties.minor,
          is_served_by_mps(ordinal)};
}

/// All zeros, which is no GPU's id, if the driver's query fails.
GpuId CudaRuntime::id_of(int ordinal) const noexcept {
  CUuuid uuid = {};
  GpuId id = {};
  static_assert(sizeof uuid == sizeof id);
  if (driver_->device_get_uuid(&uuid, ordinal) == CUDA_SUCCESS) std::memcpy(id.data(), &uuid, sizeof id);
  return id;
}

namespace {

int count_gpus() noexcept {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess) cudaGetLastError();
  return gpus;
}

/// As sysfs names it, in lower case.
std::string pci_address(int ordinal) {
  char address[32] = "";
  if (cudaDeviceGetPCIBusId(address, sizeof address, ordinal) != cudaSuccess) cudaGetLastError();
  for (char& c : address) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return address;
}

}  // namespace

int CudaRuntime::find_gpu(const GpuId& id) noexcept {
  const int gpus = count_gpus();
  for (int ordinal = 0; ordinal < gpus; ++ordinal)
    if (id_of(ordinal) == id && id != GpuId{}) return ordinal;
  return -1;
}

std::vector<VisibleGpu> CudaRuntime::visible_gpus() {
  std::vector<VisibleGpu> visible;
  const int gpus = count_gpus();
  visible.reserve(static_cast<std::size_t>(gpus));
  for (int ordinal = 0; ordinal < gpus; ++ordinal) visible.push_back({id_of(ordinal), pci_address(ordinal)});
  return visible;
}

bool CudaRuntime::allocation_of(const void* address, Allocation& allocation) noexcept {
  unsigned type = 0, managed = 0;
  unsigned long long id = 0, exportable = 0;  // the latter is a bool, of a size that is not documented
  CUdeviceptr base = 0;
  std::size_t size = 0;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_BUFFER_ID,   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void* values[] = {&type, &managed, &id, &base, &size, &exportable};
  if (driver_->pointer_get_attributes(6, attributes, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS ||
      type != CU_MEMORYTYPE_DEVICE || base == 0)
    return false;
  allocation = {id, base, size, exportable != 0 && managed == 0};
  return true;
}

std::uint64_t CudaRuntime::allocation_id(const void* address) noexcept {
  unsigned long long id = 0;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_BUFFER_ID;
  void* values[] = {&id};
  const CUresult got = driver_->pointer_get_attributes(1, &attribute, values, reinterpret_cast<CUdeviceptr>(address));
  return got == CUDA_SUCCESS ? id : 0;
}

bool CudaRuntime::in_use() noexcept {
  unsigned type = 0;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* values[] = {&type};
  const CUresult got = driver_->pointer_get_attributes(1, &attribute, values, reinterpret_cast<CUdeviceptr>(&type));
  return got != CUDA_ERROR_NOT_INITIALIZED;
}

bool CudaRuntime::loads_lazily() noexcept {
  CUmoduleLoadingMode mode{};
  return driver_->module_get_loading_mode(&mode) == CUDA_SUCCESS && mode == CU_MODULE_LAZY_LOADING;
}

bool CudaRuntime::can_access_peer(int ordinal, int peer) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, ordinal, peer), "cudaDeviceCanAccessPeer");
  return can != 0;
}

void CudaRuntime::enable_peer_access(int ordinal, int peer) {
  const Current current(*this, ordinal);
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) return check(error, "cudaDeviceEnablePeerAccess");
  cudaGetLastError();
}

IpcHandle CudaRuntime::ipc_export(int ordinal, void* base) {
  const Current current(*this, ordinal);
  cudaIpcMemHandle_t made;
  check(cudaIpcGetMemHandle(&made, base), "cudaIpcGetMemHandle");
  IpcHandle handle;
  static_assert(sizeof made == sizeof handle);
  std::memcpy(handle.data(), &made, sizeof handle);
  return handle;
}

void* CudaRuntime::ipc_open(int ordinal, const IpcHandle& handle) {
  const Current current(*this, ordinal);
  cudaIpcMemHandle_t given;
  std::memcpy(&given, handle.data(), sizeof given);
  void* address = nullptr;
  check(cudaIpcOpenMemHandle(&address, given, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  return address;
}

void CudaRuntime::ipc_close(int ordinal, void* address) noexcept try {
  const Current current(*this, ordinal);
  check(cudaIpcCloseMemHandle(address), "cudaIpcCloseMemHandle");
} catch (const std::exception&) {
  // The memory stays mapped.
}

/// Not cudaHostAlloc, whose memory is freed when the context ends.
void* CudaRuntime::mapped_alloc(int ordinal, std::size_t bytes) {
  void* const address = host_pages_.allocate(bytes);
  try {
    if (host_register(ordinal, address, bytes)) return address;
  } catch (const Error&) {
    host_pages_.free(address);
    throw;
  }
  host_pages_.free(address);
  throw Error(Failure::out_of_memory,
              "cudaHostRegister: " + std::to_string(bytes) + " bytes of host memory cannot be mapped into the GPUs");
}

void CudaRuntime::mapped_free(int ordinal, void* address) noexcept {
  host_unregister(ordinal, address);
  host_pages_.free(address);
}

bool CudaRuntime::host_register(int ordinal, void* address, std::size_t bytes) {
  const Current current(*this, ordinal);
  void* seen = nullptr;  // the address for the GPU
  if (cudaHostRegister(address, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable) == cudaSuccess) {
    if (cudaHostGetDevicePointer(&seen, address, 0) == cudaSuccess && seen == address) return true;
    cudaHostUnregister(address);
  }
  cudaGetLastError();
  return false;
}

/// Nothing is to be done if the context has ended: that has unregistered the memory.
void CudaRuntime::host_unregister(int ordinal, void* address) noexcept try {
  if (contexts_[static_cast<std::size_t>(ordinal)].load() == nullptr) return;
  const Current current(*this, ordinal);
  check(cudaHostUnregister(address), "cudaHostUnregister");
} catch (const std::exception&) {
  // The memory stays registered.
}

/// A piece is known by where it begins: pinned memory need not have a buffer id. If the driver does not tell, it
/// refuses copies that reach beyond a piece.
bool CudaRuntime::is_pinned(int ordinal, const void* first, const void* last) {
  const auto begin_of = [&](const void* address) -> std::optional<CUdeviceptr> {
    unsigned type = 0, managed = 0;
    CUdeviceptr begin = 0;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
    void* values[] = {&type, &managed, &begin};
    const CUresult got = driver_->pointer_get_attributes(3, attributes, values, reinterpret_cast<CUdeviceptr>(address));
    if (got != CUDA_SUCCESS || type != CU_MEMORYTYPE_HOST || managed != 0) return std::nullopt;
    return begin;
  };
  const std::optional<CUdeviceptr> begin = begin_of(first);
  if (!begin || begin_of(last) != begin) return false;
  const Current current(*this, ordinal);  // whose access the driver tells
  unsigned access = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
  void* values[] = {&access};
  return driver_->pointer_get_attributes(1, &attribute, values, reinterpret_cast<CUdeviceptr>(first)) == CUDA_SUCCESS &&
         access != CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ;
}

void* CudaRuntime::device_alloc(int ordinal, std::size_t bytes) {
  const Current current(*this, ordinal);
  void* address = nullptr;
  check(cudaMalloc(&address, bytes), "cudaMalloc");
  return address;
}

void CudaRuntime::device_free(int ordinal, void* address) noexcept try {
  const Current current(*this, ordinal);
  check(cudaFree(address), "cudaFree");
} catch (const std::exception&) {
  // The memory stays allocated.
}

std::unique_ptr<Runtime> make_cuda_runtime(std::string* why) {
  std::string obstacle;
  auto driver = cuda::load_driver(why ? *why : obstacle);
  if (!driver) return nullptr;
  return std::make_unique<CudaRuntime>(std::move(driver));
}

}  // namespace gpudt::device
