#include "interpose/calls/other_tools.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gpudt::interpose {
namespace {

const char* passed_by = nullptr;

/// A library, or the program, as ld.so has loaded it.
struct Object {
  const char* path;  ///< valid as long as it is loaded; empty for the program
  std::uintptr_t base, begin, end;
  const ElfW(Dyn) * dynamic;

  bool contains(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return begin <= at && at < end;
  }
};

Object object_of(const dl_phdr_info& info) {
  Object object{info.dlpi_name, info.dlpi_addr, UINTPTR_MAX, 0, nullptr};
  for (const ElfW(Phdr)* part = info.dlpi_phdr; part != info.dlpi_phdr + info.dlpi_phnum; ++part) {
    const std::uintptr_t begin = info.dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_DYNAMIC) object.dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (part->p_type != PT_LOAD) continue;
    object.begin = std::min(object.begin, begin);
    object.end = std::max(object.end, begin + part->p_memsz);
  }
  return object;
}

/// `act(name)` for each name that ld.so has bound, or is to bind, for the object.
template <class Act>
void for_each_bound_name(const Object& object, Act act) {
  if (object.dynamic == nullptr) return;
  std::array<std::uintptr_t, DT_NUM> values{};
  for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag > 0 && entry->d_tag < DT_NUM) values[static_cast<std::size_t>(entry->d_tag)] = entry->d_un.d_val;
  // Where ld.so leaves the addresses as they are in the file, they count from the base.
  const auto at = [&](std::size_t tag) { return values[tag] < object.base ? values[tag] + object.base : values[tag]; };
  if (values[DT_SYMTAB] == 0 || values[DT_STRTAB] == 0) return;
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

/// The same for a function of MPI's in C and in Fortran, by whatever name.
std::string in_any_language(std::string_view name) {
  std::string same(name);
  std::transform(same.begin(), same.end(), same.begin(), [](unsigned char letter) { return std::tolower(letter); });
  while (same.ends_with('_')) same.pop_back();
  if (same.ends_with("_f08")) same.resize(same.size() - 4);
  return same;
}

/// How a tool calls MPI.
class Calls {
 public:
  explicit Calls(const Object& tool) : tool_(&tool) {
    for_each_bound_name(tool, [this](std::string_view name) {
      if (name.starts_with("PMPI") || name.starts_with("pmpi")) bound_.insert(in_any_language(name));
      if (name == "dlsym" || name == "dlvsym") looks_up_ = true;
    });
  }
  const Object* tool() const { return tool_; }
  /// Whether what it does for `name` comes by a name PMPI_X. One that uses dlsym() may find MPI's function by that.
  bool by_profiling_name(const char* name) const {
    return !looks_up_ || bound_.count("p" + in_any_language(name)) != 0;
  }

 private:
  const Object* tool_;
  std::set<std::string> bound_;
  bool looks_up_ = false;
};

/// Whether the name is that of a Fortran procedure: these are all in upper or all in lower case.
bool is_fortran(const char* name) {
  const auto is_lower = [](unsigned char letter) { return std::islower(letter) != 0; };
  return *name != 'M' || std::none_of(name, name + std::strlen(name), is_lower);
}

/// The MPI library's own function, found by its PMPI name, also if a tool defines the MPI name.
void* of_the_mpi(const char* name) {
  std::array<char, 128> profiling{};
  profiling[0] = *name == 'M' ? 'P' : 'p';
  std::strncpy(profiling.data() + 1, name, profiling.size() - 2);
  return dlsym(RTLD_NEXT, profiling.data());
}

}  // namespace

struct OtherTools::Objects {
  std::vector<Object> all;
  std::vector<Calls> tools;  ///< those that gpudt comes before
  const bool has_fortran = dlsym(RTLD_NEXT, "pmpi_init_") != nullptr;
  const bool has_fortran_stubs = dlsym(RTLD_NEXT, "mpi_init_") != nullptr;

  /// Where the MPI library has no Fortran procedures: what the program has in their place.
  void* stub(const char* procedure) const { return has_fortran_stubs ? dlsym(RTLD_NEXT, procedure) : nullptr; }

  const Object* at(const void* address) const {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Object& one) { return one.contains(address); });
    return found == all.end() ? nullptr : &*found;
  }

  const Calls& calls_of(const Object* tool) {
    const auto known = std::find_if(tools.begin(), tools.end(), [&](const Calls& one) { return one.tool() == tool; });
    return known == tools.end() ? tools.emplace_back(*tool) : *known;
  }
};

OtherTools::OtherTools() : objects_(std::make_unique<Objects>()) {
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* objects) {
        static_cast<Objects*>(objects)->all.push_back(object_of(*info));
        return 0;
      },
      objects_.get());
}

OtherTools::~OtherTools() = default;

void* OtherTools::in_place_of(const char* name) {
  if (!objects_->has_fortran && is_fortran(name)) return objects_->stub(name);
  const void* const own = of_the_mpi(name);
  void* const next = dlsym(RTLD_NEXT, name);
  void* const first = dlsym(RTLD_DEFAULT, name);
  if (own == nullptr || next == nullptr) return nullptr;
  const Object* const mpi = objects_->at(own);
  const Object* const here = objects_->at(&passed_by);
  // MPI_X is mostly another name of PMPI_X.
  const auto tool_at = [&](const void* function) {
    const Object* const object = function == own ? mpi : objects_->at(function);
    return object == mpi || object == here ? nullptr : object;
  };
  if (tool_at(first) != nullptr) any_ = true;
  const Object* const behind = tool_at(next);
  if (behind == nullptr) return nullptr;
  if (!objects_->calls_of(behind).by_profiling_name(name)) {
    passed_by = behind->path;
    return nullptr;
  }
  any_ = true;
  return next;
}

const char* tool_passed_by() {
  return passed_by;
}

}  // namespace gpudt::interpose
