/* Preloaded before all others: takes the place of Open MPI's handler for events of PMIx, lets it handle them, and
   answers them half a second later. So a thread that does not get a processor for that long would. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* pmix_event_notification_cbfunc_fn_t and pmix_notification_fn_t of pmix_common.h */
typedef void answer_t(int status, void* results, size_t count, void (*answered)(int, void*), void* of_answered,
                      void* event);
typedef void handler_t(size_t handler, int status, const void* source, void* infos, size_t info_count, void* results,
                       size_t result_count, answer_t* answer, void* event);
typedef int registrar_t(int* statuses, size_t count, void* infos, size_t info_count, handler_t* handler,
                        void (*registered)(int, size_t, void*), void* of_registered);

typedef struct {
  answer_t* answer;
  void* event;
} unanswered_t;

static handler_t* of_openmpi;

static void answer_late(int status, void* results, size_t count, void (*answered)(int, void*), void* of_answered,
                        void* event) {
  unanswered_t unanswered = *(unanswered_t*)event;
  free(event);
  fputs("an event is answered late\n", stderr);
  nanosleep(&(struct timespec){0, 500 * 1000 * 1000}, NULL);
  unanswered.answer(status, results, count, answered, of_answered, unanswered.event);
}

static void handle(size_t handler, int status, const void* source, void* infos, size_t info_count, void* results,
                   size_t result_count, answer_t* answer, void* event) {
  unanswered_t* unanswered = malloc(sizeof *unanswered);
  *unanswered = (unanswered_t){answer, event};
  of_openmpi(handler, status, source, infos, info_count, results, result_count, answer_late, unanswered);
}

int PMIx_Register_event_handler(int* statuses, size_t count, void* infos, size_t info_count, handler_t* handler,
                                void (*registered)(int, size_t, void*), void* of_registered) {
  registrar_t* next;
  void* const pmix = dlopen("libpmix.so.2", RTLD_LAZY | RTLD_NOLOAD);
  *(void**)&next = dlsym(RTLD_NEXT, "PMIx_Register_event_handler");
  if (next == NULL) *(void**)&next = dlsym(pmix, "PMIx_Register_event_handler");
  of_openmpi = handler;
  return next(statuses, count, infos, info_count, handle, registered, of_registered);
}
