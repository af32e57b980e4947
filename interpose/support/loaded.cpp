#include "interpose/support/loaded.hpp"

#include <dlfcn.h>
#include <link.h>

#include <string>
#include <vector>

namespace gpudt::interpose {
namespace {

/// The paths of all loaded files but the program, whose functions are in the global scope.
std::vector<std::string> loaded_files() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        if (*info->dlpi_name != '\0') static_cast<std::vector<std::string>*>(found)->emplace_back(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

/// Whether `function` is not null, and not of this library.
bool is_elsewhere(const void* function) {
  static const char here = 0;
  return function != nullptr && file_of(function) != file_of(&here);
}

/// The function of a loaded file, or of those that it needs; null if there is none but this library's.
void* function_in(const char* path, const char* name) {
  void* const file = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (file == nullptr) return nullptr;
  void* const function = dlsym(file, name);
  dlclose(file);
  return is_elsewhere(function) ? function : nullptr;
}

}  // namespace

const void* file_of(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 ? info.dli_fbase : nullptr;
}

void* global_function(const char* name) {
  if (void* const next = dlsym(RTLD_NEXT, name)) return next;
  void* const first = dlsym(RTLD_DEFAULT, name);
  return is_elsewhere(first) ? first : nullptr;
}

void* loaded_function(const char* name) {
  if (void* const function = global_function(name)) return function;
  for (const std::string& path : loaded_files())
    if (void* const function = function_in(path.c_str(), name)) return function;
  return nullptr;
}

void* function_beside(const void* other, const char* name) {
  Dl_info info{};
  return dladdr(other, &info) != 0 ? function_in(info.dli_fname, name) : nullptr;
}

void make_global(const void* function) {
  Dl_info info{};
  if (dladdr(function, &info) != 0) dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
}

}  // namespace gpudt::interpose
