/* Preloaded by run-mpi.sh, behind all others: ranks that wait sleep, since there may be more of them than processors.
   MPI libraries and gpudt call sched_yield() while they wait. The scheduler of Linux 6.6 and later then has the process
   wait for a whole time slice wherever another one computes, and returns at once where none does, so that a core is
   always busy. MPICH 4.0 does not even do that, but polls UCX. */
#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  yields = 20, /* before each sleep: gpudt may look for messages of each of many windows */
  /* Each sleep takes a quarter of the time waited so far, within bounds: on a virtual machine it costs 20 us of a
     processor, however short it is. */
  part_of_wait = 4,
  least_nanoseconds = 5 * 1000,
  most_nanoseconds = 1000 * 1000,
  worked_nanoseconds = 20 * 1000 /* between two calls: what the thread waited for has come meanwhile */
};

static __thread int calls;           /* calls of sched_yield() in this wait since the latest sleep */
static __thread int64_t began, last; /* times: when this wait began, 0 if none is under way; the latest call's end */
static __thread int progress_calls;  /* calls of opal_progress() that have not returned */
static __thread int found_nothing;   /* sched_yield() was called in the innermost one of them */

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void sleep_a_while(int64_t waited) {
  int64_t length = waited / part_of_wait;
  if (length < least_nanoseconds) length = least_nanoseconds;
  if (length > most_nanoseconds) length = most_nanoseconds;
  prctl(PR_SET_TIMERSLACK, 1000UL); /* nanoseconds; else the kernel adds 50 us */
  nanosleep(&(struct timespec){0, length}, NULL);
}

int sched_yield(void) {
  found_nothing = 1;
  if (progress_calls > 1) return 0; /* the outermost one will sleep */
  int64_t time = now();
  if (began == 0 || time - last > worked_nanoseconds) {
    calls = 0;
    began = time;
  }
  int result = 0;
  if (++calls <= yields) {
    result = (int)syscall(SYS_sched_yield);
  } else {
    calls = 0;
    sleep_a_while(time - began);
  }
  last = now();
  return result;
}

/* Open MPI's progress, which calls sched_yield() if it has found nothing to do. Else a wait has made a step. */
void opal_progress(void) {
  static void (*next)(void);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "opal_progress");
  found_nothing = 0;
  ++progress_calls;
  next();
  --progress_calls;
  if (!found_nothing && progress_calls == 0) began = 0;
}

/* MPICH's progress over UCX. */
unsigned ucp_worker_progress(void* worker) {
  static unsigned (*next)(void*);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "ucp_worker_progress");
  unsigned events = next(worker);
  if (events == 0)
    sched_yield();
  else
    began = 0;
  return events;
}
