// gpudt-initiated-ends: how programs end. Of a checked build, each mistake prints a message that names the call, the
// rank and the argument, and fails; the program says which text is expected. With NVSHMEM MPI and a World end in
// either order without a hang, and kernels communicate when MPI has ended.
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string_view>

#include "initiated/programs/ends_kernels.hpp"
#include "initiated/world.hpp"
#include "pingpong/common/machine.hpp"
#if defined(GPUDT_HAVE_NVSHMEM)
#include "initiated/nvshmem.hpp"
#endif

namespace gpudt::initiated::programs {
namespace {

struct Case {
  std::string_view name;
  Mistake mistake;
  const char* expected;  ///< what is to be printed
};
constexpr std::array cases = {
    Case{"rank", Mistake::rank,
         "rank 0 of 1 (block 0 of GPU 0): put(rank 7, offset 0, bytes 8): there is no such rank"},
    Case{"range", Mistake::range, "put_notify(rank 0, offset 1000, bytes 8): the data reach beyond the window"},
    Case{"layout", Mistake::layout, "get(rank 0, offset 0, bytes 8): a layout that was not made by Layout"},
    Case{"tag", Mistake::tag, "notify(rank 0, window 2046, tag -5): a negative tag"},
    Case{"source", Mistake::source, "test_notifications(source 9, tag -1, count 1): there is no such rank"},
    Case{"count", Mistake::count, "put(origin_count 3, target_rank 0, target_count 2): a negative count or"},
    Case{"address", Mistake::address,
         "put(rank 0, offset 4096, bytes 4): the data reach beyond the window, or the region that is attached"},
    Case{"partition", Mistake::partition, "pready(partition 3, of 3, process 0): there is no such partition"},
    Case{"twice", Mistake::twice,
         "pready(partition 1, of 3, process 0): the request has not been started, or not since this partition"},
    Case{"receive", Mistake::receive, "wait(partition 0, of 3, process 0): not a request of this kind"},
    Case{"granted", Mistake::granted,
         "pready, waiting for the receiver to start(partition 1, of 3, process 0): timed out"},
    Case{"queue", Mistake::queue, "wait_notifications(window -1, source -1, tag 2): the queues are full"},
    Case{"timeout", Mistake::timeout, "wait_notifications(window -1, source -1, tag 3): timed out"},
};

/// Does not return if the kernel ends as it should: with an error.
int make_mistake(const Case& chosen) {
  Options options;
  options.timeout_seconds = 1;
  World world(MPI_COMM_WORLD, options);
  OneMistake p = {};
  p.world = world.view(1);
  p.window = world.allocate(1000);
  MPI_Win win = MPI_WIN_NULL;
  MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
  p.dynamic = world.attach(win);
  p.mistake = chosen.mistake;
  Request send = world.psend_init(p.window.base, 3, 1, MPI_INT, 0, 0);
  Request receive = world.precv_init(p.window.base + 512, 3, 1, MPI_INT, 0, 0);
  world.match();
  send.start();
  if (chosen.mistake != Mistake::granted) receive.start();
  p.send = send.kernel();
  fmt::print("expected: {}\n", chosen.expected);
  std::fflush(stdout);
  world.run(one_mistake_kernel(), 1, 64, &p);
  fmt::print("no mistake was found\n");
  return 1;
}

/// More blocks than can be resident: refused by the host.
int too_many() {
  Options options;
  options.ranks = 8192;
  World world(MPI_COMM_WORLD, options);
  Greeting p = {};
  p.world = world.view(1);
  fmt::print("expected: can run at the same time: those that do not run would be waited for for ever\n");
  std::fflush(stdout);
  world.run(greeting_kernel(), 8192, 1024, &p);
  return 1;
}

int greet(World& world, Window& window) {
  Greeting p = {};
  p.world = world.view(1);
  p.window = window;
  world.run(greeting_kernel(), 1, 64, &p);
  std::uint64_t word = 0;
  check(cudaMemcpy(&word, window.base, sizeof word, cudaMemcpyDeviceToHost), "cudaMemcpy");
  const auto expected = 100 + static_cast<std::uint64_t>((world.gpu() + world.gpus() - 1) % world.gpus());
  if (word != expected) fmt::print("process {} got {}, not {}\n", world.gpu(), word, expected);
  return word == expected ? 0 : 1;
}

#if defined(GPUDT_HAVE_NVSHMEM)
/// MPI ends first: kernels still communicate, through NVSHMEM.
int mpi_first() {
  Options options;
  options.wire = nvshmem_wire;
  World world(MPI_COMM_WORLD, options);
  Window window = world.allocate(16);
  int wrong = greet(world, window);
  MPI_Finalize();
  wrong += greet(world, window);
  world.free(window);
  return wrong;
}

#else
int mpi_first() {
  fmt::print("built without NVSHMEM: a World over MPI's windows ends before MPI\n");
  MPI_Finalize();
  return 2;
}
#endif

/// The World ends first, and device memory still goes through MPI, if it takes any.
int world_first(const Options& options = {}) {
  int wrong = 0, me = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  {
    World world(MPI_COMM_WORLD, options);
    Window window = world.allocate(16);
    wrong += greet(world, window);
    world.free(window);
  }
  if (bench::mpi_takes_device_memory(bench::examine_machine(me))) {
    int *memory = nullptr, got[2] = {me, -1};
    check(cudaMalloc(reinterpret_cast<void**>(&memory), sizeof got), "cudaMalloc");
    check(cudaMemcpy(memory, got, sizeof got, cudaMemcpyHostToDevice), "cudaMemcpy");
    MPI_Sendrecv(memory, 1, MPI_INT, (me + 1) % size, 0, memory + 1, 1, MPI_INT, (me + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    check(cudaMemcpy(got, memory, sizeof got, cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (got[1] != (me + size - 1) % size) ++wrong;
    cudaFree(memory);
  }
  MPI_Finalize();
  return wrong;
}

/// The same as between nodes.
int proxy_first() {
  Options options;
  options.wire = proxy_wire;
  options.direct = false;
  options.timeout_seconds = 10;
  return world_first(options);
}

/// Without threads MPI has no proxy.
int no_threads() {
  Options options;
  options.wire = proxy_wire;
  fmt::print("expected: start MPI by MPI_Init_thread with MPI_THREAD_MULTIPLE\n");
  std::fflush(stdout);
  const World world(MPI_COMM_WORLD, options);
  return 1;
}

int run(int argc, char** argv, std::string_view name) {
  int level = MPI_THREAD_SINGLE;
  if (name == "proxy-first")
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  else
    MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  bench::use_gpu(bench::examine_machine(rank));
  for (const Case& chosen : cases)
    if (chosen.name == name) return make_mistake(chosen);
  if (name == "blocks") return too_many();
  if (name == "threads") return no_threads();
  const int wrong = name == "mpi-first" ? mpi_first() : name == "proxy-first" ? proxy_first() : world_first();
  if (wrong == 0) fmt::print("{}: process {}: verified\n", name, rank);
  return wrong;
}

}  // namespace
}  // namespace gpudt::initiated::programs

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(
        stderr,
        "usage: mpirun -np 1 gpudt-initiated-ends "
        "rank|range|layout|tag|source|count|address|partition|twice|receive|granted|queue|timeout|blocks|threads\n"
        "       mpirun -np 2 gpudt-initiated-ends mpi-first|world-first|proxy-first\n");
    return 2;
  }
  alarm(40);
  try {
    return gpudt::initiated::programs::run(argc, argv, argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpudt-initiated-ends: {}\n", error.what());
    std::fflush(nullptr);
    std::_Exit(3);
  }
}
