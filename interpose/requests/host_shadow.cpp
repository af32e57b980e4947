// HostShadow moves data between device memory and a host buffer of the same layout, through packed staging memory.
#include "interpose/requests/host_shadow.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>

#include "datatype/reference.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

/// Bytes. Addresses in the host buffer equal those in the user's buffer modulo this: reduction operators may rely on
/// how the user's buffer is aligned.
constexpr std::uintptr_t alignment = 64;

std::byte* reserve(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw MpiError(MPI_ERR_NO_MEM,
                   "the datatype of the buffer argument reaches over " + std::to_string(bytes) +
                       " bytes, from one memory into another, for which the system gives no addresses here; use "
                       "datatypes that lie in one memory each");
  madvise(memory, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(memory);
}

}  // namespace

void HostShadow::Unmap::operator()(std::byte* memory) const {
  munmap(memory, bytes);
}

HostShadow::HostShadow(const DeviceBuffer& operand) : staged_(operand) {
  const datatype::Span span = operand.info->layout().span(operand.count);
  const std::size_t bytes = static_cast<std::size_t>(span.bytes()) + alignment;
  if (operand.division)
    mapped_ = {reserve(bytes), Unmap{bytes}};
  else
    memory_.reset(new std::byte[bytes]);
  const auto first = reinterpret_cast<std::uintptr_t>(mapped_ ? mapped_.get() : memory_.get());
  const auto wanted = reinterpret_cast<std::uintptr_t>(operand.buffer) + static_cast<std::uintptr_t>(span.begin);
  base_ = first + (wanted - first) % alignment - static_cast<std::uintptr_t>(span.begin);
}

void* HostShadow::buffer() const {
  return reinterpret_cast<void*>(base_);
}

void HostShadow::start_pack() {
  staged_.start_pack();
  filling_ = true;
}

void HostShadow::start_unpack(std::int64_t) {
  const DeviceBuffer& operand = staged_.operand();
  datatype::pack(operand.info->layout(), operand.count, buffer(), 0, operand.bytes(), staged_.data());
  staged_.start_unpack(operand.bytes());
}

bool HostShadow::done() {
  if (!staged_.done()) return false;
  arrived();
  return true;
}

void HostShadow::wait() {
  staged_.wait();
  arrived();
}

void HostShadow::arrived() {
  if (!std::exchange(filling_, false)) return;
  const DeviceBuffer& operand = staged_.operand();
  datatype::unpack(operand.info->layout(), operand.count, buffer(), 0, operand.bytes(), staged_.data());
}

void HostShadow::fill() {
  start_pack();
  wait();
}

void HostShadow::spill() {
  start_unpack(staged_.operand().bytes());
  wait();
}

}  // namespace gpudt::interpose
