// Collectives in which a process need not wait for others, and messages that others wait for before they call: as over
// the MPI library alone no process waits, and communicators can be freed meanwhile. And collectives on communicators
// that come and go, so that what processes know of each other's calls on one is not taken for those on another.
#include <sys/mman.h>

#include <deque>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/mpi/ints.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

/// Host memory that is not seen to be so by its address alone.
class Pages {
 public:
  Pages() : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { munmap(data_, bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  int* at(int place) const { return static_cast<int*>(data_) + place; }

 private:
  static constexpr std::size_t bytes = 4096;
  void* data_;
};

/// One int from each process, or for each.
struct Values {
  Pages memory;
  int* mine = memory.at(0);
  int* result = memory.at(1);
  int* all = memory.at(2);
  std::vector<int> counts = std::vector<int>(static_cast<std::size_t>(ranks()), 1), displs = counts;

  Values() { std::iota(displs.begin(), displs.end(), 0); }
};

/// An operation with a process that need not wait for others: the last one, or if data flow `from_first` the first one.
struct Kind {
  const char* name;
  bool from_first;
  int (*blocking)(Values&, MPI_Comm);
  int (*nonblocking)(Values&, MPI_Comm, MPI_Request*);
};

const Kind kinds[] = {
    {"Reduce", false,
     [](Values& v, MPI_Comm comm) { return MPI_Reduce(v.mine, v.result, 1, MPI_INT, MPI_SUM, 0, comm); },
     [](Values& v, MPI_Comm comm, MPI_Request* request) {
       return MPI_Ireduce(v.mine, v.result, 1, MPI_INT, MPI_SUM, 0, comm, request);
     }},
    {"Scan", true, [](Values& v, MPI_Comm comm) { return MPI_Scan(v.mine, v.result, 1, MPI_INT, MPI_SUM, comm); },
     [](Values& v, MPI_Comm comm, MPI_Request* request) {
       return MPI_Iscan(v.mine, v.result, 1, MPI_INT, MPI_SUM, comm, request);
     }},
    {"Exscan", true, [](Values& v, MPI_Comm comm) { return MPI_Exscan(v.mine, v.result, 1, MPI_INT, MPI_SUM, comm); },
     [](Values& v, MPI_Comm comm, MPI_Request* request) {
       return MPI_Iexscan(v.mine, v.result, 1, MPI_INT, MPI_SUM, comm, request);
     }},
    {"Bcast", true, [](Values& v, MPI_Comm comm) { return MPI_Bcast(v.mine, 1, MPI_INT, 0, comm); },
     [](Values& v, MPI_Comm comm, MPI_Request* request) { return MPI_Ibcast(v.mine, 1, MPI_INT, 0, comm, request); }},
    {"Gather", false,
     [](Values& v, MPI_Comm comm) { return MPI_Gather(v.mine, 1, MPI_INT, v.all, 1, MPI_INT, 0, comm); },
     [](Values& v, MPI_Comm comm, MPI_Request* request) {
       return MPI_Igather(v.mine, 1, MPI_INT, v.all, 1, MPI_INT, 0, comm, request);
     }},
    {"Scatter", true,
     [](Values& v, MPI_Comm comm) { return MPI_Scatter(v.all, 1, MPI_INT, v.result, 1, MPI_INT, 0, comm); },
     [](Values& v, MPI_Comm comm, MPI_Request* request) {
       return MPI_Iscatter(v.all, 1, MPI_INT, v.result, 1, MPI_INT, 0, comm, request);
     }},
    {"Gatherv", false,
     [](Values& v, MPI_Comm comm) {
       return MPI_Gatherv(v.mine, 1, MPI_INT, v.all, v.counts.data(), v.displs.data(), MPI_INT, 0, comm);
     },
     [](Values& v, MPI_Comm comm, MPI_Request* request) {
       return MPI_Igatherv(v.mine, 1, MPI_INT, v.all, v.counts.data(), v.displs.data(), MPI_INT, 0, comm, request);
     }},
    {"Scatterv", true,
     [](Values& v, MPI_Comm comm) {
       return MPI_Scatterv(v.all, v.counts.data(), v.displs.data(), MPI_INT, v.result, 1, MPI_INT, 0, comm);
     },
     [](Values& v, MPI_Comm comm, MPI_Request* request) {
       return MPI_Iscatterv(v.all, v.counts.data(), v.displs.data(), MPI_INT, v.result, 1, MPI_INT, 0, comm, request);
     }},
};

/// Whether the process that need not wait does not: in MPICH all give and take in a scan, and in MPICH 5.0 processes of
/// a node wait for each other every so often in broadcasts and reductions.
bool goes_ahead(const Kind& kind) {
  const std::string_view name(kind.name);
  return !(mpich && name.ends_with("can")) && !(runs_mpich5() && (name == "Bcast" || name == "Reduce"));
}

void wait_for(MPI_Request request) {
  MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

/// `act` of the process that need not wait comes first: all others wait for its message.
template <class Act>
void one_first(const Kind& kind, Act act) {
  const int first = kind.from_first ? 0 : ranks() - 1;
  int go = 1;
  step(kind.name);
  if (rank() != first) MPI_OK(MPI_Recv(&go, 1, MPI_INT, first, 3, comm(), MPI_STATUS_IGNORE));
  act();
  for (int other = 0; rank() == first && other < ranks(); ++other)
    if (other != first) MPI_OK(MPI_Send(&go, 1, MPI_INT, other, 3, comm()));
}

}  // namespace

TEST_CASE("collectives on host memory wait for nobody", "[collective][messages][nonblocking]") {
  constexpr int rounds = 40;
  for (const Kind& kind : kinds) {
    if (!goes_ahead(kind)) continue;
    Values values;
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_dup(comm(), &copy));
    for (int round = 0; round < rounds; ++round) {
      *values.mine = round;
      one_first(kind, [&] { MPI_OK(kind.blocking(values, copy)); });
      MPI_OK(MPI_Barrier(copy));
    }
    for (int round = 0; round < rounds / 4; ++round) {
      one_first(kind, [&] {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_OK(kind.nonblocking(values, copy, &request));
        wait_for(request);
      });
      MPI_OK(MPI_Barrier(copy));
    }
    MPI_OK(MPI_Comm_free(&copy));
  }
}

TEST_CASE("a communicator is freed before others have come to its collective", "[collective][messages][nonblocking]") {
  for (const Kind& kind : kinds) {
    if (!goes_ahead(kind)) continue;
    for (int round = 0; round < 8; ++round) {
      Values values;
      MPI_Comm copy = MPI_COMM_NULL;
      MPI_OK(MPI_Comm_dup(comm(), &copy));
      one_first(kind, [&] {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_OK(round % 2 == 0 ? kind.nonblocking(values, copy, &request) : kind.blocking(values, copy));
        wait_for(request);
        MPI_OK(MPI_Comm_free(&copy));
      });
    }
  }
}

TEST_CASE("collectives on hundreds of communicators", "[collective][nonblocking]") {
  constexpr int ints = 500;
  std::mt19937_64 random = random_numbers("hundreds of communicators");
  std::mt19937_64 own(random() + static_cast<unsigned>(rank()));
  std::deque<MPI_Comm> kept;
  for (int i = 0; i < scaled(300); ++i) {
    std::vector<int> colors;
    for (int process = 0; process < ranks(); ++process) colors.push_back(static_cast<int>(random() % 4 == 0));
    const int mine = colors[static_cast<std::size_t>(rank())];
    MPI_Comm part = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_split(comm(), mine, rank(), &part));
    std::vector<int> expected(ints, 0);
    for (int process = 0; process < ranks(); ++process) {
      const std::vector<int> given = ints_of(process, ints, i);
      for (std::size_t at = 0; at < expected.size() && colors[static_cast<std::size_t>(process)] == mine; ++at)
        expected[at] += given[at];
    }
    const bool mixed = random() % 2 == 0, waits = random() % 2 == 0;
    for (int call = 0; call < 2; ++call) {
      const Place place = mixed && own() % 2 == 0 ? Place::host : Place::device;
      Ints in(place, ints), out(place, ints);
      in.write(ints_of(rank(), ints, i));
      MPI_Request request = MPI_REQUEST_NULL;
      if (waits)
        MPI_OK(MPI_Allreduce(in.address(), out.address(), ints, MPI_INT, MPI_SUM, part));
      else
        MPI_OK(MPI_Iallreduce(in.address(), out.address(), ints, MPI_INT, MPI_SUM, part, &request));
      wait_for(request);
      CHECK(out.read() == expected);
    }
    kept.push_back(part);
    for (; kept.size() > random() % 6; kept.pop_front()) MPI_OK(MPI_Comm_free(&kept.front()));
  }
  for (MPI_Comm& each : kept) MPI_OK(MPI_Comm_free(&each));
}
