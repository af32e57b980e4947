// Dynamic windows: regions of host and of device memory that the program attaches and detaches.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

#include "tests/mpi/rma.hpp"

using namespace gpudt::test;

namespace {

constexpr int each = 100;  ///< numbers in a region

MPI_Win dynamic_window() {
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  return window;
}

/// Blocks of numbers at these bytes, or addresses.
Type numbers_at(const std::vector<int>& lengths, const std::vector<MPI_Aint>& bytes) {
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(), bytes.data(), MPI_INT, &made);
  return {made, "blocks of INT"};
}

/// Blocks of numbers, each so many numbers behind `base`.
Type blocks(const std::vector<int>& lengths, std::vector<MPI_Aint> places, MPI_Aint base = 0) {
  for (MPI_Aint& place : places) place = base + place * static_cast<MPI_Aint>(sizeof(int));
  return numbers_at(lengths, places);
}

}  // namespace

TEST_CASE("a dynamic window over host and device memory", "[rma][window]") {
  const Side side{vector(300, 2, 5, MPI_INT), 1};
  MPI_Win window = dynamic_window();
  for (int round = 0; round < 3; ++round) {
    Area areas[] = {Area(Place::device, side), Area(Place::host, side), Area(Place::device, side)};
    Area out(Place::device, side), back(Place::host, side);
    std::array<MPI_Aint, 3> mine = {}, theirs = {};
    for (std::size_t i = 0; i < mine.size(); ++i) {
      areas[i].fill(key_of(rank(), static_cast<int>(i)));
      MPI_OK(MPI_Win_attach(window, areas[i].base(), areas[i].bytes()));
      MPI_OK(MPI_Get_address(areas[i].address(), &mine[i]));
    }
    PMPI_Sendrecv(mine.data(), 3, MPI_AINT, left_neighbour(), 0, theirs.data(), 3, MPI_AINT, right_neighbour(), 0,
                  comm(), MPI_STATUS_IGNORE);
    out.fill(key_of(rank(), 10));
    back.fill(key_of(rank(), 11));
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, right_neighbour(), 0, window));
    for (std::size_t i = 0; i < 2; ++i) MPI_OK(put(out, side, right_neighbour(), theirs[i], side, window));
    MPI_OK(MPI_Get(back.address(), 1, side.type, right_neighbour(), theirs[2], 1, side.type, window));
    MPI_OK(MPI_Win_unlock(right_neighbour(), window));
    CHECK(back.read() == after_put(side, key_of(rank(), 11), side, key_of(right_neighbour(), 2)));
    lock_step();
    for (int i = 0; i < 2; ++i)
      CHECK(areas[i].read() == after_put(side, key_of(rank(), i), side, key_of(left_neighbour(), 10)));
    for (const Area& area : areas) MPI_OK(MPI_Win_detach(window, area.base()));
    lock_step();
    // Nothing is attached there any more.
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, right_neighbour(), 0, window));
    MPI_OK(put(out, side, right_neighbour(), theirs[0], side, window));
    MPI_FAILS(MPI_Win_unlock(right_neighbour(), window), MPI_ERR_RMA_RANGE);
    MPI_FAILS(MPI_Win_detach(window, areas[0].base()), MPI_ERR_RMA_ATTACH);
    lock_step();
  }
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("an access to a dynamic window reaches into several regions", "[rma][window]") {
  const auto region = static_cast<MPI_Aint>(each * sizeof(int));
  MPI_Win window = dynamic_window();
  for (const Place place : {Place::host, Place::device}) {
    Memory memory(place, 4 * each * sizeof(int)), out(Place::device, 3 * each * sizeof(int));
    std::vector<int> mine(3 * each, rank()), wanted(4 * each, -1), found(wanted.size());
    memory.write(wanted.data(), memory.bytes());
    out.write(mine.data(), out.bytes());
    for (const int attached : {0, 1, 3}) MPI_OK(MPI_Win_attach(window, memory.data() + attached * region, region));
    const auto own = reinterpret_cast<MPI_Aint>(memory.data());
    MPI_Aint theirs = 0;
    PMPI_Sendrecv(&own, 1, MPI_AINT, left_neighbour(), 0, &theirs, 1, MPI_AINT, right_neighbour(), 0, comm(),
                  MPI_STATUS_IGNORE);
    const auto put_numbers = [&](MPI_Aint at, int count, const Type& type) {
      MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, right_neighbour(), 0, window));
      MPI_OK(MPI_Put(out.data(), count, MPI_INT, right_neighbour(), at, 1, type, window));
      return MPI_Win_unlock(right_neighbour(), window);
    };
    const auto expect = [&](const std::vector<int>& lengths, const std::vector<MPI_Aint>& places) {
      for (std::size_t i = 0; i < lengths.size(); ++i)
        std::fill_n(wanted.begin() + places[i], lengths[i], left_neighbour());
      lock_step();
      memory.read(found.data(), memory.bytes());
      CHECK(found == wanted);
      std::fill(wanted.begin(), wanted.end(), -1);
      memory.write(wanted.data(), memory.bytes());
      lock_step();
    };
    // Regions side by side, as one; from the region's address, and from MPI_BOTTOM.
    MPI_OK(put_numbers(theirs, 2 * each, blocks({2 * each}, {0})));
    expect({2 * each}, {0});
    const std::vector<int> lengths = {each, each / 2, 3};
    MPI_OK(put_numbers(theirs, each + each / 2 + 3, blocks(lengths, {each / 2, 3 * each, 4})));
    expect(lengths, {each / 2, 3 * each, 4});
    MPI_OK(put_numbers(0, each, blocks({each / 2, each / 2}, {each - 5, 3 * each}, theirs)));
    expect({each / 2, each / 2}, {each - 5, 3 * each});
    // Into the gap, and beyond the end.
    MPI_FAILS(put_numbers(theirs, 3 * each, blocks({3 * each}, {0})), MPI_ERR_RMA_RANGE);
    MPI_FAILS(put_numbers(theirs, 2, blocks({1, 1}, {0, 2 * each})), MPI_ERR_RMA_RANGE);
    MPI_FAILS(put_numbers(theirs, each, blocks({each}, {3 * each + 1})), MPI_ERR_RMA_RANGE);
    expect({}, {});
    for (const int attached : {0, 1, 3}) MPI_OK(MPI_Win_detach(window, memory.data() + attached * region));
    lock_step();
  }
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("a region of no bytes is attached and detached", "[rma][window]") {
  const Memory memory(Place::device, 8);
  MPI_Win window = dynamic_window();
  MPI_OK(MPI_Win_attach(window, memory.data(), 0));
  MPI_OK(MPI_Win_attach(window, memory.data() + 4, 0));
  MPI_OK(MPI_Win_detach(window, memory.data() + 4));
  MPI_OK(MPI_Win_detach(window, memory.data()));
  MPI_FAILS(MPI_Win_detach(window, memory.data()), MPI_ERR_RMA_ATTACH);
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("the target of an access to a dynamic window lies in one memory", "[rma][window]") {
  constexpr auto bytes = static_cast<MPI_Aint>(each * sizeof(int));
  Memory first(Place::device, bytes), second(Place::device, bytes), back(Place::host, 2 * bytes);
  const Memory host(Place::host, bytes), out(Place::device, 2 * bytes);
  MPI_Win window = dynamic_window();
  for (const Memory* memory : std::initializer_list<const Memory*>{&first, &second, &host})
    MPI_OK(MPI_Win_attach(window, memory->data(), bytes));
  const std::array<MPI_Aint, 3> own = {reinterpret_cast<MPI_Aint>(first.data()),
                                       reinterpret_cast<MPI_Aint>(second.data()),
                                       reinterpret_cast<MPI_Aint>(host.data())};
  std::array<MPI_Aint, 3> theirs{};
  PMPI_Sendrecv(own.data(), 3, MPI_AINT, left_neighbour(), 0, theirs.data(), 3, MPI_AINT, right_neighbour(), 0, comm(),
                MPI_STATUS_IGNORE);
  const Type on_gpu = numbers_at({each, each}, {theirs[0], theirs[1]});
  const Type on_host_too = numbers_at({each, each}, {theirs[0], theirs[2]});
  std::vector<int> mine(each, rank()), doubled(2 * each, 2 * right_neighbour()), found(doubled.size());
  first.write(mine.data(), bytes);
  second.write(mine.data(), bytes);
  lock_step();
  // Two allocations of one GPU: their numbers are doubled, and fetched.
  const std::vector<int> added(2 * each, right_neighbour());
  Memory summands(Place::device, 2 * bytes);
  summands.write(added.data(), 2 * bytes);
  MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, right_neighbour(), 0, window));
  MPI_OK(MPI_Accumulate(summands.data(), 2 * each, MPI_INT, right_neighbour(), 0, 1, on_gpu, MPI_SUM, window));
  MPI_OK(MPI_Win_flush(right_neighbour(), window));
  MPI_OK(MPI_Get(back.data(), 2 * each, MPI_INT, right_neighbour(), 0, 1, on_gpu, window));
  MPI_OK(MPI_Win_unlock(right_neighbour(), window));
  back.read(found.data(), back.bytes());
  CHECK(found == doubled);
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, right_neighbour(), 0, window));
  MPI_OK(MPI_Put(out.data(), 2 * each, MPI_INT, right_neighbour(), 0, 1, on_host_too, window));
  MPI_FAILS(MPI_Win_unlock(right_neighbour(), window), MPI_ERR_RMA_RANGE);
  lock_step();
  MPI_OK(MPI_Win_free(&window));
}
