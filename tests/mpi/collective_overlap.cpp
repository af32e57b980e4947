// Several collectives in flight, with others between them, completed in any order. (Their communicator is not freed
// while they are pending: Open MPI 4.1 crashes then.)
#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/mpi/pending_sums.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::test;

namespace {

/// A call at random that may be pending together with others.
class Pending {
 public:
  Pending(const Peers& peers, Form form, std::mt19937_64& random)
      : types_(types(random)),
        exchange_{
            choose(form, random), form, peers, types_, {1 + int(random() % 3), int(random() % 4)}, 0, false, {}, {}},
        call_(prepare(placed(random))) {}

  void expect(int round) {
    call_.fill(round);
    MPI_OK(exchange_.operation.call(call_.reference, Form::reference, nullptr));
  }
  MPI_Request start() {
    step(exchange_.text());
    started_ = std::make_unique<Started>(exchange_.operation, call_.arguments, exchange_.form);
    MPI_OK(started_->code);
    return started_->request;
  }
  void check() const {
    INFO(exchange_.text());
    CHECK(call_.send.difference() == "");
    CHECK(call_.receive.difference() == "");
  }

 private:
  static std::vector<Pair> types(std::mt19937_64& random) {
    std::vector<Pair> list;
    for (int i = 0; i < 2; ++i) list.push_back(random_types(random));
    return list;
  }
  static const Operation& choose(Form form, std::mt19937_64& random) {
    while (true) {
      const Operation& one = operations[random() % operations.size()];
      const auto usable = forms_of(one);
      if (one.flow <= Flow::alltoall && !one.neighbours && std::count(usable.begin(), usable.end(), form) != 0)
        return one;
    }
  }
  const Exchange& placed(std::mt19937_64& random) {
    exchange_.root = static_cast<int>(random() % static_cast<unsigned>(ranks()));
    exchange_.send_places = mixed(random);
    exchange_.receive_places = mixed(random);
    return exchange_;
  }

  std::vector<Pair> types_;
  Exchange exchange_;
  Prepared call_;
  std::unique_ptr<Started> started_;
};

using Calls = std::deque<Pending>;

Calls calls(const Peers& peers, Form form, std::mt19937_64& random, int count) {
  Calls list;
  for (int i = 0; i < count; ++i) list.emplace_back(peers, form, random);
  for (Pending& call : list) call.expect(0);
  return list;
}

/// Host collectives and messages on the same communicator.
void others_between(const Peers& peers, int number) {
  int sum = -1;
  const int mine = rank() + number;
  MPI_OK(MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, peers.comm()));
  CHECK(sum == ranks() * (ranks() - 1) / 2 + ranks() * number);
  int got = -1;
  MPI_OK(MPI_Sendrecv(&mine, 1, MPI_INT, (rank() + 1) % ranks(), 3, &got, 1, MPI_INT, (rank() + ranks() - 1) % ranks(),
                      3, peers.comm(), MPI_STATUS_IGNORE));
  CHECK(got == (rank() + ranks() - 1) % ranks() + number);
}

using Complete = void (*)(std::vector<MPI_Request>&);

void wait_all(std::vector<MPI_Request>& requests) {
  MPI_OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

void wait_backwards(std::vector<MPI_Request>& requests) {
  for (auto request = requests.rbegin(); request != requests.rend(); ++request)
    MPI_OK(MPI_Wait(&*request, MPI_STATUS_IGNORE));
}

void wait_any(std::vector<MPI_Request>& requests) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    int index = MPI_UNDEFINED;
    MPI_OK(MPI_Waitany(static_cast<int>(requests.size()), requests.data(), &index, MPI_STATUS_IGNORE));
    CHECK(index != MPI_UNDEFINED);
  }
}

void test_some(std::vector<MPI_Request>& requests) {
  std::vector<int> indices(requests.size());
  for (int done = 0; done != MPI_UNDEFINED;)
    MPI_OK(
        MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &done, indices.data(), MPI_STATUSES_IGNORE));
}

}  // namespace

TEST_CASE("many collectives in flight", "[collective][overlap]") {
  const Peers peers = Peers::all();
  std::mt19937_64 random = random_numbers("overlap");
  for (int round = 0; round < scaled(3); ++round)
    for (const Complete complete : {wait_all, wait_backwards, wait_any, test_some}) {
      Calls list = calls(peers, Form::nonblocking, random, 8);
      std::vector<MPI_Request> requests;
      for (Pending& call : list) {
        requests.push_back(call.start());
        others_between(peers, static_cast<int>(requests.size()));
      }
      step("completing");
      complete(requests);
      for (const MPI_Request request : requests) CHECK(request == MPI_REQUEST_NULL);
      for (const Pending& call : list) call.check();
    }
}

TEST_CASE("persistent collectives started together", "[collective][overlap]") {
  if (!has_persistent()) return;
  const Peers peers = Peers::all();
  std::mt19937_64 random = random_numbers("persistent");
  Calls list = calls(peers, Form::persistent, random, 6);
  std::vector<MPI_Request> requests;
  for (Pending& call : list) requests.push_back(call.start());
  const std::vector<MPI_Request> handles = requests;
  for (int round = 0; round < 3; ++round) {
    if (round > 0)
      for (Pending& call : list) call.expect(round);
    step("starting");
    MPI_OK(MPI_Startall(static_cast<int>(requests.size()), requests.data()));
    others_between(peers, round);
    step("completing");
    (round == 1 ? wait_backwards : wait_all)(requests);
    CHECK(requests == handles);
    for (const Pending& call : list) call.check();
  }
  for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
}

TEST_CASE("blocks in several memories from MPI_BOTTOM", "[collective][neighbour]") {
  const Peers peers = Peers::directed();
  std::mt19937_64 random = random_numbers("bottom");
  for (const Form form : forms)
    for (int round = 0; round < scaled(4); ++round) {
      const Pair pair = random_types(random);
      std::vector<Place> places;
      for (int i = 0; i < 2; ++i) {
        const auto list = mixed(random);
        places.insert(places.end(), list.begin(), list.end());
      }
      std::deque<Region> out, in;
      Arguments arguments;
      arguments.comm = peers.comm();
      arguments.sendbuf = arguments.recvbuf = MPI_BOTTOM;
      Arguments reference;
      const auto block = [&](std::deque<Region>& regions, MPI_Datatype type, std::vector<int>& counts,
                             std::vector<MPI_Datatype>& types, std::vector<MPI_Aint>& displs) {
        regions.emplace_back(places[(regions.size() + static_cast<std::size_t>(rank())) % places.size()],
                             std::vector<Region::Block>{{0, 2, type}});
        regions.back().fill(mix(seed(), regions.size() * 100 + static_cast<std::size_t>(rank())));
        counts.push_back(2);
        types.push_back(type);
        displs.push_back(0);
        PMPI_Get_address(regions.back().address(), &displs.back());
      };
      for (std::size_t i = 0; i < peers.to().size(); ++i)
        block(out, pair.send, arguments.sendcounts, arguments.sendtypes, arguments.sdispls_bytes);
      for (std::size_t i = 0; i < peers.from().size(); ++i)
        block(in, pair.receive, arguments.recvcounts, arguments.recvtypes, arguments.rdispls_bytes);
      reference = arguments;
      for (std::size_t i = 0; i < out.size(); ++i) PMPI_Get_address(out[i].reference(), &reference.sdispls_bytes[i]);
      for (std::size_t i = 0; i < in.size(); ++i) PMPI_Get_address(in[i].reference(), &reference.rdispls_bytes[i]);

      const Operation& operation = gpudt::test::operation("Neighbor_alltoallw");
      INFO(form_name(form) << ", " << pair.send.text() << " to " << pair.receive.text());
      MPI_OK(operation.call(reference, Form::reference, nullptr));
      if (form == Form::blocking) {
        MPI_OK(operation.call(arguments, form, nullptr));
      } else {
        Started started(operation, arguments, form);
        MPI_OK(started.code);
        if (form == Form::persistent) MPI_OK(MPI_Start(&started.request));
        MPI_OK(MPI_Wait(&started.request, MPI_STATUS_IGNORE));
        if (form == Form::persistent) MPI_OK(MPI_Request_free(&started.request));
      }
      for (const Region& region : out) CHECK(region.difference() == "");
      for (const Region& region : in) CHECK(region.difference() == "");
    }
}
