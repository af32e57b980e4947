// main() of the tests under mpirun: one Catch2 session per rank, in lock step. Rank 0 prints the summary; a rank
// prints its own failures. A test case that hangs is reported by a watchdog.
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <sys/resource.h>
#include <unistd.h>

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using ListenerBase = Catch::EventListenerBase;
using AssertionEnded = void;
#else
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
using ListenerBase = Catch::TestEventListenerBase;
using AssertionEnded = bool;
#endif

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch_session.hpp"
#include "tests/support/mpi_harness.hpp"
#include "tests/support/mpi_quirks.hpp"
#include "tests/support/mpi_world.hpp"

namespace gpudt::test {
namespace {

constexpr std::uint64_t default_seed = 20240229;
constexpr int default_timeout = 90;
constexpr int most_described = 8;  ///< failures printed per rank and test case

struct Session {
  int rank = 0, ranks = 1, gpus = 1;
  bool host_only = false, any_host_only = false, huge = false, verbose = false;
  std::uint64_t seed = default_seed;
  int count = 1;
  std::chrono::seconds timeout{default_timeout};
  MPI_Comm control = MPI_COMM_NULL, current = MPI_COMM_NULL;
  int passed = 0, failed = 0, not_possible = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::string test_case, step;
  std::chrono::steady_clock::time_point started;
  bool running = false, ended = false;
} session;

long environment(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtol(text, nullptr, 10) : otherwise;
}

/// Seconds of processor time that this process has used, with the simulated device's threads.
double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::string who() {
  return "[rank " + std::to_string(session.rank) + ", seed " + std::to_string(session.seed) + "] ";
}

void say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

void watch() {
  std::unique_lock lock(session.mutex);
  while (!session.ended) {
    session.changed.wait_for(lock, std::chrono::seconds(1));
    if (!session.running || std::chrono::steady_clock::now() - session.started < session.timeout) continue;
    say(who() + "HUNG in \"" + session.test_case + "\", at: " + session.step + "\n");
    _exit(3);
  }
}

void set_running(const std::string& test_case) {
  std::lock_guard lock(session.mutex);
  session.test_case = test_case;
  session.step.clear();
  session.started = std::chrono::steady_clock::now();
  session.running = !test_case.empty();
}

/// Opens a communicator for each test case, agrees on its result, and prints failures with the rank.
class LockStep : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    set_running(info.name);
    setenv("GPUDT_TEST_CASE", session.test_case.c_str(), 1);  // for the recorder in tests/calls
    described_ = 0;
    started_ = PMPI_Wtime();
    processor_started_ = processor_seconds();
    MPI_Comm_dup(world(), &session.current);
    PMPI_Comm_set_errhandler(session.current, MPI_ERRORS_RETURN);
  }

  AssertionEnded assertionEnded(const Catch::AssertionStats& stats) override {
    if (!stats.assertionResult.isOk() && ++described_ <= most_described) describe(stats);
    return AssertionEnded();
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    step("the end of the test case");
    int failed = stats.totals.assertions.failed > 0 || stats.aborting ? 1 : 0, any = 0;
    PMPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, session.control);
    ++(any != 0 ? session.failed : session.passed);
    PMPI_Comm_free(&session.current);
    if (described_ > most_described)
      say(who() + std::to_string(described_ - most_described) + " more failures in this test case\n");
    if (any != 0 && session.rank == 0) say("FAILED: " + std::string(session.test_case) + "\n");
    if (session.verbose && session.rank == 0)
      say(std::to_string(PMPI_Wtime() - started_).substr(0, 6) + " s, of the processor " +
          std::to_string(processor_seconds() - processor_started_).substr(0, 6) + " s  " + session.test_case + "\n");
    set_running("");
  }

 private:
  static void describe(const Catch::AssertionStats& stats) {
    const auto& result = stats.assertionResult;
    std::ostringstream text;
    text << who() << "\"" << session.test_case << "\"\n    " << result.getSourceInfo() << ": ";
    if (result.hasExpression()) text << result.getExpression() << "  with  " << result.getExpandedExpression();
    if (result.hasMessage()) text << "  " << result.getMessage();
    for (const auto& info : stats.infoMessages) text << "\n    " << info.message;
    text << "\n    at: " << session.step << "\n";
    say(text.str());
  }

  int described_ = 0;
  double started_ = 0, processor_started_ = 0;
};

void read_environment() {
  session.host_only = environment("GPUDT_TEST_HOST", 0) != 0;
  session.verbose = environment("GPUDT_TEST_VERBOSE", 0) != 0;
  session.huge = environment("GPUDT_TEST_HUGE", 0) != 0;
  session.seed = static_cast<std::uint64_t>(environment("GPUDT_TEST_SEED", static_cast<long>(default_seed)));
  session.count = static_cast<int>(std::max(1L, environment("GPUDT_TEST_COUNT", 1)));
  session.timeout = std::chrono::seconds(environment("GPUDT_TEST_TIMEOUT", default_timeout));
}

bool choose_gpu() {
  if (session.host_only) return true;
  cudaError_t error = cudaGetDeviceCount(&session.gpus);
  if (error == cudaSuccess && session.gpus > 0) error = cudaSetDevice(session.rank % session.gpus);
  if (error == cudaSuccess && session.gpus > 0) return true;
  say(who() + "no GPU (" + cudaGetErrorString(error) + "); preload libgpudt-sim.so or set GPUDT_TEST_HOST=1\n");
  return false;
}

void start_mpi(int* argc, char*** argv) {
  begin_world(argc, argv, environment("GPUDT_TEST_THREADS", 0) != 0);
  MPI_Comm_rank(world(), &session.rank);
  MPI_Comm_size(world(), &session.ranks);
  PMPI_Comm_dup(world(), &session.control);
  if (!requests_have_handlers && world() == MPI_COMM_WORLD)
    for (const MPI_Comm comm : {MPI_COMM_WORLD, MPI_COMM_SELF}) PMPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  const int mine = session.host_only ? 1 : 0;
  int any = 0;
  PMPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, session.control);
  session.any_host_only = any != 0;
}

int run_session(int argc, char** argv) {
  std::vector<const char*> arguments(argv, argv + argc);
  const bool lists =
      std::any_of(argv, argv + argc, [](const char* word) { return std::strncmp(word, "--list", 6) == 0; });
  if (!lists) {                 // which Catch2 3 writes there, too
    arguments.push_back("-o");  // the listener does the talking
    arguments.push_back("/dev/null");
  }
  std::thread watchdog(watch);
  const int result = run_catch(static_cast<int>(arguments.size()), arguments.data());
  {
    std::lock_guard lock(session.mutex);
    session.ended = true;
  }
  session.changed.notify_all();
  watchdog.join();
  if (session.rank == 0) {
    std::printf("%d passed, %d failed (%d ranks, seed %llu%s)\n", session.passed, session.failed, session.ranks,
                static_cast<unsigned long long>(session.seed), session.host_only ? ", host memory alone" : "");
    if (session.not_possible != 0)
      std::printf("%d of the passed are not possible over this MPI library and did nothing\n", session.not_possible);
    std::fflush(stdout);
  }
  const bool nothing_ran = session.passed + session.failed == 0;
  return result != 0 || session.failed != 0 || nothing_ran ? 1 : 0;
}

}  // namespace

void not_possible(const char* why) {
  ++session.not_possible;
  if (session.verbose && session.rank == 0) say(std::string("not possible over this MPI: ") + why + "\n");
}

int rank() {
  return session.rank;
}
int ranks() {
  return session.ranks;
}
bool host_only() {
  return session.host_only;
}
bool any_host_only() {
  return session.any_host_only;
}
bool huge_wanted() {
  return session.huge;
}
std::uint64_t seed() {
  return session.seed;
}
int scaled(int cases) {
  return cases * session.count;
}
MPI_Comm comm() {
  return session.current;
}
int gpu_count() {
  return session.gpus;
}
bool kernels_take_turns() {
  constexpr auto mps_enabled = static_cast<cudaDeviceAttr>(133);  // cudaDevAttrMpsEnabled, unknown to early CUDA 12
  int mps = 0;
  if (session.gpus == 1) cudaDeviceGetAttribute(&mps, mps_enabled, 0);
  return session.gpus == 1 && mps == 0;
}
void lock_step() {
  PMPI_Barrier(session.control);
}

int partner() {
  const int other = session.rank ^ 1;
  return other < session.ranks ? other : MPI_PROC_NULL;
}

void step(const std::string& text) {
  std::lock_guard lock(session.mutex);
  session.step = text;
}

std::mt19937_64 random_numbers(const std::string& label) {
  std::uint64_t key = session.seed;
  for (const char c : label) key = mix(key, static_cast<unsigned char>(c));
  return std::mt19937_64(key);
}

}  // namespace gpudt::test

using gpudt::test::LockStep;  // the macro makes a name of its argument
CATCH_REGISTER_LISTENER(LockStep)

int main(int argc, char** argv) {
  using namespace gpudt::test;
  read_environment();
  start_mpi(&argc, &argv);
  int ready = choose_gpu() ? 1 : 0, all_ready = 0;
  PMPI_Allreduce(&ready, &all_ready, 1, MPI_INT, MPI_MIN, session.control);
  PMPI_Allreduce(MPI_IN_PLACE, &session.gpus, 1, MPI_INT, MPI_MIN, session.control);
  int result = all_ready != 0 ? run_session(argc, argv) : 2, worst = 0;
  PMPI_Allreduce(&result, &worst, 1, MPI_INT, MPI_MAX, session.control);
  PMPI_Comm_free(&session.control);
  end_world();
  return worst;
}
