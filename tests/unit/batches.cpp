// Several transfers by one kernel, on the device that is there: random mixtures of packs, unpacks and transfers from
// layout to layout, in one go, against MPI_Pack and MPI_Unpack on host copies; all memory that they could touch is
// compared, guards and gaps included.
//
// GPUDT_TEST_TREES is the number of random mixtures.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/device_bench.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/random_type.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::test;
using device::Direction;
using device::Transfer;

/// Memory of one kind, divided among jobs, with an image of what is to be in it.
class Area {
 public:
  explicit Area(Place place) : memory_(place) {}
  /// Where `bytes` bytes with guards around them begin, `shift` bytes from a multiple of 256.
  std::int64_t take(std::int64_t bytes, std::int64_t shift) {
    const std::int64_t begin = (end_ + guard + 255) / 256 * 256 + shift;
    end_ = begin + bytes + guard;
    return begin;
  }
  void fill(Random& random) {
    image = random.bytes(end_);
    memory_.write(image);
  }
  char* at(std::int64_t offset) { return memory_.reserve(0) + offset; }
  void check() const { CHECK(difference(memory_.read(image.size()), image) == -1); }
  void clear() { end_ = 0; }
  Bytes image;

 private:
  Memory memory_;
  std::int64_t end_ = 0;
};

/// What stays from check to check.
struct Areas {
  Area user{Place::device}, mapped{Place::mapped}, device{Place::device};
  Area& packed(Place side) { return side == Place::mapped ? mapped : device; }
  std::vector<Area*> all() { return {&user, &mapped, &device}; }
};

/// A message in the user's area.
struct Placed {
  Message message;
  std::int64_t at;  ///< of the buffer's address
  Placed(Areas& areas, Random& random, const Message& given) : message(given) {
    const std::int64_t shift = random(0, 1) == 0 ? 0 : random(0, most_misaligned);
    at = areas.user.take(message.high - message.low, shift) - message.low;
  }
  std::int64_t bytes() const { return message.count * message.layout->size(); }
  Bytes packed(const Areas& areas) const {
    Bytes stream(static_cast<std::size_t>(bytes()));
    if (stream.empty()) return stream;
    int position = 0;
    PMPI_Pack(areas.user.image.data() + at, message.count, message.type, stream.data(), static_cast<int>(stream.size()),
              &position, MPI_COMM_SELF);
    REQUIRE(position == bytes());
    return stream;
  }
  void unpack(Areas& areas, const Bytes& stream) const {
    if (stream.empty()) return;
    int position = 0;
    PMPI_Unpack(stream.data(), static_cast<int>(stream.size()), &position, areas.user.image.data() + at, message.count,
                message.type, MPI_COMM_SELF);
  }
  device::Side side(Areas& areas) const { return {message.layout, message.count, areas.user.at(at)}; }
};

struct TypedJob {
  virtual ~TypedJob() = default;
  virtual Transfer start(Areas& areas) const = 0;
  /// What it should do, to the images.
  virtual void imitate(Areas& areas) const = 0;
};

struct PackJob final : TypedJob {
  PackJob(Areas& areas, Random& random, Direction its_direction, const Message& message)
      : user(areas, random, message),
        direction(its_direction),
        place(random(0, 1) == 0 ? Place::mapped : Place::device) {
    if (random(0, 2) == 0 && user.bytes() > 0) {
      begin = random(0, user.bytes() - 1);
      end = random(begin, user.bytes());
    } else {
      end = user.bytes();
    }
    packed = areas.packed(place).take(end - begin, random(0, 1) == 0 ? 0 : random(0, most_misaligned));
  }
  Transfer start(Areas& areas) const override {
    return device::start(direction, 0, *user.message.layout, user.message.count, areas.user.at(user.at), begin, end,
                         areas.packed(place).at(packed),
                         place == Place::device ? device::MemoryKind::device : device::MemoryKind::pinned);
  }
  void imitate(Areas& areas) const override {
    Bytes stream = user.packed(areas);
    char* const image = areas.packed(place).image.data() + packed;
    if (direction == Direction::pack) {
      std::copy(stream.begin() + begin, stream.begin() + end, image);
    } else {
      std::copy_n(image, end - begin, stream.begin() + begin);
      user.unpack(areas, stream);
    }
  }
  Placed user;
  Direction direction;
  Place place;
  std::int64_t begin = 0, end = 0, packed = 0;
};

struct TransferJob final : TypedJob {
  TransferJob(Areas& areas, Random& random, const Message& its_from, const Message& its_to)
      : from(areas, random, its_from), to(areas, random, its_to), bytes(std::min(from.bytes(), to.bytes())) {
    if (bytes > 0 && random(0, 2) == 0) bytes = random(0, bytes);
  }
  Transfer start(Areas& areas) const override {
    return device::transfer(0, from.side(areas), to.side(areas), 0, bytes);
  }
  void imitate(Areas& areas) const override {
    const Bytes sent = from.packed(areas);
    Bytes stream = to.packed(areas);
    std::copy_n(sent.begin(), bytes, stream.begin());
    to.unpack(areas, stream);
  }
  Placed from, to;
  std::int64_t bytes;
};

using Jobs = std::vector<std::unique_ptr<TypedJob>>;

/// All at once, with or without being gathered; in one thread or shared out.
void check_jobs(Areas& areas, Random& random, const Jobs& jobs, bool gathered) {
  for (Area* const area : areas.all()) area->fill(random);
  std::vector<Transfer> transfers;
  {
    std::optional<device::Gathering> gathering;
    if (gathered) gathering.emplace(device::Gathering::long_bytes);
    for (const auto& job : jobs) transfers.push_back(job->start(areas));
  }
  // Asked in any order.
  std::shuffle(transfers.begin(), transfers.end(), random.engine());
  for (Transfer& transfer : transfers) transfer.wait();
  for (const auto& job : jobs) job->imitate(areas);
  for (Area* const area : areas.all()) area->check();
  for (Area* const area : areas.all()) area->clear();
}

/// A random datatype.
struct Drawn {
  RandomType type;
  datatype::LayoutRef layout;
};
/// Keeps what jobs refer to.
struct Types {
  std::deque<Drawn> drawn;
  std::deque<Typed> shifted;
};

Message draw(Types& types, Random& random, bool unpacked) {
  RandomTypeLimits limits;
  limits.unpack_safe = unpacked;
  RandomType type(random.engine(), limits);
  datatype::LayoutRef layout =
      random(0, 1) == 0 ? datatype::decode(type.handle()) : datatype::decode(type.handle(), no_lists);
  const std::int64_t most = std::int64_t{1} << 16, size = std::max<std::int64_t>(type.size(), 1);
  const std::int64_t span = std::max<std::int64_t>(std::abs(type.extent()), 1);
  const std::int64_t many = std::clamp<std::int64_t>(std::min(most / size, 4 * most / span), 1, 2000);
  const auto count = static_cast<int>(random(0, 4) == 0 ? random(0, many) : random(0, std::min<std::int64_t>(many, 7)));
  types.drawn.push_back({std::move(type), std::move(layout)});
  return message_of(types.drawn.back().type.handle(), *types.drawn.back().layout, count);
}

/// The same some bytes further on.
Message shifted(Types& types, Random& random, const Message& message) {
  const MPI_Aint place = 4 * random(0, 8);
  MPI_Datatype type = MPI_DATATYPE_NULL;
  PMPI_Type_create_hindexed_block(1, 1, &place, message.type, &type);
  return types.shifted.emplace_back(OwnedType(type)).message(message.count);
}

std::unique_ptr<TypedJob> draw_job(Areas& areas, Types& types, Random& random) {
  switch (random(0, 3)) {
    case 0:
      return std::make_unique<PackJob>(areas, random, Direction::pack, draw(types, random, false));
    case 1:
      return std::make_unique<PackJob>(areas, random, Direction::unpack, draw(types, random, true));
    case 2: {
      const Message from = draw(types, random, true);
      return std::make_unique<TransferJob>(areas, random, from, shifted(types, random, from));
    }
    default: {
      const Message from = draw(types, random, false);
      return std::make_unique<TransferJob>(areas, random, from, draw(types, random, true));
    }
  }
}

TEST_CASE("random mixtures of transfers in one go", "[kernel][device]") {
  const Device device(GENERATE(device::Way::automatic, device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  Areas areas;
  const std::int64_t mixtures = unit_trees(300);
  for (std::int64_t mixture = 0; mixture < mixtures; ++mixture) {
    Random random(static_cast<std::uint64_t>(mixture));
    Types types;
    Jobs jobs;
    const std::int64_t count = random(0, 3) == 0 ? random(30, 80) : random(1, 12);
    for (std::int64_t i = 0; i < count; ++i) jobs.push_back(draw_job(areas, types, random));
    CAPTURE(mixture, count);
    check_jobs(areas, random, jobs, /*gathered=*/random(0, 2) != 0);
  }
}

/// One after the other; each of them again, when its layouts are on the device.
void check_jobs_waiting(Areas& areas, Random& random, const Jobs& jobs) {
  for (Area* const area : areas.all()) area->fill(random);
  for (const auto& job : jobs)
    for (int turn = 0; turn < 2; ++turn) {
      device::about_to_wait(device::WaitKind::peer_sends);
      job->start(areas).wait();
    }
  for (const auto& job : jobs) job->imitate(areas);
  for (Area* const area : areas.all()) area->check();
  for (Area* const area : areas.all()) area->clear();
}

TEST_CASE("random transfers by a persistent kernel", "[kernel][device]") {
  const Device device(device::Way::kernel, /*batches=*/true, device::ResidentUse::always);
  if (!device.there()) return;
  Areas areas;
  const std::int64_t mixtures = unit_trees(150);
  for (std::int64_t mixture = 0; mixture < mixtures; ++mixture) {
    Random random(static_cast<std::uint64_t>(mixture) + 1000);
    Types types;
    Jobs jobs;
    const std::int64_t count = random(1, 8);
    for (std::int64_t i = 0; i < count; ++i) jobs.push_back(draw_job(areas, types, random));
    CAPTURE(mixture, count);
    check_jobs_waiting(areas, random, jobs);
  }
  CHECK(device::movements().resident > 0);
}

/// The pieces of a block of n^3 numbers that go to its neighbours: faces, edges and corners.
std::vector<Typed> halo(int n, MPI_Datatype unit) {
  std::vector<Typed> pieces;
  for (int direction = 0; direction < 27; ++direction) {
    if (direction == 13) continue;
    std::vector<int> sizes(3, n + 2), extents, starts;
    for (int left = direction, d = 0; d < 3; ++d, left /= 3) {
      extents.push_back(left % 3 == 1 ? n : 1);
      starts.push_back(left % 3 == 2 ? n : 1);
    }
    pieces.emplace_back(subarray(sizes, extents, starts, MPI_ORDER_C, unit));
  }
  return pieces;
}

TEST_CASE("a halo is packed by one launch and unpacked by one", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  Areas areas;
  Random random(1);
  for (MPI_Datatype unit : {MPI_CHAR, MPI_SHORT, MPI_FLOAT, MPI_DOUBLE})
    for (const int n : {3, 20}) {
      const std::vector<Typed> pieces = halo(n, unit);
      for (const Direction direction : {Direction::pack, Direction::unpack}) {
        Jobs jobs;
        for (const Typed& piece : pieces)
          jobs.push_back(std::make_unique<PackJob>(areas, random, direction, piece.message(1)));
        const device::Movements before = device::movements();
        check_jobs(areas, random, jobs, /*gathered=*/true);
        const device::Movements after = device::movements();
        CHECK(after.batches - before.batches == 1);
        CHECK(after.batched - before.batched == after.kernels - before.kernels);
      }
    }
}

TEST_CASE("transfers that are dropped before anybody has asked for them are made", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  Areas areas;
  Random random(2);
  const Typed rows(vector(50, 3, 5, MPI_INT));
  Jobs jobs;
  for (int i = 0; i < 5; ++i)
    jobs.push_back(std::make_unique<PackJob>(areas, random, Direction::pack, rows.message(2)));
  for (Area* const area : areas.all()) area->fill(random);
  {
    const device::Gathering gathering(device::Gathering::short_bytes);
    for (const auto& job : jobs) static_cast<void>(job->start(areas));
  }
  for (const auto& job : jobs) job->imitate(areas);
  for (Area* const area : areas.all()) area->check();
}

TEST_CASE("threads that gather and threads that wait for each other's transfers", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  constexpr int threads = 3, rounds = 20;
  Areas areas;
  Random random(3);
  const Typed rows(vector(50, 3, 5, MPI_INT)), bytes(hvector(40, 7, 9, MPI_BYTE));
  std::vector<Jobs> jobs(threads);
  for (Jobs& its : jobs)
    for (int i = 0; i < 6; ++i)
      its.push_back(std::make_unique<PackJob>(areas, random, Direction::pack, (i % 2 == 0 ? rows : bytes).message(2)));
  for (Area* const area : areas.all()) area->fill(random);
  // Each waits for what the one before it has started.
  std::vector<std::vector<Transfer>> started(threads);
  for (int round = 0; round < rounds; ++round) {
    std::atomic<int> ready{0};
    std::vector<std::thread> workers;
    workers.reserve(threads);
    for (int t = 0; t < threads; ++t)
      workers.emplace_back([&, t] {
        const auto own = static_cast<std::size_t>(t);
        started[own].clear();
        std::optional<device::Gathering> gathering;
        if ((round + t) % 2 == 0) gathering.emplace(device::Gathering::long_bytes);
        for (const auto& job : jobs[own]) started[own].push_back(job->start(areas));
        ready.fetch_add(1);
        while (ready.load() < threads) std::this_thread::yield();
        for (Transfer& transfer : started[(own + 1) % threads]) transfer.wait();
      });
    for (std::thread& worker : workers) worker.join();
  }
  for (const Jobs& its : jobs)
    for (const auto& job : its) job->imitate(areas);
  for (Area* const area : areas.all()) area->check();
}

// --- time, for people to look at ------------------------------------------------------------------------------------

/// The pieces of a halo to and from mapped memory, and from layout to layout: launched each by itself, as they come,
/// and gathered.
TEST_CASE("how long the pieces of a halo take", "[.benchmark]") {
  std::printf("26 pieces of a block of n^3 doubles, microseconds: each by itself, as they come, gathered\n%8s %-24s\n",
              "n", "");
  for (const int n : {32, 64, 128, 256}) {
    const std::vector<Typed> pieces = halo(n, MPI_DOUBLE);
    const auto measure = [&](const char* name, const auto& start) {
      std::printf("%8d %-24s", n, name);
      for (const int how : {0, 1, 2}) {
        const Device device(device::Way::automatic, /*batches=*/how > 0);
        if (!device.there()) return;
        Memory block(Place::device), other(Place::device), packed(Place::mapped);
        const std::int64_t bytes = std::int64_t{8} * (n + 2) * (n + 2) * (n + 2);
        char* const user = block.reserve(bytes);
        char* const there = other.reserve(bytes);
        char* const to = packed.reserve(std::int64_t{8} * 6 * (n + 2) * (n + 2) + 26 * 256);
        std::printf(" %10.1f", median_us([&] {
                      std::vector<Transfer> transfers;
                      std::optional<device::Gathering> gathering;
                      if (how == 2) gathering.emplace(device::Gathering::long_bytes);
                      std::int64_t at = 0;
                      for (const Typed& piece : pieces) {
                        transfers.push_back(start(piece, user, there, to + at));
                        at += (piece.layout->size() + 255) / 256 * 256;
                      }
                      gathering.reset();
                      for (Transfer& transfer : transfers) transfer.wait();
                    }));
      }
      std::printf("\n");
    };
    const auto packing = [](Direction direction) {
      return [=](const Typed& piece, char* user, char*, char* to) {
        return device::start(direction, 0, *piece.layout, 1, user, 0, piece.layout->size(), to,
                             device::MemoryKind::pinned);
      };
    };
    measure("pack to the host", packing(Direction::pack));
    measure("unpack from the host", packing(Direction::unpack));
    measure("from layout to layout", [](const Typed& piece, char* user, char* there, char*) {
      return device::transfer(0, {piece.layout.get(), 1, there}, {piece.layout.get(), 1, user}, 0,
                              piece.layout->size());
    });
  }
}

}  // namespace
