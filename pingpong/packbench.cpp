// gpudt-packbench: times MPI_Pack and MPI_Unpack of noncontiguous GPU memory, into and out of mapped host memory and
// device memory, without communication; beside them the ways by hand, and the share of the machine's limit that each
// reaches. Every row is verified. One process, with or without mpirun.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/movers.hpp"
#include "pingpong/common/options.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/common/statistics.hpp"
#include "pingpong/common/table.hpp"
#include "pingpong/limits.hpp"

namespace gpudt::bench {
namespace {

struct Options : CommonOptions {
  std::vector<std::string> targets = {"host", "device"};
  std::vector<std::string> directions = {"pack", "unpack"};
  std::int64_t rotate = 0;
};

const std::vector<std::string> all_ways = {"mpi", "kernel", "memcpy2d", "blocks"};
constexpr const char* reference_way = "kernel";
constexpr int most_buffers = 64;
constexpr std::int64_t most_rotated_bytes = std::int64_t{16} << 30;  // of device memory, however wide the layout
constexpr std::size_t copied_bytes = std::size_t{512} << 20;         // to measure the limits: beyond every cache

constexpr const char* ways_help = R"(Ways:
  mpi       MPI_Pack or MPI_Unpack with the datatype
  kernel    a hand-written kernel
  memcpy2d  cudaMemcpy2DAsync, where the layout allows it
  blocks    one cudaMemcpyAsync for each block, up to 1024 blocks
The column "limit" is the share of the limit reached at the median: for host targets the DMA bandwidth of this run; for
device targets the 64-byte bursts that the layout touches (twice where an unpack writes a part of one) and the packed
bytes, at the bandwidth of a copy inside device memory. "/hand" is the median divided by that of kernel.
)";

/// What one row is about.
struct Case {
  std::string layout;
  const Message& message;
  Place target;
  bool unpack;
};

const Table& table() {
  static const Table shown({{"layout", 16, true},
                            {"bytes", 9},
                            {"target", 6, true},
                            {"call", 6, true},
                            {"way", 8, true},
                            {"median us", 10},
                            {"min us", 10},
                            {"max us", 10},
                            {"GB/s", 8},
                            {"limit", 6},
                            {"/hand", 6},
                            {"data", 8, true}});
  return shown;
}

/// Pairs of a noncontiguous and a packed buffer, used in turn so that no cache holds the next one.
class BufferRing {
 public:
  struct Pair {
    MessageBuffer user, packed;
  };
  BufferRing(const Message& message, const Message& flat, Place target, int count, Canvas& canvas) {
    for (int i = 0; i < count; ++i) {
      pairs_.push_back({{Place::device, canvas}, {target, canvas}});
      pairs_.back().user.reserve(message);
      pairs_.back().packed.reserve(flat);
      pairs_.back().user.poison(message);
      pairs_.back().packed.poison(flat);
    }
  }
  Pair& next() { return pairs_[turn_++ % pairs_.size()]; }
  std::size_t count() const { return pairs_.size(); }

 private:
  std::deque<Pair> pairs_;
  std::size_t turn_ = 0;
};

/// Measures and shows all rows of one run.
class Runner {
 public:
  Runner(const Options& options, const Machine& machine)
      : options_(options),
        simulated_(machine.simulated),
        canvas_(Place::pinned),
        progress_(true, options.layouts.size() * options.sizes.size()) {
    if (!simulated_) bandwidths_ = measure_bandwidths(copied_bytes);
  }

  const Bandwidths& bandwidths() const { return bandwidths_; }
  const nlohmann::json& rows() const { return rows_; }
  bool all_verified() const { return all_verified_; }

  void run() {
    for (const LayoutFamily& layout : options_.layouts) {
      std::int64_t last_size = 0;
      for (const std::int64_t bytes : options_.sizes) {
        const Message message = layout.message(bytes);
        if (message.size() != last_size) measure_size(layout.name(), message);
        last_size = message.size();
      }
      progress_.clear();
      table().rule();
    }
  }

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<Mover> mover;  // null: there is no such way here
    bool verified = true;
    Statistics statistics = {};
  };

  void measure_size(const std::string& layout, const Message& message) {
    progress_.step(fmt::format("{} {}", layout, short_size(message.size())));
    for (const std::string& target : options_.targets) {
      for (const std::string& direction : options_.directions) {
        measure({layout, message, target == "host" ? Place::pinned : Place::device, direction == "unpack"});
      }
    }
  }

  static std::unique_ptr<Mover> make_mover(const std::string& way, const Case& test) {
    if (way == "mpi") return make_mpi_mover(test.message);
    if (way == "kernel") return make_kernel_mover(test.message, test.target);
    if (way == "memcpy2d") return make_copy2d_mover(test.message, test.target);
    return make_block_mover(test.message, test.target);
  }

  int ring_size(const Message& message) const {
    if (options_.rotate == 0) return 1;
    const std::int64_t wanted = options_.rotate / device_traffic(message, false) + 1;
    return static_cast<int>(std::clamp<std::int64_t>(
        std::min(wanted, most_rotated_bytes / (message.span() + message.size())), 1, most_buffers));
  }

  void measure(const Case& test) {
    const Message flat(MPI_BYTE, false, static_cast<int>(test.message.size()),
                       StridedBlocks{0, test.message.size(), {}});
    BufferRing ring(test.message, flat, test.target, ring_size(test.message), canvas_);
    std::vector<Entry> entries;
    for (const std::string& way : options_.ways) entries.push_back({way, make_mover(way, test)});
    const int before = options_.verify / 2;
    for (Entry& entry : entries) verify(entry, test, flat, ring, before);
    take_samples(entries, test, ring);
    for (Entry& entry : entries) verify(entry, test, flat, ring, options_.verify - before);
    report(test, entries, ring.count());
  }

  void verify(Entry& entry, const Case& test, const Message& flat, BufferRing& ring, int times) {
    for (int i = 0; entry.mover && i < times; ++i) {
      const Seed seed{0, ++round_};
      BufferRing::Pair& pair = ring.next();
      const auto wrong = test.unpack ? verified_unpack(*entry.mover, pair, test.message, flat, seed)
                                     : verified_pack(*entry.mover, pair, test.message, flat, seed);
      if (!wrong) continue;
      entry.verified = false;
      fmt::print(stderr, "{}, {}: wrong data: {}\n", test.layout, entry.name, *wrong);
    }
  }

  static std::optional<std::string> verified_pack(Mover& mover, BufferRing::Pair& pair, const Message& message,
                                                  const Message& flat, Seed seed) {
    pair.user.load(message, seed);
    pair.packed.poison(flat);
    mover.pack(pair.user.address(), pair.packed.address());
    return pair.packed.mismatch(flat, seed);
  }

  static std::optional<std::string> verified_unpack(Mover& mover, BufferRing::Pair& pair, const Message& message,
                                                    const Message& flat, Seed seed) {
    pair.packed.load(flat, seed);
    pair.user.poison(message);
    mover.unpack(pair.packed.address(), pair.user.address());
    return pair.user.mismatch(message, seed);
  }

  void take_samples(std::vector<Entry>& entries, const Case& test, BufferRing& ring) {
    std::vector<Contestant> contestants;
    for (Entry& entry : entries) {
      if (!entry.mover) continue;
      contestants.push_back({entry.name, [&, mover = entry.mover.get()] {
                               const BufferRing::Pair& pair = ring.next();
                               const double start = now_us();
                               if (test.unpack) {
                                 mover->unpack(pair.packed.address(), pair.user.address());
                               } else {
                                 mover->pack(pair.user.address(), pair.packed.address());
                               }
                               return now_us() - start;
                             }});
    }
    sample_in_turns(contestants, options_.plan, [](bool wish) { return wish; });
    auto contestant = contestants.begin();
    for (Entry& entry : entries) {
      if (entry.mover) entry.statistics = summarise((contestant++)->samples);
    }
  }

  /// Microseconds below which nothing could do it; 0 where no limit is known.
  double limit_us(const Case& test) const {
    const bool host = test.target == Place::pinned;
    const std::int64_t bytes = host ? test.message.size() : device_traffic(test.message, test.unpack);
    const double rate = !host ? bandwidths_.device_copy : test.unpack ? bandwidths_.from_host : bandwidths_.to_host;
    return rate > 0 ? static_cast<double>(bytes) / rate / 1e3 : 0;
  }

  void report(const Case& test, const std::vector<Entry>& entries, std::size_t buffers) {
    const auto reference =
        std::find_if(entries.begin(), entries.end(), [](auto& e) { return e.name == reference_way; });
    const double by_hand = reference == entries.end() ? 0 : reference->statistics.median;
    progress_.clear();
    for (const Entry& entry : entries) {
      all_verified_ = all_verified_ && entry.verified;
      print_row(test, entry, by_hand, &entry == &entries.front());
      if (entry.mover) rows_.push_back(json_row(test, entry, by_hand, buffers));
    }
  }

  void print_row(const Case& test, const Entry& entry, double by_hand, bool first) const {
    const Statistics& s = entry.statistics;
    const double share = s.median > 0 ? limit_us(test) / s.median : 0;
    const char* data = !entry.mover ? "" : entry.verified ? "verified" : "WRONG";
    table().row({first ? test.layout : "", first ? std::to_string(test.message.size()) : "",
                 first ? target_name(test) : "", first ? call_name(test) : "", entry.name, number(s.median),
                 number(s.min), number(s.max), number(gigabytes_per_second(test.message.size(), s)),
                 share > 0 ? fmt::format("{:.0f} %", 100 * share) : "-", number(by_hand > 0 ? s.median / by_hand : 0),
                 data});
  }

  nlohmann::json json_row(const Case& test, const Entry& entry, double by_hand, std::size_t buffers) const {
    nlohmann::json row = to_json(entry.statistics);
    row.update({{"layout", test.layout},
                {"bytes", test.message.size()},
                {"blocks", test.message.block_count()},
                {"span", test.message.span()},
                {"target", target_name(test)},
                {"call", call_name(test)},
                {"way", entry.name},
                {"buffers", buffers},
                {"gb_per_s", gigabytes_per_second(test.message.size(), entry.statistics)},
                {"verified", entry.verified}});
    if (by_hand > 0) row["ratio_to_hand"] = entry.statistics.median / by_hand;
    if (limit_us(test) > 0) row["share_of_limit"] = limit_us(test) / entry.statistics.median;
    return row;
  }

  static const char* target_name(const Case& test) { return test.target == Place::pinned ? "host" : "device"; }
  static const char* call_name(const Case& test) { return test.unpack ? "unpack" : "pack"; }

  const Options& options_;
  bool simulated_;
  Canvas canvas_;
  Progress progress_;
  Bandwidths bandwidths_;
  std::int64_t round_ = 0;
  bool all_verified_ = true;
  nlohmann::json rows_ = nlohmann::json::array();
};

void print_head(const Machine& machine, const Bandwidths& limits) {
  fmt::print("# gpudt-packbench, on {}\n", describe(machine));
  if (limits.device_copy > 0) {
    fmt::print(
        "# limits of this run: device to host {:.1f} GB/s, host to device {:.1f} GB/s, inside the device {:.0f} GB/s\n",
        limits.to_host, limits.from_host, limits.device_copy);
  }
  table().head();
}

int measure_all(const Options& options) {
  const Machine machine = examine_machine(0);
  const bool through_mpi = std::find(options.ways.begin(), options.ways.end(), "mpi") != options.ways.end();
  require(machine, Place::device, through_mpi);
  use_gpu(machine);
  Runner runner(options, machine);
  print_head(machine, runner.bandwidths());
  runner.run();
  if (!options.json_file.empty()) {
    nlohmann::json settings = to_json(options), about = to_json(machine);
    settings["rotate"] = options.rotate;
    about["limits_gb_per_s"] = {{"to_host", runner.bandwidths().to_host},
                                {"from_host", runner.bandwidths().from_host},
                                {"device_copy", runner.bandwidths().device_copy}};
    write_json(options.json_file, "gpudt-packbench", std::move(about), std::move(settings), runner.rows());
  }
  if (!runner.all_verified()) fmt::print(stderr, "gpudt-packbench: some data was not packed right\n");
  return runner.all_verified() ? exit_ok : exit_wrong_data;
}

int run(const Options& options, int, int size) {
  if (size != 1) throw Refusal(fmt::format("this takes 1 process, not {}", size));
  return measure_all(options);
}

void add_options(CommandLine& command, Options& options) {
  add_common_options(command, options, all_ways);
  command.add_footer(ways_help);
  command.add("--targets", options.targets, "Where the packed side lies: host (mapped, pinned), device",
              {"host", "device"});
  command.add("--calls", options.directions, "pack, unpack", {"pack", "unpack"});
  command.add_size(
      "--rotate", options.rotate,
      "Use so many buffers in turn that they make this many bytes (e.g. 512M), so that no cache holds them");
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  CommandLine command(
      "MPI_Pack and MPI_Unpack of noncontiguous GPU memory, without communication.\n"
      "LD_PRELOAD=libgpudt-pmpi.so gpudt-packbench");
  add_options(command, options);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-packbench", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}
