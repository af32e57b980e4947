// MPI-4.1 chapter 4: partitioned communication with device buffers. The real request is on staging memory,
// with the same partitions of the packed type. A partition is packed by the call that marks it ready, before MPI is
// called, and unpacked by the call that finds it arrived; all others are unpacked when everything has arrived, as are
// those that have changed since (`partitions_come_early`).
#include <mpi.h>

#ifdef GPUDT_MPI_PARTITIONED

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/staged.hpp"

namespace gpudt::interpose {
namespace {

/// The type of the list of MPI_Pready_list: `int*` in MPI-4.0, `const int*` since MPI-4.1.
template <class Function>
struct SecondArgument;
template <class First, class Second, class... Others>
struct SecondArgument<int(First, Second, Others...)> {
  using type = Second;
};
using Partitions = SecondArgument<decltype(MPI_Pready_list)>::type;

class Partitioned : public CallPayload {
 public:
  /// `operand` describes all partitions together.
  Partitioned(const DeviceBuffer& operand, int partitions, Operation::Kind kind)
      : operand_(operand),
        receives_(kind == Operation::Kind::read),
        each_(operand.bytes() / partitions),
        staging_(acquire_staging(operand_, operand.bytes())),
        states_(static_cast<std::size_t>(partitions)),
        unpacked_(static_cast<std::size_t>(partitions)) {}

  void* data() const { return staging_.data(); }
  int partitions() const { return static_cast<int>(states_.size()); }

  /// Packs a partition into the staging memory, and waits. Threads may pack several at once.
  void pack(int partition) {
    const device::StreamMark now = device::mark_default_stream(operand_.ordinal);
    move(device::Direction::pack, partition, partition + 1, now).wait();
  }

  /// Unpacks a partition that has arrived, and waits. False if another thread is unpacking it.
  bool unpack(int partition) {
    std::atomic<State>& state = state_of(partition);
    if (claim(state)) {
      if (partitions_come_early) unpacked_[static_cast<std::size_t>(partition)] = hash(partition);
      move(device::Direction::unpack, partition, partition + 1, operand_.after).wait();
      state = State::unpacked;
    }
    return state == State::unpacked;
  }
  /// Whether all partitions have arrived, and the real request is inactive.
  bool has_arrived() const { return arrived_; }
  bool is_unpacked(int partition) { return state_of(partition) == State::unpacked; }

  void restart() override {
    arrived_ = false;
    report_begin(operand_.reported);
    operand_.mark_again();
    for (std::atomic<State>& state : states_) state = State::waiting;
  }
  void start_unpack(std::int64_t) override {
    if (!receives_) return;
    if (partitions_come_early && !arrived_) forget_changed();
    arrived_ = true;
    for (int begin = 0; begin < partitions(); ++begin) {  // adjacent partitions in one transfer
      int end = begin;
      while (end < partitions() && claim(state_of(end))) ++end;
      if (end > begin) moving_.push_back({begin, end, move(device::Direction::unpack, begin, end, operand_.after)});
      begin = std::max(begin, end);  // partition `end` is another thread's
    }
  }
  bool done() override {
    if (!receives_) return true;
    std::erase_if(moving_, [&](Moving& moving) {
      if (!moving.transfer.done()) return false;
      for (int partition = moving.begin; partition < moving.end; ++partition) state_of(partition) = State::unpacked;
      return true;
    });
    return moving_.empty() && std::all_of(states_.begin(), states_.end(),
                                          [](const std::atomic<State>& state) { return state == State::unpacked; });
  }
  void wait() override {}
  void each_reported(VisitReported visit) const override { report_visit(operand_.reported, visit); }

 private:
  enum class State { waiting, claimed, unpacked };
  struct Moving {
    int begin, end;
    OperandTransfer transfer;
  };

  std::atomic<State>& state_of(int partition) { return states_[static_cast<std::size_t>(partition)]; }

  static bool claim(std::atomic<State>& state) {
    State expected = State::waiting;
    return state.compare_exchange_strong(expected, State::claimed);
  }

  /// So that partitions that have changed since they were unpacked are unpacked again; all in device memory, at which
  /// the host cannot look.
  void forget_changed() {
    for (int partition = 0; partition < partitions(); ++partition) {
      std::atomic<State>& state = state_of(partition);
      if (state != State::unpacked) continue;
      const bool same = is_on_host() && hash(partition) == unpacked_[static_cast<std::size_t>(partition)];
      if (!same) state = State::waiting;
    }
  }

  bool is_on_host() const { return staging_.memory_kind() != device::MemoryKind::device; }

  /// Of the bytes of a partition in the staging memory; 0 if that is device memory.
  std::size_t hash(int partition) const {
    if (!is_on_host()) return 0;
    const char* const begin = static_cast<const char*>(staging_.data()) + partition * each_;
    return std::hash<std::string_view>()({begin, static_cast<std::size_t>(each_)});
  }

  OperandTransfer move(device::Direction direction, int begin, int end, const device::StreamMark& after) {
    const Timed timed(Clock::transfer);
    DeviceBuffer operand = operand_;
    operand.after = after;
    void* const packed = static_cast<char*>(staging_.data()) + begin * each_;
    return {direction, operand, begin * each_, end * each_, packed, staging_.memory_kind()};
  }

  DeviceBuffer operand_;
  bool receives_;
  std::int64_t each_;  ///< bytes of a partition
  device::Staging staging_;
  std::vector<std::atomic<State>> states_;  ///< of the partitions of a receive
  std::vector<std::size_t> unpacked_;       ///< of partitions unpacked: hash() of what has been
  std::atomic<bool> arrived_{false};
  std::vector<Moving> moving_;  ///< only for the engine; destroyed before staging_
};

using PartitionedRef = std::shared_ptr<Partitioned>;

PartitionedRef find(MPI_Request request) {
  return std::dynamic_pointer_cast<Partitioned>(persistent_payload(request));
}

/// Whether PMPI_Parrived may be called for the real request. In MPICH 4.0 it is an error once the request has
/// completed, which another thread may cause at any time; and it reports no partition before all have arrived.
bool may_ask() {
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  return level != MPI_THREAD_MULTIPLE;
}

/// Makes a persistent request by `pmpi(buffer, type, request)`.
template <class Pmpi>
int init(Operation::Kind kind, const char* call, const void* buf, int partitions, MPI_Count count, MPI_Datatype type,
         int peer, MPI_Comm comm, MPI_Request* request, Pmpi pmpi) {
  return guarded(comm, call, [&] {
    DeviceBuffer operand;
    if (peer == MPI_PROC_NULL || partitions <= 0 || !resolve(buf, partitions * count, type, call, operand)) {
      const Outgoing given = given_unstaged(operand, {buf, 1, type});
      return pmpi(given.room(), given.type, request);
    }
    auto payload = std::make_shared<Partitioned>(operand, partitions, kind);
    MPI_Request real = MPI_REQUEST_NULL;
    const int code = pmpi(payload->data(), operand.packed_type(), &real);
    if (code != MPI_SUCCESS) return code;
    persistent_adopt({kind, std::move(payload)}, comm, real);
    *request = real;
    return code;
  });
}

/// Packs those of `partitions` that exist; MPI complains about others in `pmpi()`.
/// `each(pack)` calls pack() for each partition that is ready.
template <class Each, class Pmpi>
int ready(const char* call, MPI_Request request, Each each, Pmpi pmpi) {
  return guarded(MPI_COMM_WORLD, call, [&] {
    if (const PartitionedRef payload = find(request))
      each([&](int partition) {
        if (partition >= 0 && partition < payload->partitions()) payload->pack(partition);
      });
    return pmpi();
  });
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Psend_init(const void* buf, int partitions, MPI_Count count, MPI_Datatype type, int dest, int tag,
                                MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return init(Operation::Kind::fill, "MPI_Psend_init", buf, partitions, count, type, dest, comm, request,
              [&](void* from, MPI_Datatype as, MPI_Request* real) {
                return PMPI_Psend_init(from, partitions, count, as, dest, tag, comm, info, real);
              });
}

GPUDT_EXPORT int MPI_Precv_init(void* buf, int partitions, MPI_Count count, MPI_Datatype type, int source, int tag,
                                MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return init(Operation::Kind::read, "MPI_Precv_init", buf, partitions, count, type, source, comm, request,
              [&](void* to, MPI_Datatype as, MPI_Request* real) {
                return PMPI_Precv_init(to, partitions, count, as, source, tag, comm, info, real);
              });
}

GPUDT_EXPORT int MPI_Pready(int partition, MPI_Request request) {
  return ready(
      "MPI_Pready", request, [&](const auto& pack) { pack(partition); },
      [&] { return PMPI_Pready(partition, request); });
}

GPUDT_EXPORT int MPI_Pready_range(int low, int high, MPI_Request request) {
  return ready(
      "MPI_Pready_range", request,
      [&](const auto& pack) {
        for (int partition = std::max(low, 0); partition <= high; ++partition) pack(partition);
      },
      [&] { return PMPI_Pready_range(low, high, request); });
}

GPUDT_EXPORT int MPI_Pready_list(int length, Partitions partitions, MPI_Request request) {
  return ready(
      "MPI_Pready_list", request,
      [&](const auto& pack) {
        for (int i = 0; i < length; ++i) pack(partitions[i]);
      },
      [&] { return PMPI_Pready_list(length, partitions, request); });
}

GPUDT_EXPORT int MPI_Parrived(MPI_Request request, int partition, int* flag) {
  return guarded(MPI_COMM_WORLD, "MPI_Parrived", [&] {
    const PartitionedRef payload = find(request);
    if (!payload || partition < 0 || partition >= payload->partitions()) return PMPI_Parrived(request, partition, flag);
    *flag = 1;
    if (payload->is_unpacked(partition) || !persistent_active(request)) return int(MPI_SUCCESS);
    int code = MPI_SUCCESS;
    *flag = payload->has_arrived() ? 1 : 0;
    if (*flag == 0 && may_ask()) code = PMPI_Parrived(request, partition, flag);
    if (code == MPI_SUCCESS && *flag != 0) *flag = payload->unpack(partition) ? 1 : 0;
    if (*flag == 0) engine_progress();
    return code;
  });
}

#endif
