// Classifies buffer arguments and chooses their way.
#include "interpose/transport/device_buffer.hpp"

#include <string>

#include "device/timeline.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"

namespace gpudt::interpose {

std::atomic<bool> active{false};

namespace {

struct Forwarding {
  bool cuda_aware = false;
  std::size_t max_bytes = 0;
} forwarding;

Protocol choose(const datatype::Shape& shape) {
  const auto bytes = static_cast<std::size_t>(shape.total);
  if (!forwarding.cuda_aware || (forwarding.max_bytes != 0 && bytes > forwarding.max_bytes))
    return Protocol::mapped_staging;
  return shape.kind == datatype::ShapeKind::contiguous ? Protocol::direct : Protocol::device_staging;
}

void trace_choice(const char* call, const DeviceBuffer& operand, const datatype::Shape& shape) {
  log_trace(std::string(call) + ": " + std::to_string(shape.total) + " B on GPU " + std::to_string(operand.ordinal) +
            ", " + operand.info->layout().describe() + " x " + std::to_string(operand.count) + " (" +
            datatype::shape_kind_name(shape.kind) + ") -> " + protocol_name(operand.protocol));
}

void record(const char* call, const DeviceBuffer& operand, const datatype::Shape& shape) {
  report_call(operand.protocol, shape.kind, shape.total);
  if (tracing()) trace_choice(call, operand, shape);
}

}  // namespace

void set_forwarding(bool cuda_aware, std::size_t forward_max) {
  forwarding = {cuda_aware, forward_max};
}

device::Location locate_buffer(const void* buffer, MPI_Datatype type) {
  MPI_Aint true_lb = 0, true_extent = 0;
  if (datatype::basic_types.size(type) == 0) PMPI_Type_get_true_extent(type, &true_lb, &true_extent);
  const auto base = reinterpret_cast<std::uintptr_t>(buffer);
  const auto* const first = reinterpret_cast<const void*>(base + static_cast<std::uintptr_t>(true_lb));
  return device::surely_host(first) ? device::Location{} : device::classify(first);
}

bool resolve_layout(const void* buffer, std::int64_t count, MPI_Datatype type, DeviceBuffer& operand, Located located) {
  if (!active.load(std::memory_order_acquire) || count <= 0 || type == MPI_DATATYPE_NULL) return false;
  const device::Location location = located ? *located : locate_buffer(buffer, type);
  if (!location.on_device()) return false;
  device::mark(device::Point::classified);
  operand.info = datatype::type_info(type);
  if (!operand.info || operand.info->layout().size() == 0) return false;
  operand.buffer = const_cast<void*>(buffer);
  operand.count = count;
  operand.ordinal = location.ordinal;
  device::mark(device::Point::laid_out);
  return true;
}

bool resolve_device(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call, DeviceBuffer& operand,
                    Located located) {
  if (!resolve_layout(buffer, count, type, operand, located)) return false;
  const datatype::Shape shape = operand.info->layout().shape(count);
  operand.protocol = choose(shape);
  record(call, operand, shape);
  return operand.protocol != Protocol::direct;
}

bool resolve_mapped(const void* buffer, std::int64_t count, MPI_Datatype type, const char* call,
                    DeviceBuffer& operand) {
  if (!resolve_layout(buffer, count, type, operand)) return false;
  operand.protocol = Protocol::mapped_staging;
  note_operand(call, operand);
  return true;
}

void note_operand(const char* call, const DeviceBuffer& operand) {
  record(call, operand, operand.info->layout().shape(operand.count));
}

}  // namespace gpudt::interpose
