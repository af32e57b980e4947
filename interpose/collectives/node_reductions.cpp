#include "interpose/collectives/node_reductions.hpp"

#include <algorithm>
#include <bit>

#include "device/device.hpp"
#include "interpose/requests/float16_types.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

/// Bytes that MPI reduces at a time: long enough for its algorithms for long messages, short enough to overlap.
constexpr std::int64_t chunk_bytes = 512 << 10;

void* shifted_or_null(void* address, std::int64_t bytes) {
  return address == nullptr ? nullptr : static_cast<void*>(static_cast<char*>(address) + bytes);
}

}  // namespace

/// The chunks of one leader in the order in which all fellows reduce them; needs no memory.
class NodeReduction::Walk {
 public:
  Walk(const ReductionArguments& arguments, std::int64_t slice, std::int64_t slices, std::int64_t longest)
      : arguments_(arguments), slice_(slice), slices_(slices), longest_(longest) {
    enter();
  }
  bool next(Chunk& chunk) {
    while (at_ == end_) {
      if (++block_ >= blocks()) return false;
      begin_ += count_;
      enter();
    }
    const std::int64_t count = std::min(longest_, end_ - at_);
    chunk = {begin_ + at_, count, at_, arguments_.blocks.empty() ? -1 : static_cast<int>(block_)};
    at_ += count;
    return true;
  }

 private:
  std::size_t blocks() const { return std::max(arguments_.blocks.size(), std::size_t{1}); }
  void enter() {
    count_ = arguments_.blocks.empty() ? arguments_.count : arguments_.blocks[block_];
    at_ = slice_begin(count_, slice_, slices_);
    end_ = slice_begin(count_, slice_ + 1, slices_);
  }
  const ReductionArguments& arguments_;
  const std::int64_t slice_, slices_, longest_;
  std::size_t block_ = 0;
  std::int64_t begin_ = 0, count_ = 0;  ///< of the block
  std::int64_t at_ = 0, end_ = 0;       ///< in the block
};

NodeReduction::NodeReduction(NodeGroups& nodes, MPI_Comm comm, const ReductionArguments& arguments,
                             const Arithmetic& arithmetic, MPI_Datatype type, MPI_Op op)
    : nodes_(nodes),
      comm_(comm),
      arguments_(arguments),
      arithmetic_(arithmetic),
      type_(type),
      op_(operator_for_mpi(op, type)),
      on_node_(arguments) {
  if (arguments.root >= 0) {
    const auto root = static_cast<std::size_t>(arguments.root);
    valid_ = root < nodes.node_of.size();
    on_node_.root =
        valid_ && nodes.node_of[root] == nodes.own_node ? nodes.rank_on_node[root] : ReductionArguments::root_elsewhere;
  }
  if (arguments.blocks.empty()) return;
  on_node_.blocks.clear();
  for (std::size_t rank = 0; rank < arguments.blocks.size(); ++rank)
    if (nodes.node_of[rank] == nodes.own_node) on_node_.blocks.push_back(arguments.blocks[rank]);
}

bool NodeReduction::is_possible(const ReductionArguments& arguments, const Arithmetic& arithmetic, MPI_Datatype type) {
  MPI_Aint lower = 0, extent = 0;
  PMPI_Type_get_extent(type, &lower, &extent);
  const bool all_get_some = arguments.root < 0 && std::all_of(arguments.blocks.begin(), arguments.blocks.end(),
                                                              [](std::int64_t elements) { return elements > 0; });
  return all_get_some && arguments.result == device::Result::total &&
         extent == device::element_bytes(arithmetic.element);
}

std::int64_t NodeReduction::chunk_elements() const {
  return chunk_bytes / device::element_bytes(arithmetic_.element) / slice_multiple * slice_multiple;
}

void NodeReduction::reserve(int ordinal) {
  const std::int64_t elements = std::min(chunk_elements(), arguments_.count);
  const auto bytes = static_cast<std::size_t>(elements * device::element_bytes(arithmetic_.element));
  for (Slot& slot : slots_) slot.memory = device::acquire(device::StagingKind::mapped, ordinal, bytes);
}

/// A hash of the arguments that must be the same in all processes. If it differs, the program is wrong, and MPI gets
/// the call.
std::uint64_t NodeReduction::signature() const {
  std::uint64_t mixed = 0;
  const auto mix = [&mixed](std::int64_t value) { mixed = mixed * 1000003 + static_cast<std::uint64_t>(value); };
  mix(arguments_.count);
  mix(arguments_.root);
  mix(static_cast<std::int64_t>(arithmetic_.op));
  mix(static_cast<std::int64_t>(arithmetic_.element));
  for (const std::int64_t block : arguments_.blocks) mix(block);
  return mixed;
}

bool NodeReduction::all_nodes_agree(bool ready, const std::vector<int>& leaders) {
  std::uint64_t mask = 0;
  if (ready && valid_)
    for (const int leader : leaders) mask |= std::uint64_t{1} << static_cast<unsigned>(leader);
  // By bit-wise AND: the leaders that all nodes have, none if one refuses; the signature and its complement, which
  // remain complements only if all signatures are equal.
  std::uint64_t all[] = {mask, signature(), ~signature()};
  if (PMPI_Allreduce(MPI_IN_PLACE, all, 3, MPI_UINT64_T, MPI_BAND, comm_) != MPI_SUCCESS) return false;
  leaders_ = all[0];
  return leaders_ != 0 && all[1] == ~all[2];
}

/// Runs `action`, and stores its failure. After a failure the GPUs do nothing more, but this process still takes part
/// in the calls that its fellows wait for.
template <class Action>
void NodeReduction::attempt(Action action) {
  if (failure_) return;
  try {
    action();
  } catch (const std::exception&) {
    failure_ = std::current_exception();
  }
}

void NodeReduction::run(const NodeOperands& operands) {
  const std::uint64_t own = std::uint64_t{1} << static_cast<unsigned>(nodes_.boards()->rank());
  if ((leaders_ & own) == 0) return;
  Walk walk(arguments_, std::popcount(leaders_ & (own - 1)), std::popcount(leaders_), chunk_elements());
  const auto slot_of = [this](std::size_t number) -> Slot& { return slots_[number % slots_.size()]; };
  std::size_t begun = 0, exchanged = 0;
  Chunk chunk;
  if (walk.next(chunk)) begin(operands, slot_of(begun++), chunk);
  for (; exchanged < begun; ++exchanged) {
    if (walk.next(chunk)) begin(operands, slot_of(begun++), chunk);
    Slot& slot = slot_of(exchanged);
    settle(slot);
    exchange(slot);
    if (exchanged > 0) spread(operands, slot_of(exchanged - 1));
    fetch(operands, slot);
  }
  if (exchanged > 0) spread(operands, slot_of(exchanged - 1));
  for (Slot& slot : slots_) settle(slot);
  agree_on_success();
}

/// Starts to combine the inputs of the node's processes into host memory.
void NodeReduction::begin(const NodeOperands& operands, Slot& slot, const Chunk& chunk) {
  settle(slot);
  slot.chunk = chunk;
  attempt([&] {
    const std::int64_t offset = chunk.first * device::element_bytes(arithmetic_.element);
    std::vector<const void*> from;
    for (void* const source : operands.from) from.push_back(shifted_or_null(source, offset));
    std::vector<void*> to(from.size(), nullptr);
    to[0] = slot.memory.data();
    slot.work = device::reduce(operands.ordinal,
                               {arithmetic_.op, arithmetic_.element, device::Result::total, chunk.count, from, to});
  });
}

/// Waits for the slot's work, also after a failure, since it uses memory of other processes until it has ended.
void NodeReduction::settle(Slot& slot) {
  try {
    wait_until([&slot] { return slot.work.done(); }, for_others);
  } catch (const std::exception&) {
    if (!failure_) failure_ = std::current_exception();
  }
}

int NodeReduction::target_node(const Chunk& chunk) const {
  const int target = chunk.receiver >= 0 ? chunk.receiver : arguments_.root;
  return target < 0 ? -1 : nodes_.node_of[static_cast<std::size_t>(target)];
}

void NodeReduction::exchange(Slot& slot) {
  const int target = target_node(slot.chunk);
  const auto count = static_cast<int>(slot.chunk.count);
  void* const data = slot.memory.data();
  int code = MPI_SUCCESS;
  if (target < 0)
    code = PMPI_Allreduce(MPI_IN_PLACE, data, count, type_, op_, nodes_.fellows);
  else if (target == nodes_.own_node)
    code = PMPI_Reduce(MPI_IN_PLACE, data, count, type_, op_, target, nodes_.fellows);
  else
    code = PMPI_Reduce(data, nullptr, count, type_, op_, target, nodes_.fellows);
  attempt([code] {
    if (code != MPI_SUCCESS)
      throw MpiError(MPI_ERR_OTHER, "the MPI library has failed among processes of several nodes");
  });
}

template <class Act>
void NodeReduction::for_each_result(const NodeOperands& operands, const Chunk& chunk, Act act) const {
  const std::int64_t offset = chunk.in_result * device::element_bytes(arithmetic_.element);
  if (chunk.receiver < 0) {
    for (void* const to : operands.to)
      if (to != nullptr) act(shifted_or_null(to, offset));
  } else if (target_node(chunk) == nodes_.own_node) {
    const int receiver = nodes_.rank_on_node[static_cast<std::size_t>(chunk.receiver)];
    act(shifted_or_null(operands.to[static_cast<std::size_t>(receiver)], offset));
  }
}

/// Copies the result from host memory to one of its receivers, so that it crosses the bus once.
void NodeReduction::fetch(const NodeOperands& operands, Slot& slot) {
  slot.result = nullptr;
  for_each_result(operands, slot.chunk, [&slot](void* result) {
    if (slot.result == nullptr) slot.result = result;
  });
  if (slot.result == nullptr) return;
  attempt([&] {
    const device::BlockCopy copy = {slot.memory.data(), slot.result,
                                    slot.chunk.count * device::element_bytes(arithmetic_.element)};
    slot.work = device::copy_blocks(operands.ordinal, {&copy, 1});
  });
}

/// Copies the result from its first receiver to the others.
void NodeReduction::spread(const NodeOperands& operands, Slot& slot) {
  settle(slot);
  attempt([&] {
    std::vector<device::BlockCopy> copies;
    for_each_result(operands, slot.chunk, [&](void* result) {
      if (result != slot.result)
        copies.push_back({slot.result, result, slot.chunk.count * device::element_bytes(arithmetic_.element)});
    });
    if (!copies.empty()) slot.work = device::copy_blocks(operands.ordinal, copies);
  });
}

void NodeReduction::agree_on_success() {
  int failed = failure_ ? 1 : 0;
  const int code = PMPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, nodes_.fellows);
  if (failure_) std::rethrow_exception(failure_);
  if (code != MPI_SUCCESS || failed != 0) throw MpiError(MPI_ERR_OTHER, "a process of another node has failed");
}

}  // namespace gpudt::interpose
