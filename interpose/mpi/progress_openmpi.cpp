// Progress in Open MPI 4 and 5: a callback of its progress engine, as its own components register them. libopen-pal
// exports the function for that.
#include <dlfcn.h>

#include "interpose/mpi/progress.hpp"

namespace gpudt::interpose {
namespace {

using Callback = int (*)();

Callback registered = nullptr;

/// opal_progress_register or its opposite; false if this Open MPI has none or refuses.
bool call_opal(const char* name, Callback callback) {
  const auto function = reinterpret_cast<int (*)(Callback)>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr && function(callback) == 0;
}

}  // namespace

int progress_thread_level(int required) {
  return required;
}

const char* progress_start(const Progressing& driven) {
  if (!call_opal("opal_progress_register", driven.advance))
    return "this MPI library has no opal_progress_register, so it is not Open MPI 4 or 5";
  registered = driven.advance;
  return nullptr;
}

void progress_stop() {
  if (registered != nullptr) call_opal("opal_progress_unregister", registered);
  registered = nullptr;
}

WithoutProgressThread::WithoutProgressThread() = default;
WithoutProgressThread::~WithoutProgressThread() = default;

}  // namespace gpudt::interpose
