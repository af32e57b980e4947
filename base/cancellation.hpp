// Protection from pthread_cancel(), which unwinds a thread at a cancellation point as an exception would.
#pragma once

#include <pthread.h>

namespace gpudt {

/// While it lives, a pthread_cancel() of this thread is deferred.
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
