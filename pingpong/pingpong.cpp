// gpudt-pingpong: times messages with noncontiguous data in GPU memory between two ranks, through MPI with the
// user's datatype and in the ways that a programmer would write by hand, and verifies every byte. An ordinary MPI
// program: it works on GPU buffers when libgpudt-pmpi.so is preloaded.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/options.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/common/statistics.hpp"
#include "pingpong/common/table.hpp"
#include "pingpong/ways.hpp"

namespace gpudt::bench {
namespace {

struct Options : CommonOptions {
  std::string send = "device", receive = "device";
};

const std::vector<std::string> all_ways = {"mpi", "zerocopy", "memcpy2d", "blocks", "host"};
constexpr const char* reference_way = "zerocopy";

constexpr const char* ways_help = R"(Ways:
  mpi       MPI_Send and MPI_Recv with the datatype on the buffer itself
  zerocopy  a hand-written kernel packs into mapped host memory, MPI sends that; backwards on the other side
  memcpy2d  cudaMemcpy2DAsync to pinned memory and back, where the layout allows it
  blocks    one cudaMemcpyAsync for each block, up to 1024 blocks
  host      the same number of bytes from host memory to host memory
The column /hand is the median divided by that of zerocopy. "-": that way does not exist for the row.
)";

const Table& table() {
  static const Table shown({{"layout", 16, true},
                            {"bytes", 9},
                            {"way", 8, true},
                            {"median us", 10},
                            {"min us", 10},
                            {"max us", 10},
                            {"GB/s", 8},
                            {"/hand", 6},
                            {"data", 8, true}});
  return shown;
}

/// Measures and shows all rows of one run.
class Runner {
 public:
  Runner(const Options& options, const Machine& machine, int rank)
      : options_(options),
        rank_(rank),
        canvas_(machine.gpu_count > 0 ? Place::pinned : Place::host),
        endpoint_{{place_from_name(options.send), canvas_},
                  {place_from_name(options.receive), canvas_},
                  Buffer(canvas_.image.place()),
                  Buffer(canvas_.image.place())},
        host_endpoint_{{Place::host, canvas_}, {Place::host, canvas_}, Buffer(Place::host), Buffer(Place::host)},
        progress_(rank == 0, options.layouts.size() * options.sizes.size()) {
    // The ways by hand move data out of device memory or into it.
    const bool by_hand = on_device(endpoint_.send.place()) || on_device(endpoint_.receive.place());
    std::copy_if(options.ways.begin(), options.ways.end(), std::back_inserter(ways_),
                 [&](const std::string& way) { return by_hand || way == "mpi" || way == "host"; });
  }

  void run() {
    for (const LayoutFamily& layout : options_.layouts) {
      std::int64_t last_size = 0;
      for (const std::int64_t bytes : options_.sizes) {
        progress_.step(fmt::format("{} {}", layout.name(), short_size(bytes)));
        const Message message = layout.message(bytes);
        if (message.size() != last_size) measure(layout.name(), message);
        last_size = message.size();
      }
      progress_.clear();
      if (rank_ == 0) table().rule();
    }
  }

  const nlohmann::json& rows() const { return rows_; }
  bool all_verified() const { return all_verified_; }

 private:
  struct Entry {
    std::string name;
    std::optional<PingPong> pingpong;  // empty: there is no such way here
    bool verified = true;
    Statistics statistics;
  };

  std::optional<PingPong> make_pingpong(const std::string& way, const Message& message, const Message& flat) {
    if (way == "mpi") return PingPong(rank_, message, endpoint_, make_typed_way(message, endpoint_, true));
    if (way == "host") return PingPong(rank_, flat, host_endpoint_, make_typed_way(flat, host_endpoint_, false));
    std::shared_ptr<Mover> mover = way == "zerocopy"   ? make_kernel_mover(message, Place::pinned)
                                   : way == "memcpy2d" ? make_copy2d_mover(message, Place::pinned)
                                                       : make_block_mover(message, Place::pinned);
    if (any_rank(mover == nullptr)) return std::nullopt;
    return PingPong(rank_, message, endpoint_, make_staged_way(message, endpoint_, std::move(mover)));
  }

  void verify(const std::string& layout, Entry& entry, int times) {
    for (int i = 0; i < times; ++i) {
      const auto wrong = entry.pingpong->verified_round_trip(++round_);
      if (wrong) fmt::print(stderr, "rank {}: {}, {}: wrong data: {}\n", rank_, layout, entry.name, *wrong);
      if (any_rank(wrong.has_value())) entry.verified = false;
    }
  }

  void measure(const std::string& layout, const Message& message) {
    const Message flat(MPI_BYTE, false, static_cast<int>(message.size()), StridedBlocks{0, message.size(), {}});
    endpoint_.reserve(message);
    host_endpoint_.reserve(flat);
    std::vector<Entry> entries;
    for (const std::string& way : ways_) entries.push_back({way, make_pingpong(way, message, flat), true, {}});
    const int before = options_.verify / 2;
    for_each_present(entries, [&](Entry& entry) { verify(layout, entry, before); });
    take_samples(entries);
    for_each_present(entries, [&](Entry& entry) { verify(layout, entry, options_.verify - before); });
    report(layout, message, entries);
  }

  template <class Act>
  static void for_each_present(std::vector<Entry>& entries, Act&& act) {
    for (Entry& entry : entries) {
      if (entry.pingpong) act(entry);
    }
  }

  void take_samples(std::vector<Entry>& entries) {
    std::vector<Contestant> contestants;
    for_each_present(entries, [&](Entry& entry) {
      contestants.push_back({entry.name, [&entry] { return entry.pingpong->round_trip(); }});
    });
    sample_in_turns(contestants, options_.plan, rank_zero_decides);
    auto contestant = contestants.begin();
    for_each_present(entries, [&](Entry& entry) { entry.statistics = summarise((contestant++)->samples); });
  }

  void report(const std::string& layout, const Message& message, const std::vector<Entry>& entries) {
    const auto reference =
        std::find_if(entries.begin(), entries.end(), [](auto& e) { return e.name == reference_way; });
    const double by_hand = reference == entries.end() ? 0 : reference->statistics.median;
    progress_.clear();
    for (const Entry& entry : entries) {
      all_verified_ = all_verified_ && entry.verified;
      if (rank_ != 0) continue;
      const bool first = &entry == &entries.front();
      print_row(first ? layout : "", first ? std::to_string(message.size()) : "", message, entry, by_hand);
      if (entry.pingpong) rows_.push_back(json_row(layout, message, entry, by_hand));
    }
  }

  void print_row(const std::string& layout, const std::string& bytes, const Message& message, const Entry& entry,
                 double by_hand) const {
    const Statistics& s = entry.statistics;
    const char* data = !entry.pingpong ? "" : entry.verified ? "verified" : "WRONG";
    table().row({layout, bytes, entry.name, number(s.median), number(s.min), number(s.max),
                 number(gigabytes_per_second(message.size(), s)), number(by_hand > 0 ? s.median / by_hand : 0), data});
  }

  nlohmann::json json_row(const std::string& layout, const Message& message, const Entry& entry, double by_hand) const {
    nlohmann::json row = to_json(entry.statistics);
    row.update({{"layout", layout},
                {"bytes", message.size()},
                {"blocks", message.block_count()},
                {"span", message.span()},
                {"way", entry.name},
                {"send", options_.send},
                {"receive", options_.receive},
                {"gb_per_s", gigabytes_per_second(message.size(), entry.statistics)},
                {"verified", entry.verified}});
    if (by_hand > 0) row["ratio_to_hand"] = entry.statistics.median / by_hand;
    return row;
  }

  const Options& options_;
  int rank_;
  std::vector<std::string> ways_;
  Canvas canvas_;
  Endpoint endpoint_, host_endpoint_;
  Progress progress_;
  std::int64_t round_ = 0;
  bool all_verified_ = true;
  nlohmann::json rows_ = nlohmann::json::array();
};

void require_places(const Machine& machine, const Options& options) {
  const bool through_mpi = std::find(options.ways.begin(), options.ways.end(), "mpi") != options.ways.end();
  require(machine, place_from_name(options.send), through_mpi);
  require(machine, place_from_name(options.receive), through_mpi);
}

/// --ways host alone needs neither a GPU nor gpudt.
void adapt_to_ways(Options& options) {
  if (options.ways == std::vector<std::string>{"host"}) options.send = options.receive = "host";
}

bool is_served_by_mps() {
  constexpr auto mps_enabled = static_cast<cudaDeviceAttr>(133);  // cudaDevAttrMpsEnabled, unknown to early CUDA 12
  int mps = 0;
  return cudaDeviceGetAttribute(&mps, mps_enabled, 0) == cudaSuccess && mps != 0;
}

int measure_all(const Options& options, int rank) {
  const Machine machine = examine_machine(rank);
  require_places(machine, options);
  use_gpu(machine);
  if (rank == 0) {
    fmt::print("# gpudt-pingpong, {} -> {}, on {}\n", options.send, options.receive, describe(machine));
    if (machine.gpu_count == 1 && !machine.simulated && !is_served_by_mps()) {
      fmt::print("# Both ranks share one GPU, which takes turns between processes: kernels wait for their turn.\n");
    }
    table().head();
  }
  Runner runner(options, machine, rank);
  runner.run();
  if (rank == 0 && !options.json_file.empty()) {
    nlohmann::json settings = to_json(options);
    settings.update({{"send", options.send}, {"receive", options.receive}});
    write_json(options.json_file, "gpudt-pingpong", to_json(machine), std::move(settings), runner.rows());
  }
  if (!runner.all_verified() && rank == 0) fmt::print(stderr, "gpudt-pingpong: some data did not arrive intact\n");
  return runner.all_verified() ? exit_ok : exit_wrong_data;
}

int run(const Options& options, int rank, int size) {
  if (size != 2) {
    throw Refusal(fmt::format("this takes 2 ranks, not {}: mpirun -np 2 ... gpudt-pingpong", size));
  }
  return measure_all(options, rank);
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  CommandLine command(
      "Ping-pong of noncontiguous buffers in GPU memory between two ranks, through MPI and by hand.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-pingpong");
  add_common_options(command, options, all_ways);
  command.add_footer(ways_help);
  const std::vector<std::string> places = {"device", "host", "pinned", "managed"};
  command.add("--send", options.send, "Memory that is sent from", places);
  command.add("--recv", options.receive, "Memory that is received into", places);
  if (const auto code = command.parse(argc, argv)) return *code;
  adapt_to_ways(options);
  return run_program("gpudt-pingpong", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}
