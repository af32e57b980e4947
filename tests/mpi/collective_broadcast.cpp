// Broadcasts of long blocks, which the GPUs of the receivers fetch in parts, each for all: lengths about the shortest
// of these blocks, addresses for which a part would have no whole words, and buffers that change from call to call.
#include <algorithm>
#include <deque>
#include <vector>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::test;

namespace {

constexpr int least_shared = 128 << 10;

/// A buffer on each process, and what it must hold after a broadcast.
class Broadcast {
 public:
  /// All processes give the same bytes; `skew` may be another in each.
  Broadcast(MPI_Comm comm, int bytes, std::size_t skew)
      : comm_(comm), bytes_(bytes), region_(Place::device, {{0, bytes, MPI_BYTE}}, skew) {}

  Arguments from(int root, std::uint64_t key) {
    region_.fill(2 * key + (rank() == root ? 1 : 0));
    MPI_OK(PMPI_Bcast(region_.reference(), bytes_, MPI_BYTE, root, comm_));
    Arguments arguments;
    arguments.recvbuf = region_.address();
    arguments.recvcount = bytes_;
    arguments.root = root;
    arguments.comm = comm_;
    return arguments;
  }
  std::string difference() const { return region_.difference(); }

 private:
  MPI_Comm comm_;
  int bytes_;
  Region region_;
};

std::size_t other_skew(std::size_t skew) {
  return rank() == ranks() - 1 ? skew + 4 : skew;
}

}  // namespace

TEST_CASE("long broadcasts from each root", "[collective][broadcast]") {
  const Operation& bcast = operation("Bcast");
  const Peers peers = Peers::all();
  std::uint64_t key = 0;
  for (const int bytes : {least_shared - 1, least_shared, least_shared + 53, 1000003})
    for (const std::size_t skew : {std::size_t{0}, std::size_t{16}, std::size_t{3}, other_skew(0)}) {
      Broadcast broadcast(peers.comm(), bytes, skew);
      for (int root = 0; root < ranks(); ++root)
        for (const Form form : forms_of(bcast)) {
          step(std::to_string(bytes) + " bytes from " + std::to_string(root) + ", " + form_name(form));
          MPI_Request request = MPI_REQUEST_NULL;
          for (int time = 0; time < 3; ++time) {  // they are not shared when they are first made
            const Arguments arguments = broadcast.from(root, ++key);
            if (form != Form::persistent || time == 0) MPI_OK(bcast.call(arguments, form, &request));
            if (form == Form::persistent) MPI_OK(MPI_Start(&request));
            if (form != Form::blocking) MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            CHECK(broadcast.difference() == "");
          }
          if (form == Form::persistent) MPI_OK(MPI_Request_free(&request));
        }
    }
}

// As a broadcast looks to the library, but some processes neither give nor take, or the root takes its own block, too.
TEST_CASE("one process gives a long block to some, or to all and itself", "[collective][broadcast]") {
  const auto all = static_cast<std::size_t>(ranks());
  const Peers peers = Peers::all();
  Region out(Place::device, {{0, least_shared, MPI_BYTE}}), in(Place::device, {{0, least_shared, MPI_BYTE}});
  for (int last = 1; last <= ranks(); ++last)  // the first process that gets nothing
    for (int time = 0; time < 3; ++time)
      for (const bool itself : {false, true}) {
        step("to the processes before " + std::to_string(last) + (itself ? " and itself" : ""));
        std::vector<int> given(all, 0), taken(all, 0);
        const std::vector<int> places(all, 0);
        for (int to = itself ? 0 : 1; to < last && rank() == 0; ++to)
          given[static_cast<std::size_t>(to)] = least_shared;
        if (rank() < last && (rank() != 0 || itself)) taken[0] = least_shared;
        out.fill(static_cast<std::uint64_t>(3 * time));
        in.fill(static_cast<std::uint64_t>(3 * time + 1));
        MPI_OK(PMPI_Alltoallv(out.reference(), given.data(), places.data(), MPI_BYTE, in.reference(), taken.data(),
                              places.data(), MPI_BYTE, peers.comm()));
        MPI_OK(MPI_Alltoallv(out.address(), given.data(), places.data(), MPI_BYTE, in.address(), taken.data(),
                             places.data(), MPI_BYTE, peers.comm()));
        CHECK(out.difference() == "");
        CHECK(in.difference() == "");
      }
}

TEST_CASE("long broadcasts repeated with the same buffers and with others", "[collective][broadcast]") {
  const Peers peers = Peers::all();
  std::deque<Broadcast> broadcasts;
  for (const int bytes : {200000, 300001}) broadcasts.emplace_back(peers.comm(), bytes, 0);
  broadcasts.emplace_back(peers.comm(), 200000, other_skew(16));
  for (std::uint64_t round = 0; round < 24; ++round) {
    Broadcast& broadcast = broadcasts[round / 3 % broadcasts.size()];
    const Arguments a = broadcast.from(static_cast<int>(round / 6) % ranks(), round);
    MPI_OK(MPI_Bcast(a.recvbuf, a.recvcount, MPI_BYTE, a.root, a.comm));
    CHECK(broadcast.difference() == "");
  }
}

TEST_CASE("long broadcasts under way at the same time", "[collective][broadcast]") {
  const Peers peers = Peers::all();
  std::deque<Broadcast> broadcasts;
  std::vector<MPI_Request> requests(6, MPI_REQUEST_NULL);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Arguments a = broadcasts.emplace_back(peers.comm(), least_shared + static_cast<int>(i), 0)
                            .from(static_cast<int>(i) % ranks(), i);
    MPI_OK(MPI_Ibcast(a.recvbuf, a.recvcount, MPI_BYTE, a.root, a.comm, &requests[i]));
  }
  MPI_OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
  for (const Broadcast& broadcast : broadcasts) CHECK(broadcast.difference() == "");
}
