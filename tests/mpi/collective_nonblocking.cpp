// Nonblocking collectives that GPUs do or not, as all processes have to agree without waiting for each other: their
// order among all that is collective on the communicator, and what may happen while they are pending.
#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/mpi/pending_sums.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::test;

namespace {

void multiply(void* in, void* inout, int* count, MPI_Datatype*) {
  for (int i = 0; i < 2 * *count; ++i) static_cast<int*>(inout)[i] *= static_cast<int*>(in)[i];
}

}  // namespace

TEST_CASE("nonblocking reductions of any mix of memories", "[collective][nonblocking]") {
  for (int mix = 0; mix < 1 << ranks(); ++mix) {
    const Place mine = place_of((mix >> rank() & 1) != 0);
    std::deque<PendingSum> sums;
    for (int i = 0; i < 3; ++i) sums.emplace_back(comm(), i == 1 ? Place::device : mine, 10 * mix + i);
    for (PendingSum& sum : sums) CHECK(sum.wait());
  }
}

TEST_CASE("blocks that nonblocking collectives move between any mix of memories", "[collective][nonblocking]") {
  const Peers all = Peers::all(), directed = Peers::directed(), grid = Peers::grid();
  std::vector<Pair> types;
  types.push_back({Type(MPI_INT, "int"), Type(MPI_INT, "int")});
  for (const Operation& operation : operations) {
    if (operation.flow > Flow::alltoall) continue;
    for (const Form form : forms_of(operation))
      for (int mix = 0; mix < 1 << ranks() && form != Form::blocking; ++mix) {
        std::vector<Place> places;
        for (int process = 0; process < ranks(); ++process) places.push_back(place_of((mix >> process & 1) == 0));
        const Peers& peers = operation.neighbours ? (mix % 2 == 0 ? directed : grid) : all;
        exchange({operation, form, peers, types, {enough, 2 * enough}, mix % ranks(), false, places, places});
      }
  }
}

TEST_CASE("more nonblocking collectives than can be told of at a time", "[collective][nonblocking]") {
  for (int round = 0; round < 3; ++round) {
    std::deque<PendingSum> sums;
    for (int i = 0; i < 50; ++i) sums.emplace_back(comm(), place_of((i + rank()) % 9 != 0 || round == 0), i + round);
    if (round == 1)
      for (auto sum = sums.rbegin(); sum != sums.rend(); ++sum) CHECK(sum->wait());
    else
      for (PendingSum& sum : sums) CHECK(sum.wait());
  }
}

TEST_CASE("a nonblocking collective waits for nobody", "[collective][nonblocking]") {
  for (int last = 0; last < 3; ++last) {
    first_process_first(comm());
    PendingSum first(comm(), Place::device, 1), second(comm(), place_of(last != 1), 2);
    MPI_Request barrier = MPI_REQUEST_NULL, duplication = MPI_REQUEST_NULL;
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_OK(MPI_Ibarrier(comm(), &barrier));
    PendingSum third(comm(), Place::host, 3), fourth(comm(), Place::device, 4);
    // As the last: Open MPI mixes up its steps and collectives that come after it (docs/mpi-faults.md).
    if (last == 2) MPI_OK(MPI_Comm_idup(comm(), &copy, &duplication));
    let_others_follow(comm());
    CHECK(fourth.wait());
    MPI_OK(MPI_Wait(&barrier, MPI_STATUS_IGNORE));
    for (PendingSum* const sum : {&second, &third, &first}) CHECK(sum->wait());
    MPI_OK(MPI_Wait(&duplication, MPI_STATUS_IGNORE));
    if (last != 2) continue;
    CHECK(PendingSum(copy, Place::device, 5).wait());
    MPI_OK(MPI_Comm_free(&copy));
  }
}

TEST_CASE("nonblocking collectives with one process on a GPU", "[collective][nonblocking]") {
  first_process_first(comm());
  PendingSum on_device(comm(), place_of(rank() == 0), 1);
  int done = 0;
  MPI_OK(MPI_Test(&on_device.request, &done, MPI_STATUS_IGNORE));
  let_others_follow(comm());
  if (done == 0) MPI_OK(MPI_Wait(&on_device.request, MPI_STATUS_IGNORE));
  CHECK(on_device.right());
}

TEST_CASE("collectives of all kinds between nonblocking ones", "[collective][nonblocking]") {
  std::mt19937_64 random = random_numbers("between");
  std::mt19937_64 own(random() + static_cast<unsigned>(rank()));
  std::deque<PendingSum> sums;
  for (int i = 0; i < scaled(150); ++i) {
    const auto kind = random() % 12;
    const bool mixed = random() % 3 == 0;
    const bool on_device = mixed ? own() % 2 == 0 : random() % 4 != 0;
    step("call " + std::to_string(i) + " of kind " + std::to_string(kind));
    if (kind < 5) {
      sums.emplace_back(comm(), place_of(on_device), i);
    } else if (kind == 5) {
      MPI_OK(MPI_Barrier(comm()));
    } else if (kind == 6) {
      MPI_Request barrier = MPI_REQUEST_NULL;
      MPI_OK(MPI_Ibarrier(comm(), &barrier));
      MPI_OK(MPI_Wait(&barrier, MPI_STATUS_IGNORE));
    } else if (kind == 7) {
      MPI_Comm copy = MPI_COMM_NULL;
      MPI_OK(MPI_Comm_dup(comm(), &copy));
      PendingSum other(copy, place_of(on_device), i);
      sums.emplace_back(comm(), Place::device, i);
      CHECK(other.wait());
      MPI_OK(MPI_Comm_free(&copy));
    } else if (kind == 8) {
      Ints ints(place_of(on_device), enough);
      const int root = i % ranks();
      ints.write(ints_of(rank(), enough, i));
      MPI_OK(MPI_Bcast(ints.address(), enough, MPI_INT, root, comm()));
      CHECK(ints.read() == ints_of(root, enough, i));
    } else if (kind == 9) {
      Ints in(place_of(on_device), enough), out(place_of(on_device), enough);
      in.write(ints_of(rank(), enough, i));
      MPI_OK(MPI_Allreduce(in.address(), out.address(), enough, MPI_INT, MPI_SUM, comm()));
      CHECK(out.read() == sum_of_all(ranks(), enough, i));
    } else if (kind == 10) {
      MPI_Comm part = MPI_COMM_NULL;
      MPI_OK(MPI_Comm_split(comm(), 0, rank(), &part));
      MPI_OK(MPI_Comm_free(&part));
    }
    while (sums.size() > 6 || (!sums.empty() && own() % 4 == 0)) {
      CHECK(sums.front().wait());
      sums.pop_front();
    }
  }
  for (PendingSum& sum : sums) CHECK(sum.wait());
}

TEST_CASE("handles that are freed while a call waits for its turn", "[collective][nonblocking]") {
  first_process_first(comm());
  PendingSum before(comm(), Place::device, 1);
  MPI_Datatype pair = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;
  MPI_OK(MPI_Type_contiguous(2, MPI_INT, &pair));
  MPI_OK(MPI_Type_commit(&pair));
  MPI_OK(MPI_Op_create(multiply, 1, &op));
  const int factors[4] = {2, 3, rank() + 1, 1};
  int product[4] = {}, sent[4] = {rank(), 7, 7, rank()};
  MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  MPI_OK(MPI_Iallreduce(factors, product, 2, pair, op, comm(), &requests[0]));
  MPI_OK(MPI_Ibcast(sent, 2, pair, 0, comm(), &requests[1]));
  MPI_OK(MPI_Op_free(&op));
  MPI_OK(MPI_Type_free(&pair));
  CHECK(op == MPI_OP_NULL);
  CHECK(pair == MPI_DATATYPE_NULL);
  let_others_follow(comm());
  MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
  CHECK(before.wait());
  int expected[4] = {1, 1, 1, 1};
  for (int process = 0; process < ranks(); ++process) {
    expected[0] *= 2;
    expected[1] *= 3;
    expected[2] *= process + 1;
  }
  CHECK(std::equal(product, product + 4, expected));
  const int of_root[4] = {0, 7, 7, 0};
  CHECK(std::equal(sent, sent + 4, of_root));
}

TEST_CASE("nonblocking collectives on communicators that come and go", "[collective][nonblocking]") {
  for (int i = 0; i < 100; ++i) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_dup(comm(), &copy));
    std::deque<PendingSum> sums;
    for (int call = 0; call < 1 + i % 3; ++call) sums.emplace_back(copy, place_of((i + call) % 5 != 0), i + call);
    for (PendingSum& sum : sums) CHECK(sum.wait());
    MPI_OK(MPI_Comm_free(&copy));
  }
}

// Where GPUs do it: of calls on the host Open MPI 4.1 loses the communicator.
TEST_CASE("communicators freed while nonblocking collectives are pending", "[nonblocking]") {
  if (!by_gpus()) return;
  for (int i = 0; i < 20; ++i) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_dup(comm(), &copy));
    std::deque<PendingSum> sums;
    for (int call = 0; call < 3; ++call) sums.emplace_back(copy, Place::device, i + call);
    MPI_OK(MPI_Comm_free(&copy));
    for (PendingSum& sum : sums) CHECK(sum.wait());
  }
}

TEST_CASE("nonblocking reductions of several threads", "[collective-threads]") {
  constexpr std::size_t threads = 3;
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE) return;
  std::vector<MPI_Comm> comms(threads, MPI_COMM_NULL);
  for (MPI_Comm& each : comms) {
    MPI_OK(MPI_Comm_dup(comm(), &each));
    // Open MPI 4.1's own nonblocking collectives may hang where there are threads: there must be none.
    Ints in(Place::device, enough), out(Place::device, enough);
    MPI_OK(MPI_Allreduce(in.address(), out.address(), enough, MPI_INT, MPI_SUM, each));
  }
  std::vector<int> wrong(threads, 0);
  std::vector<std::thread> running;
  running.reserve(threads);
  for (std::size_t t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        PendingSum first(comms[t], Place::device, i);
        PendingSum second(comms[t], Place::device, i + 1);
        if (MPI_Barrier(comms[t]) != MPI_SUCCESS || !second.wait() || !first.wait()) ++wrong[t];
      }
    });
  for (std::thread& thread : running) thread.join();
  CHECK(wrong == std::vector<int>(threads, 0));
  for (MPI_Comm& each : comms) MPI_OK(MPI_Comm_free(&each));
}
