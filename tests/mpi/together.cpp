// Many messages of different types at once, between device buffers, for the test that they are packed and unpacked
// together (environment.py): says on stdout whether every byte is right.
//
// usage: together isend|threads|startall|neighbour|cancel
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstdio>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int n = 14;       ///< a block of n^3 numbers, with a layer around it; some pieces are offered to peers
constexpr int pieces = 26;  ///< that go to neighbours: faces, edges and corners
constexpr int rounds = 3;
constexpr int threads = 3;
int rank = 0, ranks = 1;
int to = 0, from = 0;

/// A block in device memory and what it should hold.
class Block {
 public:
  explicit Block(int salt) : expected(std::size_t{(n + 2) * (n + 2) * (n + 2)}) {
    std::iota(expected.begin(), expected.end(), 1000.0 * salt);
    cudaMalloc(reinterpret_cast<void**>(&data_), bytes());
    cudaMemcpy(data_, expected.data(), bytes(), cudaMemcpyDefault);
    cudaStreamSynchronize(nullptr);
  }
  ~Block() { cudaFree(data_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  double* data() const { return data_; }
  bool right() const {
    std::vector<double> there(expected.size());
    cudaMemcpy(there.data(), data_, bytes(), cudaMemcpyDefault);
    return there == expected;
  }
  std::vector<double> expected;

 private:
  std::size_t bytes() const { return expected.size() * sizeof(double); }
  double* data_ = nullptr;
};

/// The types of the pieces of one block, each at its place in the block.
class Types {
 public:
  Types() {
    for (int direction = 0; direction < 27; ++direction) {
      if (direction == 13) continue;
      const int sizes[3] = {n + 2, n + 2, n + 2};
      int extents[3], starts[3];
      for (int left = direction, d = 0; d < 3; ++d, left /= 3) {
        extents[d] = left % 3 == 1 ? n : 1;
        starts[d] = left % 3 == 2 ? n : 1;
      }
      MPI_Datatype type = MPI_DATATYPE_NULL;
      MPI_Type_create_subarray(3, sizes, extents, starts, MPI_ORDER_C, MPI_DOUBLE, &type);
      MPI_Type_commit(&type);
      list.push_back(type);
    }
  }
  ~Types() {
    for (MPI_Datatype& type : list) MPI_Type_free(&type);
  }
  Types(const Types&) = delete;
  Types& operator=(const Types&) = delete;
  std::vector<MPI_Datatype> list;
};

/// What piece `i` of the block of the process before this one does to a block that receives it in the same place.
void imitate(const Types& types, int i, int salt, Block& block) {
  std::vector<double> sent(block.expected.size()), packed(block.expected.size());
  std::iota(sent.begin(), sent.end(), 1000.0 * salt);
  const int room = static_cast<int>(packed.size() * sizeof(double));
  const MPI_Datatype type = types.list[static_cast<std::size_t>(i)];
  int end = 0, position = 0;
  PMPI_Pack(sent.data(), 1, type, packed.data(), room, &end, MPI_COMM_SELF);
  PMPI_Unpack(packed.data(), end, &position, block.expected.data(), 1, type, MPI_COMM_SELF);
}

bool isend(int first_tag) {
  const Types types;
  bool right = true;
  for (int round = 0; round < rounds; ++round) {
    const Block out(rank + 1);
    Block in(-1 - round);
    std::vector<MPI_Request> requests(2 * pieces);
    for (int i = 0; i < pieces; ++i) {
      const auto at = static_cast<std::size_t>(i);
      MPI_Irecv(in.data(), 1, types.list[at], from, first_tag + i, MPI_COMM_WORLD, &requests[at]);
    }
    for (int i = 0; i < pieces; ++i) {
      const auto at = static_cast<std::size_t>(i);
      MPI_Isend(out.data(), 1, types.list[at], to, first_tag + i, MPI_COMM_WORLD, &requests[pieces + at]);
    }
    MPI_Waitall(2 * pieces, requests.data(), MPI_STATUSES_IGNORE);
    for (int i = 0; i < pieces; ++i) imitate(types, i, from + 1, in);
    right = right && in.right() && out.right();
  }
  return right;
}

bool in_threads() {
  bool right[threads] = {};
  std::vector<std::thread> workers;
  workers.reserve(threads);
  for (int t = 0; t < threads; ++t) workers.emplace_back([&right, t] { right[t] = isend(100 * (t + 1)); });
  for (std::thread& worker : workers) worker.join();
  return right[0] && right[1] && right[2];
}

bool startall() {
  const Types types;
  const Block out(rank + 1);
  Block in(-1);
  std::vector<MPI_Request> requests(2 * pieces);
  for (int i = 0; i < pieces; ++i) {
    const auto at = static_cast<std::size_t>(i);
    MPI_Recv_init(in.data(), 1, types.list[at], from, i, MPI_COMM_WORLD, &requests[at]);
    MPI_Send_init(out.data(), 1, types.list[at], to, i, MPI_COMM_WORLD, &requests[pieces + at]);
  }
  for (int round = 0; round < rounds; ++round) {
    MPI_Startall(2 * pieces, requests.data());
    MPI_Waitall(2 * pieces, requests.data(), MPI_STATUSES_IGNORE);
  }
  for (MPI_Request& request : requests) MPI_Request_free(&request);
  for (int i = 0; i < pieces; ++i) imitate(types, i, from + 1, in);
  return in.right() && out.right();
}

/// Where one process is the neighbour several times, its messages match in order.
bool neighbour() {
  const Types types;
  const std::vector<int> sources(pieces, from), destinations(pieces, to), counts(pieces, 1);
  const std::vector<MPI_Aint> displs(pieces, 0);
  MPI_Comm graph = MPI_COMM_NULL;
  MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, pieces, sources.data(), MPI_UNWEIGHTED, pieces, destinations.data(),
                                 MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph);
  bool right = true;
  for (int round = 0; round < 2 * rounds; ++round) {
    const Block out(rank + 1);
    Block in(-1 - round);
    MPI_Request request = MPI_REQUEST_NULL;
    if (round % 2 == 0)
      MPI_Neighbor_alltoallw(out.data(), counts.data(), displs.data(), types.list.data(), in.data(), counts.data(),
                             displs.data(), types.list.data(), graph);
    else
      MPI_Ineighbor_alltoallw(out.data(), counts.data(), displs.data(), types.list.data(), in.data(), counts.data(),
                              displs.data(), types.list.data(), graph, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < pieces; ++i) imitate(types, i, from + 1, in);
    right = right && in.right() && out.right();
  }
  MPI_Comm_free(&graph);
  return right;
}

/// One of several sends is cancelled while they wait to be packed together; the receiver is told whether it was.
bool cancel() {
  const Types types;
  const Block out(rank + 1);
  Block in(-1);
  constexpr int victim = 3, verdict_tag = 99;
  std::vector<MPI_Request> sends(pieces), receives(pieces, MPI_REQUEST_NULL);
  for (int i = 0; i < pieces; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (i != victim) MPI_Irecv(in.data(), 1, types.list[at], from, i, MPI_COMM_WORLD, &receives[at]);
  }
  for (int i = 0; i < pieces; ++i) {
    const auto at = static_cast<std::size_t>(i);
    MPI_Isend(out.data(), 1, types.list[at], to, i, MPI_COMM_WORLD, &sends[at]);
  }
  MPI_Cancel(&sends[victim]);
  MPI_Status status;
  MPI_Wait(&sends[victim], &status);
  int gone = 0, theirs = 0;
  MPI_Test_cancelled(&status, &gone);
  MPI_Sendrecv(&gone, 1, MPI_INT, to, verdict_tag, &theirs, 1, MPI_INT, from, verdict_tag, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  if (theirs == 0) MPI_Irecv(in.data(), 1, types.list[victim], from, victim, MPI_COMM_WORLD, &receives[victim]);
  MPI_Waitall(pieces, receives.data(), MPI_STATUSES_IGNORE);
  MPI_Waitall(pieces, sends.data(), MPI_STATUSES_IGNORE);
  for (int i = 0; i < pieces; ++i)
    if (i != victim || theirs == 0) imitate(types, i, from + 1, in);
  return in.right() && out.right();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  int provided = 0;
  MPI_Init_thread(&argc, &argv, mode == "threads" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  to = (rank + 1) % ranks;
  from = (rank + ranks - 1) % ranks;
  bool right = false;
  if (mode == "isend") right = isend(0);
  if (mode == "threads") right = in_threads();
  if (mode == "startall") right = startall();
  if (mode == "neighbour") right = neighbour();
  if (mode == "cancel") right = cancel();
  std::printf("rank %d: %s: %s\n", rank, mode.c_str(), right ? "right" : "wrong");
  MPI_Finalize();
  return 0;
}
