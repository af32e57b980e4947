// Persistent collectives that GPUs do or not, which processes may start in different orders.
#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "tests/mpi/pending_sums.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

TEST_CASE("persistent reductions between nonblocking ones", "[collective][nonblocking]") {
  if (!has_persistent()) return;
  for (int mix = 0; mix < 1 << ranks(); ++mix) {
    const Place mine = place_of((mix >> rank() & 1) != 0);
    std::deque<PersistentSum> sums;
    for (int i = 0; i < 3; ++i) sums.emplace_back(comm(), i == 1 ? Place::device : mine);
    for (int round = 0; round < 4; ++round) {
      std::vector<MPI_Request> requests;
      for (PersistentSum& sum : sums) {
        sum.fill(100 * mix + 10 * round);
        requests.push_back(sum.request);
      }
      MPI_OK(MPI_Startall(3, requests.data()));
      if (round % 2 == 0) MPI_OK(MPI_Barrier(comm()));
      PendingSum between(comm(), place_of(mix % 2 == 0), round);
      MPI_OK(MPI_Waitall(3, requests.data(), MPI_STATUSES_IGNORE));
      for (std::size_t i = 0; i < sums.size(); ++i) {
        CHECK(requests[i] == sums[i].request);
        CHECK(sums[i].right());
      }
      CHECK(between.wait());
    }
  }
}

TEST_CASE("the start of a persistent collective waits for nobody", "[collective][nonblocking]") {
  if (!has_persistent()) return;
  PersistentSum on_device(comm(), Place::device), on_host(comm(), Place::host), mixed(comm(), place_of(rank() == 0));
  for (int round = 0; round < 4; ++round) {
    first_process_first(comm());
    mixed.start(round);
    on_host.start(round + 1);
    PendingSum between(comm(), place_of(round % 2 == 0), round + 2);
    on_device.start(round + 3);
    let_others_follow(comm());
    if (round < 2) MPI_OK(MPI_Barrier(comm()));
    int done = 0;
    while (done == 0) MPI_OK(MPI_Test(&on_host.request, &done, MPI_STATUS_IGNORE));
    CHECK(on_host.right());
    for (PersistentSum* const sum : {&on_device, &mixed}) CHECK(sum->wait());
    CHECK(between.wait());
  }
}

// As MPI-4.1 section 6.13 allows.
TEST_CASE("persistent collectives started in another order by each process", "[collective][nonblocking]") {
  if (!has_persistent() || !starts_in_any_order) return;
  std::deque<PersistentSum> sums;
  for (int i = 0; i < 4; ++i) sums.emplace_back(comm(), place_of(i != 2));
  for (int round = 0; round < 6; ++round) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t which = (i + static_cast<std::size_t>(round * rank())) % sums.size();
      sums[which].start(100 * round + static_cast<int>(which));
    }
    PendingSum between(comm(), Place::device, round);
    for (PersistentSum& sum : sums) CHECK(sum.wait());
    CHECK(between.wait());
  }
}

TEST_CASE("starts of persistent collectives among other collectives, in any order", "[collective][nonblocking]") {
  if (!has_persistent() || !starts_in_any_order) return;
  std::mt19937_64 own(17 + static_cast<unsigned>(rank()));
  std::deque<PersistentSum> sums;
  for (int i = 0; i < 5; ++i) sums.emplace_back(comm(), i == 3 ? Place::host : place_of(i != 4 || rank() % 2 == 0));
  for (int round = 0; round < scaled(30); ++round) {
    step("round " + std::to_string(round));
    // The starts, in an order of this process's own, and three other collectives between them.
    std::vector<int> calls(sums.size() + 3);
    for (std::size_t i = 0; i < calls.size(); ++i) calls[i] = static_cast<int>(std::min(i, sums.size()));
    std::shuffle(calls.begin(), calls.end(), own);
    std::deque<PendingSum> others;
    MPI_Request barrier = MPI_REQUEST_NULL;
    int made = 0;
    for (const int call : calls) {
      if (call < static_cast<int>(sums.size()))
        sums[static_cast<std::size_t>(call)].start(10 * round + call);
      else if (++made == 2)
        MPI_OK(round % 3 == 0 ? MPI_Barrier(comm()) : MPI_Ibarrier(comm(), &barrier));
      else
        others.emplace_back(comm(), place_of(round % 2 == 0), round + made);
    }
    for (PendingSum& other : others) CHECK(other.wait());
    MPI_OK(MPI_Wait(&barrier, MPI_STATUS_IGNORE));
    std::shuffle(calls.begin(), calls.end(), own);
    for (const int call : calls) {
      if (call == static_cast<int>(sums.size())) continue;
      PersistentSum& sum = sums[static_cast<std::size_t>(call)];
      int done = 0;
      if (call % 2 == 0) MPI_OK(MPI_Request_get_status(sum.request, &done, MPI_STATUS_IGNORE));
      CHECK(sum.wait());
    }
  }
}

// Requests of the same lengths, so that processes which mixed them up would not notice otherwise.
TEST_CASE("persistent collectives that two processes start and wait for in opposite orders",
          "[collective][nonblocking]") {
  if (!has_persistent() || !starts_in_any_order) return;
  for (const bool first_is_mixed : {false, true}) {
    PersistentSum first(comm(), place_of(!first_is_mixed || rank() != 0)), second(comm(), Place::device);
    for (int round = 0; round < 40; ++round) {  // more than can be told of at a time
      PersistentSum& sooner = rank() % 2 == 0 ? first : second;
      PersistentSum& later = rank() % 2 == 0 ? second : first;
      const auto key = [&](const PersistentSum& sum) { return 2 * round + (&sum == &first ? 0 : 1); };
      sooner.start(key(sooner));
      later.start(key(later));
      MPI_Request both[2] = {first.request, second.request};
      int done = 0;
      if (round % 3 == 0) {
        while (done == 0) MPI_OK(MPI_Testall(2, both, &done, MPI_STATUSES_IGNORE));
      } else if (round % 3 == 1) {
        int ended = 0, indices[2];
        while (done < 2) {
          MPI_OK(MPI_Waitsome(2, both, &ended, indices, MPI_STATUSES_IGNORE));
          done += ended;
        }
      } else {
        MPI_OK(MPI_Wait(&first.request, MPI_STATUS_IGNORE));
        MPI_OK(MPI_Wait(&second.request, MPI_STATUS_IGNORE));
      }
      CHECK(first.right());
      CHECK(second.right());
    }
  }
}

// Where GPUs do it: Open MPI 4.1's own must not be freed while they are active, nor after their communicator.
TEST_CASE("persistent collectives freed in all states", "[nonblocking]") {
  if (!has_persistent() || !by_gpus()) return;
  for (int round = 0; round < 12; ++round) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_dup(comm(), &copy));
    {
      PersistentSum never(copy, Place::device), complete(copy, Place::device), active(copy, Place::device),
          mixed(copy, place_of(rank() != round % ranks()));
      complete.start(round);
      CHECK(complete.wait());
      MPI_OK(MPI_Request_free(&complete.request));
      active.start(round + 1);
      mixed.start(round + 2);
      if (round % 2 == 0) {
        MPI_OK(MPI_Wait(&active.request, MPI_STATUS_IGNORE));
        CHECK(active.right());
      }
      CHECK(mixed.wait());
      if (round % 3 == 0) MPI_OK(MPI_Barrier(copy));
      if (round % 3 == 2) MPI_OK(MPI_Comm_free(&copy));
      if (round % 4 == 1) {
        MPI_OK(MPI_Request_free(&active.request));
        PersistentSum another(comm(), Place::device);
        another.start(round);
        CHECK(another.wait());
      } else if (round % 2 == 1) {
        CHECK(active.wait());
      }
      const int times = copy == MPI_COMM_NULL ? 0 : 3;
      for (int time = 0; time < times; ++time) {
        never.start(time);
        CHECK(never.wait());
      }
      while (active.request == MPI_REQUEST_NULL && !active.right()) {
        int found = 0;
        MPI_OK(MPI_Iprobe(MPI_ANY_SOURCE, 6, comm(), &found, MPI_STATUS_IGNORE));
      }
      MPI_OK(MPI_Barrier(comm()));
    }
    if (copy != MPI_COMM_NULL) MPI_OK(MPI_Comm_free(&copy));
  }
}

TEST_CASE("persistent broadcasts whose datatype is freed before they are started", "[nonblocking]") {
  if (!has_persistent() || !by_gpus()) return;
  MPI_Datatype pair = MPI_DATATYPE_NULL;
  const std::array<int, 2> backwards = {1, 0};
  MPI_OK(MPI_Type_create_indexed_block(2, 1, backwards.data(), MPI_INT, &pair));
  MPI_OK(MPI_Type_commit(&pair));
  Ints ints(Place::device, enough);
  Arguments arguments;
  arguments.recvbuf = ints.address();
  arguments.recvcount = enough / 2;
  arguments.recvtype = pair;
  arguments.comm = comm();
  arguments.root = ranks() - 1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(operation("Bcast").call(arguments, Form::persistent, &request));
  MPI_OK(MPI_Type_free(&pair));
  for (int round = 0; round < 3; ++round) {
    ints.write(ints_of(rank(), enough, round));
    MPI_OK(MPI_Start(&request));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(ints.read() == ints_of(ranks() - 1, enough, round));
  }
  MPI_OK(MPI_Request_free(&request));
}

TEST_CASE("more persistent collectives than there are boards", "[collective][nonblocking]") {
  if (!has_persistent()) return;
  std::deque<PersistentSum> sums;
  for (int i = 0; i < 70; ++i) sums.emplace_back(comm(), Place::device);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[rank() % 2 == 0 ? i : sums.size() - 1 - i].start(static_cast<int>(i) * (rank() % 2 == 0 ? 1 : -1) +
                                                            (rank() % 2 == 0 ? 0 : 69));
    PendingSum between(comm(), Place::device, round);
    for (PersistentSum& sum : sums) CHECK(sum.wait());
    CHECK(between.wait());
  }
}
