// The exported functions are jumps through a table (scripts/generate/entries.py). Its entries lead to this library's
// functions or, in a process that runs over another family of MPI libraries than this one was built for, to those of
// the MPI library itself: the families differ in the types of handles, so that a function compiled for one cannot even
// pass on what a program compiled for another gives it. Where another tool stands before MPI's functions, too
// (other_tools.hpp), a name MPI_X that it has leads to the tool's function, and all names PMPI_X to this library's.
//
// The library itself calls the MPI library's PMPI_X: the linker makes of each such call a jump through a table, which
// is filled when the library is loaded. So it needs no MPI library of a certain name. Where there is none yet, as in
// Python before it imports mpi4py, the tables are filled in the first call of a function that is exported.
#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

#ifndef OPEN_MPI  // whose library is needed
// Only for linkers: it shows them that a program which links this library needs an MPI library, which --as-needed would
// drop otherwise. There is nothing to relocate, so ld.so does not look the name up. (__real_: the linker wraps it.)
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
using gpudt::interpose::note_init;

namespace {

/// Which build this is, for scripts/gpudt-run, which looks for it in the file.
[[gnu::used]] constexpr char build[] = "gpudt-build-for:" GPUDT_MPI_BUILD;

constexpr char told_by[] = "PMPI_Get_library_version";  ///< MPI libraries alone define it
constexpr std::size_t longest_version = 16384;          ///< of any MPI library, whatever mpi.h says
constexpr std::size_t telling_part = 200;               ///< of it: what follows may be the options of its build

/// How a family's libraries call themselves (MPI_Get_library_version); a name of another may contain it.
struct Family {
  std::string_view name;
  std::array<std::string_view, 4> texts;
};
constexpr std::array<Family, 2> families = {{
    {"Open MPI", {"Open MPI", "IBM Spectrum MPI"}},
    {"MPICH", {"MPICH", "Intel(R) MPI", "MVAPICH", "ParaStation MPI"}},
}};

/// Empty for a library that is not known.
std::string_view family_of(std::string_view version) {
  for (const Family& family : families)
    for (const std::string_view text : family.texts)
      if (!text.empty() && version.find(text) != std::string_view::npos) return family.name;
  return {};
}

/// Whether the MPI library has the handles and constants that the MPI-5 standard lays down (MPI-5.0 chapter 20), for
/// which every library has a file of its own; what stands in its version is the same in both. The file that this
/// library needs may be there, too, behind that of the program.
bool has_standard_abi() {
  void* const function = global_function("PMPI_Abi_get_version");
  if (function == nullptr || file_of(function) != file_of(global_function("PMPI_Get_library_version"))) return false;
  int version = -1, subversion = -1;
  reinterpret_cast<int (*)(int*, int*)>(function)(&version, &subversion);
  return version >= 0;
}

/// Of the library that this process runs over; empty if it is not known.
std::string_view family_here() {
  if (has_standard_abi()) return "the MPI-5 ABI";
  if (global_function(told_by) == nullptr) return {};
  static char version[longest_version];
  int length = 0;
  PMPI_Get_library_version(version, &length);
  return family_of(std::string_view(version).substr(0, telling_part));
}

/// `act(name, number)` for each of the names in a list.
template <class Act>
void for_each_name(const char* names, Act act) {
  for (std::size_t number = 0; *names != '\0'; names += std::strlen(names) + 1, ++number) act(names, number);
}

/// The names that this library exports, too, which are the first ones, are of what comes after it. Of all others the
/// program's own definition comes before the MPI library's, as where the linker resolves names.
void find_mpi_functions() {
  std::size_t exported = 0;
  for_each_name(gpudt_profiling_names, [&](const char*, std::size_t) { ++exported; });
  for_each_name(gpudt_mpi_names, [&](const char* name, std::size_t number) {
    void* const first = number < exported ? nullptr : dlsym(RTLD_DEFAULT, name);
    void* const function = first != nullptr ? first : global_function(name);
    if (function != nullptr) gpudt_mpi_functions[number] = function;
  });
}

/// Of each entry: what `instead(name)` says or, where that is null, this library's function.
template <class Instead>
std::vector<void*> targets(Instead instead) {
  std::vector<void*> found;
  for_each_name(gpudt_entry_names, [&](const char* name, std::size_t number) {
    void* const other = instead(name);
    found.push_back(other != nullptr ? other : gpudt_entry_functions[number]);
  });
  return found;
}

/// Fills the tables of what is exported: the entries last, since other threads may call meanwhile.
void lead_to(const std::vector<void*>& found, void* const* profiling) {
  for_each_name(gpudt_profiling_names,
                [&](const char*, std::size_t number) { gpudt_profiling_entries[number] = profiling[number]; });
  std::copy(found.begin(), found.end(), gpudt_entries);
}

void pass_everything_through() {
  lead_to(targets(loaded_function), gpudt_mpi_functions);
}

/// Without an MPI library a program may have one of stubs, MPI_X without PMPI_X, which make it run by one process.
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
  note_init();  // which goes to MPI
  if (is_first_rank())
    std::fprintf(
        stderr,
        "gpudt is off: it was built for %s, and this program runs over %s. Preload a build for that; gpudt-run "
        "finds it among those installed\n",
        GPUDT_MPI_FAMILY, found.data());
}

}  // namespace

/// Fills the tables, once. Thread-safe. An MPI library that was loaded with RTLD_LOCAL becomes visible to all, which is
/// what it is where the program is linked to it: this library looks for its functions, and those of UCX, by name.
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

/// Runs when the library is loaded. Where the MPI library has not been loaded yet, the first call sees to it.
__attribute__((constructor)) void find_mpi_at_once() {
  if (global_function(told_by) != nullptr) gpudt_find_mpi();
}

}  // namespace
