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

/// Nothing: the host does it, or refuses it. So it is for user-defined operators, MPI_REPLACE and MPI_NO_OP, for long
/// double, Fortran's logicals, and derived datatypes, which predefined operators do not take.
std::optional<Arithmetic> arithmetic_of(MPI_Op op, MPI_Datatype type);

/// Whether MPI names the operator, so that it cannot be freed.
bool is_predefined_operator(MPI_Op op);

}  // namespace gpudt::interpose
