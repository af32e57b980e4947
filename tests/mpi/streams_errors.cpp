// Wrong uses of operations in streams, and failures that show up late.
#include "tests/mpi/streams.hpp"

#include <atomic>
#include <cstdlib>

using namespace gpudt::test;

namespace {

std::atomic<int> handled{0}, handled_class{MPI_SUCCESS};

void handler(MPI_Comm*, int* code, ...) {
  ++handled;
  handled_class = error_class(*code);
}

}  // namespace

TEST_CASE("Wrong streams and communicators", "[streams]") {
  PMPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPIX_Stream stream = MPIX_STREAM_NULL;
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, "type", "cudaStream_t");
  MPI_FAILS(MPIX_Stream_create(info, &stream), MPI_ERR_INFO_VALUE);
  MPI_Info_set(info, "value", "no stream");
  MPI_FAILS(MPIX_Stream_create(info, &stream), MPI_ERR_INFO_VALUE);
  MPI_FAILS(MPIX_Info_set_hex(info, "value", nullptr, 8), MPI_ERR_ARG);
  MPI_FAILS(MPIX_Info_set_hex(info, nullptr, &stream, 8), MPI_ERR_ARG);
  MPI_FAILS(MPIX_Stream_create(info, nullptr), MPI_ERR_ARG);
  MPI_Info_free(&info);
  CHECK(stream == MPIX_STREAM_NULL);
  MPI_FAILS(MPIX_Stream_comm_create(MPI_COMM_WORLD, stream, nullptr), MPI_ERR_ARG);
  MPI_FAILS(MPIX_Stream_free(nullptr), MPI_ERR_ARG);

  Numbers numbers(1);
  MPI_FAILS(MPIX_Send_enqueue(numbers.device(), 1, MPI_DOUBLE, rank(), 0, comm()), MPI_ERR_COMM);
  MPI_Comm without = MPI_COMM_NULL;
  MPI_OK(MPIX_Stream_comm_create(comm(), MPIX_STREAM_NULL, &without));
  MPI_FAILS(MPIX_Allreduce_enqueue(numbers.device(), numbers.device(), 1, MPI_DOUBLE, MPI_SUM, without), MPI_ERR_COMM);
  MPI_OK(MPI_Comm_free(&without));

  MPI_Request other = MPI_REQUEST_NULL;
  PMPI_Irecv(nullptr, 0, MPI_BYTE, rank(), 0, comm(), &other);
  MPI_FAILS(MPIX_Wait_enqueue(&other, MPI_STATUS_IGNORE), MPI_ERR_REQUEST);
  PMPI_Cancel(&other);
  PMPI_Wait(&other, MPI_STATUS_IGNORE);
  MPI_OK(MPIX_Wait_enqueue(&other, MPI_STATUS_IGNORE));  // null
  PMPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

TEST_CASE("A failure that shows up late goes to the handler once, in the next call", "[streams]") {
  if (!all_have_partners()) return;
  for (const bool on_device : {true, false}) {
    INFO((on_device ? "device" : "host") << " memory");
    const EnqueuingStream stream;
    MPI_Errhandler own = MPI_ERRHANDLER_NULL;
    MPI_Comm_create_errhandler(handler, &own);
    MPI_Comm_set_errhandler(stream.comm(), own);
    handled = 0;
    Numbers numbers(2000);
    double* const data = on_device ? numbers.device() : numbers.host();
    if (rank() % 2 == 0) {
      MPI_OK(MPIX_Send_enqueue(data, 2000, MPI_DOUBLE, partner(), 0, stream.comm()));
      stream.synchronize();
    } else {
      MPI_OK(MPIX_Recv_enqueue(data, 1000, MPI_DOUBLE, partner(), 0, stream.comm(), MPI_STATUS_IGNORE));
      stream.synchronize();  // goes on
      CHECK(handled == 0);
      MPI_FAILS(MPIX_Recv_enqueue(data, 1, MPI_DOUBLE, MPI_PROC_NULL, 0, stream.comm(), MPI_STATUS_IGNORE),
                MPI_ERR_TRUNCATE);
      CHECK(handled == 1);
      CHECK(handled_class == MPI_ERR_TRUNCATE);
      MPI_OK(MPIX_Recv_enqueue(data, 1, MPI_DOUBLE, MPI_PROC_NULL, 0, stream.comm(), MPI_STATUS_IGNORE));
      stream.synchronize();
      CHECK(handled == 1);
    }
    MPI_Comm_set_errhandler(stream.comm(), MPI_ERRORS_RETURN);
    MPI_Errhandler_free(&own);
  }
}

TEST_CASE("A failure that MPI reports when the stream comes to the operation is reported once", "[streams]") {
  const EnqueuingStream stream;
  MPI_Errhandler own = MPI_ERRHANDLER_NULL;
  MPI_Comm_create_errhandler(handler, &own);
  MPI_Comm_set_errhandler(stream.comm(), own);
  handled = 0;
  Numbers in(1), out(1);
  MPI_OK(MPIX_Allreduce_enqueue(in.host(), out.host(), 1, MPI_DOUBLE, MPI_BAND, stream.comm()));
  stream.synchronize();
  CHECK(handled == 1);
  MPI_OK(MPIX_Send_enqueue(nullptr, 0, MPI_BYTE, MPI_PROC_NULL, 0, stream.comm()));
  stream.synchronize();
  CHECK(handled == 1);
  MPI_Comm_set_errhandler(stream.comm(), MPI_ERRORS_RETURN);
  MPI_Errhandler_free(&own);
}

TEST_CASE("MPI still says which level of thread support the program has requested", "[streams]") {
  int told = -1, real = -1;
  MPI_Query_thread(&told);
  PMPI_Query_thread(&real);
  CHECK(real == MPI_THREAD_MULTIPLE);
  if (std::getenv("GPUDT_TEST_THREADS") == nullptr) CHECK(told == MPI_THREAD_SINGLE);
}
