#include "interpose/rma/direct.hpp"

#include <utility>

#include "datatype/reference.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {
namespace {

/// Complete accesses are removed after this number of additions.
constexpr std::size_t entries_between_removals = 64;

/// Whether GPUs may access memory of other processes at all.
bool is_possible() {
  return obstacle_to_direct_access() == nullptr;
}

}  // namespace

const char* obstacle_to_direct_access() {
  if (peer::world == nullptr) return "there are no peer transfers in this run";
  if (peer::world->forced && peer::world->forced != Protocol::peer) return "GPUDT_PROTOCOL";
  return check_wanted ? "GPUDT_CHECK" : nullptr;
}

Exposed expose(void* base, MPI_Aint size, int disp_unit, int lock) {
  Exposed exposed = {};
  exposed.size = size;
  exposed.disp_unit = disp_unit;
  exposed.base = reinterpret_cast<std::uintptr_t>(base);
  exposed.lock = lock;
  const device::Location location = size > 0 ? device::classify(base) : device::Location{};
  if (!location.on_device() || device::keeps_order() || !is_possible()) return exposed;
  const auto bytes = static_cast<std::uint64_t>(size);
  if (!device::export_memory(location.ordinal, base, exposed.memory, device::no_importers, bytes)) return exposed;
  const std::uint64_t end = exposed.memory.base + exposed.memory.size;
  exposed.on_gpu = exposed.base + static_cast<std::uint64_t>(size) <= end ? 1 : 0;
  return exposed;
}

device::Mapping reach(const char* call, int ordinal, const Exposed& memory, int world_rank) {
  if (memory.on_gpu == 0 || world_rank < 0 || !is_possible()) return {};
  const auto rank = static_cast<std::uint64_t>(world_rank);
  if (device::Mapping known = device::imported_memory(ordinal, rank, memory.memory)) return known;
  const peer::Segment* const segment = peer::reach_sender(world_rank);
  if (segment == nullptr) return {};
  std::string why;
  device::Mapping mapping = device::import_memory(ordinal, peer::exporter_of(*segment), memory.memory, &why);
  if (!mapping && tracing()) log_trace(std::string(call) + ": the target serves it: " + why);
  return mapping;
}

std::shared_ptr<DirectAccess> DirectAccess::start(const char* call, Kind kind, const Origin& origin,
                                                  const DirectTarget& target, int own_gpu) {
  if (target.memory.on_gpu == 0) return nullptr;
  auto access = std::make_shared<DirectAccess>(target.type);
  if (!access->prepare(call, kind, origin, target, own_gpu)) return nullptr;
  const DeviceBuffer& buffer = access->origin_;
  const device::Side here = access->staging_
                                ? device::Side{&access->byte_->layout(), buffer.bytes(), access->staging_.data()}
                                : device::Side{&buffer.info->layout(), buffer.count, buffer.buffer};
  const device::Side there = {&target.type->layout(), target.count, target.address(access->mapping_)};
  const auto& [from, to] = kind == Kind::put ? std::pair(here, there) : std::pair(there, here);
  const LockGuard lock(access->mutex_);
  access->transfer_ = device::moving(access->data(), [&, &from = from, &to = to] {
    return device::transfer(buffer.ordinal, from, to, 0, buffer.bytes(), buffer.after);
  });
  return access;
}

/// False if there is no GPU that reaches both sides.
bool DirectAccess::prepare(const char* call, Kind kind, const Origin& origin, const DirectTarget& target, int own_gpu) {
  const bool on_device = resolve_layout(origin.buffer, origin.count, origin.type, origin_);
  if (origin_.division) return false;
  if (!on_device) {
    origin_.buffer = const_cast<void*>(origin.buffer);
    origin_.count = origin.count;
    origin_.info = datatype::type_info(origin.type);
    origin_.ordinal = own_gpu;
    if (own_gpu < 0 || !origin_.info) return false;
  }
  mapping_ = reach(call, origin_.ordinal, target.memory, target.world_rank);
  if (!mapping_) return false;
  if (on_device) {
    origin_.protocol = Protocol::peer;
    note_operand(call, origin_);
    return true;
  }
  staging_ = device::try_acquire(device::StagingKind::mapped, own_gpu, static_cast<std::size_t>(origin_.bytes()));
  if (!staging_) return false;
  unpacks_ = kind == Kind::get;
  if (kind == Kind::put)
    datatype::pack(origin_.info->layout(), origin_.count, origin_.buffer, 0, origin_.bytes(), staging_.data());
  return true;
}

void DirectAccess::unpack() const {
  datatype::unpack(origin_.info->layout(), origin_.count, origin_.buffer, 0, origin_.bytes(), staging_.data());
}

bool DirectAccess::done() {
  if (done_.load(std::memory_order_acquire)) return true;
  const LockGuard lock(mutex_);
  if (done_.load(std::memory_order_relaxed)) return true;
  try {
    const bool transferred = device::moving(data(), [this] {
      mutex_.assert_held();
      return transfer_.done();
    });
    if (!transferred) return false;
    if (unpacks_) unpack();
  } catch (const device::Error& failure) {
    log_error(std::string("one-sided access: ") + failure.what());
    error_ = error_class(failure);
  }
  done_.store(true, std::memory_order_release);
  return true;
}

void DirectAccesses::add(int rank, DirectAccessRef access, bool with_request) {
  const LockGuard lock(mutex_);
  if (entries_.size() % entries_between_removals == entries_between_removals - 1) remove_done();
  entries_.push_back({rank, with_request, std::move(access)});
}

void DirectAccesses::remove_done() {
  std::erase_if(entries_, [&](const Entry& entry) REQUIRES(mutex_) {
    if (!entry.access->done()) return false;
    int& error = errors_[static_cast<std::size_t>(entry.rank)];
    if (error == MPI_SUCCESS && !entry.with_request) error = entry.access->error();
    return true;
  });
}

int DirectAccesses::finish(int rank) {
  std::vector<DirectAccessRef> accesses;
  {
    const LockGuard lock(mutex_);
    for (const Entry& entry : entries_)
      if (entry.rank == rank) accesses.push_back(entry.access);
  }
  for (const DirectAccessRef& access : accesses) wait_until([&] { return access->done(); });
  const LockGuard lock(mutex_);
  if (!accesses.empty()) remove_done();
  return std::exchange(errors_[static_cast<std::size_t>(rank)], MPI_SUCCESS);
}

}  // namespace gpudt::interpose
