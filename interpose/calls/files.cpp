// MPI-4.1 chapter 14: file access with device buffers. Data pass through mapped staging memory, which MPI is
// given with the packed type. Under other representations than "native" and "internal" MPI converts by datatype and so
// gets a host image in the user's own layout.
#include <memory>
#include <string_view>
#include <unordered_map>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/host_shadow.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/staged.hpp"

namespace gpudt::interpose {
namespace {

bool is_native(MPI_File file) {
  MPI_Offset displacement = 0;
  MPI_Datatype types[2] = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
  char representation[MPI_MAX_DATAREP_STRING] = "";
  PMPI_File_get_view(file, &displacement, &types[0], &types[1], representation);
  for (MPI_Datatype& type : types)
    if (!datatype::is_predefined(type)) PMPI_Type_free(&type);
  return std::string_view(representation) == "native" || std::string_view(representation) == "internal";
}

enum class Access { read, write };

/// A device buffer of a file operation, on the host for as long as the operation lasts; (data, type) is what MPI sees.
struct FileBuffer {
  std::shared_ptr<CallPayload> payload;  ///< null if MPI can have the buffer as it is
  void* data;
  MPI_Datatype type;

  explicit operator bool() const { return payload != nullptr; }
};

/// Copies the data to the host, for a read too: some MPI libraries report bytes beyond the end of the file as read
/// without writing them, and these must keep their values on the device.
FileBuffer prepare(const char* call, MPI_File file, const void* buf, int count, MPI_Datatype type) {
  DeviceBuffer operand;
  if (file == MPI_FILE_NULL || !resolve_mapped(buf, count, type, call, operand))
    return {nullptr, const_cast<void*>(buf), type};
  FileBuffer buffer{};
  if (is_native(file)) {
    auto staged = std::make_shared<Staged>(operand);
    buffer = {staged, staged->data(), operand.packed_type()};
  } else {
    auto image = std::make_shared<HostShadow>(operand);
    buffer = {image, image->buffer(), type};
  }
  buffer.payload->start_pack();
  buffer.payload->wait();
  return buffer;
}

/// The status of an access, the program's or an own one if it ignores it. It starts with 0 bytes where MPI may return
/// MPI_SUCCESS for a refused access after calling an error handler.
class AccessStatus {
 public:
  explicit AccessStatus(MPI_Status* user) : seen_(user == MPI_STATUS_IGNORE ? &own_ : user) {
    if (!returns_handled_errors && seen_ != nullptr) PMPI_Status_set_elements_x(seen_, MPI_BYTE, 0);
  }
  AccessStatus(const AccessStatus&) = delete;
  AccessStatus& operator=(const AccessStatus&) = delete;
  MPI_Status* get() { return seen_; }
  const MPI_Status& operator*() const { return *seen_; }

 private:
  MPI_Status own_{};
  MPI_Status* const seen_;
};

/// Copies the bytes that MPI has read back to the device.
void bring_back(const FileBuffer& buffer, const MPI_Status& status) {
  buffer.payload->start_unpack(received_bytes(status));
  buffer.payload->wait();
}

/// Makes a blocking access by `pmpi(buffer, type, status)`.
template <class Pmpi>
int blocking(Access access, const char* call, MPI_File file, const void* buf, int count, MPI_Datatype type,
             MPI_Status* status, Pmpi pmpi) {
  return guarded(file, call, [&] {
    const FileBuffer buffer = prepare(call, file, buf, count, type);
    if (!buffer) return pmpi(buffer.data, buffer.type, status);
    AccessStatus seen(status);
    const int code = in_mpi([&] { return pmpi(buffer.data, buffer.type, seen.get()); });
    if (code == MPI_SUCCESS && access == Access::read) bring_back(buffer, *seen);
    return code;
  });
}

/// Makes a nonblocking access by `pmpi(buffer, type, request)`.
template <class Pmpi>
int nonblocking(Access access, const char* call, MPI_File file, const void* buf, int count, MPI_Datatype type,
                MPI_Request* request, Pmpi pmpi) {
  return guarded(file, call, [&] {
    FileBuffer buffer = prepare(call, file, buf, count, type);
    if (!buffer) return pmpi(buffer.data, buffer.type, request);
    auto operation = std::make_unique<Operation>();
    operation->owner.file = file;
    operation->moved = {access == Access::read ? Operation::Kind::read : Operation::Kind::write,
                        std::move(buffer.payload)};
    Reservation reserved(std::move(operation));
    if (reserved.error() != MPI_SUCCESS) return reserved.error();
    const int code = pmpi(buffer.data, buffer.type, &reserved->inner);
    return reserved.submit_issued(code, request);
  });
}

/// Buffers between the begin and the end of a split collective; one at a time for each file.
class SplitBuffers {
 public:
  void put(MPI_File file, FileBuffer buffer) {
    const LockGuard lock(mutex_);
    buffers_[file] = std::move(buffer);
  }
  FileBuffer take(MPI_File file) {
    const LockGuard lock(mutex_);
    const auto entry = buffers_.find(file);
    if (entry == buffers_.end()) return {};
    FileBuffer buffer = std::move(entry->second);
    buffers_.erase(entry);
    return buffer;
  }

 private:
  Mutex mutex_;
  std::unordered_map<MPI_File, FileBuffer> buffers_ GUARDED_BY(mutex_);
};

auto& split_buffers = never_destroyed<SplitBuffers>();

/// Begins a split collective by `pmpi(buffer, type)`.
template <class Pmpi>
int split_begin(const char* call, MPI_File file, const void* buf, int count, MPI_Datatype type, Pmpi pmpi) {
  return guarded(file, call, [&] {
    FileBuffer buffer = prepare(call, file, buf, count, type);
    const int code = pmpi(buffer.data, buffer.type);
    if (buffer && code == MPI_SUCCESS) split_buffers.put(file, std::move(buffer));
    return code;
  });
}

/// Ends a split collective by `pmpi(buffer, status)`.
template <class Pmpi>
int split_end(Access access, const char* call, MPI_File file, const void* buf, MPI_Status* status, Pmpi pmpi) {
  return guarded(file, call, [&] {
    const FileBuffer buffer = active.load() ? split_buffers.take(file) : FileBuffer{};
    if (!buffer) return pmpi(const_cast<void*>(buf), status);
    AccessStatus seen(status);
    const int code = in_mpi([&] { return pmpi(buffer.data, seen.get()); });
    if (code == MPI_SUCCESS && access == Access::read) bring_back(buffer, *seen);
    return code;
  });
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

// Define the MPI functions of one form of access. `Buffer` is the type of its buffer argument; `offset` is a bracketed
// list, empty or the explicit offset's parameter, and `place` the corresponding argument.
#define GPUDT_LIST(...) __VA_ARGS__
#define GPUDT_FILE_BLOCKING(name, access, Buffer, offset, place)                                              \
  GPUDT_EXPORT int MPI_File_##name(MPI_File file, GPUDT_LIST offset Buffer buf, int count, MPI_Datatype type, \
                                   MPI_Status* status) {                                                      \
    return blocking(access, "MPI_File_" #name, file, buf, count, type, status,                                \
                    [&](void* at, MPI_Datatype as, MPI_Status* seen) {                                        \
                      return PMPI_File_##name(file, GPUDT_LIST place at, count, as, seen);                    \
                    });                                                                                       \
  }
#define GPUDT_NONBLOCKING(name, access, Buffer, offset, place)                                                \
  GPUDT_EXPORT int MPI_File_##name(MPI_File file, GPUDT_LIST offset Buffer buf, int count, MPI_Datatype type, \
                                   MPI_Request* request) {                                                    \
    return nonblocking(access, "MPI_File_" #name, file, buf, count, type, request,                            \
                       [&](void* at, MPI_Datatype as, MPI_Request* real) {                                    \
                         return PMPI_File_##name(file, GPUDT_LIST place at, count, as, real);                 \
                       });                                                                                    \
  }
#define GPUDT_SPLIT(name, access, Buffer, offset, place)                                                    \
  GPUDT_EXPORT int MPI_File_##name##_begin(MPI_File file, GPUDT_LIST offset Buffer buf, int count,          \
                                           MPI_Datatype type) {                                             \
    return split_begin("MPI_File_" #name "_begin", file, buf, count, type, [&](void* at, MPI_Datatype as) { \
      return PMPI_File_##name##_begin(file, GPUDT_LIST place at, count, as);                                \
    });                                                                                                     \
  }                                                                                                         \
  GPUDT_EXPORT int MPI_File_##name##_end(MPI_File file, Buffer buf, MPI_Status* status) {                   \
    return split_end(access, "MPI_File_" #name "_end", file, buf, status,                                   \
                     [&](void* at, MPI_Status* seen) { return PMPI_File_##name##_end(file, at, seen); });   \
  }
// Defines all accesses of a verb: at the individual pointer, at an explicit offset, at the shared pointer, in order.
#define GPUDT_ACCESSES(verb, access, Buffer)                                             \
  GPUDT_FILE_BLOCKING(verb, access, Buffer, (), ())                                      \
  GPUDT_FILE_BLOCKING(verb##_all, access, Buffer, (), ())                                \
  GPUDT_FILE_BLOCKING(verb##_at, access, Buffer, (MPI_Offset offset, ), (offset, ))      \
  GPUDT_FILE_BLOCKING(verb##_at_all, access, Buffer, (MPI_Offset offset, ), (offset, ))  \
  GPUDT_FILE_BLOCKING(verb##_shared, access, Buffer, (), ())                             \
  GPUDT_FILE_BLOCKING(verb##_ordered, access, Buffer, (), ())                            \
  GPUDT_NONBLOCKING(i##verb, access, Buffer, (), ())                                     \
  GPUDT_NONBLOCKING(i##verb##_all, access, Buffer, (), ())                               \
  GPUDT_NONBLOCKING(i##verb##_at, access, Buffer, (MPI_Offset offset, ), (offset, ))     \
  GPUDT_NONBLOCKING(i##verb##_at_all, access, Buffer, (MPI_Offset offset, ), (offset, )) \
  GPUDT_NONBLOCKING(i##verb##_shared, access, Buffer, (), ())                            \
  GPUDT_SPLIT(verb##_all, access, Buffer, (), ())                                        \
  GPUDT_SPLIT(verb##_at_all, access, Buffer, (MPI_Offset offset, ), (offset, ))          \
  GPUDT_SPLIT(verb##_ordered, access, Buffer, (), ())

GPUDT_ACCESSES(read, Access::read, void*)
GPUDT_ACCESSES(write, Access::write, const void*)
