// Datatypes for kernels: decoded here, uploaded, and described by plain data.
#include <cstring>
#include <span>
#include <utility>

#include "datatype/decode.hpp"
#include "initiated/world.hpp"

namespace gpudt::initiated {
namespace {

/// The program of a serialised layout in new memory of the current device, which goes to `memory`.
datatype::Program upload(const datatype::Layout& layout, void*& memory) {
  const std::span<const std::byte> bytes = layout.serialised();
  check(cudaMalloc(&memory, bytes.size()), "Layout: memory for the datatype");
  check(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "Layout: upload");
  datatype::SerialisedHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return datatype::program_at(memory, header.node_count);
}

/// Whether kernels read the serialised form of so many elements.
bool is_read(const datatype::Layout& layout, std::int64_t count) {
  const datatype::ShapeKind kind = layout.shape(count).kind;
  return kind == datatype::ShapeKind::list || kind == datatype::ShapeKind::general;
}

/// What kernels know a predefined datatype by.
Element element_of_predefined(MPI_Datatype type) {
  struct Known {
    MPI_Datatype type;
    Element element;
  };
  const Element of_long = sizeof(long) == 8 ? Element::int64 : Element::int32;
  const Element of_unsigned_long = sizeof(long) == 8 ? Element::uint64 : Element::uint32;
  const Known all[] = {
      {MPI_INT, Element::int32},       {MPI_INT32_T, Element::int32}, {MPI_UNSIGNED, Element::uint32},
      {MPI_UINT32_T, Element::uint32}, {MPI_LONG, of_long},           {MPI_UNSIGNED_LONG, of_unsigned_long},
      {MPI_LONG_LONG, Element::int64}, {MPI_INT64_T, Element::int64}, {MPI_AINT, Element::int64},
      {MPI_COUNT, Element::int64},     {MPI_OFFSET, Element::int64},  {MPI_UNSIGNED_LONG_LONG, Element::uint64},
      {MPI_UINT64_T, Element::uint64}, {MPI_FLOAT, Element::float32}, {MPI_DOUBLE, Element::float64}};
  for (const Known& known : all)
    if (known.type == type) return known.element;
  return Element::other;
}

/// Of which predefined datatype alone a datatype is made, if kernels know it.
Element element_of(MPI_Datatype type) {
  const datatype::Members members(type);
  if (members.types().empty()) return element_of_predefined(type);
  Element all = Element::other;
  bool first = true;
  for (const MPI_Datatype member : members.types()) {
    int size = 0;
    PMPI_Type_size(member, &size);
    if (size == 0) continue;
    const Element one = element_of(member);
    if (!first && one != all) return Element::other;
    all = one;
    first = false;
  }
  return all;
}

}  // namespace

// --- a datatype and a count -----------------------------------------------------------------------------------------

Layout::Layout(MPI_Datatype type, std::int64_t count) {
  if (type == MPI_DATATYPE_NULL) throw Error("Layout: the datatype is MPI_DATATYPE_NULL");
  if (count < 0) throw Error("Layout: a count of " + std::to_string(count));
  *this = Layout(*datatype::decode(type), count);
}

Layout::Layout(const datatype::Layout& layout, std::int64_t count) {
  const datatype::Program program = is_read(layout, count) ? upload(layout, program_) : datatype::Program{};
  kernel_ = make_kernel_layout(layout, count, program);
}

Layout::Layout(Layout&& other) noexcept
    : kernel_(other.kernel_),
      program_(std::exchange(other.program_, nullptr)),
      copy_(std::exchange(other.copy_, nullptr)) {}

Layout& Layout::operator=(Layout&& other) noexcept {
  std::swap(kernel_, other.kernel_);
  std::swap(program_, other.program_);
  std::swap(copy_, other.copy_);
  return *this;
}

Layout::~Layout() {
  cudaFree(program_);
  cudaFree(copy_);
}

const KernelLayout* Layout::on_device() {
  if (copy_ != nullptr) return copy_;
  void* copy = nullptr;
  check(cudaMalloc(&copy, sizeof kernel_), "Layout::on_device: memory");
  copy_ = static_cast<KernelLayout*>(copy);
  check(cudaMemcpy(copy, &kernel_, sizeof kernel_, cudaMemcpyHostToDevice), "Layout::on_device: upload");
  return copy_;
}

// --- a datatype for any count ---------------------------------------------------------------------------------------

Datatype::Datatype(MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL) throw Error("Datatype: the datatype is MPI_DATATYPE_NULL");
  const datatype::LayoutRef layout = datatype::decode(type);
  const datatype::Program program = is_read(*layout, 1) ? upload(*layout, program_) : datatype::Program{};
  kernel_ = make_kernel_type(*layout, element_of(type), program);
}

Datatype::Datatype(Datatype&& other) noexcept
    : kernel_(other.kernel_), program_(std::exchange(other.program_, nullptr)) {}

Datatype& Datatype::operator=(Datatype&& other) noexcept {
  std::swap(kernel_, other.kernel_);
  std::swap(program_, other.program_);
  return *this;
}

Datatype::~Datatype() {
  cudaFree(program_);
}

}  // namespace gpudt::initiated
