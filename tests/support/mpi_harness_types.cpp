// Datatypes of the tests under mpirun (mpi_harness.hpp).
#include <algorithm>
#include <array>
#include <utility>

#include "tests/support/derived_type.hpp"
#include "tests/support/mpi_harness.hpp"
#include "tests/support/mpi_quirks.hpp"

namespace gpudt::test {
namespace {

/// Builds a type, frees the intermediate ones, and writes down what it did.
struct Draft {
  MPI_Datatype type;
  std::string text;
  bool temporary = true;  ///< to be freed once something is built on it

  Draft over(MPI_Datatype derived, std::string description) {
    if (temporary) PMPI_Type_free(&type);
    return {derived, std::move(description)};
  }
};

struct Bounds {
  MPI_Aint low, high;  ///< true bounds
  MPI_Aint width() const { return high - low; }
};

Bounds true_bounds(MPI_Datatype type) {
  MPI_Aint low = 0, extent = 0;
  PMPI_Type_get_true_extent(type, &low, &extent);
  return {low, low + extent};
}

std::string join(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

struct Basic {
  MPI_Datatype type;
  const char* name;
};

std::array<Basic, 10> basic_types() {
  return {{{MPI_CHAR, "CHAR"},
           {MPI_BYTE, "BYTE"},
           {MPI_SHORT, "SHORT"},
           {MPI_INT, "INT"},
           {MPI_FLOAT, "FLOAT"},
           {MPI_DOUBLE, "DOUBLE"},
           {MPI_LONG_LONG, "LONG_LONG"},
           packs_complex_numbers ? Basic{MPI_C_DOUBLE_COMPLEX, "C_DOUBLE_COMPLEX"} : Basic{MPI_LONG, "LONG"},
           {MPI_INT64_T, "INT64_T"},
           {MPI_UINT16_T, "UINT16_T"}}};
}

/// Arranges a signature at random. Each step places its parts side by side, so that nothing overlaps.
class Arranger {
 public:
  explicit Arranger(std::mt19937_64& random) : random_(random) {}

  /// A type whose signature is `count` times `basic`.
  Draft arrange(const Basic& basic, int count, int depth) {
    if (count == 1 || depth == 0) return wrap(contiguous(basic, count));
    switch (below(7)) {
      case 0:
        return wrap(contiguous(basic, count));
      case 1:
        return strided(basic, count, depth);
      case 2:
        return indexed(basic, count);
      case 3:
        return subarray(basic, count);
      case 4:
        return indexed_block(basic, count, depth);
      default:
        return split(basic, count, depth);
    }
  }

  Draft sequence(std::vector<Draft> parts) {
    std::vector<int> order(parts.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::shuffle(order.begin(), order.end(), random_);  // places in memory; the type map keeps its order
    std::vector<MPI_Aint> places(parts.size());
    MPI_Aint next = 0;
    for (const int i : order) {
      const Bounds bounds = true_bounds(parts[static_cast<std::size_t>(i)].type);
      next += gap();
      places[static_cast<std::size_t>(i)] = next - bounds.low;
      next += bounds.width();
    }
    std::vector<int> ones(parts.size(), 1);
    std::vector<MPI_Datatype> types;
    std::string text = "struct{";
    for (Draft& part : parts) {
      types.push_back(part.type);
      text += part.text + ";";
    }
    MPI_Datatype made = MPI_DATATYPE_NULL;
    PMPI_Type_create_struct(static_cast<int>(parts.size()), ones.data(), places.data(), types.data(), &made);
    for (Draft& part : parts)
      if (part.temporary) PMPI_Type_free(&part.type);
    return apart({made, text + "}"});
  }

  int below(int limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }

 private:
  MPI_Aint gap() { return below(3) == 0 ? 0 : below(24); }

  /// The bounds of a struct are those of its resized members and subarrays alone, if it has any (MPI-4.1 section
  /// 5.1.7), so that elements in a row might overlap: these are moved apart.
  static Draft apart(Draft draft) {
    const Bounds bounds = true_bounds(draft.type);
    MPI_Aint lb = 0, extent = 0;
    PMPI_Type_get_extent(draft.type, &lb, &extent);
    if (extent >= bounds.width()) return draft;
    MPI_Datatype made = MPI_DATATYPE_NULL;
    PMPI_Type_create_resized(draft.type, bounds.low, bounds.width(), &made);
    return draft.over(made, "apart(" + draft.text + ")");
  }

  Draft contiguous(const Basic& basic, int count) {
    if (count == 1) return {basic.type, basic.name, false};
    MPI_Datatype made = MPI_DATATYPE_NULL;
    PMPI_Type_contiguous(count, basic.type, &made);
    return {made, "contiguous(" + std::to_string(count) + " " + basic.name + ")"};
  }

  /// Sometimes resized or duplicated: no difference to the signature.
  Draft wrap(Draft draft) {
    MPI_Datatype made = MPI_DATATYPE_NULL;
    const int choice = below(6);
    if (choice == 0) {
      PMPI_Type_dup(draft.type, &made);
      return draft.over(made, "dup(" + draft.text + ")");
    }
    if (choice == 1) {
      const Bounds bounds = true_bounds(draft.type);
      const MPI_Aint lb = bounds.low - gap(), extent = bounds.high - lb + gap();
      PMPI_Type_create_resized(draft.type, lb, extent, &made);
      return draft.over(made, "resized(" + std::to_string(lb) + "," + std::to_string(extent) + " " + draft.text + ")");
    }
    return draft;
  }

  int divisor(int count) {
    std::vector<int> divisors;
    for (int d = 1; d <= count; ++d)
      if (count % d == 0) divisors.push_back(d);
    return divisors[static_cast<std::size_t>(below(static_cast<int>(divisors.size())))];
  }

  Draft strided(const Basic& basic, int count, int depth) {
    const int blocks = divisor(count);
    Draft inner = arrange(basic, count / blocks, depth - 1);
    MPI_Aint stride = true_bounds(inner.type).width() + gap();
    // Open MPI 4.1 takes blocks that start -1 byte apart to be contiguous.
    if (below(3) == 0 && stride != 1) stride = -stride;
    MPI_Datatype made = MPI_DATATYPE_NULL;
    PMPI_Type_create_hvector(blocks, 1, stride, inner.type, &made);
    return inner.over(made,
                      "hvector(" + std::to_string(blocks) + ",1," + std::to_string(stride) + " " + inner.text + ")");
  }

  Draft indexed(const Basic& basic, int count) {
    std::vector<int> lengths;
    for (int left = count; left > 0; left -= lengths.back()) lengths.push_back(below(6) == 0 ? 0 : 1 + below(left));
    std::vector<int> order(lengths.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<int> displacements(lengths.size());
    int next = -below(5);
    for (const int i : order) {
      displacements[static_cast<std::size_t>(i)] = next;
      next += lengths[static_cast<std::size_t>(i)] + below(4);
    }
    MPI_Datatype made = MPI_DATATYPE_NULL;
    PMPI_Type_indexed(static_cast<int>(lengths.size()), lengths.data(), displacements.data(), basic.type, &made);
    return wrap({made, "indexed(" + join(lengths) + "@" + join(displacements) + " " + basic.name + ")"});
  }

  Draft indexed_block(const Basic& basic, int count, int depth) {
    const int blocks = divisor(count);
    Draft inner = arrange(basic, count / blocks, depth - 1);
    const MPI_Aint width = true_bounds(inner.type).width();
    std::vector<int> slots(static_cast<std::size_t>(blocks));
    int next = 0;
    for (int& slot : slots) next = (slot = next + below(3)) + 1;
    std::shuffle(slots.begin(), slots.end(), random_);
    std::vector<MPI_Aint> displacements;
    for (const int slot : slots) displacements.push_back(slot * width);
    MPI_Datatype made = MPI_DATATYPE_NULL;
    PMPI_Type_create_hindexed_block(blocks, 1, displacements.data(), inner.type, &made);
    return inner.over(made, "hindexed_block(@" + join(slots) + "*" + std::to_string(width) + " " + inner.text + ")");
  }

  Draft subarray(const Basic& basic, int count) {
    const int planes = divisor(count), rows = divisor(count / planes);
    const int part[3] = {planes, rows, count / planes / rows};
    int whole[3], start[3];
    std::string text = "subarray(";
    for (int d = 0; d < 3; ++d) {
      start[d] = below(3);
      whole[d] = start[d] + part[d] + below(3);
      text += std::to_string(part[d]) + "/" + std::to_string(whole[d]) + " ";
    }
    const int order = below(2) == 0 ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
    MPI_Datatype made = MPI_DATATYPE_NULL;
    PMPI_Type_create_subarray(3, whole, part, start, order, basic.type, &made);
    return {made, text + (order == MPI_ORDER_C ? "C " : "Fortran ") + basic.name + ")"};
  }

  Draft split(const Basic& basic, int count, int depth) {
    const int first = 1 + below(count - 1);
    std::vector<Draft> parts;
    parts.push_back(arrange(basic, first, depth - 1));
    parts.push_back(arrange(basic, count - first, depth - 1));
    return sequence(std::move(parts));
  }

  std::mt19937_64& random_;
};

/// The 17-of-24-byte struct of the paper: double, int, char, then padding.
MPI_Datatype particle() {
  const int lengths[3] = {2, 0, 1};
  const MPI_Aint places[3] = {0, 0, 16};
  const MPI_Datatype types[3] = {MPI_DOUBLE, MPI_INT, MPI_CHAR};
  MPI_Datatype packed = MPI_DATATYPE_NULL, resized = MPI_DATATYPE_NULL;
  PMPI_Type_create_struct(3, lengths, places, types, &packed);
  PMPI_Type_create_resized(packed, 0, 24, &resized);
  PMPI_Type_free(&packed);
  return resized;
}

MPI_Datatype repeated(int count, MPI_Datatype element) {
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_contiguous(count, element, &made);
  return made;
}

Type irregular(int blocks) {
  std::vector<int> lengths, displacements;
  int next = 3;
  for (int i = 0; i < blocks; ++i) {
    lengths.push_back(1 + (i * 7) % 5);
    displacements.push_back(next);
    next += lengths.back() + (i * 3) % 4;
  }
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_indexed(blocks, lengths.data(), displacements.data(), MPI_INT, &made);
  return {made, "indexed, irregular, " + std::to_string(blocks) + " blocks of INT"};
}

Type scattered(int blocks) {
  std::vector<int> displacements;
  for (int i = 0; i < blocks; ++i) displacements.push_back(3 * ((i * 5) % blocks) + (i % 2));
  MPI_Datatype made = MPI_DATATYPE_NULL;
  // 5 and the number of blocks must have no common factor, or blocks would coincide.
  PMPI_Type_create_indexed_block(blocks, 2, displacements.data(), MPI_FLOAT, &made);
  return {made, "indexed_block of 2 FLOAT, " + std::to_string(blocks) + " blocks"};
}

Type cube(int side) {
  const int whole[3] = {side + 2, side + 3, side + 4}, part[3] = {side, side, side}, start[3] = {1, 2, 3};
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_create_subarray(3, whole, part, start, MPI_ORDER_C, MPI_FLOAT, &made);
  return {made, "subarray " + std::to_string(side) + "^3 of FLOAT"};
}

Type nested(int outer) {
  MPI_Datatype inner = MPI_DATATYPE_NULL, made = MPI_DATATYPE_NULL;
  PMPI_Type_vector(4, 3, 5, MPI_SHORT, &inner);
  PMPI_Type_create_hvector(outer, 1, 64, inner, &made);
  PMPI_Type_free(&inner);
  return {made, "hvector of " + std::to_string(outer) + " vectors of SHORT"};
}

Type backwards(int blocks) {
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_vector(blocks, 2, -3, MPI_DOUBLE, &made);
  return {made, "vector, negative stride, " + std::to_string(blocks) + " blocks"};
}

Type shifted(int elements) {
  MPI_Datatype row = MPI_DATATYPE_NULL, resized = MPI_DATATYPE_NULL;
  PMPI_Type_vector(3, 1, 2, MPI_INT, &row);
  PMPI_Type_create_resized(row, -16, 48, &resized);
  MPI_Datatype made = repeated(elements, resized);
  PMPI_Type_free(&row);
  PMPI_Type_free(&resized);
  return {made, "resized to lb -16, " + std::to_string(elements) + " elements"};
}

Type mixed_struct(int elements) {
  MPI_Datatype inner = MPI_DATATYPE_NULL, member = MPI_DATATYPE_NULL;
  PMPI_Type_vector(3, 1, 3, MPI_SHORT, &inner);
  const int lengths[3] = {1, 2, 1};
  const MPI_Aint places[3] = {40, 0, 80};
  const MPI_Datatype types[3] = {inner, MPI_DOUBLE, MPI_DOUBLE_INT};
  PMPI_Type_create_struct(3, lengths, places, types, &member);
  MPI_Datatype made = repeated(elements, member);
  PMPI_Type_free(&inner);
  PMPI_Type_free(&member);
  return {made, "struct{vector SHORT, 2 DOUBLE, DOUBLE_INT} x " + std::to_string(elements)};
}

}  // namespace

Type::Type(MPI_Datatype handle, std::string text) : handle_(handle), text_(std::move(text)) {
  PMPI_Type_commit(&handle_);
}

Type::Type(Type&& other) noexcept
    : handle_(std::exchange(other.handle_, MPI_DATATYPE_NULL)), text_(std::move(other.text_)) {}

Type::~Type() {
  free();
}

void Type::free() {
  if (handle_ == MPI_DATATYPE_NULL) return;
  if (is_derived(handle_))
    MPI_Type_free(&handle_);
  else
    handle_ = MPI_DATATYPE_NULL;
}

std::int64_t Type::size() const {
  MPI_Count size = 0;
  PMPI_Type_size_x(handle_, &size);
  return size;
}

MPI_Aint Type::extent() const {
  MPI_Aint lb = 0, extent = 0;
  PMPI_Type_get_extent(handle_, &lb, &extent);
  return extent;
}

MPI_Aint Type::low(std::int64_t count) const {
  if (count == 0 || size() == 0) return 0;
  return true_bounds(handle_).low + std::min<MPI_Aint>(0, (count - 1) * extent());
}

MPI_Aint Type::high(std::int64_t count) const {
  if (count == 0 || size() == 0) return 0;
  return true_bounds(handle_).high + std::max<MPI_Aint>(0, (count - 1) * extent());
}

Type plain(MPI_Datatype basic) {
  char name[MPI_MAX_OBJECT_NAME] = "";
  int length = 0;
  PMPI_Type_get_name(basic, name, &length);
  return {basic, name};
}

Type vector(int blocks, int length, int stride, MPI_Datatype basic) {
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_vector(blocks, length, stride, basic, &made);
  return {made, "vector(" + std::to_string(blocks) + "," + std::to_string(length) + "," + std::to_string(stride) + ")"};
}

Type named_layout(int index, int bytes) {
  if (index == 6 || index == 10) bytes = std::min(bytes, most_of_mixed_structs);
  const auto elements = [bytes](int size) { return std::max(1, bytes / size); };
  switch (index) {
    case 0:
      return {repeated(elements(8), MPI_DOUBLE), "contiguous DOUBLE"};
    case 1:
      return vector(elements(8), 1, 4);
    case 2:
      return vector(elements(128), 16, 20);
    case 3: {
      int side = 2;
      while ((side + 1) * (side + 1) * (side + 1) * 4 <= bytes) ++side;
      return cube(side);
    }
    case 4:
      return irregular(elements(12));
    case 5:
      return scattered(elements(8) / 5 * 5 + 1);
    case 6: {
      MPI_Datatype element = particle();
      MPI_Datatype made = repeated(elements(17), element);
      PMPI_Type_free(&element);
      return {made, "17 of 24 bytes x " + std::to_string(elements(17))};
    }
    case 7:
      return nested(elements(24));
    case 8:
      return backwards(elements(16));
    case 9:
      return shifted(elements(12));
    case 10:
      return mixed_struct(elements(34));
    default:
      return {repeated(elements(1) | 1, MPI_BYTE), "contiguous BYTE, odd length"};
  }
}

Pair random_pair(std::mt19937_64& random) {
  Arranger arranger(random);
  const auto basics = basic_types();
  const int members = arranger.below(3) == 0 ? 1 : 1 + arranger.below(4);
  std::vector<std::pair<Basic, int>> signature;
  for (int i = 0; i < members; ++i) {
    constexpr int lengths[] = {1, 2, 3, 12, 36, 60, 144};
    signature.emplace_back(basics[static_cast<std::size_t>(arranger.below(static_cast<int>(basics.size())))],
                           lengths[arranger.below(7)]);
  }
  const auto side = [&] {
    std::vector<Draft> parts;
    for (const auto& [basic, count] : signature) parts.push_back(arranger.arrange(basic, count, arranger.below(5)));
    Draft whole = arranger.sequence(std::move(parts));
    return Type(whole.type, whole.text);
  };
  Type send = side();
  return {std::move(send), side()};
}

}  // namespace gpudt::test
