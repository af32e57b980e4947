/* Preloaded by run-mpi.sh, behind all others: ranks that wait sleep for a moment, since there may be more of them than
   processors. MPI libraries and gpudt call sched_yield() while they wait; the scheduler of Linux 6.6 and later then has
   the process wait for a whole time slice wherever another one computes, and returns at once where none does, so that a
   core is always busy. MPICH 4.0 does not even do that, but polls UCX. */
#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  yields = 20,                   /* before the first sleep */
  sleep_nanoseconds = 20 * 1000, /* each time */
  worked_nanoseconds = 20 * 1000 /* between two calls: what the thread waited for has come meanwhile */
};

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

int sched_yield(void) {
  static __thread int64_t last;
  static __thread int calls;
  if (now() - last > worked_nanoseconds) calls = 0;
  int result = 0;
  if (++calls <= yields) {
    result = (int)syscall(SYS_sched_yield);
  } else {
    if (calls == yields + 1) prctl(PR_SET_TIMERSLACK, 1000UL); /* nanoseconds; else the kernel adds 50 us */
    nanosleep(&(struct timespec){0, sleep_nanoseconds}, NULL);
  }
  last = now();
  return result;
}

/* MPICH's progress over UCX. */
unsigned ucp_worker_progress(void* worker) {
  static unsigned (*next)(void*);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "ucp_worker_progress");
  unsigned events = next(worker);
  if (events == 0) sched_yield();
  return events;
}
