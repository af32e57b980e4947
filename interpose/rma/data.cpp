// Moves the data of accesses between the program's memory and what MPI sends and receives.
#include "interpose/rma/data.hpp"

#include <algorithm>
#include <cstring>

#include "datatype/basic.hpp"
#include "datatype/reference.hpp"

namespace gpudt::interpose {
namespace {

void* at(void* address, std::int64_t offset) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) + static_cast<std::uintptr_t>(offset));
}

}  // namespace

UserBuffer::UserBuffer(const char* call, const Origin& origin)
    : buffer_(const_cast<void*>(origin.buffer)),
      count_(origin.count),
      bytes_(origin.count * datatype::size_of(origin.type)) {
  DeviceBuffer operand;
  if (resolve_mapped(origin.buffer, origin.count, origin.type, call, operand)) {
    if (operand.reported) operand.reported->because(nullptr);  // ServedWindow::forbidden() has seen the access
    staged_ = std::make_unique<Staged>(operand);
  } else {
    type_.emplace(origin.type);
  }
}

void UserBuffer::start_pack() {
  if (staged_) staged_->start_pack();
}

void UserBuffer::start_unpack() {
  if (staged_) staged_->start_unpack(bytes_);
}

void* UserBuffer::address() const {
  return staged_ ? staged_->data() : buffer_;
}

// MPI_Pack and MPI_Unpack of MPICH 4.0 refuse MPI_BOTTOM, so that these functions then traverse the layout themselves.

void UserBuffer::copy_to(std::byte* packed) const {
  if (address() == MPI_BOTTOM) return datatype::pack(*datatype::decode(type()), count_, MPI_BOTTOM, 0, bytes_, packed);
  int position = 0;
  PMPI_Pack(address(), count_, type(), packed, static_cast<int>(bytes_), &position, MPI_COMM_SELF);
}

void UserBuffer::copy_from(const std::byte* packed) const {
  if (address() == MPI_BOTTOM)
    return datatype::unpack(*datatype::decode(type()), count_, MPI_BOTTOM, 0, bytes_, packed);
  int position = 0;
  PMPI_Unpack(packed, static_cast<int>(bytes_), &position, address(), count_, type(), MPI_COMM_SELF);
}

Block::Block(int ordinal, std::int64_t bytes) : bytes_(bytes) {
  if (ordinal >= 0)
    staging_ = device::acquire_packed(ordinal, static_cast<std::size_t>(bytes));
  else
    heap_.reset(new std::byte[static_cast<std::size_t>(bytes)]);
}

std::byte* Block::data() const {
  return staging_ ? static_cast<std::byte*>(staging_.data()) : heap_.get();
}

TargetPlace::TargetPlace(datatype::LayoutRef layout, std::int64_t count, void* address)
    : layout_(std::move(layout)), count_(count), address_(address), location_(device::classify(first())) {}

const void* TargetPlace::first() const {
  return at(address_, layout_->true_lb());
}

bool TargetPlace::is_missing() const {
  return device::UserData{ordinal(), {layout_.get(), count_, address_}, bytes()}.is_missing();
}

/// The address of all bytes if they are contiguous, else null. The host reference would copy element by element.
void* TargetPlace::contiguous() const {
  const datatype::Shape shape = layout_->shape(count_);
  return shape.kind == datatype::ShapeKind::contiguous ? at(address_, shape.offset) : nullptr;
}

device::Transfer TargetPlace::start_read(const Block& block) const {
  if (location_.on_device())
    return device::start(device::Direction::pack, location_.ordinal, *layout_, count_, address_, 0, bytes(),
                         block.data(), block.memory_kind(), after_);
  if (const void* const from = contiguous())
    std::memcpy(block.data(), from, static_cast<std::size_t>(bytes()));
  else
    datatype::pack(*layout_, count_, address_, 0, bytes(), block.data());
  return {};
}

device::Transfer TargetPlace::start_write(const Block& block) const {
  if (location_.on_device())
    return device::start(device::Direction::unpack, location_.ordinal, *layout_, count_, address_, 0, bytes(),
                         block.data(), block.memory_kind(), after_);
  if (void* const to = contiguous())
    std::memcpy(to, block.data(), static_cast<std::size_t>(bytes()));
  else
    datatype::unpack(*layout_, count_, address_, 0, bytes(), block.data());
  return {};
}

}  // namespace gpudt::interpose
