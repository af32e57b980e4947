// gpudt_mpi.h: what processes have attached to a dynamic window, as GPUs of others reach it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "include/gpudt_mpi.h"
#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr std::size_t part = 1000;  ///< integers of a region

/// What gpudt_win_regions() tells this process.
class Regions {
 public:
  explicit Regions(MPI_Win window) { MPI_OK(gpudt_win_regions(window, current_gpu(), &all_, &count_)); }
  ~Regions() { std::free(all_); }
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;
  std::vector<gpudt_region> of(int rank) const {
    std::vector<gpudt_region> found;
    std::copy_if(all_, all_ + count_, std::back_inserter(found), [=](const auto& each) { return each.rank == rank; });
    return found;
  }
  int count() const { return count_; }

 private:
  gpudt_region* all_ = nullptr;
  int count_ = 0;
};

MPI_Win dynamic_window() {
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  return window;
}

int value_of(int rank, std::size_t i) {
  return rank * 100000 + static_cast<int>(i);
}

/// Memory of one kind with numbers of this rank's, from number `first` on.
Memory filled(Place place, std::size_t first = 0) {
  Memory memory(place, 4 * part * sizeof(int));
  std::vector<int> values(4 * part);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(rank(), first + i);
  memory.write(values.data(), memory.bytes());
  return memory;
}

/// Whether GPUs reach device memory of other processes in this run.
bool reached() {
  const char* const protocol = std::getenv("GPUDT_PROTOCOL");
  return std::getenv("GPUDT_ORDER") == nullptr && (protocol == nullptr || std::string(protocol) == "peer");
}

void expect_numbers(const gpudt_region& region, std::size_t first) {
  REQUIRE(region.here != nullptr);
  std::vector<int> seen(static_cast<std::size_t>(region.size) / sizeof(int));
  REQUIRE(cudaMemcpy(seen.data(), region.here, seen.size() * sizeof(int), cudaMemcpyDefault) == cudaSuccess);
  for (std::size_t i = 0; i < seen.size(); ++i) REQUIRE(seen[i] == value_of(region.rank, first + i));
}

}  // namespace

TEST_CASE("gpudt_win_regions tells what is attached, and where a GPU reaches it", "[.regions]") {
  constexpr auto bytes = static_cast<MPI_Aint>(part * sizeof(int));
  for (const Place place : {Place::device, Place::shareable}) {
    step(place_name(place));
    Memory memory = filled(place), host = filled(Place::host);
    const Memory empty(Place::device, 8);
    MPI_Win window = dynamic_window();
    // The last rank has attached nothing yet.
    const bool attaches = rank() != ranks() - 1 || ranks() == 1;
    if (attaches) {
      MPI_OK(MPI_Win_attach(window, memory.data() + 2 * bytes, 2 * bytes));
      MPI_OK(MPI_Win_attach(window, memory.data(), bytes));
      MPI_OK(MPI_Win_attach(window, host.data(), bytes));
      MPI_OK(MPI_Win_attach(window, empty.data(), 0));
    }
    std::vector<MPI_Aint> addresses(static_cast<std::size_t>(ranks()));
    const auto own = reinterpret_cast<MPI_Aint>(memory.data());
    PMPI_Allgather(&own, 1, MPI_AINT, addresses.data(), 1, MPI_AINT, comm());
    {
      const Regions regions(window);
      CHECK(regions.count() == 3 * (ranks() == 1 ? 1 : ranks() - 1));
      for (int other = 0; other < ranks(); ++other) {
        std::vector<gpudt_region> found = regions.of(other);
        if (other == ranks() - 1 && ranks() > 1) {
          CHECK(found.empty());
          continue;
        }
        REQUIRE(found.size() == 3);
        CHECK((found[0].address < found[1].address && found[1].address < found[2].address));
        std::stable_partition(found.begin(), found.end(), [](const gpudt_region& each) { return each.on_gpu != 0; });
        const MPI_Aint theirs = addresses[static_cast<std::size_t>(other)];
        CHECK((found[0].on_gpu == 1 && found[0].address == theirs && found[0].size == bytes));
        CHECK((found[1].on_gpu == 1 && found[1].address == theirs + 2 * bytes && found[1].size == 2 * bytes));
        CHECK((found[2].on_gpu == 0 && found[2].here == nullptr && found[2].size == bytes));
        if (other == rank()) CHECK(found[1].here == memory.data() + 2 * bytes);
        if (other != rank() && !reached()) CHECK((found[0].here == nullptr && found[1].here == nullptr));
        if (other != rank() && !reached()) continue;
        expect_numbers(found[0], 0);
        expect_numbers(found[1], 2 * part);
      }
    }
    lock_step();
    // A later answer has what is attached then.
    if (attaches) MPI_OK(MPI_Win_detach(window, memory.data()));
    if (!attaches) MPI_OK(MPI_Win_attach(window, memory.data() + bytes, bytes));
    {
      const Regions regions(window);
      CHECK(regions.of(0).size() == 2);
      const std::vector<gpudt_region> last = regions.of(ranks() - 1);
      if (ranks() > 1) REQUIRE(last.size() == 1);
      if (ranks() > 1 && (reached() || rank() == ranks() - 1)) expect_numbers(last[0], part);
    }
    lock_step();
    MPI_OK(MPI_Win_free(&window));
  }
}

TEST_CASE("gpudt_win_regions tells of new memory at the addresses of freed memory", "[.regions]") {
  MPI_Win window = dynamic_window();
  for (int round = 0; round < 4; ++round) {
    step("round " + std::to_string(round));
    const std::size_t first = static_cast<std::size_t>(round) * 7;
    const Memory memory = filled(Place::device, first);
    MPI_OK(MPI_Win_attach(window, memory.data(), static_cast<MPI_Aint>(memory.bytes())));
    {
      const Regions regions(window);
      for (int other = 0; other < ranks(); ++other) {
        const std::vector<gpudt_region> found = regions.of(other);
        REQUIRE(found.size() == 1);
        if (reached() || other == rank()) expect_numbers(found[0], first);
      }
    }
    lock_step();
    MPI_OK(MPI_Win_detach(window, memory.data()));
  }
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("gpudt_win_regions tells of memory that others cannot map", "[.regions]") {
  const Memory memory(Place::managed, 4096);
  MPI_Win window = dynamic_window();
  MPI_OK(MPI_Win_attach(window, memory.data(), 4096));
  {
    const Regions regions(window);
    for (int other = 0; other < ranks(); ++other) {
      const std::vector<gpudt_region> found = regions.of(other);
      REQUIRE(found.size() == 1);
      CHECK(found[0].on_gpu == 1);
      CHECK(found[0].here == (other == rank() ? memory.data() : nullptr));
    }
  }
  lock_step();
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("gpudt_win_regions refuses nonsense", "[.regions]") {
  const Memory memory(Place::device, 64);
  gpudt_region* regions = nullptr;
  int count = -1;
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.data(), 64, 1, MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  MPI_FAILS(gpudt_win_regions(window, 0, &regions, &count), MPI_ERR_RMA_FLAVOR);
  MPI_OK(MPI_Win_free(&window));
  window = dynamic_window();
  MPI_FAILS(gpudt_win_regions(window, -1, &regions, &count), MPI_ERR_ARG);
  MPI_FAILS(gpudt_win_regions(window, current_gpu(), nullptr, &count), MPI_ERR_ARG);
  CHECK((regions == nullptr && count == -1));
  MPI_OK(MPI_Win_free(&window));
}
