// The kernels of gpudt-initiated-check that make MPI's calls: what they are told.
#pragma once

#include "initiated/programs/check_kernels.hpp"

namespace gpudt::initiated::programs {

/// GPU 0 makes an access to GPU 1's part of a window, and notifies GPU 1's rank.
enum class AccessKind : std::int32_t { put, get, put_notify };
struct OneAccess {
  KernelWorld world;  ///< view(1)
  Window window;
  KernelType origin, target;
  char* memory;  ///< origin_addr
  std::int64_t origin_count, target_count, target_disp;
  By by;
  AccessKind kind;
  std::int32_t* status;  ///< a Status
};
const void* one_access_kernel();

/// Every rank of GPU 0 combines the same elements with the same ones of GPU 1.
constexpr int combined_elements = 96;
struct Combination {
  KernelWorld world;
  Window window;              ///< byte displacements
  KernelType origin, target;  ///< of the same predefined datatype
  char* memory;
  std::int64_t origin_count, target_count, target_disp;
  Op op;
  std::int32_t* status;
};
const void* combination_kernel();

/// Calls that are refused; `statuses` gets what each says. On each GPU, to itself. The last one is right: it puts a
/// double from `memory` to byte 8 of the window.
constexpr int refused_calls = 13;
struct RefusedCalls {
  KernelWorld world;
  Window window, dynamic;
  std::int64_t begin, end;  ///< of the one region that is attached to `dynamic`
  KernelType doubles, not_made;
  char* memory;
  std::int32_t* statuses;
};
const void* refused_calls_kernel();
void expected_refusals(std::int32_t (&statuses)[refused_calls]);

}  // namespace gpudt::initiated::programs
