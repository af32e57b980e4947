// Marks the functions that the shared library exports, and gives those that stand before MPI's the names by which the
// exported entries (calls/symbol_table.cpp) know them.
#pragma once

#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include "interpose/entries_generated.hpp"

#define GPUDT_EXPORT extern "C" __attribute__((visibility("default")))
