// GPUDT_CHECK=1: reports misuse of memory passed to MPI, one line per call: GPU memory that is not ready, is freed or
// changed while an operation uses it, or overlaps a pending receive, and addresses that are nobody's. It costs much
// time, and finds what can be seen, not all there is.
//
// While it is not wanted, a buffer argument costs one branch on a global.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>

#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {

/// To be called in MPI_Init, before there are operations. `order`: whether the default stream is waited for.
void check_start(bool order);

/// What an operation does with the buffer that `operand` describes and that `call` has been given; says what is wrong
/// with that now. The result is kept until the operation is over; its end looks at the buffer again. Null if the buffer
/// cannot be looked at.
CheckedRef check_operand(const char* call, const DeviceBuffer& operand);

/// Says so if (buffer, count, type), which is no GPU's, cannot be read by the host.
void check_host(const char* call, const void* buffer, std::int64_t count, MPI_Datatype type);

}  // namespace gpudt::interpose
