// gpudt-tune: measures what kernels and the copy engine cost on this machine's GPU, by the very code that moves
// messages, and keeps the figures where the library looks for them (device/choice/tuning.hpp). One process, without
// mpirun; seconds. What the model has besides (thresholds, how long lateness is believed) is no matter of measurement
// and stays.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "datatype/tree.hpp"
#include "device/choice/host_cpu.hpp"
#include "device/cuda/make_runtime.hpp"
#include "device/sim/make_runtime.hpp"
#include "device/transfer/engine.hpp"
#include "pingpong/common/machine.hpp"
#include "pingpong/common/options.hpp"
#include "pingpong/common/sampling.hpp"
#include "pingpong/common/statistics.hpp"
#include "pingpong/common/table.hpp"

namespace gpudt::bench {
namespace {

using datatype::LayoutRef;
using device::CostModel;
using device::Direction;
using device::StagingKind;
using device::Way;

struct Options {
  int gpu = 0;
  bool dry_run = false;
  std::string file;
  double seconds = 0.3;
};

constexpr std::int64_t stride = 512;           // between rows
constexpr std::int64_t small_bytes = 1 << 10;  // what base_us is measured with
constexpr std::int64_t many_rows = 8192, row_bytes = 8;
constexpr std::int64_t list_run = 16;
constexpr std::int64_t wide_row = 128;  // wide enough for kernels to reach the link's bandwidth
constexpr int several = 16;             // messages that are started together
constexpr double busy_spread = 2;       // between the 90th percentile and the median

LayoutRef rows(std::int64_t count, std::int64_t width, std::int64_t distance) {
  datatype::Tree tree({});
  const datatype::Ref root = tree.finish(tree.strided(count, distance, tree.run(width)));
  return datatype::Serialiser::serialise(tree, root, {0, count * distance});
}

/// Runs of `width` bytes at place_of(0), place_of(1) ...
template <class PlaceOf>
LayoutRef listed(std::int64_t runs, std::int64_t width, PlaceOf place_of) {
  datatype::Words places;
  places.reserve(static_cast<std::size_t>(runs));
  for (std::int64_t run = 0; run < runs; ++run) places.push_back(place_of(run));
  const std::int64_t extent = places.back() + width;
  datatype::Tree tree({});
  const datatype::Ref root = tree.finish(tree.indexed(std::move(places), tree.run(width)));
  return datatype::Serialiser::serialise(tree, root, {0, extent});
}

/// At growing distances.
LayoutRef list(std::int64_t runs) {
  return listed(runs, list_run, [](std::int64_t run) { return run * (stride + run * list_run); });
}

/// Close together, at one of three distances.
LayoutRef dense_list(std::int64_t runs, std::int64_t width) {
  return listed(runs, width, [=](std::int64_t run) { return (3 * run + run * run % 3) * width; });
}

LayoutRef contiguous(std::int64_t bytes) {
  return rows(1, bytes, bytes);
}

std::unique_ptr<device::Runtime> make_runtime() {
  std::unique_ptr<device::Runtime> runtime = device::make_sim_runtime();
  if (!runtime) runtime = device::make_cuda_runtime();
  if (!runtime) throw Refusal("no GPU is to be found here. Preload libgpudt-sim.so for the simulated device.");
  return runtime;
}

/// The GPU with the library's engines for either way, and memory to move: its own, pinned memory of the host, and that
/// of another GPU which it reaches, if there is one.
class Laboratory {
 public:
  explicit Laboratory(const Options& options)
      : options_(options), kernels_(make_runtime(), by(Way::kernel)), copies_(make_runtime(), by(Way::copy)) {
    const std::string runtime = kernels_.runtime().name();
    simulated_ = runtime == "sim";
    large_bytes_ = simulated_ ? std::int64_t{1} << 20 : std::int64_t{16} << 20;
    const auto most = static_cast<std::size_t>(large_bytes_ / wide_row * stride);
    user_ = kernels_.staging().acquire(StagingKind::device, options.gpu, most);
    on_device_ = kernels_.staging().acquire(StagingKind::device, options.gpu, most);
    on_host_ = kernels_.staging().acquire(StagingKind::mapped, options.gpu, static_cast<std::size_t>(large_bytes_));
    find_peer(most);
  }

  bool simulated() const { return simulated_; }
  std::string gpu_name() { return kernels_.gpu(options_.gpu).traits.name; }
  std::int64_t large_bytes() const { return large_bytes_; }
  std::int64_t device_bytes() const { return static_cast<std::int64_t>(user_.capacity()); }
  bool has_peer() const { return bool{on_peer_}; }
  bool busy() const { return busy_; }
  const nlohmann::json& measurements() const { return measurements_; }

  /// Median microseconds of moving packed bytes [begin, end) of a layout; `what` is its name in the file.
  double time(const std::string& what, Way way, Direction direction, StagingKind packed, const LayoutRef& layout,
              std::int64_t begin, std::int64_t end) {
    const device::Staging& place = packed == StagingKind::mapped ? on_host_ : on_device_;
    return time(what, [&] {
      engine(way)
          .start(direction, options_.gpu, *layout, 1, user_.data(), begin, end, place.data(), place.memory_kind())
          .wait();
    });
  }
  double time(const std::string& what, Way way, Direction direction, StagingKind packed, const LayoutRef& layout) {
    return time(what, way, direction, packed, layout, 0, layout->size());
  }
  /// The same of `several` small messages to pinned memory: started within a Gathering, to be launched together, or one
  /// after the other.
  double time_several(const std::string& what, Way way, const LayoutRef& layout, bool gathered) {
    return time(what, [&] {
      std::vector<device::Transfer> transfers;
      transfers.reserve(several);
      {
        std::optional<device::Gathering> gathering;
        if (gathered) gathering.emplace(device::Gathering::short_bytes);
        for (int i = 0; i < several; ++i)
          transfers.push_back(engine(way).start(Direction::pack, options_.gpu, *layout, 1, user_.data(), 0,
                                                layout->size(), piece_of_host(i, layout->size()),
                                                on_host_.memory_kind()));
      }
      for (device::Transfer& transfer : transfers) transfer.wait();
    });
  }
  /// The same of fetching a layout's data from the other GPU.
  double time_peer(const std::string& what, Way way, const LayoutRef& layout) {
    const device::Side from = {layout.get(), 1, peer_.at(reinterpret_cast<std::uintptr_t>(on_peer_.data()))};
    const device::Side to = {layout.get(), 1, user_.data()};
    return time(what, [&] { engine(way).transfer(options_.gpu, from, to, 0, layout->size()).wait(); });
  }

 private:
  double time(const std::string& what, const std::function<void()>& work) {
    std::vector<Contestant> one = {{what, [&] {
                                      const double start = now_us();
                                      work();
                                      return now_us() - start;
                                    }}};
    SamplingPlan plan;
    plan.seconds = options_.seconds;
    sample_in_turns(one, plan, [](bool wish) { return wish; });
    const Statistics statistics = summarise(one[0].samples);
    busy_ = busy_ || statistics.p90 > busy_spread * statistics.median;
    measurements_[what] = to_json(statistics);
    return statistics.median;
  }
  device::Engine& engine(Way way) { return way == Way::kernel ? kernels_ : copies_; }
  std::byte* piece_of_host(int index, std::int64_t bytes) const {
    return static_cast<std::byte*>(on_host_.data()) + index * bytes;
  }
  /// Takes the first GPU but this one whose memory can be had.
  void find_peer(std::size_t bytes) {
    for (int other = 0; other < most_gpus && !peer_; ++other) {
      if (other == options_.gpu) continue;
      try {
        device::Exported exported;
        on_peer_ = kernels_.staging().acquire(StagingKind::device, other, bytes);
        if (kernels_.peers().export_memory(other, kernels_.gpu(other).traits, on_peer_.data(), exported))
          peer_ = kernels_.peers().import_memory(options_.gpu, 0, exported, nullptr);
      } catch (const device::Error&) {  // there is no such GPU, or it has no memory
      }
      if (!peer_) on_peer_ = {};
    }
  }

  static constexpr int most_gpus = 16;
  static device::Config by(Way way) {
    device::Config config;
    config.way = way;
    return config;
  }

  const Options& options_;
  device::Engine kernels_, copies_;
  bool simulated_ = false, busy_ = false;
  std::int64_t large_bytes_ = 0;
  device::Staging user_, on_device_, on_host_, on_peer_;
  device::Mapping peer_;
  nlohmann::json measurements_ = nlohmann::json::object();
};

/// Microseconds that `bytes` take beyond `base_us`, as a rate. Noise may leave nothing beyond it.
double rate(std::int64_t bytes, double us, double base_us) {
  constexpr double least_us = 0.1;
  return static_cast<double>(bytes) / std::max(us - base_us, least_us);
}

/// What one way costs in one direction, from a small message and a large one.
void measure_cost(Laboratory& laboratory, const std::string& name, device::Cost& cost, Way way, Direction direction,
                  StagingKind packed, const LayoutRef& small, const LayoutRef& large) {
  cost.base_us = laboratory.time(name + ", small", way, direction, packed, small);
  const double us = laboratory.time(name + ", large", way, direction, packed, large);
  cost.bytes_per_us = rate(large->size(), us, cost.base_us);
}

/// ... and of many rows, for the copy engine.
void measure_rows(Laboratory& laboratory, const std::string& name, device::Cost& cost, Direction direction) {
  const double us = laboratory.time(name + ", many rows", Way::copy, direction, StagingKind::mapped,
                                    rows(many_rows, row_bytes, stride));
  cost.row_ns = std::max(us - cost.base_us, 0.0) / static_cast<double>(many_rows) * 1e3;
}

/// The rest of a row, rows, and the beginning of one, against whole rows: three calls against one.
double measure_calls(Laboratory& laboratory) {
  const LayoutRef layout = rows(8, wide_row, stride);
  const auto of = [&](const std::string& what, std::int64_t cut) {
    return laboratory.time(what, Way::copy, Direction::pack, StagingKind::mapped, layout, cut, layout->size() - cut);
  };
  constexpr double calls_more = 2;
  return std::max(of("rows in three calls", wide_row / 2) - of("rows in one call", wide_row), 0.0) / calls_more;
}

struct RunTimes {
  double each_us, base_us;
};

/// Index lists of many runs against such of a few, each by one call. All but the last run: the whole message would come
/// to the host with what lies between.
RunTimes measure_runs(Laboratory& laboratory, const std::string& what, Direction direction) {
  constexpr std::int64_t few = 4, many = device::CopyPlan::most_together;
  const auto of = [&](const std::string& how_many, std::int64_t runs) {
    return laboratory.time(how_many + what, Way::copy, direction, StagingKind::mapped, list(runs), 0,
                           (runs - 1) * list_run);
  };
  const double few_us = of("a few runs", few);
  const double each_us = std::max(of("many runs", many) - few_us, 0.0) / static_cast<double>(many - few);
  return {each_us, std::max(few_us - static_cast<double>(few) * each_us, 0.0)};
}

/// Lists that come to the host with what lies between their runs, beyond what copying that takes: of short runs, and of
/// long ones.
void measure_host_pack(Laboratory& laboratory, CostModel& model) {
  const auto beyond_copy = [&](const std::string& what, const LayoutRef& layout) {
    const device::Cost& copy = model.copy_pack_to_host;
    const double us = laboratory.time(what, Way::copy, Direction::pack, StagingKind::mapped, layout);
    const double copy_us = copy.base_us + static_cast<double>(layout->span(1).bytes()) / copy.bytes_per_us;
    return std::max(us - copy_us - model.host_pack.base_us, 0.0);
  };
  constexpr std::int64_t short_runs = 4096, long_runs = 2 * device::CopyPlan::most_together, long_run = 4 << 10;
  model.host_pack.row_ns = beyond_copy("short runs packed by the host", dense_list(short_runs, list_run)) /
                           static_cast<double>(short_runs) * 1e3;
  model.host_pack.bytes_per_us =
      rate(long_runs * long_run, beyond_copy("long runs packed by the host", dense_list(long_runs, long_run)), 0);
}

/// What a message adds to others that are under way, besides what its bytes take.
void measure_several(Laboratory& laboratory, CostModel& model, const LayoutRef& layout) {
  const auto each = [&](const char* name, const device::Cost& cost, Way way, bool gathered) {
    const double us = laboratory.time_several(name, way, layout, gathered);
    const double bytes_us = static_cast<double>(layout->size()) / cost.bytes_per_us;
    return std::max((us - cost.base_us) / (several - 1) - bytes_us, 0.0);
  };
  model.batch_job_us = each("several by one kernel", model.kernel_pack_to_host, Way::kernel, true);
  model.extra_copy_us = each("several copies", model.copy_pack_to_host, Way::copy, false);
}

void measure_peer(Laboratory& laboratory, const std::string& name, device::Cost& cost, Way way) {
  const LayoutRef huge = contiguous(laboratory.device_bytes());
  cost.base_us = laboratory.time_peer(name + ", small", way, contiguous(small_bytes));
  cost.bytes_per_us = rate(huge->size(), laboratory.time_peer(name + ", large", way, huge), cost.base_us);
  const std::int64_t all_rows = laboratory.device_bytes() / stride;  // fewer would be lost in the noise
  const double us = laboratory.time_peer(name + ", many rows", way, rows(all_rows, row_bytes, stride));
  cost.row_ns = std::max(us - cost.base_us, 0.0) / static_cast<double>(all_rows) * 1e3;
}

CostModel measure(Laboratory& laboratory) {
  CostModel model;
  const LayoutRef few = rows(2, small_bytes / 2, stride * 2), flat = contiguous(small_bytes);
  const std::int64_t large = laboratory.large_bytes();
  const LayoutRef wide = rows(large / wide_row, wide_row, stride), large_flat = contiguous(large);
  const LayoutRef huge = contiguous(laboratory.device_bytes());
  const auto cost = [&](const char* name, device::Cost& way_cost, Way way, Direction direction, StagingKind packed,
                        const LayoutRef& small_layout, const LayoutRef& large_layout) {
    measure_cost(laboratory, name, way_cost, way, direction, packed, small_layout, large_layout);
  };
  using enum Direction;
  cost("kernel_pack_to_host", model.kernel_pack_to_host, Way::kernel, pack, StagingKind::mapped, few, wide);
  cost("kernel_unpack_from_host", model.kernel_unpack_from_host, Way::kernel, unpack, StagingKind::mapped, few, wide);
  cost("kernel_on_device", model.kernel_on_device, Way::kernel, pack, StagingKind::device, flat, huge);
  cost("copy_pack_to_host", model.copy_pack_to_host, Way::copy, pack, StagingKind::mapped, few, large_flat);
  cost("copy_unpack_from_host", model.copy_unpack_from_host, Way::copy, unpack, StagingKind::mapped, flat, large_flat);
  cost("copy_rows_unpack_from_host", model.copy_rows_unpack_from_host, Way::copy, unpack, StagingKind::mapped, few,
       rows(large / (64 << 10), 64 << 10, 64 << 10 | stride));
  cost("copy_on_device", model.copy_on_device, Way::copy, pack, StagingKind::device, flat, huge);
  measure_rows(laboratory, "copy_pack_to_host", model.copy_pack_to_host, pack);
  measure_rows(laboratory, "copy_rows_unpack_from_host", model.copy_rows_unpack_from_host, unpack);
  model.per_call_us = measure_calls(laboratory);
  model.per_run_us = measure_runs(laboratory, "", pack).each_us;
  const RunTimes from_host = measure_runs(laboratory, " from the host", unpack);
  model.copy_runs_unpack_from_host = {from_host.base_us, from_host.each_us * 1e3,
                                      model.copy_rows_unpack_from_host.bytes_per_us};
  measure_host_pack(laboratory, model);
  measure_several(laboratory, model, few);
  if (laboratory.has_peer()) {
    measure_peer(laboratory, "kernel_to_peer", model.kernel_to_peer, Way::kernel);
    measure_peer(laboratory, "copy_to_peer", model.copy_to_peer, Way::copy);
  }
  return model;
}

/// By name, those that differ from the built-in ones: what was not measured does not.
std::map<std::string, std::pair<double, double>> differences(const CostModel& model) {
  const CostModel built_in;
  std::map<std::string, std::pair<double, double>> both;
  device::for_each_constant(built_in, [&](const std::string& name, double value, double) { both[name].first = value; });
  device::for_each_constant(model, [&](const std::string& name, double value, double) { both[name].second = value; });
  std::erase_if(both, [](const auto& each) { return each.second.first == each.second.second; });
  return both;
}

void print(const CostModel& model) {
  const Table table({{"constant", 40, true}, {"built in", 10}, {"measured", 10}, {"ratio", 6}});
  table.head();
  for (const auto& [name, values] : differences(model)) {
    const auto [built_in, measured] = values;
    table.row({name, number(built_in), number(measured), built_in > 0 ? number(measured / built_in) : "-"});
  }
}

nlohmann::json document(const CostModel& model, const device::TuningKey& key, const Laboratory& laboratory) {
  nlohmann::json costs = nlohmann::json::object();
  for (const auto& [name, values] : differences(model)) costs[name] = values.second;
  const std::time_t now = std::time(nullptr);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  nlohmann::json file = {{"gpudt_tuning", device::tuning_version},
                         {"gpu", key.gpu},
                         {"cpu", key.cpu},
                         {"simulated", laboratory.simulated()},
                         {"program", "gpudt-tune"},
                         {"time", time},
                         {"costs", std::move(costs)},
                         {"measurements", laboratory.measurements()}};
  if (laboratory.simulated())
    file["note"] = "of the simulated device: these figures mean nothing, and no GPU uses them";
  return file;
}

/// The file is there as a whole or not at all, whoever reads it meanwhile.
void write_whole(const std::string& file, const std::string& text) {
  const std::filesystem::path path(file);
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  const std::string part = fmt::format("{}.{}.part", file, getpid());
  std::FILE* const out = std::fopen(part.c_str(), "w");
  if (out == nullptr) throw std::runtime_error("cannot write " + part);
  const bool written =
      std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0 && fsync(fileno(out)) == 0;
  if (std::fclose(out) != 0 || !written || std::rename(part.c_str(), file.c_str()) != 0) {
    std::remove(part.c_str());
    throw std::runtime_error("cannot write " + file);
  }
}

int run(const Options& options) {
  const double start = now_us();
  Laboratory laboratory(options);
  const device::TuningKey key = {laboratory.gpu_name(), device::host_cpu()};
  fmt::print("# gpudt-tune: GPU {}, {}; {}\n", options.gpu, key.gpu, key.cpu);
  if (laboratory.simulated()) fmt::print("# The simulated device: the figures mean nothing, and no GPU uses them.\n");
  if (!laboratory.has_peer())
    fmt::print("# There is no other GPU that it reaches: costs between GPUs stay as built in.\n");
  const CostModel model = measure(laboratory);
  print(model);
  if (laboratory.busy()) fmt::print("Times varied widely: was the GPU, or the machine, busy? Better run this again.\n");
  const std::string text = document(model, key, laboratory).dump(1) + "\n";
  const std::string file = options.file.empty() ? device::tuning_path(key) : options.file;
  const std::string complaint = device::parse_tuning(text, file, key).complaint;
  if (!complaint.empty()) throw std::runtime_error(complaint);
  const double seconds = (now_us() - start) / 1e6;
  if (options.dry_run) {
    fmt::print("{}Measured in {:.1f} s; nothing was written.\n", text, seconds);
    return exit_ok;
  }
  if (file.empty()) throw Refusal("neither XDG_CACHE_HOME nor HOME says where the file belongs: name one with --out");
  write_whole(file, text);
  fmt::print("Measured in {:.1f} s; written to {}\n", seconds, file);
  return exit_ok;
}

void add_options(CommandLine& command, Options& options) {
  command.add("--gpu", options.gpu, "Which GPU to measure; all of one model share the file", {Bounds::not_negative});
  command.add_flag("--dry-run", options.dry_run, "Print the file instead of writing it");
  command.add("--out", options.file, "Another file than the one that the library looks for by itself");
  command.add("--seconds", options.seconds, "Time for each of the measurements, which are about thirty",
              {Bounds::positive});
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  CommandLine command(
      "Measures what moving data costs on this machine's GPU, for libgpudt-pmpi.so to choose by.\n"
      "Run it once on each kind of machine, on an idle GPU.");
  add_options(command, options);
  if (const auto code = command.parse(argc, argv)) return *code;
  try {
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpudt-tune: {}\n", error.what());
    return exit_usage;
  }
}
