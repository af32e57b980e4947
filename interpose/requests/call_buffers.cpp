// Stages the buffers of collectives. Blocks of one argument lie in one staging buffer, each by its own datatype, whose
// layout the GPU keeps, and are packed or unpacked together by as few kernels as can be.
#include "interpose/requests/call_buffers.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "datatype/basic.hpp"
#include "interpose/requests/host_shadow.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

constexpr int host_memory = -1;  ///< stands for a GPU

/// Blocks of one buffer argument, on one GPU.
class StagedBlocks : public Payload {
 public:
  /// Acquires `bytes` bytes of staging memory; may throw device::Error.
  StagedBlocks(int ordinal, std::vector<StagedBlock> blocks, std::int64_t bytes)
      : ordinal_(ordinal),
        blocks_(std::move(blocks)),
        staging_(device::acquire(device::StagingKind::mapped, ordinal, static_cast<std::size_t>(bytes))) {}

  void start_pack() override { start(device::Direction::pack); }
  /// Always all of them.
  void start_unpack(std::int64_t) override { start(device::Direction::unpack); }
  bool done() override {
    return std::all_of(transfers_.begin(), transfers_.end(), [](device::Transfer& each) { return each.done(); });
  }
  void wait() override {
    const Timed timed(Clock::transfer);
    for (device::Transfer& transfer : transfers_) transfer.wait();
  }
  void* data() const { return staging_.data(); }

 private:
  void start(device::Direction direction) {
    transfers_.clear();
    transfers_.reserve(blocks_.size());
    for (const StagedBlock& block : blocks_)
      transfers_.push_back(device::start(direction, ordinal_, block.element->layout(), block.count, block.user, 0,
                                         block.bytes(), static_cast<std::byte*>(staging_.data()) + block.place));
  }

  int ordinal_;
  std::vector<StagedBlock> blocks_;
  device::Staging staging_;
  std::vector<device::Transfer> transfers_;  // after staging_: they must end before the memory goes back
};

/// Blocks of types that differ begin at multiples of this, so that they are written in whole words and segments.
constexpr std::int64_t block_alignment = 128;

}  // namespace

/// Everything that must live until the collective has completed, or the persistent request has been freed.
class CallBuffers::Buffers : public Payload {
 public:
  void start_pack() override {
    const device::Gathering gathering(device::Gathering::long_bytes);
    for (Payload* input : inputs) input->start_pack();
  }
  /// Always everything: the status of a collective tells no number of bytes.
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

  void add(Role role, std::int64_t bytes, std::unique_ptr<Payload> payload) {
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

  std::vector<std::unique_ptr<Payload>> moved;
  std::vector<Payload*> inputs;
  std::vector<std::pair<Payload*, std::int64_t>> outputs;  ///< with all their bytes
  bool packed = false;
  // What MPI may look at until then.
  std::tuple<std::vector<std::vector<int>>, std::vector<std::vector<MPI_Aint>>> displs;
  std::vector<std::vector<MPI_Datatype>> types;
  std::vector<datatype::TypeInfoRef> infos;  ///< keep the packed types
};

/// A block of a w form that has data.
struct CallBuffers::Block {
  int index;
  MPI_Count count;
  MPI_Aint displ;
  MPI_Datatype type;
  int gpu;  ///< or host_memory
  datatype::TypeInfoRef element;
  std::int64_t place = 0;  ///< the address where MPI finds it

  std::int64_t bytes() const { return count * element->layout().size(); }
};

namespace {

template <class Displacement>
Displacement narrow(std::int64_t place, const char* call) {
  if (place < std::numeric_limits<Displacement>::min() || place > std::numeric_limits<Displacement>::max())
    throw device::Error(device::Failure::out_of_memory,
                        std::string(call) +
                            ": the blocks cannot be reached by displacements of this call once they are staged on the "
                            "host: they take too much memory, or lie partly in host memory or on several GPUs");
  return static_cast<Displacement>(place);
}

/// Some block has elements, and none a negative number, which MPI reports.
template <class Count>
bool has_blocks(int blocks, const Count* counts) {
  return blocks > 0 && counts != nullptr &&
         std::any_of(counts, counts + blocks, [](Count count) { return count > 0; }) &&
         std::none_of(counts, counts + blocks, [](Count count) { return count < 0; });
}

/// MPI moves block `i`.
template <class Count>
bool moves(int i, const Count* counts, const Absent& absent) {
  const auto at = static_cast<std::size_t>(i);
  return counts[i] > 0 && (at >= absent.size() || !absent[at]);
}

std::int64_t as_integer(const void* address) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address));
}

int gpu_of(const device::Location& location) {
  return location.on_device() ? location.ordinal : host_memory;
}

/// An operator finds the elements of a contiguous message, moved to staging memory, aligned as it may expect.
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

void* CallBuffers::stage(Role role, int ordinal, std::vector<StagedBlock> blocks, std::int64_t bytes) {
  for (const StagedBlock& block : blocks)
    note_operand(call_, {block.user, block.count, block.element, ordinal, Protocol::mapped_staging});
  auto staged = std::make_unique<StagedBlocks>(ordinal, std::move(blocks), bytes);
  void* const data = staged->data();
  buffers().add(role, bytes, std::move(staged));
  return data;
}

Given CallBuffers::buffer(Role role, const void* address, std::int64_t count, MPI_Datatype type) {
  DeviceBuffer operand;
  if (address == MPI_IN_PLACE || !resolve_mapped(address, count, type, call_, operand))
    return {const_cast<void*>(address), type};
  return {stage(role, operand), operand.packed_type()};
}

Given CallBuffers::reduction(Role role, const void* address, std::int64_t count, MPI_Datatype type) {
  DeviceBuffer operand;
  if (address == MPI_IN_PLACE || !resolve_mapped(address, count, type, call_, operand))
    return {const_cast<void*>(address), type};
  const datatype::Shape shape = operand.info->layout().shape(count);
  if (shape.kind == datatype::ShapeKind::contiguous && keeps_alignment(operand, shape, type))
    return {const_cast<void*>(shifted(stage(role, operand), -shape.offset)), type};
  auto image = std::make_unique<HostImage>(operand);
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
  int first = 0;
  while (first < blocks && !moves(first, counts, absent)) ++first;
  if (first == blocks) return unchanged;
  MPI_Aint lb = 0, extent = 0;
  PMPI_Type_get_extent(type, &lb, &extent);
  const device::Location location = locate_buffer(shifted(address, displs[first] * extent), type);
  if (!location.on_device()) return unchanged;
  const auto element = datatype::type_info(type);
  if (!element || element->layout().size() == 0) return unchanged;

  std::vector<Displacement> packed;
  std::vector<StagedBlock> runs;  // of blocks that follow each other in the user's buffer
  std::int64_t elements = 0, next = 0;
  for (int i = 0; i < blocks; ++i) {
    packed.push_back(narrow<Displacement>(elements, call_));
    if (!moves(i, counts, absent)) continue;
    if (runs.empty() || displs[i] != next) {
      void* const user = const_cast<void*>(shifted(address, displs[i] * extent));
      runs.push_back({element, 0, user, elements * element->layout().size()});
    }
    runs.back().count += counts[i];
    next = std::int64_t{displs[i]} + counts[i];
    elements += counts[i];
  }
  void* const data = stage(role, location.ordinal, std::move(runs), elements * element->layout().size());
  buffers_->infos.push_back(element);
  return {data, element->packed_type(), buffers_->keep(std::move(packed))};
}

/// Stages those of `blocks` that lie on one GPU.
void CallBuffers::stage_blocks(Role role, const void* address, int ordinal, std::vector<Block>& blocks) {
  std::vector<StagedBlock> staged;
  std::int64_t end = 0;
  for (Block& block : blocks) {
    if (block.gpu != ordinal) continue;
    block.place = end;
    staged.push_back({block.element, block.count, const_cast<void*>(shifted(address, block.displ)), end});
    end += (block.bytes() + block_alignment - 1) / block_alignment * block_alignment;
  }
  const std::int64_t base = as_integer(stage(role, ordinal, std::move(staged), end));
  for (Block& block : blocks)
    if (block.gpu == ordinal) block.place += base;
}

template <class Count, class Displacement>
GivenW<Displacement> CallBuffers::buffer_w(Role role, const void* address, int blocks, const Count* counts,
                                           const Displacement* displs, const MPI_Datatype* types,
                                           const Absent& absent) {
  const GivenW<Displacement> unchanged{const_cast<void*>(address), types, displs};
  if (address == MPI_IN_PLACE || !active.load() || displs == nullptr || types == nullptr || !has_blocks(blocks, counts))
    return unchanged;
  std::vector<Block> list;
  std::set<int> gpus;
  int gpu = host_memory;
  for (int i = 0; i < blocks; ++i) {
    if (!moves(i, counts, absent)) continue;
    if (types[i] == MPI_DATATYPE_NULL) return unchanged;  // MPI reports it
    if (datatype::size_of(types[i]) == 0) continue;
    // With MPI_BOTTOM the next block may lie elsewhere.
    if (list.empty() || address == MPI_BOTTOM) gpu = gpu_of(locate_buffer(shifted(address, displs[i]), types[i]));
    if (gpu != host_memory)
      gpus.insert(gpu);
    else if (address != MPI_BOTTOM)
      return unchanged;
    list.push_back({i, counts[i], displs[i], types[i], gpu, nullptr});
  }
  if (gpus.empty()) return unchanged;
  for (Block& block : list) {
    block.element = datatype::type_info(block.type);
    if (!block.element) return unchanged;
    block.place = as_integer(shifted(address, block.displ));
  }
  for (const int ordinal : gpus) stage_blocks(role, address, ordinal, list);

  const auto anchor = std::find_if(list.begin(), list.end(), [](const Block& block) { return block.gpu >= 0; });
  std::vector<MPI_Datatype> packed_types(types, types + blocks);
  std::vector<Displacement> places(static_cast<std::size_t>(blocks), 0);
  for (const Block& block : list) {
    const auto at = static_cast<std::size_t>(block.index);
    places[at] = narrow<Displacement>(block.place - anchor->place, call_);
    if (block.gpu != host_memory) packed_types[at] = block.element->packed_type();
    buffers_->infos.push_back(block.element);
  }
  buffers_->types.push_back(std::move(packed_types));
  return {reinterpret_cast<void*>(anchor->place), buffers_->types.back().data(), buffers_->keep(std::move(places))};
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

std::shared_ptr<Payload> CallBuffers::hand_over() {
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
  operation->kind = Operation::Kind::fill;
  operation->payload = buffers_;
  operation->owner = owner_;
  return operation;
}

void CallBuffers::adopt(MPI_Request inner, MPI_Request* request) {
  persistent_adopt(Operation::Kind::fill, buffers_, owner_.comm, inner);
  *request = inner;
}

int collective_peers(MPI_Comm comm) {
  int inter = 0, size = 0;
  PMPI_Comm_test_inter(comm, &inter);
  if (inter != 0)
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
    throw device::Error(device::Failure::runtime, "neighbourhood collectives work on grids of up to " +
                                                      std::to_string(max_grid_dims) + " dimensions");
  const std::vector<int> ranks = edges(comm).out_of;
  for (std::size_t at = 0; at < ranks.size(); ++at) absent[at] = ranks[at] == MPI_PROC_NULL;
  return absent;
}

bool is_root(MPI_Comm comm, int root) {
  int inter = 0, rank = 0;
  PMPI_Comm_test_inter(comm, &inter);
  if (inter != 0) return root == MPI_ROOT;
  PMPI_Comm_rank(comm, &rank);
  return rank == root;
}

bool is_served(MPI_Comm comm, int root) {
  int inter = 0;
  PMPI_Comm_test_inter(comm, &inter);
  return inter == 0 || root >= 0;
}

}  // namespace gpudt::interpose
