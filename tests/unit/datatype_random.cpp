// Random datatypes: layouts, shapes and the host reference against MPI_Pack, MPI_Unpack and the expanded type map.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "datatype/decode.hpp"
#include "datatype/reference.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_type.hpp"
#include "tests/support/unit.hpp"

using namespace gpudt::datatype;
using namespace gpudt::test;

namespace {

using Bytes = std::vector<char>;
using Map = std::vector<MapRun>;

constexpr std::int64_t counts[] = {0, 1, 2, 7};
constexpr ListLimits no_lists{0, 1, 0, 0};
constexpr int ranges_per_message = 3;
constexpr std::int64_t guard = 64;

/// Bytes to pack from: the same for all trees, so that they need not be made again for each.
const Bytes& source() {
  static const Bytes bytes = [] {
    Bytes made(std::size_t(1) << 18);
    std::mt19937_64 random(1);
    for (char& byte : made) byte = static_cast<char>(random());
    return made;
  }();
  return bytes;
}

const char* source_middle() {
  return source().data() + source().size() / 2;
}

void join(Map& map, std::int64_t displ, std::int64_t length) {
  if (!map.empty() && map.back().displ + map.back().length == displ)
    map.back().length += length;
  else
    map.push_back({displ, length});
}

/// The type map of a message, by the definition of count and extent.
Map message_map(const RandomType& type, std::int64_t count) {
  Map map;
  for (std::int64_t i = 0; i < count; ++i)
    for (const MapRun& run : type.map()) join(map, run.displ + i * type.extent(), run.length);
  return map;
}

/// The runs that a shape describes, read from its documentation; `aligned` tells whether shape.align keeps its word.
Map shape_map(const Shape& shape, const Program& program, bool& aligned) {
  Map map;
  std::int64_t index[max_dims] = {};
  auto check = [&](std::int64_t value) { aligned = aligned && value % shape.align == 0; };
  auto add = [&](std::int64_t displ, std::int64_t length) {
    check(displ);
    check(length);
    join(map, displ, length);
  };
  for (bool more = shape.kind != ShapeKind::empty; more;) {
    std::int64_t offset = shape.offset;
    for (int i = 0; i < shape.ndims; ++i) offset += index[i] * shape.dims[i].stride;
    if (shape.kind == ShapeKind::list) {
      const std::int64_t* displs = program.lookaside + shape.list_displs;
      const std::int64_t* prefix = program.lookaside + shape.list_prefix;
      for (std::int64_t i = 0; i < shape.list_count; ++i)
        add(offset + displs[i], shape.run > 0 ? shape.run : prefix[i + 1] - prefix[i]);
    } else {
      add(offset, shape.run);
    }
    more = false;
    for (int i = shape.ndims; i-- > 0 && !more;) {
      more = ++index[i] < shape.dims[i].count;
      if (!more) index[i] = 0;
    }
  }
  return map;
}

/// The same for general shapes, by locate().
Map located_map(const Layout& layout, const Shape& shape, bool& aligned) {
  Map map;
  const std::int64_t size = shape.total / shape.count;
  for (std::int64_t pos = 0; pos < shape.total;) {
    const std::int64_t element = pos / size;
    const Place place = locate(layout.program(), shape.root, pos - element * size);
    const std::int64_t displ = shape.offset + element * shape.extent + place.offset;
    aligned = aligned && displ % shape.align == 0 && place.length % shape.align == 0;
    join(map, displ, place.length);
    pos += place.length;
  }
  return map;
}

bool same(const Map& a, const Map& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const MapRun& x, const MapRun& y) { return x.displ == y.displ && x.length == y.length; });
}

Bytes packed_by_map(const Map& map) {
  Bytes packed;
  for (const MapRun& run : map)
    packed.insert(packed.end(), source_middle() + run.displ, source_middle() + run.displ + run.length);
  return packed;
}

Bytes packed_by_mpi(const RandomType& type, std::int64_t count) {
  const std::int64_t total = count * type.size();
  Bytes packed(static_cast<std::size_t>(total) + 1);  // never a null pointer, which MPI refuses
  int position = 0;
  PMPI_Pack(source_middle(), static_cast<int>(count), type.handle(), packed.data(), static_cast<int>(total), &position,
            MPI_COMM_SELF);
  packed.resize(static_cast<std::size_t>(position));
  return packed;
}

Bytes packed_by_us(const Layout& layout, std::int64_t count, std::int64_t begin, std::int64_t end) {
  Bytes packed(static_cast<std::size_t>(end - begin));
  pack(layout, count, source_middle(), begin, end, packed.data());
  return packed;
}

struct Range {
  std::int64_t begin, end;
};

Range random_range(std::mt19937_64& random, std::int64_t total) {
  const auto limit = static_cast<std::uint64_t>(total) + 1;
  const auto a = static_cast<std::int64_t>(random() % limit), b = static_cast<std::int64_t>(random() % limit);
  return {std::min(a, b), std::max(a, b)};
}

/// One tree under test: each check tells what is wrong, or nothing. Plain strings rather than assertions, since
/// Catch2's macros would take most of the time.
class Subject {
 public:
  Subject(std::mt19937_64& random, const RandomTypeLimits& limits)
      : random_(random),
        type_(random, limits),
        info_(type_info(type_.handle())),
        tree_(decode(type_.handle(), no_lists)) {}

  std::string description() const {
    return type_.description() + ": " + (info_ ? info_->layout().describe() : "no information") + " / " +
           tree_->describe();
  }

  std::string problem() {
    if (!info_) return "type_info() found nothing";
    std::string found = attributes();
    for (const std::int64_t count : counts) {
      if (found.empty()) found = message(info_->layout(), count);
      if (found.empty()) found = message(*tree_, count);
      if (!found.empty()) return found + ", count " + std::to_string(count);
    }
    return found;
  }

 private:
  std::string attributes() const {
    const Layout& layout = info_->layout();
    if (layout.size() != type_.size()) return "size";
    if (layout.extent() != type_.extent() || layout.lb() != type_.lb()) return "extent";
    if (layout.true_lb() != type_.low(1) || layout.true_ub() != type_.high(1)) return "true bounds";
    int twin_size = 0;
    if (type_.size() > 0) PMPI_Type_size(info_->packed_type(), &twin_size);
    if (twin_size != type_.size()) return "packed_type";
    return {};
  }

  std::string message(const Layout& layout, std::int64_t count) {
    const Shape shape = layout.shape(count);
    const Map expected = message_map(type_, count);
    const std::int64_t total = count * type_.size();
    if (shape.total != total) return "total";
    if ((shape.kind == ShapeKind::empty) != (total == 0)) return "empty";
    bool aligned = true;
    const Map described = shape.kind == ShapeKind::general ? located_map(layout, shape, aligned)
                                                           : shape_map(shape, layout.program(), aligned);
    if (!same(described, expected)) return std::string("shape ") + shape_kind_name(shape.kind);
    if (!aligned) return "alignment";
    if (shape.kind == ShapeKind::contiguous && expected.size() != 1) return "not contiguous";
    if (expected.size() == 1 && shape.kind != ShapeKind::contiguous && &layout != tree_.get())
      return "contiguous, but not found to be";

    const Bytes stream = packed_by_map(expected);
    if (packed_by_us(layout, count, 0, total) != stream) return "pack";
    if (type_.mpi_bug() == nullptr && packed_by_mpi(type_, count) != stream) return "MPI_Pack";
    for (int i = 0; i < ranges_per_message; ++i) {
      const Range range = random_range(random_, total);
      if (packed_by_us(layout, count, range.begin, range.end) !=
          Bytes(stream.begin() + range.begin, stream.begin() + range.end))
        return "pack of " + std::to_string(range.begin) + " to " + std::to_string(range.end);
    }
    return type_.overlaps() ? std::string() : unpack_message(layout, count, stream);
  }

  std::string unpack_message(const Layout& layout, std::int64_t count, const Bytes& stream) {
    const std::int64_t low = type_.low(count) - guard, high = type_.high(count) + guard;
    const Bytes poison(static_cast<std::size_t>(high - low), static_cast<char>(random_()));
    const auto total = static_cast<std::int64_t>(stream.size());
    if (total == 0) return {};
    const Range middle = random_range(random_, total);
    auto unpacked = [&](Bytes image, std::initializer_list<Range> ranges) {
      for (const Range& range : ranges)
        unpack(layout, count, image.data() - low, range.begin, range.end, stream.data() + range.begin);
      return image;
    };
    if (unpacked(poison, {middle}) != expected_image(poison, count, stream, low, middle)) return "unpack of a range";
    const Bytes expected = expected_image(poison, count, stream, low, {0, total});
    if (unpacked(poison, {{middle.end, total}, middle, {0, middle.begin}}) != expected) return "unpack";
    if (type_.mpi_bug() != nullptr) return {};
    Bytes image = poison;
    int position = 0;
    PMPI_Unpack(stream.data(), static_cast<int>(total), &position, image.data() - low, static_cast<int>(count),
                type_.handle(), MPI_COMM_SELF);
    return image == expected ? "" : "MPI_Unpack";
  }

  /// The image, whose first byte is `low` from the user's address, after its packed bytes in `range` have arrived.
  Bytes expected_image(Bytes image, std::int64_t count, const Bytes& stream, std::int64_t low,
                       const Range& range) const {
    std::int64_t pos = 0;
    for (const MapRun& run : message_map(type_, count)) {
      const std::int64_t begin = std::max(pos, range.begin), end = std::min(pos + run.length, range.end);
      if (begin < end)
        std::copy(stream.begin() + begin, stream.begin() + end, image.begin() + (run.displ + begin - pos - low));
      pos += run.length;
    }
    return image;
  }

  std::mt19937_64& random_;
  RandomType type_;
  TypeInfoRef info_;
  LayoutRef tree_;  ///< not flattened, so that the general traversal meets small trees too
};

void run_trees(const RandomTypeLimits& limits, std::int64_t trees, std::uint64_t stream) {
  for (std::int64_t i = 0; i < trees; ++i) {
    const std::uint64_t index = static_cast<std::uint64_t>(i) * 4 + stream;
    std::mt19937_64 random = unit_random(index);
    Subject subject(random, limits);
    const std::string problem = subject.problem();
    if (problem.empty()) continue;
    FAIL_CHECK("GPUDT_TEST_SEED=" << unit_seed() << " tree " << i << ": " << problem << "\n" << subject.description());
  }
  SUCCEED(trees << " trees");
}

}  // namespace

TEST_CASE("random datatypes are packed as MPI packs them", "[datatype][random]") {
  run_trees({}, unit_trees(4000), 0);
}

TEST_CASE("random datatypes without overlaps are unpacked as MPI unpacks them", "[datatype][random]") {
  RandomTypeLimits limits;
  limits.unpack_safe = true;
  run_trees(limits, unit_trees(4000), 1);
}

TEST_CASE("random datatypes that Open MPI gets wrong", "[datatype][random]") {
  RandomTypeLimits limits;
  limits.mpi_bugs = true;
  run_trees(limits, unit_trees(4000) / 4, 3);
}

TEST_CASE("random datatypes with many runs", "[datatype][random]") {
  RandomTypeLimits limits;
  limits.max_span = 16000;
  limits.max_runs = 8000;
  limits.max_blocks = 40;
  run_trees(limits, unit_trees(4000) / 8, 2);
}
