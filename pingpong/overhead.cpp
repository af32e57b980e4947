// gpudt-overhead: what interposition costs a program whose buffers are in host memory. It calls each function in turn
// as MPI_X, which a preloaded library may have replaced, and as PMPI_X, which it cannot replace; the difference is the
// price. Run without gpudt, the difference is the error of the measurement. One process or two.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/options.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/common/statistics.hpp"
#include "pingpong/common/table.hpp"

namespace gpudt::bench {
namespace {

constexpr int tag = 2;
constexpr double ns_per_us = 1000;
/// So many that malloc always gives them a mapping of their own: 64 MiB.
constexpr std::size_t elements_of_large_array = std::size_t(8) << 20;

struct Options {
  int calls = 20'000;
  int batches = 51;
  bool device = false, large = false;
  std::string json_file;
};

/// The same functions under their two names.
struct Calls {
  decltype(&PMPI_Send) send;
  decltype(&PMPI_Recv) receive;
  decltype(&PMPI_Isend) isend;
  decltype(&PMPI_Irecv) ireceive;
  decltype(&PMPI_Waitall) waitall;
};
const Calls mpi_calls = {MPI_Send, MPI_Recv, MPI_Isend, MPI_Irecv, MPI_Waitall};
const Calls pmpi_calls = {PMPI_Send, PMPI_Recv, PMPI_Isend, PMPI_Irecv, PMPI_Waitall};

/// 8-byte messages in host memory.
class Exchanger {
 public:
  /// `buffer`: of two elements.
  Exchanger(int rank, double* buffer) : rank_(rank), out_(buffer), in_(buffer + 1) {}
  void send_to_nobody(const Calls& f) { f.send(out_, 1, MPI_DOUBLE, MPI_PROC_NULL, tag, MPI_COMM_WORLD); }
  void receive_from_nobody(const Calls& f) {
    f.receive(in_, 1, MPI_DOUBLE, MPI_PROC_NULL, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  void exchange_with_self(const Calls& f) { exchange(f, 0, MPI_COMM_SELF); }
  void exchange_with_peer(const Calls& f) { exchange(f, 1 - rank_, MPI_COMM_WORLD); }
  void ping_pong(const Calls& f) {
    if (rank_ == 0) f.send(out_, 1, MPI_DOUBLE, 1, tag, MPI_COMM_WORLD);
    f.receive(in_, 1, MPI_DOUBLE, 1 - rank_, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank_ == 1) f.send(out_, 1, MPI_DOUBLE, 0, tag, MPI_COMM_WORLD);
  }

 private:
  void exchange(const Calls& f, int peer, MPI_Comm comm) {
    MPI_Request requests[2];
    f.ireceive(in_, 1, MPI_DOUBLE, peer, tag, comm, &requests[0]);
    f.isend(out_, 1, MPI_DOUBLE, peer, tag, comm, &requests[1]);
    f.waitall(2, requests, MPI_STATUSES_IGNORE);
  }
  int rank_;
  double *out_, *in_;
};

struct Operation {
  const char* name;
  const char* json_name;
  void (Exchanger::*run)(const Calls&);
  int ranks;      // that it takes
  int mpi_calls;  // on one rank, through the names that may be replaced
};

constexpr Operation operations[] = {
    {"Send to MPI_PROC_NULL", "send_proc_null", &Exchanger::send_to_nobody, 1, 1},
    {"Recv from MPI_PROC_NULL", "recv_proc_null", &Exchanger::receive_from_nobody, 1, 1},
    {"Irecv, Isend, Waitall with itself", "exchange_self", &Exchanger::exchange_with_self, 1, 3},
    {"Send and Recv, there and back", "ping_pong", &Exchanger::ping_pong, 2, 2},
    {"Irecv, Isend, Waitall with the other", "exchange_peer", &Exchanger::exchange_with_peer, 2, 3},
};

double microseconds_each(Exchanger& exchanger, const Operation& operation, const Calls& calls, int times) {
  if (operation.ranks == 2) PMPI_Barrier(MPI_COMM_WORLD);
  const double start = now_us();
  for (int i = 0; i < times; ++i) (exchanger.*operation.run)(calls);
  return (now_us() - start) / times;
}

const Table& table() {
  static const Table shown({{"operation on 8 bytes of host memory", 38, true},
                            {"MPI_ ns", 9},
                            {"PMPI_ ns", 9},
                            {"added ns", 9},
                            {"per call", 9}});
  return shown;
}

/// What an operation takes under either name.
struct Result {
  const Operation* operation;
  Statistics mpi, pmpi;

  double added_ns() const { return (mpi.median - pmpi.median) * ns_per_us; }
  double added_ns_per_call() const { return added_ns() / operation->mpi_calls; }
};

Result measure(Exchanger& exchanger, const Operation& operation, const Options& options) {
  const auto sampler = [&](const Calls& calls) {
    return [&] { return microseconds_each(exchanger, operation, calls, options.calls); };
  };
  std::vector<Contestant> names = {{"MPI_", sampler(mpi_calls)}, {"PMPI_", sampler(pmpi_calls)}};
  SamplingPlan plan;
  plan.iterations = plan.fewest = options.batches;
  plan.warmup = 1;
  sample_in_turns(names, plan, [](bool wish) { return wish; });
  return {&operation, summarise(names[0].samples), summarise(names[1].samples)};
}

void show(const Result& result) {
  table().row({result.operation->name, fmt::format("{:.1f}", result.mpi.median * ns_per_us),
               fmt::format("{:.1f}", result.pmpi.median * ns_per_us), fmt::format("{:+.1f}", result.added_ns()),
               fmt::format("{:+.1f}", result.added_ns_per_call())});
}

nlohmann::json to_json(const Result& result) {
  return {{"operation", result.operation->json_name},
          {"mpi", to_json(result.mpi)},
          {"pmpi", to_json(result.pmpi)},
          {"added_ns", result.added_ns()},
          {"added_ns_per_call", result.added_ns_per_call()}};
}

/// Brings up the GPU as a program that uses it would have, and lets MPI see one of its pointers.
void use_device_once(const Machine& machine) {
  require(machine, Place::device, true);
  use_gpu(machine);
  Buffer out(Place::device), in(Place::device);
  for (Buffer* buffer : {&out, &in}) buffer->reserve(sizeof(double));
  MPI_Request request;
  MPI_Irecv(in.data(), 1, MPI_DOUBLE, 0, tag, MPI_COMM_SELF, &request);
  MPI_Send(out.data(), 1, MPI_DOUBLE, 0, tag, MPI_COMM_SELF);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

std::vector<Result> measure_all(const Options& options, int rank, int size) {
  std::array<double, 2> on_stack = {};
  std::vector<double> large_array(options.large ? elements_of_large_array : 0);
  Exchanger exchanger(rank, options.large ? large_array.data() : on_stack.data());
  std::vector<Result> results;
  for (const Operation& operation : operations) {
    if (operation.ranks <= size) results.push_back(measure(exchanger, operation, options));
  }
  return results;
}

void report(const Options& options, const Machine& machine, const std::vector<Result>& results) {
  fmt::print("# gpudt-overhead{}{}, on {}, {}\n", options.device ? ", device in use" : "",
             options.large ? ", in a large array" : "", machine.cpu, describe(machine));
  table().head();
  nlohmann::json rows = nlohmann::json::array();
  for (const Result& result : results) {
    show(result);
    rows.push_back(to_json(result));
  }
  if (options.json_file.empty()) return;
  write_json(
      options.json_file, "gpudt-overhead", to_json(machine),
      {{"calls", options.calls}, {"batches", options.batches}, {"device", options.device}, {"large", options.large}},
      std::move(rows));
}

/// The machine is looked at last: to count its GPUs initialises the driver, which takes several times as long from then
/// on to tell where an array lies, and programs without a GPU do not do so.
int run(const Options& options, int rank, int size) {
  if (size > 2) throw Refusal(fmt::format("this takes 1 or 2 ranks, not {}", size));
  if (options.device) use_device_once(examine_machine(rank));
  const std::vector<Result> results = measure_all(options, rank, size);
  if (rank == 0) report(options, examine_machine(rank), results);
  return exit_ok;
}

void add_options(CommandLine& command, Options& options) {
  command.add("-n,--calls", options.calls, "Calls in one batch", {Bounds::positive});
  command.add("-b,--batches", options.batches, "Batches, of which the median counts", {Bounds::positive});
  command.add_flag("--device", options.device,
                   "Send one message from device memory first, as a program with a GPU would");
  command.add_flag("--large", options.large, "Take the messages from a large array, which is not in the heap");
  command.add("--json", options.json_file, "Write all statistics to this file");
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  CommandLine command(
      "The time that a preloaded library adds to MPI calls on host memory.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-overhead");
  add_options(command, options);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-overhead", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}
