// The exported functions are jumps through a table (scripts/generate_entries.py). Its entries lead to this library's
// functions or, in a process that runs over another family of MPI libraries than this one was built for, to those of
// the MPI library itself: the families differ in the types of handles, so that a function compiled for one cannot even
// pass on what a program compiled for another gives it.
#include <dlfcn.h>
#include <mpi.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

// Both hidden, and defined by the generated assembly: the names are in the order of the entries, and end with none.
extern "C" void* gpudt_entries[];
extern "C" const char gpudt_entry_names[];

namespace {

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

void pass_everything_through() {
  void** entry = gpudt_entries;
  for (const char* name = gpudt_entry_names; *name != '\0'; name += std::strlen(name) + 1, ++entry)
    if (void* const behind = dlsym(RTLD_NEXT, name)) *entry = behind;
}

/// Before MPI is initialized only the launchers' variables tell; without any, every process is the first.
bool is_first_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* const rank = std::getenv(name)) return std::string_view(rank) == "0";
  return true;
}

/// Runs when the library is loaded. A process that has no MPI of its own sees the one that this library needs.
__attribute__((constructor)) void look_which_mpi_this_is() {
  static char version[longest_version];
  int length = 0;
  PMPI_Get_library_version(version, &length);
  const std::string_view found = family_of(std::string_view(version).substr(0, telling_part));
  if (found.empty() || found == GPUDT_MPI_FAMILY) return;
  pass_everything_through();
  if (is_first_rank())
    std::fprintf(stderr, "gpudt is off: it was built for %s, and this program runs over %s\n", GPUDT_MPI_FAMILY,
                 found.data());
}

}  // namespace
