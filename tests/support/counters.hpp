// The library's counters, by name (gpudt_counter()), of a program that is not linked to it.
#pragma once

#include <dlfcn.h>

#include <string>

namespace gpudt::test {

/// 0 if there is none of this name.
inline long long counter(const std::string& wanted) {
  using Counter = int (*)(int, const char**, long long*);
  const auto find = reinterpret_cast<Counter>(dlsym(RTLD_DEFAULT, "gpudt_counter"));
  const char* name = nullptr;
  long long value = 0;
  for (int index = 0; find != nullptr && find(index, &name, &value) == 1; ++index)
    if (wanted == name) return value;
  return 0;
}

}  // namespace gpudt::test
