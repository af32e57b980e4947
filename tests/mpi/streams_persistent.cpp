// Starts of persistent requests that are enqueued in streams.
#include <array>

#include "tests/mpi/streams.hpp"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

using namespace gpudt::test;

namespace {

constexpr int blocks = 300, gap = 3, span = gap * (blocks - 1) + 1;

using SendInit = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);

/// A message to the right and one from the left, for as many rounds as one likes.
class Shift {
 public:
  Shift(const EnqueuingStream& stream, bool on_device, SendInit send_init)
      : stream_(stream), on_device_(on_device), in_(span), out_(span) {
    Type type = vector(blocks, 1, gap);  // freed at once
    MPI_OK(MPI_Recv_init(memory(in_), 1, type, left(), 4, stream.comm(), requests.data()));
    MPI_OK(send_init(memory(out_), 1, type, right(), 4, stream.comm(), &requests[1]));
    kept = requests;
  }
  ~Shift() {
    for (MPI_Request& request : requests)
      if (request != MPI_REQUEST_NULL) MPI_OK(MPI_Request_free(&request));
  }
  Shift(const Shift&) = delete;
  Shift& operator=(const Shift&) = delete;
  void write(int round) {
    if (on_device_) return out_.write(stream_.cuda(), first_of(rank(), round));
    stream_.synchronize();
    for (std::size_t i = 0; i < span; ++i) out_.host()[i] = first_of(rank(), round) + static_cast<double>(i);
  }
  /// What has come, after the stream.
  std::vector<double> received() {
    if (on_device_) in_.read(stream_.cuda());
    stream_.synchronize();
    return every(gap, in_.values());
  }
  static std::vector<double> expected(int round) { return every(gap, counted(span, first_of(left(), round))); }

  std::array<MPI_Request, 2> requests{}, kept{};

 private:
  double* memory(const Numbers& of) const { return on_device_ ? of.device() : of.host(); }
  const EnqueuingStream& stream_;
  bool on_device_;
  Numbers in_, out_;
};

}  // namespace

TEST_CASE("Persistent messages that are started in a stream, again and again", "[streams]") {
  for (const bool on_device : {true, false})
    for (const SendInit send_init : {MPI_Send_init, MPI_Ssend_init}) {
      INFO((on_device ? "device" : "host") << " memory");
      const EnqueuingStream stream;
      Shift shift(stream, on_device, send_init);
      for (int round = 0; round < 4; ++round) {
        std::array<MPI_Status, 2> statuses{};
        if (round == 1 && on_device) stream.delay();
        if (round % 2 == 0) {
          MPI_OK(MPIX_Start_enqueue(shift.requests.data()));
          shift.write(round);
          MPI_OK(MPIX_Start_enqueue(&shift.requests[1]));
          MPI_OK(MPIX_Wait_enqueue(shift.requests.data(), statuses.data()));
          MPI_OK(MPIX_Wait_enqueue(&shift.requests[1], MPI_STATUS_IGNORE));
        } else {
          shift.write(round);
          MPI_OK(MPIX_Startall_enqueue(2, shift.requests.data()));
          MPI_OK(MPIX_Waitall_enqueue(2, shift.requests.data(), statuses.data()));
        }
        CHECK(shift.received() == Shift::expected(round));
        CHECK(shift.requests == shift.kept);
        CHECK(statuses[0].MPI_SOURCE == left());
      }
    }
}

TEST_CASE("Persistent messages started by turns in a stream and by the host", "[streams]") {
  const EnqueuingStream stream;
  Shift shift(stream, true, MPI_Send_init);
  for (int round = 0; round < 4; ++round) {
    shift.write(round);
    if ((round + rank()) % 2 == 0) {
      MPI_OK(MPIX_Startall_enqueue(2, shift.requests.data()));
      MPI_OK(MPIX_Waitall_enqueue(2, shift.requests.data(), MPI_STATUSES_IGNORE));
    } else {
      stream.synchronize();
      MPI_OK(MPI_Startall(2, shift.requests.data()));
      MPI_OK(MPI_Waitall(2, shift.requests.data(), MPI_STATUSES_IGNORE));
    }
    CHECK(shift.received() == Shift::expected(round));
  }
}

TEST_CASE("A persistent request that is freed while its start is enqueued", "[streams]") {
  const EnqueuingStream stream;
  Shift shift(stream, true, MPI_Send_init);
  std::array<MPI_Request, 2> requests = shift.requests;
  stream.delay();
  shift.write(0);
  MPI_OK(MPIX_Startall_enqueue(2, requests.data()));
  MPI_OK(MPIX_Waitall_enqueue(2, requests.data(), MPI_STATUSES_IGNORE));
  for (MPI_Request& request : shift.requests) {
    MPI_OK(MPI_Request_free(&request));
    CHECK(request == MPI_REQUEST_NULL);
  }
  CHECK(shift.received() == Shift::expected(0));
}

TEST_CASE("Requests that are null or inactive are complete", "[streams]") {
  const EnqueuingStream stream;
  Shift shift(stream, true, MPI_Send_init);
  std::array<MPI_Request, 3> requests{shift.requests[0], MPI_REQUEST_NULL, shift.requests[1]};
  std::array<MPI_Status, 3> statuses{};
  for (MPI_Status& status : statuses) status.MPI_SOURCE = 77;
  MPI_OK(MPIX_Waitall_enqueue(3, requests.data(), statuses.data()));
  for (const MPI_Status& status : statuses) CHECK(status.MPI_SOURCE == MPI_ANY_SOURCE);
  CHECK(requests[0] == shift.kept[0]);
}

#if defined(GPUDT_MPI_PERSISTENT_COLLECTIVES) || defined(GPUDT_MPIX_PERSISTENT_COLLECTIVES)
#if defined(GPUDT_MPI_PERSISTENT_COLLECTIVES)
#define GPUDT_TEST_INIT MPI_Allreduce_init
#define GPUDT_TEST_BARRIER_INIT MPI_Barrier_init
#else
#define GPUDT_TEST_INIT MPIX_Allreduce_init
#define GPUDT_TEST_BARRIER_INIT MPIX_Barrier_init
#endif

TEST_CASE("Persistent collectives that are started in a stream", "[streams]") {
  for (const bool on_device : {true, false}) {
    INFO((on_device ? "device" : "host") << " memory");
    const EnqueuingStream stream;
    constexpr int count = 500;
    Numbers in(count), out(count);
    double* const sent = on_device ? in.device() : in.host();
    double* const sum = on_device ? out.device() : out.host();
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(GPUDT_TEST_INIT(sent, sum, count, MPI_DOUBLE, MPI_MAX, stream.comm(), MPI_INFO_NULL, &request));
    const MPI_Request kept = request;
    for (int round = 0; round < 4; ++round) {
      if (round == 1) stream.delay();
      in.write(stream.cuda(), first_of(rank(), round));
      if (!on_device) stream.synchronize();
      if (round == 2 && rank() == 0 && starts_in_any_order) {  // matches starts of the host
        stream.synchronize();
        MPI_OK(MPI_Start(&request));
        MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      } else {
        MPI_OK(MPIX_Start_enqueue(&request));
        MPI_OK(MPIX_Wait_enqueue(&request, MPI_STATUS_IGNORE));
      }
      if (on_device) out.read(stream.cuda());
      stream.synchronize();
      CHECK(request == kept);
      CHECK(out.values() == counted(count, first_of(ranks() - 1, round)));
    }
    MPI_OK(MPI_Request_free(&request));
  }
}

TEST_CASE("A persistent collective that is freed while its start is enqueued", "[streams]") {
  const EnqueuingStream stream;
  constexpr int count = 500;
  Numbers in(count), out(count);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(
      GPUDT_TEST_INIT(in.device(), out.device(), count, MPI_DOUBLE, MPI_MAX, stream.comm(), MPI_INFO_NULL, &request));
  stream.delay();
  in.write(stream.cuda(), first_of(rank(), 0));
  MPI_OK(MPIX_Start_enqueue(&request));
  MPI_OK(MPIX_Wait_enqueue(&request, MPI_STATUS_IGNORE));
  MPI_OK(MPI_Request_free(&request));
  CHECK(request == MPI_REQUEST_NULL);
  out.read(stream.cuda());
  stream.synchronize();
  CHECK(out.values() == counted(count, first_of(ranks() - 1, 0)));
}

TEST_CASE("A persistent barrier that is started in a stream", "[streams]") {
  const EnqueuingStream stream;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(GPUDT_TEST_BARRIER_INIT(stream.comm(), MPI_INFO_NULL, &request));
  for (int round = 0; round < 3; ++round) {
    if (rank() == 0) stream.delay();
    MPI_OK(MPIX_Start_enqueue(&request));
    MPI_OK(MPIX_Wait_enqueue(&request, MPI_STATUS_IGNORE));
    stream.synchronize();
  }
  MPI_OK(MPI_Request_free(&request));
}
#endif
