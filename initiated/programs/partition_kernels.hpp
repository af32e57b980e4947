// The kernels that check and measure partitioned communication: what they are told.
#pragma once

#include "initiated/partitions.hpp"
#include "initiated/programs/check_kernels.hpp"

namespace gpudt::initiated::programs {

/// What a block does with one partition: marks it ready, or waits for it, then looks at a byte of it.
struct PartitionStep {
  std::int32_t request, partition;
  By by;  ///< thread, warp or block
  std::int32_t
      other_form;    ///< 1: pready_list() in place of pready(), and parrived() again and again in place of wait()
  const char* byte;  ///< of the buffer; null: none
};

/// Block b takes steps b, b + blocks ...: those that mark come before those that wait.
struct PartitionSteps {
  KernelWorld world;
  const KernelRequest* requests;
  const PartitionStep* steps;
  std::int32_t count;
  char* seen;              ///< [count]: the bytes
  std::int32_t* statuses;  ///< [count]
};
const void* partition_steps_kernel();

/// Calls that are refused, and some that are not; `statuses` gets what each says. On each GPU, to itself.
constexpr int refused_partition_calls = 13, refused_partition_flags = 3;
struct RefusedPartitions {
  KernelWorld world;
  KernelRequest send, receive;  ///< of 3 partitions; started
  KernelRequest unstarted, not_made;
  std::int32_t* statuses;  ///< then the flags of parrived() of partition 1 before, and of 1 and 0 behind pready_list()
};
const void* refused_partitions_kernel();
void expected_partition_refusals(std::int32_t (&statuses)[refused_partition_calls]);

/// GPU 0 sends to GPU 1, which sends back, `iterations` times: each time every block one partition of the send. A
/// partition of the receive is those of all blocks together.
struct PartitionPingPong {
  KernelWorld world;
  KernelRequest send, receive;
  std::int32_t iterations;
};
const void* partition_pingpong_kernel();

}  // namespace gpudt::initiated::programs
