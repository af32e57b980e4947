// How messages are cut into the commands of a proxy (initiated/proxy_runs.hpp): for random layouts, ranges and numbers
// of threads the lists fit into a slot, and the runs are where MPI_Pack finds the bytes.
#include <mpi.h>

#include <algorithm>
#include <random>
#include <vector>

#include "datatype/decode.hpp"
#include "device/kernels/kernel_host.hpp"
#include "initiated/proxy_runs.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_type.hpp"
#include "tests/support/unit.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::test;
using namespace gpudt::initiated;

constexpr auto run_bytes = static_cast<std::int64_t>(sizeof(ProxyRun));

/// The runs of a piece, by all threads.
std::vector<ProxyRun> runs_of(const KernelLayout& layout, std::int64_t end, std::int64_t offset, const Piece& piece,
                              std::int64_t threads) {
  std::vector<ProxyRun> runs;
  for (std::int64_t thread = 0; thread < threads; ++thread)
    for_runs(SideMap{&layout, end}, offset, piece, thread, threads, [&](const ProxyRun& run) { runs.push_back(run); });
  return runs;
}

void check_message(std::mt19937_64& random) {
  const auto up_to = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(0, most)(random); };
  const RandomType type(random, {.max_span = 4096, .max_runs = 500, .unpack_safe = true});
  const int count = static_cast<int>(1 + up_to(200'000 / std::max<std::int64_t>(type.size(), 1)) % 500);
  const datatype::LayoutRef layout = datatype::decode(type.handle());
  const KernelLayout kernel = make_kernel_layout(*layout, count, layout->program());
  const std::int64_t size = kernel.total;
  if (size == 0 || is_contiguous(&kernel)) return;
  CAPTURE(type.description(), count, size, kernel.align);

  const std::int64_t lead = -std::min<std::int64_t>(kernel.low, 0);
  std::vector<char> memory(static_cast<std::size_t>(lead + std::max<std::int64_t>(kernel.high, 0)));
  for (char& byte : memory) byte = static_cast<char>(random());
  std::vector<char> packed(static_cast<std::size_t>(size));
  int position = 0;
  PMPI_Pack(memory.data() + lead, count, type.handle(), packed.data(), static_cast<int>(size), &position,
            MPI_COMM_SELF);

  const bool put = up_to(1) == 0;
  const std::int64_t most = put ? proxy_listed_put(kernel.align) : proxy_listed_get(kernel.align);
  const std::int64_t threads = std::int64_t{1} << up_to(10), begin = up_to(size), end = begin + up_to(size - begin);
  std::vector<char> seen(packed.begin(), packed.begin() + begin);
  for (std::int64_t at = begin; at < end;) {
    const Piece piece = first_piece(at, end, most);
    const std::int64_t bytes = piece.end - piece.begin;
    const std::vector<ProxyRun> runs = runs_of(kernel, end, lead, piece, threads);
    REQUIRE(bytes <= proxy_payload);
    REQUIRE((put ? proxy_list_at(bytes) : 0) + static_cast<std::int64_t>(runs.size()) * run_bytes <= proxy_payload);
    std::vector<char> data(static_cast<std::size_t>(bytes));
    for (const ProxyRun& run : runs)
      std::copy_n(memory.begin() + run.offset, run.bytes, data.begin() + static_cast<std::ptrdiff_t>(run.packed));
    seen.insert(seen.end(), data.begin(), data.end());
    at = piece.end;
  }
  REQUIRE(std::equal(seen.begin(), seen.end(), packed.begin()));
}

TEST_CASE("a proxy's commands have room for all runs of random layouts", "[initiated]") {
  for (std::uint64_t i = 0; i < 400; ++i) {
    std::mt19937_64 random = unit_random(i);
    check_message(random);
  }
}

TEST_CASE("a proxy's commands hold a slot's data, as far as there is room for lists", "[initiated]") {
  for (const std::int64_t align : {1, 2, 4, 8, 16}) {
    CHECK(proxy_listed_put(align) + 16 + (proxy_listed_put(align) / align + 2) * run_bytes <= proxy_payload);
    CHECK((proxy_listed_get(align) / align + 2) * run_bytes <= proxy_payload);
    CHECK(proxy_listed_put(align) >= 1024);
    CHECK(proxy_listed_get(align) <= proxy_payload);
  }
}

}  // namespace
