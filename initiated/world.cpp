#include "initiated/world.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "initiated/attached.hpp"
#include "initiated/mpi_error.hpp"

namespace gpudt::initiated {

void check(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) throw Error(what + ": " + cudaGetErrorString(status));
}

void check_mpi(int code, const std::string& what) {
  if (code != MPI_SUCCESS) throw Error(what + ": " + mpi_error_text(code));
}

// --- the world ------------------------------------------------------------------------------------------------------

namespace {

/// Where a process runs and on which GPU, to be compared with others.
struct ProcessGpu {
  char host[MPI_MAX_PROCESSOR_NAME] = {};
  char bus[32] = {};
};

/// Lays out blocks of memory one behind the other.
class Layers {
 public:
  std::size_t add(std::uint64_t count, std::size_t bytes_each) {
    const std::size_t at = (end_ + 255) / 256 * 256;
    end_ = at + count * bytes_each;
    return at;
  }
  std::size_t bytes() const { return end_; }

 private:
  std::size_t end_ = 0;
};

}  // namespace

class World::State {
 public:
  State(MPI_Comm comm, const Options& wanted) : options(wanted) {
    check_options();
    check_mpi(PMPI_Comm_rank(comm, &gpu), "World: MPI_Comm_rank");
    check_mpi(PMPI_Comm_size(comm, &gpus), "World: MPI_Comm_size");
    check(cudaGetDevice(&device), "World: cudaGetDevice");
    if (gpus > most_gpus)
      throw Error("World: " + std::to_string(gpus) + " processes; at most " + std::to_string(most_gpus));
    check_devices(comm);
    PMPI_Comm_group(comm, &group);
    wire = (options.wire != nullptr ? options.wire : usual_wire)(comm, gpu, gpus);
    lay_out();
  }
  ~State() {
    cudaSetDevice(device);
    if (cudaDeviceSynchronize() != cudaSuccess || std::uncaught_exceptions() > exceptions_) {
      // After a failure the others do not come: to end the wire, which is collective, would be to wait for them.
      wire->end(false);
      static_cast<void>(wire.release());
      return;
    }
    wire->end(true);
    for (auto& [id, kept] : windows_) release(kept);
    if (queues_.base != nullptr) wire->free(queues_);
    cudaFree(own_);
    int ended = 0;
    PMPI_Finalized(&ended);
    if (ended == 0) PMPI_Group_free(&group);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string who() const { return "process " + std::to_string(gpu) + ": "; }

  /// Collective: `body()`. If it throws in any process, all throw.
  template <class Body>
  void together(const char* call, Body body) const {
    std::string failure;
    try {
      body();
    } catch (const std::exception& error) {  // of MPI or a thread, too: the others wait in gather()
      failure = error.what();
    }
    const std::vector<MPI_Aint> failed = wire->gather(failure.empty() ? 0 : 1);
    if (!failure.empty()) throw Error(failure);
    const auto first = std::find(failed.begin(), failed.end(), 1);
    if (first != failed.end())
      throw Error(call + (": " + who()) + "process " + std::to_string(first - failed.begin()) + " cannot do it");
  }
  /// Adds what is not reached by loads and stores to where an attached window's memory is. Collective.
  void add_far(WiredMemory& memory) const {
    const std::vector<MPI_Aint> bytes = wire->gather(memory.bytes[static_cast<std::size_t>(gpu)]);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (memory.there[i] == nullptr && !is_near(i)) memory.bytes[i] = bytes[i];
  }
  /// The window of all GPUs' `memory`, which is freed with the window if `owned`.
  Window add(const char* call, const WiredMemory& memory, bool owned) {
    check_windows(call);
    Kept kept;
    if (owned) kept.memory = memory;
    const auto here = static_cast<std::size_t>(gpu);
    Window window = {memory.base, memory.bytes[here], next_window_++};  // first: ids are to stay the same everywhere
    for (std::size_t i = 0; i < memory.there.size(); ++i)
      if (memory.there[i] == nullptr && memory.bytes[i] > 0 && is_near(i))
        throw Error(call + (": " + who()) + "this GPU does not reach the memory of process " + std::to_string(i));
    if (wire->symmetric() && owned) {
      check_distances(call, memory);
    } else {
      std::vector<WindowPart> parts(memory.there.size());
      for (std::size_t i = 0; i < parts.size(); ++i)
        if (memory.bytes[i] > 0)
          parts[i] = {memory.there[i] != nullptr ? memory.there[i] - memory.base : KernelWorld::unreachable,
                      memory.bytes[i], memory.units.empty() ? 1 : memory.units[i]};
      window.parts = upload(call, kept.parts, parts);
    }
    windows_[window.id] = kept;
    wire->expose(window.id, window.base, window.bytes);
    return window;
  }
  /// The window of what is attached to a dynamic one, by process.
  Window add(const char* call, const std::vector<std::vector<WindowRegion>>& regions) {
    check_windows(call);
    Kept kept;
    Window window;
    window.id = next_window_++;  // first, as above
    std::vector<WindowRegion> all;
    for (const auto& list : regions) all.insert(all.end(), list.begin(), list.end());
    const WindowRegion* first = upload(call, kept.parts, all);
    std::vector<WindowRegions> lists;
    for (const auto& list : regions) {
      lists.push_back({first, static_cast<std::int64_t>(list.size())});
      first += list.size();
    }
    window.regions = upload(call, kept.lists, lists);
    windows_[window.id] = kept;
    return window;
  }
  /// Collective, after a failure of add() in any process: by those in which it has not failed, too.
  void undo(Window& window) { window.id == no_window ? wire->hide(no_window) : free(window); }
  /// Whether notifications reach a GPU by loads and stores: they would overtake data that do not, and no flush waits.
  bool is_near(std::size_t process) const { return kernel.reach(queues_.base, static_cast<int>(process)) != nullptr; }
  void free(Window& window) {
    const auto found = windows_.find(window.id);
    if (found == windows_.end()) return;
    wire->hide(window.id);
    release(found->second);
    windows_.erase(found);
    window = {};
  }

  Options options;
  int gpu = 0, gpus = 1, device = 0;
  bool reaches_all = true;
  KernelWorld kernel;
  MPI_Group group = MPI_GROUP_NULL;
  std::unique_ptr<Wire> wire;

 private:
  /// What a window holds.
  struct Kept {
    WiredMemory memory;  ///< none if it is the program's
    void* parts = nullptr;
    void* lists = nullptr;
  };
  void release(const Kept& kept) const {
    if (kept.memory.base != nullptr) wire->free(kept.memory);
    cudaFree(kept.parts);
    cudaFree(kept.lists);
  }
  void check_windows(const char* call) const {
    if (next_window_ >= most_windows)
      throw Error(call + (": " + who()) + "more than " + std::to_string(most_windows) + " windows");
  }
  /// A copy on the device, which `memory` owns from now on; null if there are none.
  template <class T>
  static const T* upload(const char* call, void*& memory, const std::vector<T>& from) {
    if (from.empty()) return nullptr;
    const std::size_t bytes = from.size() * sizeof(T);
    check(cudaMalloc(&memory, bytes), call + std::string(": memory for addresses"));
    check(cudaMemcpy(memory, from.data(), bytes, cudaMemcpyHostToDevice), call + std::string(": cudaMemcpy"));
    return static_cast<const T*>(memory);
  }
  /// Kernels need but one number for each GPU.
  void check_distances(const char* call, const WiredMemory& memory) const {
    for (std::size_t i = 0; i < memory.there.size(); ++i)
      if ((memory.there[i] != nullptr ? memory.there[i] - memory.base : KernelWorld::unreachable) != kernel.distance[i])
        throw Error(call + (": " + who()) + wire->name() + " has mapped this memory of process " + std::to_string(i) +
                    " elsewhere than the rest");
  }

  void check_options() const {
    if (options.ranks < 1 || options.ranks > most_local_ranks)
      throw Error("World: Options::ranks is " + std::to_string(options.ranks) + ", not from 1 to " +
                  std::to_string(most_local_ranks));
    if (options.notifications < detail::chunk || options.notifications > most_notifications ||
        !std::has_single_bit(static_cast<unsigned>(options.notifications)))
      throw Error("World: Options::notifications is " + std::to_string(options.notifications) +
                  ", not a power of two from 32 to " + std::to_string(most_notifications));
    if (options.staging_bytes < 16 || options.staging_bytes % 16 != 0)
      throw Error("World: Options::staging_bytes is " + std::to_string(options.staging_bytes) +
                  ", not a multiple of 16");
  }

  /// Two processes on one GPU would take turns, and each wait for what the other one's kernel cannot do meanwhile. All
  /// processes find the same.
  void check_devices(MPI_Comm comm) {
    ProcessGpu mine;
    int length = 0;
    check_mpi(PMPI_Get_processor_name(mine.host, &length), "World: MPI_Get_processor_name");
    check(cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, device), "World: cudaDeviceGetPCIBusId");
    std::vector<ProcessGpu> all(static_cast<std::size_t>(gpus));
    check_mpi(PMPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, comm),
              "World: MPI_Allgather");
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::size_t other = 0; other < i; ++other)
        if (std::strcmp(all[i].host, all[other].host) == 0 && std::strcmp(all[i].bus, all[other].bus) == 0)
          throw Error("World: processes " + std::to_string(other) + " and " + std::to_string(i) +
                      " have the same GPU (" + all[i].bus + " of " + all[i].host +
                      "); each needs one of its own: cudaSetDevice before World");
  }

  void lay_out() {
    const auto ranks = static_cast<std::uint64_t>(options.ranks), all = static_cast<std::uint64_t>(gpus);
    constexpr std::size_t word = sizeof(std::uint64_t);
    kernel.gpu = gpu;
    kernel.gpus = gpus;
    kernel.most_ranks = options.ranks;
    kernel.direct = options.direct ? 1 : 0;
    kernel.timeout_ns = static_cast<std::uint64_t>(options.timeout_seconds * 1e9);
    kernel.capacity_log = std::countr_zero(static_cast<unsigned>(options.notifications));
    kernel.staging_bytes = options.staging_bytes;

    Layers shared, local;
    const std::size_t rings = shared.add(ranks * all << kernel.capacity_log, word);
    const std::size_t credit = shared.add(all * ranks, word);
    const std::size_t flags = shared.add(2 * all, word), values = shared.add(2 * 2 * all * most_values, word);
    const std::size_t staging = shared.add(ranks, static_cast<std::size_t>(options.staging_bytes));
    const std::size_t sent = local.add(all * ranks, sizeof(Ticket)), heads = local.add(2 * ranks * all, sizeof(Ticket));
    const std::size_t grid = local.add(grid_words, word);
    const std::size_t places = local.add(ranks * known_moves * known_words, sizeof(WordPlace));
    const std::size_t mine = local.add(2 * ranks * most_values, word), results = local.add(2 * most_values, word);
    const std::size_t counters = local.add(2 * 32, word);  // a line of its own for each

    queues_ = wire->allocate(shared.bytes());
    together("World", [&] {
      check(cudaMalloc(&own_, local.bytes()), "World: memory for queues");
      check(cudaMemset(own_, 0, local.bytes()), "World: cudaMemset");
      check(cudaDeviceSynchronize(), "World: cudaDeviceSynchronize");
      find_distances();
    });

    const auto shared_words = [&](std::size_t at) { return reinterpret_cast<std::uint64_t*>(queues_.base + at); };
    const auto local_words = [&](std::size_t at) {
      return reinterpret_cast<std::uint64_t*>(static_cast<char*>(own_) + at);
    };
    kernel.rings = shared_words(rings);
    kernel.credit = shared_words(credit);
    kernel.staging = queues_.base + staging;
    kernel.sent = reinterpret_cast<Ticket*>(static_cast<char*>(own_) + sent);
    kernel.heads = reinterpret_cast<Ticket*>(static_cast<char*>(own_) + heads);
    kernel.grid = local_words(grid);
    kernel.places = reinterpret_cast<WordPlace*>(static_cast<char*>(own_) + places);
    for (const std::uint64_t i : {0, 1}) {
      CollectiveState& place = i == 0 ? kernel.all : kernel.device;
      place.flags = shared_words(flags) + i * all;
      place.values = shared_words(values) + i * 2 * all * most_values;
      place.local = local_words(mine) + i * ranks * most_values;
      place.result = local_words(results) + i * most_values;
      place.arrived = local_words(counters) + i * 32;
      place.left = local_words(counters) + i * 32 + 16;
    }
    together("World", [&] { wire->join(kernel, static_cast<std::int64_t>(shared.bytes())); });
    wire->barrier();  // the memory of all is laid out
  }
  void find_distances() {
    for (std::size_t other = 0; other < queues_.there.size(); ++other) {
      const char* const there = queues_.there[other];
      kernel.distance[other] = there != nullptr ? there - queues_.base : KernelWorld::unreachable;
      reaches_all = reaches_all && there != nullptr;
      if (!options.direct && !wire->goes_far())
        throw Error("World: " + who() + "Options::direct is false, and Options::wire has no other way");
      if (there == nullptr && !wire->goes_far())
        throw Error("World: " + who() + "this GPU does not reach the memory of process " + std::to_string(other) +
                    " (GPUDT_TRACE=1 tells why); a proxy or NVSHMEM does: Options::wire");
    }
    kernel.reaches_all = reaches_all && options.direct ? 1 : 0;
  }

  const int exceptions_ = std::uncaught_exceptions();
  WiredMemory queues_;
  void* own_ = nullptr;
  std::map<std::int32_t, Kept> windows_;  ///< by id
  std::int32_t next_window_ = 0;
};

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
  const WiredMemory memory = state_->wire->allocate(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  Window window;
  try {
    state_->together("World::allocate", [&] { window = state_->add("World::allocate", memory, true); });
  } catch (const Error&) {
    const bool mine = window.id == no_window;
    state_->undo(window);
    if (mine) state_->wire->free(memory);
    throw;
  }
  window.bytes = bytes;
  return window;
}

namespace {

bool is_of_device(const void* memory, int device) {
  cudaPointerAttributes its = {};
  return cudaPointerGetAttributes(&its, memory) == cudaSuccess && its.type == cudaMemoryTypeDevice &&
         its.device == device;
}

}  // namespace

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
      regions = regions_of(win, state_->gpus, state_->device, who);
      return;
    }
    memory = addresses_of(win, state_->gpus, who);
    if (memory.base != nullptr && !is_of_device(memory.base, state_->device))
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
