// MPI-4.1 chapter 14: file access with device buffers. Data passes through mapped staging memory described by the
// twin type; under a representation other than "native" MPI converts by datatype and so sees the user's own layout in
// a host image instead.
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "interpose/errors.hpp"
#include "interpose/export.hpp"
#include "interpose/host_image.hpp"
#include "interpose/operation.hpp"
#include "interpose/report.hpp"

namespace gpudt::interpose {
namespace {

bool is_native(MPI_File file) {
  MPI_Offset displacement = 0;
  MPI_Datatype types[2] = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
  char representation[MPI_MAX_DATAREP_STRING] = "";
  PMPI_File_get_view(file, &displacement, &types[0], &types[1], representation);
  for (MPI_Datatype& type : types) {
    int integers = 0, addresses = 0, count = 0, combiner = MPI_COMBINER_NAMED;
    PMPI_Type_get_envelope(type, &integers, &addresses, &count, &combiner);
    if (combiner != MPI_COMBINER_NAMED) PMPI_Type_free(&type);
  }
  return std::string_view(representation) == "native" || std::string_view(representation) == "internal";
}

/// A device buffer of a file operation, on the host for as long as the operation lasts.
class FileBuffer : public Payload {
 public:
  FileBuffer(const Operand& operand, MPI_Datatype type, bool native) : operand_(operand), type_(type) {
    if (native)
      staged_.emplace(operand);
    else
      image_.emplace(operand);
  }
  void* data() const { return staged_ ? staged_->data() : image_->buffer(); }
  MPI_Datatype type() const { return staged_ ? operand_.twin() : type_; }

  /// For a write: brings the data to the host.
  void load() {
    if (image_) return image_->fill();
    staged_->start_pack();
    staged_->wait();
  }
  /// For a read: an image goes back whole. It was filled before a read that may be short.
  void start_unpack(std::int64_t bytes) override {
    if (image_)
      image_->spill();
    else
      staged_->start_unpack(bytes);
  }
  bool done() override { return image_ || staged_->done(); }
  void wait() {
    if (staged_) staged_->wait();
  }
  bool native() const { return staged_.has_value(); }

 private:
  Operand operand_;
  MPI_Datatype type_;
  std::optional<Staged> staged_;
  std::optional<HostImage> image_;
};

using FileBufferRef = std::shared_ptr<FileBuffer>;

enum class Access { read, write };

/// Null if MPI can have the buffer as it is.
FileBufferRef prepare(Access access, const char* call, MPI_File file, const void* buf, int count, MPI_Datatype type) {
  Operand operand;
  if (file == MPI_FILE_NULL || !resolve_mapped(buf, count, type, call, operand)) return nullptr;
  auto buffer = std::make_shared<FileBuffer>(operand, type, is_native(file));
  if (access == Access::write || !buffer->native()) buffer->load();
  return buffer;
}

std::int64_t bytes_of(const MPI_Status& status) {
  MPI_Count bytes = 0;
  PMPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  return bytes;
}

/// `pmpi(buffer, type, status)`.
template <class Call>
int blocking(Access access, const char* call, MPI_File file, const void* buf, int count, MPI_Datatype type,
             MPI_Status* status, Call pmpi) {
  return guarded(file, call, [&] {
    const FileBufferRef buffer = prepare(access, call, file, buf, count, type);
    if (!buffer) return pmpi(const_cast<void*>(buf), type, status);
    MPI_Status own;
    MPI_Status* const seen = status == MPI_STATUS_IGNORE ? &own : status;
    const int code = pmpi(buffer->data(), buffer->type(), seen);
    if (code != MPI_SUCCESS || access == Access::write) return code;
    buffer->start_unpack(bytes_of(*seen));
    buffer->wait();
    return code;
  });
}

/// `pmpi(buffer, type, request)`.
template <class Call>
int nonblocking(Access access, const char* call, MPI_File file, const void* buf, int count, MPI_Datatype type,
                MPI_Request* request, Call pmpi) {
  return guarded(file, call, [&] {
    FileBufferRef buffer = prepare(access, call, file, buf, count, type);
    if (!buffer) return pmpi(const_cast<void*>(buf), type, request);
    auto operation = std::make_unique<Operation>();
    // A write's status carries its count, too: only a receive copies it.
    operation->kind = access == Access::read ? Operation::Kind::receive : Operation::Kind::deliver_status;
    const int code = pmpi(buffer->data(), buffer->type(), &operation->inner);
    if (code != MPI_SUCCESS) return code;
    operation->payload = std::move(buffer);
    return engine_submit(operation.release(), /*issued=*/true, request);
  });
}

/// Buffers between the begin and the end of a split collective; one at a time for each file.
class SplitBuffers {
 public:
  void put(MPI_File file, FileBufferRef buffer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    buffers_[file] = std::move(buffer);
  }
  FileBufferRef take(MPI_File file) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = buffers_.find(file);
    if (entry == buffers_.end()) return nullptr;
    FileBufferRef buffer = std::move(entry->second);
    buffers_.erase(entry);
    return buffer;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<MPI_File, FileBufferRef> buffers_;
};

SplitBuffers split_buffers;

/// `pmpi(buffer, type)`.
template <class Call>
int split_begin(Access access, const char* call, MPI_File file, const void* buf, int count, MPI_Datatype type,
                Call pmpi) {
  return guarded(file, call, [&] {
    FileBufferRef buffer = prepare(access, call, file, buf, count, type);
    if (!buffer) return pmpi(const_cast<void*>(buf), type);
    const int code = pmpi(buffer->data(), buffer->type());
    if (code == MPI_SUCCESS) split_buffers.put(file, std::move(buffer));
    return code;
  });
}

/// `pmpi(buffer, status)`.
template <class Call>
int split_end(Access access, const char* call, MPI_File file, const void* buf, MPI_Status* status, Call pmpi) {
  return guarded(file, call, [&] {
    const FileBufferRef buffer = active.load() ? split_buffers.take(file) : nullptr;
    if (!buffer) return pmpi(const_cast<void*>(buf), status);
    MPI_Status own;
    MPI_Status* const seen = status == MPI_STATUS_IGNORE ? &own : status;
    const int code = pmpi(buffer->data(), seen);
    if (code != MPI_SUCCESS || access == Access::write) return code;
    buffer->start_unpack(bytes_of(*seen));
    buffer->wait();
    return code;
  });
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

// --- read ----------------------------------------------------------------------------------------------------

GPUDT_EXPORT int MPI_File_read(MPI_File file, void* buf, int count, MPI_Datatype type, MPI_Status* status) {
  return blocking(
      Access::read, "MPI_File_read", file, buf, count, type, status,
      [&](void* at, MPI_Datatype as, MPI_Status* seen) { return PMPI_File_read(file, at, count, as, seen); });
}
GPUDT_EXPORT int MPI_File_iread(MPI_File file, void* buf, int count, MPI_Datatype type, MPI_Request* request) {
  return nonblocking(
      Access::read, "MPI_File_iread", file, buf, count, type, request,
      [&](void* at, MPI_Datatype as, MPI_Request* real) { return PMPI_File_iread(file, at, count, as, real); });
}
GPUDT_EXPORT int MPI_File_read_all(MPI_File file, void* buf, int count, MPI_Datatype type, MPI_Status* status) {
  return blocking(
      Access::read, "MPI_File_read_all", file, buf, count, type, status,
      [&](void* at, MPI_Datatype as, MPI_Status* seen) { return PMPI_File_read_all(file, at, count, as, seen); });
}
GPUDT_EXPORT int MPI_File_iread_all(MPI_File file, void* buf, int count, MPI_Datatype type, MPI_Request* request) {
  return nonblocking(
      Access::read, "MPI_File_iread_all", file, buf, count, type, request,
      [&](void* at, MPI_Datatype as, MPI_Request* real) { return PMPI_File_iread_all(file, at, count, as, real); });
}
GPUDT_EXPORT int MPI_File_read_at(MPI_File file, MPI_Offset offset, void* buf, int count, MPI_Datatype type,
                                  MPI_Status* status) {
  return blocking(Access::read, "MPI_File_read_at", file, buf, count, type, status,
                  [&](void* at, MPI_Datatype as, MPI_Status* seen) {
                    return PMPI_File_read_at(file, offset, at, count, as, seen);
                  });
}
GPUDT_EXPORT int MPI_File_iread_at(MPI_File file, MPI_Offset offset, void* buf, int count, MPI_Datatype type,
                                   MPI_Request* request) {
  return nonblocking(Access::read, "MPI_File_iread_at", file, buf, count, type, request,
                     [&](void* at, MPI_Datatype as, MPI_Request* real) {
                       return PMPI_File_iread_at(file, offset, at, count, as, real);
                     });
}
GPUDT_EXPORT int MPI_File_read_at_all(MPI_File file, MPI_Offset offset, void* buf, int count, MPI_Datatype type,
                                      MPI_Status* status) {
  return blocking(Access::read, "MPI_File_read_at_all", file, buf, count, type, status,
                  [&](void* at, MPI_Datatype as, MPI_Status* seen) {
                    return PMPI_File_read_at_all(file, offset, at, count, as, seen);
                  });
}
GPUDT_EXPORT int MPI_File_iread_at_all(MPI_File file, MPI_Offset offset, void* buf, int count, MPI_Datatype type,
                                       MPI_Request* request) {
  return nonblocking(Access::read, "MPI_File_iread_at_all", file, buf, count, type, request,
                     [&](void* at, MPI_Datatype as, MPI_Request* real) {
                       return PMPI_File_iread_at_all(file, offset, at, count, as, real);
                     });
}
GPUDT_EXPORT int MPI_File_read_shared(MPI_File file, void* buf, int count, MPI_Datatype type, MPI_Status* status) {
  return blocking(
      Access::read, "MPI_File_read_shared", file, buf, count, type, status,
      [&](void* at, MPI_Datatype as, MPI_Status* seen) { return PMPI_File_read_shared(file, at, count, as, seen); });
}
GPUDT_EXPORT int MPI_File_iread_shared(MPI_File file, void* buf, int count, MPI_Datatype type, MPI_Request* request) {
  return nonblocking(
      Access::read, "MPI_File_iread_shared", file, buf, count, type, request,
      [&](void* at, MPI_Datatype as, MPI_Request* real) { return PMPI_File_iread_shared(file, at, count, as, real); });
}
GPUDT_EXPORT int MPI_File_read_ordered(MPI_File file, void* buf, int count, MPI_Datatype type, MPI_Status* status) {
  return blocking(
      Access::read, "MPI_File_read_ordered", file, buf, count, type, status,
      [&](void* at, MPI_Datatype as, MPI_Status* seen) { return PMPI_File_read_ordered(file, at, count, as, seen); });
}
GPUDT_EXPORT int MPI_File_read_all_begin(MPI_File file, void* buf, int count, MPI_Datatype type) {
  return split_begin(Access::read, "MPI_File_read_all_begin", file, buf, count, type,
                     [&](void* at, MPI_Datatype as) { return PMPI_File_read_all_begin(file, at, count, as); });
}
GPUDT_EXPORT int MPI_File_read_all_end(MPI_File file, void* buf, MPI_Status* status) {
  return split_end(Access::read, "MPI_File_read_all_end", file, buf, status,
                   [&](void* at, MPI_Status* seen) { return PMPI_File_read_all_end(file, at, seen); });
}
GPUDT_EXPORT int MPI_File_read_at_all_begin(MPI_File file, MPI_Offset offset, void* buf, int count, MPI_Datatype type) {
  return split_begin(
      Access::read, "MPI_File_read_at_all_begin", file, buf, count, type,
      [&](void* at, MPI_Datatype as) { return PMPI_File_read_at_all_begin(file, offset, at, count, as); });
}
GPUDT_EXPORT int MPI_File_read_at_all_end(MPI_File file, void* buf, MPI_Status* status) {
  return split_end(Access::read, "MPI_File_read_at_all_end", file, buf, status,
                   [&](void* at, MPI_Status* seen) { return PMPI_File_read_at_all_end(file, at, seen); });
}
GPUDT_EXPORT int MPI_File_read_ordered_begin(MPI_File file, void* buf, int count, MPI_Datatype type) {
  return split_begin(Access::read, "MPI_File_read_ordered_begin", file, buf, count, type,
                     [&](void* at, MPI_Datatype as) { return PMPI_File_read_ordered_begin(file, at, count, as); });
}
GPUDT_EXPORT int MPI_File_read_ordered_end(MPI_File file, void* buf, MPI_Status* status) {
  return split_end(Access::read, "MPI_File_read_ordered_end", file, buf, status,
                   [&](void* at, MPI_Status* seen) { return PMPI_File_read_ordered_end(file, at, seen); });
}

// --- write ----------------------------------------------------------------------------------------------------

GPUDT_EXPORT int MPI_File_write(MPI_File file, const void* buf, int count, MPI_Datatype type, MPI_Status* status) {
  return blocking(
      Access::write, "MPI_File_write", file, buf, count, type, status,
      [&](void* at, MPI_Datatype as, MPI_Status* seen) { return PMPI_File_write(file, at, count, as, seen); });
}
GPUDT_EXPORT int MPI_File_iwrite(MPI_File file, const void* buf, int count, MPI_Datatype type, MPI_Request* request) {
  return nonblocking(
      Access::write, "MPI_File_iwrite", file, buf, count, type, request,
      [&](void* at, MPI_Datatype as, MPI_Request* real) { return PMPI_File_iwrite(file, at, count, as, real); });
}
GPUDT_EXPORT int MPI_File_write_all(MPI_File file, const void* buf, int count, MPI_Datatype type, MPI_Status* status) {
  return blocking(
      Access::write, "MPI_File_write_all", file, buf, count, type, status,
      [&](void* at, MPI_Datatype as, MPI_Status* seen) { return PMPI_File_write_all(file, at, count, as, seen); });
}
GPUDT_EXPORT int MPI_File_iwrite_all(MPI_File file, const void* buf, int count, MPI_Datatype type,
                                     MPI_Request* request) {
  return nonblocking(
      Access::write, "MPI_File_iwrite_all", file, buf, count, type, request,
      [&](void* at, MPI_Datatype as, MPI_Request* real) { return PMPI_File_iwrite_all(file, at, count, as, real); });
}
GPUDT_EXPORT int MPI_File_write_at(MPI_File file, MPI_Offset offset, const void* buf, int count, MPI_Datatype type,
                                   MPI_Status* status) {
  return blocking(Access::write, "MPI_File_write_at", file, buf, count, type, status,
                  [&](void* at, MPI_Datatype as, MPI_Status* seen) {
                    return PMPI_File_write_at(file, offset, at, count, as, seen);
                  });
}
GPUDT_EXPORT int MPI_File_iwrite_at(MPI_File file, MPI_Offset offset, const void* buf, int count, MPI_Datatype type,
                                    MPI_Request* request) {
  return nonblocking(Access::write, "MPI_File_iwrite_at", file, buf, count, type, request,
                     [&](void* at, MPI_Datatype as, MPI_Request* real) {
                       return PMPI_File_iwrite_at(file, offset, at, count, as, real);
                     });
}
GPUDT_EXPORT int MPI_File_write_at_all(MPI_File file, MPI_Offset offset, const void* buf, int count, MPI_Datatype type,
                                       MPI_Status* status) {
  return blocking(Access::write, "MPI_File_write_at_all", file, buf, count, type, status,
                  [&](void* at, MPI_Datatype as, MPI_Status* seen) {
                    return PMPI_File_write_at_all(file, offset, at, count, as, seen);
                  });
}
GPUDT_EXPORT int MPI_File_iwrite_at_all(MPI_File file, MPI_Offset offset, const void* buf, int count, MPI_Datatype type,
                                        MPI_Request* request) {
  return nonblocking(Access::write, "MPI_File_iwrite_at_all", file, buf, count, type, request,
                     [&](void* at, MPI_Datatype as, MPI_Request* real) {
                       return PMPI_File_iwrite_at_all(file, offset, at, count, as, real);
                     });
}
GPUDT_EXPORT int MPI_File_write_shared(MPI_File file, const void* buf, int count, MPI_Datatype type,
                                       MPI_Status* status) {
  return blocking(
      Access::write, "MPI_File_write_shared", file, buf, count, type, status,
      [&](void* at, MPI_Datatype as, MPI_Status* seen) { return PMPI_File_write_shared(file, at, count, as, seen); });
}
GPUDT_EXPORT int MPI_File_iwrite_shared(MPI_File file, const void* buf, int count, MPI_Datatype type,
                                        MPI_Request* request) {
  return nonblocking(
      Access::write, "MPI_File_iwrite_shared", file, buf, count, type, request,
      [&](void* at, MPI_Datatype as, MPI_Request* real) { return PMPI_File_iwrite_shared(file, at, count, as, real); });
}
GPUDT_EXPORT int MPI_File_write_ordered(MPI_File file, const void* buf, int count, MPI_Datatype type,
                                        MPI_Status* status) {
  return blocking(
      Access::write, "MPI_File_write_ordered", file, buf, count, type, status,
      [&](void* at, MPI_Datatype as, MPI_Status* seen) { return PMPI_File_write_ordered(file, at, count, as, seen); });
}
GPUDT_EXPORT int MPI_File_write_all_begin(MPI_File file, const void* buf, int count, MPI_Datatype type) {
  return split_begin(Access::write, "MPI_File_write_all_begin", file, buf, count, type,
                     [&](void* at, MPI_Datatype as) { return PMPI_File_write_all_begin(file, at, count, as); });
}
GPUDT_EXPORT int MPI_File_write_all_end(MPI_File file, const void* buf, MPI_Status* status) {
  return split_end(Access::write, "MPI_File_write_all_end", file, buf, status,
                   [&](void* at, MPI_Status* seen) { return PMPI_File_write_all_end(file, at, seen); });
}
GPUDT_EXPORT int MPI_File_write_at_all_begin(MPI_File file, MPI_Offset offset, const void* buf, int count,
                                             MPI_Datatype type) {
  return split_begin(
      Access::write, "MPI_File_write_at_all_begin", file, buf, count, type,
      [&](void* at, MPI_Datatype as) { return PMPI_File_write_at_all_begin(file, offset, at, count, as); });
}
GPUDT_EXPORT int MPI_File_write_at_all_end(MPI_File file, const void* buf, MPI_Status* status) {
  return split_end(Access::write, "MPI_File_write_at_all_end", file, buf, status,
                   [&](void* at, MPI_Status* seen) { return PMPI_File_write_at_all_end(file, at, seen); });
}
GPUDT_EXPORT int MPI_File_write_ordered_begin(MPI_File file, const void* buf, int count, MPI_Datatype type) {
  return split_begin(Access::write, "MPI_File_write_ordered_begin", file, buf, count, type,
                     [&](void* at, MPI_Datatype as) { return PMPI_File_write_ordered_begin(file, at, count, as); });
}
GPUDT_EXPORT int MPI_File_write_ordered_end(MPI_File file, const void* buf, MPI_Status* status) {
  return split_end(Access::write, "MPI_File_write_ordered_end", file, buf, status,
                   [&](void* at, MPI_Status* seen) { return PMPI_File_write_ordered_end(file, at, seen); });
}
