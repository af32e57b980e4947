// A buffer argument of an MPI call, resolved: is it GPU memory, what is its layout, and which way will it go?
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "datatype/basic.hpp"
#include "datatype/decode.hpp"
#include "device/device.hpp"
#include "interpose/transport/payload.hpp"
#include "interpose/transport/protocol.hpp"

namespace gpudt::interpose {

/// What a call does with a buffer; of interest to check.hpp alone.
enum class Use : std::uint8_t { unknown, read, written };
class CheckedBuffer;
using CheckedRef = std::shared_ptr<const CheckedBuffer>;
/// GPUDT_CHECK: set in MPI_Init.
extern bool check_wanted;
class Reported;
using ReportedRef = std::shared_ptr<Reported>;

/// (buffer, count, datatype) in device memory, or some of it there, that MPI cannot take as it is.
struct DeviceBuffer {
  void* buffer = nullptr;
  std::int64_t count = 0;
  datatype::TypeInfoRef info{};
  int ordinal = 0;  ///< divided: one of the GPUs; negative: there is none
  Protocol protocol = Protocol::mapped_staging;
  std::shared_ptr<device::Division> division{};  ///< null: all data are in memory of that GPU
  device::StreamMark after{};  ///< position of the default stream at the time of this call; the buffer is not touched
                               ///< before it is reached
  Use use = Use::unknown;
  CheckedRef checked{};    ///< as long as the operation lasts
  ReportedRef reported{};  ///< likewise; null if no report is wanted

  std::int64_t bytes() const { return count * info->layout().size(); }
  /// MPI is given the device memory itself.
  bool is_direct() const { return protocol == Protocol::direct; }
  /// Of the staging memory that MPI gets in its place.
  device::StagingKind staging_kind() const {
    return protocol == Protocol::device_staging ? device::StagingKind::device : device::StagingKind::mapped;
  }
  MPI_Datatype packed_type() const { return info->packed_type(); }
  /// Address of the first byte; the data must be contiguous.
  std::byte* first() const {
    const std::int64_t offset = info->layout().shape(count).offset;
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(buffer) + static_cast<std::uintptr_t>(offset));
  }
  /// The program calls MPI about it again. Waits for the program's own work on divided operands. Throws device::Error.
  void mark_again();
};

/// Operands between the program's memory and packed bytes: one transfer, or one for each part of a divided operand, of
/// which the host does its own at once. As device::Transfer, it waits when it is destroyed before it is done.
class OperandTransfer {
 public:
  OperandTransfer() = default;
  /// Starts moving packed bytes [begin, end) to or from `packed`, which is staging memory for divided operands. See
  /// device::start(); throws device::Error.
  OperandTransfer(device::Direction direction, const DeviceBuffer& operand, std::int64_t begin, std::int64_t end,
                  void* packed, std::optional<device::MemoryKind> packed_kind = {});
  bool done();
  void wait();

 private:
  device::Transfer transfer_;
  std::vector<device::Transfer> others_;
};

/// True between MPI_Init and MPI_Finalize, unless disabled. Every wrapper looks here first.
extern std::atomic<bool> active;

/// Whether a call has been given device memory before, so that the program is known to use gpudt.
extern std::atomic<bool> device_memory_given;

/// The memory that the first byte of a buffer lies in, if that has been asked already; without bounds, if these have
/// not.
using Located = std::optional<device::Region>;

/// Fills `operand` (but for its protocol) and returns true if (buffer, count, type) is data in device memory, or some
/// of it is. May throw device::TooManyParts.
bool resolve_layout(const void* buffer, std::int64_t count, MPI_Datatype type, DeviceBuffer& operand,
                    Located located = {});

bool resolve_device(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call, DeviceBuffer& operand,
                    Located located, bool host_memory_only);

/// What can be told of (buffer, count, type) without asking MPI: of basic types all there is to know, in a few
/// nanoseconds in the heap and on the stack, else by a question to the driver.
struct BufferPeek {
  std::int64_t bytes_on_host = -1;  ///< if all of them are there; negative: they are not, or it is not known
  Located located{};

  BufferPeek(const void* buffer, int count, MPI_Datatype type, const Located& known = {}) {
    if (known) located = known;  // a copy of an empty one reads more than has been written: that takes 6 ns
    const int size = datatype::basic_types.size(type);
    if (size == 0 || check_wanted) return;
    if (count > 0 && !located && !device::surely_host(buffer)) located = {.location = device::classify(buffer)};
    if (located && located->location.on_device()) return;
    bytes_on_host = std::int64_t{count} * size;
  }
};

/// True if (buffer, count, type) is device data that must be staged; then `operand` is filled. False if MPI can have
/// the arguments as they are: host memory, nothing to move, arguments that MPI will reject before it touches data, or
/// device memory that a CUDA-aware MPI takes (operand.is_direct()). `host_memory_only`: as in Route. May throw
/// std::bad_alloc.
inline bool resolve(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call, DeviceBuffer& operand,
                    Located located = {}, bool host_memory_only = false) {
  if (!active.load(std::memory_order_acquire) || count <= 0 || type == MPI_DATATYPE_NULL) return false;
  return resolve_device(buffer, count, type, call, operand, located, host_memory_only);
}

/// The arguments that MPI gets where resolve() has returned false: `program`, but contiguous device data of a derived
/// type as bytes (mpi_takes_device_memory()).
Outgoing given_unstaged(const DeviceBuffer& operand, const Outgoing& program);

/// resolve() for calls whose data are staged through the host even over a CUDA-aware MPI, which may read them there.
bool resolve_mapped(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call, DeviceBuffer& operand);

/// For the report and the trace: an operand that the caller has made itself.
void note_operand(const char* call, DeviceBuffer& operand);

/// Describes (buffer, count, type) in host memory as what is to be staged with others that are not. False if there are
/// no data or the type is not committed.
bool describe_host(const void* buffer, std::int64_t count, MPI_Datatype type, DeviceBuffer& operand);

/// Where the first byte that (buffer, type) touches lies: buffer itself may be MPI_BOTTOM, or outside the
/// allocation. `type` must be a valid handle.
device::Location locate_buffer(const void* buffer, MPI_Datatype type);
/// The memory that it lies in. `last`: what an earlier block of the same call lies in; the driver is not asked if this
/// block does, too.
device::Region memory_of(const void* buffer, MPI_Datatype type, const device::Region& last);

/// MPI is about to use device memory that it was given by an earlier call: returns when the default streams of the GPUs
/// have come to where they are now. Nothing where MPI takes no device pointers. Throws device::Error.
void order_direct();

/// What MPI is given in place of the operand, of `bytes` bytes at least: of the kind that its protocol names, but where
/// there is no device memory left, the protocol becomes Protocol::mapped_staging. Throws device::Error.
device::Staging acquire_staging(DeviceBuffer& operand, std::int64_t bytes);

/// Remembers what choose() is to know of every buffer: whether the MPI library takes device pointers, the limit on
/// them, and GPUDT_PROTOCOL.
void set_forwarding(bool cuda_aware, std::size_t forward_max, ForcedProtocol forced);
/// Even such an MPI may read some data on the host: Open MPI with UCX does so for buffered sends, MPI_Sendrecv_replace
/// and derived types, and crashes on device memory.
bool mpi_takes_device_memory();

}  // namespace gpudt::interpose
