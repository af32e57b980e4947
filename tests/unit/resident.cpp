// When a kernel stays on the GPU, what it is given, and what becomes of jobs that it does not come to: over a runtime
// whose kernel the test plays.
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "datatype/decode.hpp"
#include "device/transfer/engine.hpp"
#include "device/transfer/resident.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/stopped_clock.hpp"
#include "tests/support/stub_runtime.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::device;
using namespace gpudt::test;
using std::chrono::microseconds;

void* same(const void* address) {
  return const_cast<void*>(address);
}
void end(const Completion& completion) {
  *completion.flag = completion.flag_value;
}

/// What was launched. Ordinary kernels end at once, and time passes only where a test says so.
struct ResidentLog {
  StoppedClock clock;
  int kernels = 0;
  std::vector<ResidentArgs> residents;
  bool refuse = false;       ///< the persistent kernel
  microseconds launching{};  ///< it takes so long
  bool failed = false;       ///< the GPU
  bool played = false;       ///< the ordinary kernels, too: they do nothing
  int allocations = 0;       ///< of memory and streams
};

class PlayedRuntime final : public HostMemoryRuntime {
 public:
  explicit PlayedRuntime(ResidentLog& log) : log_(log) {}
  Traits traits(int) override { return {4, "played", {}}; }
  void* device_alloc(int ordinal, std::size_t bytes) override {
    ++log_.allocations;
    return HostMemoryRuntime::device_alloc(ordinal, bytes);
  }
  StreamHandle stream_create(int ordinal) override {
    ++log_.allocations;
    return HostMemoryRuntime::stream_create(ordinal);
  }
  void stream_check(int, StreamHandle) override {
    if (log_.failed) throw Error(Failure::runtime, "failed");
  }
  void launch(int, const KernelArgs& args, StreamHandle) override {
    ++log_.kernels;
    if (log_.played) return;
    run_on_host(args, same);
    end(args.completion);
  }
  void launch(int, const BatchArgs& batch, StreamHandle) override {
    ++log_.kernels;
    run_on_host(batch, same, end);
  }
  void launch(int, const ResidentArgs& args, StreamHandle) override {
    if (log_.refuse) throw Error(Failure::runtime, "refused");
    log_.residents.push_back(args);
    log_.clock.now += log_.launching;
  }

 private:
  ResidentLog& log_;
};

/// An engine, a message, and the persistent kernel.
struct Stage {
  explicit Stage(ResidentUse use = ResidentUse::always) {
    Config config;
    config.way = Way::kernel;
    config.resident = use;
    config.tuning = "none";
    engine = std::make_unique<Engine>(std::make_unique<PlayedRuntime>(log), config);
    for (std::size_t i = 0; i < user.size(); ++i) user[i] = static_cast<char>(i * 7 + 1);
  }
  Transfer pack() {
    std::fill(packed.begin(), packed.end(), '\0');
    return engine->start(Direction::pack, 0, *layout, 1, user.data(), 0, layout->size(), packed.data());
  }
  bool is_packed() const {
    std::vector<char> expected(packed.size());
    int position = 0;
    PMPI_Pack(user.data(), 1, type, expected.data(), static_cast<int>(expected.size()), &position, MPI_COMM_SELF);
    return packed == expected;
  }
  /// A wait that lasts so long, and launches the kernel or not.
  void wait(microseconds time = {}) {
    engine->about_to_wait(WaitKind::peer_sends);
    log.clock.now += time;
  }
  /// A kernel that has begun.
  void have_kernel() {
    pack().wait();
    wait();
    REQUIRE(launches() == 1);
    begin();
  }
  std::uint32_t launches() const { return static_cast<std::uint32_t>(log.residents.size()); }
  Mailbox& box() const { return *log.residents.back().box; }
  void begin() { box().started = log.residents.back().launch; }
  void leave() { box().ended = log.residents.back().launch; }
  /// The kernel does job number `index` of its launch, if that is there.
  bool serve(std::uint32_t index = 0) {
    std::uint32_t words[job_words];
    if (!host::read_job(box(), log.residents.back().first_job + index, words)) return false;
    alignas(ResidentJob) char bytes[sizeof(ResidentJob)];
    std::memcpy(bytes, words, sizeof bytes);
    const auto& job = *reinterpret_cast<const ResidentJob*>(bytes);
    run_on_host(job, same);
    end(job.completion());
    return true;
  }

  OwnedType type = std::move(vector(30, 3, 5, MPI_INT).commit());
  datatype::LayoutRef layout = datatype::decode(type);
  ResidentLog log;
  std::vector<char> user = std::vector<char>(4096), packed = std::vector<char>(512);
  std::unique_ptr<Engine> engine;
};

TEST_CASE("what is short enough for the persistent kernel", "[kernel]") {
  alignas(16) char memory[32];
  const auto suits = [&](const datatype::Layout& layout, int count, std::int64_t shift = 0) {
    datatype::Shape stream;
    stream.kind = datatype::ShapeKind::contiguous;
    const datatype::Shape shape = layout.shape(count);
    stream.total = stream.run = shape.total;
    return suits_resident({shape, memory}, {stream, memory + shift}, shape.total);
  };
  const OwnedType eights = std::move(vector(128, 2, 4, MPI_INT).commit());  // 1 KiB in blocks of 8 bytes
  const datatype::LayoutRef words = datatype::decode(eights);
  CHECK(suits(*words, 8));
  CHECK_FALSE(suits(*words, 9));
  CHECK(suits(*words, 4, 4));
  CHECK_FALSE(suits(*words, 5, 4));
  CHECK(suits(*words, 2, 1));
  CHECK_FALSE(suits(*words, 3, 1));
  std::vector<int> places(128);
  for (int i = 0; i < 128; ++i) places[static_cast<std::size_t>(i)] = i * (i + 1);
  const OwnedType list = std::move(indexed_block(2, places, MPI_INT).commit());
  const datatype::LayoutRef traversed = datatype::decode(list);
  CHECK(suits(*traversed, 2));
  CHECK_FALSE(suits(*traversed, 3));
  const datatype::LayoutRef bytes = datatype::decode(MPI_CHAR);
  CHECK(suits(*bytes, 16 << 10));
  CHECK_FALSE(suits(*bytes, (16 << 10) + 16));
}

TEST_CASE("the first launch of a persistent kernel that is prepared allocates nothing", "[kernel]") {
  Stage stage;
  for (const auto& channel : stage.engine->gpu(0).channels) channel->prepare();
  stage.engine->gpu(0).resident->prepare();
  const int before = stage.log.allocations;
  stage.have_kernel();
  CHECK(stage.log.allocations == before);
}

TEST_CASE("a persistent kernel does jobs one after the other", "[kernel]") {
  Stage stage;
  stage.wait();
  CHECK(stage.launches() == 0);  // on which GPU is not known
  CHECK((stage.pack().done() && stage.is_packed()));
  CHECK(stage.log.kernels == 1);
  stage.wait();
  REQUIRE(stage.launches() == 1);
  stage.begin();
  for (std::uint32_t i = 0; i < 3; ++i) {
    Transfer transfer = stage.pack();
    CHECK_FALSE(transfer.done());
    CHECK_FALSE(stage.is_packed());
    REQUIRE(stage.serve(i));
    CHECK((transfer.done() && stage.is_packed()));
  }
  stage.wait();
  CHECK(stage.launches() == 1);
  CHECK(stage.log.kernels == 1);
  CHECK(stage.engine->movements().resident == 3);
  CHECK(stage.engine->movements().kernels == 4);
}

TEST_CASE("what comes while the persistent kernel has a job, or when it is gone, is launched", "[kernel]") {
  Stage stage;
  stage.have_kernel();
  Transfer first = stage.pack(), second = stage.pack();  // the second one waits, as behind any other kernel
  CHECK(second.done());
  CHECK(stage.log.kernels == 2);
  CHECK_FALSE(first.done());
  REQUIRE(stage.serve());
  CHECK(first.done());
  stage.leave();
  CHECK(stage.pack().done());
  CHECK(stage.log.kernels == 3);
  stage.wait();
  REQUIRE(stage.launches() == 2);
  stage.begin();
  CHECK_FALSE(stage.serve());  // the old job is none of its own
}

TEST_CASE("a transfer that waits alone to be launched with others counts, and goes to the persistent kernel",
          "[kernel]") {
  Stage stage;
  const auto gathered = [&] {
    const Gathering gathering(Gathering::short_bytes);
    return stage.pack();
  };
  gathered().wait();
  CHECK(stage.log.kernels == 1);
  stage.wait();
  REQUIRE(stage.launches() == 1);
  stage.begin();
  Transfer transfer = gathered();
  CHECK_FALSE(transfer.done());
  REQUIRE(stage.serve());
  CHECK((transfer.done() && stage.is_packed()));
  CHECK(stage.log.kernels == 1);
}

TEST_CASE("a job that the persistent kernel has not come to is launched", "[kernel]") {
  Stage stage;
  stage.have_kernel();
  {
    Transfer transfer = stage.pack();
    CHECK_FALSE(transfer.done());
    stage.leave();
    transfer.wait();
    CHECK(stage.is_packed());
  }
  CHECK(stage.log.kernels == 2);
  CHECK(stage.engine->movements().kernels == 2);
  CHECK(stage.engine->movements().resident == 0);
  stage.wait();
  REQUIRE(stage.launches() == 2);
  stage.begin();
  CHECK_FALSE(stage.serve());
  Transfer transfer = stage.pack();
  REQUIRE(stage.serve());
  stage.leave();
  CHECK((transfer.done() && stage.is_packed()));  // it had been done before
  CHECK(stage.log.kernels == 2);
}

TEST_CASE("a kernel that does not begin is not given jobs", "[kernel]") {
  Stage stage;
  stage.pack().wait();
  stage.wait();
  REQUIRE(stage.launches() == 1);
  CHECK(stage.pack().done());
  CHECK(stage.log.kernels == 2);
  stage.begin();
  Transfer transfer = stage.pack();
  CHECK(stage.serve());
  CHECK(transfer.done());
  CHECK(stage.log.kernels == 2);
}

TEST_CASE("a job taken back from the persistent kernel goes past those that wait", "[kernel]") {
  Stage stage;
  stage.have_kernel();
  std::vector<Transfer> transfers;
  transfers.reserve(batch_jobs);
  for (int i = 0; i < batch_jobs; ++i) transfers.push_back(stage.pack());
  CHECK(stage.log.kernels == 1);  // all but the first one wait
  stage.leave();
  transfers.front().wait();
  CHECK(stage.log.kernels == 2);
  for (Transfer& transfer : transfers) transfer.wait();
  CHECK(stage.log.kernels == 3);
  CHECK(stage.is_packed());
}

TEST_CASE("the persistent kernel at the end of all", "[kernel]") {
  Stage stage;
  stage.have_kernel();
  Transfer transfer = stage.pack();
  SECTION("has done its job") {
    REQUIRE(stage.serve());
    stage.engine.reset();
    CHECK(stage.log.kernels == 1);
  }
  SECTION("has not come to it") {
    stage.engine.reset();
    CHECK(stage.log.kernels == 2);
  }
  CHECK(stage.is_packed());
  CHECK(transfer.done());
}

TEST_CASE("the persistent kernel does not stay for ever", "[kernel]") {
  Stage stage;
  stage.have_kernel();
  const auto is_sent_away = [&] { return number_of(stage.box().job[0]) == no_more_jobs; };
  stage.log.clock.now += std::chrono::milliseconds(2);
  SECTION("when a job comes") {
    CHECK(stage.pack().done());
  }
  SECTION("when a call waits") {
    stage.wait();
  }
  CHECK(is_sent_away());
  stage.wait();
  CHECK(is_sent_away());
  CHECK(stage.launches() == 1);
  stage.leave();
  stage.wait();
  CHECK(stage.launches() == 2);
  CHECK_FALSE(is_sent_away());
}

TEST_CASE("a GPU that has failed has no persistent kernel", "[kernel]") {
  Stage stage;
  stage.have_kernel();
  stage.log.failed = true;
  Transfer transfer = stage.pack();
  CHECK_THROWS_AS(transfer.wait(), Error);
  stage.log.played = true;
  Transfer next = stage.pack();
  CHECK(stage.log.kernels == 2);
  CHECK_THROWS_AS(next.wait(), Error);
  stage.leave();
  stage.wait();
  CHECK(stage.launches() == 1);
}

TEST_CASE("a persistent kernel is launched where that is promising", "[kernel]") {
  Stage stage(ResidentUse::automatic);
  // Waits that transfers end after a while, until there is a kernel.
  const auto until_launched = [&](int most) {
    const std::uint32_t before = stage.launches();
    int rounds = 0;
    for (; rounds < most && stage.launches() == before; ++rounds) {
      stage.pack().wait();
      stage.wait(microseconds(15));
    }
    return rounds;
  };
  SECTION("after some") {
    CHECK(until_launched(1000) > 4);
    REQUIRE(stage.launches() == 1);
  }
  SECTION("at once again, if it had much to do") {
    for (std::uint32_t i = 1; i <= 5; ++i) {
      CHECK(until_launched(1000) < 500);
      REQUIRE(stage.launches() == i);
      stage.begin();
      for (std::uint32_t job = 0; job < 10; ++job) {
        Transfer transfer = stage.pack();
        REQUIRE(stage.serve(job));
        transfer.wait();
      }
      stage.leave();
    }
  }
  SECTION("later, if it was in vain") {
    until_launched(1000);
    REQUIRE(stage.launches() == 1);
    stage.leave();
    CHECK(until_launched(1000) > 8);
    REQUIRE(stage.launches() == 2);
    stage.leave();
    CHECK(until_launched(1000) > 16);
  }
  SECTION("though one was in vain, in bursts that are shorter than what has to pass") {
    for (std::uint32_t i = 1; i <= 2; ++i) {
      until_launched(1000);
      REQUIRE(stage.launches() == i);
      stage.leave();
    }
    for (int burst = 0; burst < 100 && stage.launches() == 2; ++burst) {
      until_launched(10);
      stage.wait(microseconds(300));
    }
    CHECK(stage.launches() == 3);
  }
  SECTION("not where messages are there at once") {
    for (int i = 0; i < 200; ++i) {
      stage.pack().wait();
      stage.wait();
    }
    CHECK(stage.launches() == 0);
  }
  SECTION("not where they are long in coming") {
    for (int i = 0; i < 50; ++i) {
      stage.pack().wait();
      stage.wait(microseconds(300));
    }
    CHECK(stage.launches() == 0);
  }
  SECTION("not where messages are too long for it") {
    const OwnedType type = std::move(vector(2048, 2, 4, MPI_INT).commit());  // 16 KiB in words of 8 bytes
    const datatype::LayoutRef layout = datatype::decode(type);
    std::vector<char> user(1 << 16), packed(1 << 14);
    for (int i = 0; i < 300; ++i) {
      stage.engine->start(Direction::pack, 0, *layout, 1, user.data(), 0, layout->size(), packed.data()).wait();
      stage.wait(microseconds(15));
    }
    CHECK(stage.launches() == 0);
  }
  SECTION("not beside other processes") {
    stage.pack().wait();
    stage.engine->shared_with_others(0, /*yields=*/false);
    until_launched(100);
    CHECK(stage.launches() == 0);
  }
  SECTION("not again where launches wait for kernels to end") {
    stage.log.launching = microseconds(200);
    for (std::uint32_t i = 1; i <= 3; ++i) {
      until_launched(10000);
      REQUIRE(stage.launches() == i);
      stage.leave();
    }
    until_launched(3000);
    CHECK(stage.launches() == 3);
  }
  SECTION("not again if it cannot be") {
    stage.log.refuse = true;
    until_launched(300);
    stage.log.refuse = false;
    until_launched(300);
    CHECK(stage.launches() == 0);
  }
}

}  // namespace
