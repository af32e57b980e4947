// MPI in streams of a GPU (include/gpudt_streams.h), but for the functions that enqueue an operation: these are
// generated (scripts/generate/streams.py). Each of them keeps its arguments and, when its stream comes to it, is the
// library's nonblocking function of that name.
#include <atomic>
#include <cstring>
#include <string>

#include "include/gpudt_streams.h"
#include "interpose/streams/enqueue.hpp"
#include "interpose/streams/program_stream.hpp"
#include "interpose/streams/service.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/loaded.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {
namespace {

/// MPICH's function of this name, which serves streams other than of GPUs; null if there is none.
template <class Function>
Function* mpi_function(const char* name) {
  return reinterpret_cast<Function*>(global_function(name));
}

// --- streams and communicators ---------------------------------------------------------------------------------------

/// The value of a key; empty if it has none.
std::string info_value(MPI_Info info, const char* key) {
  char value[MPI_MAX_INFO_VAL + 1] = "";
  int found = 0;
  if (info != MPI_INFO_NULL) PMPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &found);
  return found != 0 ? value : "";
}

int hex_digit(char digit) {
  constexpr const char* digits = "0123456789abcdef";
  const char* const at = std::strchr(digits, digit);
  return digit == '\0' || at == nullptr ? -1 : static_cast<int>(at - digits);
}

/// The stream that MPIX_Info_set_hex has put into the info object. Throws MpiError.
void* stream_in(const std::string& value) {
  void* stream = nullptr;
  unsigned char bytes[sizeof stream] = {};
  bool is_hex = value.size() == 2 * sizeof stream;
  for (std::size_t i = 0; is_hex && i < sizeof stream; ++i) {
    const int high = hex_digit(value[2 * i]), low = hex_digit(value[2 * i + 1]);
    is_hex = high >= 0 && low >= 0;
    bytes[i] = static_cast<unsigned char>(16 * high + low);
  }
  if (!is_hex)
    throw MpiError(MPI_ERR_INFO_VALUE, "the key \"value\" of the info object has no cudaStream_t (MPIX_Info_set_hex)");
  std::memcpy(&stream, bytes, sizeof stream);
  return stream;
}

void need_threads() {
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE)
    throw MpiError(MPI_ERR_OTHER,
                   "it needs MPI_THREAD_MULTIPLE: request that level from MPI_Init_thread (programs that are linked to "
                   "MPIX_Stream_create get it from any MPI_Init)");
}

void need(const void* place, const char* what) {
  if (place == nullptr) throw MpiError(MPI_ERR_ARG, std::string("argument ") + what + " is null");
}

/// Once: programs that are linked to these functions load theirs at the start (prepare_for_streams()).
void warn_of_lazy_loading() {
  static const bool lazy = device::loads_lazily();
  static std::atomic<bool> said{false};
  if (lazy && !said.exchange(true))
    log_warning(
        "MPIX_Stream_create: CUDA loads a kernel when it is first launched, and may then wait for ever for operations "
        "enqueued before. Set CUDA_MODULE_LOADING=EAGER, or launch each kernel once before");
}

int create(MPI_Info info, MPIX_Stream* stream) {
  need(stream, "stream");
  if (info_value(info, "type") != "cudaStream_t")
    throw MpiError(MPI_ERR_INFO_VALUE, "the info object must have the key \"type\" with the value \"cudaStream_t\"");
  if (!active.load() || std::strcmp(device::runtime_name(), "none") == 0)
    throw MpiError(MPI_ERR_OTHER, "there is no GPU, or gpudt is off");
  void* const handle = stream_in(info_value(info, "value"));
  need_threads();
  warn_of_lazy_loading();
  auto made = std::make_shared<ProgramStream>(handle);
  service_add(made, {MPI_Testsome, MPI_Cancel, MPI_Request_free});
  *stream = make_stream_handle(std::move(made));
  return MPI_SUCCESS;
}

int comm_create(MPI_Comm comm, MPIX_Stream stream, MPI_Comm* made) {
  need(made, "newcomm");
  const std::shared_ptr<ProgramStream> found = find_stream(stream);
  if (!found && stream != MPIX_STREAM_NULL) throw MpiError(MPI_ERR_ARG, "the stream is not valid");
  const int code = MPI_Comm_dup(comm, made);
  if (code == MPI_SUCCESS && found) attach_stream(*made, found);
  return code;
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPIX_Info_set_hex(MPI_Info info, const char* key, const void* value, int value_size) {
  return guarded(MPI_COMM_NULL, "MPIX_Info_set_hex", [&] {
    constexpr const char* digits = "0123456789abcdef";
    need(key, "key");
    need(value, "value");
    std::string text;
    for (int i = 0; i < value_size; ++i) {
      const unsigned byte = static_cast<const unsigned char*>(value)[i];
      text += {digits[byte / 16], digits[byte % 16]};
    }
    return PMPI_Info_set(info, key, text.c_str());
  });
}

GPUDT_EXPORT int MPIX_Stream_create(MPI_Info info, MPIX_Stream* stream) {
  auto* const mpi = mpi_function<int(MPI_Info, MPIX_Stream*)>("MPIX_Stream_create");
  if (mpi != nullptr && (!active.load() || info_value(info, "type").empty())) return mpi(info, stream);
  return guarded(MPI_COMM_NULL, "MPIX_Stream_create", [&] { return create(info, stream); });
}

GPUDT_EXPORT int MPIX_Stream_free(MPIX_Stream* stream) {
  return guarded(MPI_COMM_NULL, "MPIX_Stream_free", [&] {
    need(stream, "stream");
    if (forget_stream_handle(*stream)) {
      *stream = MPIX_STREAM_NULL;
      return int(MPI_SUCCESS);
    }
    if (auto* const mpi = mpi_function<int(MPIX_Stream*)>("MPIX_Stream_free")) return mpi(stream);
    throw MpiError(MPI_ERR_ARG, "the stream is not valid");
  });
}

GPUDT_EXPORT int MPIX_Stream_comm_create(MPI_Comm comm, MPIX_Stream stream, MPI_Comm* newcomm) {
  auto* const mpi = mpi_function<int(MPI_Comm, MPIX_Stream, MPI_Comm*)>("MPIX_Stream_comm_create");
  if (mpi != nullptr && (!active.load() || (stream != MPIX_STREAM_NULL && !find_stream(stream))))
    return mpi(comm, stream, newcomm);
  return guarded(comm, "MPIX_Stream_comm_create", [&] { return comm_create(comm, stream, newcomm); });
}

// --- persistent requests, and waiting --------------------------------------------------------------------------------

GPUDT_EXPORT int MPIX_Start_enqueue(MPI_Request* request) {
  return enqueue_start("MPIX_Start_enqueue", 1, request);
}

GPUDT_EXPORT int MPIX_Startall_enqueue(int count, MPI_Request requests[]) {
  return enqueue_start("MPIX_Startall_enqueue", count, requests);
}

GPUDT_EXPORT int MPIX_Wait_enqueue(MPI_Request* request, MPI_Status* status) {
  return enqueue_wait("MPIX_Wait_enqueue", 1, request, status == MPI_STATUS_IGNORE ? MPI_STATUSES_IGNORE : status);
}

GPUDT_EXPORT int MPIX_Waitall_enqueue(int count, MPI_Request requests[], MPI_Status* statuses) {
  return enqueue_wait("MPIX_Waitall_enqueue", count, requests, statuses);
}
