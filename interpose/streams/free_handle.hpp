// MPI_Type_free and the like: enqueued operations may still use the handle when the program frees it.
#pragma once

#include "interpose/streams/service.hpp"

namespace gpudt::interpose {

/// `free(handle)` or, while operations are enqueued, a promise to call it when they are over; then `*handle` is
/// `null`. May throw std::bad_alloc.
template <class Handle, class Free>
int free_handle(Handle* handle, Handle null, Free free) {
  if (!enqueued_calls_live()) return free(handle);
  free_after_enqueued([kept = *handle, free]() mutable { free(&kept); });
  *handle = null;
  return MPI_SUCCESS;
}

}  // namespace gpudt::interpose
