#include "interpose/rma/accumulate.hpp"

#include <cstring>
#include <optional>

#include "datatype/reference.hpp"
#include "device/device.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/requests/arithmetic.hpp"

namespace gpudt::interpose {
namespace {

void finish(device::Transfer& transfer) {
  wait_until([&] { return transfer.done(); });
}

/// While it lives, only this process accumulates to the target's memory.
class Turn {
 public:
  explicit Turn(peer::WindowLock& lock) : lock_(lock) {
    wait_until([&] { return lock_.try_enter(/*exclusive=*/true); });
  }
  ~Turn() { lock_.leave(/*exclusive=*/true); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  peer::WindowLock& lock_;
};

struct Buffer {
  const Origin* origin = nullptr;
  DeviceBuffer device{};
  datatype::TypeInfoRef type{};
  bool on_device = false;

  /// Finds where the data lie. False unless all lie in host memory or all in that of one GPU.
  bool locate() {
    if (origin == nullptr) return true;
    on_device = resolve_layout(origin->buffer, origin->count, origin->type, device);
    type = on_device ? device.info : datatype::type_info(origin->type);
    return type && !device.division;
  }
  device::Side side() const { return {&type->layout(), device.count, device.buffer}; }
  void pack(std::int64_t bytes, void* packed) const {
    datatype::pack(type->layout(), origin->count, origin->buffer, 0, bytes, packed);
  }
  void unpack(std::int64_t bytes, const void* packed) const {
    datatype::unpack(type->layout(), origin->count, const_cast<void*>(origin->buffer), 0, bytes, packed);
  }
};

class Accumulate {
 public:
  Accumulate(const AccumulateBuffers& buffers, const DirectTarget& target, MPI_Op op, MPI_Datatype element)
      : given_{buffers.given},
        fetched_{buffers.fetched},
        compared_{buffers.compared},
        target_(target),
        op_(op),
        arithmetic_(arithmetic_of(op, element)),
        bytes_(target.count * target.type->layout().size()) {}

  /// Whether the GPU of the origin's buffers or, without one, `own_gpu` can do the accumulate.
  bool is_possible(const char* call, int own_gpu) {
    if (compared_.origin == nullptr && op_ != MPI_REPLACE && op_ != MPI_NO_OP && !arithmetic_) return false;
    ordinal_ = own_gpu;
    int on_device = 0;
    for (Buffer* const each : {&given_, &fetched_, &compared_}) {
      if (!each->locate()) return false;
      if (!each->on_device) continue;
      if (on_device++ != 0 && each->device.ordinal != ordinal_) return false;
      ordinal_ = each->device.ordinal;
    }
    if (ordinal_ < 0) return false;
    mapping_ = reach(call, ordinal_, target_.memory, target_.world_rank);
    if (mapping_) note(call);
    return static_cast<bool>(mapping_);
  }

  void run(peer::WindowLock& lock) {
    there_ = {&target_.type->layout(), target_.count, target_.address(mapping_)};
    for (Buffer* const each : {&given_, &fetched_, &compared_})
      if (each->on_device) wait_until([&] { return each->device.after.reached(); });
    if (compared_.origin != nullptr) return compare_and_swap(lock);
    const device::Staging packed = given_.origin != nullptr ? pack(given_) : device::Staging();
    const device::Staging old = fetched_.origin != nullptr && !fetched_.on_device ? mapped() : device::Staging();
    const device::Staging current = room_to_combine();  // acquired without the lock, since this may take long
    {
      const Turn turn(lock);
      if (fetched_.origin != nullptr) move(there_, old ? run_of_bytes(old.data()) : fetched_.side());
      if (op_ == MPI_REPLACE)
        move(packed ? run_of_bytes(packed.data()) : given_.side(), there_);
      else if (op_ != MPI_NO_OP)
        combine(packed.data(), current);
    }
    if (old) fetched_.unpack(bytes_, old.data());
  }

 private:
  void note(const char* call) {
    for (Buffer* const each : {&given_, &fetched_, &compared_}) {
      if (!each->on_device) continue;
      each->device.protocol = Protocol::peer;
      note_operand(call, each->device);
    }
  }
  device::Side run_of_bytes(void* address) const { return {&byte_->layout(), bytes_, address}; }
  /// Memory on the GPU for elements or, if the GPU has none left, pinned host memory.
  device::Staging on_gpu() const {
    const auto bytes = static_cast<std::size_t>(bytes_);
    device::Staging memory = device::try_acquire(device::StagingKind::device, ordinal_, bytes);
    return memory ? std::move(memory) : mapped();
  }
  device::Staging mapped() const {
    return device::acquire(device::StagingKind::mapped, ordinal_, static_cast<std::size_t>(bytes_));
  }
  void move(const device::Side& from, const device::Side& to) const {
    device::Transfer transfer = device::transfer(ordinal_, from, to, 0, bytes_);
    finish(transfer);
  }
  /// The data of a side as contiguous, aligned elements; null if they are not.
  void* elements_in(const device::Side& side) const {
    const datatype::Shape shape = side.layout->shape(side.count);
    const std::uintptr_t address =
        reinterpret_cast<std::uintptr_t>(side.user) + static_cast<std::uintptr_t>(shape.offset);
    const auto alignment = static_cast<std::uintptr_t>(device::element_alignment(arithmetic_->element));
    const bool are = shape.kind == datatype::ShapeKind::contiguous && address % alignment == 0;
    return are ? reinterpret_cast<void*>(address) : nullptr;
  }
  /// A packed copy of the data; empty if they can be used in place.
  device::Staging pack(const Buffer& buffer) const {
    if (op_ == MPI_NO_OP) return {};
    if (buffer.on_device && (op_ == MPI_REPLACE || elements_in(buffer.side()) != nullptr)) return {};
    return pack_to(buffer, buffer.on_device ? on_gpu() : mapped());
  }
  device::Staging pack_to(const Buffer& buffer, device::Staging packed) const {
    if (buffer.on_device)
      move(buffer.side(), run_of_bytes(packed.data()));
    else
      buffer.pack(bytes_, packed.data());
    return packed;
  }
  /// Memory for a packed copy of the target's data, unless these are contiguous elements.
  device::Staging room_to_combine() const {
    if (op_ == MPI_REPLACE || op_ == MPI_NO_OP || elements_in(there_) != nullptr) return {};
    return on_gpu();
  }
  /// `packed`: a packed copy of the origin's data; `current`: memory for one of the target's data. Either is empty if
  /// the data are contiguous elements.
  void combine(void* packed, const device::Staging& current) const {
    const void* const from = packed != nullptr ? packed : elements_in(given_.side());
    if (!current) return reduce(from, elements_in(there_));
    move(there_, run_of_bytes(current.data()));
    reduce(from, current.data());
    move(run_of_bytes(current.data()), there_);
  }
  void reduce(const void* in, void* inout) const {
    const void* const from[] = {in, inout};
    void* const to[] = {nullptr, inout};
    device::Transfer kernel =
        device::reduce(ordinal_, {arithmetic_->op, arithmetic_->element, device::Result::total,
                                  bytes_ / device::element_bytes(arithmetic_->element), from, to});
    finish(kernel);
  }
  void compare_and_swap(peer::WindowLock& lock) const {
    const device::Staging given = pack_to(given_, mapped());
    const device::Staging compared = pack_to(compared_, mapped());
    const device::Staging old = mapped();
    {
      const Turn turn(lock);
      move(there_, run_of_bytes(old.data()));
      if (std::memcmp(old.data(), compared.data(), static_cast<std::size_t>(bytes_)) == 0)
        move(run_of_bytes(given.data()), there_);
    }
    if (fetched_.on_device)
      move(run_of_bytes(old.data()), fetched_.side());
    else
      fetched_.unpack(bytes_, old.data());
  }

  Buffer given_, fetched_, compared_;
  const DirectTarget& target_;
  const MPI_Op op_;
  const std::optional<Arithmetic> arithmetic_;
  const std::int64_t bytes_;
  const datatype::TypeInfoRef byte_ = datatype::type_info(MPI_BYTE);
  int ordinal_ = -1;
  device::Mapping mapping_;
  device::Side there_{};
};

}  // namespace

bool accumulate_by_gpu(const char* call, const AccumulateBuffers& buffers, const DirectTarget& target, MPI_Op op,
                       MPI_Datatype element, int own_gpu, peer::WindowLock& turn) {
  Accumulate accumulate(buffers, target, op, element);
  if (!accumulate.is_possible(call, own_gpu)) return false;
  accumulate.run(turn);
  return true;
}

}  // namespace gpudt::interpose
