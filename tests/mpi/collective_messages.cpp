// Collectives of long blocks in device memory, which go as messages between GPUs where all processes agree, and next to
// others that do not, so that no process waits for an agreement that another one does not seek.
#include <algorithm>
#include <thread>
#include <utility>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/mpi/handler_calls.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

constexpr std::int64_t long_block = 64 << 10;  ///< bytes: messages pay

std::vector<Place> everywhere(Place place) {
  return std::vector<Place>(static_cast<std::size_t>(ranks()), place);
}

/// Types whose elements are not too many in a block.
std::vector<Pair> types_for_long_blocks(std::mt19937_64& random) {
  std::vector<Pair> types;
  while (types.size() < 2) {
    Pair pair = random_types(random);
    if (pair.send.size() >= 16) types.push_back(std::move(pair));
  }
  return types;
}

/// Elements in a block of `bytes` bytes or a little more.
int elements(const Pair& types, std::int64_t bytes) {
  return static_cast<int>(bytes / types.send.size()) + 1;
}

bool in_place_means_something(const Operation& operation, const Peers& peers) {
  return !peers.inter() && !operation.neighbours && operation.flow != Flow::broadcast;
}

/// Long blocks, none, and some of another length, from and to devices.
void exchange_long(const Peers& peers, bool neighbours, std::mt19937_64& random) {
  int number = 0;
  for (const Operation& operation : operations) {
    if (operation.flow > Flow::alltoall || operation.neighbours != neighbours) continue;
    for (const bool in_place : {false, true}) {
      if (in_place && !in_place_means_something(operation, peers)) continue;
      const std::vector<Pair> types = types_for_long_blocks(random);
      const int many = elements(types[0], long_block);
      const std::vector<int> counts = {many, in_place ? 1 : 0, 2 * many + 1};
      const int root = number++ % ranks();
      exchange({operation, Form::blocking, peers, types, counts, root, in_place, everywhere(Place::device),
                everywhere(number % 3 == 0 ? Place::other_gpu : Place::device)});
    }
  }
}

const Operation& any_operation(std::mt19937_64& random) {
  while (true) {
    const Operation& one = operations[random() % operations.size()];
    if (one.flow <= Flow::alltoall && !one.neighbours) return one;
  }
}

}  // namespace

TEST_CASE("long blocks among all processes", "[collective][messages]") {
  std::mt19937_64 random = random_numbers("long blocks");
  for (int i = 0; i < scaled(2); ++i) {
    exchange_long(Peers::all(), false, random);
    exchange_long(Peers::reversed(), false, random);
  }
}

TEST_CASE("long blocks among neighbours", "[collective][messages]") {
  std::mt19937_64 random = random_numbers("long blocks, neighbours");
  exchange_long(Peers::grid(), true, random);
  exchange_long(Peers::star(), true, random);
  exchange_long(Peers::directed(), true, random);
  if (ranks() > 2) exchange_long(Peers::ring(), true, random);
}

TEST_CASE("long blocks between groups", "[collective][messages]") {
  std::mt19937_64 random = random_numbers("long blocks, groups");
  exchange_long(Peers::intercommunicator(1), false, random);
}

TEST_CASE("agreement comes and goes", "[collective][messages]") {
  std::mt19937_64 random = random_numbers("agreement");
  const Peers peers = Peers::all(), others = Peers::reversed();
  constexpr std::int64_t lengths[] = {8, 4 << 10, 30 << 10, long_block};
  for (int i = 0; i < scaled(60); ++i) {
    const std::vector<Pair> types = types_for_long_blocks(random);
    const std::int64_t length = lengths[random() % std::size(lengths)];
    const int root = static_cast<int>(random() % static_cast<unsigned>(ranks()));
    std::vector<Place> send = everywhere(Place::device), receive = send;
    const bool send_mixed = random() % 3 == 0, receive_mixed = random() % 3 == 0;
    if (send_mixed) send = mixed(random);
    if (receive_mixed) receive = mixed(random);
    if (!moves_long_blocks && length > (4 << 10)) send = receive = everywhere(Place::device);
    exchange({any_operation(random),
              Form::blocking,
              random() % 4 == 0 ? others : peers,
              types,
              {elements(types[0], length), elements(types[0], 100)},
              root,
              false,
              send,
              receive});
  }
}

// More than are left to MPI before boards are exchanged.
TEST_CASE("short blocks to and from a root", "[collective][messages]") {
  std::mt19937_64 random = random_numbers("short blocks, root");
  const Peers peers = Peers::all();
  for (int i = 0; i < scaled(60); ++i) {
    const std::vector<Pair> types = types_for_long_blocks(random);
    const std::vector<Place> all = everywhere(Place::device);
    const int root = static_cast<int>(random() % static_cast<unsigned>(ranks()));
    constexpr const char* names[] = {"Bcast", "Scatter", "Gather"};
    exchange({operation(names[random() % std::size(names)]),
              Form::blocking,
              peers,
              types,
              {elements(types[0], static_cast<std::int64_t>(random() % 7000))},
              root,
              false,
              random() % 4 == 0 ? mixed(random) : all,
              random() % 4 == 0 ? mixed(random) : all});
  }
}

TEST_CASE("nobody waits for a root whose receive is wrong", "[collective][messages]") {
  constexpr int calls = 20, ints = 10;
  // Not freed: what the others send in the wrong call stays there, for the next communicator to find.
  MPI_Comm apart = MPI_COMM_NULL;
  MPI_OK(MPI_Comm_dup(comm(), &apart));
  HandlerCalls<MPI_Comm> handler(apart);
  Region send(Place::device, {{0, ints, MPI_INT}}), receive(Place::device, {{0, ints * ranks(), MPI_INT}});
  const auto gather = [&](int recvcount) {
    return MPI_Gather(send.address(), ints, MPI_INT, receive.address(), recvcount, MPI_INT, 0, apart);
  };
  for (int i = 0; i < calls; ++i) MPI_OK(gather(ints));
  step("wrong");
  static_cast<void>(handler.take());
  const int code = gather(rank() == 0 ? -1 : ints);
  if (rank() == 0)
    CHECK(gpudt::test::failure_class(code, MPI_ERR_COUNT) == MPI_ERR_COUNT);
  else
    CHECK(code == MPI_SUCCESS);
  CHECK(handler.take().size() == (rank() == 0 ? 1 : 0));
}

TEST_CASE("short broadcasts on host memory wait for nobody", "[collective][messages]") {
  MPICH5_CANNOT("the root of a broadcast within a node waits for the others, every so often");
  constexpr int calls = 40;
  const Peers peers = Peers::all();
  int value = 0, go = 0;
  // The root may come first, but where boards are exchanged, once.
  for (int i = 0; i < calls; ++i) MPI_OK(MPI_Bcast(&value, 1, MPI_INT, 0, peers.comm()));
  lock_step();
  if (rank() != 0) MPI_OK(PMPI_Recv(&go, 1, MPI_INT, 0, 0, peers.comm(), MPI_STATUS_IGNORE));
  for (int i = 0; i < calls; ++i) {
    value = rank() == 0 ? i : -1;
    MPI_OK(MPI_Bcast(&value, 1, MPI_INT, 0, peers.comm()));
    CHECK(value == i);
  }
  for (int other = 1; rank() == 0 && other < ranks(); ++other)
    MPI_OK(PMPI_Send(&go, 1, MPI_INT, other, 0, peers.comm()));
}

TEST_CASE("no receive of the program's gets what a collective sends", "[collective][messages]") {
  std::mt19937_64 random = random_numbers("receives and collectives");
  const Peers peers = Peers::all();
  int came = -1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(&came, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, peers.comm(), &request));
  exchange_long(peers, false, random);
  int there = 1;
  MPI_OK(MPI_Test(&request, &there, MPI_STATUS_IGNORE));
  CHECK(there == 0);
  lock_step();
  const int told = rank(), next = (rank() + 1) % ranks();
  MPI_OK(MPI_Send(&told, 1, MPI_INT, next, 5, peers.comm()));
  MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(came == (rank() + ranks() - 1) % ranks());
}

// Only some processes take part; communicators come and go.
TEST_CASE("long blocks in fragments of the world", "[collective][messages]") {
  constexpr int ints = 20000;
  for (int round = 0; round < 3; ++round) {
    const bool inside = rank() != round % ranks();
    MPI_Comm part = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_split(comm(), inside ? 1 : MPI_UNDEFINED, rank(), &part));
    if (!inside) continue;
    int size = 0, me = 0;
    MPI_Comm_size(part, &size);
    MPI_Comm_rank(part, &me);
    const Type type = vector(ints, 1, 2, MPI_INT);
    Region send(Place::device, {{0, 1, type}}), receive(Place::device, {{0, size, type}});
    send.fill(static_cast<std::uint64_t>(round) * 100 + static_cast<std::uint64_t>(rank()));
    receive.fill(7);
    MPI_OK(PMPI_Allgather(send.reference(), 1, type, receive.reference(), 1, type, part));
    MPI_OK(MPI_Allgather(send.address(), 1, type, receive.address(), 1, type, part));
    CHECK(send.difference() == "");
    CHECK(receive.difference() == "");
    MPI_OK(MPI_Comm_free(&part));
  }
}

// Counts say little where processes describe equal blocks by unlike types.
TEST_CASE("blocks of which some are empty, of unlike types", "[collective][messages]") {
  if (ranks() != 2) return;  // with more, Open MPI 4.1 itself hangs
  constexpr int bytes = 64 << 10;
  const Peers peers = Peers::all();
  MPI_Datatype whole = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(bytes, MPI_BYTE, &whole);
  const Type block(whole, "contiguous");
  MPI_Type_commit(&whole);
  for (const Place place : {Place::host, Place::device}) {
    const bool in_one = rank() % 2 == 0;
    std::vector<int> counts(static_cast<std::size_t>(ranks()), 0), displs(counts.size(), 0);
    counts[0] = in_one ? 1 : bytes;
    const MPI_Datatype type = in_one ? static_cast<MPI_Datatype>(block) : MPI_BYTE;
    Region send(place, {{0, bytes, MPI_BYTE}}), receive(place, {{0, bytes, MPI_BYTE}});
    for (std::uint64_t round = 0; round < 3; ++round) {
      send.fill(round + 1);
      receive.fill(round + 10);
      const int given = rank() == 0 ? bytes : 0;
      const auto gather = [&](auto function, void* from, void* to) {
        return function(from, given, MPI_BYTE, to, counts.data(), displs.data(), type, peers.comm());
      };
      MPI_OK(gather(PMPI_Allgatherv, send.reference(), receive.reference()));
      step("Allgatherv");
      MPI_OK(gather(MPI_Allgatherv, send.address(), receive.address()));
      CHECK(receive.difference() == "");
    }
  }
}

/// `pieces` single integers, each a random distance of 1 to 4 behind the one before.
Type list_of(int pieces, std::mt19937_64& random) {
  std::vector<int> places(static_cast<std::size_t>(pieces));
  int at = 0;
  for (int& place : places) place = std::exchange(at, at + 1 + static_cast<int>(random() % 4));
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_create_indexed_block(pieces, 1, places.data(), MPI_INT, &type);
  Type list(type, "list of " + std::to_string(pieces));
  MPI_Type_commit(&type);
  return list;
}

// Layouts of up to 12 KiB go with the call, longer ones into slots of the segment, of which there are 16; what finds no
// room goes another way.
TEST_CASE("blocks of short and of long layouts", "[collective][messages]") {
  std::mt19937_64 random = random_numbers("short and long layouts");
  const Peers peers = Peers::all();
  for (const int pieces : {40, 1000, 20000})
    for (const Form form : {Form::blocking, Form::nonblocking})
      for (const Operation& operation : operations) {
        if (operation.flow > Flow::alltoall || operation.neighbours) continue;
        std::vector<Pair> types;
        for (int i = 0; i < 3; ++i) types.push_back({list_of(pieces, random), list_of(pieces, random)});
        for (int round = 0; round < 2; ++round)
          exchange({operation,
                    form,
                    peers,
                    types,
                    {1, 2},
                    ranks() - 1,
                    false,
                    everywhere(Place::device),
                    everywhere(Place::device)});
      }
}

TEST_CASE("an exchange of many unlike layouts between neighbours", "[collective][messages]") {
  constexpr int edges = 26;  // as many as a block in three dimensions has neighbours
  const int next = (rank() + 1) % ranks(), before = (rank() + ranks() - 1) % ranks();
  const std::vector<int> to(edges, next), from(edges, before);
  MPI_Comm graph = MPI_COMM_NULL;
  MPI_OK(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, edges, from.data(), MPI_UNWEIGHTED, edges, to.data(),
                                        MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph));
  std::vector<Type> given, taken;
  std::vector<MPI_Datatype> send_types, receive_types;
  std::vector<MPI_Aint> places;
  MPI_Aint end = 0;
  for (int edge = 0; edge < edges; ++edge) {
    given.push_back(vector(12, 1, 2 + edge));
    taken.push_back(vector(6, 2, 60 - edge));
    send_types.push_back(given.back());
    receive_types.push_back(taken.back());
    places.push_back(end);
    end += std::max(given.back().extent(), taken.back().extent());
  }
  const std::vector<int> ones(edges, 1);
  const int bytes = static_cast<int>(end);
  Region send(Place::device, {{0, bytes, MPI_BYTE}}), receive(Place::device, {{0, bytes, MPI_BYTE}});
  const auto exchange_by = [&](auto function, const void* sent, void* received, auto... more) {
    return function(sent, ones.data(), places.data(), send_types.data(), received, ones.data(), places.data(),
                    receive_types.data(), graph, more...);
  };
  for (std::uint64_t round = 0; round < 4; ++round) {
    send.fill(round + 1);
    receive.fill(round + 10);
    MPI_OK(exchange_by(PMPI_Neighbor_alltoallw, send.reference(), receive.reference()));
    MPI_Request request = MPI_REQUEST_NULL;
    if (round % 2 == 0) {
      MPI_OK(exchange_by(MPI_Neighbor_alltoallw, send.address(), receive.address()));
    } else {
      MPI_OK(exchange_by(MPI_Ineighbor_alltoallw, send.address(), receive.address(), &request));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    CHECK(receive.difference() == "");
  }
  MPI_OK(MPI_Comm_free(&graph));
}

TEST_CASE("a broadcast while a communicator is being made", "[collective][messages]") {
  constexpr int ints = 50000;
  Region region(Place::device, {{0, ints, MPI_INT}});
  for (std::uint64_t round = 0; round < 20; ++round) {
    const Peers peers = Peers::all();
    region.fill(round * 2 + (rank() == 0 ? 1 : 0));
    MPI_OK(PMPI_Bcast(region.reference(), ints, MPI_INT, 0, peers.comm()));
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Comm_idup(peers.comm(), &copy, &request));
    step("Bcast");
    MPI_OK(MPI_Bcast(region.address(), ints, MPI_INT, 0, peers.comm()));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(region.difference() == "");
    MPI_OK(MPI_Comm_free(&copy));
  }
}

TEST_CASE("a broadcast by one who has offered all that can be", "[collective][messages]") {
  constexpr int ints = 50000, pending = 200, each = 2000;
  const Peers peers = Peers::all();
  Region region(Place::device, {{0, ints, MPI_INT}});
  Region out(Place::device, {{0, each, MPI_INT}}), in(Place::device, {{0, each, MPI_INT}});
  out.fill(3);
  std::vector<MPI_Request> requests;
  for (int i = 0; i < pending && rank() == 0; ++i)
    MPI_OK(MPI_Isend(out.address(), each, MPI_INT, 1, i, peers.comm(), &requests.emplace_back(MPI_REQUEST_NULL)));
  region.fill(rank() == 0 ? 1 : 2);
  MPI_OK(PMPI_Bcast(region.reference(), ints, MPI_INT, 0, peers.comm()));
  step("Bcast");
  MPI_OK(MPI_Bcast(region.address(), ints, MPI_INT, 0, peers.comm()));
  CHECK(region.difference() == "");
  for (int i = 0; i < pending && rank() == 1; ++i)
    MPI_OK(MPI_Recv(in.address(), each, MPI_INT, 0, i, peers.comm(), MPI_STATUS_IGNORE));
  MPI_OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

// Hidden: MPI itself may hang, or write beyond the buffer.
TEST_CASE("a block that is longer than its receive", "[.too-long]") {
  const Peers peers = Peers::all();
  const Type type = vector(static_cast<int>(long_block), 1, 2, MPI_INT);
  Region send(Place::device, {{0, 2 * ranks(), type}}), receive(Place::device, {{0, ranks(), type}});
  send.fill(1);
  receive.fill(2);
  // Each sends what it should but to process 0, which has room for half of it.
  const auto n = static_cast<std::size_t>(ranks());
  std::vector<int> out(n, 1), in(n, 1), out_at(n), in_at(n);
  for (int i = 0; i < ranks(); ++i) {
    out_at[static_cast<std::size_t>(i)] = 2 * i;
    in_at[static_cast<std::size_t>(i)] = i;
  }
  out[0] = rank() == 0 ? 1 : 2;
  step("Alltoallv");
  const int code = MPI_Alltoallv(send.address(), out.data(), out_at.data(), type, receive.address(), in.data(),
                                 in_at.data(), type, peers.comm());
  CHECK(error_class(code) == (rank() == 0 ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
  CHECK(receive.difference_outside() == "");
  // What is left of the message meets no later call.
  lock_step();
  std::mt19937_64 random = random_numbers("after an error");
  exchange_long(peers, false, random);
}

TEST_CASE("collectives of several threads", "[collective-threads]") {
  constexpr int threads = 3, calls = 20, ints = 10000;
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE) return;
  std::vector<MPI_Comm> comms(threads, MPI_COMM_NULL);
  for (MPI_Comm& each : comms) MPI_OK(MPI_Comm_dup(comm(), &each));
  std::vector<int> wrong(threads, 0);
  std::vector<std::thread> running;
  running.reserve(threads);
  for (std::size_t t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      const Type type = vector(ints, 1, 2, MPI_INT);
      Region send(Place::device, {{0, ranks(), type}}), receive(Place::device, {{0, ranks(), type}});
      for (int i = 0; i < calls; ++i) {
        send.fill(static_cast<std::uint64_t>(1000 * rank() + 10 * i) + t);
        receive.fill(5);
        const int expected = PMPI_Alltoall(send.reference(), 1, type, receive.reference(), 1, type, comms[t]);
        const int code = MPI_Alltoall(send.address(), 1, type, receive.address(), 1, type, comms[t]);
        if (expected != MPI_SUCCESS || code != MPI_SUCCESS || !receive.difference().empty()) ++wrong[t];
      }
    });
  for (std::thread& thread : running) thread.join();
  CHECK(wrong == std::vector<int>(threads, 0));
  for (MPI_Comm& each : comms) MPI_OK(MPI_Comm_free(&each));
}
