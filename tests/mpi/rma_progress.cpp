// One-sided communication while the target does something else, in quantity, and with requests.
#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

#include "tests/mpi/rma.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

int put(const Area& area, const Side& side, int target, const Area& there, MPI_Win window) {
  return MPI_Put(area.address(), side.count, side.type, target, there.displacement(), side.count, side.type, window);
}
int get(const Area& area, const Side& side, int target, const Area& there, MPI_Win window) {
  return MPI_Get(area.address(), side.count, side.type, target, there.displacement(), side.count, side.type, window);
}

/// Rank 0 puts to rank 1 and gets back, with a flush, while rank 1 is in `occupied()`; rank 0 ends that by `release()`.
template <class Occupied, class Release>
void check_passive(Occupied occupied, Release release) {
  for (const int bytes : {400, 300000}) {
    const Side side{vector(bytes / 16, 2, 3), 1};
    Area window_area(Place::device, side), out(Place::device, side), back(Place::device, side);
    const AreaWindow window(window_area);
    window_area.fill(key_of(rank(), 1));
    out.fill(key_of(rank(), 2));
    back.fill(key_of(rank(), 3));
    lock_step();
    if (rank() == 0) {
      MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, window));
      MPI_OK(put(out, side, 1, window_area, window));
      MPI_OK(MPI_Win_flush(1, window));
      MPI_OK(get(back, side, 1, window_area, window));
      MPI_OK(MPI_Win_unlock(1, window));
      CHECK(back.read() == after_put(side, key_of(0, 3), side, key_of(0, 2)));
      release();
    } else if (rank() == 1) {
      occupied();
      CHECK(window_area.read() == after_put(side, key_of(1, 1), side, key_of(0, 2)));
    }
    lock_step();
  }
}

}  // namespace

TEST_CASE("the target sits in MPI_Recv", "[rma][progress]") {
  if (ranks() < 2) return;
  check_passive([] { MPI_OK(MPI_Recv(nullptr, 0, MPI_INT, 0, 5, comm(), MPI_STATUS_IGNORE)); },
                [] { MPI_OK(MPI_Send(nullptr, 0, MPI_INT, 1, 5, comm())); });
}

TEST_CASE("the target sits in MPI_Barrier", "[rma][progress]") {
  if (ranks() < 2) return;
  MPI_Comm both = MPI_COMM_NULL;
  PMPI_Comm_split(comm(), rank() < 2 ? 0 : MPI_UNDEFINED, rank(), &both);
  check_passive([&] { MPI_OK(MPI_Barrier(both)); }, [&] { MPI_OK(MPI_Barrier(both)); });
  if (both != MPI_COMM_NULL) PMPI_Comm_free(&both);
}

TEST_CASE("the target sits in MPI_Wait for a message from a device", "[rma][progress]") {
  if (ranks() < 2) return;
  Memory memory(Place::device, 64);
  check_passive(
      [&] {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_OK(MPI_Irecv(memory.data(), 64, MPI_BYTE, 0, 6, comm(), &request));
        MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      },
      [&] { MPI_OK(MPI_Send(memory.data(), 64, MPI_BYTE, 1, 6, comm())); });
}

TEST_CASE("many accesses in one epoch", "[rma][progress]") {
  constexpr int many = 400;
  const Side slot{vector(20, 1, 2, MPI_INT), 1}, all{vector(20, 1, 2, MPI_INT), many};
  const auto stride = static_cast<MPI_Aint>(slot.type.extent());
  Area window_area(Place::device, all), out(Place::device, all), back(Place::device, all);
  const AreaWindow window(window_area);
  window_area.fill(key_of(rank(), 1));
  out.fill(key_of(rank(), 2));
  back.fill(key_of(rank(), 3));
  lock_step();
  const auto from = [&](const Area& area, int i) { return static_cast<char*>(area.address()) + i * stride; };
  MPI_OK(MPI_Win_fence(0, window));
  for (int i = 0; i < many; ++i)
    MPI_OK(MPI_Put(from(out, i), 1, slot.type, right_neighbour(), window_area.displacement() + i * stride, 1, slot.type,
                   window));
  MPI_OK(MPI_Win_fence(0, window));
  CHECK(window_area.read() == after_put(all, key_of(rank(), 1), all, key_of(left_neighbour(), 2)));
  for (int i = 0; i < many; ++i)
    MPI_OK(MPI_Get(from(back, i), 1, slot.type, right_neighbour(), window_area.displacement() + i * stride, 1,
                   slot.type, window));
  MPI_OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, window));
  CHECK(back.read() == after_put(all, key_of(rank(), 3), all, key_of(rank(), 2)));
}

TEST_CASE("large accesses, all ranks to one", "[rma][progress]") {
  constexpr int elements = 1 << 20;
  const Side side{vector(elements / 4, 4, 5, MPI_INT), 1}, whole{plain(MPI_INT), elements};
  for (const Place place : basic_places) {
    Area window_area(rank() == 0 ? Place::device : Place::host, side);
    Area out(place, whole), back(place, whole);
    const AreaWindow window(window_area);
    window_area.fill(key_of(rank(), 1));
    out.fill(key_of(rank(), 2));
    lock_step();
    for (int turn = 0; turn < ranks(); ++turn) {
      if (turn == rank()) {
        MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window));
        MPI_OK(MPI_Put(out.address(), whole.count, whole.type, 0, window_area.displacement(), 1, side.type, window));
        MPI_OK(MPI_Win_unlock(0, window));
      }
      MPI_OK(MPI_Barrier(comm()));
      if (rank() == 0) CHECK(window_area.read() == after_put(side, key_of(0, 1), whole, key_of(turn, 2)));
      back.fill(key_of(rank(), 3));
      MPI_OK(MPI_Win_lock_all(0, window));
      MPI_OK(MPI_Get(back.address(), whole.count, whole.type, 0, window_area.displacement(), 1, side.type, window));
      MPI_OK(MPI_Win_unlock_all(window));
      CHECK(back.read() == after_put(whole, key_of(rank(), 3), whole, key_of(turn, 2)));
      lock_step();
    }
  }
}

TEST_CASE("requests complete in any order, and with the epoch", "[rma][progress]") {
  constexpr int many = 40;
  for (const Place window_place : window_places()) {
    if (mpich && (host_only() || window_place == Place::host)) continue;  // its requests complete before their data
    const Side side{vector(10, 3, 4, MPI_INT), 1};
    std::vector<std::unique_ptr<Area>> out, back;
    Area window_area(window_place, side);
    const AreaWindow window(window_area);
    window_area.fill(key_of(rank(), 1));
    lock_step();
    std::vector<MPI_Request> requests(many, MPI_REQUEST_NULL);
    MPI_OK(MPI_Win_lock_all(0, window));
    for (int i = 0; i < many; ++i) {
      back.push_back(std::make_unique<Area>(i % 2 == 0 ? Place::device : Place::host, side));
      back.back()->fill(key_of(rank(), 3));
      MPI_OK(MPI_Rget(back.back()->address(), 1, side.type, right_neighbour(), window_area.displacement(), 1, side.type,
                      window, &requests[static_cast<std::size_t>(i)]));
    }
    const auto wanted = after_put(side, key_of(rank(), 3), side, key_of(right_neighbour(), 1));
    int index = MPI_UNDEFINED;
    MPI_OK(MPI_Waitany(many, requests.data(), &index, MPI_STATUS_IGNORE));
    CHECK(back[static_cast<std::size_t>(index)]->read() == wanted);
    MPI_OK(MPI_Waitall(many / 2, requests.data(), MPI_STATUSES_IGNORE));
    for (int i = 0; i < many / 2; ++i) CHECK(back[static_cast<std::size_t>(i)]->read() == wanted);
    MPI_OK(MPI_Win_unlock_all(window));  // completes the rest
    for (int i = many / 2; i < many; ++i) CHECK(back[static_cast<std::size_t>(i)]->read() == wanted);
    MPI_OK(MPI_Waitall(many, requests.data(), MPI_STATUSES_IGNORE));
    lock_step();
  }
}

TEST_CASE("accesses with requests need a lock", "[rma][progress]") {
  const Side side{plain(MPI_INT), 1};
  Area window_area(Place::device, side), out(Place::device, side);
  const AreaWindow window(window_area);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Win_fence(0, window));
  MPI_FAILS(MPI_Rput(out.address(), 1, MPI_INT, rank(), 0, 1, MPI_INT, window, &request), MPI_ERR_RMA_SYNC);
  MPI_OK(MPI_Win_fence(0, window));
}

TEST_CASE("several threads share a window", "[rma-threads]") {
  constexpr int threads = 4, rounds = 30;
  for (const Place window_place : window_places()) {
    Memory counters(window_place, 2 * sizeof(int));
    const int zeros[] = {0, 0};
    counters.write(zeros, sizeof zeros);
    MPI_Win window = MPI_WIN_NULL;
    MPI_OK(MPI_Win_create(counters.data(), sizeof zeros, sizeof(int), MPI_INFO_NULL, comm(), &window));
    lock_step();
    MPI_OK(MPI_Win_lock_all(0, window));
    std::vector<std::vector<int>> tickets(threads);
    std::vector<std::string> failures(threads);
    const auto work = [&](std::size_t thread) {
      Memory one(Place::device, sizeof(int)), ticket(Place::device, sizeof(int));
      const int value = 1;
      one.write(&value, sizeof value);
      for (int round = 0; round < rounds && failures[thread].empty(); ++round) {
        int code = MPI_Fetch_and_op(one.data(), ticket.data(), MPI_INT, 0, 0, MPI_SUM, window);
        if (code == MPI_SUCCESS) code = MPI_Win_flush(0, window);
        if (code == MPI_SUCCESS) code = MPI_Accumulate(one.data(), 1, MPI_INT, 0, 1, 1, MPI_INT, MPI_SUM, window);
        if (code == MPI_SUCCESS) code = MPI_Win_flush_local(0, window);
        failures[thread] = error_text(code);
        int mine = -1;
        ticket.read(&mine, sizeof mine);
        tickets[thread].push_back(mine);
      }
    };
    std::vector<std::thread> team;
    for (std::size_t thread = 0; thread < threads; ++thread) team.emplace_back(work, thread);
    for (std::thread& thread : team) thread.join();
    MPI_OK(MPI_Win_unlock_all(window));
    lock_step();
    std::vector<int> mine, all(static_cast<std::size_t>(threads * rounds * ranks()));
    for (std::size_t thread = 0; thread < threads; ++thread) {
      CHECK(failures[thread] == "");
      mine.insert(mine.end(), tickets[thread].begin(), tickets[thread].end());
    }
    mine.resize(threads * rounds);
    PMPI_Allgather(mine.data(), threads * rounds, MPI_INT, all.data(), threads * rounds, MPI_INT, comm());
    std::sort(all.begin(), all.end());
    std::vector<int> wanted(all.size());
    std::iota(wanted.begin(), wanted.end(), 0);
    CHECK(all == wanted);
    int found[2] = {0, 0};
    counters.read(found, sizeof found);
    if (rank() == 0) CHECK(found[1] == threads * rounds * ranks());
    MPI_OK(MPI_Win_free(&window));
  }
}
