// What a World has; for the files that its member functions are in.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "initiated/mpi_error.hpp"
#include "initiated/partition_matches.hpp"
#include "initiated/world.hpp"

namespace gpudt::initiated {

namespace detail {

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

inline bool is_of_device(const void* memory, int device) {
  cudaPointerAttributes its = {};
  return cudaPointerGetAttributes(&its, memory) == cudaSuccess && its.type == cudaMemoryTypeDevice &&
         its.device == device;
}

}  // namespace detail

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
    check_mpi(PMPI_Comm_dup(comm, &own_comm), "World: MPI_Comm_dup");
    PMPI_Comm_set_errhandler(own_comm, MPI_ERRORS_RETURN);
    wire = (options.wire != nullptr ? options.wire : usual_wire)(comm, gpu, gpus);
    lay_out();
  }
  ~State() {
    cudaSetDevice(device);
    if (cudaDeviceSynchronize() != cudaSuccess || std::uncaught_exceptions() > exceptions_) {
      // After a failure the others do not come: to end the wire, which is collective, would be to wait for them.
      wire->end(false);
      static_cast<void>(wire.release());
      static_cast<void>(partitions.release());
      return;
    }
    wire->end(true);
    partitions.reset();
    for (auto& [id, kept] : windows_) release(kept);
    if (queues_.base != nullptr) wire->free(queues_);
    cudaFree(own_);
    int ended = 0;
    PMPI_Finalized(&ended);
    if (ended != 0) return;
    PMPI_Group_free(&group);
    PMPI_Comm_free(&own_comm);
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
  /// Collective: a window of memory of the wire, which goes to `memory`.
  Window allocate(const char* call, std::int64_t bytes, WiredMemory& memory) {
    memory = wire->allocate(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    Window window;
    try {
      together(call, [&] { window = add(call, memory, true); });
    } catch (const Error&) {
      const bool mine = window.id == no_window;
      undo(window);
      if (mine) wire->free(memory);
      throw;
    }
    window.bytes = bytes;
    return window;
  }
  /// So many numbers of windows, from the one that is returned on, the same in all processes.
  std::int32_t take_numbers(const char* call, int count) {
    next_window_ += count;
    if (count > 0) check_windows(call, next_window_ - 1);
    return next_window_ - count;
  }
  Partitions& all_partitions() {
    if (partitions == nullptr) partitions = std::make_unique<Partitions>(*this);
    return *partitions;
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
  MPI_Comm own_comm = MPI_COMM_NULL;
  std::unique_ptr<Wire> wire;
  std::unique_ptr<Partitions> partitions;  ///< from the first request on

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
  void check_windows(const char* call) const { check_windows(call, next_window_); }
  void check_windows(const char* call, std::int32_t number) const {
    if (number >= most_windows)
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
    detail::ProcessGpu mine;
    int length = 0;
    check_mpi(PMPI_Get_processor_name(mine.host, &length), "World: MPI_Get_processor_name");
    check(cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, device), "World: cudaDeviceGetPCIBusId");
    std::vector<detail::ProcessGpu> all(static_cast<std::size_t>(gpus));
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

    detail::Layers shared, local;
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

}  // namespace gpudt::initiated
