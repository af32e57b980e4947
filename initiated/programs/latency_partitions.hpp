// The part of gpudt-initiated-latency that is about partitioned communication.
#pragma once

#include "initiated/programs/session.hpp"

namespace gpudt::initiated::programs {

void measure_partition_latency(Session& session);

}  // namespace gpudt::initiated::programs
