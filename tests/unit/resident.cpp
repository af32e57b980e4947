// What a persistent kernel is given, and what becomes of jobs that it does not come to.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "datatype/decode.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/resident_stage.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::device;
using namespace gpudt::test;
using std::chrono::microseconds;

TEST_CASE("what is short enough for the persistent kernel", "[kernel]") {
  alignas(16) char memory[32];
  const auto blocks = [&](const datatype::Layout& layout, int count, std::int64_t shift = 0) {
    datatype::Shape stream;
    stream.kind = datatype::ShapeKind::contiguous;
    const datatype::Shape shape = layout.shape(count);
    stream.total = stream.run = shape.total;
    return resident_blocks_for({shape, memory}, {stream, memory + shift}, shape.total);
  };
  const OwnedType eights = std::move(vector(128, 2, 4, MPI_INT).commit());  // 1 KiB in blocks of 8 bytes
  const datatype::LayoutRef words = datatype::decode(eights);
  const auto check = [&](const datatype::Layout& layout, std::int64_t shift, int alone, int together) {
    CHECK(blocks(layout, alone, shift) == 1);
    CHECK(blocks(layout, alone + 1, shift) == (together > alone ? resident_blocks : 0));
    CHECK(blocks(layout, together, shift) == (together > alone ? resident_blocks : 1));
    CHECK(blocks(layout, together + 1, shift) == 0);
  };
  check(*words, 0, 8, 128);
  check(*words, 4, 4, 64);
  check(*words, 1, 2, 2);
  std::vector<int> places(128);
  for (int i = 0; i < 128; ++i) places[static_cast<std::size_t>(i)] = i * (i + 1);
  const OwnedType list = std::move(indexed_block(2, places, MPI_INT).commit());
  const datatype::LayoutRef traversed = datatype::decode(list);
  check(*traversed, 0, 2, 16);
  const datatype::LayoutRef bytes = datatype::decode(MPI_CHAR);
  CHECK(blocks(*bytes, 16 << 10) == 1);
  CHECK(blocks(*bytes, (16 << 10) + 16) == resident_blocks);
  CHECK(blocks(*bytes, 128 << 10) == resident_blocks);
  CHECK(blocks(*bytes, (128 << 10) + 16) == 0);
}

TEST_CASE("the first launch of a persistent kernel that is prepared allocates nothing", "[kernel]") {
  Stage stage;
  for (const auto& channel : stage.engine->gpu(0).channels) channel->prepare();
  stage.engine->gpu(0).resident->prepare();
  const int before = stage.log.allocations;
  stage.have_kernel();
  CHECK(stage.log.allocations == before);
}

TEST_CASE("on a full GPU the first block of a persistent kernel is the only one", "[kernel]") {
  Stage stage;
  Resident& resident = *stage.engine->gpu(0).resident;
  stage.log.full = true;
  resident.prepare();
  stage.log.full = false;
  stage.have_kernel();
  REQUIRE(stage.launches() == 1);
  CHECK(stage.log.residents.back().relay == nullptr);
}

TEST_CASE("of a job that is like the one before only what differs is sent", "[kernel]") {
  static Mailbox box;
  host::JobWords sender, receiver;
  ShortReduction reduction = {};
  reduction.count = 7;
  reduction.from[1] = 0x1'0000'0001;
  const auto sent = [&](const auto& job, std::uint32_t number) {
    sender.send(box, number, ResidentJob(job));
    CHECK_FALSE(receiver.receive(box, number + 1));
    REQUIRE(receiver.receive(box, number));
    return static_cast<int>(receiver.job().sent);
  };
  const auto arrived = [&] { return std::memcmp(&receiver.job().reduction, &reduction, sizeof reduction) == 0; };
  CHECK(sent(reduction, 1) > 70);
  CHECK(arrived());
  CHECK(sent(reduction, 2) == 1);
  CHECK(arrived());
  reduction.from[1] += 1;
  CHECK(sent(reduction, 3) == 2);
  CHECK(arrived());
  reduction.from[1] += 0x1'0000'0001;
  reduction.count = 8;
  CHECK(sent(reduction, 4) == 4);
  CHECK(arrived());
  CHECK(sent(ShortCopies{}, 5) > 1);
  CHECK(receiver.job().kind == ResidentJob::Kind::copies);
  CHECK(receiver.job().copies.count == 0);
  sender.send(box, 6, ResidentJob(reduction));
  box.job[1] = numbered(5, 1, 0);  // one word has not arrived
  CHECK_FALSE(receiver.receive(box, 6));
}

TEST_CASE("layouts that are traversed are sent again, since the kernel replaces their addresses", "[kernel]") {
  static Mailbox box;
  alignas(16) static char memory[1024];
  const OwnedType type = std::move(indexed_block(2, std::vector<int>{1, 5, 12, 40}, MPI_INT).commit());
  const datatype::LayoutRef list = datatype::decode(type), bytes = datatype::decode(MPI_CHAR);
  const PlanSide listed = {list->shape(1), memory}, packed = {bytes->shape(32), memory};
  host::JobWords sender, receiver;
  std::uint32_t number = 0;
  const auto sent_again = [&](const PlanSide& from, const PlanSide& to) {
    const ResidentJob job(BatchJob(plan_batch_job(from, to, 0, 32, {})), 1);
    for (int i = 0; i < 2; ++i) {
      sender.send(box, ++number, job);
      REQUIRE(receiver.receive(box, number));
      CHECK(std::memcmp(&receiver.job().transfer, &job.transfer, sizeof job.transfer) == 0);
    }
    return static_cast<int>(receiver.job().sent);
  };
  const BatchPair& pair = receiver.job().transfer.pair;
  const auto from_on = [&](const datatype::Program& program) {
    return (reinterpret_cast<const char*>(&pair) + sizeof(BatchJob) - reinterpret_cast<const char*>(&program)) / 4;
  };
  CHECK(sent_again(listed, listed) > from_on(pair.from_map.program));
  CHECK(sent_again(listed, packed) > from_on(pair.from_map.program));
  CHECK(sent_again(packed, listed) > from_on(pair.map.program));
  CHECK(sent_again(packed, packed) == 1);
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

TEST_CASE("a persistent kernel does the short work of collectives", "[kernel]") {
  Stage stage;
  CHECK((stage.reduce().done() && stage.is_reduced()));
  CHECK((stage.copy().done() && stage.is_copied()));
  CHECK(stage.log.kernels == 2);
  stage.wait();
  REQUIRE(stage.launches() == 1);
  stage.begin();
  std::uint32_t job = 0;
  SECTION("as it does messages") {
    Transfer reduced = stage.reduce();
    CHECK_FALSE(reduced.done());
    REQUIRE(stage.serve(job++));
    CHECK((reduced.done() && stage.is_reduced()));
    Transfer copied = stage.copy();
    CHECK_FALSE(copied.done());
    REQUIRE(stage.serve(job++));
    CHECK((copied.done() && stage.is_copied()));
    CHECK(stage.log.kernels == 2);
    CHECK(stage.engine->movements().resident == 2);
    CHECK(stage.engine->movements().kernels == 4);
  }
  SECTION("not while it has a job") {
    Transfer packed = stage.pack();
    CHECK((stage.reduce().done() && stage.is_reduced()));
    CHECK(stage.log.kernels == 3);
    REQUIRE(stage.serve(job++));
    CHECK(packed.done());
  }
  SECTION("or it is launched, if the kernel has not come to it") {
    Transfer reduced = stage.reduce();
    stage.leave();
    reduced.wait();
    CHECK(stage.is_reduced());
    CHECK(stage.log.kernels == 3);
    stage.wait();
    REQUIRE(stage.launches() == 2);
    stage.begin();
    Transfer copied = stage.copy();
    stage.leave();
    copied.wait();
    CHECK(stage.is_copied());
    CHECK(stage.log.kernels == 4);
    CHECK(stage.engine->movements().resident == 0);
    CHECK(stage.engine->movements().kernels == 4);
  }
  SECTION("or it is launched at the end of all") {
    Transfer reduced = stage.reduce();
    stage.engine.reset();
    CHECK((reduced.done() && stage.is_reduced()));
    CHECK(stage.log.kernels == 3);
  }
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

}  // namespace
