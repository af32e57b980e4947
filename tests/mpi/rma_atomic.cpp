// Accumulates of several ranks to the same places, locks, and the arithmetic of every element type.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/mpi/rma.hpp"

using namespace gpudt::test;

namespace {

constexpr int rounds = 50;

/// `count` values of a window on each rank, in some memory, displacements in elements.
template <class Value>
class Values {
 public:
  Values(Place place, int count) : memory_(place, static_cast<std::size_t>(count) * sizeof(Value)), count_(count) {
    write(std::vector<Value>(static_cast<std::size_t>(count), Value{}));
    MPI_OK(MPI_Win_create(memory_.data(), static_cast<MPI_Aint>(memory_.bytes()), sizeof(Value), MPI_INFO_NULL, comm(),
                          &window_));
    MPI_OK(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN));
  }
  ~Values() { MPI_OK(MPI_Win_free(&window_)); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  operator MPI_Win() const { return window_; }  // NOLINT(google-explicit-constructor): stands in for the handle
  void write(const std::vector<Value>& values) { memory_.write(values.data(), values.size() * sizeof(Value)); }
  std::vector<Value> read() const {
    std::vector<Value> values(static_cast<std::size_t>(count_));
    memory_.read(values.data(), values.size() * sizeof(Value));
    return values;
  }

 private:
  Memory memory_;
  int count_;
  MPI_Win window_ = MPI_WIN_NULL;
};

/// Values of the program's own, in some memory.
template <class Value>
class Local {
 public:
  Local(Place place, const std::vector<Value>& values) : memory_(place, values.size() * sizeof(Value)) { set(values); }
  Local(Place place, Value value) : Local(place, std::vector<Value>{value}) {}
  void* address() const { return memory_.data(); }
  void set(const std::vector<Value>& values) { memory_.write(values.data(), values.size() * sizeof(Value)); }
  Value get(std::size_t at = 0) const {
    Value value;
    memory_.read(&value, sizeof value, at * sizeof value);
    return value;
  }

 private:
  Memory memory_;
};

/// Rank 0's values, seen by all.
template <class Value>
std::vector<Value> of_rank_0(const Values<Value>& values) {
  lock_step();
  std::vector<Value> seen = values.read();
  PMPI_Bcast(seen.data(), static_cast<int>(seen.size() * sizeof(Value)), MPI_BYTE, 0, comm());
  return seen;
}

}  // namespace

TEST_CASE("accumulates of all ranks to the same places are atomic", "[rma][atomic]") {
  for (const Place window_place : window_places())
    for (const Place place : basic_places) {
      constexpr int count = 300;
      INFO(place_name(place) << " to " << place_name(window_place));
      Values<int> values(window_place, 2 * count);
      // Every other element, from dense data.
      const Type target = vector(count, 1, 2, MPI_INT);
      std::vector<int> mine(count);
      std::iota(mine.begin(), mine.end(), rank());
      const Local<int> origin(place, mine);
      MPI_OK(MPI_Win_lock_all(0, values));
      for (int round = 0; round < rounds; ++round)
        MPI_OK(MPI_Accumulate(origin.address(), count, MPI_INT, 0, 0, 1, target, MPI_SUM, values));
      MPI_OK(MPI_Win_unlock_all(values));
      const std::vector<int> seen = of_rank_0(values);
      std::vector<int> wanted(2 * count, 0);
      for (std::size_t i = 0; i < count; ++i)
        wanted[2 * i] = rounds * (static_cast<int>(i) * ranks() + ranks() * (ranks() - 1) / 2);
      CHECK(seen == wanted);
    }
}

TEST_CASE("Fetch_and_op hands out every ticket once", "[rma][atomic]") {
  for (const Place window_place : window_places())
    for (const Place place : basic_places) {
      INFO(place_name(place) << " to " << place_name(window_place));
      Values<long> counter(window_place, 1);
      const Local<long> one(place, 1L), ticket(place, -1L);
      std::vector<long> mine;
      MPI_OK(MPI_Win_lock_all(0, counter));
      for (int round = 0; round < rounds; ++round) {
        MPI_OK(MPI_Fetch_and_op(one.address(), ticket.address(), MPI_LONG, 0, 0, MPI_SUM, counter));
        MPI_OK(MPI_Win_flush(0, counter));
        mine.push_back(ticket.get());
      }
      MPI_OK(MPI_Win_unlock_all(counter));
      CHECK(std::is_sorted(mine.begin(), mine.end()));
      std::vector<long> all(static_cast<std::size_t>(rounds * ranks()));
      PMPI_Allgather(mine.data(), rounds, MPI_LONG, all.data(), rounds, MPI_LONG, comm());
      std::sort(all.begin(), all.end());
      std::vector<long> wanted(all.size());
      std::iota(wanted.begin(), wanted.end(), 0L);
      CHECK(all == wanted);
      CHECK(of_rank_0(counter)[0] == static_cast<long>(all.size()));
    }
}

TEST_CASE("a counter kept with Compare_and_swap", "[rma][atomic]") {
  for (const Place place : basic_places) {
    Values<std::int64_t> counter(Place::device, 1);
    Local<std::int64_t> next(place, std::int64_t(0)), expected(place, std::int64_t(0)), found(place, std::int64_t(0));
    MPI_OK(MPI_Win_lock_all(0, counter));
    for (int round = 0; round < rounds / 5; ++round) {
      std::int64_t guess = 0;
      for (;;) {
        next.set({guess + 1});
        expected.set({guess});
        MPI_OK(MPI_Compare_and_swap(next.address(), expected.address(), found.address(), MPI_INT64_T, 0, 0, counter));
        MPI_OK(MPI_Win_flush(0, counter));
        if (found.get() == guess) break;
        guess = found.get();
      }
    }
    MPI_OK(MPI_Win_unlock_all(counter));
    CHECK(of_rank_0(counter)[0] == std::int64_t(rounds / 5) * ranks());
  }
}

TEST_CASE("an exclusive lock keeps others out", "[rma][atomic]") {
  for (const Place window_place : window_places()) {
    Values<int> values(window_place, 2);
    const Local<int> copy(Place::device, std::vector<int>{0, 0});
    Local<int> changed(Place::device, std::vector<int>{0, 0});
    for (int round = 0; round < rounds / 5; ++round) {
      MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, values));
      MPI_OK(MPI_Get(copy.address(), 2, MPI_INT, 0, 0, 2, MPI_INT, values));
      MPI_OK(MPI_Win_flush(0, values));
      CHECK(copy.get(0) == copy.get(1));
      changed.set({copy.get(0) + 1, copy.get(1) + 1});
      MPI_OK(MPI_Put(changed.address(), 1, MPI_INT, 0, 0, 1, MPI_INT, values));
      MPI_OK(MPI_Win_flush(0, values));
      const Local<int> second(Place::host, copy.get(1) + 1);
      MPI_OK(MPI_Put(second.address(), 1, MPI_INT, 0, 1, 1, MPI_INT, values));
      MPI_OK(MPI_Win_unlock(0, values));
    }
    const std::vector<int> seen = of_rank_0(values);
    CHECK(seen[0] == rounds / 5 * ranks());
    CHECK(seen[1] == rounds / 5 * ranks());
  }
}

TEST_CASE("shared locks are held together", "[rma][atomic]") {
  Values<int> values(Place::device, 1);
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, values));
  lock_step();  // all have it
  MPI_OK(MPI_Win_unlock(0, values));
  lock_step();
}

TEST_CASE("accumulates of one rank to one place keep their order", "[rma][atomic]") {
  Values<int> values(Place::device, 1);
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, rank(), 0, values));
  std::vector<Local<int>> origins;
  origins.reserve(rounds);
  for (int i = 0; i < rounds; ++i) origins.emplace_back(i % 3 == 0 ? Place::host : Place::device, i);
  for (int i = 0; i < rounds; ++i)
    MPI_OK(MPI_Accumulate(origins[static_cast<std::size_t>(i)].address(), 1, MPI_INT, rank(), 0, 1, MPI_INT,
                          i % 2 == 0 ? MPI_REPLACE : MPI_SUM, values));
  MPI_OK(MPI_Win_unlock(rank(), values));
  CHECK(values.read()[0] == rounds - 2 + rounds - 1);
}

namespace {

/// One accumulate of three elements to the right neighbour's window, by `op`: what is there then, and what came back.
template <class Value>
std::pair<std::vector<Value>, std::vector<Value>> combined(const Type& type, MPI_Op op, const std::vector<Value>& there,
                                                           const std::vector<Value>& here) {
  const int count = static_cast<int>(here.size());
  Values<Value> values(Place::device, count);
  values.write(there);
  const Local<Value> origin(Place::device, here), result(Place::device, here);
  MPI_OK(MPI_Win_fence(0, values));
  MPI_OK(MPI_Get_accumulate(origin.address(), count, type, result.address(), count, type, right_neighbour(), 0, count,
                            type, op, values));
  MPI_OK(MPI_Win_fence(0, values));
  std::vector<Value> back;
  back.reserve(here.size());
  for (int i = 0; i < count; ++i) back.push_back(result.get(static_cast<std::size_t>(i)));
  return {values.read(), back};
}

template <class Value>
void check_sums(MPI_Datatype type) {
  const std::vector<Value> there = {Value(1), Value(20), Value(3)}, here = {Value(4), Value(5), Value(60)};
  const auto [sum, before] = combined<Value>(plain(type), MPI_SUM, there, here);
  CHECK(sum == std::vector<Value>{Value(5), Value(25), Value(63)});
  CHECK(before == there);
  CHECK(combined<Value>(plain(type), MPI_PROD, there, here).first ==
        std::vector<Value>{Value(4), Value(100), Value(180)});
}

struct DoubleInt {
  double value;
  int index;
  bool operator==(const DoubleInt&) const = default;
};
struct TwoInts {
  int value, index;
  bool operator==(const TwoInts&) const = default;
};

}  // namespace

TEST_CASE("accumulates of every kind of element", "[rma][atomic]") {
  check_sums<signed char>(MPI_SIGNED_CHAR);
  check_sums<unsigned short>(MPI_UNSIGNED_SHORT);
  check_sums<std::int32_t>(MPI_INT32_T);
  check_sums<std::uint64_t>(MPI_UINT64_T);
  check_sums<float>(MPI_FLOAT);
  check_sums<double>(MPI_DOUBLE);
  check_sums<MPI_Aint>(MPI_AINT);
  check_sums<MPI_Offset>(MPI_OFFSET);
}

TEST_CASE("accumulates of pairs, with gaps and without", "[rma][atomic]") {
  const std::vector<DoubleInt> there = {{1.5, 7}, {9.0, 2}, {4.0, 8}}, here = {{0.5, 3}, {9.0, 1}, {5.0, 4}};
  CHECK(combined<DoubleInt>(plain(MPI_DOUBLE_INT), MPI_MINLOC, there, here).first ==
        std::vector<DoubleInt>{{0.5, 3}, {9.0, 1}, {4.0, 8}});
  CHECK(combined<DoubleInt>(plain(MPI_DOUBLE_INT), MPI_MAXLOC, there, here).first ==
        std::vector<DoubleInt>{{1.5, 7}, {9.0, 1}, {5.0, 4}});
  const std::vector<TwoInts> two = {{1, 7}, {9, 2}}, other = {{2, 1}, {9, 5}};
  CHECK(combined<TwoInts>(plain(MPI_2INT), MPI_MAXLOC, two, other).first == std::vector<TwoInts>{{2, 1}, {9, 2}});
}
