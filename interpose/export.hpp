// Marks the functions that the shared library exports.
#pragma once

#include <mpi.h>

#define GPUDT_EXPORT extern "C" __attribute__((visibility("default")))
