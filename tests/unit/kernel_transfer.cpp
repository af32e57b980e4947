// Packs and unpacks on the device that is there: random datatypes and chosen ones, to mapped host memory and to device
// memory, any range, any alignment. The oracle is MPI_Pack on a host copy; every byte around the packed data and of
// the user's buffer, gaps and guards included, is compared.
//
// GPUDT_TEST_TREES is the number of random datatypes; GPUDT_TEST_LARGE=1 adds messages of more than 2 GiB.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "device/choice/chooser.hpp"
#include "tests/support/device_bench.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/random_type.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::test;
using datatype::Layout;
using device::Direction;

struct MessageRange {
  std::int64_t begin, end;
};

/// What stays from check to check: memory, which costs much to allocate.
struct KernelBench {
  Memory user{Place::device}, mapped{Place::mapped}, device{Place::device};
  Memory& packed(Place side) { return side == Place::mapped ? mapped : device; }
};

/// Moves a range of a message and compares everything that could have been touched.
void check_range(KernelBench& bench, Random& random, const Message& message, Direction direction, Place side,
                 MessageRange range, std::int64_t user_shift, std::int64_t packed_shift) {
  const std::int64_t total = message.count * message.layout->size(), bytes = range.end - range.begin;
  // Images of both sides, guards included. Buffer addresses are multiples of 256 before the shift.
  const std::int64_t lead = guard + user_shift;
  Bytes user = random.bytes(lead + message.high - message.low + guard);
  Bytes packed = random.bytes(guard + packed_shift + bytes + guard);
  char* const user_image = user.data() + lead - message.low;
  char* const packed_image = packed.data() + guard + packed_shift;
  bench.user.write(user);
  bench.packed(side).write(packed);

  Bytes stream(static_cast<std::size_t>(total) + 1);
  int position = 0;
  PMPI_Pack(user_image, message.count, message.type, stream.data(), static_cast<int>(total), &position, MPI_COMM_SELF);
  REQUIRE(position == total);
  char* const user_address = bench.user.reserve(0) + lead - message.low;
  char* const packed_address = bench.packed(side).reserve(0) + guard + packed_shift;
  const int ordinal = device::classify(bench.user.reserve(0)).ordinal;
  device::start(direction, ordinal, *message.layout, message.count, user_address, range.begin, range.end,
                packed_address, device::classify(packed_address).kind)
      .wait();

  if (direction == Direction::pack) {
    std::copy_n(stream.data() + range.begin, bytes, packed_image);
  } else {
    std::copy_n(packed_image, bytes, stream.data() + range.begin);
    position = 0;
    PMPI_Unpack(stream.data(), static_cast<int>(total), &position, user_image, message.count, message.type,
                MPI_COMM_SELF);
  }
  CHECK(difference(bench.user.read(user.size()), user) == -1);
  CHECK(difference(bench.packed(side).read(packed.size()), packed) == -1);
}

/// Both directions and both kinds of memory: the whole message, then ranges of it, aligned and not.
void check_transfers(KernelBench& bench, Random& random, const Message& message, bool may_unpack, int ranges) {
  const std::int64_t total = message.count * message.layout->size();
  if (total == 0) return;
  for (const Direction direction : {Direction::pack, Direction::unpack}) {
    if (direction == Direction::unpack && !may_unpack) continue;
    for (const Place side : {Place::mapped, Place::device}) {
      for (int i = 0; i < ranges; ++i) {
        const bool whole = i == 0;
        const std::int64_t begin = whole ? 0 : random(0, total - 1);
        const MessageRange range{begin, whole ? total : random(begin + 1, total)};
        const std::int64_t user_shift = i % 2 == 0 ? 0 : random(0, most_misaligned);
        const std::int64_t packed_shift = i < 2 ? 0 : random(0, most_misaligned);
        CAPTURE(message.count, message.layout->describe(), direction == Direction::pack, side == Place::mapped,
                range.begin, range.end, user_shift, packed_shift);
        check_range(bench, random, message, direction, side, range, user_shift, packed_shift);
      }
    }
  }
}

void check_type(KernelBench& bench, Random& random, OwnedType type, int count, bool may_unpack = true) {
  type.commit();
  const datatype::LayoutRef layout = datatype::decode(type);
  check_transfers(bench, random, message_of(type, *layout, count), may_unpack, 4);
}

TEST_CASE("random datatypes on the device", "[kernel][device]") {
  const Device device(GENERATE(device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  KernelBench bench;
  const std::int64_t trees = unit_trees(150);
  for (std::int64_t tree = 0; tree < trees; ++tree) {
    Random random(static_cast<std::uint64_t>(tree));
    RandomTypeLimits limits;
    limits.unpack_safe = random(0, 3) > 0;
    const RandomType type(random.engine(), limits);
    INFO("tree " << tree << ": " << type.description());
    const datatype::LayoutRef layout =
        random(0, 1) == 0 ? datatype::decode(type.handle()) : datatype::decode(type.handle(), no_lists);
    // Few elements, and enough of them for several thread blocks.
    const std::int64_t most = std::int64_t{1} << 18, size = std::max<std::int64_t>(type.size(), 1);
    const std::int64_t span = std::max<std::int64_t>(std::abs(type.extent()), 1);
    const std::int64_t many = std::clamp<std::int64_t>(std::min(most / size, 4 * most / span), 1, 20000);
    const int count =
        static_cast<int>(random(0, 2) == 0 ? random(1, many) : random(1, std::min<std::int64_t>(many, 7)));
    check_transfers(bench, random, message_of(type.handle(), *layout, count), !type.overlaps(), 3);
  }
}

TEST_CASE("irregular messages of few runs by the copy engine", "[kernel][device]") {
  const Device device(device::Way::copy);
  if (!device.there()) return;
  KernelBench bench;
  std::int64_t irregular = 0;
  const std::int64_t trees = unit_trees(600);
  for (std::int64_t tree = 0; tree < trees; ++tree) {
    Random random(static_cast<std::uint64_t>(tree));
    RandomTypeLimits limits;
    limits.unpack_safe = true;
    limits.max_runs = 30;
    const RandomType type(random.engine(), limits);
    const datatype::LayoutRef layout = datatype::decode(type.handle());
    const auto count = static_cast<int>(random(1, 3));
    const Message message = message_of(type.handle(), *layout, count);
    const datatype::ShapeKind kind = layout->shape(count).kind;
    if (kind != datatype::ShapeKind::list && kind != datatype::ShapeKind::general) continue;
    INFO("tree " << tree << ": " << type.description());
    const bool few = layout->runs() * count <= device::CopyPlan::most_together;
    const std::int64_t total = layout->size() * count, begin = random(0, total - 1);
    for (const Direction direction : {Direction::pack, Direction::unpack})
      for (const MessageRange range : {MessageRange{0, total}, MessageRange{begin, random(begin + 1, total)}}) {
        CAPTURE(count, layout->describe(), direction == Direction::pack, range.begin, range.end);
        const bool spanned = direction == Direction::pack && range.begin == 0 && range.end == total;
        const bool copied = few || spanned || direction == Direction::unpack;
        const auto before = device::movements();
        check_range(bench, random, message, direction, Place::mapped, range, random(0, most_misaligned),
                    random(0, most_misaligned));
        CHECK(device::movements().copies - before.copies == (copied ? 1 : 0));
        CHECK(device::movements().kernels - before.kernels == (copied ? 0 : 1));
      }
    const auto before = device::movements();
    check_range(bench, random, message, Direction::pack, Place::device, {0, total}, 0, 0);
    CHECK(device::movements().kernels - before.kernels == 1);  // within the GPU
    if (few) ++irregular;
  }
  CHECK((irregular > trees / 20 || trees < 600));
}

TEST_CASE("every word width and run length on the device", "[kernel][device]") {
  const Device device(GENERATE(device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  KernelBench bench;
  Random random(1);
  for (const int width : {1, 2, 4, 8, 16}) {
    check_type(bench, random, vector(10, 1, 4, contiguous(width, MPI_BYTE)), 1);
    check_type(bench, random, vector(30000 / width, 1, 4, contiguous(width, MPI_BYTE)), 1);
  }
  for (int run = 1; run <= 40; ++run) {
    check_type(bench, random, hvector(20000 / run, run, run + 1 + run % 9, MPI_BYTE), 1);
    check_type(bench, random, hvector(2000 / run, run, -(run + 8), MPI_BYTE), 2);
  }
}

TEST_CASE("structures of 17 bytes in 24 on the device", "[kernel][device]") {
  const Device device(GENERATE(device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  KernelBench bench;
  Random random(2);
  for (const int count : {1, 60, 300, 4000}) {
    check_type(bench, random, resized(0, 24, structure({1, 2, 1}, {0, 8, 16}, {MPI_DOUBLE, MPI_INT, MPI_CHAR})), count);
    check_type(bench, random, structure({3, 1, 2}, {0, 6, 40}, {MPI_CHAR, MPI_SHORT, MPI_DOUBLE}), count);
  }
}

TEST_CASE("many dimensions on the device", "[kernel][device]") {
  const Device device(GENERATE(device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  KernelBench bench;
  Random random(3);
  for (const int width : {1, 4, 8, 16}) {
    OwnedType type = contiguous(width, MPI_BYTE);
    MPI_Aint span = width;
    for (int d = 0; d < 9; ++d) {  // two more than the strided form holds
      const int count = d < 4 ? 3 : 2;
      type = hvector(count, 1, d % 3 == 1 ? -(span + 16) : span + 16, type);
      span = (span + 16) * count;
      if (d % 2 == 0 || d >= 6) {
        OwnedType copy = make_type(MPI_Type_dup, static_cast<MPI_Datatype>(type));
        check_type(bench, random, std::move(copy), 1);
      }
    }
  }
  check_type(bench, random, subarray({20, 24, 30, 36}, {9, 11, 13, 16}, {3, 5, 7, 8}, MPI_ORDER_C, MPI_DOUBLE), 1);
  check_type(bench, random, subarray({50, 60, 70}, {17, 13, 21}, {3, 5, 7}, MPI_ORDER_FORTRAN, MPI_CHAR), 1);
}

/// Blocks of the given lengths with random gaps.
OwnedType listed(Random& random, const std::vector<int>& lengths, int widest_gap, MPI_Datatype unit) {
  std::vector<int> displs;
  int at = 0;
  for (const int length : lengths) {
    displs.push_back(at);
    at += length + static_cast<int>(random(1, widest_gap));
  }
  return indexed(lengths, displs, unit);
}

TEST_CASE("index lists on the device", "[kernel][device]") {
  const Device device(GENERATE(device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  KernelBench bench;
  Random random(4);
  for (MPI_Datatype unit : {MPI_CHAR, MPI_SHORT, MPI_FLOAT, MPI_DOUBLE}) {
    for (const int count : {3, 500, 9000}) {
      std::vector<int> equal(static_cast<std::size_t>(count), 3), unlike(equal), long_ones(equal);
      for (int& length : unlike) length = static_cast<int>(random(0, 3) == 0 ? 0 : random(1, 12));
      // Mostly empty, some of tens of kilobytes: neither may hold the others up.
      for (int& length : long_ones)
        length = static_cast<int>(random(0, count / 3) == 0 ? random(2000, 9000) : random(0, 1));
      check_type(bench, random, listed(random, equal, 5, unit), 1);
      check_type(bench, random, listed(random, unlike, 5, unit), 1);
      check_type(bench, random, listed(random, long_ones, 3, unit), 1);
      if (count < 9000) {
        check_type(bench, random, listed(random, unlike, 5, unit), 5);
        check_type(bench, random, vector(4, 1, 2, listed(random, equal, 5, unit)), 3);
      }
    }
  }
}

TEST_CASE("offsets beyond 4 GiB on the device", "[kernel][device]") {
  const Device device(GENERATE(device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  constexpr std::int64_t stride = std::int64_t{1} << 28, blocks = 20, run = 1000;
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<std::size_t>(stride * blocks)) != cudaSuccess) {
    cudaGetLastError();
    WARN("the device has no 5 GiB: offsets that large are not tested here");
    return;
  }
  char* const user = static_cast<char*>(memory);
  Random random(5);
  const OwnedType type = std::move(hvector(blocks, run, stride, MPI_BYTE).commit());
  const datatype::LayoutRef layout = datatype::decode(type);
  const Bytes source = random.bytes(blocks * run), other = random.bytes(blocks * run);
  for (std::int64_t i = 0; i < blocks; ++i)
    cuda_check(cudaMemcpy(user + i * stride, source.data() + i * run, run, cudaMemcpyDefault));
  settle();
  Memory packed(Place::mapped);
  packed.write(other);
  const int ordinal = device::classify(user).ordinal;
  device::start(Direction::pack, ordinal, *layout, 1, user, 0, blocks * run, packed.reserve(0),
                device::MemoryKind::pinned)
      .wait();
  CHECK(difference(packed.read(source.size()), source) == -1);
  packed.write(other);
  device::start(Direction::unpack, ordinal, *layout, 1, user, 0, blocks * run, packed.reserve(0),
                device::MemoryKind::pinned)
      .wait();
  Bytes arrived(source.size());
  for (std::int64_t i = 0; i < blocks; ++i)
    cuda_check(cudaMemcpy(arrived.data() + i * run, user + i * stride, run, cudaMemcpyDefault));
  CHECK(difference(arrived, other) == -1);
  cuda_check(cudaFree(memory));
}

/// 64 MiB of words that tell where they are.
Bytes numbered(std::int64_t first, std::int64_t bytes) {
  Bytes made(static_cast<std::size_t>(bytes));
  for (std::int64_t i = 0; i < bytes; i += 8) {
    const auto value = static_cast<std::uint64_t>(first + i) * 0x9e3779b97f4a7c15u;
    std::memcpy(made.data() + i, &value, 8);
  }
  return made;
}

/// Packs `count` runs of `run` bytes at stride 2 * run to device memory and back to another buffer.
void check_large(std::int64_t run, std::int64_t count, std::int64_t user_shift) {
  constexpr std::int64_t chunk = std::int64_t{1} << 26;
  const std::int64_t span = 2 * run * count, total = run * count;
  CAPTURE(run, count, user_shift);
  Memory user(Place::device), packed(Place::device);
  for (Memory* memory : {&user, &packed}) memory->reserve((memory == &user ? span : total) / 2 + 64);
  char* const from = user.reserve(0) + user_shift;
  for (std::int64_t at = 0; at < span; at += chunk) {
    const std::int64_t bytes = std::min(chunk, span - at);
    cuda_check(cudaMemcpy(from + at, numbered(at, bytes).data(), static_cast<std::size_t>(bytes), cudaMemcpyDefault));
  }
  settle();
  const OwnedType type = std::move(hvector(static_cast<int>(count), static_cast<int>(run), 2 * run, MPI_BYTE).commit());
  const datatype::LayoutRef layout = datatype::decode(type);
  const int ordinal = device::classify(from).ordinal;
  device::start(Direction::pack, ordinal, *layout, 1, from, 0, total, packed.reserve(0), device::MemoryKind::device)
      .wait();
  cuda_check(cudaMemset(from, 0, static_cast<std::size_t>(span)));
  settle();
  device::start(Direction::unpack, ordinal, *layout, 1, from, 0, total, packed.reserve(0), device::MemoryKind::device)
      .wait();
  std::int64_t wrong = 0;
  Bytes piece(static_cast<std::size_t>(chunk));
  for (std::int64_t at = 0; at < span; at += chunk) {
    const std::int64_t bytes = std::min(chunk, span - at);
    cuda_check(cudaMemcpy(piece.data(), from + at, static_cast<std::size_t>(bytes), cudaMemcpyDefault));
    const Bytes expected = numbered(at, bytes);
    for (std::int64_t i = 0; i < bytes; ++i) {
      const bool data = (at + i) / run % 2 == 0;
      wrong += piece[static_cast<std::size_t>(i)] != (data ? expected[static_cast<std::size_t>(i)] : 0);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("many parts of sectors on the device", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  for (const std::int64_t run : {4, 8, 12, 16, 20, 24}) check_large(run, (std::int64_t{1} << 18) + 3, 0);
}

TEST_CASE("messages of more than 2 GiB on the device", "[kernel][device]") {
  const char* wanted = std::getenv("GPUDT_TEST_LARGE");
  if (!wanted || std::string(wanted) != "1") return;
  const Device device(GENERATE(device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  check_large(4096, (std::int64_t{1} << 19) + 1024, 0);
  check_large(40, std::int64_t{55} << 20, 0);
  check_large(40, std::int64_t{55} << 20, 2);
}

}  // namespace
