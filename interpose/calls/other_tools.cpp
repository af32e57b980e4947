#include "interpose/calls/other_tools.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace gpudt::interpose {
namespace {

const char* passed_by = nullptr;

/// A library, or the program, as ld.so has loaded it.
struct Object {
  const char* path = nullptr;  ///< valid as long as it is loaded; empty for the program
  std::uintptr_t base = 0;
  const ElfW(Dyn) * dynamic = nullptr;  ///< identifies the object; null if there is none
};

Object object_of(const dl_phdr_info& info) {
  Object object{info.dlpi_name, info.dlpi_addr, nullptr};
  for (const ElfW(Phdr)* part = info.dlpi_phdr; part != info.dlpi_phdr + info.dlpi_phnum; ++part)
    if (part->p_type == PT_DYNAMIC) object.dynamic = reinterpret_cast<const ElfW(Dyn)*>(object.base + part->p_vaddr);
  return object;
}

/// The object that contains this address. (dladdr() would look through its symbols, which takes 20 us.)
Object object_at(const void* address) {
  struct {
    std::uintptr_t address;
    Object found;
  } search{reinterpret_cast<std::uintptr_t>(address), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& [address, found] = *static_cast<decltype(search)*>(data);
        bool contains = false;
        for (const ElfW(Phdr)* part = info->dlpi_phdr; part != info->dlpi_phdr + info->dlpi_phnum; ++part) {
          const std::uintptr_t begin = info->dlpi_addr + part->p_vaddr;
          contains = contains || (part->p_type == PT_LOAD && begin <= address && address < begin + part->p_memsz);
        }
        if (contains) found = object_of(*info);
        return contains ? 1 : 0;
      },
      &search);
  return search.found;
}

/// Calls `act(name)` for each name that ld.so has bound, or will bind, for the object.
template <class Act>
void for_each_bound_name(const Object& object, Act act) {
  std::array<std::uintptr_t, DT_NUM> values{};
  if (object.dynamic == nullptr) return;
  for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag > 0 && entry->d_tag < DT_NUM) values[static_cast<std::size_t>(entry->d_tag)] = entry->d_un.d_val;
  // Some ld.so leave the addresses as in the file, relative to the base.
  const auto at = [&](std::size_t tag) { return values[tag] < object.base ? values[tag] + object.base : values[tag]; };
  const auto* const symbols = reinterpret_cast<const ElfW(Sym)*>(at(DT_SYMTAB));
  const auto* const names = reinterpret_cast<const char*>(at(DT_STRTAB));
  const auto all_in = [&](std::size_t table, std::size_t bytes) {
    if (values[table] == 0) return;
    const auto* const first = reinterpret_cast<const ElfW(Rela)*>(at(table));
    std::for_each(first, first + values[bytes] / sizeof *first, [&](const ElfW(Rela) & one) {
      const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(one.r_info)];
      if (symbol.st_shndx == SHN_UNDEF) act(names + symbol.st_name);
    });
  };
  all_in(DT_JMPREL, DT_PLTRELSZ);
  all_in(DT_RELA, DT_RELASZ);
}

/// A name that is the same for all C and Fortran names of an MPI function.
std::string in_any_language(std::string_view name) {
  std::string same(name);
  std::transform(same.begin(), same.end(), same.begin(), [](unsigned char letter) { return std::tolower(letter); });
  while (same.ends_with('_')) same.pop_back();
  if (same.ends_with("_f08")) same.resize(same.size() - 4);
  return same;
}

/// Whether the tool's function `name` calls PMPI_X. A tool that uses dlsym() may get MPI's function by that instead.
bool calls_by_profiling_name(const Object& tool, std::string_view name) {
  bool looks_up = false, bound = false;
  const std::string wanted = "p" + in_any_language(name);
  for_each_bound_name(tool, [&](std::string_view used) {
    looks_up = looks_up || used == "dlsym" || used == "dlvsym";
    bound = bound || ((used.starts_with("PMPI") || used.starts_with("pmpi")) && in_any_language(used) == wanted);
  });
  return bound || !looks_up;
}

/// Whether the name is that of a Fortran procedure: these are all in upper or all in lower case.
bool is_fortran(const char* name) {
  const auto is_lower = [](unsigned char letter) { return std::islower(letter) != 0; };
  return *name != 'M' || std::none_of(name, name + std::strlen(name), is_lower);
}

/// The MPI library's own function, found by its PMPI name, also if a tool defines the MPI name.
void* of_the_mpi(const char* name) {
  const std::string profiling = (*name == 'M' ? "P" : "p") + std::string(name);
  return dlsym(RTLD_NEXT, profiling.c_str());
}

}  // namespace

OtherTools::OtherTools()
    : here_(object_at(&passed_by).dynamic),
      has_fortran_(dlsym(RTLD_NEXT, "pmpi_init_") != nullptr),
      has_fortran_stubs_(dlsym(RTLD_NEXT, "mpi_init_") != nullptr) {}

void* OtherTools::in_place_of(const char* name) {
  if (!has_fortran_ && is_fortran(name)) return has_fortran_stubs_ ? dlsym(RTLD_NEXT, name) : nullptr;
  const void* const own = of_the_mpi(name);
  void* const next = dlsym(RTLD_NEXT, name);
  if (own == nullptr || next == nullptr) return nullptr;
  // MPI_X is mostly an alias of PMPI_X.
  const auto tool_at = [&](const void* function) {
    if (function == own) return Object();
    const Object object = object_at(function);
    return object.dynamic == here_ || object.dynamic == object_at(own).dynamic ? Object() : object;
  };
  if (tool_at(dlsym(RTLD_DEFAULT, name)).dynamic != nullptr) any_ = true;
  const Object behind = tool_at(next);
  if (behind.dynamic == nullptr) return nullptr;
  if (!calls_by_profiling_name(behind, name)) {
    passed_by = behind.path;
    return nullptr;
  }
  any_ = true;
  return next;
}

bool makes_streams() {
  struct {
    const void* here = object_at(&passed_by).dynamic;  // its procedures for Fortran call the functions
    bool found = false;
  } search;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& wanted = *static_cast<decltype(search)*>(data);
        const Object object = object_of(*info);
        // MPI's Fortran libraries import all functions of MPI.
        const std::string_view path = info->dlpi_name;
        if (path.substr(path.rfind('/') + 1).starts_with("libmpi") || object.dynamic == wanted.here) return 0;
        for_each_bound_name(object, [&](std::string_view bound) {
          wanted.found = wanted.found || bound == "MPIX_Stream_create" || bound == "mpix_stream_create_";
        });
        return wanted.found ? 1 : 0;
      },
      &search);
  return search.found;
}

const char* tool_passed_by() {
  return passed_by;
}

}  // namespace gpudt::interpose
