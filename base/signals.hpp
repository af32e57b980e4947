// Signals, which are for the program's threads alone.
#pragma once

#include <pthread.h>

#include <csignal>

namespace gpudt {

/// While it lives, this thread takes no signals. Threads that it starts meanwhile inherit that for good.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace gpudt
