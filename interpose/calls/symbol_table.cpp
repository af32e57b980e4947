// The exported functions are jumps through a table (scripts/generate_entries.py). Its entries lead to this library's
// functions or, in a process that runs over another family of MPI libraries than this one was built for, to those of
// the MPI library itself: the families differ in the types of handles, so that a function compiled for one cannot even
// pass on what a program compiled for another gives it. Where another tool stands before MPI's functions, too
// (other_tools.hpp), a name MPI_X that it has leads to the tool's function, and all names PMPI_X to this library's.
//
// The library itself calls the MPI library's PMPI_X: the linker makes of each such call a jump through a table, which
// is filled when the library is loaded.
#include <dlfcn.h>
#include <mpi.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "interpose/calls/other_tools.hpp"

// All hidden, and defined by the generated assembly: the names are in the order of the entries, and end with none.
extern "C" void* gpudt_entries[];  ///< where MPI_X leads
extern "C" const char gpudt_entry_names[];
extern "C" void* gpudt_profiling_entries[];  ///< where PMPI_X leads, as others call it
extern "C" void* gpudt_mpi_functions[];      ///< where PMPI_X leads, as this library calls it
extern "C" void* const gpudt_own_functions[];
extern "C" const char gpudt_profiling_names[];

/// Where a PMPI_X leads that the MPI library lacks.
extern "C" [[noreturn]] void gpudt_no_function() {
  std::fputs("gpudt: the MPI library lacks a function that it had when gpudt was built\n", stderr);
  std::abort();
}

namespace {

/// Which build this is, for scripts/gpudt-run, which looks for it in the file.
[[gnu::used]] constexpr char build[] = "gpudt-build-for:" GPUDT_MPI_BUILD;

constexpr std::size_t longest_version = 16384;  ///< of any MPI library, whatever mpi.h says
constexpr std::size_t telling_part = 200;       ///< of it: what follows may be the options of its build

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

/// The MPI library's function of this name, which ours stands before; null if it has none.
void* behind(const char* name) {
  void* const function = dlsym(RTLD_NEXT, name);
  return function != nullptr ? function : dlsym(RTLD_DEFAULT, name);  // the MPI library comes before this one
}

/// The file that a function is in.
const void* file_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 ? info.dli_fbase : nullptr;
}

/// Whether the MPI library has the handles and constants that the MPI-5 standard lays down (MPI-5.0 chapter 20), for
/// which every library has a file of its own; what stands in its version is the same in both. The file that this
/// library needs may be there, too, behind that of the program.
bool has_standard_abi() {
  void* const function = behind("PMPI_Abi_get_version");
  if (function == nullptr || file_of(function) != file_of(behind("PMPI_Get_library_version"))) return false;
  int version = -1, subversion = -1;
  reinterpret_cast<int (*)(int*, int*)>(function)(&version, &subversion);
  return version >= 0;
}

/// Of the library that this process runs over; empty if it is not known.
std::string_view family_here() {
  if (has_standard_abi()) return "the MPI-5 ABI";
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

void find_mpi_functions() {
  for_each_name(gpudt_profiling_names, [](const char* name, std::size_t number) {
    if (void* const function = behind(name)) gpudt_profiling_entries[number] = gpudt_mpi_functions[number] = function;
  });
}

void pass_everything_through() {
  for_each_name(gpudt_entry_names, [](const char* name, std::size_t number) {
    if (void* const behind = dlsym(RTLD_NEXT, name)) gpudt_entries[number] = behind;
  });
}

void give_way_to_other_tools() {
  gpudt::interpose::OtherTools tools;
  for_each_name(gpudt_entry_names, [&](const char* name, std::size_t number) {
    if (void* const function = tools.in_place_of(name)) gpudt_entries[number] = function;
  });
  if (!tools.any()) return;
  for_each_name(gpudt_profiling_names,
                [](const char*, std::size_t number) { gpudt_profiling_entries[number] = gpudt_own_functions[number]; });
}

/// Before MPI is initialized only the launchers' variables tell; without any, every process is the first.
bool is_first_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* const rank = std::getenv(name)) return std::string_view(rank) == "0";
  return true;
}

/// Runs when the library is loaded. A process that has no MPI of its own sees the one that this library needs.
__attribute__((constructor)) void fill_tables() {
  find_mpi_functions();
  const std::string_view found = family_here();
  if (found.empty() || found == GPUDT_MPI_FAMILY) return give_way_to_other_tools();
  pass_everything_through();
  if (is_first_rank())
    std::fprintf(
        stderr,
        "gpudt is off: it was built for %s, and this program runs over %s. Preload a build for that; gpudt-run "
        "finds it among those installed\n",
        GPUDT_MPI_FAMILY, found.data());
}

}  // namespace
