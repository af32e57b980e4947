// Macros that define the MPI functions of one collective operation, for collectives.cpp.
#pragma once

#include <mpi.h>

#include "interpose/support/export.hpp"

// Persistent collectives came with MPI-4; Open MPI 4.1 has them as an extension.
#if defined(GPUDT_MPI_PERSISTENT_COLLECTIVES)
#define GPUDT_INIT(name) MPI_##name##_init
#define GPUDT_PMPI_INIT(name) PMPI_##name##_init
#elif defined(GPUDT_MPIX_PERSISTENT_COLLECTIVES)
#include <mpi-ext.h>
#define GPUDT_INIT(name) MPIX_##name##_init
#define GPUDT_PMPI_INIT(name) PMPIX_##name##_init
#else
#define GPUDT_PMPI_INIT(name) nullptr
#endif

// Define the MPI functions of an operation: MPI_<name>, MPI_<iname> and MPI_<name>_init, with a suffix. `function`
// serves them; `parameters` and `arguments` are bracketed lists.
#define GPUDT_LIST(...) __VA_ARGS__
#define GPUDT_BLOCKING(name, iname, suffix, pmpi_init, function, parameters, arguments)                        \
  GPUDT_EXPORT int MPI_##name##suffix(GPUDT_LIST parameters) {                                                 \
    return function(Call{"MPI_" #name #suffix}, Forms{&PMPI_##name##suffix, &PMPI_##iname##suffix, pmpi_init}, \
                    GPUDT_LIST arguments);                                                                     \
  }                                                                                                            \
  GPUDT_EXPORT int MPI_##iname##suffix(GPUDT_LIST parameters, MPI_Request* request) {                          \
    return function(Call{"MPI_" #iname #suffix, request},                                                      \
                    Forms{&PMPI_##name##suffix, &PMPI_##iname##suffix, pmpi_init}, GPUDT_LIST arguments);      \
  }
#define GPUDT_PERSISTENT(name, iname, suffix, init, pmpi_init, function, parameters, arguments)           \
  GPUDT_EXPORT int init(GPUDT_LIST parameters, MPI_Info info, MPI_Request* request) {                     \
    return function(Call{"MPI_" #name "_init" #suffix, request, true, info},                              \
                    Forms{&PMPI_##name##suffix, &PMPI_##iname##suffix, pmpi_init}, GPUDT_LIST arguments); \
  }

// All forms of an operation, with int counts and, by the functions with suffix _c, with counts of MPI_Count.
#if defined(GPUDT_INIT)
#define GPUDT_SMALL_COUNTS(name, iname, function, parameters, arguments)                \
  GPUDT_BLOCKING(name, iname, , GPUDT_PMPI_INIT(name), function, parameters, arguments) \
  GPUDT_PERSISTENT(name, iname, , GPUDT_INIT(name), GPUDT_PMPI_INIT(name), function, parameters, arguments)
#else
#define GPUDT_SMALL_COUNTS(name, iname, function, parameters, arguments) \
  GPUDT_BLOCKING(name, iname, , nullptr, function, parameters, arguments)
#endif
#define GPUDT_LARGE_COUNTS(name, iname, function, parameters, arguments)                 \
  GPUDT_BLOCKING(name, iname, _c, PMPI_##name##_init_c, function, parameters, arguments) \
  GPUDT_PERSISTENT(name, iname, _c, MPI_##name##_init_c, PMPI_##name##_init_c, function, parameters, arguments)
