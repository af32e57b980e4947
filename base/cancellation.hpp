// pthread_cancel(), which ends a thread where it waits or writes, as if an exception were thrown there.
#pragma once

#include <pthread.h>

namespace gpudt {

/// While it lives, this thread is not ended by pthread_cancel(), but later.
class CancellationPutOff {
 public:
  CancellationPutOff() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~CancellationPutOff() { pthread_setcancelstate(before_, nullptr); }
  CancellationPutOff(const CancellationPutOff&) = delete;
  CancellationPutOff& operator=(const CancellationPutOff&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace gpudt
