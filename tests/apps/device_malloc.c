/* Preloaded, it makes an MPI program one that uses device memory: what the program itself allocates by malloc() and the
 * like after MPI_Init is memory of the simulated device, which the host may access there (GPUDT_SIM_HOST_ACCESS=1).
 * scripts/check/mpich_suite.py and host_programs.py run other people's tests and programs so.
 *
 * DEVICE_MALLOC_OF: parts of the paths of libraries, separated by colons, whose allocations are replaced, too. Those of
 * C++ programs are made by libstdc++. Only of libraries that are loaded at MPI_Init.
 * DEVICE_MALLOC_LEAST: shorter allocations, in bytes, are left alone. There is room for 8192 at a time. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Of glibc. NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming) */
extern void* __libc_malloc(size_t);
extern void __libc_free(void*);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
/* NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming) */

enum { slots = 1 << 16, most_blocks = slots / 8, garbage = 0xa5 };

/* The blocks of device memory: a hash table, in which a freed block leaves a mark. */
static struct Block {
  void* address;
  size_t bytes;
} blocks[slots];
static char freed; /* its address is the mark */
static int count;
static uintptr_t lowest = UINTPTR_MAX, highest;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The code of the executable and of the libraries that DEVICE_MALLOC_OF names. */
static struct Code { uintptr_t begin, end; } codes[64];
static int code_count, objects_seen;
static size_t least = 1;
static volatile int begun;
static __thread int within_cuda;

static size_t slot_of(const void* address) {
  return (size_t)(((uintptr_t)address >> 8) * 0x9E3779B97F4A7C15U >> 48);
}

static void enter(void* address, size_t bytes) {
  pthread_mutex_lock(&mutex);
  size_t at = slot_of(address);
  while (blocks[at].address != NULL && blocks[at].address != &freed) at = (at + 1) % slots;
  blocks[at] = (struct Block){address, bytes};
  ++count;
  if ((uintptr_t)address < lowest) lowest = (uintptr_t)address;
  if ((uintptr_t)address > highest) highest = (uintptr_t)address;
  pthread_mutex_unlock(&mutex);
}

/* The size of the block there, 0 if there is none; with `take` it leaves the table. */
static size_t find(const void* address, int take) {
  if (address == NULL || (uintptr_t)address < lowest || (uintptr_t)address > highest) return 0;
  size_t bytes = 0;
  pthread_mutex_lock(&mutex);
  for (size_t at = slot_of(address); blocks[at].address != NULL; at = (at + 1) % slots) {
    if (blocks[at].address != address) continue;
    bytes = blocks[at].bytes;
    if (take) {
      blocks[at].address = &freed;
      --count;
    }
    break;
  }
  pthread_mutex_unlock(&mutex);
  return bytes;
}

/* Null if there is no room. */
static void* device_memory(size_t bytes) {
  if (bytes < least || count >= most_blocks) return NULL;
  void* address = NULL;
  within_cuda = 1;
  const int made = cudaMalloc(&address, bytes) == cudaSuccess && cudaMemset(address, garbage, bytes) == cudaSuccess &&
                   cudaDeviceSynchronize() == cudaSuccess;
  within_cuda = 0;
  if (made) enter(address, bytes);
  return made ? address : NULL;
}

static int is_of_program(const void* caller) {
  if (!begun || within_cuda) return 0;
  for (int i = 0; i < code_count; ++i)
    if ((uintptr_t)caller >= codes[i].begin && (uintptr_t)caller < codes[i].end) return 1;
  return 0;
}

/* cudaMalloc's alignment. */
static void* aligned_memory(const void* caller, size_t alignment, size_t bytes) {
  void* const address = alignment <= 256 && is_of_program(caller) ? device_memory(bytes) : NULL;
  return address != NULL ? address : __libc_memalign(alignment, bytes);
}

#pragma GCC visibility push(default)

void* malloc(size_t bytes) {
  void* const address = is_of_program(__builtin_return_address(0)) ? device_memory(bytes) : NULL;
  return address != NULL ? address : __libc_malloc(bytes);
}

void* calloc(size_t number, size_t bytes) {
  size_t all = 0;
  void* const address = is_of_program(__builtin_return_address(0)) && !__builtin_mul_overflow(number, bytes, &all)
                            ? device_memory(all)
                            : NULL;
  return address != NULL ? memset(address, 0, all) : __libc_calloc(number, bytes);
}

int posix_memalign(void** made, size_t alignment, size_t bytes) {
  *made = aligned_memory(__builtin_return_address(0), alignment, bytes);
  return *made != NULL ? 0 : ENOMEM;
}

void* aligned_alloc(size_t alignment, size_t bytes) {
  return aligned_memory(__builtin_return_address(0), alignment, bytes);
}

void* memalign(size_t alignment, size_t bytes) {
  return aligned_memory(__builtin_return_address(0), alignment, bytes);
}

void free(void* address) {
  if (find(address, 1) == 0) {
    __libc_free(address);
    return;
  }
  within_cuda = 1;
  cudaFree(address);
  within_cuda = 0;
}

void* realloc(void* address, size_t bytes) {
  const size_t before = find(address, 0);
  if (before == 0) return __libc_realloc(address, bytes);
  void* moved = device_memory(bytes);
  if (moved == NULL) moved = __libc_malloc(bytes);
  if (moved == NULL) return NULL;
  memcpy(moved, address, before < bytes ? before : bytes);
  free(address);
  return moved;
}

#pragma GCC visibility pop

static int is_named(const char* path) {
  const char* names = getenv("DEVICE_MALLOC_OF");
  while (names != NULL && *names != 0) {
    const size_t length = strcspn(names, ":");
    char name[256] = "";
    if (length > 0 && length < sizeof name && strstr(path, memcpy(name, names, length)) != NULL) return 1;
    names += length + (names[length] == ':');
  }
  return 0;
}

/* The first object is the executable. */
static int note_code(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  (void)data;
  if (objects_seen++ != 0 && !is_named(info->dlpi_name)) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD || (info->dlpi_phdr[i].p_flags & PF_X) == 0) continue;
    if (code_count == sizeof codes / sizeof *codes) return 1;
    const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    codes[code_count++] = (struct Code){begin, begin + info->dlpi_phdr[i].p_memsz};
  }
  return 0;
}

static void begin(void) {
  const char* rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  if (rank == NULL) rank = getenv("MPI_LOCALRANKID");
  int devices = 0;
  within_cuda = 1;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
    cudaSetDevice(rank == NULL ? 0 : (int)strtol(rank, NULL, 10) % devices);
  within_cuda = 0;
  const char* const shortest = getenv("DEVICE_MALLOC_LEAST");
  if (shortest != NULL) least = strtoul(shortest, NULL, 10);
  dl_iterate_phdr(note_code, NULL);
  begun = 1;
}

#define BEHIND(name) (*(__typeof__(&P##name)*)&(void*){dlsym(RTLD_NEXT, #name)})
#define BEHIND_FORTRAN(name) (*(__typeof__(&(name))*)&(void*){dlsym(RTLD_NEXT, #name)})

#pragma GCC visibility push(default)

int MPI_Init(int* argc, char*** argv) {
  const int code = BEHIND(MPI_Init)(argc, argv);
  begin();
  return code;
}

int MPI_Init_thread(int* argc, char*** argv, int wanted, int* given) {
  const int code = BEHIND(MPI_Init_thread)(argc, argv, wanted, given);
  begin();
  return code;
}

void mpi_init_(MPI_Fint* error) {
  BEHIND_FORTRAN(mpi_init_)(error);
  begin();
}

void mpi_init_thread_(const MPI_Fint* wanted, MPI_Fint* given, MPI_Fint* error) {
  BEHIND_FORTRAN(mpi_init_thread_)(wanted, given, error);
  begin();
}
