// Functions of the CUDA driver, looked up while the program runs: libcuda is not there on machines without a GPU, where
// the simulated device has some of them.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace gpudt {

/// The simulated device's where that is preloaded or linked, else the driver's. Throws if there is none.
template <class Function>
Function* driver_function(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr && driver != nullptr) found = dlsym(driver, name);
  if (found == nullptr) throw std::runtime_error(std::string("no ") + name + " in the driver");
  return reinterpret_cast<Function*>(found);
}

}  // namespace gpudt

#define GPUDT_DRIVER(name) gpudt::driver_function<decltype(name)>(#name)
