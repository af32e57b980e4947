// gpudt-onesided: one-sided accesses to another process's GPU memory, each with what completes it, while the target
// waits in MPI, computes, or runs a kernel without calling MPI. An ordinary MPI program for two ranks; every byte is
// verified.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <memory>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/user_load.hpp"

namespace gpudt::bench {
namespace {

const std::vector<std::string> all_ways = {"mpi", "message"};
constexpr const char* reference_way = "message";
constexpr int origin = 0, target = 1, tag = 3;
constexpr double kernel_us = 10'000;      ///< of the target's kernel
constexpr double kernel_begins_us = 300;  ///< after which the origin's accesses fall into it
/// So many of them, of which the median counts: the first ones find the origin's GPU at rest after the pause.
constexpr std::size_t accesses_in_kernel = 31;

const std::vector<std::string> target_names = {"waits", "computes"};

struct Options : CommonOptions {
  std::vector<std::string> accesses, targets = target_names;
};

constexpr const char* ways_help = R"(Accesses (in MPI_Win_lock_all, but for the last):
  put, get          and MPI_Win_flush
  accumulate        with MPI_REPLACE, and MPI_Win_flush
  lock_put_unlock   MPI_Win_lock (exclusive), MPI_Put, MPI_Win_unlock
Ways:
  mpi      that access
  message  MPI_Send by the origin and MPI_Recv by the target, one way: half of a ping-pong (if the target waits)
Target:
  waits     in MPI_Barrier
  computes  runs a kernel of 10 ms that fills its GPU, and calls nothing of MPI (needs a GPU)
The column /hand is the median divided by that of message.
)";

struct Exposed {
  MPI_Win window;
  const Message* message;
  void* origin_buffer;
};

/// One access to process `target`, complete when it returns.
struct Access {
  const char* name;
  bool in_lock_all, to_target;
  void (*run)(const Exposed&);
};

constexpr Access accesses[] = {
    {"put", true, true,
     [](const Exposed& e) {
       const auto& [window, m, buffer] = e;
       MPI_Put(buffer, m->count(), m->type(), target, 0, m->count(), m->type(), window);
       MPI_Win_flush(target, window);
     }},
    {"get", true, false,
     [](const Exposed& e) {
       const auto& [window, m, buffer] = e;
       MPI_Get(buffer, m->count(), m->type(), target, 0, m->count(), m->type(), window);
       MPI_Win_flush(target, window);
     }},
    {"accumulate", true, true,
     [](const Exposed& e) {
       const auto& [window, m, buffer] = e;
       MPI_Accumulate(buffer, m->count(), m->type(), target, 0, m->count(), m->type(), MPI_REPLACE, window);
       MPI_Win_flush(target, window);
     }},
    {"lock_put_unlock", false, true,
     [](const Exposed& e) {
       const auto& [window, m, buffer] = e;
       MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window);
       MPI_Put(buffer, m->count(), m->type(), target, 0, m->count(), m->type(), window);
       MPI_Win_unlock(target, window);
     }},
};

std::vector<std::string> access_names() {
  std::vector<std::string> names;
  for (const Access& access : accesses) names.emplace_back(access.name);
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// One layout of one size: a buffer that is exposed, and one that is not, on both sides.
class Measurement {
 public:
  Measurement(const Message& message, int rank, UserLoad* load) : message_(message), rank_(rank), load_(load) {
    exposed_.reserve(message);
    local_.reserve(message);
    MPI_Win_create(exposed_.address(), message.span(), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window_);
  }
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;
  ~Measurement() { MPI_Win_free(&window_); }

  /// The entries refer to this object.
  std::vector<Entry> entries(const Access& access, const std::vector<std::string>& ways) {
    std::vector<Entry> entries;
    for (const std::string& way : ways) {
      const bool message = way == "message";
      if (message && load_ != nullptr) continue;
      entries.push_back(
          {access.name, way, [this, &access, message] { return message ? exchanged() : timed(access); },
           [this, &access, message](std::int64_t round) { return message ? std::nullopt : verified(access, round); },
           static_cast<double>(message_.size())});
    }
    return entries;
  }

 private:
  Exposed exposed() { return {window_, &message_, local_.address()}; }

  template <class Function>
  void in_epoch(const Access& access, Function function) {
    if (access.in_lock_all && rank_ == origin) MPI_Win_lock_all(0, window_);
    function();
    if (access.in_lock_all && rank_ == origin) MPI_Win_unlock_all(window_);
  }

  /// The origin's time; 0 on the target, which is in its barrier or in its kernel meanwhile.
  double timed(const Access& access) {
    double microseconds = 0;
    in_epoch(access, [&] {
      PMPI_Barrier(MPI_COMM_WORLD);
      if (rank_ == origin) {
        microseconds = load_ == nullptr ? once(access) : in_kernel(access);
      } else if (load_ != nullptr) {
        load_->start();
        load_->wait();
      }
      PMPI_Barrier(MPI_COMM_WORLD);
    });
    return microseconds;
  }

  double once(const Access& access) {
    const double start = now_us();
    access.run(exposed());
    return now_us() - start;
  }

  double in_kernel(const Access& access) {
    const double begin = now_us() + kernel_begins_us;
    while (now_us() < begin) {
    }
    std::vector<double> times(accesses_in_kernel);
    for (double& time : times) time = once(access);
    return summarise(std::move(times)).median;
  }

  double exchanged() {
    const int other = 1 - rank_;
    PMPI_Barrier(MPI_COMM_WORLD);
    const double start = now_us();
    if (rank_ == origin) MPI_Send(local_.address(), message_.count(), message_.type(), other, tag, MPI_COMM_WORLD);
    MPI_Recv(exposed_.address(), message_.count(), message_.type(), other, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank_ == target) MPI_Send(local_.address(), message_.count(), message_.type(), other, tag, MPI_COMM_WORLD);
    return (now_us() - start) / 2;
  }

  std::optional<std::string> verified(const Access& access, std::int64_t round) {
    const bool gives = access.to_target == (rank_ == origin);
    MessageBuffer& buffer = rank_ == origin ? local_ : exposed_;
    if (gives)
      buffer.load(message_, {0, round});
    else
      buffer.poison(message_);
    static_cast<void>(timed(access));
    return gives ? std::nullopt : buffer.mismatch(message_, {0, round});
  }

  const Message& message_;
  int rank_;
  UserLoad* load_;  ///< null: the target waits
  Canvas canvas_{Place::pinned};
  MessageBuffer exposed_{Place::device, canvas_}, local_{Place::device, canvas_};
  MPI_Win window_ = MPI_WIN_NULL;
};

int run(const Options& options, int rank, int size) {
  if (size != 2) throw Refusal("gpudt-onesided needs two ranks: mpirun -np 2");
  const Machine machine = examine_machine(rank);
  Contest contest("gpudt-onesided", options, machine, rank, {{"layout", 12, true}, {"bytes", 10}, {"target", 8, true}},
                  reference_way);
  const std::vector<std::string> ways = contest.possible_ways({"mpi", "message"});
  use_gpu(machine);
  std::unique_ptr<UserLoad> load;
  if (contains(options.targets, "computes") && !machine.simulated) load = make_load("long", kernel_us);
  contest.print_head();
  for (const Access& access : accesses) {
    if (!contains(options.accesses, access.name)) continue;
    for (const std::string& behaviour : options.targets) {
      if (behaviour == "computes" && !load) continue;
      for (const LayoutFamily& layout : options.layouts)
        for (const std::int64_t bytes : options.sizes) {
          const Message message = layout.message(bytes);
          Measurement measurement(message, rank, behaviour == "computes" ? load.get() : nullptr);
          contest.measure({layout.name(), std::to_string(message.size()), behaviour},
                          {{"layout", layout.name()}, {"bytes", message.size()}, {"target", behaviour}},
                          measurement.entries(access, ways));
        }
    }
    contest.rule();
  }
  return contest.finish();
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  options.sizes_text = "8:16M";
  options.factor = 32;
  options.layout_names = {"contiguous", "vector:32"};
  options.accesses = access_names();
  CommandLine command(
      "One-sided accesses to another process's GPU memory.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-onesided");
  add_common_options(command, options, all_ways);
  command.add("--accesses", options.accesses, "Which accesses", access_names());
  command.add("--targets", options.targets, "What the target does meanwhile", target_names);
  command.add_footer(ways_help);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-onesided", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}
