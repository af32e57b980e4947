// The kernels behind a plain C++ function.
#pragma once

#include "device/kernels/kernel_args.hpp"

namespace gpudt::device {
struct BatchArgs;
struct CopyBlocksArgs;
struct ReduceArgs;
struct ResidentArgs;
}  // namespace gpudt::device

namespace gpudt::device::cuda {

/// Queues the kernel that `args` describes on `stream` (a cudaStream_t) of the current device. Returns a cudaError_t.
int launch_kernel(const KernelArgs& args, void* stream);

/// Loads all kernels to the current device, so that no launch has to: loading may wait for running kernels. Returns a
/// cudaError_t.
int load_kernels();

// launch_kernel() and load_kernels() for the other kernels.

/// Transfers from layout to layout.
int launch_transfer_kernel(const TransferArgs& args, void* stream);
int load_transfer_kernels();

int launch_batch_kernel(const BatchArgs& batch, void* stream);
int load_batch_kernel();

/// The persistent kernel (resident_body.hpp).
int launch_resident_kernel(const ResidentArgs& args, void* stream);
int load_resident_kernel();

int launch_reduce_kernel(const ReduceArgs& args, void* stream);
int load_reduce_kernels();

int launch_copy_blocks_kernel(const CopyBlocksArgs& args, void* stream);
int load_copy_blocks_kernel();

}  // namespace gpudt::device::cuda
