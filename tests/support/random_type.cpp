// Random MPI datatypes (random_type.hpp): built bottom up, each level drawn anew until it keeps to the limits.
#include "tests/support/random_type.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tests/support/mpi_quirks.hpp"

namespace gpudt::test {
namespace {

using Map = std::vector<MapRun>;

/// Elements beyond which extents that are small against the true extent are called overlapping unseen.
constexpr std::int64_t most_interleaved = 64;
constexpr int attempts_per_level = 4;
constexpr int most_members = 4;
constexpr const char* step_bug = "blocks of a vector -1 byte apart";
constexpr const char* empty_member_bug = "a struct member without bytes";

struct Bounds {
  std::int64_t low = 0, high = 0;
};

Bounds bounds_of(const Map& map) {
  if (map.empty()) return {};
  Bounds bounds{map[0].displ, map[0].displ};
  for (const MapRun& run : map) {
    bounds.low = std::min(bounds.low, run.displ);
    bounds.high = std::max(bounds.high, run.displ + run.length);
  }
  return bounds;
}

bool self_overlapping(Map map) {
  std::sort(map.begin(), map.end(), [](const MapRun& a, const MapRun& b) { return a.displ < b.displ; });
  const auto clash = std::adjacent_find(map.begin(), map.end(),
                                        [](const MapRun& a, const MapRun& b) { return a.displ + a.length > b.displ; });
  return clash != map.end();
}

/// A tree under construction: the MPI type and its meaning.
struct Draft {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  bool owned = false;
  std::string text;
  Map map;
  std::int64_t lb = 0, extent = 0;
  const char* mpi_bug = nullptr;

  Draft() = default;
  Draft(Draft&& other) noexcept
      : type(other.type),
        owned(std::exchange(other.owned, false)),
        text(std::move(other.text)),
        map(std::move(other.map)),
        lb(other.lb),
        extent(other.extent),
        mpi_bug(other.mpi_bug) {}
  Draft& operator=(Draft&& other) noexcept {
    std::swap(type, other.type);
    std::swap(owned, other.owned);
    text = std::move(other.text);
    map = std::move(other.map);
    lb = other.lb;
    extent = other.extent;
    mpi_bug = other.mpi_bug;
    return *this;
  }
  ~Draft() {
    if (owned) PMPI_Type_free(&type);
  }

  std::int64_t width() const {
    const Bounds bounds = bounds_of(map);
    return std::max(std::abs(extent), bounds.high - bounds.low);
  }
};

/// Collects the type map of one combiner and gives up once it is beyond the limits.
class Expansion {
 public:
  explicit Expansion(const RandomTypeLimits& limits) : limits_(limits) {}

  void add(const Draft& child, std::int64_t at) {
    for (const MapRun& run : child.map) {
      if (too_big_) return;
      const std::int64_t displ = run.displ + at;
      if (!map_.empty() && map_.back().displ + map_.back().length == displ)
        map_.back().length += run.length;
      else
        map_.push_back({displ, run.length});
      too_big_ = displ < -limits_.max_span || displ + run.length > limits_.max_span ||
                 static_cast<std::int64_t>(map_.size()) > limits_.max_runs;
    }
  }

  std::optional<Map> take() {
    if (too_big_) return std::nullopt;
    const Bounds bounds = bounds_of(map_);
    if (bounds.high - bounds.low > limits_.max_span) return std::nullopt;
    if (limits_.unpack_safe && self_overlapping(map_)) return std::nullopt;
    return std::move(map_);
  }

 private:
  const RandomTypeLimits& limits_;
  Map map_;
  bool too_big_ = false;
};

template <class T>
std::string text_of(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "{" : ",") + std::to_string(value);
  return text.empty() ? "{}" : text + "}";
}

template <class... Parts>
std::string call_text(const char* name, const std::string& child, const Parts&... parts) {
  [[maybe_unused]] auto part_text = [](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
      return std::to_string(part);
    else
      return text_of(part);
  };
  std::string text = std::string(name) + "(";
  ((text += part_text(parts) + ","), ...);
  return text + " " + child + ")";
}

template <class Value>
struct Pair {
  Value value;
  int index;
};

struct Leaf {
  const char* name;
  MPI_Datatype type;
  Map map;
};

template <class Value>
Map pair_map() {
  const auto second = static_cast<std::int64_t>(offsetof(Pair<Value>, index));
  if (second == sizeof(Value)) return {{0, sizeof(Value) + sizeof(int)}};
  return {{0, sizeof(Value)}, {second, sizeof(int)}};
}

MPI_Datatype f90_type(int (*create)(int, int, MPI_Datatype*), int precision, int range) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  create(precision, range, &type);
  return type;
}

/// Whether the MPI library packs types of this one rightly, in every byte.
bool is_right(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  return (packs_complex_numbers || !(has("COMPLEX") || has("complex"))) && (unpacks_padding || !has("LONG_DOUBLE"));
}

/// Every predefined type that the MPI library supports.
const std::vector<Leaf>& leaves() {
  static const std::vector<Leaf> all = [] {
    std::vector<Leaf> list;
    auto add = [&](const char* name, MPI_Datatype type, Map map) {
      if (type != MPI_DATATYPE_NULL && is_right(name)) list.push_back({name, type, std::move(map)});
    };
    auto plain = [&](const char* name, MPI_Datatype type) {
      int size = 0;
      if (type != MPI_DATATYPE_NULL) PMPI_Type_size(type, &size);
      if (size > 0) add(name, type, {{0, size}});
    };
#define GPUDT_PLAIN(name) plain(#name, MPI_##name)
    GPUDT_PLAIN(CHAR);
    GPUDT_PLAIN(SHORT);
    GPUDT_PLAIN(INT);
    GPUDT_PLAIN(LONG);
    GPUDT_PLAIN(LONG_LONG);
    GPUDT_PLAIN(SIGNED_CHAR);
    GPUDT_PLAIN(UNSIGNED_CHAR);
    GPUDT_PLAIN(UNSIGNED_SHORT);
    GPUDT_PLAIN(UNSIGNED);
    GPUDT_PLAIN(UNSIGNED_LONG);
    GPUDT_PLAIN(UNSIGNED_LONG_LONG);
    GPUDT_PLAIN(FLOAT);
    GPUDT_PLAIN(DOUBLE);
    GPUDT_PLAIN(LONG_DOUBLE);
    GPUDT_PLAIN(WCHAR);
    GPUDT_PLAIN(C_BOOL);
    GPUDT_PLAIN(INT8_T);
    GPUDT_PLAIN(INT16_T);
    GPUDT_PLAIN(INT32_T);
    GPUDT_PLAIN(INT64_T);
    GPUDT_PLAIN(UINT8_T);
    GPUDT_PLAIN(UINT16_T);
    GPUDT_PLAIN(UINT32_T);
    GPUDT_PLAIN(UINT64_T);
    GPUDT_PLAIN(AINT);
    GPUDT_PLAIN(COUNT);
    GPUDT_PLAIN(OFFSET);
    GPUDT_PLAIN(C_COMPLEX);
    GPUDT_PLAIN(C_DOUBLE_COMPLEX);
    GPUDT_PLAIN(C_LONG_DOUBLE_COMPLEX);
    GPUDT_PLAIN(BYTE);
    GPUDT_PLAIN(PACKED);
    GPUDT_PLAIN(INTEGER);
    GPUDT_PLAIN(REAL);
    GPUDT_PLAIN(DOUBLE_PRECISION);
    GPUDT_PLAIN(COMPLEX);
    GPUDT_PLAIN(DOUBLE_COMPLEX);
    GPUDT_PLAIN(LOGICAL);
    GPUDT_PLAIN(CHARACTER);
    GPUDT_PLAIN(2REAL);
    GPUDT_PLAIN(2DOUBLE_PRECISION);
    GPUDT_PLAIN(2INTEGER);
#undef GPUDT_PLAIN
    add("FLOAT_INT", MPI_FLOAT_INT, pair_map<float>());
    add("DOUBLE_INT", MPI_DOUBLE_INT, pair_map<double>());
    add("LONG_INT", MPI_LONG_INT, pair_map<long>());
    add("2INT", MPI_2INT, pair_map<int>());
    add("SHORT_INT", MPI_SHORT_INT, pair_map<short>());
    add("LONG_DOUBLE_INT", MPI_LONG_DOUBLE_INT, pair_map<long double>());
    plain("f90_real(6,30)", f90_type(PMPI_Type_create_f90_real, 6, 30));
    plain("f90_complex(15,307)", f90_type(PMPI_Type_create_f90_complex, 15, 307));
    MPI_Datatype integer = MPI_DATATYPE_NULL;
    PMPI_Type_create_f90_integer(9, &integer);
    plain("f90_integer(9)", integer);
    return list;
  }();
  return all;
}

// --- constructors with small and with large counts ---

#ifdef GPUDT_MPI_LARGE_COUNTS
#define GPUDT_FORMS(name) name, name##_c
#else
#define GPUDT_FORMS(name) name, nullptr
#endif

/// An array that has ints in both forms.
struct Ints32 {
  const std::vector<int>& list;
};

/// An array as the form with large counts takes it.
struct Widened {
  std::vector<MPI_Count> list;
  operator const MPI_Count*() const { return list.data(); }  // NOLINT(google-explicit-constructor): an argument
};

template <class Number>
Widened widened(const std::vector<Number>& list) {
  return {{list.begin(), list.end()}};
}
inline const int* widened(Ints32 list) {
  return list.list.data();
}
template <class Plain>
Plain widened(Plain plain) {
  return plain;
}

template <class Number>
const Number* narrow(const std::vector<Number>& list) {
  return list.data();
}
inline const int* narrow(Ints32 list) {
  return list.list.data();
}
template <class Plain>
Plain narrow(Plain plain) {
  return plain;
}

class Generator {
 public:
  Generator(std::mt19937_64& random, const RandomTypeLimits& limits) : random_(random), limits_(limits) {}

  Draft make(int depth) {
    if (depth == 0 || chance(10)) return leaf();
    if (chance(5)) {
      for (int i = 0; i < attempts_per_level; ++i)
        if (std::optional<Draft> made = structure(depth)) return std::move(*made);
      return leaf();
    }
    Draft child = make(depth - 1);
    for (int i = 0; i < attempts_per_level; ++i)
      if (std::optional<Draft> made = over(child)) {
        if (made->mpi_bug == nullptr) made->mpi_bug = child.mpi_bug;
        return std::move(*made);
      }
    return child;
  }

  /// Gives elements room for themselves.
  Draft apart(Draft child) {
    const Bounds bounds = bounds_of(child.map);
    MPI_Datatype type = MPI_DATATYPE_NULL;
    PMPI_Type_create_resized(child.type, bounds.low, bounds.high - bounds.low, &type);
    const std::string text = call_text("resized", child.text, bounds.low, bounds.high - bounds.low);
    Draft made = *accept(type, text, std::move(child.map));
    made.mpi_bug = child.mpi_bug;
    return made;
  }

 private:
  using Ints = std::vector<int>;
  using Addresses = std::vector<MPI_Aint>;

  // --- numbers ---
  int below(std::int64_t limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }
  int between(std::int64_t low, std::int64_t high) { return static_cast<int>(low) + below(high - low + 1); }
  bool chance(int one_in) { return below(one_in) == 0; }
  /// Mostly small, sometimes zero.
  int count() { return chance(40) ? 0 : 1 + below(1 + below(limits_.max_blocks)); }
  std::int64_t gap() { return chance(2) ? 0 : below(chance(2) ? 4 : 40); }

  Ints counts(int blocks) {
    Ints list(static_cast<std::size_t>(blocks));
    const bool equal = chance(3);
    for (int& entry : list) entry = equal && &entry != list.data() ? list[0] : count();
    return list;
  }

  /// Displacements of blocks that are widths[i] wide, in any arrangement that the mode allows.
  template <class Displ>
  std::vector<Displ> displacements(const std::vector<std::int64_t>& widths) {
    std::vector<Displ> list(widths.size());
    if (list.empty()) return list;
    const std::int64_t widest = *std::max_element(widths.begin(), widths.end());
    const std::int64_t base = chance(2) ? 0 : between(-20, 20);
    switch (below(limits_.unpack_safe ? 4 : 5)) {
      case 0:  // side by side
      case 1: {
        std::int64_t at = base;
        std::vector<Displ> places;
        for (const std::int64_t width : widths) {
          places.push_back(static_cast<Displ>(at));
          at += width + gap();
        }
        list = places;
        if (chance(3)) std::reverse(list.begin(), list.end());
        break;
      }
      case 2: {  // equal steps
        const std::int64_t step = (widest + gap()) * (chance(3) ? -1 : 1);
        for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<Displ>(base + static_cast<int>(i) * step);
        break;
      }
      case 3: {  // rows of equal steps
        const std::int64_t step = widest + gap(), row = 1 + below(4), pitch = step * row + gap();
        for (std::size_t i = 0; i < list.size(); ++i) {
          const auto index = static_cast<std::int64_t>(i);
          list[i] = static_cast<Displ>(base + index / row * pitch + index % row * step);
        }
        break;
      }
      default:
        for (Displ& displ : list) displ = static_cast<Displ>(between(-60, 60));
    }
    if (chance(6)) std::shuffle(list.begin(), list.end(), random_);
    return list;
  }

  std::vector<std::int64_t> widths(const Ints& lengths, std::int64_t unit) {
    std::vector<std::int64_t> list;
    for (const int length : lengths) list.push_back(length * unit);
    return list;
  }

  /// Calls a constructor in one of its forms.
  template <class Small, class Large, class... Arguments>
  MPI_Datatype construct(Small small, [[maybe_unused]] Large large, const Arguments&... arguments) {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    if constexpr (!std::is_null_pointer_v<Large>)
      if (limits_.large_counts && !chance(3)) {
        large(widened(arguments)..., &type);
        return type;
      }
    small(narrow(arguments)..., &type);
    return type;
  }

  // --- trees ---
  Draft leaf() {
    // Half of them are the everyday ones, so that neighbours have a chance to join.
    const std::vector<Leaf>& all = leaves();
    const Leaf& from = all[static_cast<std::size_t>(below(chance(2) ? 4 : static_cast<std::int64_t>(all.size())))];
    Draft made;
    made.type = from.type;
    made.text = from.name;
    made.map = from.map;
    read_extent(made);
    return made;
  }

  void read_extent(Draft& draft) {
    MPI_Aint lb = 0, extent = 0;
    PMPI_Type_get_extent(draft.type, &lb, &extent);
    draft.lb = lb;
    draft.extent = extent;
  }

  /// Takes over `type`; nothing if its bounds are beyond the limits.
  std::optional<Draft> accept(MPI_Datatype type, std::string text, Map&& map) {
    Draft made;
    made.type = type;
    made.owned = true;
    made.text = std::move(text);
    made.map = std::move(map);
    read_extent(made);
    const std::int64_t ub = made.lb + made.extent;
    if (std::max({std::abs(made.lb), std::abs(ub), std::abs(made.extent)}) > limits_.max_span) return std::nullopt;
    return made;
  }

  /// Marks what MPI gets wrong, or drops it if it is not wanted.
  std::optional<Draft> with_bug(std::optional<Draft> made, const char* bug) {
    if (bug == nullptr || !made) return made;
    if (!limits_.mpi_bugs) return std::nullopt;
    made->mpi_bug = bug;
    return made;
  }

  std::optional<Draft> over(const Draft& child) {
    switch (below(12)) {
      case 0:
        return dup(child);
      case 1:
        return contiguous(child);
      case 2:
        return vector(child);
      case 3:
        return hvector(child);
      case 4:
        return indexed(child);
      case 5:
        return hindexed(child);
      case 6:
        return indexed_block(child);
      case 7:
        return hindexed_block(child);
      case 8:
        return subarray(child);
      case 9:
        return darray(child);
      default:
        return resized(child);
    }
  }

  std::optional<Draft> dup(const Draft& child) {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    PMPI_Type_dup(child.type, &type);
    return accept(type, call_text("dup", child.text), Map(child.map));
  }

  std::optional<Draft> contiguous(const Draft& child) {
    const int blocks = count();
    Expansion expansion(limits_);
    for (int i = 0; i < blocks; ++i) expansion.add(child, i * child.extent);
    std::optional<Map> map = expansion.take();
    if (!map) return std::nullopt;
    const MPI_Datatype type = construct(GPUDT_FORMS(PMPI_Type_contiguous), blocks, child.type);
    return accept(type, call_text("contiguous", child.text, blocks), std::move(*map));
  }

  std::optional<Map> vector_map(const Draft& child, int blocks, int length, std::int64_t stride) {
    Expansion expansion(limits_);
    for (int i = 0; i < blocks; ++i)
      for (int j = 0; j < length; ++j) expansion.add(child, i * stride + j * child.extent);
    return expansion.take();
  }

  std::optional<Draft> vector(const Draft& child) {
    const int blocks = count(), length = count();
    const int stride = (length + static_cast<int>(gap()) / 4) * (chance(4) ? -1 : 1) - (chance(8) ? 1 : 0);
    std::optional<Map> map = vector_map(child, blocks, length, stride * child.extent);
    if (!map) return std::nullopt;
    const MPI_Datatype type = construct(GPUDT_FORMS(PMPI_Type_vector), blocks, length, stride, child.type);
    std::optional<Draft> made = accept(type, call_text("vector", child.text, blocks, length, stride), std::move(*map));
    return with_bug(std::move(made), blocks > 1 && stride * child.extent == -1 ? step_bug : nullptr);
  }

  std::optional<Draft> hvector(const Draft& child) {
    const int blocks = count(), length = count();
    const MPI_Aint stride = (length * child.width() + gap()) * (chance(4) ? -1 : 1) - (chance(8) ? 3 : 0);
    std::optional<Map> map = vector_map(child, blocks, length, stride);
    if (!map) return std::nullopt;
    const MPI_Datatype type = construct(GPUDT_FORMS(PMPI_Type_create_hvector), blocks, length, stride, child.type);
    std::optional<Draft> made = accept(type, call_text("hvector", child.text, blocks, length, stride), std::move(*map));
    return with_bug(std::move(made), blocks > 1 && stride == -1 ? step_bug : nullptr);
  }

  template <class Displ>
  std::optional<Map> list_map(const Draft& child, const Ints& lengths, const std::vector<Displ>& displs,
                              std::int64_t unit) {
    Expansion expansion(limits_);
    for (std::size_t i = 0; i < displs.size(); ++i)
      for (int j = 0; j < lengths[i]; ++j) expansion.add(child, displs[i] * unit + j * child.extent);
    return expansion.take();
  }

  std::optional<Draft> indexed(const Draft& child) {
    const int blocks = count();
    const Ints lengths = counts(blocks), displs = displacements<int>(widths(lengths, 1));
    std::optional<Map> map = list_map(child, lengths, displs, child.extent);
    if (!map) return std::nullopt;
    const MPI_Datatype type = construct(GPUDT_FORMS(PMPI_Type_indexed), blocks, lengths, displs, child.type);
    return accept(type, call_text("indexed", child.text, lengths, displs), std::move(*map));
  }

  std::optional<Draft> hindexed(const Draft& child) {
    const int blocks = count();
    const Ints lengths = counts(blocks);
    const Addresses displs = displacements<MPI_Aint>(widths(lengths, child.width()));
    std::optional<Map> map = list_map(child, lengths, displs, 1);
    if (!map) return std::nullopt;
    const MPI_Datatype type = construct(GPUDT_FORMS(PMPI_Type_create_hindexed), blocks, lengths, displs, child.type);
    return accept(type, call_text("hindexed", child.text, lengths, displs), std::move(*map));
  }

  std::optional<Draft> indexed_block(const Draft& child) {
    const int blocks = count(), length = count();
    const Ints lengths(static_cast<std::size_t>(blocks), length);
    const Ints displs = displacements<int>(widths(lengths, 1));
    std::optional<Map> map = list_map(child, lengths, displs, child.extent);
    if (!map) return std::nullopt;
    const MPI_Datatype type =
        construct(GPUDT_FORMS(PMPI_Type_create_indexed_block), blocks, length, displs, child.type);
    return accept(type, call_text("indexed_block", child.text, length, displs), std::move(*map));
  }

  std::optional<Draft> hindexed_block(const Draft& child) {
    const int blocks = count(), length = count();
    const Ints lengths(static_cast<std::size_t>(blocks), length);
    const Addresses displs = displacements<MPI_Aint>(widths(lengths, child.width()));
    std::optional<Map> map = list_map(child, lengths, displs, 1);
    if (!map) return std::nullopt;
    const MPI_Datatype type =
        construct(GPUDT_FORMS(PMPI_Type_create_hindexed_block), blocks, length, displs, child.type);
    return accept(type, call_text("hindexed_block", child.text, length, displs), std::move(*map));
  }

  std::optional<Draft> structure(int depth) {
    std::vector<Draft> members;
    const int blocks = chance(40) ? 0 : between(1, most_members);
    const Ints lengths = counts(blocks);
    std::vector<std::int64_t> wide;
    std::string texts;
    for (int i = 0; i < blocks; ++i) {
      members.push_back(make(below(depth)));
      wide.push_back(members.back().width() * lengths[static_cast<std::size_t>(i)]);
      texts += (i > 0 ? ", " : "") + members.back().text;
    }
    Addresses displs = displacements<MPI_Aint>(wide);
    Expansion expansion(limits_);
    std::vector<MPI_Datatype> types;
    const char* bug = nullptr;
    for (std::size_t i = 0; i < members.size(); ++i) {
      types.push_back(members[i].type);
      if (members[i].mpi_bug != nullptr) bug = members[i].mpi_bug;
      if (members[i].map.empty() && lengths[i] > 0) bug = empty_member_bug;
      for (int j = 0; j < lengths[i]; ++j) expansion.add(members[i], displs[i] + j * members[i].extent);
    }
    std::optional<Map> map = expansion.take();
    if (!map) return std::nullopt;
    const MPI_Datatype type =
        construct(GPUDT_FORMS(PMPI_Type_create_struct), blocks, lengths, displs, std::as_const(types).data());
    return with_bug(accept(type, call_text("struct", "{" + texts + "}", lengths, displs), std::move(*map)), bug);
  }

  /// The map of the elements of an array that `mine` tells, in storage order.
  template <class Mine>
  std::optional<Map> array_map(const Draft& child, const Ints& sizes, int order, Mine mine) {
    const std::size_t dims = sizes.size();
    std::int64_t elements = 1;
    for (const int size : sizes) elements *= size;
    Expansion expansion(limits_);
    Ints index(dims);
    for (std::int64_t i = 0; i < elements; ++i) {
      std::int64_t rest = i;
      for (std::size_t k = 0; k < dims; ++k) {
        const std::size_t dim = order == MPI_ORDER_C ? dims - 1 - k : k;  // the fastest first
        index[dim] = static_cast<int>(rest % sizes[dim]);
        rest /= sizes[dim];
      }
      if (mine(index)) expansion.add(child, i * child.extent);
    }
    return expansion.take();
  }

  std::optional<Draft> subarray(const Draft& child) {
    const int dims = between(1, 4), order = chance(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
    Ints sizes, subsizes, starts;
    for (int i = 0; i < dims; ++i) {
      sizes.push_back(between(1, 5));
      subsizes.push_back(chance(3) ? sizes.back() : between(1, sizes.back()));
      starts.push_back(between(0, sizes.back() - subsizes.back()));
    }
    std::optional<Map> map = array_map(child, sizes, order, [&](const Ints& index) {
      for (std::size_t i = 0; i < index.size(); ++i)
        if (index[i] < starts[i] || index[i] >= starts[i] + subsizes[i]) return false;
      return true;
    });
    if (!map) return std::nullopt;
    const MPI_Datatype type =
        construct(GPUDT_FORMS(PMPI_Type_create_subarray), dims, sizes, subsizes, starts, order, child.type);
    const char* name = order == MPI_ORDER_C ? "subarray_c" : "subarray_fortran";
    return accept(type, call_text(name, child.text, sizes, subsizes, starts), std::move(*map));
  }

  std::optional<Draft> darray(const Draft& child) {
    if (child.map.empty()) return std::nullopt;  // Open MPI refuses a type without bytes here
    const int dims = between(1, 3), order = chance(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
    Ints sizes, distributions, arguments, grid, blocks;
    int processes = 1;
    for (int i = 0; i < dims; ++i) {
      const int size = between(1, 8);
      const int distribution = below(3);
      const int across = distribution == 0 ? 1 : between(1, 3);
      const bool standard = chance(2);
      const int even = (size + across - 1) / across;  // the least legal block
      int argument = MPI_DISTRIBUTE_DFLT_DARG, block = size;
      if (distribution == 1) {
        block = standard ? even : even + below(3);
        distributions.push_back(MPI_DISTRIBUTE_BLOCK);
      } else if (distribution == 2) {
        block = standard ? 1 : between(1, 4);
        distributions.push_back(MPI_DISTRIBUTE_CYCLIC);
      } else {
        distributions.push_back(MPI_DISTRIBUTE_NONE);
      }
      if (distribution != 0 && !standard) argument = block;
      sizes.push_back(size);
      grid.push_back(across);
      arguments.push_back(argument);
      blocks.push_back(block);
      processes *= across;
    }
    const int rank = below(processes);
    Ints coordinates(static_cast<std::size_t>(dims));
    for (int i = dims, rest = rank; i-- > 0;) {  // row-major: the last dimension varies fastest
      const auto dim = static_cast<std::size_t>(i);
      coordinates[dim] = rest % grid[dim];
      rest /= grid[dim];
    }
    std::optional<Map> map = array_map(child, sizes, order, [&](const Ints& index) {
      for (std::size_t i = 0; i < index.size(); ++i)
        if (index[i] / blocks[i] % grid[i] != coordinates[i]) return false;
      return true;
    });
    if (!map) return std::nullopt;
    const MPI_Datatype type = construct(GPUDT_FORMS(PMPI_Type_create_darray), processes, rank, dims, sizes,
                                        Ints32{distributions}, Ints32{arguments}, Ints32{grid}, order, child.type);
    const char* name = order == MPI_ORDER_C ? "darray_c" : "darray_fortran";
    return accept(type, call_text(name, child.text, processes, rank, sizes, distributions, arguments, grid),
                  std::move(*map));
  }

  std::optional<Draft> resized(const Draft& child) {
    const Bounds bounds = bounds_of(child.map);
    const MPI_Aint lb = chance(2) ? bounds.low : between(-40, 40);
    MPI_Aint extent = bounds.high - bounds.low + gap();
    if (!limits_.unpack_safe && chance(4)) extent = between(chance(4) ? -40 : 0, std::max<MPI_Aint>(extent, 1));
    const MPI_Datatype type = construct(GPUDT_FORMS(PMPI_Type_create_resized), child.type, lb, extent);
    return accept(type, call_text("resized", child.text, lb, extent), Map(child.map));
  }

  std::mt19937_64& random_;
  const RandomTypeLimits& limits_;
};

/// Whether bytes of a message of any count coincide.
bool overlapping(const Draft& draft) {
  if (draft.map.empty()) return false;
  const Bounds bounds = bounds_of(draft.map);
  const std::int64_t step = std::abs(draft.extent);
  if (step == 0) return true;
  const std::int64_t involved = (bounds.high - bounds.low + step - 1) / step;
  if (involved > most_interleaved) return true;
  Map map;
  for (std::int64_t i = 0; i < involved; ++i)
    for (const MapRun& run : draft.map) map.push_back({run.displ + i * draft.extent, run.length});
  return self_overlapping(std::move(map));
}

}  // namespace

RandomType::RandomType(std::mt19937_64& random, const RandomTypeLimits& limits) {
  Generator generator(random, limits);
  Draft draft = generator.make(limits.depth);
  if (limits.unpack_safe && overlapping(draft)) draft = generator.apart(std::move(draft));
  overlaps_ = overlapping(draft);
  if (draft.owned) PMPI_Type_commit(&draft.type);
  const Bounds bounds = bounds_of(draft.map);
  low_ = bounds.low;
  high_ = bounds.high;
  lb_ = draft.lb;
  extent_ = draft.extent;
  for (const MapRun& run : draft.map) size_ += run.length;
  handle_ = draft.type;
  owned_ = std::exchange(draft.owned, false);
  description_ = std::move(draft.text);
  mpi_bug_ = draft.mpi_bug;
  map_ = std::move(draft.map);
}

RandomType::~RandomType() {
  if (owned_) PMPI_Type_free(&handle_);
}

RandomType::RandomType(RandomType&& other) noexcept
    : handle_(other.handle_),
      owned_(std::exchange(other.owned_, false)),
      description_(std::move(other.description_)),
      map_(std::move(other.map_)),
      size_(other.size_),
      lb_(other.lb_),
      extent_(other.extent_),
      low_(other.low_),
      high_(other.high_),
      overlaps_(other.overlaps_),
      mpi_bug_(other.mpi_bug_) {}

std::int64_t RandomType::low(std::int64_t count) const {
  return count == 0 || size_ == 0 ? 0 : low_ + std::min<std::int64_t>(0, (count - 1) * extent_);
}

std::int64_t RandomType::high(std::int64_t count) const {
  return count == 0 || size_ == 0 ? 0 : high_ + std::max<std::int64_t>(0, (count - 1) * extent_);
}

}  // namespace gpudt::test
