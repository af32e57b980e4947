// A program with sessions and without MPI_Init: messages, collectives and accesses to windows with strided device
// memory. Exit status: how many kinds of calls have gone wrong.
//
// usage: session_alone [again | outlives]
//   again: the session is made, used and ended twice, as not all MPI libraries allow
//   outlives: the session is used again after MPI_Finalize; MPI_Init was called before it began
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

namespace {

constexpr int blocks = 5000, stride = 3, span = blocks * stride;
int wrong = 0;

/// Device memory; every `stride`th number of it is part of a message.
class Buffer {
 public:
  explicit Buffer(int first) : first_(first) {
    if (cudaMalloc(reinterpret_cast<void**>(&data_), span * sizeof(int)) != cudaSuccess) std::abort();
    std::vector<int> values(span);
    std::iota(values.begin(), values.end(), first);
    cudaMemcpy(data_, values.data(), span * sizeof(int), cudaMemcpyDefault);
    cudaDeviceSynchronize();
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  int* data() const { return data_; }

  /// The numbers of a message that was sent from a buffer that began with `first`, each times `factor`.
  bool has(int first, int factor = 1) const {
    std::vector<int> values(span);
    cudaMemcpy(values.data(), data_, span * sizeof(int), cudaMemcpyDefault);
    for (int i = 0; i < span; ++i)
      if (values[static_cast<std::size_t>(i)] != (i % stride == 0 ? factor * (first + i) : first_ + i)) return false;
    return true;
  }

 private:
  int first_;
  int* data_ = nullptr;
};

void check(const char* what, bool right) {
  if (right) return;
  std::printf("%s: wrong\n", what);
  ++wrong;
}

struct Ring {
  MPI_Comm comm;
  MPI_Datatype type;
  int rank, ranks;
  int next() const { return (rank + 1) % ranks; }
  int before() const { return (rank + ranks - 1) % ranks; }
};

void messages(const Ring& ring) {
  const Buffer out(ring.rank), in(-1), later(-2), again(-3);
  MPI_Sendrecv(out.data(), 1, ring.type, ring.next(), 1, in.data(), 1, ring.type, ring.before(), 1, ring.comm,
               MPI_STATUS_IGNORE);
  check("MPI_Sendrecv", in.has(ring.before()));
  MPI_Request requests[2], persistent[2];
  MPI_Irecv(later.data(), 1, ring.type, MPI_ANY_SOURCE, 2, ring.comm, &requests[0]);
  MPI_Isend(out.data(), 1, ring.type, ring.next(), 2, ring.comm, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  check("MPI_Isend", later.has(ring.before()));
  MPI_Recv_init(again.data(), 1, ring.type, ring.before(), 3, ring.comm, &persistent[0]);
  MPI_Send_init(out.data(), 1, ring.type, ring.next(), 3, ring.comm, &persistent[1]);
  MPI_Startall(2, persistent);
  MPI_Waitall(2, persistent, MPI_STATUSES_IGNORE);
  for (MPI_Request& request : persistent) MPI_Request_free(&request);
  check("MPI_Send_init", again.has(ring.before()));
}

void collectives(const Ring& ring) {
  const Buffer bcast(ring.rank == 0 ? 100 : -1), ibcast(ring.rank == 0 ? 200 : -1);
  MPI_Bcast(bcast.data(), 1, ring.type, 0, ring.comm);
  check("MPI_Bcast", ring.rank == 0 || bcast.has(100));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibcast(ibcast.data(), 1, ring.type, 0, ring.comm, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  check("MPI_Ibcast", ring.rank == 0 || ibcast.has(200));
  const Buffer in(7), sum(-1);
  MPI_Allreduce(in.data(), sum.data(), span, MPI_INT, MPI_SUM, ring.comm);
  std::vector<int> values(span);
  cudaMemcpy(values.data(), sum.data(), span * sizeof(int), cudaMemcpyDefault);
  check("MPI_Allreduce", values[0] == ring.ranks * 7 && values[span - 1] == ring.ranks * (7 + span - 1));
}

/// In host memory.
void window(const Ring& ring) {
  std::vector<int> memory(span, -1);
  MPI_Win win = MPI_WIN_NULL;
  const Buffer out(ring.rank), in(-1);
  MPI_Win_create(memory.data(), span * sizeof(int), sizeof(int), MPI_INFO_NULL, ring.comm, &win);
  MPI_Win_fence(0, win);
  MPI_Put(out.data(), 1, ring.type, ring.next(), 0, 1, ring.type, win);
  MPI_Win_fence(0, win);
  check("MPI_Put", memory[0] == ring.before() && memory[1] == -1 && memory[stride] == ring.before() + stride);
  MPI_Get(in.data(), 1, ring.type, ring.rank, 0, 1, ring.type, win);
  MPI_Win_fence(0, win);
  check("MPI_Get", in.has(ring.before()));
  MPI_Win_free(&win);
}

void communicate(MPI_Session session, const char* name) {
  MPI_Group group = MPI_GROUP_NULL;
  Ring ring{};
  MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
  MPI_Comm_create_from_group(group, name, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &ring.comm);
  MPI_Group_free(&group);
  MPI_Comm_rank(ring.comm, &ring.rank);
  MPI_Comm_size(ring.comm, &ring.ranks);
  MPI_Type_vector(blocks, 1, stride, MPI_INT, &ring.type);
  MPI_Type_commit(&ring.type);
  messages(ring);
  collectives(ring);
  window(ring);
  MPI_Type_free(&ring.type);
  MPI_Comm_free(&ring.comm);
}

void in_a_session(const char* name) {
  MPI_Session session = MPI_SESSION_NULL;
  MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
  communicate(session, name);
  MPI_Session_finalize(&session);
}

void outliving_the_world() {
  MPI_Session session = MPI_SESSION_NULL;
  MPI_Init(nullptr, nullptr);
  MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
  communicate(session, "beside");
  MPI_Finalize();
  communicate(session, "after");
  MPI_Session_finalize(&session);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "outlives") {
    outliving_the_world();
  } else {
    in_a_session("first");
    if (how == "again") in_a_session("second");
  }
  return wrong;
}
