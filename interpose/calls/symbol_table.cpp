// The exported functions are jumps through a table (scripts/generate/entries.py). Its entries lead to this library's
// functions or, in a process that runs over another family of MPI libraries than this one was built for, to those of
// the MPI library itself: the families differ in the types of handles, so that a function compiled for one cannot even
// pass on the arguments of a program compiled for another. If another PMPI tool is loaded (other_tools.hpp), MPI_X
// leads to the tool's function if it has one, and all names PMPI_X to this library's.
//
// The library itself calls the MPI library's PMPI_X: the linker turns each such call into a jump through a table, which
// is filled when the library is loaded. So no MPI library of a certain name is needed. If none is loaded yet, as in
// Python before it imports mpi4py, the first call of an exported function fills the tables.
#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/calls/other_tools.hpp"
#include "interpose/support/loaded.hpp"
#include "interpose/support/passed_by.hpp"

// Hidden tables, defined by the generated assembly. The names are in the order of the entries; an empty name ends them.
extern "C" void* gpudt_entries[];  ///< targets of MPI_X; gpudt_find_mpi() until the tables are filled
extern "C" void* const gpudt_entry_functions[];
extern "C" const char gpudt_entry_names[];
extern "C" void* gpudt_profiling_entries[];  ///< targets of PMPI_X as others call it; gpudt_find_mpi() at first
extern "C" void* const gpudt_own_functions[];
extern "C" const char gpudt_profiling_names[];
extern "C" void* gpudt_mpi_functions[];   ///< targets of PMPI_X as this library calls it
extern "C" const char gpudt_mpi_names[];  ///< begins with gpudt_profiling_names

#ifndef OPEN_MPI  // Open MPI's library is needed for its constants
// Only for linkers: shows that a program which links this library needs an MPI library, which --as-needed would drop
// otherwise. There is nothing to relocate, so ld.so does not look the name up. (__real_: the linker wraps it.)
asm(".reloc ., BFD_RELOC_NONE, __real_PMPI_Get_library_version");
#endif

/// The target of a PMPI_X that the MPI library lacks.
extern "C" [[noreturn]] void gpudt_no_function() {
  std::fputs("gpudt: there is no MPI library, or it lacks a function that it had when gpudt was built\n", stderr);
  std::abort();
}

using gpudt::interpose::file_of;
using gpudt::interpose::function_beside;
using gpudt::interpose::global_function;
using gpudt::interpose::is_first_rank;
using gpudt::interpose::loaded_function;
using gpudt::interpose::make_global;
using gpudt::interpose::note_other_mpi;

namespace {

/// Which build this is, for scripts/gpudt-run, which looks for it in the file.
[[gnu::used]] constexpr char build[] = "gpudt-build-for:" GPUDT_MPI_BUILD;

constexpr char told_by[] = "PMPI_Get_library_version";  ///< only MPI libraries define it
constexpr std::size_t longest_version = 16384;          ///< in bytes, of any MPI library, whatever mpi.h says
constexpr std::size_t telling_part = 200;               ///< of the version, in bytes: build options may follow

/// The texts by which MPI_Get_library_version shows a family; the name of a further member may contain one.
struct Family {
  std::string_view name;
  std::array<std::string_view, 4> texts;
};
constexpr std::array<Family, 2> families = {{
    {"Open MPI", {"Open MPI", "IBM Spectrum MPI"}},
    {"MPICH", {"MPICH", "Intel(R) MPI", "MVAPICH", "ParaStation MPI"}},
}};

/// The family of a library version; empty if unknown.
std::string_view family_of(std::string_view version) {
  for (const Family& family : families)
    for (const std::string_view text : family.texts)
      if (!text.empty() && version.find(text) != std::string_view::npos) return family.name;
  return {};
}

/// Whether the MPI library has the handles and constants that the MPI-5 standard lays down (MPI-5.0 chapter 20), which
/// a library has in a separate file, with the same version text. The file that this library needs may be loaded, too,
/// after the program's.
bool has_standard_abi() {
  void* const function = global_function("PMPI_Abi_get_version");
  if (function == nullptr || file_of(function) != file_of(global_function("PMPI_Get_library_version"))) return false;
  int version = -1, subversion = -1;
  reinterpret_cast<int (*)(int*, int*)>(function)(&version, &subversion);
  return version >= 0;
}

/// The family of the MPI library of this process; empty if unknown.
std::string_view family_here() {
  if (has_standard_abi()) return "the MPI-5 ABI";
  if (global_function(told_by) == nullptr) return {};
  static char version[longest_version];
  int length = 0;
  PMPI_Get_library_version(version, &length);
  return family_of(std::string_view(version).substr(0, telling_part));
}

/// Calls `act(name, number)` for each name in a list.
template <class Act>
void for_each_name(const char* names, Act act) {
  for (std::size_t number = 0; *names != '\0'; names += std::strlen(names) + 1, ++number) act(names, number);
}

/// Finds the targets of this library's own calls. For the first names, which this library exports, these are the
/// definitions that follow it. For all others the program's definition precedes the MPI library's, as for ld.so.
void find_mpi_functions() {
  std::size_t exported = 0;
  for_each_name(gpudt_profiling_names, [&](const char*, std::size_t) { ++exported; });
  for_each_name(gpudt_mpi_names, [&](const char* name, std::size_t number) {
    void* const first = number < exported ? nullptr : dlsym(RTLD_DEFAULT, name);
    void* const function = first != nullptr ? first : global_function(name);
    if (function != nullptr) gpudt_mpi_functions[number] = function;
  });
}

/// The target of each entry: `instead(name)` or, if that is null, this library's function.
template <class Instead>
std::vector<void*> targets(Instead instead) {
  std::vector<void*> found;
  for_each_name(gpudt_entry_names, [&](const char* name, std::size_t number) {
    void* const other = instead(name);
    found.push_back(other != nullptr ? other : gpudt_entry_functions[number]);
  });
  return found;
}

/// Fills the tables of the exported names: the entries last, since other threads may call meanwhile.
void lead_to(const std::vector<void*>& found, void* const* profiling) {
  for_each_name(gpudt_profiling_names,
                [&](const char*, std::size_t number) { gpudt_profiling_entries[number] = profiling[number]; });
  std::copy(found.begin(), found.end(), gpudt_entries);
}

void pass_everything_through() {
  lead_to(targets(loaded_function), gpudt_mpi_functions);
}

/// Leads to a library of stubs, MPI_X without PMPI_X, with which a program runs as one process without MPI.
void lead_to_stubs(const void* stubs) {
  const auto instead = [=](const char* name) {
    void* const beside = function_beside(stubs, name);
    return beside != nullptr ? beside : global_function(name);
  };
  lead_to(targets(instead), gpudt_mpi_functions);
}

void give_way_to_other_tools() {
  gpudt::interpose::OtherTools tools;
  const std::vector<void*> found = targets([&](const char* name) { return tools.in_place_of(name); });
  lead_to(found, tools.any() ? gpudt_own_functions : gpudt_mpi_functions);
}

void fill_tables() {
  find_mpi_functions();
  if (global_function(told_by) == nullptr)
    if (const void* const stubs = loaded_function("MPI_Init")) return lead_to_stubs(stubs);
  const std::string_view found = family_here();
  if (found.empty() || found == GPUDT_MPI_FAMILY) return give_way_to_other_tools();
  pass_everything_through();
  note_other_mpi();
  if (is_first_rank())
    std::fprintf(
        stderr,
        "gpudt is off: it was built for %s, and this program runs over %s. Preload a build for that; gpudt-run "
        "finds it among those installed\n",
        GPUDT_MPI_FAMILY, found.data());
}

}  // namespace

/// Fills the tables, once. Thread-safe. Makes an MPI library that was loaded with RTLD_LOCAL global, as if
/// the program were linked to it: this library looks up its functions, and those of UCX, by name.
extern "C" void gpudt_find_mpi() {
  static const bool filled = [] {
    if (global_function(told_by) == nullptr)
      if (const void* const local = loaded_function(told_by)) make_global(local);
    fill_tables();
    return true;
  }();
  static_cast<void>(filled);
}

namespace {

/// Whether a control daemon of CUDA MPS has been started, through which CUDA then reaches the GPU.
bool has_mps() {
  const char* const given = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string folder = given != nullptr && *given != '\0' ? given : "/tmp/nvidia-mps";
  return access((folder + "/control").c_str(), F_OK) == 0;
}

/// Where the program enqueues operations in its streams, and the user says nothing else: as many connections to the GPU
/// as CUDA has, since streams that share one wait for each other, also for a stream that waits for the host; and all
/// kernels are loaded at the start. CUDA otherwise loads a kernel when it is first launched, for which it may wait
/// until the operations before that launch are complete, and launches none of this library's kernels meanwhile: for
/// ever.
///
/// MPS has 120 connections for all processes on a GPU: a fourth one with 32 would get no GPU.
void prepare_for_streams() {
  if (!gpudt::interpose::makes_streams()) return;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", has_mps() ? "8" : "32", /*overwrite=*/0);
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

/// Runs when the library is loaded. If the MPI library is not loaded yet, the first call fills the tables.
__attribute__((constructor)) void find_mpi_at_once() {
  if (global_function(told_by) == nullptr) return;
  gpudt_find_mpi();
  prepare_for_streams();
}

}  // namespace
