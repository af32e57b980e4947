// Stages the buffers of collectives; several displaced blocks are described by one combined datatype, so that they
// are packed or unpacked by one kernel.
#include "interpose/collective.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "interpose/errors.hpp"
#include "interpose/host_image.hpp"
#include "interpose/report.hpp"

namespace gpudt::interpose {

/// Everything that must live until the collective has completed.
class Collective::Buffers : public Payload {
 public:
  void start_unpack(std::int64_t) override {
    for (Staged* output : outputs) output->start_unpack(output->operand().bytes());
    for (const HostImage* image : output_images) image->spill();
  }
  bool done() override {
    for (Staged* output : outputs)
      if (!output->done()) return false;
    return true;
  }

  std::vector<std::unique_ptr<Staged>> staged;
  std::vector<Staged*> inputs, outputs;
  std::vector<std::unique_ptr<HostImage>> images;
  std::vector<const HostImage*> input_images, output_images;
  std::vector<std::vector<int>> displs;
  std::vector<std::vector<MPI_Aint>> wide_displs;
  std::vector<std::vector<MPI_Datatype>> types;
  std::vector<datatype::TypeInfoRef> infos;
};

namespace {

/// A datatype made for one call.
class OwnType {
 public:
  explicit OwnType(MPI_Datatype type) : type_(type) { PMPI_Type_commit(&type_); }
  ~OwnType() { PMPI_Type_free(&type_); }
  OwnType(const OwnType&) = delete;
  OwnType& operator=(const OwnType&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_;
};

MPI_Datatype combined_v(int blocks, const int* counts, const int* displs, MPI_Datatype type) {
  MPI_Datatype combined = MPI_DATATYPE_NULL;
  PMPI_Type_indexed(blocks, counts, displs, type, &combined);
  return combined;
}

template <class Displacement>
MPI_Datatype combined_w(int blocks, const int* counts, const Displacement* displs, const MPI_Datatype* types) {
  std::vector<int> lengths;
  std::vector<MPI_Aint> places;
  std::vector<MPI_Datatype> members;
  for (int i = 0; i < blocks; ++i) {
    if (counts[i] <= 0) continue;  // its type may be anything
    lengths.push_back(counts[i]);
    places.push_back(displs[i]);
    members.push_back(types[i]);
  }
  MPI_Datatype combined = MPI_DATATYPE_NULL;
  PMPI_Type_create_struct(static_cast<int>(lengths.size()), lengths.data(), places.data(), members.data(), &combined);
  return combined;
}

template <class Displacement>
Displacement narrow(std::int64_t place, const char* call) {
  if (place > std::numeric_limits<Displacement>::max())
    throw device::Error(device::Failure::out_of_memory,
                        std::string(call) +
                            ": the packed blocks do not fit the displacements of this call; use fewer "
                            "or smaller blocks");
  return static_cast<Displacement>(place);
}

bool has_blocks(int blocks, const int* counts) {
  return blocks > 0 && counts != nullptr && std::any_of(counts, counts + blocks, [](int count) { return count > 0; });
}

}  // namespace

Collective::Collective(const char* call, MPI_Comm comm) : call_(call), comm_(comm) {}
Collective::~Collective() = default;

bool Collective::staged() const {
  return buffers_ != nullptr;
}

void* Collective::stage(Role role, const Operand& operand) {
  if (!buffers_) buffers_ = std::make_shared<Buffers>();
  auto staged = std::make_unique<Staged>(operand);
  if (role != Role::out) {
    staged->start_pack();
    buffers_->inputs.push_back(staged.get());
  }
  if (role != Role::in) buffers_->outputs.push_back(staged.get());
  void* const data = staged->data();
  buffers_->staged.push_back(std::move(staged));
  return data;
}

Given Collective::buffer(Role role, const void* address, std::int64_t count, MPI_Datatype type) {
  Operand operand;
  if (address == MPI_IN_PLACE || !resolve_mapped(address, count, type, call_, operand))
    return {const_cast<void*>(address), type};
  return {stage(role, operand), operand.twin()};
}

Given Collective::reduction(Role role, const void* address, std::int64_t count, MPI_Datatype type) {
  Operand operand;
  if (address == MPI_IN_PLACE || !resolve_mapped(address, count, type, call_, operand))
    return {const_cast<void*>(address), type};
  const datatype::Shape shape = operand.info->layout().shape(count);
  if (shape.kind == datatype::ShapeKind::contiguous) {
    char* const data = static_cast<char*>(stage(role, operand));
    return {data - shape.offset, type};
  }
  if (!buffers_) buffers_ = std::make_shared<Buffers>();
  auto image = std::make_unique<HostImage>(operand);
  if (role != Role::out) image->fill();
  if (role != Role::in) buffers_->output_images.push_back(image.get());
  buffers_->images.push_back(std::move(image));
  return {buffers_->images.back()->buffer(), type};
}

GivenV Collective::buffer_v(Role role, const void* address, int blocks, const int* counts, const int* displs,
                            MPI_Datatype type) {
  const GivenV unchanged{const_cast<void*>(address), type, displs};
  Operand operand;
  if (address == MPI_IN_PLACE || !has_blocks(blocks, counts) || !active.load() || type == MPI_DATATYPE_NULL)
    return unchanged;
  const auto element = datatype::type_info(type);
  if (!element || element->layout().size() == 0) return unchanged;
  const OwnType all(combined_v(blocks, counts, displs, type));
  if (!resolve_mapped(address, 1, all.get(), call_, operand)) return unchanged;
  void* const data = stage(role, operand);
  std::vector<int> packed(static_cast<std::size_t>(blocks));
  std::int64_t place = 0;
  for (int i = 0; i < blocks; ++i) {
    packed[static_cast<std::size_t>(i)] = narrow<int>(place, call_);
    place += counts[i];
  }
  buffers_->displs.push_back(std::move(packed));
  buffers_->infos.push_back(element);
  return {data, element->twin(), buffers_->displs.back().data()};
}

template <class Displacement>
GivenW<Displacement> Collective::buffer_w(Role role, const void* address, int blocks, const int* counts,
                                          const Displacement* displs, const MPI_Datatype* types) {
  const GivenW<Displacement> unchanged{const_cast<void*>(address), types, displs};
  if (address == MPI_IN_PLACE || !has_blocks(blocks, counts) || !active.load()) return unchanged;
  std::vector<datatype::TypeInfoRef> elements(static_cast<std::size_t>(blocks));
  for (std::size_t at = 0; at < elements.size(); ++at) {
    if (counts[at] <= 0) continue;
    elements[at] = datatype::type_info(types[at]);
    if (!elements[at]) return unchanged;  // MPI reports it
  }
  const OwnType all(combined_w(blocks, counts, displs, types));
  Operand operand;
  if (!resolve_mapped(address, 1, all.get(), call_, operand)) return unchanged;
  void* const data = stage(role, operand);
  std::vector<Displacement> packed(static_cast<std::size_t>(blocks), 0);
  std::vector<MPI_Datatype> twins(static_cast<std::size_t>(blocks), MPI_BYTE);
  std::int64_t place = 0;
  for (int i = 0; i < blocks; ++i) {
    const auto at = static_cast<std::size_t>(i);
    packed[at] = narrow<Displacement>(place, call_);
    if (counts[i] > 0) twins[at] = types[i];
    if (counts[i] <= 0 || elements[at]->layout().size() == 0) continue;
    twins[at] = elements[at]->twin();
    place += counts[i] * elements[at]->layout().size();
  }
  buffers_->types.push_back(std::move(twins));
  buffers_->infos.insert(buffers_->infos.end(), elements.begin(), elements.end());
  if constexpr (std::is_same_v<Displacement, int>) {
    buffers_->displs.push_back(std::move(packed));
    return {data, buffers_->types.back().data(), buffers_->displs.back().data()};
  } else {
    buffers_->wide_displs.push_back(std::move(packed));
    return {data, buffers_->types.back().data(), buffers_->wide_displs.back().data()};
  }
}

template GivenW<int> Collective::buffer_w(Role, const void*, int, const int*, const int*, const MPI_Datatype*);
template GivenW<MPI_Aint> Collective::buffer_w(Role, const void*, int, const int*, const MPI_Aint*,
                                               const MPI_Datatype*);

void Collective::wait_inputs() {
  if (!buffers_) return;
  for (Staged* input : buffers_->inputs) input->wait();
}

std::shared_ptr<Payload> Collective::hand_over() {
  wait_inputs();
  return buffers_;
}

void Collective::finish_outputs() {
  if (!buffers_) return;
  buffers_->start_unpack(0);
  for (Staged* output : buffers_->outputs) output->wait();
}

int Collective::submit(MPI_Request inner, MPI_Request* request) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::fill;
  operation->payload = buffers_;
  operation->comm = comm_;
  operation->inner = inner;
  return engine_submit(operation.release(), /*issued=*/true, request);
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
