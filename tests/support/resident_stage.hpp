// An engine over a runtime whose persistent kernel the test plays.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "datatype/decode.hpp"
#include "device/transfer/engine.hpp"
#include "device/transfer/resident.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/kernels_here.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/stopped_clock.hpp"
#include "tests/support/stub_runtime.hpp"

namespace gpudt::test {

using namespace device;
using std::chrono::microseconds;

inline void end(const Completion& completion) {
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
  bool full = false;         ///< it has no memory left
  bool played = false;       ///< the ordinary kernels, too: they do nothing
  int allocations = 0;       ///< of memory and streams
};

class PlayedRuntime final : public HostMemoryRuntime {
 public:
  explicit PlayedRuntime(ResidentLog& log) : log_(log) {}
  Traits traits(int) override { return {4, "played", {}}; }
  void* device_alloc(int ordinal, std::size_t bytes) override {
    ++log_.allocations;
    if (log_.full) throw Error(Failure::out_of_memory, "full");
    return HostMemoryRuntime::device_alloc(ordinal, bytes);
  }
  void* mapped_alloc(int ordinal, std::size_t bytes) override {
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
    run_here(args);
    end(args.completion);
  }
  void launch(int, const BatchArgs& batch, StreamHandle) override {
    ++log_.kernels;
    run_here(batch, end);
  }
  void launch(int, const ReduceArgs& args, StreamHandle) override {
    ++log_.kernels;
    run_here(args);
    end(args.completion);
  }
  void launch(int, const CopyBlocksArgs& args, StreamHandle) override {
    ++log_.kernels;
    run_here(args);
    end(args.completion);
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
    return engine->start(Direction::pack, 0, *layout, 1, user.data(), 0, layout->size(), packed.data(),
                         MemoryKind::pinned);
  }
  bool is_packed() const {
    std::vector<char> expected(packed.size());
    int position = 0;
    PMPI_Pack(user.data(), 1, type, expected.data(), static_cast<int>(expected.size()), &position, MPI_COMM_SELF);
    return packed == expected;
  }
  /// A sum of two, for which `sum` is zero until it is there.
  Transfer reduce() {
    sum = {};
    static constexpr std::array<int, 3> one{1, 2, 3}, other{10, 20, 30};
    const std::array<const void*, 2> from{one.data(), other.data()};
    const std::array<void*, 2> to{sum.data(), nullptr};
    return engine->reduce(0, {Operator::sum, Element::int32, Result::total, std::ssize(sum), from, to});
  }
  bool is_reduced() const { return sum == std::array<int, 3>{11, 22, 33}; }
  /// Copies of two blocks.
  Transfer copy() {
    std::fill(packed.begin(), packed.end(), '\0');
    const std::array<BlockCopy, 2> blocks{BlockCopy{user.data(), packed.data(), 100},
                                          BlockCopy{user.data() + 256, packed.data() + 100, 30}};
    return engine->copy_blocks(0, blocks);
  }
  bool is_copied() const {
    return std::equal(packed.begin(), packed.begin() + 100, user.begin()) &&
           std::equal(packed.begin() + 100, packed.begin() + 130, user.begin() + 256);
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
  void begin() {
    box().started = log.residents.back().launch;
    words = {};
  }
  void leave() { box().ended = log.residents.back().launch; }
  /// The kernel does job number `index` of its launch, if that is there.
  bool serve(std::uint32_t index = 0) {
    if (!words.receive(box(), log.residents.back().first_job + index)) return false;
    run_here(words.job());
    end(words.job().completion());
    return true;
  }

  OwnedType type = std::move(vector(30, 3, 5, MPI_INT).commit());
  datatype::LayoutRef layout = datatype::decode(type);
  ResidentLog log;
  std::vector<char> user = std::vector<char>(4096), packed = std::vector<char>(512);
  std::array<int, 3> sum{};
  host::JobWords words;
  std::unique_ptr<Engine> engine;
};

}  // namespace gpudt::test
