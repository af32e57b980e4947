// MPI-4.1 sections 5.2 and 5.3: Pack and Unpack, native and external32, with host or device memory on either side.
#include <cstring>
#include <optional>
#include <string>

#include "interpose/requests/host_shadow.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {
namespace {

/// The place in a pack buffer where the next packed byte lies.
struct PackedPlace {
  char* address;
  device::Location location;
  device::StreamMark after{};
  PackedPlace(const void* buffer, std::int64_t position)
      : address(static_cast<char*>(const_cast<void*>(buffer)) + position),
        location(active.load() ? device::classify(address) : device::Location{}) {
    if (location.on_device()) after = device::mark_default_stream(location.ordinal);
  }
  /// Whether a kernel of GPU `ordinal` can use it.
  bool reachable_from(int ordinal) const {
    return location.kind == device::MemoryKind::pinned || (location.on_device() && location.ordinal == ordinal);
  }
};

void transfer(device::Direction direction, const DeviceBuffer& operand, void* packed, device::MemoryKind packed_kind) {
  const Timed timed(Clock::transfer);
  OperandTransfer under_way(direction, operand, 0, operand.bytes(), packed, packed_kind);
  device::about_to_wait(device::WaitKind::transfer);
  under_way.wait();
}

/// Copies contiguous bytes between staging memory and a place in host or device memory.
void move_bytes(const PackedPlace& place, void* staging, std::int64_t bytes, bool to_place) {
  void* const to = to_place ? place.address : staging;
  const void* const from = to_place ? staging : place.address;
  if (place.location.on_device())
    device::copy(place.location.ordinal, to, from, static_cast<std::size_t>(bytes), place.after).wait();
  else
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

device::Staging mapped(int ordinal, std::int64_t bytes) {
  return device::acquire(device::StagingKind::mapped, ordinal, static_cast<std::size_t>(bytes));
}

/// Packs device data to, or unpacks them from, a place in any memory.
void transfer_at(device::Direction direction, const DeviceBuffer& operand, const PackedPlace& place) {
  if (!operand.division && place.reachable_from(operand.ordinal))
    return transfer(direction, operand, place.address, place.location.kind);
  const device::Staging staging = mapped(operand.ordinal, operand.bytes());
  if (direction == device::Direction::unpack) move_bytes(place, staging.data(), operand.bytes(), false);
  transfer(direction, operand, staging.data(), device::MemoryKind::pinned);
  if (direction == device::Direction::pack) move_bytes(place, staging.data(), operand.bytes(), true);
}

/// MPI_SUCCESS if `bytes` fit between `position` and `size`.
template <class Size>
int check_room(const char* call, Size size, Size position, std::int64_t bytes, MPI_Comm comm) {
  if (position < 0) return fail(comm, call, MPI_ERR_ARG, "the position is negative");
  if (std::int64_t(size) - std::int64_t(position) >= bytes) return MPI_SUCCESS;
  return fail(comm, call, MPI_ERR_TRUNCATE,
              "the packed buffer of " + std::to_string(size) + " bytes has no room for " + std::to_string(bytes) +
                  " bytes at position " + std::to_string(position) + "; ask MPI_Pack_size");
}

// `Count` is int, or MPI_Count in the forms with large counts; `pmpi` is MPI's own function.

template <class Count>
int pack(const char* call, int (*pmpi)(const void*, Count, MPI_Datatype, void*, Count, Count*, MPI_Comm),
         const void* inbuf, Count incount, MPI_Datatype type, void* outbuf, Count outsize, Count* position,
         MPI_Comm comm) {
  if (position == nullptr) return pmpi(inbuf, incount, type, outbuf, outsize, position, comm);  // MPI reports it
  const PackedPlace place(outbuf, *position);
  DeviceBuffer operand;
  const bool from_device = comm != MPI_COMM_NULL && resolve_mapped(inbuf, incount, type, call, operand);
  const datatype::TypeInfoRef info =
      from_device || !place.location.on_device() || incount <= 0 ? nullptr : datatype::type_info(type);
  if (!from_device && (!info || info->layout().size() == 0))
    return pmpi(inbuf, incount, type, outbuf, outsize, position, comm);
  const std::int64_t bytes = from_device ? operand.bytes() : incount * info->layout().size();
  if (const int code = check_room(call, outsize, *position, bytes, comm)) return code;
  if (from_device) {
    transfer_at(device::Direction::pack, operand, place);
  } else {
    const device::Staging staging = mapped(place.location.ordinal, bytes);
    Count at = 0;
    const int code = pmpi(inbuf, incount, type, staging.data(), static_cast<Count>(bytes), &at, comm);
    if (code != MPI_SUCCESS) return code;
    move_bytes(place, staging.data(), bytes, true);
  }
  *position += static_cast<Count>(bytes);
  return MPI_SUCCESS;
}

template <class Count>
int unpack(const char* call, int (*pmpi)(const void*, Count, Count*, void*, Count, MPI_Datatype, MPI_Comm),
           const void* inbuf, Count insize, Count* position, void* outbuf, Count outcount, MPI_Datatype type,
           MPI_Comm comm) {
  if (position == nullptr) return pmpi(inbuf, insize, position, outbuf, outcount, type, comm);
  const PackedPlace place(inbuf, *position);
  DeviceBuffer operand;
  const bool to_device = comm != MPI_COMM_NULL && resolve_mapped(outbuf, outcount, type, call, operand);
  const datatype::TypeInfoRef info =
      to_device || !place.location.on_device() || outcount <= 0 ? nullptr : datatype::type_info(type);
  if (!to_device && (!info || info->layout().size() == 0))
    return pmpi(inbuf, insize, position, outbuf, outcount, type, comm);
  const std::int64_t bytes = to_device ? operand.bytes() : outcount * info->layout().size();
  if (const int code = check_room(call, insize, *position, bytes, comm)) return code;
  if (to_device) {
    transfer_at(device::Direction::unpack, operand, place);
  } else {
    const device::Staging staging = mapped(place.location.ordinal, bytes);
    move_bytes(place, staging.data(), bytes, false);
    Count at = 0;
    const int code = pmpi(staging.data(), static_cast<Count>(bytes), &at, outbuf, outcount, type, comm);
    if (code != MPI_SUCCESS) return code;
  }
  *position += static_cast<Count>(bytes);
  return MPI_SUCCESS;
}

/// MPI's own functions for data in another representation.
template <class Count, class Size>
struct External {
  int (*pack)(const char*, const void*, Count, MPI_Datatype, void*, Size, Size*);
  int (*unpack)(const char*, const void*, Size, Size*, void*, Count, MPI_Datatype);
  int (*size)(const char*, Count, MPI_Datatype, Size*);
};
constexpr External<int, MPI_Aint> external{PMPI_Pack_external, PMPI_Unpack_external, PMPI_Pack_external_size};
#ifdef GPUDT_MPI_LARGE_COUNTS
constexpr External<MPI_Count, MPI_Count> large_external{PMPI_Pack_external_c, PMPI_Unpack_external_c,
                                                        PMPI_Pack_external_size_c};
#endif

template <class Count, class Size>
int pack_external(const char* call, const External<Count, Size>& pmpi, const char datarep[], const void* inbuf,
                  Count incount, MPI_Datatype type, void* outbuf, Size outsize, Size* position) {
  if (position == nullptr) return pmpi.pack(datarep, inbuf, incount, type, outbuf, outsize, position);
  const PackedPlace place(outbuf, *position);
  DeviceBuffer operand;
  const bool from_device = resolve_mapped(inbuf, incount, type, call, operand);
  if (!from_device && !place.location.on_device())
    return pmpi.pack(datarep, inbuf, incount, type, outbuf, outsize, position);
  std::optional<HostShadow> image;
  if (from_device) {
    image.emplace(operand);
    image->fill();
  }
  const void* const source = from_device ? image->buffer() : inbuf;
  if (!place.location.on_device()) return pmpi.pack(datarep, source, incount, type, outbuf, outsize, position);
  Size bytes = 0;
  if (const int code = pmpi.size(datarep, incount, type, &bytes)) return code;
  if (const int code = check_room(call, outsize, *position, bytes, MPI_COMM_WORLD)) return code;
  const device::Staging staging = mapped(place.location.ordinal, bytes);
  Size at = 0;
  const int code = pmpi.pack(datarep, source, incount, type, staging.data(), bytes, &at);
  if (code != MPI_SUCCESS) return code;
  move_bytes(place, staging.data(), at, true);
  *position += at;
  return MPI_SUCCESS;
}

template <class Count, class Size>
int unpack_external(const char* call, const External<Count, Size>& pmpi, const char datarep[], const void* inbuf,
                    Size insize, Size* position, void* outbuf, Count outcount, MPI_Datatype type) {
  if (position == nullptr) return pmpi.unpack(datarep, inbuf, insize, position, outbuf, outcount, type);
  const PackedPlace place(inbuf, *position);
  DeviceBuffer operand;
  const bool to_device = resolve_mapped(outbuf, outcount, type, call, operand);
  if (!to_device && !place.location.on_device())
    return pmpi.unpack(datarep, inbuf, insize, position, outbuf, outcount, type);
  device::Staging source;
  Size at = *position, size = insize;
  if (place.location.on_device()) {
    if (const int code = pmpi.size(datarep, outcount, type, &size)) return code;
    if (const int code = check_room(call, insize, *position, size, MPI_COMM_WORLD)) return code;
    source = mapped(place.location.ordinal, size);
    move_bytes(place, source.data(), size, false);
    at = 0;
  }
  const Size before = at;
  std::optional<HostShadow> image;
  if (to_device) image.emplace(operand);
  const int code = pmpi.unpack(datarep, source ? source.data() : inbuf, size, &at, to_device ? image->buffer() : outbuf,
                               outcount, type);
  if (code != MPI_SUCCESS) return code;
  if (to_device) {
    image->spill();
  }
  *position += at - before;
  return MPI_SUCCESS;
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

// Defines the MPI functions for one kind of counts.
#define GPUDT_PACKS(suffix, external)                                                                                 \
  GPUDT_EXPORT int MPI_Pack##suffix(const void* inbuf, Count incount, MPI_Datatype type, void* outbuf, Count outsize, \
                                    Count* position, MPI_Comm comm) {                                                 \
    constexpr const char* call = "MPI_Pack" #suffix;                                                                  \
    return guarded(comm, call, [&] {                                                                                  \
      return pack(call, PMPI_Pack##suffix, inbuf, incount, type, outbuf, outsize, position, comm);                    \
    });                                                                                                               \
  }                                                                                                                   \
  GPUDT_EXPORT int MPI_Unpack##suffix(const void* inbuf, Count insize, Count* position, void* outbuf, Count outcount, \
                                      MPI_Datatype type, MPI_Comm comm) {                                             \
    constexpr const char* call = "MPI_Unpack" #suffix;                                                                \
    return guarded(comm, call, [&] {                                                                                  \
      return unpack(call, PMPI_Unpack##suffix, inbuf, insize, position, outbuf, outcount, type, comm);                \
    });                                                                                                               \
  }                                                                                                                   \
  GPUDT_EXPORT int MPI_Pack_external##suffix(const char datarep[], const void* inbuf, Count incount,                  \
                                             MPI_Datatype type, void* outbuf, Size outsize, Size* position) {         \
    constexpr const char* call = "MPI_Pack_external" #suffix;                                                         \
    return guarded(MPI_COMM_WORLD, call, [&] {                                                                        \
      return pack_external(call, external, datarep, inbuf, incount, type, outbuf, outsize, position);                 \
    });                                                                                                               \
  }                                                                                                                   \
  GPUDT_EXPORT int MPI_Unpack_external##suffix(const char datarep[], const void* inbuf, Size insize, Size* position,  \
                                               void* outbuf, Count outcount, MPI_Datatype type) {                     \
    constexpr const char* call = "MPI_Unpack_external" #suffix;                                                       \
    return guarded(MPI_COMM_WORLD, call, [&] {                                                                        \
      return unpack_external(call, external, datarep, inbuf, insize, position, outbuf, outcount, type);               \
    });                                                                                                               \
  }

// The namespaces only give the types their meaning: the functions are C functions.
namespace small_counts {
using Count = int;
using Size = MPI_Aint;
GPUDT_PACKS(, external)
}  // namespace small_counts

#ifdef GPUDT_MPI_LARGE_COUNTS
namespace large_counts {
using Count = MPI_Count;
using Size = MPI_Count;
GPUDT_PACKS(_c, large_external)
}  // namespace large_counts
#endif
