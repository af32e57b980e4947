// Dynamic windows: regions of host and of device memory that the program attaches and detaches.
#include <array>
#include <vector>

#include "tests/mpi/rma.hpp"

using namespace gpudt::test;

TEST_CASE("a dynamic window over host and device memory", "[rma][window]") {
  const Side side{vector(300, 2, 5, MPI_INT), 1};
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
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

namespace {

constexpr int each = 100;  ///< numbers in a region

/// Blocks of numbers, each so many numbers behind `base`.
Type blocks(const std::vector<int>& lengths, const std::vector<MPI_Aint>& places, std::string text, MPI_Aint base = 0) {
  std::vector<MPI_Aint> bytes;
  for (const MPI_Aint place : places) bytes.push_back(base + place * static_cast<MPI_Aint>(sizeof(int)));
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(), bytes.data(), MPI_INT, &made);
  return {made, std::move(text)};
}

}  // namespace

TEST_CASE("an access to a dynamic window reaches into several regions", "[rma][window]") {
  const auto region = static_cast<MPI_Aint>(each * sizeof(int));
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
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
    MPI_OK(put_numbers(theirs, 2 * each, blocks({2 * each}, {0}, "two regions")));
    expect({2 * each}, {0});
    const std::vector<int> lengths = {each, each / 2, 3};
    MPI_OK(put_numbers(theirs, each + each / 2 + 3, blocks(lengths, {each / 2, 3 * each, 4}, "around a gap")));
    expect(lengths, {each / 2, 3 * each, 4});
    MPI_OK(put_numbers(0, each, blocks({each / 2, each / 2}, {each - 5, 3 * each}, "addresses", theirs)));
    expect({each / 2, each / 2}, {each - 5, 3 * each});
    // Into the gap, and beyond the end.
    MPI_FAILS(put_numbers(theirs, 3 * each, blocks({3 * each}, {0}, "with the gap")), MPI_ERR_RMA_RANGE);
    MPI_FAILS(put_numbers(theirs, 2, blocks({1, 1}, {0, 2 * each}, "a number in the gap")), MPI_ERR_RMA_RANGE);
    MPI_FAILS(put_numbers(theirs, each, blocks({each}, {3 * each + 1}, "beyond the end")), MPI_ERR_RMA_RANGE);
    lock_step();
    for (const int attached : {0, 1, 3}) MPI_OK(MPI_Win_detach(window, memory.data() + attached * region));
    lock_step();
  }
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("the target of an access to a dynamic window lies in one memory", "[rma][window]") {
  constexpr auto bytes = static_cast<MPI_Aint>(each * sizeof(int));
  const Memory host(Place::host, bytes), device(Place::device, bytes), out(Place::device, 2 * bytes);
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  MPI_OK(MPI_Win_attach(window, host.data(), bytes));
  MPI_OK(MPI_Win_attach(window, device.data(), bytes));
  const std::array<MPI_Aint, 2> own = {reinterpret_cast<MPI_Aint>(host.data()),
                                       reinterpret_cast<MPI_Aint>(device.data())};
  std::vector<MPI_Aint> theirs(own.size());
  PMPI_Sendrecv(own.data(), 2, MPI_AINT, left_neighbour(), 0, theirs.data(), 2, MPI_AINT, right_neighbour(), 0, comm(),
                MPI_STATUS_IGNORE);
  const int lengths[] = {each, each};
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_create_hindexed(2, lengths, theirs.data(), MPI_INT, &made);
  const Type both{made, "host and device"};
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, right_neighbour(), 0, window));
  MPI_OK(MPI_Put(out.data(), 2 * each, MPI_INT, right_neighbour(), 0, 1, both, window));
  MPI_FAILS(MPI_Win_unlock(right_neighbour(), window), MPI_ERR_RMA_RANGE);
  lock_step();
  MPI_OK(MPI_Win_free(&window));
}
