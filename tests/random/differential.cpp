// Random MPI calls of all kinds, verified, and written down: scripts/check/differential.sh runs this program with the
// library on device and host memory, with it on host memory alone, and without it, and compares what they write.
//
// usage: differential --seed N [--rounds FIRST-LAST] [--threads N] [--log PREFIX] [--only collectives]
//   --rounds   which rounds (0-19); a round does not depend on those before it
//   --threads  threads that each do all rounds, with communicators of their own (1)
//   --log      rank R writes what it has received to PREFIX.R
//   --only     collectives: no other kind of round
// GPUDT_TEST_HOST=1 in the environment: on host memory alone; GPUDT_TEST_TIMEOUT: seconds that one step may take (60).
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/random/session.hpp"
#include "tests/support/mpi_quirks.hpp"
#include "tests/support/mpi_world.hpp"

namespace gpudt::test {
namespace {

constexpr int buffered_per_thread = 16 << 20;
constexpr int default_timeout = 60;

struct Session {
  int rank = 0, ranks = 1, gpus = 1;
  bool host_only = false, collectives_only = false;
  std::uint64_t seed = 1;
  int first = 0, last = 19, threads = 1;
  std::string log;
  double timeout = default_timeout;
  std::atomic<bool> ended = false;
} session;

void read_arguments(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--seed") session.seed = std::stoull(value);
    if (name == "--threads") session.threads = std::stoi(value);
    if (name == "--log") session.log = value;
    if (name == "--only") session.collectives_only = value == "collectives";
    if (name != "--rounds") continue;
    session.first = session.last = std::stoi(value);
    const std::size_t dash = value.find('-');
    if (dash != std::string::npos) session.last = std::stoi(value.substr(dash + 1));
  }
  session.host_only = std::getenv("GPUDT_TEST_HOST") != nullptr;
  if (const char* text = std::getenv("GPUDT_TEST_TIMEOUT")) session.timeout = std::atof(text);
}

bool choose_gpu() {
  if (session.host_only) return true;
  return cudaGetDeviceCount(&session.gpus) == cudaSuccess && session.gpus > 0 &&
         cudaSetDevice(session.rank % session.gpus) == cudaSuccess;
}

void do_round(Context& context, int number) {
  context.begin_round(number);
  if (session.collectives_only) return call_collectives(context);
  Dice dice(mix(context.key, 0));
  const int kind = dice.below(10);
  if (kind < 6) return exchange_messages(context);
  if (kind == 6) return exchange_persistent(context);
  // A session without MPI_Init has no windows over device memory (docs/limits.md).
  if (kind == 7 && context.single_threaded() && !in_session()) return access_windows(context);
  call_collectives(context);
}

void do_rounds(Context& context) {
  try {
    use_gpu(session.rank % session.gpus);
    for (int i = session.first; i <= session.last; ++i) {
      do_round(context, i);
      if (context.any_failed()) break;
    }
    context.last_step = 0;  // the watchdog need not look any more
  } catch (const std::exception& error) {
    context.fail(error.what());
    _exit(4);  // the other ranks cannot go on
  }
}

/// Ends the program where a step takes too long.
void watch(const std::vector<std::unique_ptr<Context>>& contexts) {
  while (!session.ended) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (const auto& context : contexts) {
      const double last = context->last_step;
      if (last == 0 || PMPI_Wtime() - last < session.timeout) continue;
      for (const auto& each : contexts) std::fprintf(stderr, "%s: HUNG\n", each->where().c_str());
      std::this_thread::sleep_for(std::chrono::seconds(3));  // so that the other ranks say where they are, too
      _exit(3);
    }
  }
}

int write_log(const std::vector<std::unique_ptr<Context>>& contexts) {
  if (session.log.empty()) return 0;
  std::FILE* file = std::fopen((session.log + "." + std::to_string(session.rank)).c_str(), "w");
  if (file == nullptr) return 1;
  for (const auto& context : contexts)
    for (const std::string& line : context->lines) std::fprintf(file, "%s\n", line.c_str());
  return std::fclose(file) == 0 ? 0 : 1;
}

/// What all threads of a process have done.
struct Totals {
  std::int64_t failures = 1, messages = 0, collectives = 0;
};

Totals run() {
  std::vector<std::unique_ptr<Context>> contexts;
  for (int i = 0; i < session.threads; ++i)
    contexts.push_back(std::make_unique<Context>(session.seed, i, session.threads));
  std::vector<char> buffered(static_cast<std::size_t>(buffered_per_thread) * static_cast<std::size_t>(session.threads));
  MPI_Buffer_attach(buffered.data(), static_cast<int>(buffered.size()));
  std::thread watchdog([&] { watch(contexts); });
  std::vector<std::thread> threads;
  for (int i = 1; i < session.threads; ++i)
    threads.emplace_back(do_rounds, std::ref(*contexts[static_cast<std::size_t>(i)]));
  do_rounds(*contexts[0]);
  for (std::thread& thread : threads) thread.join();
  Totals totals{.failures = write_log(contexts)};
  for (const auto& context : contexts) {
    totals.failures += context->failures;
    totals.messages += context->messages;
    totals.collectives += context->collectives;
  }
  void* detached = nullptr;
  int bytes = 0;
  MPI_Buffer_detach(&detached, &bytes);
  session.ended = true;
  watchdog.join();
  return totals;
}

}  // namespace

int rank() {
  return session.rank;
}
int ranks() {
  return session.ranks;
}
bool host_only() {
  return session.host_only;
}
int gpu_count() {
  return session.gpus;
}

}  // namespace gpudt::test

int main(int argc, char** argv) {
  using namespace gpudt::test;
  read_arguments(argc, argv);
  begin_world(&argc, &argv, session.threads > 1);
  MPI_Comm_rank(world(), &session.rank);
  MPI_Comm_size(world(), &session.ranks);
  MPI_Comm_set_errhandler(world(), MPI_ERRORS_RETURN);
  Totals totals, all;
  if (choose_gpu())
    totals = run();
  else
    std::fprintf(stderr, "no GPU: preload libgpudt-sim.so or set GPUDT_TEST_HOST=1\n");
  PMPI_Allreduce(&totals, &all, 3, MPI_INT64_T, MPI_SUM, world());
  if (session.rank == 0)
    std::printf("seed %llu: %lld failures, %lld messages, %lld collectives\n",
                static_cast<unsigned long long>(session.seed), static_cast<long long>(all.failures),
                static_cast<long long>(all.messages), static_cast<long long>(all.collectives));
  end_world();
  return all.failures != 0 ? 1 : 0;
}
