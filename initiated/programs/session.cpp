#include "initiated/programs/session.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "pingpong/common/options.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/common/sampling.hpp"

#if defined(GPUDT_HAVE_NVSHMEM)
#include "initiated/nvshmem.hpp"
#endif

namespace gpudt::initiated::programs {
namespace {

#if defined(GPUDT_HAVE_NVSHMEM)
std::vector<std::string> wire_names() {
  return {"mpi", "proxy", "nvshmem"};
}
WireMaker wire_of(const std::string& name) {
  return name == "mpi" ? mpi_wire : name == "proxy" ? proxy_wire : nvshmem_wire;
}
#else
std::vector<std::string> wire_names() {
  return {"mpi", "proxy"};
}
WireMaker wire_of(const std::string& name) {
  return name == "mpi" ? mpi_wire : proxy_wire;
}
#endif

}  // namespace

Session::Session(const char* program, const Settings& settings, const bench::Machine& machine, World& world,
                 std::vector<bench::Column> columns, int processes)
    : program_(program), settings_(settings), machine_(machine), world_(world), table_(std::move(columns)) {
  if (process() != 0) return;
  fmt::print("# {}, {} GPUs that {} ({}), on {}\n", program, processes,
             world.reaches_all() ? "reach each other by loads and stores" : "do not all reach each other", world.wire(),
             describe(machine));
  table_.head();
}

double Session::measure(const std::function<void()>& once) const {
  std::vector<double> samples;
  for (int i = 0; i <= settings_.repetitions; ++i) {
    world_.barrier();
    PMPI_Barrier(MPI_COMM_WORLD);
    const double start = bench::now_us();
    once();
    const double took = bench::slowest_rank({bench::now_us() - start}).front();
    if (i > 0) samples.push_back(took);
  }
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

void Session::row(const std::vector<std::string>& cells, nlohmann::json about, const std::string& wrong) {
  if (!wrong.empty()) fmt::print(stderr, "{}: process {}: {}: wrong data: {}\n", program_, process(), cells[0], wrong);
  const bool verified = !bench::any_rank(!wrong.empty());
  all_verified_ = all_verified_ && verified;
  if (process() != 0) return;
  std::vector<std::string> shown = cells;
  shown.emplace_back(verified ? "verified" : "WRONG");
  table_.row(shown);
  about["verified"] = verified;
  rows_.push_back(std::move(about));
  // Now: a program that is ended later has told what it has found until then.
  if (!settings_.json_file.empty())
    bench::write_json(settings_.json_file, program_, to_json(machine_),
                      {{"check", settings_.check}, {"repetitions", settings_.repetitions}}, rows_);
}

void Session::rule() const {
  if (process() == 0) table_.rule();
}

int Session::finish() {
  if (process() == 0 && !all_verified_) fmt::print(stderr, "{}: some results are wrong\n", program_);
  return all_verified_ ? bench::exit_ok : bench::exit_wrong_data;
}

int run(const char* program, bench::CommandLine& command, int argc, char** argv,
        const std::vector<bench::Column>& columns, const Options& options, const std::function<void(Session&)>& body) {
  Settings settings;
  command.add("--json", settings.json_file, "Write all rows to this file");
  command.add("-n,--repetitions", settings.repetitions, "Measurements of each row, of which the median is shown",
              {bench::Bounds::positive});
  command.add("--limit", settings.limit_seconds, "Seconds after which the program is ended; 0: never",
              {bench::Bounds::not_negative});
  command.add("--wait", settings.wait_seconds, "Seconds after which a kernel's wait gives up, and says for what",
              {bench::Bounds::positive});
  command.add_flag("--check", settings.check, "A short run that verifies");
  command.add("--wire", settings.wire, "What connects the GPUs", wire_names());
  command.add_flag("--far", settings.far, "Never by loads and stores, but as between nodes (proxy, nvshmem)");
  if (const auto code = command.parse(argc, argv)) return *code;
  if (settings.check) settings.repetitions = 1;
  alarm(static_cast<unsigned>(settings.limit_seconds));  // a hang is to cost no more than that
  return bench::run_program(
      program, argc, argv,
      [&](int rank, int size) {
        const bench::Machine machine = bench::examine_machine(rank);
        if (machine.gpu_count == 0 || machine.simulated)
          throw bench::Refusal("this needs a GPU for each process; there is no stand-in for kernels that communicate");
        bench::use_gpu(machine);
        Options wanted = options;
        wanted.timeout_seconds = settings.wait_seconds;
        wanted.wire = wire_of(settings.wire);
        wanted.direct = !settings.far;
        World world(MPI_COMM_WORLD, wanted);
        Session session(program, settings, machine, world, columns, size);
        body(session);
        return session.finish();
      },
      settings.wire == "proxy");
}

std::string first_wrong(const std::vector<double>& expected, const std::vector<double>& seen, double tolerance) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (!(std::abs(seen[i] - expected[i]) <= tolerance * std::max(1.0, std::abs(expected[i]))))
      return fmt::format("number {} is {}, expected {}", i, seen[i], expected[i]);
  return "";
}

}  // namespace gpudt::initiated::programs
