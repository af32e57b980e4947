#include "interpose/transport/device_buffer.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "datatype/reference.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/support/require.hpp"
#include "interpose/transport/check.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

std::atomic<bool> active{false}, device_memory_given{false};

namespace {

struct Forwarding {
  Route route{};                                                             ///< what is the same for all messages
  std::array<std::atomic<bool>, datatype::Layout::attachment_slots> used{};  ///< GPUs with memory that MPI was given
} forwarding;

void trace_choice(const char* call, const DeviceBuffer& operand, const datatype::Shape& shape) {
  log_trace(std::string(call) + ": " + std::to_string(shape.total) + " B " +
            (operand.division ? "in several memories, " : "on GPU " + std::to_string(operand.ordinal) + ", ") +
            operand.info->layout().describe() + " x " + std::to_string(operand.count) + " (" +
            datatype::shape_kind_name(shape.kind) + ") -> " + protocol_name(operand.protocol));
}

static_assert(std::string_view(protocol_name(Protocol::mapped_staging)) == went_staged);

/// Why received data go through the host unless they are fetched (peer/receiver.cpp), and others unless they are
/// offered (sender_for()).
constexpr const char* came_staged =
    "they came as an ordinary message: the sender has them on the host, has staged them there, or lacks gpudt";
constexpr const char* staged_by_call = "the call stages them, or they came as an ordinary message";

/// `why`: the reason for staging the data on the host.
void record(const char* call, DeviceBuffer& operand, const char* why) {
  if (!buffers_followed && !tracing()) return;
  const datatype::Shape shape = operand.info->layout().shape(operand.count);
  if (buffers_followed)
    operand.reported = std::make_shared<Reported>(
        call, Went{protocol_name(operand.protocol), goes_through_host(operand.protocol) ? why : nullptr}, shape.kind,
        shape.total);
  if (tracing()) trace_choice(call, operand, shape);
}

void check(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call, DeviceBuffer& operand,
           bool on_device) {
  if (on_device && operand.division) return;  // no GPU can look at all of it
  if (on_device)
    operand.checked = check_operand(call, operand);
  else
    check_host(call, buffer, count, type);
}

std::uintptr_t address_at(const void* buffer, MPI_Aint offset) {
  return reinterpret_cast<std::uintptr_t>(buffer) + static_cast<std::uintptr_t>(offset);
}

/// Addresses of the first byte of the first element, and of the lowest and highest byte of all.
struct Reach {
  std::uintptr_t first, low, high;
  const datatype::TypeInfoRef* known = nullptr;  ///< of the type, until it is freed; null: not looked up, or not known

  Reach(const void* buffer, std::int64_t count, MPI_Datatype type) {
    first = low = high = address_at(buffer, 0);
    if (datatype::basic_types.size(type) != 0) return;  // contiguous: all in one memory
    known = datatype::known_type(type);
    if (known != nullptr) {
      take((*known)->layout(), count);
      return;
    }
    MPI_Aint true_lb = 0, true_extent = 0, lb = 0, extent = 0;
    PMPI_Type_get_true_extent(type, &true_lb, &true_extent);
    if (count > 1) PMPI_Type_get_extent(type, &lb, &extent);
    const MPI_Aint last = extent * (count - 1);
    first = address_at(buffer, true_lb);
    low = first + static_cast<std::uintptr_t>(std::min<MPI_Aint>(last, 0));
    high = first + static_cast<std::uintptr_t>(std::max<MPI_Aint>(last, 0) + std::max<MPI_Aint>(true_extent, 1) - 1);
  }

  void take(const datatype::Layout& layout, std::int64_t count) {
    if (layout.size() == 0) return;
    const datatype::Span span = layout.span(count);
    low = first + static_cast<std::uintptr_t>(span.begin);
    high = first + static_cast<std::uintptr_t>(span.end) - 1;
    first += static_cast<std::uintptr_t>(layout.true_lb());
  }

  /// Whether the bytes cross a device::granule(), so that they may lie in several memories.
  bool may_be_divided() const {
    const std::size_t granule = device::granule();
    return granule != 0 && (low ^ high) >= granule;
  }
};

device::Location locate(std::uintptr_t address) {
  const auto* const first = reinterpret_cast<const void*>(address);
  return device::surely_host(first) ? device::Location{} : device::classify(first);
}

/// Finds the memories of a buffer whose first byte lies at `location`. True if some of it is in device memory.
bool resolve_division(DeviceBuffer& operand, std::uintptr_t first_byte, const device::Location& location) {
  const datatype::Layout& layout = operand.info->layout();
  const auto* const address = reinterpret_cast<const void*>(first_byte);
  const device::Region first = location.on_device() ? device::region_of(address, location) : device::region_of(address);
  if (const auto memory = device::one_memory(layout, operand.count, operand.buffer, first)) {
    operand.ordinal = memory->ordinal;
    return memory->on_device();
  }
  auto division = std::make_shared<device::Division>(operand.info->layout_ref(), operand.count, operand.buffer);
  const std::optional<int> gpu = division->first_gpu();
  if (!gpu) return false;
  operand.ordinal = *gpu;
  if (!division->is_one()) operand.division = std::move(division);
  return true;
}

/// Waits for the default streams of these parts' GPUs: a StreamMark stands for one GPU only, and none covers the parts
/// that the host copies.
void wait_for_default_streams(std::span<const device::Part> parts) {
  if (device::is_ordered_by_stream()) return;
  std::set<int> gpus;
  for (const device::Part& part : parts)
    if (part.location.on_device() && gpus.insert(part.location.ordinal).second)
      device::mark_default_stream(part.location.ordinal).wait();
}

}  // namespace

void set_forwarding(bool cuda_aware, std::size_t forward_max, ForcedProtocol forced) {
  forwarding.route.forced = forced;
  forwarding.route.mpi_takes_device_memory = cuda_aware;
  forwarding.route.forward_max = forward_max;
}

void order_direct() {
  if (!forwarding.route.mpi_takes_device_memory) return;
  for (std::size_t gpu = 0; gpu < forwarding.used.size(); ++gpu)
    if (forwarding.used[gpu].load(std::memory_order_relaxed)) device::mark_default_stream(static_cast<int>(gpu)).wait();
}

bool mpi_takes_device_memory() {
  return forwarding.route.mpi_takes_device_memory;
}

device::Location locate_buffer(const void* buffer, MPI_Datatype type) {
  return locate(Reach(buffer, 1, type).first);
}

device::Region memory_of(const void* buffer, MPI_Datatype type, const device::Region& last) {
  const std::uintptr_t first = Reach(buffer, 1, type).first;
  if (last.holds(first, first)) return last;
  const device::Location location = locate(first);
  if (!location.on_device()) return {.location = location};
  return device::allocation_of(reinterpret_cast<const void*>(first), location);
}

bool resolve_layout(const void* buffer, std::int64_t count, MPI_Datatype type, DeviceBuffer& operand, Located located) {
  if (!active.load(std::memory_order_acquire) || count <= 0 || type == MPI_DATATYPE_NULL) return false;
  const Reach reach(buffer, count, type);
  const bool divided = reach.may_be_divided() && !(located && located->holds(reach.low, reach.high));
  if (divided && device::surely_host(reach.low, reach.high)) return false;
  const device::Location location = located ? located->location : locate(reach.first);
  if (!location.on_device() && !(divided && device::in_use())) return false;
  if (!device_memory_given.load(std::memory_order_relaxed)) device_memory_given.store(true);
  operand.ordinal = location.ordinal;
  operand.division.reset();
  if (!divided) operand.mark_again();  // early: the mark may be reached while the rest is found out
  mark(point::classified);
  operand.info = reach.known != nullptr ? *reach.known : datatype::type_info(type);
  if (!operand.info || operand.info->layout().size() == 0) return false;
  operand.buffer = const_cast<void*>(buffer);
  operand.count = count;
  if (divided) {
    if (!resolve_division(operand, reach.first, location)) return false;
    operand.mark_again();
  }
  if (reach.low == reach.first) operand.allocation = location.allocation;
  mark(point::laid_out);
  return true;
}

bool describe_host(const void* buffer, std::int64_t count, MPI_Datatype type, DeviceBuffer& operand) {
  operand.info = datatype::type_info(type);
  if (!operand.info || operand.info->layout().size() == 0) return false;
  operand.buffer = const_cast<void*>(buffer);
  operand.count = count;
  operand.ordinal = -1;
  operand.division = std::make_shared<device::Division>(operand.bytes());
  return true;
}

void DeviceBuffer::mark_again() {
  allocation = 0;
  if (!division) {
    after = device::mark_default_stream(ordinal);
    return;
  }
  after = {};
  wait_for_default_streams(division->known());
}

OperandTransfer::OperandTransfer(device::Direction direction, const DeviceBuffer& operand, std::int64_t begin,
                                 std::int64_t end, void* packed, device::MemoryKind packed_kind)
    : data_(user_data(operand)) {
  data_.bytes = end;
  device::moving(data_, [&] {
    if (operand.division)
      start_parts(direction, operand, begin, end, packed, packed_kind);
    else
      transfer_ = device::start(direction, operand.ordinal, operand.info->layout(), operand.count, operand.buffer,
                                begin, end, packed, packed_kind, operand.after);
  });
}

void OperandTransfer::start_parts(device::Direction direction, const DeviceBuffer& operand, std::int64_t begin,
                                  std::int64_t end, void* packed, device::MemoryKind packed_kind) {
  const datatype::Layout& layout = operand.info->layout();
  const std::size_t known = operand.division->known().size();
  const std::span<const device::Part> parts = operand.division->up_to(end);
  wait_for_default_streams(parts.subspan(known));
  const auto for_each_part = [&](bool on_device, auto act) {
    for (const device::Part& part : parts) {
      const std::int64_t first = std::max(begin, part.begin), last = std::min(end, part.end);
      if (first < last && part.location.on_device() == on_device)
        act(part, first, last, static_cast<char*>(packed) + (first - begin));
    }
  };
  {
    const device::Gathering gathering(device::Gathering::short_bytes);
    for_each_part(true, [&](const device::Part& part, std::int64_t first, std::int64_t last, char* place) {
      others_.push_back(device::start(direction, part.location.ordinal, layout, operand.count, operand.buffer, first,
                                      last, place, packed_kind));
    });
  }
  for_each_part(false, [&](const device::Part&, std::int64_t first, std::int64_t last, char* place) {
    if (direction == device::Direction::pack)
      datatype::pack(layout, operand.count, operand.buffer, first, last, place);
    else
      datatype::unpack(layout, operand.count, operand.buffer, first, last, place);
  });
}

void OperandTransfer::wait() {
  device::moving(data_, [this] {
    transfer_.wait();
    for (device::Transfer& each : others_) each.wait();
  });
}

device::Staging acquire_staging(DeviceBuffer& operand, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (operand.protocol == Protocol::device_staging) {
    if (device::Staging staging = device::try_acquire(device::StagingKind::device, operand.ordinal, size))
      return staging;
    operand.protocol = Protocol::mapped_staging;
  }
  return device::acquire_packed(operand.ordinal, size);
}

namespace {

Message message_of(const DeviceBuffer& operand) {
  return {.bytes = operand.bytes(),
          .contiguous = operand.info->layout().is_contiguous(operand.count),
          .divided = operand.division != nullptr};
}

}  // namespace

bool resolve_device(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call, DeviceBuffer& operand,
                    Located located, bool host_memory_only) {
  const bool on_device = resolve_layout(buffer, count, type, operand, located);
  if (check_wanted) check(buffer, count, type, call, operand, on_device);
  if (!on_device) return false;
  Route route = forwarding.route;
  route.host_memory_only = host_memory_only;
  const Message message = message_of(operand);
  operand.protocol = choose(message, route);
  record(call, operand, operand.use == Use::written ? came_staged : staged_by_call);
  device::prepare_layout(operand.ordinal, operand.info->layout());
  if (!operand.is_direct()) return true;
  if (tracing()) log_trace_once(std::string(call) + ": " + comparison(message, route));
  forwarding.used[static_cast<std::size_t>(operand.ordinal)].store(true, std::memory_order_relaxed);
  operand.after.wait();
  return false;
}

Sender sender_for(const DeviceBuffer& operand, const Destination& to, bool buffered,
                  const std::shared_ptr<SendPayload>& packs) {
  Message message{.bytes = operand.bytes(), .divided = operand.division != nullptr, .buffered = buffered};
  Route route = forwarding.route;
  route.receiver = Receiver::unseen;
  route.host_memory_only = operand.protocol == Protocol::mapped_staging;
  Sender sender{};
  while (!sender.payload) {
    const ProtocolRow& taken = row_of(choose(message, route));
    const bool packed = taken.make_sender == make_packed;
    sender = {packs && packed ? packs : taken.make_sender(operand, to, message, route), taken.recognise != nullptr};
  }
  if (operand.reported && goes_through_host(operand.protocol) && !sender.offers)
    operand.reported->because(obstacle_to_peer(message, route));
  if (tracing())
    log_trace_once((route.process < 0 ? "to another process: " : "to process " + std::to_string(route.process) + ": ") +
                   comparison(message, route));
  return sender;
}

std::shared_ptr<SendPayload> host_sender_for(const DeviceBuffer& operand, const Destination& to) {
  Message message{.bytes = operand.bytes(), .on_host = true};
  Route route = forwarding.route;
  route.receiver = Receiver::unseen;
  route.host_memory_only = peer_exchanges_rts(to.rank, to.comm);
  const ProtocolRow& taken = row_of(choose(message, route));
  return taken.recognise == nullptr ? nullptr : taken.make_sender(operand, to, message, route);
}

std::optional<Went> expected_route(const void* buffer, std::int64_t count, MPI_Datatype type, const Destination& to) {
  DeviceBuffer operand;
  if (!active.load(std::memory_order_acquire) || count <= 0 || !resolve_layout(buffer, count, type, operand)) return {};
  Message message = message_of(operand);
  Route route = forwarding.route;
  route.host_memory_only = peer_exchanges_rts(to.rank, to.comm);
  operand.protocol = choose(message, route);
  if (operand.is_direct()) return Went{protocol_name(operand.protocol)};
  message.contiguous = false;  // as sender_for() does
  route.receiver = Receiver::unseen;
  route.host_memory_only = operand.protocol == Protocol::mapped_staging;
  const Protocol protocol = expected_protocol(operand, to, message, route);
  if (protocol == Protocol::pipelined) return went_pipelined(operand);
  return Went{protocol_name(protocol), goes_through_host(protocol) ? obstacle_to_peer(message, route) : nullptr};
}

Outgoing given_unstaged(const DeviceBuffer& operand, const Outgoing& program) {
  if (!operand.is_direct() || datatype::basic_types.size(program.type) != 0) return program;
  return {operand.first(), program.count, operand.packed_type()};
}

bool resolve_mapped(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call,
                    DeviceBuffer& operand) {
  const bool on_device = resolve_layout(buffer, count, type, operand);
  if (check_wanted) check(buffer, count, type, call, operand, on_device);
  if (!on_device) return false;
  operand.protocol = Protocol::mapped_staging;
  note_operand(call, operand);
  return true;
}

void note_operand(const char* call, DeviceBuffer& operand) {
  const char* const explained = require_explanation();
  record(call, operand, explained != nullptr ? explained : "MPI reads and writes them on the host in this call");
}

}  // namespace gpudt::interpose
