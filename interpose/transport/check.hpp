// GPUDT_CHECK=1: reports misuse of memory passed to MPI, one line per call: GPU memory that is not ready, is freed or
// changed while an operation uses it, or overlaps a pending receive, and addresses that are not mapped. It costs much
// time, and does not find every misuse.
//
// While it is off, a buffer argument costs one branch on a global.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>

#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {

/// To be called in MPI_Init, before there are operations. `order`: whether operations wait for the default stream.
void check_start(bool order);

/// Checks the buffer that `operand` describes, an argument of `call`, and logs misuse. The operation keeps the result
/// until it is over; the destructor checks the buffer again. Null if the buffer cannot be checked.
CheckedRef check_operand(const char* call, const DeviceBuffer& operand);

/// Logs if (buffer, count, type), which is not in GPU memory, cannot be read by the host.
void check_host(const char* call, const void* buffer, std::int64_t count, MPI_Datatype type);

}  // namespace gpudt::interpose
