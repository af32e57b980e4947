// The host's side of a World with a proxy (initiated/wire_proxy.cpp), on the simulated device: the process itself
// writes the commands that kernels would. usage: mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so:libgpudt-sim.so
// proxy-world
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "initiated/world.hpp"
#include "tests/initiated/host_kernel.hpp"

namespace {

using namespace gpudt::initiated;
using gpudt::test::HostRing;
using gpudt::test::read;
using gpudt::test::require;
using gpudt::test::run_world_test;
using gpudt::test::write;

constexpr std::int64_t window_bytes = 100'000;

char pattern(int process, std::int64_t at) {
  return static_cast<char>(at * 7 + at / 256 + 100 * process);
}
std::vector<char> patterns(int process, std::int64_t bytes) {
  std::vector<char> made(static_cast<std::size_t>(bytes));
  for (std::int64_t i = 0; i < bytes; ++i) made[static_cast<std::size_t>(i)] = pattern(process, i);
  return made;
}

class Commands {
 public:
  explicit Commands(World& world) : kernel_(world.view(1)), target_((world.gpu() + 1) % world.gpus()), ring_(kernel_) {}
  /// So many rows of `bytes`, `stride` apart, or contiguous data if there is one.
  void put(const Window& window, std::int64_t offset, std::uint32_t rows, std::uint32_t bytes, std::int64_t stride) {
    const std::uint64_t ticket = queue_.take();
    ProxySlot& slot = queue_.slot(ticket);
    ProxyCommand command = {ProxyCall::put, target_, window.id, rows > 1 ? rows : 0, offset};
    command.bytes = std::int64_t{rows} * bytes;
    for (std::int64_t i = 0; i < command.bytes; ++i) slot.payload[i] = pattern(kernel_.gpu, i);
    auto* const runs = reinterpret_cast<ProxyRun*>(slot.payload + proxy_list_at(command.bytes));
    for (std::uint32_t row = 0; row < rows && rows > 1; ++row) runs[row] = {offset + row * stride, row * bytes, bytes};
    queue_.publish(ticket, command);
  }
  void word(const Window& window, std::int64_t offset, std::uint64_t value) {
    ring_.word(target_, window.id, offset, value);
  }
  std::vector<char> get(const Window& window, std::int64_t offset, std::int64_t bytes) {
    const std::uint64_t ticket = queue_.take();
    queue_.publish(ticket, {ProxyCall::get, target_, window.id, 0, offset, bytes});
    queue_.await_answer(ticket);
    const char* const payload = queue_.slot(ticket).payload;
    std::vector<char> data(payload, payload + bytes);
    queue_.release(ticket);
    return data;
  }
  void flush() const { queue_.flush(); }

 private:
  KernelWorld kernel_;
  int target_;
  HostRing ring_;
  const ProxyQueue<gpudt::test::HostAccess>& queue_ = ring_.queue();
};

/// Each to the next process; what the one before has sent is looked at.
void check_window(World& world, Commands& commands, const Window& window) {
  const int before = (world.gpu() + world.gpus() - 1) % world.gpus(), next = (world.gpu() + 1) % world.gpus();
  write(window.base, std::vector<char>(window_bytes, 0));
  world.barrier();
  for (int i = 0; i < 700; ++i) commands.put(window, 1000 + i, 1, 100, 0);  // more than the ring has slots
  commands.put(window, 3001, 50, 24, 40);
  commands.put(window, 20'000, 1, static_cast<std::uint32_t>(proxy_payload), 0);
  commands.word(window, 8, 0x0123456789ABCDEF);
  world.barrier();
  const std::vector<char> seen = read(window.base, window_bytes), sent = patterns(before, proxy_payload);
  std::vector<char> expected(window_bytes, 0);
  for (int i = 0; i < 700; ++i) std::memcpy(&expected[static_cast<std::size_t>(1000 + i)], sent.data(), 100);
  for (std::size_t row = 0; row < 50; ++row) std::memcpy(&expected[3001 + row * 40], &sent[row * 24], 24);
  std::memcpy(&expected[20'000], sent.data(), sent.size());
  const std::uint64_t word = 0x0123456789ABCDEF;
  std::memcpy(&expected[8], &word, sizeof word);
  require(seen == expected, "what was put");
  world.barrier();

  write(window.base, patterns(world.gpu(), window_bytes));
  world.barrier();
  const std::vector<char> there = patterns(next, window_bytes);
  for (const std::int64_t offset : {0, 1, 40'000}) {
    const std::vector<char> got = commands.get(window, offset, 20'000);
    require(std::memcmp(got.data(), there.data() + offset, got.size()) == 0, "what was got");
  }
  commands.flush();
  world.barrier();
}

void check_world(const Options& options) {
  World world(MPI_COMM_WORLD, options);
  Commands commands(world);
  Window window = world.allocate(window_bytes);
  check_window(world, commands, window);
  world.free(window);

  void* memory = nullptr;
  MPI_Win win = MPI_WIN_NULL;
  const int lead = 1 + 3 * world.gpu();  // of the program's own memory, a part that is not aligned
  check(cudaMalloc(&memory, window_bytes + 100), "cudaMalloc");
  MPI_Win_create(static_cast<char*>(memory) + lead - lead % 8, window_bytes, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
  Window attached = world.attach(win);
  check_window(world, commands, attached);
  world.free(attached);
  MPI_Win_free(&win);
  check(cudaFree(memory), "cudaFree");
  window = world.allocate(window_bytes);  // freed with the World
  if (world.gpu() == 0) std::printf("%d processes, %s: verified\n", world.gpus(), world.wire());
}

}  // namespace

int main(int argc, char** argv) {
  return run_world_test(argc, argv, [&](Options options) {
    options.direct = argc > 1;  // argument: between nodes, where it is chosen
    if (!options.direct) options.wire = proxy_wire;
    check_world(options);
  });
}
