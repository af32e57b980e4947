// The kernel of gpudt-initiated-dcuda.
#pragma once

#include "initiated/dcuda_host.hpp"

namespace gpudt::initiated::programs {

/// What the kernel is given, and what it answers: dcuda_get_data.
struct DcudaRing {
  double* field;  ///< of this device: for each rank `words` of its own between those of its neighbours
  int words, steps;
  unsigned long long wrong;  ///< counts what was not expected
};
dcuda_kernel_t dcuda_ring_kernel();

}  // namespace gpudt::initiated::programs
