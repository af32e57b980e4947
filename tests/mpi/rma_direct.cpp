// One-sided communication by the origin's GPU: the target has no part in it. For runs in which every process reaches
// the others' device memory.
#include <cuda_runtime_api.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "tests/mpi/rma.hpp"

using namespace gpudt::test;

namespace {

constexpr auto longest_wait = std::chrono::seconds(60);

/// An integer in this process's device memory, and a window over all ranks'.
class Flag {
 public:
  Flag() : memory_(Place::device, sizeof(int)), out_(Place::device, sizeof(int)) {
    memory_.write(&value_, sizeof value_);
    MPI_OK(MPI_Win_create(memory_.data(), sizeof(int), 1, MPI_INFO_NULL, comm(), &window_));
  }
  ~Flag() { MPI_OK(MPI_Win_free(&window_)); }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

  /// Gives rank 1 the next value.
  void raise() {
    ++value_;
    out_.write(&value_, sizeof value_);
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window_));
    MPI_OK(MPI_Put(out_.data(), 1, MPI_INT, 1, 0, 1, MPI_INT, window_));
    MPI_OK(MPI_Win_unlock(1, window_));
  }
  /// Returns when this process has got the next value, and calls nothing of MPI. False if it takes too long.
  bool await() {
    ++value_;
    const auto deadline = std::chrono::steady_clock::now() + longest_wait;
    for (int found = 0; found != value_;) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      memory_.read(&found, sizeof found);
    }
    return true;
  }

 private:
  Memory memory_, out_;
  MPI_Win window_ = MPI_WIN_NULL;
  int value_ = 0;
};

/// Epochs that need nothing of the target's.
struct PassiveEpoch {
  const char* name;
  void (*open)(MPI_Win window);
  void (*close)(MPI_Win window);
};

const PassiveEpoch passive_epochs[] = {
    {"exclusive lock", [](MPI_Win window) { MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, window)); },
     [](MPI_Win window) { MPI_OK(MPI_Win_unlock(1, window)); }},
    {"shared lock", [](MPI_Win window) { MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window)); },
     [](MPI_Win window) { MPI_OK(MPI_Win_unlock(1, window)); }},
    {"no check", [](MPI_Win window) { MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, 1, MPI_MODE_NOCHECK, window)); },
     [](MPI_Win window) { MPI_OK(MPI_Win_unlock(1, window)); }},
    {"lock all", [](MPI_Win window) { MPI_OK(MPI_Win_lock_all(0, window)); },
     [](MPI_Win window) { MPI_OK(MPI_Win_unlock_all(window)); }},
};

}  // namespace

TEST_CASE("the target computes and does not call MPI", "[rma-direct]") {
  if (ranks() < 2) return;
  Flag flag;
  for (const PassiveEpoch& epoch : passive_epochs)
    for (const Place place : {Place::device, Place::host})
      for (const auto& [there, here] : {std::pair{Side{plain(MPI_DOUBLE), 3}, Side{plain(MPI_DOUBLE), 3}},
                                        {Side{vector(1000, 2, 3), 1}, Side{vector(500, 4, 7), 1}},
                                        {Side{plain(MPI_DOUBLE), 300000}, Side{vector(100000, 3, 4), 1}}}) {
        step(std::string(epoch.name) + ", " + place_name(place) + ", " + there.text() + " of " + here.text());
        Area window_area(Place::device, there), out(place, here), back(place, here);
        const AreaWindow window(window_area);
        window_area.fill(key_of(rank(), 1));
        out.fill(key_of(rank(), 2));
        back.fill(key_of(rank(), 3));
        lock_step();
        if (rank() == 0) {
          epoch.open(window);
          MPI_OK(MPI_Put(out.address(), here.count, here.type, 1, window_area.displacement(), there.count, there.type,
                         window));
          MPI_OK(MPI_Win_flush(1, window));
          MPI_OK(MPI_Get(back.address(), here.count, here.type, 1, window_area.displacement(), there.count, there.type,
                         window));
          epoch.close(window);
          CHECK(back.read() == after_put(here, key_of(0, 3), here, key_of(0, 2)));
          flag.raise();
        } else if (rank() == 1) {
          REQUIRE(flag.await());
          CHECK(window_area.read() == after_put(there, key_of(1, 1), here, key_of(0, 2)));
        }
        lock_step();
      }
}

TEST_CASE("requests complete while the target computes", "[rma-direct]") {
  if (ranks() < 2) return;
  Flag flag;
  for (const Place place : {Place::device, Place::host}) {
    const Side side{vector(1000, 2, 3), 1};
    Area window_area(Place::device, side), out(place, side), back(place, side);
    const AreaWindow window(window_area);
    window_area.fill(key_of(rank(), 1));
    out.fill(key_of(rank(), 2));
    back.fill(key_of(rank(), 3));
    lock_step();
    if (rank() == 0) {
      MPI_Request request = MPI_REQUEST_NULL;
      const MPI_Aint displacement = window_area.displacement();
      MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, window));
      MPI_OK(MPI_Rput(out.address(), 1, side.type, 1, displacement, 1, side.type, window, &request));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      MPI_OK(MPI_Win_flush_local(1, window));
      MPI_OK(MPI_Win_flush(1, window));
      MPI_OK(MPI_Rget(back.address(), 1, side.type, 1, displacement, 1, side.type, window, &request));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      CHECK(back.read() == after_put(side, key_of(0, 3), side, key_of(0, 2)));
      MPI_OK(MPI_Win_unlock(1, window));
      flag.raise();
    } else if (rank() == 1) {
      REQUIRE(flag.await());
      CHECK(window_area.read() == after_put(side, key_of(1, 1), side, key_of(0, 2)));
    }
    lock_step();
  }
}

TEST_CASE("accumulates of all kinds while the target computes", "[rma-direct]") {
  if (ranks() < 2) return;
  constexpr int count = 1000;
  Flag flag;
  for (const Place place : {Place::device, Place::host}) {
    step(std::string("origin: ") + place_name(place));
    Memory window_memory(Place::device, count * sizeof(int));
    Memory given(place, count * sizeof(int)), fetched(place, count * sizeof(int)), compared(place, sizeof(int));
    std::vector<int> values(count), old(count);
    std::iota(values.begin(), values.end(), rank() * 100000);
    window_memory.write(values.data(), count * sizeof(int));
    std::iota(values.begin(), values.end(), 7);
    given.write(values.data(), count * sizeof(int));
    MPI_Win window = MPI_WIN_NULL;
    MPI_OK(MPI_Win_create(window_memory.data(), count * sizeof(int), sizeof(int), MPI_INFO_NULL, comm(), &window));
    lock_step();
    if (rank() == 0) {
      MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window));
      // Ordered: 100000 + i, + 7 + i, then the first replaced and swapped, each seen by the next.
      MPI_OK(MPI_Accumulate(given.data(), count, MPI_INT, 1, 0, count, MPI_INT, MPI_SUM, window));
      MPI_OK(MPI_Get_accumulate(given.data(), count, MPI_INT, fetched.data(), count, MPI_INT, 1, 0, count, MPI_INT,
                                MPI_NO_OP, window));
      MPI_OK(MPI_Win_flush(1, window));
      fetched.read(old.data(), count * sizeof(int));
      for (int i = 0; i < count; ++i) REQUIRE(old[static_cast<std::size_t>(i)] == 100007 + 2 * i);
      MPI_OK(MPI_Fetch_and_op(given.data(), fetched.data(), MPI_INT, 1, 0, MPI_REPLACE, window));
      MPI_OK(MPI_Win_flush(1, window));
      fetched.read(old.data(), sizeof(int));
      CHECK(old[0] == 100007);
      for (const int expected : {7, 7}) {  // the second time it is 8 there
        compared.write(&expected, sizeof expected);
        const int next = 8;
        given.write(&next, sizeof next);
        MPI_OK(MPI_Compare_and_swap(given.data(), compared.data(), fetched.data(), MPI_INT, 1, 0, window));
        MPI_OK(MPI_Win_flush(1, window));
      }
      fetched.read(old.data(), sizeof(int));
      CHECK(old[0] == 8);
      MPI_OK(MPI_Win_unlock(1, window));
      flag.raise();
    } else if (rank() == 1) {
      REQUIRE(flag.await());
      window_memory.read(old.data(), count * sizeof(int));
      CHECK(old[0] == 8);
      for (int i = 1; i < count; ++i) REQUIRE(old[static_cast<std::size_t>(i)] == 100007 + 2 * i);
    }
    lock_step();
    MPI_OK(MPI_Win_free(&window));
  }
}

TEST_CASE("accumulates by GPUs and by the target are atomic to each other", "[rma-direct]") {
  constexpr int turns = 100;
  // What odd ranks have is all in host memory, so that rank 0 serves them; it does so while it waits.
  const Place place = rank() % 2 == 0 ? Place::device : Place::host;
  Memory counter(place, sizeof(int)), one(place, sizeof(int)), seen(place, sizeof(int));
  const int zero = 0, step_width = 1;
  counter.write(&zero, sizeof zero);
  one.write(&step_width, sizeof step_width);
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(counter.data(), sizeof(int), 1, MPI_INFO_NULL, comm(), &window));
  lock_step();
  MPI_OK(MPI_Win_lock_all(0, window));
  int last = -1;
  for (int turn = 0; turn < turns; ++turn) {
    MPI_OK(MPI_Fetch_and_op(one.data(), seen.data(), MPI_INT, 0, 0, MPI_SUM, window));
    MPI_OK(MPI_Win_flush(0, window));
    int now = 0;
    seen.read(&now, sizeof now);
    REQUIRE(now > last);
    last = now;
  }
  MPI_OK(MPI_Win_unlock_all(window));
  lock_step();
  if (rank() == 0) {
    int total = 0;
    counter.read(&total, sizeof total);
    CHECK(total == turns * ranks());
  }
  lock_step();
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("an access in a lock of all ranks waits for nobody", "[rma-direct]") {
  if (ranks() < 2) return;
  Memory memory(Place::device, sizeof(int)), value(Place::device, sizeof(int));
  const int zero = 0;
  memory.write(&zero, sizeof zero);
  value.write(&zero, sizeof zero);
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.data(), sizeof(int), 1, MPI_INFO_NULL, comm(), &window));
  if (rank() == 0) MPI_OK(MPI_Win_lock_all(0, window));
  lock_step();
  if (rank() == 0) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Put(value.data(), 1, MPI_INT, 1, 0, 1, MPI_INT, window));
    MPI_OK(MPI_Isend(nullptr, 0, MPI_INT, 1, 5, comm(), &request));
    MPI_OK(MPI_Win_unlock_all(window));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  } else if (rank() == 1) {
    MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, window));
    MPI_OK(MPI_Recv(nullptr, 0, MPI_INT, 0, 5, comm(), MPI_STATUS_IGNORE));
    MPI_OK(MPI_Win_unlock(1, window));
  }
  lock_step();
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("a lock of all ranks keeps others from one's own memory", "[rma-direct]") {
  if (ranks() < 2) return;
  Memory memory(Place::device, sizeof(int)), value(Place::device, sizeof(int));
  const int before = 1, after = 2;
  memory.write(&before, sizeof before);
  value.write(&after, sizeof after);
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.data(), sizeof(int), 1, MPI_INFO_NULL, comm(), &window));
  if (rank() == 0) {
    MPI_OK(MPI_Win_lock_all(0, window));
    MPI_OK(MPI_Send(nullptr, 0, MPI_INT, 1, 5, comm()));
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    int seen = before;
    while (std::chrono::steady_clock::now() < end && seen == before) memory.read(&seen, sizeof seen);
    CHECK(seen == before);
    MPI_OK(MPI_Win_unlock_all(window));
  } else if (rank() == 1) {
    MPI_OK(MPI_Recv(nullptr, 0, MPI_INT, 0, 5, comm(), MPI_STATUS_IGNORE));
    MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window));
    MPI_OK(MPI_Put(value.data(), 1, MPI_INT, 0, 0, 1, MPI_INT, window));
    MPI_OK(MPI_Win_unlock(0, window));
  }
  lock_step();
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("a shared lock does not wait for one that wants it alone", "[rma-direct]") {
  if (ranks() < 3) return;
  Memory memory(Place::device, sizeof(int));
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.data(), sizeof(int), 1, MPI_INFO_NULL, comm(), &window));
  const auto tell = [](int to) { MPI_OK(MPI_Send(nullptr, 0, MPI_INT, to, 5, comm())); };
  const auto hear = [](int from) { MPI_OK(MPI_Recv(nullptr, 0, MPI_INT, from, 5, comm(), MPI_STATUS_IGNORE)); };
  if (rank() == 0) {
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window));
    tell(1);
    hear(2);
    MPI_OK(MPI_Win_unlock(0, window));
  } else if (rank() == 1) {
    hear(0);
    tell(2);
    MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window));
    MPI_OK(MPI_Win_unlock(0, window));
  } else if (rank() == 2) {
    hear(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the other one is more likely to be waiting by then
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window));
    MPI_OK(MPI_Win_unlock(0, window));
    tell(0);
  }
  lock_step();
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("a target that serves an accumulate and computes then keeps nobody waiting", "[rma-direct]") {
  if (ranks() < 3) return;
  constexpr int count = 100000;
  Flag flag;
  Memory memory(Place::device, count * sizeof(long double)), given(Place::device, count * sizeof(long double));
  const std::vector<long double> zeros(count);
  memory.write(zeros.data(), count * sizeof(long double));
  given.write(zeros.data(), count * sizeof(long double));
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.data(), count * sizeof(long double), 1, MPI_INFO_NULL, comm(), &window));
  lock_step();
  if (rank() == 0) {
    MPI_OK(MPI_Recv(nullptr, 0, MPI_INT, 2, 5, comm(), MPI_STATUS_IGNORE));
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window));
    for (int turn = 0; turn < 20; ++turn)
      MPI_OK(MPI_Accumulate(given.data(), 1, MPI_INT, 1, 0, 1, MPI_INT, MPI_SUM, window));
    MPI_OK(MPI_Win_unlock(1, window));
    flag.raise();
  } else if (rank() == 1) {
    MPI_OK(MPI_Recv(nullptr, 0, MPI_INT, 2, 5, comm(), MPI_STATUS_IGNORE));
    REQUIRE(flag.await());
  } else if (rank() == 2) {
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window));
    MPI_OK(MPI_Accumulate(given.data(), count, MPI_LONG_DOUBLE, 1, 0, count, MPI_LONG_DOUBLE, MPI_SUM, window));
    for (const int other : {0, 1}) MPI_OK(MPI_Send(nullptr, 0, MPI_INT, other, 5, comm()));
    MPI_OK(MPI_Win_unlock(1, window));
  }
  lock_step();
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("more windows than a process has locks for", "[rma-direct]") {
  constexpr std::size_t many = 300;
  Memory memory(Place::device, many * sizeof(int)), value(Place::device, sizeof(int));
  std::vector<int> words(many, -1);
  memory.write(words.data(), many * sizeof(int));
  std::vector<MPI_Win> windows(many);
  for (std::size_t i = 0; i < many; ++i)
    MPI_OK(MPI_Win_create(memory.data() + i * sizeof(int), sizeof(int), 1, MPI_INFO_NULL, comm(), &windows[i]));
  for (std::size_t i = 0; i < many; ++i) {
    const int mine = rank() * 1000 + static_cast<int>(i);
    value.write(&mine, sizeof mine);
    MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, right_neighbour(), 0, windows[i]));
    MPI_OK(MPI_Put(value.data(), 1, MPI_INT, right_neighbour(), 0, 1, MPI_INT, windows[i]));
    MPI_OK(MPI_Win_unlock(right_neighbour(), windows[i]));
  }
  lock_step();
  memory.read(words.data(), many * sizeof(int));
  for (std::size_t i = 0; i < many; ++i) CHECK(words[i] == left_neighbour() * 1000 + static_cast<int>(i));
  lock_step();
  for (MPI_Win& window : windows) MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("MPI_Win_shared_query tells where memory of the others is for this process's GPU", "[rma-direct]") {
  constexpr std::size_t before = 3;  // the window begins within an allocation
  const auto count_of = [](int of) { return static_cast<std::size_t>(10 + of); };
  const auto value_of = [](int of, std::size_t i) { return of * 1000 + static_cast<int>(i); };
  const std::size_t count = rank() == 0 ? 0 : count_of(rank());  // rank 0 has no memory in it
  Memory memory(Place::device, (before + count + 1) * sizeof(int));
  std::vector<int> words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = value_of(rank(), i);
  memory.write(words.data(), count * sizeof(int), before * sizeof(int));
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.data() + before * sizeof(int), static_cast<MPI_Aint>(count * sizeof(int)), sizeof(int),
                        MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  MPI_Aint size = -1;
  int unit = -1;
  const void* base = &size;
  for (int other = 0; other < ranks(); ++other) {
    MPI_OK(MPI_Win_shared_query(window, other, &size, &unit, static_cast<void*>(&base)));
    CHECK(unit == static_cast<int>(sizeof(int)));
    if (other == 0 || rank() == 0) {  // no memory there; no GPU of this process in the window
      CHECK(size == 0);
      if (other != rank()) CHECK(base == nullptr);
      continue;
    }
    REQUIRE(size == static_cast<MPI_Aint>(count_of(other) * sizeof(int)));
    std::vector<int> seen(count_of(other));
    REQUIRE(cudaMemcpy(seen.data(), base, seen.size() * sizeof(int), cudaMemcpyDefault) == cudaSuccess);
    for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == value_of(other, i));
  }
  MPI_OK(MPI_Win_shared_query(window, MPI_PROC_NULL, &size, &unit, static_cast<void*>(&base)));
  CHECK(size == (rank() == 0 ? 0 : static_cast<MPI_Aint>(count_of(1) * sizeof(int))));
  CHECK(error_class(MPI_Win_shared_query(window, ranks(), &size, &unit, static_cast<void*>(&base))) == MPI_ERR_RANK);
  lock_step();
  MPI_OK(MPI_Win_free(&window));
  MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, comm(), &window));
  MPI_OK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  CHECK(error_class(MPI_Win_shared_query(window, 0, &size, &unit, static_cast<void*>(&base))) == MPI_ERR_RMA_FLAVOR);
  MPI_OK(MPI_Win_free(&window));
}
