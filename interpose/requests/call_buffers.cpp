// Stages the buffers of collectives. The blocks of one argument lie in one staging buffer, each with its own datatype,
// whose layout is cached on the GPU, and are packed or unpacked together by as few kernels as possible.
#include "interpose/requests/call_buffers.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "datatype/basic.hpp"
#include "interpose/requests/host_shadow.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

/// Blocks of one buffer argument, at least one of which is in device memory.
class StagedBlocks : public CallPayload {
 public:
  /// Acquires `bytes` bytes of staging memory; may throw device::Error.
  StagedBlocks(std::vector<StagedBlock> blocks, std::int64_t bytes)
      : blocks_(std::move(blocks)), staging_(device::acquire_packed(a_gpu(blocks_), static_cast<std::size_t>(bytes))) {
    mark();
  }

  void restart() override {
    for (const StagedBlock& block : blocks_) report_begin(block.operand.reported);
    mark();
  }
  void start_pack() override { start(device::Direction::pack); }
  /// Always unpacks all blocks.
  void start_unpack(std::int64_t) override { start(device::Direction::unpack); }
  bool done() override {
    return std::all_of(transfers_.begin(), transfers_.end(), [](OperandTransfer& each) { return each.done(); });
  }
  void wait() override {
    const Timed timed(Clock::transfer);
    for (OperandTransfer& transfer : transfers_) transfer.wait();
  }
  void each_reported(VisitReported visit) const override {
    for (const StagedBlock& block : blocks_) report_visit(block.operand.reported, visit);
  }
  void* data() const { return staging_.data(); }

 private:
  /// One mark serves all blocks in memory of one GPU.
  void mark() {
    std::map<int, device::StreamMark> marks;
    for (StagedBlock& block : blocks_) {
      DeviceBuffer& operand = block.operand;
      const auto known = marks.find(operand.ordinal);
      if (operand.division || known == marks.end())
        operand.mark_again();
      else
        operand.after = known->second;
      if (!operand.division) marks.emplace(operand.ordinal, operand.after);
    }
  }
  void start(device::Direction direction) {
    transfers_.clear();
    transfers_.reserve(blocks_.size());
    for (const StagedBlock& block : blocks_)
      transfers_.emplace_back(direction, block.operand, 0, block.operand.bytes(),
                              static_cast<std::byte*>(staging_.data()) + block.place, staging_.memory_kind());
  }
  static int a_gpu(const std::vector<StagedBlock>& blocks) {
    int ordinal = 0;
    for (const StagedBlock& block : blocks) ordinal = std::max(ordinal, block.operand.ordinal);
    return ordinal;
  }

  std::vector<StagedBlock> blocks_;
  device::Staging staging_;
  std::vector<OperandTransfer> transfers_;  // after staging_: they must end before the memory is released
};

/// Blocks of types that differ begin at multiples of this, so that they are written in whole words and segments.
constexpr std::int64_t block_alignment = 128;

}  // namespace

/// Everything that must live until the collective has completed, or the persistent request has been freed.
class CallBuffers::Buffers : public CallPayload {
 public:
  void restart() override {
    for (const auto& payload : moved) payload->restart();
  }
  void start_pack() override {
    const device::Gathering gathering(device::Gathering::long_bytes);
    for (CallPayload* input : inputs) input->start_pack();
  }
  /// Always unpacks everything: the status of a collective has no number of bytes.
  void start_unpack(std::int64_t) override {
    const device::Gathering gathering(device::Gathering::long_bytes);
    for (const auto& [output, bytes] : outputs) output->start_unpack(bytes);
  }
  bool done() override {
    return std::all_of(moved.begin(), moved.end(), [](const auto& payload) { return payload->done(); });
  }

  void wait() override {
    for (const auto& payload : moved) payload->wait();
  }
  void each_reported(VisitReported visit) const override {
    for (const auto& payload : moved) payload->each_reported(visit);
  }

  void add(Role role, std::int64_t bytes, std::unique_ptr<CallPayload> payload) {
    if (role != Role::out) inputs.push_back(payload.get());
    if (role != Role::in) outputs.emplace_back(payload.get(), bytes);
    moved.push_back(std::move(payload));
  }

  template <class Displacement>
  const Displacement* keep(std::vector<Displacement> list) {
    auto& lists = std::get<std::vector<std::vector<Displacement>>>(displs);
    lists.push_back(std::move(list));
    return lists.back().data();
  }

  std::vector<std::unique_ptr<CallPayload>> moved;
  std::vector<CallPayload*> inputs;
  std::vector<std::pair<CallPayload*, std::int64_t>> outputs;  ///< with all their bytes
  bool packed = false;
  // Arrays that MPI may read until then.
  std::tuple<std::vector<std::vector<int>>, std::vector<std::vector<MPI_Aint>>> displs;
  std::vector<std::vector<MPI_Datatype>> types;
  std::vector<datatype::TypeInfoRef> infos;  ///< keep the packed types
};

namespace {

template <class Displacement>
Displacement narrow(std::int64_t place, const char* call) {
  if (place < std::numeric_limits<Displacement>::min() || place > std::numeric_limits<Displacement>::max())
    throw MpiError(MPI_ERR_NO_MEM,
                   std::string(call) +
                       ": the blocks cannot be reached by displacements of this call once they are staged on the "
                       "host: they take too much memory; divide them among several calls");
  return static_cast<Displacement>(place);
}

/// Whether some block has elements, and none has a negative number, which MPI reports.
template <class Count>
bool has_blocks(int blocks, const Count* counts) {
  return blocks > 0 && counts != nullptr &&
         std::any_of(counts, counts + blocks, [](Count count) { return count > 0; }) &&
         std::none_of(counts, counts + blocks, [](Count count) { return count < 0; });
}

template <class Count>
bool moves(int i, const Count* counts, const Absent& absent) {
  const auto at = static_cast<std::size_t>(i);
  return counts[i] > 0 && (at >= absent.size() || !absent[at]);
}

/// A block of an argument as the program knows it.
struct UserBlock {
  const void* buffer;
  std::int64_t count;
  MPI_Datatype type;
};

/// The blocks of an argument at `address`: with MPI_BOTTOM each may lie in memory of its own, otherwise all lie in that
/// of the first. Empty if none has data in device memory, or MPI refuses a type. May throw device::TooManyParts.
std::vector<DeviceBuffer> describe(const void* address, const std::vector<UserBlock>& blocks) {
  const bool each = address == MPI_BOTTOM;
  std::vector<DeviceBuffer> operands(blocks.size());
  Located located;
  bool any_on_device = false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const UserBlock& block = blocks[i];
    if (!resolve_layout(block.buffer, block.count, block.type, operands[i], located)) {
      if (!each && !any_on_device) return {};
      operands[i] = {};
      continue;
    }
    any_on_device = true;
    if (!each && !operands[i].division) located = {.location = {device::MemoryKind::device, operands[i].ordinal}};
  }
  if (!any_on_device) return {};
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (!operands[i].info && !describe_host(blocks[i].buffer, blocks[i].count, blocks[i].type, operands[i])) return {};
  return operands;
}

/// Whether an operator finds contiguous elements in staging memory with the alignment that it may expect.
bool keeps_alignment(const DeviceBuffer& operand, const datatype::Shape& shape, MPI_Datatype type) {
  constexpr std::uintptr_t most = alignof(std::max_align_t);
  return reinterpret_cast<std::uintptr_t>(shifted(operand.buffer, shape.offset)) % most == 0 ||
         datatype::is_predefined(type);
}

}  // namespace

CallBuffers::CallBuffers(const char* call, ErrorOwner owner) : call_(call), owner_(std::move(owner)) {}
CallBuffers::~CallBuffers() = default;

CallBuffers::Buffers& CallBuffers::buffers() {
  if (!buffers_) buffers_ = std::make_shared<Buffers>();
  return *buffers_;
}

void* CallBuffers::stage(Role role, const DeviceBuffer& operand) {
  auto staged = std::make_unique<Staged>(operand);
  void* const data = staged->data();
  buffers().add(role, operand.bytes(), std::move(staged));
  return data;
}

void* CallBuffers::stage(Role role, std::vector<StagedBlock> blocks, std::int64_t bytes) {
  for (StagedBlock& block : blocks) note_operand(call_, block.operand);
  auto staged = std::make_unique<StagedBlocks>(std::move(blocks), bytes);
  void* const data = staged->data();
  buffers().add(role, bytes, std::move(staged));
  return data;
}

Given CallBuffers::buffer(Role role, const void* address, std::int64_t count, MPI_Datatype type) {
  DeviceBuffer operand{.use = role == Role::in ? Use::read : Use::written};
  if (address == MPI_IN_PLACE || !resolve_mapped(address, count, type, call_, operand))
    return {const_cast<void*>(address), type};
  return {stage(role, operand), operand.packed_type()};
}

Given CallBuffers::reduction(Role role, const void* address, std::int64_t count, MPI_Datatype type) {
  DeviceBuffer operand{.use = role == Role::in ? Use::read : Use::written};
  if (address == MPI_IN_PLACE || !resolve_mapped(address, count, type, call_, operand))
    return {const_cast<void*>(address), type};
  const datatype::Shape shape = operand.info->layout().shape(count);
  if (shape.kind == datatype::ShapeKind::contiguous && keeps_alignment(operand, shape, type))
    return {const_cast<void*>(shifted(stage(role, operand), -shape.offset)), type};
  auto image = std::make_unique<HostShadow>(operand);
  void* const data = image->buffer();
  buffers().add(role, operand.bytes(), std::move(image));
  return {data, type};
}

template <class Count, class Displacement>
GivenV<Displacement> CallBuffers::buffer_v(Role role, const void* address, int blocks, const Count* counts,
                                           const Displacement* displs, MPI_Datatype type, const Absent& absent) {
  const GivenV<Displacement> unchanged{const_cast<void*>(address), type, displs};
  if (address == MPI_IN_PLACE || !active.load() || type == MPI_DATATYPE_NULL || displs == nullptr ||
      !has_blocks(blocks, counts))
    return unchanged;
  MPI_Aint lb = 0, extent = 0;
  PMPI_Type_get_extent(type, &lb, &extent);
  std::vector<Displacement> packed;
  std::vector<UserBlock> runs;  // of blocks that follow each other in the user's buffer
  std::int64_t elements = 0, next = 0;
  for (int i = 0; i < blocks; ++i) {
    packed.push_back(narrow<Displacement>(elements, call_));
    if (!moves(i, counts, absent)) continue;
    if (runs.empty() || displs[i] != next) runs.push_back({shifted(address, displs[i] * extent), 0, type});
    runs.back().count += counts[i];
    next = std::int64_t{displs[i]} + counts[i];
    elements += counts[i];
  }
  std::vector<StagedBlock> staged;
  std::int64_t end = 0;
  for (DeviceBuffer& operand : describe(address, runs)) {
    const std::int64_t bytes = operand.bytes();
    staged.push_back({std::move(operand), end});
    end += bytes;
  }
  if (staged.empty()) return unchanged;
  const datatype::TypeInfoRef element = staged.front().operand.info;
  void* const data = stage(role, std::move(staged), end);
  buffers_->infos.push_back(element);
  return {data, element->packed_type(), buffers_->keep(std::move(packed))};
}

template <class Count, class Displacement>
GivenW<Displacement> CallBuffers::buffer_w(Role role, const void* address, int blocks, const Count* counts,
                                           const Displacement* displs, const MPI_Datatype* types,
                                           const Absent& absent) {
  const GivenW<Displacement> unchanged{const_cast<void*>(address), types, displs};
  if (address == MPI_IN_PLACE || !active.load() || displs == nullptr || types == nullptr || !has_blocks(blocks, counts))
    return unchanged;
  std::vector<std::size_t> indices;  // of the blocks with data
  std::vector<UserBlock> with_data;
  for (int i = 0; i < blocks; ++i) {
    if (!moves(i, counts, absent)) continue;
    if (types[i] == MPI_DATATYPE_NULL) return unchanged;  // MPI reports it
    if (datatype::size_of(types[i]) == 0) continue;
    indices.push_back(static_cast<std::size_t>(i));
    with_data.push_back({shifted(address, displs[i]), counts[i], types[i]});
  }
  std::vector<DeviceBuffer> operands = describe(address, with_data);
  if (operands.empty()) return unchanged;
  std::vector<MPI_Datatype> packed_types(types, types + blocks);
  std::vector<Displacement> places(static_cast<std::size_t>(blocks), 0);
  std::vector<StagedBlock> staged;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    places[indices[i]] = narrow<Displacement>(end, call_);
    packed_types[indices[i]] = operands[i].packed_type();
    buffers().infos.push_back(operands[i].info);
    const std::int64_t bytes = operands[i].bytes();
    staged.push_back({std::move(operands[i]), end});
    end += (bytes + block_alignment - 1) / block_alignment * block_alignment;
  }
  void* const data = stage(role, std::move(staged), end);
  buffers_->types.push_back(std::move(packed_types));
  return {data, buffers_->types.back().data(), buffers_->keep(std::move(places))};
}

template GivenV<int> CallBuffers::buffer_v(Role, const void*, int, const int*, const int*, MPI_Datatype, const Absent&);
template GivenW<int> CallBuffers::buffer_w(Role, const void*, int, const int*, const int*, const MPI_Datatype*,
                                           const Absent&);
template GivenW<MPI_Aint> CallBuffers::buffer_w(Role, const void*, int, const int*, const MPI_Aint*,
                                                const MPI_Datatype*, const Absent&);
#ifdef GPUDT_MPI_LARGE_COUNTS
template GivenV<MPI_Aint> CallBuffers::buffer_v(Role, const void*, int, const MPI_Count*, const MPI_Aint*, MPI_Datatype,
                                                const Absent&);
template GivenW<MPI_Aint> CallBuffers::buffer_w(Role, const void*, int, const MPI_Count*, const MPI_Aint*,
                                                const MPI_Datatype*, const Absent&);
#endif

void CallBuffers::pack_inputs() {
  if (!buffers_ || std::exchange(buffers_->packed, true)) return;
  buffers_->start_pack();
  device::about_to_wait(device::WaitKind::transfer);
  buffers_->wait();
}

std::shared_ptr<CallPayload> CallBuffers::hand_over() {
  pack_inputs();
  return buffers_;
}

void CallBuffers::unpack_outputs() {
  if (!buffers_) return;
  buffers_->start_unpack(0);
  buffers_->wait();
}

std::unique_ptr<Operation> CallBuffers::operation() const {
  auto operation = std::make_unique<Operation>();
  operation->moved = {Operation::Kind::fill, buffers_};
  operation->owner = owner_;
  return operation;
}

void CallBuffers::adopt(MPI_Request inner, MPI_Request* request) {
  persistent_adopt({Operation::Kind::fill, buffers_}, owner_.comm, inner);
  *request = inner;
}

bool is_between_groups(MPI_Comm comm) {
  int inter = 0;
  PMPI_Comm_test_inter(comm, &inter);
  return inter != 0;
}

int peers_of(MPI_Comm comm) {
  int size = 0;
  if (is_between_groups(comm))
    PMPI_Comm_remote_size(comm, &size);
  else
    PMPI_Comm_size(comm, &size);
  return size;
}

Blocks neighbours(MPI_Comm comm) {
  int topology = MPI_UNDEFINED, in = 0, out = 0, weighted = 0, rank = 0;
  if (comm != MPI_COMM_NULL) PMPI_Topo_test(comm, &topology);
  switch (topology) {
    case MPI_CART:
      PMPI_Cartdim_get(comm, &out);
      return {2 * out, 2 * out};
    case MPI_GRAPH:
      PMPI_Comm_rank(comm, &rank);
      PMPI_Graph_neighbors_count(comm, rank, &out);
      return {out, out};
    case MPI_DIST_GRAPH:
      PMPI_Dist_graph_neighbors_count(comm, &in, &out, &weighted);
      return {out, in};
    default:
      return {0, 0};  // MPI reports the error
  }
}

Edges edges(MPI_Comm comm) {
  const Blocks blocks = neighbours(comm);
  Edges edges{std::vector<int>(static_cast<std::size_t>(blocks.out_of)),
              std::vector<int>(static_cast<std::size_t>(blocks.into))};
  int topology = MPI_UNDEFINED, rank = 0;
  PMPI_Topo_test(comm, &topology);
  PMPI_Comm_rank(comm, &rank);
  if (topology == MPI_DIST_GRAPH) {
    std::vector<int> weights(std::max(edges.out_of.size(), edges.into.size()));
    PMPI_Dist_graph_neighbors(comm, blocks.into, edges.into.data(), weights.data(), blocks.out_of, edges.out_of.data(),
                              weights.data());
    return edges;
  }
  if (topology == MPI_GRAPH) PMPI_Graph_neighbors(comm, rank, blocks.out_of, edges.out_of.data());
  if (topology == MPI_CART)
    for (std::size_t dim = 0; 2 * dim < edges.out_of.size(); ++dim)
      PMPI_Cart_shift(comm, static_cast<int>(dim), 1, &edges.out_of[2 * dim], &edges.out_of[2 * dim + 1]);
  edges.into = edges.out_of;
  return edges;
}

Absent absent_neighbours(MPI_Comm comm) {
  Absent absent;
  int topology = MPI_UNDEFINED, dims = 0;
  if (comm != MPI_COMM_NULL) PMPI_Topo_test(comm, &topology);
  if (topology != MPI_CART) return absent;  // graphs have no edges to MPI_PROC_NULL
  PMPI_Cartdim_get(comm, &dims);
  if (dims > static_cast<int>(max_grid_dims))
    throw MpiError(MPI_ERR_OTHER,
                   "neighbourhood collectives work on grids of up to " + std::to_string(max_grid_dims) + " dimensions");
  const std::vector<int> ranks = edges(comm).out_of;
  for (std::size_t at = 0; at < ranks.size(); ++at) absent[at] = ranks[at] == MPI_PROC_NULL;
  return absent;
}

bool is_root(MPI_Comm comm, int root) {
  if (is_between_groups(comm)) return root == MPI_ROOT;
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  return rank == root;
}

bool is_served(MPI_Comm comm, int root) {
  return !is_between_groups(comm) || root >= 0;
}

}  // namespace gpudt::interpose
