// Driver entry points without an equivalent in the CUDA runtime: pointer queries and saving the current context must
// not create a context; operations on memory in streams; memory of cuMemCreate; and cuDeviceGetUuid, since
// cudaGetDeviceProperties is slow.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>

namespace gpudt::device::cuda {

struct Driver {
  CUresult (*pointer_get_attributes)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);
  CUresult (*ctx_get_current)(CUcontext*);
  CUresult (*ctx_set_current)(CUcontext);
  CUresult (*stream_write_value32)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  CUresult (*stream_batch_mem_op)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);
  CUresult (*stream_get_ctx)(CUstream, CUcontext*);
  CUresult (*ctx_get_device)(CUdevice*);
  CUresult (*device_get_uuid)(CUuuid*, CUdevice);
  CUresult (*module_get_loading_mode)(CUmoduleLoadingMode*);
  CUresult (*mem_retain_allocation_handle)(CUmemGenericAllocationHandle*, void*);
  CUresult (*mem_export_to_shareable_handle)(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                             unsigned long long);
  CUresult (*mem_import_from_shareable_handle)(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType);
  CUresult (*mem_release)(CUmemGenericAllocationHandle);
  CUresult (*mem_address_reserve)(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long);
  CUresult (*mem_address_free)(CUdeviceptr, std::size_t);
  CUresult (*mem_map)(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*mem_unmap)(CUdeviceptr, std::size_t);
  CUresult (*mem_set_access)(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t);
};

/// Loads libcuda.so.1 (and keeps it loaded); nullptr, and in `why` the reason and its remedy, if it is not there
/// or lacks an entry point. Calls nothing in it.
std::unique_ptr<const Driver> load_driver(std::string& why);

}  // namespace gpudt::device::cuda
