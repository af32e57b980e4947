#include "tests/support/kernels_here.hpp"

#include "device/kernels/copy_blocks_body.hpp"
#include "device/kernels/kernel_host.hpp"
#include "device/kernels/reduce_body.hpp"
#include "device/kernels/resident_body.hpp"

namespace gpudt::test {

using namespace device;

namespace {

constexpr auto as_it_is = [](const void* address) { return const_cast<void*>(address); };
using Here = HostMemory<decltype(as_it_is)>;

}  // namespace

void run_here(const KernelArgs& args) {
  run_on_host(args, as_it_is);
}
void run_here(const TransferArgs& args) {
  run_on_host(args, as_it_is);
}
void run_here(const BatchArgs& batch, const std::function<void(const Completion&)>& ended) {
  run_on_host(batch, as_it_is, ended);
}
void run_here(const ReduceArgs& args) {
  reduce_on_host(args, Here{as_it_is});
}
void run_here(const ShortReduction& args) {
  reduce_on_host(args, Here{as_it_is});
}
void run_here(const CopyBlocksArgs& args) {
  copy_blocks_on_host(args, Here{as_it_is});
}
void run_here(const ResidentJob& job) {
  run_on_host(job, as_it_is);
}

}  // namespace gpudt::test
