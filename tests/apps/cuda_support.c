/* Asks the MPI library whether it takes GPU pointers, as applications do that have a way for each answer.
 * usage: cuda-support EXPECTED: the answer between MPI_Init and MPI_Finalize; "native" is the library's own. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

static void expect(const char* when, const char* question, int answer, int expected) {
  if (answer == expected) return;
  fprintf(stderr, "%s says %d %s, not %d\n", question, answer, when, expected);
  wrong = 1;
}

/* The answers of all the questions that this MPI library or a library before it knows. */
static void ask(const char* when, int expected) {
  int (*query)(void) = NULL;
  int (*query_gpu)(int, int*) = NULL;
  *(void**)&query = dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
  *(void**)&query_gpu = dlsym(RTLD_DEFAULT, "MPIX_GPU_query_support");
#ifdef MPICH_VERSION /* aborts while it is not initialized */
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized) query_gpu = NULL;
#endif
  if (query != NULL) expect(when, "MPIX_Query_cuda_support", query(), expected);
  const char* const others[] = {"MPIX_Query_ze_support", "MPIX_Query_hip_support", "MPIX_Query_rocm_support"};
  for (int i = 0; i < 3; ++i) {
    int (*other)(void) = NULL;
    *(void**)&other = dlsym(RTLD_DEFAULT, others[i]);
    if (other == NULL)
      expect(when, others[i], -1, 0);
    else
      expect(when, others[i], other(), 0);
  }
  if (query_gpu != NULL) {
    int supported = -1;
    query_gpu(0, &supported);
    expect(when, "MPIX_GPU_query_support", supported, expected);
  }
}

/* What the MPI library says of itself: it alone has a PMPI_Wtime. */
static int native(void) {
  Dl_info mpi;
  int (*query)(void) = NULL;
  if (dladdr(dlsym(RTLD_DEFAULT, "PMPI_Wtime"), &mpi) == 0) return 0;
  void* const library = dlopen(mpi.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library != NULL) *(void**)&query = dlsym(library, "MPIX_Query_cuda_support");
  return query == NULL ? 0 : query();
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int own = native();
  ask("before MPI_Init", own);
  MPI_Init(&argc, &argv);
  ask("after MPI_Init", strcmp(argv[1], "native") == 0 ? own : atoi(argv[1]));
  MPI_Finalize();
  ask("after MPI_Finalize", own);
  return wrong;
}
