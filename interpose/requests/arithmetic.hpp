// Which of MPI's operators and datatypes GPUs reduce (device/kernels/reduction.hpp).
#pragma once

#include <mpi.h>

#include <optional>

#include "device/device.hpp"

namespace gpudt::interpose {

struct Arithmetic {
  device::Operator op;
  device::Element element;
};

/// Empty if GPUs do not reduce `type` by `op`: for user-defined operators, MPI_REPLACE and MPI_NO_OP, for long double,
/// Fortran's logicals and derived datatypes (but not those of float16_types.hpp), and where MPI refuses the pair. MPI
/// is to be called then.
std::optional<Arithmetic> arithmetic_of(MPI_Op op, MPI_Datatype type);

/// Whether MPI names the operator, so that it cannot be freed.
bool is_predefined_operator(MPI_Op op);

}  // namespace gpudt::interpose
