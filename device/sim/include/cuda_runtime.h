/* cuda_runtime.h of the simulated device: the C interface, and in C++ the typed allocation calls of the real one. */
#ifndef GPUDT_SIM_CUDA_RUNTIME_H
#define GPUDT_SIM_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
template <class T>
inline cudaError_t cudaMalloc(T** address, size_t size) {
  return ::cudaMalloc(reinterpret_cast<void**>(address), size);
}
template <class T>
inline cudaError_t cudaMallocHost(T** address, size_t size) {
  return ::cudaMallocHost(reinterpret_cast<void**>(address), size);
}
template <class T>
inline cudaError_t cudaHostAlloc(T** address, size_t size, unsigned int flags) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(address), size, flags);
}
template <class T>
inline cudaError_t cudaMallocManaged(T** address, size_t size, unsigned int flags = cudaMemAttachGlobal) {
  return ::cudaMallocManaged(reinterpret_cast<void**>(address), size, flags);
}
#endif

#endif
