// Compares the simulated device's cuda_runtime_api.h and cuda.h with the toolkit's: compiling it is the check. Macros
// are compared by the preprocessor, which rejects a second definition that is not the same.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#if CUDART_VERSION >= 13000
#define TOOLKIT_HAS_PROPERTIES_OF_13
#endif
#undef CUDART_VERSION  // the one thing that may differ

namespace sim_abi {
#define GPUDT_SIM_TYPES_ONLY
#include "device/sim/include/cuda.h"
#include "device/sim/include/cuda_runtime_api.h"
}  // namespace sim_abi

#define SAME_VALUE(name) static_assert(static_cast<int>(sim_abi::name) == static_cast<int>(::name))
#define SAME_SIZE(type) static_assert(sizeof(sim_abi::type) == sizeof(::type))
#define SAME_PLACE(type, member) static_assert(offsetof(sim_abi::type, member) == offsetof(::type, member))

SAME_VALUE(cudaSuccess);
SAME_VALUE(cudaErrorInvalidValue);
SAME_VALUE(cudaErrorMemoryAllocation);
SAME_VALUE(cudaErrorInitializationError);
SAME_VALUE(cudaErrorInvalidPitchValue);
SAME_VALUE(cudaErrorInvalidMemcpyDirection);
SAME_VALUE(cudaErrorInsufficientDriver);
SAME_VALUE(cudaErrorNoDevice);
SAME_VALUE(cudaErrorInvalidDevice);
SAME_VALUE(cudaErrorDeviceUninitialized);
SAME_VALUE(cudaErrorMapBufferObjectFailed);
SAME_VALUE(cudaErrorPeerAccessUnsupported);
SAME_VALUE(cudaErrorInvalidResourceHandle);
SAME_VALUE(cudaErrorIllegalState);
SAME_VALUE(cudaErrorNotReady);
SAME_VALUE(cudaErrorIllegalAddress);
SAME_VALUE(cudaErrorPeerAccessAlreadyEnabled);
SAME_VALUE(cudaErrorPeerAccessNotEnabled);
SAME_VALUE(cudaErrorContextIsDestroyed);
SAME_VALUE(cudaErrorHostMemoryAlreadyRegistered);
SAME_VALUE(cudaErrorHostMemoryNotRegistered);
SAME_VALUE(cudaErrorLaunchFailure);
SAME_VALUE(cudaErrorNotPermitted);
SAME_VALUE(cudaErrorNotSupported);
SAME_VALUE(cudaErrorStreamCaptureUnsupported);
SAME_VALUE(cudaErrorStreamCaptureInvalidated);
SAME_VALUE(cudaErrorStreamCaptureImplicit);
SAME_VALUE(cudaErrorStreamCaptureWrongThread);
SAME_VALUE(cudaErrorGraphExecUpdateFailure);
SAME_VALUE(cudaErrorUnknown);

SAME_VALUE(cudaMemcpyHostToHost);
SAME_VALUE(cudaMemcpyHostToDevice);
SAME_VALUE(cudaMemcpyDeviceToHost);
SAME_VALUE(cudaMemcpyDeviceToDevice);
SAME_VALUE(cudaMemcpyDefault);
SAME_VALUE(cudaMemoryTypeUnregistered);
SAME_VALUE(cudaMemoryTypeHost);
SAME_VALUE(cudaMemoryTypeDevice);
SAME_VALUE(cudaMemoryTypeManaged);
SAME_VALUE(cudaStreamCaptureStatusNone);
SAME_VALUE(cudaStreamCaptureStatusActive);
SAME_VALUE(cudaStreamCaptureStatusInvalidated);
SAME_VALUE(cudaStreamCaptureModeGlobal);
SAME_VALUE(cudaStreamCaptureModeThreadLocal);
SAME_VALUE(cudaStreamCaptureModeRelaxed);
SAME_VALUE(cudaGraphExecUpdateSuccess);
SAME_VALUE(cudaGraphExecUpdateErrorTopologyChanged);
SAME_VALUE(cudaGraphExecUpdateErrorNodeTypeChanged);
SAME_VALUE(cudaUserObjectNoDestructorSync);
SAME_VALUE(cudaGraphUserObjectMove);

SAME_VALUE(cudaDevAttrMaxThreadsPerBlock);
SAME_VALUE(cudaDevAttrMaxBlockDimX);
SAME_VALUE(cudaDevAttrMaxBlockDimY);
SAME_VALUE(cudaDevAttrMaxBlockDimZ);
SAME_VALUE(cudaDevAttrMaxGridDimX);
SAME_VALUE(cudaDevAttrMaxGridDimY);
SAME_VALUE(cudaDevAttrMaxGridDimZ);
SAME_VALUE(cudaDevAttrMaxSharedMemoryPerBlock);
SAME_VALUE(cudaDevAttrTotalConstantMemory);
SAME_VALUE(cudaDevAttrWarpSize);
SAME_VALUE(cudaDevAttrGpuOverlap);
SAME_VALUE(cudaDevAttrMultiProcessorCount);
SAME_VALUE(cudaDevAttrIntegrated);
SAME_VALUE(cudaDevAttrCanMapHostMemory);
SAME_VALUE(cudaDevAttrConcurrentKernels);
SAME_VALUE(cudaDevAttrPciBusId);
SAME_VALUE(cudaDevAttrPciDeviceId);
SAME_VALUE(cudaDevAttrMaxThreadsPerMultiProcessor);
SAME_VALUE(cudaDevAttrAsyncEngineCount);
SAME_VALUE(cudaDevAttrUnifiedAddressing);
SAME_VALUE(cudaDevAttrPciDomainId);
SAME_VALUE(cudaDevAttrComputeCapabilityMajor);
SAME_VALUE(cudaDevAttrComputeCapabilityMinor);
SAME_VALUE(cudaDevAttrStreamPrioritiesSupported);
SAME_VALUE(cudaDevAttrManagedMemory);
SAME_VALUE(cudaDevAttrPageableMemoryAccess);
SAME_VALUE(cudaDevAttrConcurrentManagedAccess);
SAME_VALUE(cudaDevAttrCanUseHostPointerForRegisteredMem);
SAME_VALUE(cudaDevAttrHostRegisterSupported);
SAME_VALUE(cudaDevAttrMemoryPoolsSupported);

SAME_PLACE(cudaPointerAttributes, type);
SAME_PLACE(cudaPointerAttributes, device);
SAME_PLACE(cudaPointerAttributes, devicePointer);
SAME_PLACE(cudaPointerAttributes, hostPointer);
SAME_SIZE(cudaIpcMemHandle_t);
SAME_SIZE(cudaIpcEventHandle_t);
SAME_SIZE(cudaStream_t);
SAME_SIZE(cudaEvent_t);
SAME_SIZE(cudaGraph_t);
SAME_SIZE(cudaGraphExec_t);
SAME_SIZE(cudaGraphNode_t);
SAME_SIZE(cudaUserObject_t);
SAME_SIZE(cudaGraphExecUpdateResultInfo);
SAME_PLACE(cudaGraphExecUpdateResultInfo, result);
SAME_PLACE(cudaGraphExecUpdateResultInfo, errorNode);
SAME_PLACE(cudaGraphExecUpdateResultInfo, errorFromNode);

#ifdef TOOLKIT_HAS_PROPERTIES_OF_13
SAME_SIZE(cudaPointerAttributes);
SAME_SIZE(cudaGraphEdgeData);
SAME_SIZE(cudaDeviceProp);
SAME_PLACE(cudaDeviceProp, uuid);
SAME_PLACE(cudaDeviceProp, totalGlobalMem);
SAME_PLACE(cudaDeviceProp, memPitch);
SAME_PLACE(cudaDeviceProp, totalConstMem);
SAME_PLACE(cudaDeviceProp, multiProcessorCount);
SAME_PLACE(cudaDeviceProp, concurrentKernels);
SAME_PLACE(cudaDeviceProp, pciBusID);
SAME_PLACE(cudaDeviceProp, unifiedAddressing);
SAME_PLACE(cudaDeviceProp, managedMemory);
SAME_PLACE(cudaDeviceProp, memoryPoolsSupported);
SAME_PLACE(cudaDeviceProp, ipcEventSupported);
#endif

SAME_VALUE(CUDA_SUCCESS);
SAME_VALUE(CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(CU_MEM_HANDLE_TYPE_NONE);
SAME_VALUE(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_VALUE(CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_SIZE(CUdeviceptr);
SAME_SIZE(CUmemGenericAllocationHandle);
SAME_SIZE(CUmemAllocationProp);
SAME_PLACE(CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(CUmemAllocationProp, location);
SAME_SIZE(CUmemAccessDesc);
SAME_PLACE(CUmemAccessDesc, flags);
