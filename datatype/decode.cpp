// Takes an MPI datatype apart (MPI-4.1 section 5.1.13) and builds its Tree.
#include "datatype/decode.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/exception.hpp"
#include "datatype/basic.hpp"
#include "datatype/tree.hpp"

// Combiners that MPI-3.0 removed but that headers still declare; Open MPI hides the names behind others.
#if defined(OPEN_MPI) && (!defined(OMPI_ENABLE_MPI1_COMPAT) || !OMPI_ENABLE_MPI1_COMPAT)
#define GPUDT_REMOVED_COMBINER(name) OMPI_WAS_##name
#else
#define GPUDT_REMOVED_COMBINER(name) name
#endif

namespace gpudt::datatype {
namespace {

#ifdef MPI_ABI_VERSION  // the standard ABI has no such constants: numbers that no combiner has
constexpr int hvector_integer = -1, hindexed_integer = -2, struct_integer = -3;
#else
constexpr int hvector_integer = GPUDT_REMOVED_COMBINER(MPI_COMBINER_HVECTOR_INTEGER);
constexpr int hindexed_integer = GPUDT_REMOVED_COMBINER(MPI_COMBINER_HINDEXED_INTEGER);
constexpr int struct_integer = GPUDT_REMOVED_COMBINER(MPI_COMBINER_STRUCT_INTEGER);
#endif

struct Decoded {
  Ref ref;
  std::int64_t extent = 0;
};

/// The constructor of a datatype and its arguments (MPI-4.1 section 5.1.13). The holder calls release() for `types`.
struct Contents {
  int combiner = MPI_COMBINER_NAMED;
  /// Counts and displacements in the order of MPI_Type_get_contents, the addresses after the integers, also for types
  /// that were made by large-count constructors.
  Words numbers;
  std::vector<MPI_Datatype> types;
};

bool is_predefined_combiner(int combiner) {
  switch (combiner) {
    case MPI_COMBINER_NAMED:
    case MPI_COMBINER_F90_REAL:
    case MPI_COMBINER_F90_COMPLEX:
    case MPI_COMBINER_F90_INTEGER:
      return true;
    default:
      return false;
  }
}

#ifdef GPUDT_MPI_LARGE_COUNTS

/// MPI_Type_get_envelope fails for types that were made by large-count constructors.
struct Envelope {
  MPI_Count ints = 0, addresses = 0, counts = 0, types = 0;
  int combiner = MPI_COMBINER_NAMED;
  explicit Envelope(MPI_Datatype type) {
    PMPI_Type_get_envelope_c(type, &ints, &addresses, &counts, &types, &combiner);
  }
};

/// The numbers in the order of small-count constructors, whose arrays have their sizes among the other integers.
Words array_numbers(int combiner, const std::vector<int>& ints, const std::vector<MPI_Count>& counts) {
  Words numbers(ints.begin(), ints.end());
  const int before = combiner == MPI_COMBINER_SUBARRAY ? 1 : combiner == MPI_COMBINER_DARRAY ? 3 : 0;
  numbers.insert(numbers.begin() + before, counts.begin(), counts.end());
  return numbers;
}

void read_contents(MPI_Datatype type, const Envelope& envelope, Contents& contents) {
  std::vector<int> ints(static_cast<std::size_t>(envelope.ints));
  std::vector<MPI_Aint> addresses(static_cast<std::size_t>(envelope.addresses));
  std::vector<MPI_Count> counts(static_cast<std::size_t>(envelope.counts));
  PMPI_Type_get_contents_c(type, envelope.ints, envelope.addresses, envelope.counts, envelope.types, ints.data(),
                           addresses.data(), counts.data(), contents.types.data());
  if (!counts.empty()) {
    contents.numbers = array_numbers(envelope.combiner, ints, counts);
  } else {
    contents.numbers.assign(ints.begin(), ints.end());
    contents.numbers.insert(contents.numbers.end(), addresses.begin(), addresses.end());
  }
}

#else

struct Envelope {
  int ints = 0, addresses = 0, types = 0;
  int combiner = MPI_COMBINER_NAMED;
  explicit Envelope(MPI_Datatype type) { PMPI_Type_get_envelope(type, &ints, &addresses, &types, &combiner); }
};

void read_contents(MPI_Datatype type, const Envelope& envelope, Contents& contents) {
  std::vector<int> ints(static_cast<std::size_t>(envelope.ints));
  std::vector<MPI_Aint> addresses(static_cast<std::size_t>(envelope.addresses));
  PMPI_Type_get_contents(type, envelope.ints, envelope.addresses, envelope.types, ints.data(), addresses.data(),
                         contents.types.data());
  contents.numbers.assign(ints.begin(), ints.end());
  contents.numbers.insert(contents.numbers.end(), addresses.begin(), addresses.end());
}

#endif

Contents contents_of(MPI_Datatype type) {
  Contents contents;
  const Envelope envelope(type);
  contents.combiner = envelope.combiner;
  if (is_predefined_combiner(contents.combiner)) return contents;
  contents.types.resize(static_cast<std::size_t>(envelope.types), MPI_DATATYPE_NULL);
  read_contents(type, envelope, contents);
  return contents;
}

/// Frees a handle from MPI_Type_get_contents.
void release(MPI_Datatype type) {
  if (type != MPI_DATATYPE_NULL && !is_predefined(type)) PMPI_Type_free(&type);
}

std::int64_t extent_of(MPI_Datatype type) {
  MPI_Count lb = 0, extent = 0;
  PMPI_Type_get_extent_x(type, &lb, &extent);
  return extent;
}

/// Whether MPI_Type_get_contents returns the same handle for the same type each time, so that a handle identifies a
/// type that has been decoded before (MPICH: yes; Open MPI returns copies).
bool handles_are_stable() {
  static const bool stable = [] {
    MPI_Datatype inner = MPI_DATATYPE_NULL, outer = MPI_DATATYPE_NULL;
    PMPI_Type_contiguous(2, MPI_INT, &inner);
    PMPI_Type_contiguous(2, inner, &outer);
    const Contents first = contents_of(outer), second = contents_of(outer);
    const bool same = first.types[0] == second.types[0];
    release(first.types[0]);
    release(second.types[0]);
    PMPI_Type_free(&outer);
    PMPI_Type_free(&inner);
    return same;
  }();
  return stable;
}

/// A predefined type. The pair types are a value followed by an int that is aligned for itself.
Ref leaf(Tree& tree, MPI_Datatype type, std::int64_t size) {
  MPI_Count true_lb = 0, true_extent = 0;
  PMPI_Type_get_true_extent_x(type, &true_lb, &true_extent);
  if (true_extent <= size) return shifted(tree.run(size), true_lb);
  const std::int64_t second = sizeof(int);
  return tree.segments({true_lb, true_lb + true_extent - second}, {size - second, second});
}

/// One dimension of a subarray or darray, from the slowest to the fastest.
struct Axis {
  std::int64_t global = 0;  ///< elements of the whole array
  std::int64_t start = 0;   ///< the first element taken
  std::int64_t block = 0;   ///< elements in a full block
  std::int64_t step = 0;    ///< from block to block
  std::int64_t full = 0;    ///< full blocks
  std::int64_t rest = 0;    ///< elements of a last block that is not full
};

Ref array(Tree& tree, const std::vector<Axis>& axes, bool fortran, const Decoded& element) {
  Ref made = element.ref;
  std::int64_t stride = element.extent;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[fortran ? i : axes.size() - 1 - i];
    const Ref blocks = tree.strided(axis.full, axis.step * stride, tree.strided(axis.block, stride, made));
    const Ref rest = shifted(tree.strided(axis.rest, stride, made), axis.full * axis.step * stride);
    made = shifted(tree.structure({blocks, rest}), axis.start * stride);
    stride *= axis.global;
  }
  return made;
}

Ref subarray(Tree& tree, const Words& numbers, const Decoded& element) {
  const auto dims = static_cast<std::size_t>(numbers[0]);
  std::vector<Axis> axes(dims);
  for (std::size_t i = 0; i < dims; ++i) {
    axes[i].global = numbers[1 + i];
    axes[i].block = numbers[1 + dims + i];
    axes[i].start = numbers[1 + 2 * dims + i];
    axes[i].full = 1;
  }
  return array(tree, axes, numbers[1 + 3 * dims] == MPI_ORDER_FORTRAN, element);
}

/// The share of process `coordinate` of `processes` in one dimension (MPI-3.1 section 4.1.4).
Axis share(std::int64_t global, std::int64_t distribution, std::int64_t argument, std::int64_t processes,
           std::int64_t coordinate) {
  std::int64_t block = argument;
  if (distribution == MPI_DISTRIBUTE_NONE) {
    block = global;
    processes = 1;
    coordinate = 0;
  } else if (argument == MPI_DISTRIBUTE_DFLT_DARG) {
    block = distribution == MPI_DISTRIBUTE_BLOCK ? (global + processes - 1) / processes : 1;
  }
  Axis axis;
  axis.global = global;
  axis.block = block;
  axis.step = block * processes;
  axis.start = coordinate * block;
  const std::int64_t behind = global - axis.start;  // elements from the first of this process on
  if (behind <= 0 || block <= 0) return axis;
  axis.full = behind / axis.step;
  const std::int64_t last = behind - axis.full * axis.step;
  if (last >= block)
    ++axis.full;
  else
    axis.rest = last;
  return axis;
}

Ref darray(Tree& tree, const Words& numbers, const Decoded& element) {
  std::int64_t processes = numbers[0], rank = numbers[1];
  const auto dims = static_cast<std::size_t>(numbers[2]);
  const std::int64_t* const global = numbers.data() + 3;
  const std::int64_t* const distributions = global + dims;
  const std::int64_t* const arguments = distributions + dims;
  const std::int64_t* const grid = arguments + dims;
  std::vector<Axis> axes(dims);
  for (std::size_t i = 0; i < dims; ++i) {  // the process grid is always in C order
    processes /= grid[i];
    axes[i] = share(global[i], distributions[i], arguments[i], grid[i], rank / processes);
    rank %= processes;
  }
  return array(tree, axes, grid[dims] == MPI_ORDER_FORTRAN, element);
}

/// `count` of `numbers` from `first` on, times `unit`.
Words scaled(const Words& numbers, std::size_t first, std::size_t count, std::int64_t unit) {
  Words words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = numbers[first + i] * unit;
  return words;
}

/// What `contents`, whose types are decoded as `types`, describes.
Ref combine(Tree& tree, const Contents& contents, const std::vector<Decoded>& types) {
  const Words& numbers = contents.numbers;
  const Decoded& old = types[0];
  const auto count = numbers.empty() ? std::size_t(0) : static_cast<std::size_t>(numbers[0]);
  // Strides and displacements in extents of the old type, or in bytes.
  auto vector = [&](std::int64_t unit) {
    return tree.strided(numbers[0], numbers[2] * unit, tree.strided(numbers[1], old.extent, old.ref));
  };
  auto indexed = [&](std::int64_t unit) {
    return tree.blocks(scaled(numbers, 1 + count, count, unit), scaled(numbers, 1, count, 1), old.extent, old.ref);
  };
  auto indexed_block = [&](std::int64_t unit) {
    return tree.indexed(scaled(numbers, 2, count, unit), tree.strided(numbers[1], old.extent, old.ref));
  };
  auto structure = [&] {
    std::vector<Ref> members(count);
    for (std::size_t i = 0; i < count; ++i)
      members[i] = shifted(tree.strided(numbers[1 + i], types[i].extent, types[i].ref), numbers[1 + count + i]);
    return tree.structure(members);
  };
  switch (contents.combiner) {
    case MPI_COMBINER_CONTIGUOUS:
      return tree.strided(numbers[0], old.extent, old.ref);
    case MPI_COMBINER_VECTOR:
      return vector(old.extent);
    case MPI_COMBINER_HVECTOR:
    case hvector_integer:
      return vector(1);
    case MPI_COMBINER_INDEXED:
      return indexed(old.extent);
    case MPI_COMBINER_HINDEXED:
    case hindexed_integer:
      return indexed(1);
    case MPI_COMBINER_INDEXED_BLOCK:
      return indexed_block(old.extent);
    case MPI_COMBINER_HINDEXED_BLOCK:
      return indexed_block(1);
    case MPI_COMBINER_STRUCT:
    case struct_integer:
      return structure();
    case MPI_COMBINER_SUBARRAY:
      return subarray(tree, numbers, old);
    case MPI_COMBINER_DARRAY:
      return darray(tree, numbers, old);
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED:
      return old.ref;
    default:
      throw Exception("datatype with an unknown combiner");
  }
}

/// The walk over the types below one datatype, children first, without recursion: types nest to any depth.
class Decoder {
 public:
  explicit Decoder(Tree& tree) : tree_(tree), stable_(handles_are_stable()) {}
  ~Decoder() {
    for (Frame& frame : stack_) frame.release_types();
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  Ref decode(MPI_Datatype root) {
    Decoded result;
    if (!enter(root, result)) return result.ref;
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      if (frame.decoded.size() < frame.contents.types.size()) {
        Decoded child;
        if (!enter(frame.contents.types[frame.decoded.size()], child)) stack_.back().decoded.push_back(child);
        continue;
      }
      result = {combine(tree_, frame.contents, frame.decoded), frame.extent};
      if (stable_) known_.emplace(frame.type, result);
      frame.release_types();
      stack_.pop_back();
      if (!stack_.empty()) stack_.back().decoded.push_back(result);
    }
    return result.ref;
  }
  std::int64_t widest_element() const { return widest_element_; }

 private:
  struct Frame {
    MPI_Datatype type;
    std::int64_t extent;
    Contents contents;
    std::vector<Decoded> decoded;  ///< the types of `contents` done so far

    void release_types() {
      for (const MPI_Datatype inner : contents.types) release(inner);
      contents.types.clear();
    }
  };

  /// Decodes what needs no look inside; for everything else pushes a frame and returns true.
  bool enter(MPI_Datatype type, Decoded& result) {
    if (const auto entry = known_.find(type); entry != known_.end()) {
      result = entry->second;
      return false;
    }
    const std::int64_t size = size_of(type);
    const std::int64_t extent = extent_of(type);
    result = {Ref{}, extent};
    if (size == 0) return false;
    stack_.push_back({type, extent, contents_of(type), {}});
    if (!stack_.back().contents.types.empty()) {
      stack_.back().decoded.reserve(stack_.back().contents.types.size());
      return true;
    }
    stack_.pop_back();
    result.ref = leaf(tree_, type, size);
    widest_element_ = std::max(widest_element_, size);
    known_.emplace(type, result);
    return false;
  }

  Tree& tree_;
  const bool stable_;
  std::int64_t widest_element_ = 0;
  std::vector<Frame> stack_;
  std::unordered_map<MPI_Datatype, Decoded> known_;  ///< predefined types, and others if handles are stable
};

}  // namespace

bool is_predefined(MPI_Datatype type) {
  return is_predefined_combiner(Envelope(type).combiner);
}

Members::Members(MPI_Datatype type) {
  Contents contents = contents_of(type);
  combiner_ = contents.combiner;
  numbers_ = std::move(contents.numbers);
  types_ = std::move(contents.types);
}

Members::~Members() {
  for (const MPI_Datatype type : types_) release(type);
}

LayoutRef decode(MPI_Datatype type, const ListLimits& limits, std::int64_t* widest_element) {
  Tree tree(limits);
  Decoder decoder(tree);
  const Ref root = decoder.decode(type);
  if (widest_element != nullptr) *widest_element = decoder.widest_element();
  MPI_Count lb = 0, extent = 0;
  PMPI_Type_get_extent_x(type, &lb, &extent);
  return Serialiser::serialise(tree, tree.finish(root), {lb, extent});
}

}  // namespace gpudt::datatype
