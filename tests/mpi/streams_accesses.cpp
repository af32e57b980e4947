// Accesses to windows that are enqueued in streams.
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>

#include "tests/mpi/rma.hpp"
#include "tests/mpi/streams.hpp"

using namespace gpudt::test;

namespace {

constexpr int blocks = 400, gap = 2, span = gap * (blocks - 1) + 1;

/// A window over numbers, on a communicator with a stream, of which all ranks are locked.
class LockedWindow {
 public:
  LockedWindow(const EnqueuingStream& stream, std::size_t count, bool on_device) : numbers(count) {
    void* const memory = on_device ? numbers.device() : numbers.host();
    MPI_OK(MPI_Win_create(memory, static_cast<MPI_Aint>(count * sizeof(double)), sizeof(double), MPI_INFO_NULL,
                          stream.comm(), &window_));
    MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
    MPI_OK(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_));
  }
  ~LockedWindow() {
    MPI_OK(MPI_Win_unlock_all(window_));
    MPI_OK(MPI_Win_free(&window_));
  }
  LockedWindow(const LockedWindow&) = delete;
  LockedWindow& operator=(const LockedWindow&) = delete;
  operator MPI_Win() const { return window_; }  // NOLINT(google-explicit-constructor): stands in for the handle

  Numbers numbers;

 private:
  MPI_Win window_ = MPI_WIN_NULL;
};

}  // namespace

// The message behind the put tells the target that the data have come: nobody flushes.
TEST_CASE("An enqueued put has come before what follows it in the stream", "[streams]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  LockedWindow window(stream, span, true);
  Numbers out(span);
  const Type type = vector(blocks, 1, gap);
  for (int round = 0; round < 6; ++round) {
    INFO("round " << round);
    MPI_OK(MPI_Barrier(comm()));
    if (rank() % 2 == 0) {
      if (round % 3 == 0) stream.delay();
      out.write(stream.cuda(), first_of(rank(), round));
      if (round % 2 == 0)
        MPI_OK(MPIX_Put_enqueue(out.device(), 1, type, partner(), 0, 1, type, window));
      else
        MPI_OK(MPIX_Put_enqueue_c(out.device(), 1, type, partner(), 0, 1, type, window));
      out.clear(stream.cuda());
      MPI_OK(MPIX_Send_enqueue(nullptr, 0, MPI_BYTE, partner(), 9, stream.comm()));
    } else {
      if (round < 3)
        MPI_OK(MPIX_Recv_enqueue(nullptr, 0, MPI_BYTE, partner(), 9, stream.comm(), MPI_STATUS_IGNORE));
      else
        MPI_OK(MPI_Recv(nullptr, 0, MPI_BYTE, partner(), 9, stream.comm(), MPI_STATUS_IGNORE));
      window.numbers.read(stream.cuda());
      stream.synchronize();
      CHECK(every(gap, window.numbers.values()) == every(gap, counted(span, first_of(partner(), round))));
    }
    stream.synchronize();
  }
}

// Where calls wait for the default stream, the target applies the put when its own is idle, long after the message.
TEST_CASE("A stream does not pass a put before its data are at the target", "[streams]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  Numbers out(10);
  REQUIRE(cudaLaunchHostFunc(
              nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }, nullptr) ==
          cudaSuccess);
  LockedWindow window(stream, 10, true);
  window.numbers.clear(stream.cuda());
  stream.synchronize();
  MPI_OK(MPI_Barrier(comm()));
  if (rank() % 2 == 0) {
    out.write(stream.cuda(), first_of(rank(), 0));
    MPI_OK(MPIX_Put_enqueue(out.device(), 10, MPI_DOUBLE, partner(), 0, 10, MPI_DOUBLE, window));
    MPI_OK(MPIX_Send_enqueue(nullptr, 0, MPI_BYTE, partner(), 9, stream.comm()));
  } else {
    MPI_OK(MPI_Recv(nullptr, 0, MPI_BYTE, partner(), 9, stream.comm(), MPI_STATUS_IGNORE));
    window.numbers.read(stream.cuda());
  }
  stream.synchronize();
  if (rank() % 2 != 0) CHECK(window.numbers.values() == counted(10, first_of(partner(), 0)));
}

TEST_CASE("Puts that are under way in several streams", "[streams]") {
  if (!all_have_partners()) return;
  constexpr int streams = 6;
  std::deque<EnqueuingStream> stream;
  std::deque<LockedWindow> window;
  std::deque<Numbers> out;
  for (int i = 0; i < streams; ++i) {
    stream.emplace_back();
    window.emplace_back(stream.back(), span, true);
    out.emplace_back(span);
  }
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i < streams; ++i) {
      out[i].write(stream[i].cuda(), first_of(rank(), round) + static_cast<double>(i));
      MPI_OK(MPIX_Put_enqueue(out[i].device(), span, MPI_DOUBLE, partner(), 0, span, MPI_DOUBLE, window[i]));
    }
    for (const EnqueuingStream& each : stream) each.synchronize();
    MPI_OK(MPI_Barrier(comm()));
    for (std::size_t i = 0; i < streams; ++i) {
      window[i].numbers.read(stream[i].cuda());
      stream[i].synchronize();
      CHECK(window[i].numbers.values() == counted(span, first_of(partner(), round) + static_cast<double>(i)));
    }
    MPI_OK(MPI_Barrier(comm()));
  }
  while (!stream.empty()) {
    window.pop_back();
    stream.pop_back();
  }
}

TEST_CASE("An enqueued get sees what the target has written, and what follows sees what it brings", "[streams]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  LockedWindow window(stream, span, true);
  Numbers in(span);
  const Type type = vector(blocks, 1, gap);
  for (int round = 0; round < 4; ++round) {
    window.numbers.write(stream.cuda(), first_of(rank(), round));
    stream.synchronize();
    MPI_OK(MPI_Barrier(comm()));
    in.clear(stream.cuda());
    if (round % 2 == 0)
      MPI_OK(MPIX_Get_enqueue(in.device(), 1, type, partner(), 0, 1, type, window));
    else
      MPI_OK(MPIX_Get_enqueue_c(in.device(), 1, type, partner(), 0, 1, type, window));
    in.read(stream.cuda());
    stream.synchronize();
    CHECK(every(gap, in.values()) == every(gap, counted(span, first_of(partner(), round))));
    MPI_OK(MPI_Barrier(comm()));
  }
}

TEST_CASE("Enqueued accesses to windows of MPI's own memory", "[streams]") {
  NEEDS_WINDOWS_OF_MPI;
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  LockedWindow window(stream, 1000, false);
  Numbers numbers(1000);
  for (int round = 0; round < 3; ++round) {
    MPI_OK(MPI_Barrier(comm()));
    if (rank() % 2 == 0) {
      numbers.write(stream.cuda(), first_of(rank(), round));
      MPI_OK(MPIX_Put_enqueue(numbers.device(), 1000, MPI_DOUBLE, partner(), 0, 1000, MPI_DOUBLE, window));
      numbers.clear(stream.cuda());
      stream.synchronize();
      MPI_OK(MPI_Win_flush(partner(), window));
      MPI_OK(MPIX_Get_enqueue(numbers.device(), 1000, MPI_DOUBLE, partner(), 0, 1000, MPI_DOUBLE, window));
      numbers.read(stream.cuda());
      MPI_OK(MPIX_Send_enqueue(nullptr, 0, MPI_BYTE, partner(), 9, stream.comm()));
      stream.synchronize();
      CHECK(numbers.values() == counted(1000, first_of(rank(), round)));
    } else {
      MPI_OK(MPI_Recv(nullptr, 0, MPI_BYTE, partner(), 9, stream.comm(), MPI_STATUS_IGNORE));
      MPI_OK(MPI_Win_sync(window));
      CHECK(window.numbers.values() == counted(1000, first_of(partner(), round)));
    }
  }
}

TEST_CASE("A put to host memory of a target outside of MPI holds up no other stream", "[streams]") {
  NEEDS_WINDOWS_OF_MPI;
  if (!all_have_partners()) return;
  const EnqueuingStream stream, other;
  LockedWindow window(stream, 1000, false);
  Numbers out(1000);
  MPI_Win shared = MPI_WIN_NULL;
  std::atomic<int>* base = nullptr;  // of the first rank
  MPI_Aint size = 0;
  int unit = 0;
  const auto bytes = static_cast<MPI_Aint>(ranks() * sizeof *base);
  MPI_OK(
      MPI_Win_allocate_shared(rank() == 0 ? bytes : 0, 1, MPI_INFO_NULL, comm(), static_cast<void*>(&base), &shared));
  MPI_OK(MPI_Win_shared_query(shared, 0, &size, &unit, static_cast<void*>(&base)));
  std::atomic<int>& gone_on = base[rank() & ~1];
  gone_on = 0;
  MPI_OK(MPI_Barrier(comm()));
  if (rank() % 2 == 0) {
    out.write(stream.cuda(), first_of(rank(), 0));
    MPI_OK(MPIX_Put_enqueue(out.device(), 1000, MPI_DOUBLE, partner(), 0, 1000, MPI_DOUBLE, window));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it has begun
    MPI_OK(MPIX_Send_enqueue(nullptr, 0, MPI_BYTE, MPI_PROC_NULL, 0, other.comm()));
    other.synchronize();
    gone_on = 1;
    stream.synchronize();
    MPI_OK(MPI_Win_flush(partner(), window));
  } else {
    for (int i = 0; i < 30'000 && gone_on == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(gone_on == 1);
  }
  MPI_OK(MPI_Barrier(comm()));
  MPI_OK(MPI_Win_sync(window));
  if (rank() % 2 != 0) CHECK(window.numbers.values() == counted(1000, first_of(partner(), 0)));
  MPI_OK(MPI_Win_free(&shared));
}

TEST_CASE("A dynamic window, a lock of one rank, and MPI_PROC_NULL", "[streams]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  Numbers memory(50), out(50);
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create_dynamic(MPI_INFO_NULL, stream.comm(), &window));
  MPI_OK(MPI_Win_attach(window, memory.device(), 50 * sizeof(double)));
  MPI_Aint here = 0, there = 0;
  MPI_Get_address(memory.device(), &here);
  MPI_OK(MPI_Sendrecv(&here, 1, MPI_AINT, partner(), 2, &there, 1, MPI_AINT, partner(), 2, comm(), MPI_STATUS_IGNORE));
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, partner(), 0, window));
  out.write(stream.cuda(), first_of(rank(), 0));
  MPI_OK(MPIX_Put_enqueue(out.device(), 50, MPI_DOUBLE, partner(), there, 50, MPI_DOUBLE, window));
  MPI_OK(MPIX_Put_enqueue(out.device(), 50, MPI_DOUBLE, MPI_PROC_NULL, 0, 50, MPI_DOUBLE, window));
  MPI_OK(MPIX_Get_enqueue(out.device(), 50, MPI_DOUBLE, MPI_PROC_NULL, 0, 50, MPI_DOUBLE, window));
  MPI_Request sent = MPI_REQUEST_NULL;
  MPI_OK(MPIX_Isend_enqueue(nullptr, 0, MPI_BYTE, partner(), 3, stream.comm(), &sent));
  MPI_OK(MPIX_Recv_enqueue(nullptr, 0, MPI_BYTE, partner(), 3, stream.comm(), MPI_STATUS_IGNORE));
  memory.read(stream.cuda());
  MPI_OK(MPIX_Wait_enqueue(&sent, MPI_STATUS_IGNORE));
  stream.synchronize();
  CHECK(memory.values() == counted(50, first_of(partner(), 0)));
  MPI_OK(MPI_Win_unlock(partner(), window));
  MPI_OK(MPI_Win_detach(window, memory.device()));
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("MPI_Win_free returns the error of an enqueued access", "[streams]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  Numbers memory(50), out(50);
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.device(), 50 * sizeof(double), sizeof(double), MPI_INFO_NULL, stream.comm(), &window));
  MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
  MPI_OK(MPI_Win_lock_all(MPI_MODE_NOCHECK, window));
  stream.delay();
  out.write(stream.cuda(), first_of(rank(), 0));
  MPI_OK(MPIX_Put_enqueue(out.device(), 50, MPI_DOUBLE, partner(), 0, 50, MPI_DOUBLE, window));
  MPI_OK(MPIX_Put_enqueue(out.device(), 50, MPI_DOUBLE, partner(), 1, 50, MPI_DOUBLE, window));  // beyond the window
  stream.synchronize();
  MPI_OK(MPI_Win_unlock_all(window));
  MPI_FAILS(MPI_Win_free(&window), MPI_ERR_RMA_RANGE);
  CHECK(window == MPI_WIN_NULL);
  memory.read(stream.cuda());
  stream.synchronize();
  CHECK(memory.values() == counted(50, first_of(partner(), 0)));
}

TEST_CASE("Accesses that cannot be enqueued", "[streams]") {
  const EnqueuingStream stream;
  Numbers memory(50);
  double* const data = memory.device();
  MPI_Win window = MPI_WIN_NULL, without = MPI_WIN_NULL;
  constexpr MPI_Aint bytes = 50 * sizeof(double);
  MPI_OK(MPI_Win_create(data, bytes, 8, MPI_INFO_NULL, stream.comm(), &window));
  MPI_OK(MPI_Win_create(data, bytes, 8, MPI_INFO_NULL, comm(), &without));
  for (const MPI_Win each : {window, without}) MPI_Win_set_errhandler(each, MPI_ERRORS_RETURN);
  const auto put = [=](const void* from, int count, MPI_Datatype type, int to, MPI_Win win) {
    return MPIX_Put_enqueue(from, count, type, to, 0, count, type, win);
  };
  MPI_FAILS(put(data, 1, MPI_DOUBLE, rank(), window), MPI_ERR_RMA_SYNC);
  for (const MPI_Win each : {window, without}) MPI_OK(MPI_Win_lock_all(0, each));
  MPI_FAILS(put(data, 1, MPI_DOUBLE, rank(), without), MPI_ERR_WIN);
  // As the blocking function says.
  const auto alike = [&](const void* from, int count, MPI_Datatype type, int to, int error_class) {
    MPI_FAILS(MPI_Put(from, count, type, to, 0, count, type, window), error_class);
    MPI_FAILS(put(from, count, type, to, window), error_class);
  };
  alike(data, -1, MPI_DOUBLE, rank(), MPI_ERR_COUNT);
  alike(data, 1, MPI_DATATYPE_NULL, rank(), MPI_ERR_TYPE);
  alike(data, 1, MPI_DOUBLE, ranks(), MPI_ERR_RANK);
  MPI_FAILS(put(nullptr, 1, MPI_DOUBLE, rank(), window), MPI_ERR_BUFFER);
  MPI_Datatype uncommitted = MPI_DATATYPE_NULL;
  MPI_Type_vector(2, 1, 3, MPI_DOUBLE, &uncommitted);
  MPI_FAILS(put(data, 1, uncommitted, rank(), window), MPI_ERR_TYPE);
  MPI_Type_free(&uncommitted);
  for (const MPI_Win each : {window, without}) MPI_OK(MPI_Win_unlock_all(each));
  MPI_OK(MPI_Win_free(&window));
  MPI_OK(MPI_Win_free(&without));
}
