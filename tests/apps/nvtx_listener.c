/* A tool that listens to NVTX as Nsight Systems does (NVTX_INJECTION64_PATH names it). When the process ends it prints
 * one line for each name, "nvtx NAME: N ranges, B bytes", and how many ranges have not ended. */
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { most_names = 200 };
static struct {
  char name[64];
  long ranges, bytes;
} seen[most_names];
static long open_ranges, made;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static long note(const nvtxEventAttributes_t* event) {
  int at = 0;
  pthread_mutex_lock(&mutex);
  while (seen[at].name[0] != 0 && strcmp(seen[at].name, event->message.ascii) != 0 && at < most_names - 1) ++at;
  strncpy(seen[at].name, event->message.ascii, sizeof seen[at].name - 1);
  ++seen[at].ranges;
  if (event->payloadType == NVTX_PAYLOAD_TYPE_INT64) seen[at].bytes += (long)event->payload.llValue;
  ++open_ranges;
  const long id = ++made;
  pthread_mutex_unlock(&mutex);
  return id;
}

static void end_range(void) {
  pthread_mutex_lock(&mutex);
  --open_ranges;
  pthread_mutex_unlock(&mutex);
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  (void)domain;
  note(event);
  return 0;
}
static int pop(nvtxDomainHandle_t domain) {
  (void)domain;
  end_range();
  return 0;
}
static nvtxRangeId_t start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  (void)domain;
  return (nvtxRangeId_t)note(event);
}
static void end(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
  (void)domain;
  if (range != 0) end_range();
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of) {
  const NvtxExportTableCallbacks* const callbacks = table_of(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned size = 0;
  if (callbacks == NULL || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)start;
  *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)end;
  return 1;
}

__attribute__((destructor)) static void tell(void) {
  for (int at = 0; at < most_names && seen[at].name[0] != 0; ++at)
    fprintf(stderr, "nvtx %s: %ld ranges, %ld bytes\n", seen[at].name, seen[at].ranges, seen[at].bytes);
  fprintf(stderr, "nvtx: %ld ranges have not ended\n", open_ranges);
}
