// What processes have attached to a dynamic window, told to all of them: for programs whose kernels access it.
#include <set>

#include "interpose/rma/served.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {
namespace {

/// A region as its process describes it to the others. Plain data.
struct Told {
  Exposed memory;
  std::int32_t rank;    ///< in the window
  std::int32_t on_gpu;  ///< 1: in the memory of a GPU, exported or not
};

std::vector<Told> own_regions(const WindowMemory& memory, int rank) {
  std::vector<Told> told;
  for (const auto& [begin, size] : memory.regions()) {
    void* const base = reinterpret_cast<void*>(begin);
    told.push_back(
        {expose(base, size, /*disp_unit=*/1, /*lock=*/-1), rank, device::classify(base).on_device() ? 1 : 0});
  }
  return told;
}

/// Collective: the regions of all, by rank.
std::vector<Told> gather(MPI_Comm comm, const std::vector<Told>& mine, int ranks) {
  std::vector<int> bytes(static_cast<std::size_t>(ranks)), places(bytes.size());
  const int own = static_cast<int>(mine.size() * sizeof(Told));
  PMPI_Allgather(&own, 1, MPI_INT, bytes.data(), 1, MPI_INT, comm);
  int all = 0;
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    places[rank] = all;
    all += bytes[rank];
  }
  std::vector<Told> told(static_cast<std::size_t>(all) / sizeof(Told));
  PMPI_Allgatherv(mine.data(), own, MPI_BYTE, told.data(), bytes.data(), places.data(), MPI_BYTE, comm);
  return told;
}

RegionMappings::key_type key_of(const Told& region) {
  return {region.rank, region.memory.base, region.memory.memory.buffer_id};
}

/// Drops the mappings of what is attached no more. They must go before others are made: the driver maps no memory at
/// the addresses of other memory that is mapped still.
void keep_attached(RegionMappings& mappings, const std::vector<Told>& all) {
  std::set<RegionMappings::key_type> attached;
  for (const Told& region : all) attached.insert(key_of(region));
  std::erase_if(mappings, [&](const auto& each) { return !attached.contains(each.first); });
}

}  // namespace

int ServedWindow::regions(int gpu, std::vector<AttachedRegion>& found) {
  return guard("gpudt_win_regions", [&] {
    if (!memory_.dynamic())
      throw MpiError(MPI_ERR_RMA_FLAVOR, "argument win is not dynamic: MPI_Win_shared_query tells where its memory is");
    int own_rank = 0;
    PMPI_Comm_rank(channel_.comm(), &own_rank);
    const std::vector<Told> all = gather(channel_.comm(), own_regions(memory_, own_rank), channel_.ranks());
    if (gpu < 0 || gpu >= datatype::Layout::gpu_slots)  // only now: others wait in gather() for this process
      throw MpiError(MPI_ERR_ARG, "argument gpu is " + std::to_string(gpu) + "; it takes what cudaGetDevice tells");
    const std::vector<int> world_ranks = peer::world_ranks(channel_.comm());
    const LockGuard lock(mutex_);
    RegionMappings& mappings = attached_[gpu];
    keep_attached(mappings, all);
    for (const Told& region : all) {
      const Exposed& memory = region.memory;
      void* here = nullptr;
      if (region.rank == own_rank) {
        void* const own = reinterpret_cast<void*>(memory.base);
        if (region.on_gpu != 0 && device::classify(own).ordinal == gpu) here = own;
      } else {
        device::Mapping& mapping = mappings[key_of(region)];
        if (!mapping)
          mapping = reach("gpudt_win_regions", gpu, memory, world_ranks[static_cast<std::size_t>(region.rank)]);
        if (mapping) here = mapping.at(memory.base);
      }
      found.push_back({region.rank, region.on_gpu != 0, memory.base, memory.size, here});
    }
    return int(MPI_SUCCESS);
  });
}

}  // namespace gpudt::interpose
