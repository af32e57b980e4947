/* The simulated device as libgpudt-pmpi.so sees it: found with dlsym(RTLD_DEFAULT, "gpudt_sim_api"), so that neither
 * library needs the other. All functions name the device themselves (the caller's current device is not looked at) and
 * return a cudaError_t as int, 0 for success. */
#ifndef GPUDT_SIM_API_H
#define GPUDT_SIM_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUDT_SIM_API_VERSION 12

#define GPUDT_SIM_FIRST_BUS 0x10 /* the PCI bus of device 0; each device has one */

/* Kinds of memory; the values of cudaMemoryType. */
enum gpudt_sim_kind { gpudt_sim_host = 0, gpudt_sim_pinned = 1, gpudt_sim_device = 2, gpudt_sim_managed = 3 };

struct gpudt_sim_allocation {
  uint64_t id; /* differs for each allocation of the process */
  const void* begin;
  size_t bytes;
  int exportable;
};

/* Mapped memory of cuMemCreate whose handle may be a file descriptor. */
struct gpudt_sim_piece {
  uint64_t id; /* differs for each mapping of the process */
  const void* begin;
  size_t bytes;
  int device;
};

enum { gpudt_sim_handle_bytes = 64 }; /* CUDA_IPC_HANDLE_SIZE */

struct gpudt_sim_api_table {
  int version;
  int (*device_count)(void);
  int (*in_use)(void); /* 0: there has been no memory of a device yet */
  /* Never fails; unknown memory is gpudt_sim_host, with device -1. */
  enum gpudt_sim_kind (*classify)(const void* address, int* device);
  /* Kernels and copies reach device memory, which all lies in the `bytes` bytes from `begin`, `distance` bytes from
   * where the program knows it; other memory where it is. */
  void (*device_range)(const char** begin, size_t* bytes, ptrdiff_t* distance);

  int (*device_malloc)(int device, size_t bytes, void** address);
  int (*device_free)(void* address);
  int (*pinned_malloc)(int device, size_t bytes, void** address);
  int (*pinned_free)(void* address);
  int (*pinned_register)(int device, void* address, size_t bytes);
  int (*pinned_unregister)(void* address);
  /* Whether the memory from `first` to `last` is pinned, as one piece, and devices may write to it: 1 or 0. */
  int (*is_pinned)(const void* first, const void* last);

  /* Between processes and devices. allocation_of returns 0 for memory that is no device's. Handles have
   * gpudt_sim_handle_bytes bytes. */
  int (*allocation_of)(const void* address, struct gpudt_sim_allocation* allocation);
  int (*can_access_peer)(int device, int peer); /* 1 or 0 */
  int (*mps_enabled)(void);                     /* 1 or 0 */
  int (*ipc_export)(const void* address, void* handle);
  int (*ipc_open)(int device, const void* handle, void** address);
  int (*ipc_close)(int device, void* address);                         /* waits for the device */
  int (*piece_of)(const void* address, struct gpudt_sim_piece* piece); /* 0: there is none */
  int (*share_piece)(const void* begin, int* file);                    /* to be closed by the caller */
  int (*map_pieces)(int device, size_t count, const int* files, const size_t* sizes, void** address);
  int (*unmap_pieces)(int device, void* address, size_t bytes); /* waits for the device */

  int (*stream_create)(int device, void** stream); /* non-blocking, of the highest priority */
  int (*stream_destroy)(void* stream);
  int (*stream_synchronize)(void* stream);
  int (*stream_query)(void* stream); /* cudaSuccess, cudaErrorNotReady or an earlier failure */
  int (*stream_device)(void* stream, int* device);
  int (*stream_wait_event)(void* stream, void* event);
  int (*event_create)(int device, void** event);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  /* launch() in the device's legacy default stream. While a blocking stream is being captured, this and the next are
   * cudaErrorStreamCaptureImplicit, and do not invalidate the capture. */
  int (*default_launch)(int device, void (*kernel)(void*), const void* args, size_t bytes);
  int (*default_query)(int device); /* stream_query() of that stream */

  int (*copy_async)(void* to, const void* from, size_t bytes, void* stream);
  int (*copy_rows_async)(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         void* stream);
  int (*memset_async)(void* address, int value, size_t bytes, void* stream);
  /* Runs kernel(copy of the `bytes` bytes at `args`), the same copy in all launches of a graph, on the stream. A fault
   * in it is cudaErrorIllegalAddress, which sticks to the device. */
  int (*launch)(void* stream, void (*kernel)(void* args), const void* args, size_t bytes);

  int (*is_captured)(void* stream); /* 1 or 0 */
  /* Calls released(data) in another thread when the graph into which the stream is being captured has been destroyed,
   * with all that was made of it; not after an error. */
  int (*keep_with_graph)(void* stream, void (*released)(void*), void* data);

  const char* (*error_string)(int error);
};

__attribute__((visibility("default"))) const struct gpudt_sim_api_table* gpudt_sim_api(void);

#ifdef __cplusplus
}
#endif

#endif
