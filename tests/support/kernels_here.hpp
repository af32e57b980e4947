// What kernels do, on the host, over memory that lies where its addresses say. To compile all variants of them takes
// ten seconds: once is enough.
#pragma once

#include <functional>

namespace gpudt::device {
struct BatchArgs;
struct Completion;
struct CopyBlocksArgs;
struct KernelArgs;
struct ReduceArgs;
struct ResidentJob;
struct ShortReduction;
struct TransferArgs;
}  // namespace gpudt::device

namespace gpudt::test {

void run_here(const device::KernelArgs& args);
void run_here(const device::TransferArgs& args);
/// `ended` is called after each job.
void run_here(const device::BatchArgs& batch, const std::function<void(const device::Completion&)>& ended);
void run_here(const device::ReduceArgs& args);
void run_here(const device::ShortReduction& args);
void run_here(const device::CopyBlocksArgs& args);
void run_here(const device::ResidentJob& job);

}  // namespace gpudt::test
