// Which irregular messages the engine gives to the copy engine, and how, and from what it learns when work begins late:
// over a runtime that does everything at once and takes note of it.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "datatype/decode.hpp"
#include "datatype/reference.hpp"
#include "device/kernels/batch_body.hpp"
#include "device/transfer/engine.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/kernels_here.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/stopped_clock.hpp"
#include "tests/support/stub_runtime.hpp"
#include "tests/support/tuning_file.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::device;
using namespace gpudt::test;

/// What was done, and whether copies are refused. Meanwhile time passes only where a test says so.
struct CopyLog {
  StoppedClock clock;
  int kernels = 0, copy_plan = 0, probes = 0;
  int batched = 0;                     ///< messages that kernels moved with others
  std::vector<std::int64_t> together;  ///< runs by one call each
  std::vector<CopyBox> copied;
  bool refuse = false, refuse_boxes = false, slow = false, probes_late = false;
  bool has_batches = true;                            ///< for runs
  std::size_t batches_taken = 1 << 20;                ///< before one is refused
  StreamHandle copying = nullptr, probing = nullptr;  ///< the streams of the latest copy and probe
  std::vector<Completion> late_probes;
  std::chrono::microseconds launch_time{0};
  std::vector<volatile std::uint32_t*> unset;  ///< flags of what is slow
  std::uint32_t value = 0;
  int drained = 0;
  Allocation allocation;  ///< that all addresses are said to lie in; of no bytes: in none
};

class NotingRuntime final : public HostMemoryRuntime {
 public:
  explicit NotingRuntime(CopyLog& log) : log_(log) {}
  Traits traits(int) override { return {4, "noting", {}}; }
  bool allocation_of(const void*, Allocation& allocation) noexcept override {
    allocation = log_.allocation;
    return allocation.size != 0;
  }
  void stream_synchronize(int, StreamHandle) override { ++log_.drained; }
  StreamHandle stream_create(int) override { return &streams_[next_stream_++]; }
  bool copy_box_async(int, const CopyBox& box, StreamHandle stream) override {
    log_.copying = stream;
    if (log_.refuse || log_.refuse_boxes) return false;
    ++log_.copy_plan;
    copy(box);
    return true;
  }
  bool copies_runs_together() const noexcept override { return log_.has_batches; }
  bool copy_runs_async(int, std::span<const CopyBox> runs, StreamHandle stream) override {
    log_.copying = stream;
    if (log_.refuse || log_.together.size() == log_.batches_taken) return false;
    log_.together.push_back(static_cast<std::int64_t>(runs.size()));
    for (const CopyBox& run : runs) copy(run);
    return true;
  }
  void signal_async(int, std::uint32_t* flag, std::uint32_t value, StreamHandle) override {
    if (log_.slow)
      log_.unset.push_back(flag);
    else
      *flag = value;
    log_.value = value;
  }
  void launch(int, const KernelArgs& args, StreamHandle stream) override {
    if (is_probe(args)) return probe(args, stream);
    ++log_.kernels;
    // What is to be slow must not have a slow launch: then only its time counts, not its data.
    if (!log_.slow) run_here(args);
    log_.clock.now += log_.launch_time;
    end(args.completion);
  }

  void launch(int, const TransferArgs& args, StreamHandle) override {
    ++log_.kernels;
    if (!log_.slow) run_here(args);
    end(args.to.completion);
  }
  void launch(int, const BatchArgs& batch, StreamHandle) override {
    log_.batched += batch.jobs;
    run_here(batch, [](const Completion& completion) { *completion.flag = completion.flag_value; });
  }

 private:
  /// No test moves so little of what is contiguous.
  static bool is_probe(const KernelArgs& args) {
    return args.shape.kind == datatype::ShapeKind::contiguous && args.end - args.begin <= 16;
  }
  void probe(const KernelArgs& args, StreamHandle stream) {
    ++log_.probes;
    log_.probing = stream;
    run_here(args);
    log_.clock.now += log_.launch_time;
    if (log_.probes_late)
      log_.late_probes.push_back(args.completion);
    else
      *args.completion.flag = args.completion.flag_value;
  }
  void copy(const CopyBox& box) {
    log_.copied.push_back(box);
    copy_rows(box);
  }
  void end(const Completion& completion) {
    log_.value = completion.flag_value;
    if (log_.slow)
      log_.unset.push_back(completion.flag);
    else
      *completion.flag = log_.value;
  }
  CopyLog& log_;
  std::array<char, 8> streams_ = {};
  std::size_t next_stream_ = 0;
};

device::Config by(Way way) {
  device::Config config;
  config.way = way;
  config.resident = ResidentUse::never;
  config.tuning = "none";
  return config;
}

/// An engine, and memory with a pattern on both sides.
struct CopyBench {
  explicit CopyBench(Way way = Way::automatic) : CopyBench(by(way)) {}
  explicit CopyBench(const device::Config& config)
      : engine(std::make_unique<Engine>(std::make_unique<NotingRuntime>(log), config)) {
    for (std::size_t i = 0; i < user.size(); ++i) user[i] = static_cast<char>(i * 7 + i / 251);
    for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<char>(i * 5 + i / 241);
  }
  /// Moves a message, after which all memory is what the reference makes of it.
  void move(Direction direction, const datatype::Layout& layout, std::int64_t count = 1) {
    std::vector<char> want_user = user, want_packed = packed;
    const std::int64_t total = count * layout.size();
    REQUIRE(total <= static_cast<std::int64_t>(packed.size()));
    REQUIRE(layout.span(count).end <= static_cast<std::int64_t>(user.size()));
    if (direction == Direction::pack)
      datatype::pack(layout, count, user.data(), 0, total, want_packed.data());
    else
      datatype::unpack(layout, count, want_user.data(), 0, total, packed.data());
    engine->start(direction, 0, layout, count, user.data(), 0, total, packed.data(), MemoryKind::pinned).wait();
    CHECK((user == want_user && packed == want_packed));
  }
  /// The flag is set so long after the message has been given to the stream, and was polled until then.
  void move_slowly(const datatype::Layout& layout, std::chrono::microseconds time) {
    slowly(time, [&] {
      return engine->start(Direction::unpack, 0, layout, 1, user.data(), 0, layout.size(), packed.data(),
                           MemoryKind::pinned);
    });
  }
  /// The same from a layout of its kind, as from another GPU.
  void transfer_slowly(const datatype::Layout& layout, std::chrono::microseconds time) {
    slowly(time, [&] {
      return engine->transfer(0, {&layout, 1, packed.data()}, {&layout, 1, user.data()}, 0, layout.size());
    });
  }
  template <class Start>
  void slowly(std::chrono::microseconds time, const Start& start_one) {
    log.slow = true;
    Transfer transfer = start_one();
    log.clock.now += time;
    for (int poll = 0; poll < 100; ++poll) CHECK_FALSE(transfer.done());
    *log.unset.back() = log.value;
    log.slow = false;
    transfer.wait();
  }
  /// All of `user` is one allocation, but for its last bytes.
  void allocate_all_but(std::size_t rest) {
    log.allocation.base = reinterpret_cast<std::uintptr_t>(user.data());
    log.allocation.size = user.size() - rest;
  }
  /// Kernels have begun late, or have not.
  void kernels_late(double late_us) const {
    for (const auto& channel : engine->gpu(0).channels) channel->kernels.observe(1, late_us, late_us + 1);
  }
  std::int64_t late_unpacks() const { return engine->gpu(0).channel(Direction::unpack).kernels.times(); }

  CopyLog log;
  std::vector<char> user = std::vector<char>(1 << 18), packed = std::vector<char>(1 << 17);
  std::unique_ptr<Engine> engine;
};

/// Runs of 16 bytes and of 8, in turn.
datatype::LayoutRef list_of_runs(int runs) {
  std::vector<int> lengths, places;
  for (int run = 0; run < runs; ++run) {
    lengths.push_back(run % 2 == 0 ? 4 : 2);
    places.push_back(run * (8 + run));
  }
  OwnedType type = indexed(lengths, places, MPI_INT);
  return datatype::decode(type.commit());
}

/// The same at random distances, of which more have room.
datatype::LayoutRef dense_list_of(std::int64_t runs) {
  std::mt19937 random(1);
  std::vector<int> lengths, places;
  for (int run = 0, place = 0; run < runs; ++run) {
    lengths.push_back(run % 2 == 0 ? 4 : 2);
    places.push_back(place);
    place += lengths.back() + 1 + static_cast<int>(random() % 8);
  }
  OwnedType type = indexed(lengths, places, MPI_INT);
  return datatype::decode(type.commit());
}

constexpr double very_late_us = 3000;
constexpr std::chrono::microseconds late{2000};

TEST_CASE("a list is moved by copies while kernels are late, and by a kernel else", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(30);
  CopyBench bench;
  const auto moved = [&](Direction direction) {
    const int kernels = bench.log.kernels;
    bench.move(direction, *list);
    return bench.log.kernels == kernels ? Way::copy : Way::kernel;
  };
  for (const Direction direction : {Direction::pack, Direction::unpack}) {
    CAPTURE(direction == Direction::pack);
    CHECK(moved(direction) == Way::kernel);
    bench.kernels_late(very_late_us);
    CHECK(moved(direction) == Way::copy);
    bench.kernels_late(0);
    CHECK(moved(direction) == Way::kernel);
  }
  // 30 runs take the copy engine 17 us to the host, but 34 from there, and 45 where two have a call of their own.
  bench.kernels_late(25);
  CHECK(moved(Direction::pack) == Way::copy);
  CHECK(moved(Direction::unpack) == Way::kernel);
  bench.kernels_late(60);
  CHECK(moved(Direction::unpack) == Way::copy);
  bench.engine->shared_with_others(0, /*yields=*/false);
  bench.kernels_late(30);
  CHECK(moved(Direction::unpack) == Way::kernel);
  bench.kernels_late(very_late_us);
  CHECK(moved(Direction::unpack) == Way::copy);
}

TEST_CASE("more runs than are moved one by one go by kernel, however late", "[kernel]") {
  const auto [has_batches, shared] = GENERATE(std::pair{true, false}, std::pair{true, true}, std::pair{false, false});
  CopyBench bench;
  bench.log.has_batches = has_batches;
  if (shared) bench.engine->shared_with_others(0, /*yields=*/false);
  const auto kernels = [&](Direction direction, std::int64_t runs, std::int64_t count) {
    bench.kernels_late(100 * very_late_us);
    bench.log.kernels = 0;
    bench.move(direction, *dense_list_of(runs), count);
    return bench.log.kernels;
  };
  for (const Direction direction : {Direction::pack, Direction::unpack}) {
    CAPTURE(direction == Direction::pack, has_batches, shared);
    const bool many = direction == Direction::unpack && has_batches && !shared;
    const std::int64_t most = many ? CopyPlan::most_calls : CopyPlan::most_together;
    CHECK(kernels(direction, most, 1) == 0);
    CHECK(kernels(direction, most + 1, 1) == 1);
    CHECK(kernels(direction, most / 2, 2) == 0);
    CHECK(kernels(direction, most / 2, 3) == 1);
  }
}

TEST_CASE("while kernels are late, many runs come to the host with what lies between", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(100);
  CopyBench bench;
  bench.allocate_all_but(0);
  bench.move(Direction::pack, *list);
  CHECK((bench.log.kernels == 1 && bench.log.copy_plan == 0));  // 9 us would take longer
  bench.kernels_late(very_late_us);
  bench.move(Direction::pack, *list);
  CHECK((bench.log.kernels == 1 && bench.log.copy_plan == 1));
  REQUIRE(bench.log.copied.size() == 1);
  const CopyBox& row = bench.log.copied[0];
  CHECK(row.from.address == bench.user.data());
  CHECK((row.width == static_cast<std::size_t>(list->true_ub()) && row.height == 1 && row.depth == 1));
  CHECK(bench.log.together.empty());
  bench.move(Direction::unpack, *list);  // what lies between is not to be written
  CHECK((bench.log.kernels == 1 && bench.log.copy_plan == 1));
  CHECK(bench.log.together == std::vector<std::int64_t>{64, 36});
  CHECK(bench.engine->staging().statistics(StagingKind::mapped).in_use == 0);
}

TEST_CASE("no part of a message comes to the host with what lies between", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(100);
  CopyBench bench;
  bench.allocate_all_but(0);
  for (const auto& [begin, end] : {std::pair{std::int64_t{0}, list->size() - 1}, {std::int64_t{1}, list->size()}}) {
    bench.kernels_late(very_late_us);
    bench.log.kernels = 0;
    bench.engine
        ->start(Direction::pack, 0, *list, 1, bench.user.data(), begin, end, bench.packed.data(), MemoryKind::pinned)
        .wait();
    CHECK((bench.log.kernels == 1 && bench.log.copy_plan == 0));
  }
}

TEST_CASE("a message from several allocations is packed by a kernel, or run by run", "[kernel]") {
  for (const auto& [runs, kernels] : {std::pair{100, 1}, {30, 0}}) {
    const datatype::LayoutRef list = list_of_runs(runs);
    CopyBench bench(Way::copy);
    const auto beyond = bench.user.size() - static_cast<std::size_t>(list->true_ub());
    bench.allocate_all_but(beyond + 1);
    bench.move(Direction::pack, *list);
    CHECK((bench.log.kernels == kernels && bench.log.copy_plan == 0));
    bench.allocate_all_but(beyond);
    bench.move(Direction::pack, *list);
    CHECK((bench.log.kernels == kernels && bench.log.copy_plan == 1));
  }
}

TEST_CASE("what lies between is not brought where memory is scarce", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(100);
  device::Config limited = by(Way::copy);
  limited.staging_limit = std::size_t{64} << 20;
  for (const device::Config& config : {limited, by(Way::copy)}) {
    CopyBench bench(config);
    bench.allocate_all_but(0);
    const Staging others = bench.engine->staging().acquire(StagingKind::mapped, 0, std::size_t{33} << 20);
    bench.move(Direction::pack, *list);
    CHECK((bench.log.kernels == 1 && bench.log.copy_plan == 0));
  }
  CopyBench bench(limited);
  bench.allocate_all_but(0);
  bench.move(Direction::pack, *list);
  CHECK((bench.log.kernels == 1 && bench.log.copy_plan == 0));
}

TEST_CASE("if what lies between is refused, the runs go one by one, or by a kernel", "[kernel]") {
  for (const auto& [runs, kernels] : {std::pair{100, 1}, {30, 0}}) {
    CopyBench bench(Way::copy);
    bench.allocate_all_but(0);
    bench.log.refuse_boxes = true;
    bench.move(Direction::pack, *list_of_runs(runs));
    CHECK((bench.log.kernels == kernels && bench.log.together.size() == static_cast<std::size_t>(1 - kernels)));
    CHECK(bench.engine->staging().statistics(StagingKind::mapped).in_use == 0);
  }
}

TEST_CASE("while copies take much longer, kernels that nobody waits for tell that they are not late any more",
          "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(60);  // 60 us by the copy engine
  CopyBench bench;
  bench.move(Direction::unpack, *list);  // the first one teaches nothing
  bench.kernels_late(very_late_us);
  bench.log.kernels = 0;
  bench.log.probes_late = true;
  for (int i = 0; i < 3; ++i) bench.move(Direction::unpack, *list);
  CHECK((bench.log.kernels == 0 && bench.log.probes == 1));  // one at a time
  *bench.log.late_probes[0].flag = bench.log.late_probes[0].flag_value;
  bench.log.clock.now += late;
  bench.move(Direction::unpack, *list);  // when it began is not known
  CHECK((bench.log.kernels == 0 && bench.log.probes == 1));
  bench.log.probes_late = false;
  bench.move(Direction::unpack, *list);
  CHECK((bench.log.kernels == 0 && bench.log.probes == 2));
  bench.move(Direction::unpack, *list);
  CHECK(bench.log.kernels == 1);
  CHECK(bench.log.probing != bench.log.copying);
  const std::int64_t times = bench.late_unpacks();
  bench.move_slowly(*list, late);  // further kernels teach as those before
  CHECK(bench.late_unpacks() == times + 1);
}

TEST_CASE("a process that yields its turns to another one leaves the multiprocessors alone", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(30),
                            long_list = list_of_runs(static_cast<int>(CopyPlan::most_together) + 1);
  CopyBench bench;
  const auto kernels_for = [&](const datatype::Layout& layout) {
    bench.log.kernels = 0;
    bench.move(Direction::unpack, layout);
    return bench.log.kernels;
  };
  CHECK(kernels_for(*list) == 1);
  bench.engine->shared_with_others(0, /*yields=*/false);
  CHECK(kernels_for(*list) == 1);
  bench.engine->shared_with_others(0, /*yields=*/true);
  for (int i = 0; i < 3; ++i) CHECK(kernels_for(*list) == 0);
  CHECK(kernels_for(*long_list) == 1);  // which ends at once, and does not change that
  CHECK(kernels_for(*list) == 0);
  CHECK(bench.log.probes == 0);
}

TEST_CASE("probes whose launches wait are given up", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(60);
  CopyBench bench;
  bench.log.launch_time = late;
  for (int i = 0; i < 5; ++i) {
    bench.kernels_late(very_late_us);
    bench.move(Direction::unpack, *list);
  }
  CHECK((bench.log.kernels == 0 && bench.log.probes == 3));
}

TEST_CASE("where copies take about as long as kernels, or are asked for, nobody tries kernels", "[kernel]") {
  for (const Way way : {Way::automatic, Way::copy}) {
    CopyBench bench(way);
    const datatype::LayoutRef list = list_of_runs(way == Way::automatic ? 30 : 60);  // 34 us by copies, for 8
    bench.kernels_late(very_late_us);
    for (const Direction direction : {Direction::pack, Direction::unpack}) bench.move(direction, *list);
    CHECK((bench.log.kernels == 0 && bench.log.probes == 0));
  }
}

TEST_CASE("a kernel that nobody waits for may outlast the engine's work", "[kernel]") {
  CopyBench bench;
  bench.kernels_late(very_late_us);
  bench.log.probes_late = true;
  for (int i = 0; i < 2; ++i) bench.move(Direction::unpack, *list_of_runs(60));  // there is none before the first
  CHECK(bench.log.probes == 1);
  bench.engine.reset();
}

TEST_CASE("lists that wait together share the lateness of their kernel", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(50);  // 47 us by the copy engine, beside others
  CopyBench bench;
  const auto batched = [&](int messages, double late_us) {
    bench.kernels_late(late_us);
    bench.log.batched = 0;
    const Gathering gathering(Gathering::long_bytes);
    std::vector<Transfer> transfers;
    transfers.reserve(static_cast<std::size_t>(messages));
    for (int i = 0; i < messages; ++i)
      transfers.push_back(bench.engine->start(Direction::unpack, 0, *list, 1, bench.user.data(), 0, list->size(),
                                              bench.packed.data(), MemoryKind::pinned));
    bench.engine->launch_queued();
    return bench.log.batched;
  };
  CHECK(batched(6, 200) == 6);
  CHECK(batched(3, 200) == 0);
  CHECK(batched(6, 400) == 0);
  CHECK(batched(3, 100) == 3);
}

TEST_CASE("runs go by one call, but those from the host in pairs, where they might wait", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(20);
  const bool has_batches = GENERATE(true, false);
  CopyBench bench(Way::copy);
  bench.log.has_batches = has_batches;
  bench.move(Direction::pack, *list);
  CHECK(bench.log.together == std::vector<std::int64_t>{20});
  if (has_batches) {
    bench.move(Direction::unpack, *list);
    CHECK(bench.log.together == std::vector<std::int64_t>{20, 20});
    bench.engine->shared_with_others(0, /*yields=*/false);
  }
  CHECK(bench.log.copy_plan == 0);
  const std::size_t batches = bench.log.together.size();
  for (const bool in_pairs : {true, false}) {  // not those that lie in several allocations
    bench.allocate_all_but(in_pairs ? 0 : bench.user.size() - 64);
    bench.log.copied.clear();
    bench.log.copy_plan = 0;
    bench.move(Direction::unpack, *list);
    CHECK(bench.log.copy_plan == (in_pairs ? 10 : 20));
    CHECK(std::all_of(bench.log.copied.begin(), bench.log.copied.end(), [&](const CopyBox& box) {
      const bool apart = box.to.pitch > box.width && box.from.pitch > box.width;
      return box.height == 2 && apart == in_pairs;
    }));
  }
  CHECK(bench.log.together.size() == batches);
  CHECK(bench.log.kernels == 0);
}

TEST_CASE("any number of runs from the host goes to its places, and nothing in between", "[kernel]") {
  for (const std::int64_t runs : {0, 1, 12, 64, 65, 128, 1000, 4096})
    for (const Way way : {Way::copy, Way::automatic}) {
      CAPTURE(runs, way == Way::copy);
      CopyBench bench(way);
      bench.kernels_late(100 * very_late_us);
      bench.move(Direction::unpack, *dense_list_of(runs));
      CHECK(bench.log.kernels == 0);
      CHECK(bench.log.together.size() == static_cast<std::size_t>(runs < 2 ? 0 : (runs + 63) / 64));
      CHECK(bench.log.copied.size() == static_cast<std::size_t>(runs));
    }
}

TEST_CASE("parts of many runs go to their places", "[kernel]") {
  const datatype::LayoutRef list = dense_list_of(1000);
  CopyBench bench;
  for (const auto& [begin, end] : {std::pair{std::int64_t{0}, list->size() / 2}, {std::int64_t{5}, list->size() - 3}}) {
    bench.kernels_late(very_late_us);
    std::vector<char> want = bench.user;
    datatype::unpack(*list, 1, want.data(), begin, end, bench.packed.data());
    bench.engine
        ->start(Direction::unpack, 0, *list, 1, bench.user.data(), begin, end, bench.packed.data(), MemoryKind::pinned)
        .wait();
    CHECK(bench.user == want);
  }
  CHECK(bench.log.kernels == 0);
  CHECK(bench.log.together.size() == 8 + 1 + 16);
  CHECK(bench.log.together[8] == 16);  // then somebody looks after the probe
}

TEST_CASE("a probe is looked after while many runs are given to the copy engine", "[kernel]") {
  const datatype::LayoutRef list = dense_list_of(200);
  for (const bool probes_late : {true, false}) {
    CAPTURE(probes_late);
    CopyBench bench;
    bench.move(Direction::unpack, *list);  // the first one teaches nothing
    bench.kernels_late(very_late_us);
    bench.log.probes_late = true;
    bench.move(Direction::unpack, *list);
    *bench.log.late_probes[0].flag = bench.log.late_probes[0].flag_value;
    bench.move(Direction::unpack, *list);
    bench.log.probes_late = probes_late;
    bench.log.together.clear();
    bench.move(Direction::unpack, *list);
    const std::vector<std::int64_t> looked_once = {16, 64, 64, 56}, looked_in_vain = {16, 16, 16, 64, 64, 24};
    CHECK(bench.log.together == (probes_late ? looked_in_vain : looked_once));
    if (!probes_late) continue;
    bench.log.together.clear();
    bench.move(Direction::unpack, *list);  // that probe tells nothing any more
    CHECK(bench.log.together == std::vector<std::int64_t>{64, 64, 64, 8});
  }
}

TEST_CASE("many runs from the host go by a kernel where that is sooner, late as it is", "[kernel]") {
  const datatype::LayoutRef list = dense_list_of(1000);  // 860 us
  CopyBench bench;
  const auto kernels = [&](double late_us) {
    bench.kernels_late(late_us);
    bench.log.kernels = 0;
    bench.move(Direction::unpack, *list);
    return bench.log.kernels;
  };
  CHECK(kernels(0) == 1);
  CHECK(kernels(800) == 1);
  CHECK(kernels(950) == 0);
  CHECK(kernels(very_late_us) == 0);
  bench.engine->shared_with_others(0, /*yields=*/false);
  CHECK(kernels(very_late_us) == 1);
}

TEST_CASE("nests of many copy_plan are moved by copies while kernels are late for long", "[kernel]") {
  const OwnedType rows = vector(3, 1, 3, MPI_INT);
  const OwnedType type = std::move(hvector(20, 1, 4001, hvector(10, 1, 301, rows)).commit());  // 200 boxes, 480 us
  const datatype::LayoutRef layout = datatype::decode(type);
  CopyBench bench;
  for (const auto& [late_us, kernels] : {std::pair{300.0, 1}, {very_late_us, 0}}) {
    bench.kernels_late(late_us);
    bench.log.kernels = 0;
    bench.move(Direction::unpack, *layout);
    CHECK(bench.log.kernels == kernels);
  }
  CHECK(bench.log.together.empty());
}

TEST_CASE("if some of many runs are refused, all go by a kernel, when those before them have ended", "[kernel]") {
  for (const std::size_t taken : {0, 1, 7}) {
    CopyBench bench(Way::copy);
    bench.log.batches_taken = taken;
    bench.move(Direction::unpack, *dense_list_of(500));
    CHECK(bench.log.together.size() == taken);
    CHECK((bench.log.kernels == 1 && bench.log.drained == 1));
  }
}

TEST_CASE("where short runs that go together begin late, they go in pairs", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(30);
  CopyBench bench;
  bench.allocate_all_but(0);
  bench.move(Direction::unpack, *list);  // the first one teaches nothing
  bench.kernels_late(very_late_us);
  bench.move_slowly(*list, late);
  CHECK((bench.log.together.size() == 1 && bench.log.copy_plan == 0));
  const Channel& channel = bench.engine->gpu(0).channel(Direction::unpack);
  CHECK((channel.short_runs.times() == 1 && channel.copies.times() == 0 && channel.kernels.times() == 1));
  bench.kernels_late(very_late_us);
  bench.move(Direction::unpack, *list);
  CHECK((bench.log.together.size() == 1 && bench.log.copy_plan == 16));
}

TEST_CASE("a time slice's wait shows in runs that go together, many as they are", "[kernel]") {
  const datatype::LayoutRef list = dense_list_of(150);  // 136 us, where kernels take 150
  CopyBench bench;
  Channel& channel = bench.engine->gpu(0).channel(Direction::unpack);
  bench.kernels_late(142);
  bench.move(Direction::unpack, *list);
  CHECK(bench.log.kernels == 0);
  channel.short_runs.observe(136, 136 + 142, 136 + 142);
  channel.copies.observe(136, 136 + 142, 136 + 142);
  CHECK((channel.short_runs.times() == 1 && channel.copies.times() == 0));
  bench.kernels_late(142);
  bench.move(Direction::unpack, *list);
  CHECK(bench.log.kernels == 1);
}

TEST_CASE("long runs that go together tell how late the copy engine is", "[kernel]") {
  OwnedType type = indexed({70000, 70001}, {0, 70010}, MPI_BYTE);
  const datatype::LayoutRef layout = datatype::decode(type.commit());
  CopyBench bench(Way::copy);
  bench.packed.resize(static_cast<std::size_t>(layout->size()));
  bench.move(Direction::unpack, *layout);  // the first one teaches nothing
  bench.move_slowly(*layout, late);
  CHECK(bench.log.together.size() == 2);
  const Channel& channel = bench.engine->gpu(0).channel(Direction::unpack);
  CHECK((channel.short_runs.times() == 0 && channel.copies.times() == 1));
}

TEST_CASE("runs that are refused go by a kernel, when those before them have ended", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(20);
  CopyBench bench(Way::copy);
  bench.log.refuse = true;
  bench.move(Direction::pack, *list);
  CHECK(bench.log.kernels == 1);
  CHECK(bench.log.drained == 1);
  bench.engine->shared_with_others(0, /*yields=*/false);
  bench.move(Direction::unpack, *list);
  CHECK(bench.log.kernels == 2);
  CHECK(bench.log.drained == 1);  // the first one was refused
}

TEST_CASE("a kernel that its launch has to load first has not begun late", "[kernel]") {
  const datatype::LayoutRef list = list_of_runs(100);
  CopyBench bench(Way::kernel);
  bench.move(Direction::unpack, *list);  // the first one teaches nothing
  bench.log.launch_time = late;
  bench.move_slowly(*list, std::chrono::microseconds(5));
  CHECK(bench.late_unpacks() == 0);
  bench.log.launch_time = {};
  bench.move_slowly(*list, late);
  CHECK(bench.late_unpacks() == 1);
}

TEST_CASE("of transfers of many short runs less is known", "[kernel]") {
  const TuningFile tuning("noting", R"("lateness.rough_error": 1e12)");
  device::Config config = by(Way::kernel);
  config.tuning = tuning.path.string();
  const auto learnt_late = [&](int run, int runs) {
    OwnedType type = vector(runs, run, 2 * run, MPI_CHAR);
    const datatype::LayoutRef layout = datatype::decode(type.commit());
    CopyBench bench(config);
    for (std::vector<char>* const side : {&bench.user, &bench.packed})
      side->resize(static_cast<std::size_t>(layout->extent()));
    bench.move(Direction::unpack, *layout);  // the first one teaches nothing
    bench.transfer_slowly(*layout, late);
    return bench.late_unpacks() > 0;
  };
  CHECK_FALSE(learnt_late(8, 1 << 14));
  CHECK(learnt_late(8, 16));
  CHECK(learnt_late(128, 1 << 10));
}

TEST_CASE("of long messages over the link to the host as much is known as of short ones", "[kernel]") {
  const OwnedType type = std::move(vector(1 << 14, 1 << 8, 1 << 9, MPI_CHAR).commit());  // 90 us, of which 12 are 1 ms
  const datatype::LayoutRef layout = datatype::decode(type);
  CopyBench bench(Way::kernel);
  for (std::vector<char>* const side : {&bench.user, &bench.packed})
    side->resize(static_cast<std::size_t>(layout->extent()));
  bench.move(Direction::unpack, *layout);  // the first one teaches nothing
  bench.move_slowly(*layout, late / 3);
  CHECK(bench.late_unpacks() == 1);
}

TEST_CASE("bytes that multiprocessors copy between runs teach nothing about the copy engine", "[kernel]") {
  OwnedType even = structure({4, 1, 2}, {0, 16, 40}, {MPI_INT, MPI_INT, MPI_INT});
  OwnedType single = structure({4, 1, 2}, {0, 17, 40}, {MPI_INT, MPI_CHAR, MPI_INT});
  CopyBench bench(Way::copy);
  bench.engine->shared_with_others(0, /*yields=*/false);
  const auto learnt_late = [&](const datatype::Layout& layout) {
    bench.move_slowly(layout, late);
    return bench.engine->gpu(0).channel(Direction::unpack).copies.times() > 0;
  };
  const datatype::LayoutRef layout = datatype::decode(single.commit());
  bench.move(Direction::unpack, *layout);  // the first one teaches nothing
  CHECK_FALSE(learnt_late(*layout));
  CHECK(learnt_late(*datatype::decode(even.commit())));
}

}  // namespace
