// A buffer argument of an MPI call, resolved: is it GPU memory, what is its layout, and which way will it go?
#pragma once

#include <mpi.h>

#include <algorithm>
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

/// What a call does with a buffer; only check.cpp reads it.
enum class Use : std::uint8_t { unknown, read, written };
class CheckedBuffer;
using CheckedRef = std::shared_ptr<const CheckedBuffer>;
/// GPUDT_CHECK: set in MPI_Init.
extern bool check_wanted;
class Reported;
using ReportedRef = std::shared_ptr<Reported>;

/// A buffer argument (buffer, count, datatype) with data in device memory, all or some of them.
struct DeviceBuffer {
  void* buffer = nullptr;
  std::int64_t count = 0;
  datatype::TypeInfoRef info{};
  int ordinal = 0;  ///< divided operand: one of its GPUs, negative if it has none
  Protocol protocol = Protocol::mapped_staging;
  std::shared_ptr<device::Division> division{};  ///< null if all data are in memory of GPU `ordinal`
  device::StreamMark after{};  ///< position of the default stream at the time of this call, or of the operation in the
                               ///< stream where it is enqueued; the buffer is not touched before it is reached
  std::uint64_t allocation = 0;  ///< id of the memory, from the lowest byte on, at the time of this call; 0: not known
  Use use = Use::unknown;
  CheckedRef checked{};    ///< GPUDT_CHECK's; until the operation is over
  ReportedRef reported{};  ///< the report's; null if none is wanted

  std::int64_t bytes() const { return count * info->layout().size(); }
  bool is_direct() const { return protocol == Protocol::direct; }
  device::StagingKind staging_kind() const {
    return protocol == Protocol::device_staging ? device::StagingKind::device : device::StagingKind::mapped;
  }
  MPI_Datatype packed_type() const { return info->packed_type(); }
  /// Address of the first byte; the data must be contiguous.
  std::byte* first() const {
    const auto offset = static_cast<std::uintptr_t>(info->layout().true_lb());
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(buffer) + offset);
  }
  /// Records the default stream's position when an operation starts. For a divided operand waits for the default
  /// streams of its GPUs instead. Throws device::Error.
  void mark_again();
};

/// The data of a buffer, to be looked at if moving them fails (device::moving()).
inline device::UserData user_data(const DeviceBuffer& operand) {
  return {operand.division ? -1 : operand.ordinal,
          {&operand.info->layout(), operand.count, operand.buffer},
          operand.bytes()};
}

/// A copy between an operand and packed bytes: one transfer, or one for each part of a divided operand; the constructor
/// copies the parts in host memory itself. Like device::Transfer's, the destructor waits for transfers under way.
class OperandTransfer {
 public:
  OperandTransfer() = default;
  /// Starts moving packed bytes [begin, end) to or from `packed`, which is staging memory for divided operands. The
  /// operand's layout must live as long as this. See device::start(); throws device::Error.
  OperandTransfer(device::Direction direction, const DeviceBuffer& operand, std::int64_t begin, std::int64_t end,
                  void* packed, device::MemoryKind packed_kind);
  bool done() {
    return device::moving(data_, [this] {
      return transfer_.done() &&
             std::all_of(others_.begin(), others_.end(), [](device::Transfer& each) { return each.done(); });
    });
  }
  void wait();

 private:
  void start_parts(device::Direction direction, const DeviceBuffer& operand, std::int64_t begin, std::int64_t end,
                   void* packed, device::MemoryKind packed_kind);

  device::UserData data_{};
  device::Transfer transfer_;
  std::vector<device::Transfer> others_;
};

/// True between MPI_Init and MPI_Finalize, unless disabled. Every wrapper looks here first.
extern std::atomic<bool> active;

/// Whether a call has been given device memory before, so that the program is known to use gpudt.
extern std::atomic<bool> device_memory_given;

/// The memory with the first byte of a buffer, if it has been looked up; it has bounds only if they have been, too.
using Located = std::optional<device::Region>;

/// Fills `operand`, except its protocol, and returns true if (buffer, count, type) has data in device memory. May throw
/// device::TooManyParts.
bool resolve_layout(const void* buffer, std::int64_t count, MPI_Datatype type, DeviceBuffer& operand,
                    Located located = {});

bool resolve_device(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call, DeviceBuffer& operand,
                    Located located, bool host_memory_only);

/// Where the data of a basic type lie, found without a call to MPI: in a few nanoseconds on the heap and the stack, by
/// a call to the driver elsewhere. Nothing is known for other types.
struct BufferPeek {
  std::int64_t bytes_on_host = -1;  ///< if all data are there; negative if they are not, or if it is not known
  Located located{};

  BufferPeek(const void* buffer, int count, MPI_Datatype type, const Located& known = {}) {
    if (known) located = known;  // copying an empty optional reads bytes that were not written, which takes 6 ns
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

/// The arguments for MPI after resolve() has returned false: `program`, but contiguous device data of a derived type as
/// elements of the packed type (mpi_takes_device_memory()).
Outgoing given_unstaged(const DeviceBuffer& operand, const Outgoing& program);

/// resolve() for calls whose data are staged on the host even over a CUDA-aware MPI, whose host code may read them.
bool resolve_mapped(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call, DeviceBuffer& operand);

/// How a message from (buffer, count, type) would go now, as far as its sender knows; no value if it has no data in
/// device memory.
std::optional<Went> expected_route(const void* buffer, std::int64_t count, MPI_Datatype type, const Destination& to);

/// Enters an operand that the caller has made itself into the report and the trace.
void note_operand(const char* call, DeviceBuffer& operand);

/// Describes (buffer, count, type) in host memory, to be staged together with device buffers of the call. False if
/// there are no data or the type is not committed.
bool describe_host(const void* buffer, std::int64_t count, MPI_Datatype type, DeviceBuffer& operand);

/// Where the first byte that (buffer, type) touches lies: buffer itself may be MPI_BOTTOM, or outside the
/// allocation. `type` must be a valid handle.
device::Location locate_buffer(const void* buffer, MPI_Datatype type);
/// The memory with the byte that locate_buffer() locates. `last`: the memory of an earlier block of the call; if it has
/// this byte, too, the driver is not called.
device::Region memory_of(const void* buffer, MPI_Datatype type, const device::Region& last);

/// To be called before MPI uses device memory from an earlier call: waits until the GPUs' default streams have reached
/// their present positions. Does nothing if MPI takes no device pointers. Throws device::Error.
void order_direct();

/// Acquires at least `bytes` bytes of staging memory, of the kind that the operand's protocol names. If no device
/// memory is left, the protocol becomes Protocol::mapped_staging. Throws device::Error.
device::Staging acquire_staging(DeviceBuffer& operand, std::int64_t bytes);

/// Sets for choose() whether MPI takes device pointers, up to how many bytes (0: any), and GPUDT_PROTOCOL.
void set_forwarding(bool cuda_aware, std::size_t forward_max, ForcedProtocol forced);
/// Whether MPI takes device pointers. Even then it may read some data on the host: Open MPI with UCX does so for
/// buffered sends, MPI_Sendrecv_replace and derived types, and crashes on device memory.
bool mpi_takes_device_memory();

}  // namespace gpudt::interpose
