// Moves device data through packed staging memory into the user's layout on the host, and back.
#include "interpose/host_image.hpp"

#include <algorithm>

#include "datatype/reference.hpp"
#include "interpose/report.hpp"

namespace gpudt::interpose {
namespace {

device::Staging staging_for(const Operand& operand) {
  return device::acquire(device::StagingKind::mapped, operand.ordinal, static_cast<std::size_t>(operand.bytes()));
}

void transfer(device::Direction direction, const Operand& operand, void* packed) {
  const Timed timed(Clock::transfer);
  device::start(direction, operand.ordinal, operand.info->layout(), operand.count, operand.buffer, 0, operand.bytes(),
                packed)
      .wait();
}

}  // namespace

HostImage::HostImage(const Operand& operand) : operand_(operand) {
  const datatype::Layout& layout = operand.info->layout();
  const std::int64_t last = (operand.count - 1) * layout.extent();
  low_ = layout.true_lb() + std::min<std::int64_t>(0, last);
  const std::int64_t high = layout.true_ub() + std::max<std::int64_t>(0, last);
  memory_.reset(new std::byte[static_cast<std::size_t>(high - low_)]);
}

void* HostImage::buffer() const {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory_.get()) - static_cast<std::uintptr_t>(low_));
}

void HostImage::fill() const {
  const device::Staging staging = staging_for(operand_);
  transfer(device::Direction::pack, operand_, staging.data());
  datatype::unpack(operand_.info->layout(), operand_.count, buffer(), 0, operand_.bytes(), staging.data());
}

void HostImage::spill() const {
  const device::Staging staging = staging_for(operand_);
  datatype::pack(operand_.info->layout(), operand_.count, buffer(), 0, operand_.bytes(), staging.data());
  transfer(device::Direction::unpack, operand_, staging.data());
}

}  // namespace gpudt::interpose
