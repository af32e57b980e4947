// Wrong arguments of the functions that enqueue: found at once, with the class that the blocking function reports.
#include <array>
#include <vector>

#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/streams.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

/// A communicator with a stream, on which errors are returned and counted.
class Refusing {
 public:
  Refusing() { set_handler(stream_.comm(), remember_call); }
  MPI_Comm comm() const { return stream_.comm(); }
  const EnqueuingStream& stream() const { return stream_; }
  /// `enqueued` is refused at once by the communicator's handler, as `blocking` is.
  template <class Enqueued, class Blocking>
  void alike(int error_class, Enqueued enqueued, Blocking blocking, bool can_compare = true) {
    if (can_compare) MPI_FAILS(blocking(), error_class);
    refuses(error_class, enqueued);
  }
  /// The same, where MPI libraries do not look or crash.
  template <class Enqueued>
  void refuses(int error_class, Enqueued enqueued) {
    handler_calls.clear();
    MPI_FAILS(enqueued(), error_class);
    CHECK(handler_calls.size() == 1);
    for (const HandlerCall& call : handler_calls) CHECK(call.comm == stream_.comm());
  }

 private:
  EnqueuingStream stream_;
};

/// Errors that concern no communicator are returned while it lives.
class ErrorsReturned {
 public:
  ErrorsReturned() {
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      PMPI_Comm_get_errhandler(comms_[i], &before_[i]);
      PMPI_Comm_set_errhandler(comms_[i], MPI_ERRORS_RETURN);
    }
  }
  ~ErrorsReturned() {
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      PMPI_Comm_set_errhandler(comms_[i], before_[i]);
      PMPI_Errhandler_free(&before_[i]);
    }
  }
  ErrorsReturned(const ErrorsReturned&) = delete;
  ErrorsReturned& operator=(const ErrorsReturned&) = delete;

 private:
  const std::array<MPI_Comm, 2> comms_{MPI_COMM_WORLD, MPI_COMM_SELF};
  std::array<MPI_Errhandler, 2> before_{};
};

struct WrongMessage {
  int count, peer, tag;
  MPI_Datatype type;
  int error_class;
};

}  // namespace

TEST_CASE("Wrong arguments of enqueued messages", "[streams]") {
  Refusing on;
  Numbers numbers(1);
  double* const data = numbers.device();
  const MPI_Comm comm = on.comm();
  MPI_Request request = MPI_REQUEST_NULL;
  const std::vector<WrongMessage> list = {{-1, rank(), 0, MPI_DOUBLE, MPI_ERR_COUNT},
                                          {1, ranks(), 0, MPI_DOUBLE, MPI_ERR_RANK},
                                          {1, -77, 0, MPI_DOUBLE, MPI_ERR_RANK},
                                          {1, rank(), -77, MPI_DOUBLE, MPI_ERR_TAG},
                                          {1, rank(), 0, MPI_DATATYPE_NULL, MPI_ERR_TYPE}};
  for (const WrongMessage& w : list) {
    INFO("class " << w.error_class);
    on.alike(
        w.error_class, [&] { return MPIX_Send_enqueue(data, w.count, w.type, w.peer, w.tag, comm); },
        [&] { return MPI_Send(data, w.count, w.type, w.peer, w.tag, comm); });
    on.alike(
        w.error_class, [&] { return MPIX_Recv_enqueue(data, w.count, w.type, w.peer, w.tag, comm, MPI_STATUS_IGNORE); },
        [&] { return MPI_Recv(data, w.count, w.type, w.peer, w.tag, comm, MPI_STATUS_IGNORE); });
    on.refuses(w.error_class, [&] { return MPIX_Isend_enqueue(data, w.count, w.type, w.peer, w.tag, comm, &request); });
    on.refuses(w.error_class, [&] { return MPIX_Irecv_enqueue(data, w.count, w.type, w.peer, w.tag, comm, &request); });
    on.refuses(w.error_class, [&] { return MPIX_Send_enqueue_c(data, w.count, w.type, w.peer, w.tag, comm); });
  }
  on.alike(
      MPI_ERR_BUFFER, [&] { return MPIX_Send_enqueue(nullptr, 1, MPI_DOUBLE, rank(), 0, comm); },
      [&] { return MPI_Send(nullptr, 1, MPI_DOUBLE, rank(), 0, comm); });
  on.refuses(MPI_ERR_REQUEST, [&] { return MPIX_Isend_enqueue(data, 1, MPI_DOUBLE, rank(), 0, comm, nullptr); });
  on.refuses(MPI_ERR_COUNT, [&] { return MPIX_Send_enqueue(data, -1, MPI_DATATYPE_NULL, rank(), -77, comm); });
  MPI_Datatype uncommitted = MPI_DATATYPE_NULL;
  MPI_Type_vector(2, 1, 3, MPI_DOUBLE, &uncommitted);
  on.alike(
      MPI_ERR_TYPE, [&] { return MPIX_Send_enqueue(data, 1, uncommitted, rank(), 0, comm); },
      [&] { return MPI_Send(data, 1, uncommitted, rank(), 0, comm); });
  MPI_Type_free(&uncommitted);
  CHECK(request == MPI_REQUEST_NULL);
  // What is allowed.
  MPI_OK(MPIX_Send_enqueue(nullptr, 0, MPI_DOUBLE, MPI_PROC_NULL, 0, comm));
  MPI_OK(MPIX_Recv_enqueue(nullptr, 0, MPI_DOUBLE, MPI_PROC_NULL, MPI_ANY_TAG, comm, MPI_STATUS_IGNORE));
  on.stream().synchronize();
}

TEST_CASE("Wrong arguments of enqueued collectives", "[streams]") {
  Refusing on;
  const auto n = static_cast<std::size_t>(ranks());
  Numbers in(n), out(n);
  double *const from = in.device(), *const to = out.device();
  const MPI_Comm comm = on.comm();
  on.alike(
      MPI_ERR_OP, [&] { return MPIX_Allreduce_enqueue(from, to, 1, MPI_DOUBLE, MPI_OP_NULL, comm); },
      [&] { return MPI_Allreduce(from, to, 1, MPI_DOUBLE, MPI_OP_NULL, comm); });
  on.alike(
      MPI_ERR_COUNT, [&] { return MPIX_Allreduce_enqueue(from, to, -1, MPI_DOUBLE, MPI_SUM, comm); },
      [&] { return MPI_Allreduce(from, to, -1, MPI_DOUBLE, MPI_SUM, comm); }, checks_collective_counts);
  on.alike(
      MPI_ERR_OP, [&] { return MPIX_Reduce_scatter_block_enqueue(from, to, 1, MPI_DOUBLE, MPI_OP_NULL, comm); },
      [&] { return MPI_Reduce_scatter_block(from, to, 1, MPI_DOUBLE, MPI_OP_NULL, comm); });
  for (const int root : {-1, ranks()})
    on.alike(
        MPI_ERR_ROOT, [&] { return MPIX_Bcast_enqueue(from, 1, MPI_DOUBLE, root, comm); },
        [&] { return MPI_Bcast(from, 1, MPI_DOUBLE, root, comm); });
  on.alike(
      MPI_ERR_TYPE, [&] { return MPIX_Bcast_enqueue(from, 1, MPI_DATATYPE_NULL, 0, comm); },
      [&] { return MPI_Bcast(from, 1, MPI_DATATYPE_NULL, 0, comm); });
  on.refuses(MPI_ERR_BUFFER, [&] { return MPIX_Bcast_enqueue(nullptr, 1, MPI_DOUBLE, 0, comm); });
  on.refuses(MPI_ERR_BUFFER, [&] { return MPIX_Allreduce_enqueue(from, nullptr, 1, MPI_DOUBLE, MPI_SUM, comm); });
  const auto gathers = [&](int sent, int received, MPI_Datatype type) {
    return MPIX_Allgather_enqueue(from, sent, type, to, received, MPI_DOUBLE, comm);
  };
  on.alike(
      MPI_ERR_COUNT, [&] { return gathers(-1, 1, MPI_DOUBLE); },
      [&] { return MPI_Allgather(from, -1, MPI_DOUBLE, to, 1, MPI_DOUBLE, comm); }, checks_collective_counts);
  on.alike(
      MPI_ERR_COUNT, [&] { return gathers(1, -1, MPI_DOUBLE); },
      [&] { return MPI_Allgather(from, 1, MPI_DOUBLE, to, -1, MPI_DOUBLE, comm); }, checks_collective_counts);
  on.alike(
      MPI_ERR_TYPE, [&] { return gathers(1, 1, MPI_DATATYPE_NULL); },
      [&] { return MPI_Allgather(from, 1, MPI_DATATYPE_NULL, to, 1, MPI_DOUBLE, comm); });
  // MPI ignores what is said of a send buffer that is MPI_IN_PLACE.
  MPI_OK(MPIX_Allgather_enqueue(MPI_IN_PLACE, -1, MPI_DATATYPE_NULL, to, 1, MPI_DOUBLE, comm));
  on.stream().synchronize();
}

TEST_CASE("Wrong arrays of enqueued collectives", "[streams]") {
  Refusing on;
  const auto n = static_cast<std::size_t>(ranks());
  Numbers in(n), out(n);
  double *const from = in.device(), *const to = out.device();
  const MPI_Comm comm = on.comm();
  std::vector<int> ones(n, 1), wrong(n, 1), places(n);
  std::vector<MPI_Datatype> types(n, MPI_DOUBLE), no_types(n, MPI_DATATYPE_NULL);
  wrong.back() = -1;
  for (std::size_t i = 0; i < n; ++i) places[i] = static_cast<int>(i);
  const auto exchanges = [&](const int* sent, const int* received) {
    return MPIX_Alltoallv_enqueue(from, sent, places.data(), MPI_DOUBLE, to, received, places.data(), MPI_DOUBLE, comm);
  };
  on.alike(
      MPI_ERR_COUNT, [&] { return exchanges(wrong.data(), ones.data()); },
      [&] {
        return MPI_Alltoallv(from, wrong.data(), places.data(), MPI_DOUBLE, to, ones.data(), places.data(), MPI_DOUBLE,
                             comm);
      },
      checks_collective_counts);
  on.refuses(MPI_ERR_COUNT, [&] { return exchanges(ones.data(), wrong.data()); });
  on.refuses(MPI_ERR_ARG, [&] { return exchanges(nullptr, ones.data()); });
  on.refuses(MPI_ERR_ARG, [&] { return exchanges(ones.data(), nullptr); });
  on.refuses(MPI_ERR_COUNT, [&] {
    return MPIX_Allgatherv_enqueue(from, 1, MPI_DOUBLE, to, wrong.data(), places.data(), MPI_DOUBLE, comm);
  });
  on.refuses(MPI_ERR_TYPE, [&] {
    return MPIX_Alltoallw_enqueue(from, ones.data(), places.data(), no_types.data(), to, ones.data(), places.data(),
                                  types.data(), comm);
  });
  on.refuses(MPI_ERR_ARG, [&] {
    return MPIX_Alltoallw_enqueue(from, nullptr, places.data(), types.data(), to, ones.data(), places.data(),
                                  types.data(), comm);
  });
  const std::vector<MPI_Aint> far(n);
  on.refuses(MPI_ERR_TOPOLOGY, [&] {
    return MPIX_Neighbor_alltoallw_enqueue(from, ones.data(), far.data(), types.data(), to, ones.data(), far.data(),
                                           types.data(), comm);
  });
}

TEST_CASE("Wrong communicators and requests of enqueued operations", "[streams]") {
  const ErrorsReturned returned;
  Numbers numbers(1);
  double* const data = numbers.device();
  std::array<int, 1> one{1};
  MPI_Request request = MPI_REQUEST_NULL;
  for (const MPI_Comm wrong : {comm(), MPI_COMM_NULL}) {
    MPI_FAILS(MPIX_Send_enqueue(data, 1, MPI_DOUBLE, rank(), 0, wrong), MPI_ERR_COMM);
    MPI_FAILS(MPIX_Irecv_enqueue(data, 1, MPI_DOUBLE, rank(), 0, wrong, &request), MPI_ERR_COMM);
    MPI_FAILS(MPIX_Bcast_enqueue(data, 1, MPI_DOUBLE, 0, wrong), MPI_ERR_COMM);
    MPI_FAILS(MPIX_Alltoallv_enqueue(data, one.data(), one.data(), MPI_DOUBLE, data, one.data(), one.data(), MPI_DOUBLE,
                                     wrong),
              MPI_ERR_COMM);
  }
  MPI_FAILS(MPIX_Put_enqueue(data, 1, MPI_DOUBLE, rank(), 0, 1, MPI_DOUBLE, MPI_WIN_NULL), MPI_ERR_WIN);

  MPI_FAILS(MPIX_Start_enqueue(nullptr), MPI_ERR_REQUEST);
  MPI_FAILS(MPIX_Start_enqueue(&request), MPI_ERR_REQUEST);
  MPI_FAILS(MPIX_Waitall_enqueue(1, nullptr, MPI_STATUSES_IGNORE), MPI_ERR_REQUEST);
  MPI_FAILS(MPIX_Startall_enqueue(-1, &request), MPI_ERR_COUNT);
  MPI_OK(MPI_Send_init(data, 1, MPI_DOUBLE, MPI_PROC_NULL, 0, comm(), &request));
  MPI_FAILS(MPIX_Start_enqueue(&request), MPI_ERR_REQUEST);  // of a communicator without a stream
  MPI_OK(MPI_Request_free(&request));
  {
    const EnqueuingStream stream;
    MPI_OK(MPI_Send_init(data, 1, MPI_DOUBLE, MPI_PROC_NULL, 0, stream.comm(), &request));
  }
  MPI_FAILS(MPIX_Start_enqueue(&request), MPI_ERR_COMM);  // of one that has been freed
  MPI_OK(MPI_Request_free(&request));

  Refusing on;
  MPI_OK(MPI_Send_init(data, 1, MPI_DOUBLE, MPI_PROC_NULL, 0, on.comm(), &request));
  MPI_OK(MPIX_Start_enqueue(&request));
  on.refuses(MPI_ERR_REQUEST, [&] { return MPIX_Start_enqueue(&request); });  // active already
  MPI_FAILS(MPI_Start(&request), MPI_ERR_REQUEST);
  MPI_FAILS(MPI_Startall(1, &request), MPI_ERR_REQUEST);
  MPI_OK(MPIX_Wait_enqueue(&request, MPI_STATUS_IGNORE));
  on.stream().synchronize();
  MPI_OK(MPI_Request_free(&request));
}
