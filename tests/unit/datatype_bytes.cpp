// Layouts as bytes for another process.
#include <algorithm>
#include <vector>

#include "datatype/decode.hpp"
#include "datatype/reference.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_type.hpp"
#include "tests/support/unit.hpp"

using namespace gpudt::datatype;
using namespace gpudt::test;

namespace {

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

bool same_shape(const Shape& a, const Shape& b) {
  return same(std::as_bytes(std::span(&a, 1)), std::as_bytes(std::span(&b, 1)));
}

std::vector<char> packed(const Layout& layout, std::int64_t count, const char* from) {
  std::vector<char> bytes(static_cast<std::size_t>(count * layout.size()));
  pack(layout, count, from, 0, count * layout.size(), bytes.data());
  return bytes;
}

}  // namespace

TEST_CASE("a layout made of another's bytes is its equal", "[datatype]") {
  std::mt19937_64 random(7);
  std::vector<char> memory(std::size_t(1) << 17);
  for (char& byte : memory) byte = static_cast<char>(random());
  for (int i = 0; i < 300; ++i) {
    const RandomType type(random, {});
    INFO(type.description());
    const LayoutRef original = decode(type.handle());
    const std::vector<std::byte> bytes = original->to_bytes();
    const LayoutRef copy = Layout::from_bytes(bytes);
    REQUIRE(copy != nullptr);
    CHECK(copy->to_bytes() == bytes);
    CHECK(copy->extent() == original->extent());
    CHECK(copy->lb() == original->lb());
    CHECK(copy->true_lb() == original->true_lb());
    CHECK(copy->true_ub() == original->true_ub());
    CHECK(copy->runs() == original->runs());
    CHECK(copy->depth() == original->depth());
    CHECK(same(copy->serialised(), original->serialised()));
    for (const std::int64_t count : {0, 1, 3}) {
      CHECK(same_shape(copy->shape(count), original->shape(count)));
      const char* const middle = memory.data() + memory.size() / 2;
      CHECK(packed(*copy, count, middle) == packed(*original, count, middle));
    }
  }
}

TEST_CASE("bytes that are no layout are refused", "[datatype]") {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_vector(5, 2, 7, MPI_SHORT, &type);
  std::vector<std::byte> bytes = decode(type)->to_bytes();
  MPI_Type_free(&type);
  CHECK(Layout::from_bytes({}) == nullptr);
  CHECK(Layout::from_bytes(std::span(bytes).first(bytes.size() - 8)) == nullptr);
  CHECK(Layout::from_bytes(std::span(bytes).first(bytes.size() - 3)) == nullptr);
  CHECK(Layout::from_bytes(std::span(bytes).first(16)) == nullptr);
  const LayoutRef whole = Layout::from_bytes(bytes);
  REQUIRE(whole != nullptr);
  bytes[bytes.size() - whole->serialised().size()] ^= std::byte(1);  // the magic number
  CHECK(Layout::from_bytes(bytes) == nullptr);
}
