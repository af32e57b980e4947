// MPI-4.1 sections 5.2 and 5.3: Pack and Unpack, native and external32, with host or device memory on either side.
#include <cstring>
#include <optional>
#include <string>

#include "interpose/errors.hpp"
#include "interpose/export.hpp"
#include "interpose/host_image.hpp"
#include "interpose/operand.hpp"
#include "interpose/report.hpp"

namespace gpudt::interpose {
namespace {

/// A stretch of a pack buffer: where the next packed byte lies.
struct PackedPlace {
  char* address;
  device::Location location;
  PackedPlace(const void* buffer, std::int64_t position)
      : address(static_cast<char*>(const_cast<void*>(buffer)) + position),
        location(active.load() ? device::classify(address) : device::Location{}) {}
  /// A kernel of GPU `ordinal` can use it.
  bool reachable_from(int ordinal) const {
    return location.kind == device::MemoryKind::pinned || (location.on_device() && location.ordinal == ordinal);
  }
};

void transfer(device::Direction direction, const Operand& operand, void* packed) {
  const Timed timed(Clock::transfer);
  device::start(direction, operand.ordinal, operand.info->layout(), operand.count, operand.buffer, 0, operand.bytes(),
                packed)
      .wait();
}

/// Contiguous bytes between staging memory and a place in host or device memory.
void move_bytes(const PackedPlace& place, void* staging, std::int64_t bytes, bool to_place) {
  void* const to = to_place ? place.address : staging;
  const void* const from = to_place ? staging : place.address;
  if (place.location.on_device())
    device::copy(place.location.ordinal, to, from, static_cast<std::size_t>(bytes)).wait();
  else
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

device::Staging mapped(int ordinal, std::int64_t bytes) {
  return device::acquire(device::StagingKind::mapped, ordinal, static_cast<std::size_t>(bytes));
}

/// Device data to (pack) or from (unpack) a place in any memory.
void transfer_at(device::Direction direction, const Operand& operand, const PackedPlace& place) {
  if (place.reachable_from(operand.ordinal)) return transfer(direction, operand, place.address);
  const device::Staging staging = mapped(operand.ordinal, operand.bytes());
  if (direction == device::Direction::unpack) move_bytes(place, staging.data(), operand.bytes(), false);
  transfer(direction, operand, staging.data());
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

int pack(const void* inbuf, int incount, MPI_Datatype type, void* outbuf, int outsize, int* position, MPI_Comm comm) {
  constexpr const char* call = "MPI_Pack";
  const PackedPlace place(outbuf, *position);
  Operand operand;
  const bool from_device = comm != MPI_COMM_NULL && resolve_mapped(inbuf, incount, type, call, operand);
  const datatype::TypeInfoRef info =
      from_device || !place.location.on_device() || incount <= 0 ? nullptr : datatype::type_info(type);
  if (!from_device && (!info || info->layout().size() == 0))
    return PMPI_Pack(inbuf, incount, type, outbuf, outsize, position, comm);
  const std::int64_t bytes = from_device ? operand.bytes() : incount * info->layout().size();
  if (const int code = check_room(call, outsize, *position, bytes, comm)) return code;
  if (from_device) {
    transfer_at(device::Direction::pack, operand, place);
  } else {
    const device::Staging staging = mapped(place.location.ordinal, bytes);
    int at = 0;
    const int code = PMPI_Pack(inbuf, incount, type, staging.data(), static_cast<int>(bytes), &at, comm);
    if (code != MPI_SUCCESS) return code;
    move_bytes(place, staging.data(), bytes, true);
  }
  *position += static_cast<int>(bytes);
  return MPI_SUCCESS;
}

int unpack(const void* inbuf, int insize, int* position, void* outbuf, int outcount, MPI_Datatype type, MPI_Comm comm) {
  constexpr const char* call = "MPI_Unpack";
  const PackedPlace place(inbuf, *position);
  Operand operand;
  const bool to_device = comm != MPI_COMM_NULL && resolve_mapped(outbuf, outcount, type, call, operand);
  const datatype::TypeInfoRef info =
      to_device || !place.location.on_device() || outcount <= 0 ? nullptr : datatype::type_info(type);
  if (!to_device && (!info || info->layout().size() == 0))
    return PMPI_Unpack(inbuf, insize, position, outbuf, outcount, type, comm);
  const std::int64_t bytes = to_device ? operand.bytes() : outcount * info->layout().size();
  if (const int code = check_room(call, insize, *position, bytes, comm)) return code;
  if (to_device) {
    transfer_at(device::Direction::unpack, operand, place);
  } else {
    const device::Staging staging = mapped(place.location.ordinal, bytes);
    move_bytes(place, staging.data(), bytes, false);
    int at = 0;
    const int code = PMPI_Unpack(staging.data(), static_cast<int>(bytes), &at, outbuf, outcount, type, comm);
    if (code != MPI_SUCCESS) return code;
  }
  *position += static_cast<int>(bytes);
  return MPI_SUCCESS;
}

int pack_external(const char datarep[], const void* inbuf, int incount, MPI_Datatype type, void* outbuf,
                  MPI_Aint outsize, MPI_Aint* position) {
  constexpr const char* call = "MPI_Pack_external";
  const PackedPlace place(outbuf, *position);
  Operand operand;
  const bool from_device = resolve_mapped(inbuf, incount, type, call, operand);
  if (!from_device && !place.location.on_device())
    return PMPI_Pack_external(datarep, inbuf, incount, type, outbuf, outsize, position);
  std::optional<HostImage> image;
  if (from_device) {
    image.emplace(operand);
    image->fill();
  }
  const void* const source = from_device ? image->buffer() : inbuf;
  if (!place.location.on_device()) return PMPI_Pack_external(datarep, source, incount, type, outbuf, outsize, position);
  MPI_Aint bytes = 0;
  if (const int code = PMPI_Pack_external_size(datarep, incount, type, &bytes)) return code;
  if (const int code = check_room(call, outsize, *position, bytes, MPI_COMM_WORLD)) return code;
  const device::Staging staging = mapped(place.location.ordinal, bytes);
  MPI_Aint at = 0;
  const int code = PMPI_Pack_external(datarep, source, incount, type, staging.data(), bytes, &at);
  if (code != MPI_SUCCESS) return code;
  move_bytes(place, staging.data(), at, true);
  *position += at;
  return MPI_SUCCESS;
}

int unpack_external(const char datarep[], const void* inbuf, MPI_Aint insize, MPI_Aint* position, void* outbuf,
                    int outcount, MPI_Datatype type) {
  constexpr const char* call = "MPI_Unpack_external";
  const PackedPlace place(inbuf, *position);
  Operand operand;
  const bool to_device = resolve_mapped(outbuf, outcount, type, call, operand);
  if (!to_device && !place.location.on_device())
    return PMPI_Unpack_external(datarep, inbuf, insize, position, outbuf, outcount, type);
  device::Staging source;
  MPI_Aint at = *position, size = insize;
  if (place.location.on_device()) {
    if (const int code = PMPI_Pack_external_size(datarep, outcount, type, &size)) return code;
    if (const int code = check_room(call, insize, *position, size, MPI_COMM_WORLD)) return code;
    source = mapped(place.location.ordinal, size);
    move_bytes(place, source.data(), size, false);
    at = 0;
  }
  const MPI_Aint before = at;
  std::optional<HostImage> image;
  if (to_device) image.emplace(operand);
  const int code = PMPI_Unpack_external(datarep, source ? source.data() : inbuf, size, &at,
                                        to_device ? image->buffer() : outbuf, outcount, type);
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

GPUDT_EXPORT int MPI_Pack(const void* inbuf, int incount, MPI_Datatype type, void* outbuf, int outsize, int* position,
                          MPI_Comm comm) {
  return guarded(comm, "MPI_Pack", [&] { return pack(inbuf, incount, type, outbuf, outsize, position, comm); });
}

GPUDT_EXPORT int MPI_Unpack(const void* inbuf, int insize, int* position, void* outbuf, int outcount, MPI_Datatype type,
                            MPI_Comm comm) {
  return guarded(comm, "MPI_Unpack", [&] { return unpack(inbuf, insize, position, outbuf, outcount, type, comm); });
}

GPUDT_EXPORT int MPI_Pack_external(const char datarep[], const void* inbuf, int incount, MPI_Datatype type,
                                   void* outbuf, MPI_Aint outsize, MPI_Aint* position) {
  return guarded(MPI_COMM_WORLD, "MPI_Pack_external",
                 [&] { return pack_external(datarep, inbuf, incount, type, outbuf, outsize, position); });
}

GPUDT_EXPORT int MPI_Unpack_external(const char datarep[], const void* inbuf, MPI_Aint insize, MPI_Aint* position,
                                     void* outbuf, int outcount, MPI_Datatype type) {
  return guarded(MPI_COMM_WORLD, "MPI_Unpack_external",
                 [&] { return unpack_external(datarep, inbuf, insize, position, outbuf, outcount, type); });
}
