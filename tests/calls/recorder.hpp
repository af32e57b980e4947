// Which MPI functions a program calls with buffers in device memory and with derived datatypes. The functions are
// generated (generate_recorder.py) from interpose/functions.txt; each notes the call and goes on to the next library,
// which is libgpudt-pmpi.so when this one is preloaded before it.
//
// At its end every process appends its counts to a file in the folder GPUDT_CALLS_FOLDER: one line a function, with
// tabs: name, calls, calls with device memory, those with a derived datatype too, the test case of the first of these.
#pragma once

#include <dlfcn.h>
#include <mpi.h>

#include <atomic>
#include <mutex>
#include <string>

#include "tests/support/derived_type.hpp"

namespace gpudt::test {

class Recorder {
 public:
  explicit Recorder(const char* name);
  void note(bool device, bool derived);

 private:
  friend class Book;
  const char* name_;
  std::atomic<long> calls_{0}, device_{0}, both_{0};
  std::mutex mutex_;
  std::string test_case_;
};

/// Whether the bytes that a call with this buffer and datatype reaches begin in device or managed memory.
bool on_device(const void* buffer, MPI_Datatype type);
bool on_device(const void* buffer);

// Arrays of datatypes: the first one stands for all.
inline bool on_device(const void* buffer, const MPI_Datatype*) {
  return on_device(buffer);
}
inline bool is_derived(const MPI_Datatype* types) {
  return types != nullptr && is_derived(types[0]);
}

template <class Function>
Function next_function(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace gpudt::test
