// gpudt's counters (gpudt_counter() of gpudt.h) as performance variables of MPI's tool information interface: their
// places among those of the MPI library, and the handles of tools.
//
// The MPI library may add variables at any time, as Open MPI does in MPI_Init, and an index that a tool has got stays
// what it is. So gpudt's begin where the MPI library's ended when a tool first asked, and what the MPI library adds
// stands behind them.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/mutex.hpp"

namespace gpudt::interpose {

/// A variable as tools know it: one of gpudt's counters, or one of the MPI library.
struct Variable {
  bool own;
  int index;  ///< of the counter, or the MPI library's
};

/// Held from when the MPI library is asked how many variables it has until that number, `mpi_number` below, was used.
extern Mutex numbering;

int number_with_own(int mpi_number) REQUIRES(numbering);
Variable variable_at(int index, int mpi_number) REQUIRES(numbering);
/// The index by which tools know variable `mpi_index` of the MPI library.
int shown_index(int mpi_index, int mpi_number) REQUIRES(numbering);
/// That of the counter with this name; no value if it is none of gpudt's.
std::optional<int> own_index(const char* name, int mpi_number) REQUIRES(numbering);
/// The name of a counter, and what it counts.
std::string own_name(int counter);
const char* own_description(int counter);

// Handles. Those of the MPI library are known by not being gpudt's: then the functions have no value. Otherwise their
// value is that of the MPI call. Thread-safe.
bool any_handles();  ///< of gpudt
int make_handle(MPI_T_pvar_session session, int counter, MPI_T_pvar_handle* handle);
std::optional<int> free_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle);
std::optional<int> start_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle);
std::optional<int> stop_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle);
std::optional<int> read_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle, std::int64_t& value);
/// MPI_SUCCESS if it is a handle of gpudt in this session.
std::optional<int> check_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle);
void start_all_handles(MPI_T_pvar_session session);
void stop_all_handles(MPI_T_pvar_session session);
void free_all_handles(MPI_T_pvar_session session);

}  // namespace gpudt::interpose
