#include "initiated/world.hpp"

#include <exception>
#include <utility>
#include <vector>

#include "initiated/attached.hpp"
#include "initiated/mpi_error.hpp"
#include "initiated/world_state.hpp"

namespace gpudt::initiated {

void check(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) throw Error(what + ": " + cudaGetErrorString(status));
}

void check_mpi(int code, const std::string& what) {
  if (code != MPI_SUCCESS) throw Error(what + ": " + mpi_error_text(code));
}

World::World(MPI_Comm comm, const Options& options) : state_(std::make_unique<State>(comm, options)) {}
World::~World() = default;

int World::gpu() const {
  return state_->gpu;
}
int World::gpus() const {
  return state_->gpus;
}
const Options& World::options() const {
  return state_->options;
}
const char* World::wire() const {
  return state_->wire->name();
}
bool World::reaches_all() const {
  return state_->reaches_all && state_->options.direct;
}

Window World::allocate(std::int64_t bytes) {
  if (bytes < 0) throw Error("World::allocate: " + state_->who() + std::to_string(bytes) + " bytes");
  WiredMemory memory;
  return state_->allocate("World::allocate", bytes, memory);
}

Window World::attach(MPI_Win win) {
  const std::string who = "World::attach: " + state_->who();
  MPI_Group group = MPI_GROUP_NULL;
  int same = MPI_UNEQUAL;
  if (win == MPI_WIN_NULL || MPI_Win_get_group(win, &group) != MPI_SUCCESS) throw Error(who + "not a window");
  PMPI_Group_compare(group, state_->group, &same);
  PMPI_Group_free(&group);
  if (same != MPI_IDENT) throw Error(who + "the window's processes are not those of the World, in its order");
  Window window;
  WiredMemory memory;
  std::vector<std::vector<WindowRegion>> regions;
  bool dynamic = false;
  state_->together("World::attach", [&] {
    dynamic = flavor_of(win, who) == MPI_WIN_FLAVOR_DYNAMIC;
    if (dynamic) {
      regions = regions_of(win, state_->gpus, state_->device, true, who);
      return;
    }
    memory = addresses_of(win, state_->gpus, who);
    if (memory.base != nullptr && !detail::is_of_device(memory.base, state_->device))
      throw Error(who + "this process has no memory in the window that this GPU reaches: " + reach_remedy());
  });
  if (!dynamic) {
    if (state_->kernel.proxy.slots != nullptr) state_->add_far(memory);
    state_->together("World::attach", [&] {
      for (std::size_t i = 0; i < memory.there.size(); ++i)
        if (memory.bytes[i] == 0)
          throw Error(who + "process " + std::to_string(i) +
                      " has no memory in the window that this GPU reaches: " + reach_remedy());
    });
  }
  try {
    state_->together("World::attach", [&] {
      window = dynamic ? state_->add("World::attach", regions) : state_->add("World::attach", memory, false);
    });
  } catch (const Error&) {
    state_->undo(window);
    throw;
  }
  return window;
}

void World::free(Window& window) {
  if (std::uncaught_exceptions() == 0) state_->free(window);
}

KernelWorld World::view(int ranks_per_gpu) const {
  if (ranks_per_gpu < 1 || ranks_per_gpu > state_->options.ranks)
    throw Error("World::view: " + state_->who() + std::to_string(ranks_per_gpu) +
                " ranks on each GPU; Options::ranks is " + std::to_string(state_->options.ranks));
  KernelWorld view = state_->kernel;
  view.ranks = RankDivision(ranks_per_gpu);
  return view;
}

int World::most_blocks(const void* kernel, int threads, std::size_t shared_bytes) const {
  int each = 0, multiprocessors = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared_bytes),
        "World::most_blocks: cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, state_->device),
        "World::most_blocks: cudaDeviceGetAttribute");
  return each * multiprocessors;
}

void World::launch(const void* kernel, int blocks, int threads, const void* argument, std::size_t shared_bytes,
                   cudaStream_t stream) {
  const auto fail = [&](const std::string& why) { throw Error("World::launch: " + state_->who() + why); };
  if (threads < 32 || threads % 32 != 0) fail(std::to_string(threads) + " threads, not a multiple of 32");
  if (blocks < 1 || blocks > state_->options.ranks)
    fail(std::to_string(blocks) + " blocks; Options::ranks is " + std::to_string(state_->options.ranks));
  const int most = most_blocks(kernel, threads, shared_bytes);
  if (blocks > most)
    fail(std::to_string(blocks) + " blocks of " + std::to_string(threads) + " threads, of which " +
         std::to_string(most) + " can run at the same time: those that do not run would be waited for for ever");
  void* arguments[] = {const_cast<void*>(argument)};
  state_->wire->launch(kernel, blocks, threads, arguments, shared_bytes, stream);
}

void World::run(const void* kernel, int blocks, int threads, const void* argument, std::size_t shared_bytes,
                cudaStream_t stream) {
  launch(kernel, blocks, threads, argument, shared_bytes, stream);
  check(cudaStreamSynchronize(stream), "World::run: " + state_->who() + "the kernel");
  state_->wire->settle();
}

void World::barrier() {
  state_->wire->barrier();
}

}  // namespace gpudt::initiated
