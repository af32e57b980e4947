#include "device/cuda/driver.hpp"

#include <dlfcn.h>

namespace gpudt::device::cuda {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

std::unique_ptr<const Driver> load_driver(std::string& why) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why = "there is no CUDA driver here (libcuda.so.1). On a machine without a GPU use gpudt-run --sim";
    return nullptr;
  }
  auto driver = std::make_unique<Driver>();
  const bool complete = find(library, "cuPointerGetAttributes", driver->pointer_get_attributes) &&
                        find(library, "cuCtxGetCurrent", driver->ctx_get_current) &&
                        find(library, "cuCtxSetCurrent", driver->ctx_set_current) &&
                        find(library, "cuStreamWriteValue32_v2", driver->stream_write_value32) &&
                        find(library, "cuStreamBatchMemOp_v2", driver->stream_batch_mem_op) &&
                        find(library, "cuStreamGetCtx", driver->stream_get_ctx) &&
                        find(library, "cuCtxGetDevice", driver->ctx_get_device) &&
                        find(library, "cuDeviceGetUuid_v2", driver->device_get_uuid) &&
                        find(library, "cuModuleGetLoadingMode", driver->module_get_loading_mode) &&
                        find(library, "cuMemRetainAllocationHandle", driver->mem_retain_allocation_handle) &&
                        find(library, "cuMemExportToShareableHandle", driver->mem_export_to_shareable_handle) &&
                        find(library, "cuMemImportFromShareableHandle", driver->mem_import_from_shareable_handle) &&
                        find(library, "cuMemRelease", driver->mem_release) &&
                        find(library, "cuMemAddressReserve", driver->mem_address_reserve) &&
                        find(library, "cuMemAddressFree", driver->mem_address_free) &&
                        find(library, "cuMemMap", driver->mem_map) && find(library, "cuMemUnmap", driver->mem_unmap) &&
                        find(library, "cuMemSetAccess", driver->mem_set_access);
  if (!complete) {
    why = "the CUDA driver (libcuda.so.1) is too old; gpudt needs that of CUDA 12 or later";
    dlclose(library);
    return nullptr;
  }
  return driver;
}

}  // namespace gpudt::device::cuda
