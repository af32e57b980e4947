// When a persistent kernel is launched.
#include <chrono>
#include <cstdint>
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
  SECTION("where messages are there at once, too") {
    for (int i = 0; i < 200; ++i) {
      stage.pack().wait();
      stage.wait();
    }
    CHECK(stage.launches() == 1);
  }
  SECTION("not where they are long in coming") {
    for (int i = 0; i < 50; ++i) {
      stage.pack().wait();
      stage.wait(microseconds(300));
    }
    CHECK(stage.launches() == 0);
  }
  SECTION("for operations in streams even then, until none is enqueued") {
    for (int i = 0; i < 50 && stage.launches() == 0; ++i) {
      for (int each = 0; each < 5; ++each) stage.pack().wait();
      stage.engine->about_to_wait(WaitKind::enqueued);
      stage.log.clock.now += microseconds(90);
    }
    REQUIRE(stage.launches() == 1);
    stage.begin();
    const auto is_sent_away = [&] { return number_of(stage.box().job[0]) == no_more_jobs; };
    CHECK_FALSE(is_sent_away());
    stage.engine->no_more_enqueued();
    CHECK(is_sent_away());
  }
  SECTION("which do not end what was launched for other waits") {
    until_launched(1000);
    REQUIRE(stage.launches() == 1);
    stage.begin();
    stage.engine->no_more_enqueued();
    CHECK(number_of(stage.box().job[0]) != no_more_jobs);
  }
  SECTION("not where messages are too long for it") {
    const OwnedType type = std::move(vector(20 << 10, 2, 4, MPI_INT).commit());  // 160 KiB in words of 8 bytes
    const datatype::LayoutRef layout = datatype::decode(type);
    std::vector<char> user(1 << 20), packed(1 << 18);
    for (int i = 0; i < 300; ++i) {
      stage.engine
          ->start(Direction::pack, 0, *layout, 1, user.data(), 0, layout->size(), packed.data(), MemoryKind::pinned)
          .wait();
      stage.wait(microseconds(15));
    }
    CHECK(stage.launches() == 0);
  }
  SECTION("for reductions, too") {
    int rounds = 0;
    for (; rounds < 1000 && stage.launches() == 0; ++rounds) {
      stage.reduce().wait();
      stage.wait(microseconds(15));
    }
    CHECK(rounds > 4);
    CHECK(stage.launches() == 1);
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
