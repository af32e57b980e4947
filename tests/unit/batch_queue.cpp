// When transfers wait for each other to be launched together, and what becomes of those that cannot be: over a runtime
// whose kernels run at once and end when the test says so.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datatype/decode.hpp"
#include "device/kernels/batch_body.hpp"
#include "device/transfer/engine.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/kernels_here.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/stub_runtime.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::device;
using namespace gpudt::test;

/// What was launched: how many transfers by one kernel, or a copy.
struct QueueLog {
  std::vector<int> kernels;
  int copies = 0;
  std::vector<Completion> running;
  bool refuse = false;

  void end_all() {
    for (const Completion& completion : running) *completion.flag = completion.flag_value;
    running.clear();
  }
};

class LoggingRuntime final : public HostMemoryRuntime {
 public:
  explicit LoggingRuntime(QueueLog& log) : log_(log) {}
  Traits traits(int) override { return {4, "logging", {}}; }
  void stream_synchronize(int, StreamHandle) override { log_.end_all(); }
  bool copy_box_async(int, const CopyBox& box, StreamHandle) override {
    ++log_.copies;
    copy_rows(box);
    return box.depth == 1;
  }
  void signal_async(int, std::uint32_t* flag, std::uint32_t value, StreamHandle) override {
    log_.running.push_back({nullptr, flag, value});
  }
  void launch(int, const KernelArgs& args, StreamHandle) override {
    note(1);
    run_here(args);
    log_.running.push_back(args.completion);
  }
  void launch(int, const BatchArgs& batch, StreamHandle) override {
    note(batch.jobs);
    run_here(batch, [&](const Completion& completion) { log_.running.push_back(completion); });
  }

 private:
  void note(int transfers) {
    if (log_.refuse) throw Error(Failure::runtime, "refused");
    log_.kernels.push_back(transfers);
  }
  QueueLog& log_;
};

/// An engine, memory with a pattern, and places to pack it to.
struct QueueBench {
  explicit QueueBench(const Config& config = {})
      : engine(std::make_unique<Engine>(std::make_unique<LoggingRuntime>(log), config)) {
    for (std::size_t i = 0; i < user.size(); ++i) user[i] = static_cast<char>(i * 7 + i / 251);
  }
  Transfer pack(const datatype::Layout& layout, std::int64_t count = 1) {
    char* const to = packed.data() + packs++ * room;
    return engine->start(Direction::pack, 0, layout, count, user.data(), 0, count * layout.size(), to,
                         MemoryKind::pinned);
  }
  /// Pack number `index` has come to its place.
  bool is_packed(std::size_t index, MPI_Datatype type, int count = 1) const {
    std::vector<char> expected(room);
    int position = 0;
    PMPI_Pack(user.data(), count, type, expected.data(), room, &position, MPI_COMM_SELF);
    return std::equal(expected.begin(), expected.begin() + position,
                      packed.begin() + static_cast<std::ptrdiff_t>(index * room));
  }

  static constexpr int room = 2048;
  QueueLog log;
  std::vector<char> user = std::vector<char>(1 << 20), packed = std::vector<char>(100 * room);
  std::size_t packs = 0;
  std::unique_ptr<Engine> engine;
};

struct Rows {
  OwnedType type = std::move(vector(30, 3, 5, MPI_INT).commit());
  datatype::LayoutRef layout = datatype::decode(type);
};

Config kernels_only() {
  Config config;
  config.way = Way::kernel;
  return config;
}

using Launches = std::vector<int>;

TEST_CASE("what finds its GPU idle is launched at once, what does not waits to be asked for", "[kernel]") {
  const Rows rows;
  QueueBench bench(kernels_only());
  Transfer first = bench.pack(*rows.layout);
  CHECK(bench.log.kernels == Launches{1});
  Transfer second = bench.pack(*rows.layout), third = bench.pack(*rows.layout);
  CHECK(bench.log.kernels == Launches{1});
  CHECK_FALSE(first.done());  // which has been launched
  CHECK(bench.log.kernels == Launches{1});
  CHECK_FALSE(second.done());
  CHECK(bench.log.kernels == Launches{1, 2});
  bench.log.end_all();
  CHECK((first.done() && second.done() && third.done()));
  Transfer fourth = bench.pack(*rows.layout);
  CHECK(bench.log.kernels == Launches{1, 2, 1});
  bench.log.end_all();
  for (const std::size_t i : {0, 1, 2, 3}) CHECK(bench.is_packed(i, rows.type));
}

TEST_CASE("each transfer of a launch ends by itself", "[kernel]") {
  const Rows rows;
  QueueBench bench(kernels_only());
  std::vector<Transfer> transfers;
  transfers.reserve(batch_jobs + 1);
  {
    const Gathering gathering(Gathering::long_bytes);
    for (int i = 0; i < 3; ++i) transfers.push_back(bench.pack(*rows.layout));
    CHECK(bench.log.kernels.empty());
    bench.engine->launch_queued();  // the process has no engine that the end of a Gathering would find
  }
  CHECK(bench.log.kernels == Launches{3});
  *bench.log.running[1].flag = bench.log.running[1].flag_value;
  CHECK_FALSE(transfers[0].done());
  CHECK(transfers[1].done());
  CHECK_FALSE(transfers[2].done());
  bench.log.end_all();
  CHECK((transfers[0].done() && transfers[2].done()));
}

TEST_CASE("a launch holds so many transfers, and nothing waits beyond that", "[kernel]") {
  const Rows rows;
  QueueBench bench(kernels_only());
  std::vector<Transfer> transfers;
  transfers.reserve(batch_jobs + 1);
  const Gathering gathering(Gathering::long_bytes);
  for (int i = 0; i < batch_jobs + 1; ++i) transfers.push_back(bench.pack(*rows.layout));
  CHECK(bench.log.kernels == Launches{batch_jobs});
  CHECK_FALSE(transfers.back().done());
  CHECK(bench.log.kernels == Launches{batch_jobs, 1});
  bench.log.end_all();
  for (std::size_t i = 0; i < transfers.size(); ++i) CHECK(bench.is_packed(i, rows.type));
}

TEST_CASE("without batches nothing waits", "[kernel]") {
  const Rows rows;
  Config config = kernels_only();
  config.batches = false;
  QueueBench bench(config);
  const Gathering gathering(Gathering::long_bytes);
  const Transfer first = bench.pack(*rows.layout), second = bench.pack(*rows.layout);
  CHECK(bench.log.kernels == Launches{1, 1});
  bench.log.end_all();
}

TEST_CASE("long messages are launched by themselves, behind those that wait", "[kernel]") {
  const Rows rows;
  QueueBench bench(kernels_only());
  Transfer first = bench.pack(*rows.layout), second = bench.pack(*rows.layout), third = bench.pack(*rows.layout);
  const OwnedType type = std::move(hvector((5 << 20) / 16, 16, 16, MPI_BYTE).commit());
  const datatype::LayoutRef layout = datatype::decode(type);
  std::vector<char> from(5 << 20), to(5 << 20);
  Transfer long_one =
      bench.engine->start(Direction::pack, 0, *layout, 1, from.data(), 0, 5 << 20, to.data(), MemoryKind::pinned);
  CHECK(bench.log.kernels == Launches{1, 2, 1});
  bench.log.end_all();
}

TEST_CASE("beside others, a kernel moves what would go by the copy engine by itself", "[kernel]") {
  const Rows rows;
  QueueBench bench;
  const OwnedType type = std::move(contiguous(500, MPI_BYTE).commit());
  const datatype::LayoutRef row = datatype::decode(type);
  {
    Transfer alone = bench.pack(*row);
    CHECK((bench.log.copies == 1 && bench.log.kernels.empty()));
    bench.log.end_all();
  }
  const Gathering gathering(Gathering::long_bytes);
  Transfer first = bench.pack(*row), second = bench.pack(*rows.layout);
  CHECK_FALSE(first.done());
  CHECK((bench.log.copies == 1 && bench.log.kernels == Launches{2}));
  bench.log.end_all();
  CHECK((bench.is_packed(1, type) && bench.is_packed(2, rows.type)));
}

TEST_CASE("of a stream from a peer, a kernel moves what would go by the copy engine by itself", "[kernel]") {
  QueueBench bench;
  constexpr std::int64_t bytes = 2 << 20;
  const OwnedType type = std::move(contiguous(bytes, MPI_BYTE).commit());
  const datatype::LayoutRef layout = datatype::decode(type);
  std::vector<char> from(bytes), to(bytes);
  const auto fetch = [&] {
    return bench.engine->transfer(0, {layout.get(), 1, from.data()}, {layout.get(), 1, to.data()}, 0, bytes, {}, false);
  };
  Transfer first = fetch();
  CHECK((bench.log.copies == 1 && bench.log.kernels.empty()));
  Transfer second = fetch();
  CHECK_FALSE(second.done());
  CHECK((bench.log.copies == 1 && bench.log.kernels == Launches{1}));
  bench.log.end_all();
  CHECK((first.done() && second.done()));
  Transfer alone = fetch();
  CHECK((bench.log.copies == 2 && bench.log.kernels == Launches{1}));
  bench.log.end_all();
}

TEST_CASE("the copy engine moves by itself what is wanted of it", "[kernel]") {
  const Rows rows;
  Config config;
  config.way = Way::copy;
  QueueBench bench(config);
  const OwnedType type = std::move(structure({1, 2}, {0, 16}, {MPI_INT, MPI_CHAR}).commit());
  const datatype::LayoutRef irregular = datatype::decode(type);
  const Gathering gathering(Gathering::long_bytes);
  Transfer a = bench.pack(*rows.layout), b = bench.pack(*irregular, 50), c = bench.pack(*irregular, 90);
  CHECK_FALSE(a.done());
  CHECK((bench.log.copies == 1 && bench.log.kernels == Launches{2}));
  bench.log.end_all();
  CHECK((bench.is_packed(0, rows.type) && bench.is_packed(1, type, 50) && bench.is_packed(2, type, 90)));
}

TEST_CASE("transfers that cannot be launched say so, each of them, and the next ones are", "[kernel]") {
  const Rows rows;
  QueueBench bench(kernels_only());
  std::vector<Transfer> transfers;
  transfers.reserve(batch_jobs + 1);
  const Gathering gathering(Gathering::long_bytes);
  for (int i = 0; i < 3; ++i) transfers.push_back(bench.pack(*rows.layout));
  bench.log.refuse = true;
  for (Transfer& transfer : transfers) {
    CHECK_THROWS_AS(transfer.done(), Error);
    CHECK_THROWS_AS(transfer.wait(), Error);  // nor is it waited for
  }
  bench.log.refuse = false;
  transfers.clear();
  Transfer again = bench.pack(*rows.layout);
  CHECK_FALSE(again.done());
  bench.log.end_all();
  CHECK(again.done());
  CHECK(bench.log.kernels == Launches{1});
  CHECK(bench.engine->movements().kernels == 1);
}

TEST_CASE("what waits is launched when the engine ends", "[kernel]") {
  const Rows rows;
  QueueBench bench(kernels_only());
  const Gathering gathering(Gathering::long_bytes);
  Transfer first = bench.pack(*rows.layout), second = bench.pack(*rows.layout);
  bench.engine.reset();
  CHECK(bench.log.kernels == Launches{2});
  CHECK((first.done() && second.done()));
  CHECK((bench.is_packed(0, rows.type) && bench.is_packed(1, rows.type)));
}

}  // namespace
