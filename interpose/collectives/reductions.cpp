#include "interpose/collectives/reductions.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "datatype/basic.hpp"
#include "interpose/collectives/board_call.hpp"
#include "interpose/collectives/comm_state.hpp"
#include "interpose/collectives/node_reductions.hpp"
#include "interpose/requests/arithmetic.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"
#include "interpose/support/require.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {
namespace {

using device::Result;
using peer::Contribution;

/// Over several nodes the agreement costs more than it gains for shorter inputs, as measured (MPI_Allreduce of float).
constexpr std::int64_t least_reduction_over_nodes = 2 << 20;
/// Nor does it pay for shorter blocks of MPI_Reduce_scatter, since each block is a reduction of MPI.
constexpr std::int64_t least_block_over_nodes = 64 << 10;

std::uintptr_t address_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

/// A buffer as GPUs reduce it: in place, or a packed copy in staging memory.
class Operand {
 public:
  /// False if the buffer does not lie in the memory of one GPU.
  bool locate(const void* buffer, std::int64_t count, MPI_Datatype type) {
    return resolve_layout(buffer, count, type, memory_) && !memory_.division;
  }
  /// Lets this process's kernels use the buffer itself, or a packed copy if the layout has gaps or the elements are not
  /// aligned. Throws device::Error.
  void place(std::int64_t alignment) {
    if (is_to_be_copied(alignment))
      put_into(device::acquire(device::StagingKind::device, memory_.ordinal, static_cast<std::size_t>(bytes())));
  }
  /// place() for the kernels of the processes `by`; a packed copy is used also if they cannot map the buffer yet, or if
  /// it is to be `copied`. False if they cannot map a copy either.
  bool place(std::int64_t alignment, device::Importers by, bool copied = false) {
    copied = is_to_be_copied(alignment) || copied;
    if (!copied && export_in_place(by)) return true;
    device::ExportedStaging taken = device::acquire_exported(memory_.ordinal, static_cast<std::size_t>(bytes()), by);
    if (!taken.exported) return false;
    exported_ = *taken.exported;
    put_into(std::move(taken.staging));
    return true;
  }
  /// Waits for the program's work on the buffer and, if it is read, for its packed copy.
  void prepare(bool is_read) {
    if (staging_ && is_read) start(device::Direction::pack);
    wait_until([&] { return memory_.after.reached(); }, for_others);
    wait();
  }
  /// Starts copying the result from the packed copy to the buffer; delivered() returns whether that is done.
  void start_delivery() {
    if (staging_) start(device::Direction::unpack);
  }
  bool delivered() { return transfer_.done(); }

  const DeviceBuffer& memory() const { return memory_; }
  device::UserData data() const { return memory_.info ? user_data(memory_) : device::UserData{}; }
  std::uint64_t address() const { return first_; }
  void* as_pointer() const { return reinterpret_cast<void*>(first_); }
  const device::Exported& exported() const { return exported_; }
  /// For the report and the trace.
  void note(const char* call, ReportClock::time_point began, const char* why_through_host = nullptr) const {
    if (!buffers_followed && !tracing()) return;
    DeviceBuffer memory = memory_;
    memory.protocol = Protocol::peer;
    note_operand(call, memory);
    if (!memory.reported) return;
    memory.reported->begin();  // each start of a persistent call is counted
    memory.reported->went({went_by_kernels, why_through_host});
    memory.reported->began(began);
  }

 private:
  std::int64_t bytes() const { return memory_.bytes(); }
  /// Memory of cudaMalloc that is too short makes a kernel fail, of which all processes learn.
  bool export_in_place(device::Importers by) {
    const auto bytes = static_cast<std::uint64_t>(this->bytes());
    return device::export_memory(memory_.ordinal, as_pointer(), exported_, by, bytes) &&
           (exported_.pieces == 0 || first_ + bytes <= exported_.base + exported_.size);
  }
  bool is_to_be_copied(std::int64_t alignment) {
    const datatype::Layout& layout = memory_.info->layout();
    first_ = address_of(memory_.buffer) + static_cast<std::uintptr_t>(layout.true_lb());
    return !layout.is_contiguous(memory_.count) || first_ % static_cast<std::uintptr_t>(alignment) != 0;
  }
  void put_into(device::Staging staging) {
    staging_ = std::move(staging);
    first_ = address_of(staging_.data());
  }
  void start(device::Direction direction) {
    transfer_ = OperandTransfer(direction, memory_, 0, bytes(), staging_.data(), device::MemoryKind::device);
  }
  void wait() {
    wait_until([&] { return transfer_.done(); }, for_others);
  }

  DeviceBuffer memory_;
  device::Staging staging_;
  OperandTransfer transfer_;  // after staging_
  std::uintptr_t first_ = 0;
  device::Exported exported_{};
};

class Part : public BoardCall {
 public:
  /// `over_nodes`: the part of a blocking call that involves other nodes; null if there are none.
  Part(const char* call, std::shared_ptr<BoardGroup> group, ReductionArguments arguments, const Arithmetic& arithmetic,
       NodeReduction* over_nodes = nullptr)
      : BoardCall(call, std::move(group)),
        arguments_(std::move(arguments)),
        arithmetic_(arithmetic),
        over_nodes_(over_nodes) {}

  /// Prepares what this process publishes. Returns whether its data are for GPUs.
  bool prepare(MPI_Datatype type) noexcept {
    try {
      mine_.fit = resolve(type) ? 1 : 0;
    } catch (const std::exception& error) {
      if (tracing()) log_trace(std::string(call_) + ": not by GPUs: " + error.what());
    }
    if (mine_.fit == 0) return false;
    const int parts[] = {static_cast<int>(arithmetic_.op), static_cast<int>(arithmetic_.element),
                         static_cast<int>(arguments_.result), arguments_.blocks.empty() ? 0 : 1};
    for (const int part : parts) mine_.operation = mine_.operation * 32 + static_cast<std::uint32_t>(part);
    ordinal_ = in_.memory().ordinal;
    mine_.root = arguments_.root;
    mine_.bytes = arguments_.count * element_bytes();
    mine_.from_address = in_.address();
    mine_.from = in_.exported();
    std::ranges::copy(device::turn_of(mine_.from), mine_.gpu);
    if (!gets_result()) return true;
    mine_.to_address = result().address();
    mine_.to = result().exported();
    return true;
  }

  void report() const override {
    report_peer(PeerEvent::collective);
    const char* const host = over_nodes_ == nullptr ? nullptr : not_on_one_node;  // between the nodes
    in_.note(call_, began_, host);
    if (!in_place() && out_.memory().info) out_.note(call_, began_, host);
    if (tracing())
      log_trace(std::string(call_) + ": " + std::to_string(all_.size()) + " processes' buffers reduced by " +
                std::to_string(leaders_.size()) + " GPUs" + (over_nodes_ == nullptr ? "" : " and over nodes"));
  }

 private:
  std::int64_t element_bytes() const { return device::element_bytes(arithmetic_.element); }
  bool in_place() const { return arguments_.sendbuf == MPI_IN_PLACE; }
  bool gets_result() const {
    if (arguments_.result == Result::exscan) return group_->rank() != 0;
    return arguments_.root < 0 || arguments_.root == group_->rank();
  }
  bool scatters() const { return !arguments_.blocks.empty(); }
  /// Where this process's result goes. If it scatters in place, others read the buffer meanwhile: the input is a copy.
  Operand& result() { return in_place() && !scatters() ? in_ : out_; }
  bool resolve(MPI_Datatype type) {
    if (!active.load(std::memory_order_acquire) || check_wanted || arguments_.recvbuf == MPI_IN_PLACE) return false;
    const bool has_output = arguments_.result == Result::exscan || gets_result();
    if (has_output && arguments_.sendbuf == arguments_.recvbuf) return false;  // MPI's to refuse
    if (all_.size() > device::Reduction::most_ranks) return false;
    const bool is_rank = arguments_.root < static_cast<int>(all_.size());
    if ((!is_rank && arguments_.root != ReductionArguments::root_elsewhere) ||
        (in_place() && arguments_.root >= 0 && !gets_result()))
      return false;  // MPI's to refuse
    if (std::any_of(arguments_.blocks.begin(), arguments_.blocks.end(), [](std::int64_t count) { return count < 0; }))
      return false;
    const std::int64_t alignment = device::element_alignment(arithmetic_.element);
    const void* const input = in_place() ? arguments_.recvbuf : arguments_.sendbuf;
    if (!in_.locate(input, arguments_.count, type)) return false;
    if (!in_.place(alignment, group_->importers(), /*copied=*/in_place() && scatters())) return false;
    in_.prepare(/*is_read=*/true);
    if (!gets_result() || &result() == &in_) return true;
    const std::int64_t count =
        scatters() ? arguments_.blocks[static_cast<std::size_t>(group_->rank())] : arguments_.count;
    if (count == 0) return true;
    if (!out_.locate(arguments_.recvbuf, count, type)) return false;
    if (!out_.place(alignment, group_->importers())) return false;
    out_.prepare(/*is_read=*/false);
    return true;
  }

  bool all_agree() const override {
    return std::all_of(all_.begin(), all_.end(), [&](const Contribution& each) {
      return each.fit == 1 && mine_.fit == 1 && each.operation == mine_.operation && each.root == mine_.root &&
             each.bytes == mine_.bytes;
    });
  }
  bool all_nodes_agree(bool ready) override {
    return over_nodes_ == nullptr ? ready : over_nodes_->all_nodes_agree(ready, leaders_);
  }
  void start_delivery() override {
    if (gets_result()) result().start_delivery();
  }
  bool delivered() override { return !gets_result() || result().delivered(); }
  bool own_data_missing() const override { return in_.data().is_missing() || out_.data().is_missing(); }

  bool map() override {
    from_.assign(all_.size(), nullptr);
    to_.assign(all_.size(), nullptr);
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      const Contribution& its = all_[rank];
      if (!reach(rank, its.from, its.from_address, from_[rank])) return false;
      if (its.to_address != 0 && !reach(rank, its.to, its.to_address, to_[rank])) return false;
    }
    if (over_nodes_ != nullptr) over_nodes_->reserve(ordinal_);
    return true;
  }

  void start(std::vector<device::Transfer>& kernels) override {
    if (over_nodes_ != nullptr)
      over_nodes_->run({ordinal_, from_, to_});
    else if (scatters())
      start_blocks(kernels);
    else
      start_slice(kernels);
  }

  void start_slice(std::vector<device::Transfer>& kernels) {
    const auto slices = static_cast<std::int64_t>(leaders_.size());
    const auto index = std::find(leaders_.begin(), leaders_.end(), group_->rank()) - leaders_.begin();
    const std::int64_t first = slice_begin(arguments_.count, index, slices);
    reduce(kernels, first, slice_begin(arguments_.count, index + 1, slices) - first, to_, /*all=*/true);
  }

  void start_blocks(std::vector<device::Transfer>& kernels) {
    std::int64_t first = 0;
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      std::vector<void*> to(all_.size(), nullptr);
      to[rank] = to_[rank];
      if (serves(rank)) reduce(kernels, first, arguments_.blocks[rank], to, /*all=*/false);
      first += arguments_.blocks[rank];
    }
  }

  /// Starts the reduction of elements [first, first + count). `all`: the destinations have all elements too.
  void reduce(std::vector<device::Transfer>& kernels, std::int64_t first, std::int64_t count,
              const std::vector<void*>& to, bool all) {
    if (count == 0) return;
    const std::int64_t offset = first * element_bytes();
    const auto shift = [](void* address, std::int64_t bytes) {
      return address == nullptr ? nullptr : static_cast<void*>(static_cast<char*>(address) + bytes);
    };
    std::vector<const void*> sources;
    std::vector<void*> destinations;
    sources.reserve(all_.size());
    destinations.reserve(all_.size());
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      sources.push_back(shift(from_[rank], offset));
      destinations.push_back(shift(to[rank], all ? offset : 0));
    }
    kernels.push_back(device::reduce(
        ordinal_, {arithmetic_.op, arithmetic_.element, arguments_.result, count, sources, destinations}));
  }

  const ReductionArguments arguments_;
  const Arithmetic arithmetic_;
  NodeReduction* const over_nodes_;
  Operand in_, out_;
  const ReportClock::time_point began_ = report_now();
  std::vector<void*> from_, to_;  ///< by rank, as this process's GPU reaches them
};

bool wanted(std::int64_t bytes) {
  const ForcedProtocol forced = collectives_forced();
  return (!forced || forced == Protocol::peer) && bytes > 0;
}

/// Whether all processes can take part, on one node, or on several nodes if that pays.
bool can_reduce(const CommState& state, const ReductionArguments& arguments, const Arithmetic& arithmetic,
                MPI_Datatype type, std::int64_t bytes) {
  if (state.together) return true;
  const auto blocks = static_cast<std::int64_t>(std::max(arguments.blocks.size(), std::size_t{1}));
  const bool pays = bytes >= least_reduction_over_nodes && bytes / blocks >= least_block_over_nodes;
  return (pays || collectives_forced() == Protocol::peer) && NodeReduction::is_possible(arguments, arithmetic, type);
}

const void* input_of(const ReductionArguments& arguments) {
  return arguments.sendbuf == MPI_IN_PLACE ? arguments.recvbuf : arguments.sendbuf;
}

/// Whether this process certainly has no data for GPUs; this takes no time.
bool surely_on_host(const ReductionArguments& arguments) {
  return !device::in_use() || device::surely_host(input_of(arguments));
}

/// Counts, for the report, a reduction with an operator or type that GPUs do not support.
void note_left_to_host(const ReductionArguments& arguments, MPI_Datatype type) {
  if (!report_wanted || arguments.count <= 0 || type == MPI_DATATYPE_NULL) return;
  if (locate_buffer(input_of(arguments), type).on_device()) report_fallback(Fallback::operator_of_host);
}

std::int64_t bytes_of(const ReductionArguments& arguments, const Arithmetic& arithmetic) {
  return arguments.count * device::element_bytes(arithmetic.element);
}

/// The operation about which the processes of `comm` agree; no value: they do not, and MPI gets the call. All processes
/// get the same answer.
std::optional<Arithmetic> asked(MPI_Comm comm, const ReductionArguments& arguments, MPI_Datatype type, MPI_Op op) {
  const auto no = [](const char* why) {
    require_explains(why);
    return std::nullopt;
  };
  if (!collectives_ask() || comm == MPI_COMM_NULL) return no(gpus_take_no_part);
  static_cast<void>(comm_state_of(comm));
  const int size = datatype::basic_types.size(type);  // 0: no basic type
  if (size != 0 && !wanted(arguments.count * size)) return no("GPUDT_PROTOCOL");
  const std::optional<Arithmetic> arithmetic = arithmetic_of(op, type);
  if (!arithmetic) {
    note_left_to_host(arguments, type);
    return no("GPUs do not support the operator with this datatype");
  }
  require_explains(not_all_for_gpus);  // unless they do it
  return wanted(bytes_of(arguments, *arithmetic)) ? arithmetic : no("GPUDT_PROTOCOL");
}

bool on_one_node(MPI_Comm comm) {
  return comm_state_of(comm).together || require_explains(not_on_one_node);
}

}  // namespace

std::optional<int> reduce_on_gpus(const Call& call, MPI_Comm comm, const ReductionArguments& arguments,
                                  MPI_Datatype type, MPI_Op op) {
  const std::optional<Arithmetic> arithmetic = asked(comm, arguments, type, op);
  if (!arithmetic) return std::nullopt;
  CommState& state = comm_state_of(comm);
  const std::int64_t bytes = bytes_of(arguments, *arithmetic);
  if (!can_reduce(state, arguments, *arithmetic, type, bytes)) {
    require_explains(not_on_one_node);
    return std::nullopt;
  }
  AskBackoff& backoff =
      state.backoff_for(call.name, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bytes))));
  if (backoff.passes()) {
    require_explains(others_were_not);
    return std::nullopt;
  }
  NodeGroups* const nodes = state.together ? nullptr : node_groups(comm);
  if (nodes == nullptr && !state.together) return std::nullopt;
  const std::shared_ptr<BoardGroup>& group = nodes != nullptr ? nodes->boards() : boards_of(state);
  backoff.failed();  // unless GPUs do it
  if (nodes == nullptr && surely_on_host(arguments)) {
    group->decline();
    return std::nullopt;
  }

  const Timed timed(Clock::mpi);
  std::optional<NodeReduction> over_nodes;
  if (nodes != nullptr) over_nodes.emplace(*nodes, comm, arguments, *arithmetic, type, op);
  Part part(call.name, group, over_nodes ? over_nodes->on_node() : arguments, *arithmetic,
            over_nodes ? &*over_nodes : nullptr);
  if (!by_gpus(part, part.prepare(type), backoff)) return std::nullopt;
  part.report();
  return MPI_SUCCESS;
}

namespace {

/// What this process publishes in a group that has room; null: it has declined.
std::unique_ptr<BoardCall> offer(const char* call, const std::shared_ptr<BoardGroup>& group,
                                 const ReductionArguments& arguments, MPI_Datatype type, const Arithmetic& arithmetic) {
  auto part = std::make_unique<Part>(call, group, arguments, arithmetic);
  if (!part->prepare(type)) part.reset();  // which declines
  return part;
}

}  // namespace

std::unique_ptr<BoardCall> offer_reduction(const Call& call, MPI_Comm comm, const ReductionArguments& arguments,
                                           MPI_Datatype type, MPI_Op op) {
  const std::optional<Arithmetic> arithmetic = asked(comm, arguments, type, op);
  if (!arithmetic || !on_one_node(comm)) return nullptr;
  const std::shared_ptr<BoardGroup>& group = boards_of(comm_state_of(comm));
  try {
    if (!surely_on_host(arguments) && may_offer(*group)) return offer(call.name, group, arguments, type, *arithmetic);
  } catch (const std::bad_alloc&) {  // this process declines
  }
  group->decline();
  return nullptr;
}

bool starts_asked(MPI_Comm comm, const ReductionArguments& arguments, MPI_Datatype type, MPI_Op op) {
  return asked(comm, arguments, type, op) && on_one_node(comm);
}

// Operator and datatype are predefined, or gpudt's own, and so outlive the request.
PrepareOffer reduction_to_offer(const Call& call, const ReductionArguments& arguments, MPI_Datatype type, MPI_Op op) {
  const std::optional<Arithmetic> arithmetic = arithmetic_of(op, type);
  if (!arithmetic || !locate_buffer(input_of(arguments), type).on_device()) return {};
  return [name = call.name, arguments, type, arithmetic = *arithmetic](const std::shared_ptr<BoardGroup>& group) {
    return offer(name, group, arguments, type, arithmetic);
  };
}

bool reduce_locally(const char* call, const void* inbuf, void* inoutbuf, std::int64_t count, MPI_Datatype type,
                    MPI_Op op) {
  if (!active.load(std::memory_order_acquire) || check_wanted || !device::in_use()) return false;
  const std::optional<Arithmetic> arithmetic = arithmetic_of(op, type);
  if (!arithmetic || count == 0) return false;
  const std::int64_t alignment = device::element_alignment(arithmetic->element);
  const auto began = report_now();
  Operand in, inout;
  if (!in.locate(inbuf, count, type) || !inout.locate(inoutbuf, count, type) ||
      in.memory().ordinal != inout.memory().ordinal)
    return false;
  for (Operand* const each : {&in, &inout}) {
    each->place(alignment);
    each->prepare(/*is_read=*/true);
  }
  const void* const from[] = {in.as_pointer(), inout.as_pointer()};
  void* const to[] = {nullptr, inout.as_pointer()};
  const auto reduce = [&] {
    device::reduce(in.memory().ordinal, {arithmetic->op, arithmetic->element, Result::total, count, from, to}).wait();
  };
  device::moving(in.memory(), [&] { device::moving(inout.memory(), reduce); });
  inout.start_delivery();
  wait_until([&] { return inout.delivered(); }, for_others);
  for (const Operand* const each : {&in, &inout}) each->note(call, began);
  return true;
}

}  // namespace gpudt::interpose
