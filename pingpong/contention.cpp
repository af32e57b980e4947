// gpudt-contention: packing or unpacking while the application uses the GPU or its link (Jenkins et al., section 4.4
// and table 2): the time of the packing and of the application's own work, each alone and both at once, in either
// order. One process packs into pinned memory, or unpacks from there; two play ping-pong, each beside such work. Only a
// GPU can tell: there is nothing to measure on the simulated device.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <nlohmann/json.hpp>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/movers.hpp"
#include "pingpong/common/options.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/common/statistics.hpp"
#include "pingpong/common/table.hpp"
#include "pingpong/user_load.hpp"
#include "pingpong/ways.hpp"

namespace gpudt::bench {
namespace {

const std::vector<std::string> all_ways = {"mpi", "kernel", "memcpy2d", "blocks"};
constexpr double launch_delay = 5;  // microseconds from the start of a pack to that of the work after it

constexpr const char* ways_help = R"(Ways:
  mpi       MPI_Pack, or MPI_Send and MPI_Recv; GPUDT_WAY tells gpudt how: auto, kernel or copy
  kernel    a hand-written kernel
  memcpy2d  cudaMemcpy2DAsync, where the layout allows it
  blocks    one cudaMemcpyAsync for each block, up to 1024 blocks
Order: "user first" packs while the work goes on; "pack first" starts the work 5 us after the packing (not with 2 ranks).
Columns: medians; /alone is relative to the same without the other; total is from the first start to the last end.
)";

struct Options : CommonOptions {
  std::vector<std::string> loads;
  double user_ms = 3;
  bool unpack = false;
};

const Table& table() {
  static const Table shown({{"layout", 12, true},
                            {"bytes", 9},
                            {"load", 5, true},
                            {"order", 10, true},
                            {"way", 10, true},
                            {"pack us", 9},
                            {"max us", 9},
                            {"/alone", 6},
                            {"user us", 9},
                            {"/alone", 6},
                            {"total us", 9},
                            {"data", 8, true}});
  return shown;
}

/// One way to do what is measured: pack, unpack, or go there and back.
class Job {
 public:
  virtual ~Job() = default;
  /// Microseconds. Collective.
  virtual double run() = 0;
  /// With fresh data; `begin` is called right before. Collective.
  virtual std::optional<std::string> verified(std::int64_t round, const std::function<void()>& begin) = 0;
};

/// Between the endpoint's buffers.
class MoverJob : public Job {
 public:
  MoverJob(const Message& message, Endpoint& endpoint, std::unique_ptr<Mover> mover)
      : message_(message), endpoint_(endpoint), mover_(std::move(mover)) {}

 protected:
  const Message& message_;
  Endpoint& endpoint_;
  std::unique_ptr<Mover> mover_;
};

class PackJob final : public MoverJob {
 public:
  using MoverJob::MoverJob;
  double run() override {
    const double start = now_us();
    mover_->pack(endpoint_.send.address(), endpoint_.send_staging.data());
    return now_us() - start;
  }
  std::optional<std::string> verified(std::int64_t round, const std::function<void()>& begin) override {
    const auto size = static_cast<std::size_t>(message_.size());
    endpoint_.send.load(message_, {0, round});
    endpoint_.send_staging.fill(std::byte{0xFF}, size);
    begin();
    run();
    return first_difference(packed_stream({0, round}, message_.size()), {endpoint_.send_staging.data(), size});
  }
};

class UnpackJob final : public MoverJob {
 public:
  using MoverJob::MoverJob;
  double run() override {
    const double start = now_us();
    mover_->unpack(endpoint_.receive_staging.data(), endpoint_.receive.address());
    return now_us() - start;
  }
  std::optional<std::string> verified(std::int64_t round, const std::function<void()>& begin) override {
    endpoint_.receive.poison(message_);
    const std::vector<std::byte> stream = packed_stream({0, round}, message_.size());
    std::copy(stream.begin(), stream.end(), endpoint_.receive_staging.data());
    begin();
    run();
    return endpoint_.receive.mismatch(message_, {0, round});
  }
};

class PingPongJob final : public Job {
 public:
  explicit PingPongJob(PingPong pingpong) : pingpong_(std::move(pingpong)) {}
  double run() override { return pingpong_.round_trip(); }
  std::optional<std::string> verified(std::int64_t round, const std::function<void()>& begin) override {
    begin();
    return pingpong_.verified_round_trip(round);
  }

 private:
  PingPong pingpong_;
};

/// What becomes of a job and of the user's work; empty where there was none.
struct Times {
  std::vector<double> pack, user, total;
};

/// The work, and the job beside it, in one of the orders. Either may be missing.
class Trial {
 public:
  Trial(const Machine& machine, UserLoad* load, Job* job, bool user_first)
      : machine_(machine), load_(load), job_(job), user_first_(user_first) {}

  void run(Times& times) {
    const double start = now_us();
    if (load_ == nullptr) {
      times.pack.push_back(job_->run());
    } else if (user_first_ || job_ == nullptr) {
      load_->start();
      if (job_ != nullptr) times.pack.push_back(job_->run());
      times.user.push_back(load_->wait());
    } else {
      pack_first(times);
    }
    times.total.push_back(now_us() - start);
  }

 private:
  /// Packing blocks this thread: another starts the work.
  void pack_first(Times& times) {
    std::atomic<bool> ready = false;
    std::atomic<double> start = 0;
    auto launch = std::async(std::launch::async, [&] {
      use_gpu(machine_);
      ready = true;
      while (start == 0) {
      }
      while (now_us() < start + launch_delay) {
      }
      load_->start();
    });
    while (!ready) {
    }
    start = now_us();
    times.pack.push_back(job_->run());
    launch.get();
    times.user.push_back(load_->wait());
  }

  const Machine& machine_;
  UserLoad* load_;
  Job* job_;
  bool user_first_;
};

/// Measures and shows all rows of one run.
class Runner {
 public:
  Runner(const Options& options, const Machine& machine, int rank, bool pingpong)
      : options_(options),
        machine_(machine),
        rank_(rank),
        pingpong_(pingpong),
        canvas_(Place::pinned),
        endpoint_{{Place::device, canvas_}, {Place::device, canvas_}, Buffer(Place::pinned), Buffer(Place::pinned)} {
    const char* const way = std::getenv("GPUDT_WAY");
    gpudt_way_ = way == nullptr || machine.gpudt_version.empty() ? "" : way;
    for (const std::string& name : options.loads) {
      loads_.push_back({name, make_load(name, 1000 * options.user_ms), 0});
      Times times;
      Trial trial(machine_, loads_.back().load.get(), nullptr, true);
      repeat([&] { trial.run(times); });
      loads_.back().alone = median(times.user);
    }
  }

  void run() {
    for (const LayoutFamily& layout : options_.layouts) {
      for (const std::int64_t bytes : options_.sizes) measure(layout.name(), layout.message(bytes));
      if (rank_ == 0) table().rule();
    }
  }

  const nlohmann::json& rows() const { return rows_; }
  bool all_verified() const { return all_verified_; }

 private:
  struct Load {
    std::string name;
    std::unique_ptr<UserLoad> load;
    double alone;  // microseconds
  };
  struct Way {
    std::string name;
    std::unique_ptr<Job> job;
    double alone = 0;  // microseconds
  };
  struct Row {
    const std::string& layout;
    const Message& message;
    const Load* load;
    bool user_first;
  };

  static double median(const std::vector<double>& samples) { return summarise(samples).median; }

  template <class Act>
  void repeat(Act&& act) const {
    for (int i = 0; i < options_.plan.iterations; ++i) act();
  }

  std::unique_ptr<Job> make_job(const std::string& way, const Message& message) {
    std::unique_ptr<Mover> mover = way == "mpi"        ? make_mpi_mover(message)
                                   : way == "kernel"   ? make_kernel_mover(message, Place::pinned)
                                   : way == "memcpy2d" ? make_copy2d_mover(message, Place::pinned)
                                                       : make_block_mover(message, Place::pinned);
    if (any_rank(mover == nullptr)) return nullptr;
    if (!pingpong_ && options_.unpack) return std::make_unique<UnpackJob>(message, endpoint_, std::move(mover));
    if (!pingpong_) return std::make_unique<PackJob>(message, endpoint_, std::move(mover));
    return std::make_unique<PingPongJob>(PingPong(rank_, message, endpoint_,
                                                  way == "mpi"
                                                      ? make_typed_way(message, endpoint_, true)
                                                      : make_staged_way(message, endpoint_, std::move(mover))));
  }

  void measure(const std::string& layout, const Message& message) {
    endpoint_.reserve(message);
    endpoint_.send.poison(message);
    endpoint_.receive.poison(message);
    std::vector<Way> ways;
    for (const std::string& name : options_.ways) {
      if (auto job = make_job(name, message)) ways.push_back({name, std::move(job)});
    }
    for (Way& way : ways) way.job->run();
    measure_row({layout, message, nullptr, true}, ways);
    for (const Load& load : loads_) {
      measure_row({layout, message, &load, true}, ways);
      if (!pingpong_) measure_row({layout, message, &load, false}, ways);
    }
  }

  void measure_row(const Row& row, std::vector<Way>& ways) {
    std::vector<Times> times(ways.size());
    UserLoad* const load = row.load == nullptr ? nullptr : row.load->load.get();
    repeat([&] {
      for (std::size_t i = 0; i < ways.size(); ++i) {
        Trial(machine_, load, ways[i].job.get(), row.user_first).run(times[i]);
      }
    });
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (row.load == nullptr) ways[i].alone = median(times[i].pack);
      const bool right = verify(row, ways[i], load);
      all_verified_ = all_verified_ && right;
      if (rank_ == 0) report(row, ways[i], times[i], right, i == 0);
    }
  }

  bool verify(const Row& row, Way& way, UserLoad* load) {
    const auto wrong = way.job->verified(++round_, [&] {
      if (load != nullptr) load->start();
    });
    if (load != nullptr) load->wait();
    if (wrong) fmt::print(stderr, "rank {}: {}, {}: wrong data: {}\n", rank_, row.layout, way.name, *wrong);
    return !any_rank(wrong.has_value());
  }

  void report(const Row& row, const Way& way, const Times& times, bool right, bool first) {
    const Statistics pack = summarise(times.pack), user = summarise(times.user), total = summarise(times.total);
    const double user_alone = row.load == nullptr ? 0 : row.load->alone;
    const std::string load = row.load == nullptr ? "none" : row.load->name;
    const std::string order = row.load == nullptr ? "" : row.user_first ? "user first" : "pack first";
    const std::string shown_way = way.name == "mpi" && !gpudt_way_.empty() ? "mpi " + gpudt_way_ : way.name;
    table().row({first ? row.layout : "", first ? std::to_string(row.message.size()) : "", first ? load : "",
                 first ? order : "", shown_way, number(pack.median), number(pack.max),
                 number(way.alone > 0 ? pack.median / way.alone : 0), number(user.median),
                 number(user_alone > 0 ? user.median / user_alone : 0), number(total.median),
                 right ? "verified" : "WRONG"});
    rows_.push_back({{"layout", row.layout},
                     {"bytes", row.message.size()},
                     {"load", load},
                     {"order", order},
                     {"way", way.name},
                     {"pack", to_json(pack)},
                     {"pack_alone_us", way.alone},
                     {"user", to_json(user)},
                     {"user_alone_us", user_alone},
                     {"total", to_json(total)},
                     {"verified", right}});
    if (way.name == "mpi") rows_.back()["gpudt_way"] = gpudt_way_;
  }

  const Options& options_;
  const Machine& machine_;
  int rank_;
  bool pingpong_;
  Canvas canvas_;
  Endpoint endpoint_;
  std::string gpudt_way_;
  std::vector<Load> loads_;
  std::int64_t round_ = 0;
  bool all_verified_ = true;
  nlohmann::json rows_ = nlohmann::json::array();
};

void require_gpu(const Machine& machine, const Options& options) {
  if (machine.gpu_count == 0 || machine.simulated) {
    throw Refusal("this needs a GPU: on the simulated device there is nothing that packing could contend for");
  }
  const bool through_mpi = std::find(options.ways.begin(), options.ways.end(), "mpi") != options.ways.end();
  require(machine, Place::device, through_mpi);
}

int run(const Options& options, int rank, int size) {
  if (size > 2) throw Refusal(fmt::format("this takes 1 or 2 ranks, not {}", size));
  const Machine machine = examine_machine(rank);
  require_gpu(machine, options);
  use_gpu(machine);
  const bool pingpong = size == 2;
  const char* const what = pingpong         ? "one-way ping-pong"
                           : options.unpack ? "unpacking from pinned memory"
                                            : "packing to pinned memory";
  if (rank == 0) {
    fmt::print("# gpudt-contention, {}, user's work of {} ms, on {}\n", what, options.user_ms, describe(machine));
    table().head();
  }
  Runner runner(options, machine, rank, pingpong);
  runner.run();
  if (rank == 0 && !options.json_file.empty()) {
    nlohmann::json settings = to_json(options);
    settings.update({{"user_ms", options.user_ms},
                     {"call", pingpong         ? "pingpong"
                              : options.unpack ? "unpack"
                                               : "pack"}});
    write_json(options.json_file, "gpudt-contention", to_json(machine), std::move(settings), runner.rows());
  }
  return runner.all_verified() ? exit_ok : exit_wrong_data;
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  options.layout_names = {"vector:64"};  // the paper's
  options.sizes_text = "64K,1M,16M";
  options.plan.iterations = 15;
  options.loads = load_names();
  CommandLine command(
      "Packing and unpacking of GPU memory while the application uses the GPU: what each costs the other. Needs a "
      "GPU.\n"
      "LD_PRELOAD=libgpudt-pmpi.so GPUDT_WAY=auto gpudt-contention          (packing)\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-contention         (ping-pong)");
  add_common_options(command, options, all_ways);
  command.add_footer(ways_help + std::string(load_help));
  command.add("--loads", options.loads, "What the application does, separated by commas", load_names());
  command.add_flag("--unpack", options.unpack, "Unpack from pinned memory instead; with 2 ranks this is ignored");
  command.add("--user-ms", options.user_ms, "How long that takes alone, in milliseconds",
              {Bounds::within, 0.2, 1000.0});
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-contention", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}
