// When and where error handlers run: in the call that starts an operation or the one that completes it, so that they
// may communicate; for the communicator even if its handle is gone; and for what MPI cannot know of, too.
#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <optional>
#include <utility>

#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/exchange.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

std::vector<int> called_with;  ///< error classes
std::function<void()> in_handler;

// The standard's signature has further, unspecified arguments.
void handle(MPI_Comm*, int* code, ...) {
  called_with.push_back(error_class(*code));
  if (const auto act = std::exchange(in_handler, nullptr)) act();
}

/// A duplicate of comm() whose handler remembers, and does what `in_handler` says, once.
class Watched {
 public:
  Watched() {
    MPI_Comm_dup(comm(), &comm_);
    PMPI_Barrier(comm_);  // from now on all know it, and messages are offered from the first one on
    set_handler(comm_, handle);
    called_with.clear();
    in_handler = nullptr;
  }
  ~Watched() { free(); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  operator MPI_Comm() const { return comm_; }  // NOLINT(google-explicit-constructor): stands in for the handle

  void free() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

std::vector<int> take_calls() {
  return std::exchange(called_with, {});
}

using Classes = std::vector<int>;

constexpr int too_long = 1, right = 2;  ///< tags

/// Even ranks send a message that is too long for the receive, and one that is right. Odd ranks take them by
/// `receive(in, other, type, comm)`, which says where the latter is.
template <class Receive>
void with_truncation(Receive receive) {
  if (!all_have_partners()) return;
  // No longer ones: Open MPI 4.1 writes a truncated message beyond the end of the buffer if it fetches it by itself.
  for (const int blocks : {20, 250}) {
    INFO(blocks << " blocks");
    step(std::to_string(blocks) + " blocks");
    const Type type = vector(blocks, 1, 2);
    Watched watched;
    Buffer out(Place::device, type, 2), in(Place::device, type, 1), other(Place::device, type, 1);
    out.fill(key_of(rank(), blocks));
    if (rank() % 2 == 0) {
      MPI_OK(MPI_Send(out.address(), 2, type, partner(), too_long, watched));
      MPI_OK(MPI_Send(out.address(), 1, type, partner(), right, watched));
      lock_step();
      continue;
    }
    Buffer& received = receive(in, other, type, watched);
    CHECK(in.difference_outside() == "");
    Stream stream = stream_of(type, 2, key_of(partner(), blocks));
    stream.resize(static_cast<std::size_t>(type.size()));
    received.expect(stream);
    CHECK(received.difference() == "");
    lock_step();
  }
}

/// The same with both receives posted, completed by `complete(the one that is truncated)` while its handler waits for
/// the other.
template <class Complete>
void wait_in_handler(Complete complete) {
  with_truncation([&](Buffer& in, Buffer& other, const Type& type, Watched& watched) -> Buffer& {
    MPI_Request truncated = MPI_REQUEST_NULL, second = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), too_long, watched, &truncated));
    MPI_OK(MPI_Irecv(other.address(), 1, type, partner(), right, watched, &second));
    in_handler = [&] { MPI_OK(MPI_Wait(&second, MPI_STATUS_IGNORE)); };
    MPI_FAILS(complete(&truncated), MPI_ERR_TRUNCATE);
    CHECK(take_calls() == Classes{MPI_ERR_TRUNCATE});
    CHECK(truncated == MPI_REQUEST_NULL);
    CHECK(second == MPI_REQUEST_NULL);
    return other;
  });
}

}  // namespace

TEST_CASE("an error handler waits for another operation, called by Wait", "[handlers]") {
  wait_in_handler([](MPI_Request* request) { return MPI_Wait(request, MPI_STATUS_IGNORE); });
}

TEST_CASE("an error handler waits for another operation, called by Test", "[handlers]") {
  wait_in_handler([](MPI_Request* request) {
    int flag = 0, code = MPI_SUCCESS;
    while (flag == 0 && code == MPI_SUCCESS) code = MPI_Test(request, &flag, MPI_STATUS_IGNORE);
    return code;
  });
}

TEST_CASE("an error handler waits for another operation, called by Waitall", "[handlers]") {
  wait_in_handler([](MPI_Request* request) {
    MPI_Status status{};
    MPI_FAILS(MPI_Waitall(1, request, &status), MPI_ERR_IN_STATUS);
    return status.MPI_ERROR;
  });
}

TEST_CASE("no error handler is called before its operation is completed", "[handlers]") {
  with_truncation([](Buffer& in, Buffer& other, const Type& type, Watched& watched) -> Buffer& {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), too_long, watched, &request));
    MPI_OK(MPI_Recv(other.address(), 1, type, partner(), right, watched, MPI_STATUS_IGNORE));
    int flag = 0;
    while (flag == 0) MPI_OK(MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE));
    CHECK(take_calls().empty());
    if (!host_only()) watched.free();  // Open MPI 4.1 finds no handler in a communicator that has been freed
    CHECK(take_calls().empty());
    MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    CHECK(take_calls() == Classes{MPI_ERR_TRUNCATE});
    return other;
  });
}

TEST_CASE("two truncated receives in one Waitall: one call of the handler", "[handlers]") {
  if (!all_have_partners() || any_host_only()) return;  // Open MPI 4.1 leaves the second for another call
  const Type type = vector(300, 1, 2);
  Watched watched;
  Buffer out(Place::device, type, 2);
  if (rank() % 2 == 0) {
    for (int i = 0; i < 2; ++i) MPI_OK(MPI_Send(out.address(), 2, type, partner(), i, watched));
  } else {
    Buffer first(Place::device, type, 1), second(Place::device, type, 1);
    MPI_Request requests[2];
    MPI_Status statuses[2] = {};
    MPI_OK(MPI_Irecv(first.address(), 1, type, partner(), 0, watched, &requests[0]));
    MPI_OK(MPI_Irecv(second.address(), 1, type, partner(), 1, watched, &requests[1]));
    MPI_FAILS(MPI_Waitall(2, requests, statuses), MPI_ERR_IN_STATUS);
    CHECK(take_calls().size() == 1);
    for (const MPI_Status& status : statuses) CHECK(error_class(status.MPI_ERROR) == MPI_ERR_TRUNCATE);
    for (const MPI_Request request : requests) CHECK(request == MPI_REQUEST_NULL);
  }
  lock_step();
}

TEST_CASE("a truncated receive that was freed calls no handler", "[handlers]") {
  with_truncation([](Buffer&, Buffer& other, const Type& type, Watched& watched) -> Buffer& {
    const auto* const in = new Buffer(Place::device, type, 1);  // for good: when the receive is over cannot be known
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(in->address(), 1, type, partner(), too_long, watched, &request));
    MPI_OK(MPI_Request_free(&request));
    MPI_OK(MPI_Recv(other.address(), 1, type, partner(), right, watched, MPI_STATUS_IGNORE));
    CHECK(take_calls().empty());
    return other;
  });
}

// Host memory is left out: Open MPI 4.1 finds no handler in a communicator that has been freed.
TEST_CASE("a matched message is truncated after its communicator is freed", "[handlers]") {
  if (any_host_only()) return;
  with_truncation([](Buffer& in, Buffer& other, const Type& type, Watched& watched) -> Buffer& {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Mprobe(partner(), too_long, watched, &message, MPI_STATUS_IGNORE));
    MPI_OK(MPI_Recv(other.address(), 1, type, partner(), right, watched, MPI_STATUS_IGNORE));
    watched.free();
    MPI_OK(MPI_Imrecv(in.address(), 1, type, &message, &request));
    MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    CHECK(take_calls() == Classes{MPI_ERR_TRUNCATE});
    return other;
  });
}

TEST_CASE("freeing no communicator calls the handler once, whatever is pending", "[handlers]") {
  const Type type = vector(50, 1, 2);
  Buffer out(Place::device, type, 1), in(Place::device, type, 1);
  MPI_Request requests[2];
  MPI_OK(MPI_Irecv(in.address(), 1, type, rank(), 1, comm(), &requests[0]));
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL, before = MPI_ERRHANDLER_NULL;
  MPI_OK(MPI_Comm_get_errhandler(comm_of_no_comm(), &before));
  MPI_OK(MPI_Comm_create_errhandler(handle, &handler));
  MPI_OK(MPI_Comm_set_errhandler(comm_of_no_comm(), handler));
  take_calls();
  MPI_Comm none = MPI_COMM_NULL;
  MPI_FAILS(MPI_Comm_free(&none), MPI_ERR_COMM);
  CHECK(take_calls() == Classes{MPI_ERR_COMM});
  MPI_OK(MPI_Comm_set_errhandler(comm_of_no_comm(), before));
  MPI_OK(MPI_Errhandler_free(&before));
  MPI_OK(MPI_Errhandler_free(&handler));
  MPI_OK(MPI_Isend(out.address(), 1, type, rank(), 1, comm(), &requests[1]));
  MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
}

// Host memory is left out: Open MPI 4.1 frees a persistent request that has failed.
TEST_CASE("a persistent receive on a freed communicator is truncated and started again", "[handlers]") {
  if (any_host_only()) return;
  MPICH5_CANNOT("its MPI_Testsome does not tell the error of a persistent request");
  with_truncation([](Buffer& in, Buffer&, const Type& type, Watched& watched) -> Buffer& {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Recv_init(in.address(), 1, type, partner(), MPI_ANY_TAG, watched, &request));
    watched.free();
    for (const bool first : {true, false}) {
      MPI_Status status{};
      MPI_OK(MPI_Start(&request));
      if (first)
        MPI_FAILS(MPI_Wait(&request, &status), MPI_ERR_TRUNCATE);
      else
        MPI_OK(MPI_Wait(&request, &status));
      CHECK(status.MPI_TAG == (first ? too_long : right));
      CHECK(take_calls() == (first ? Classes{MPI_ERR_TRUNCATE} : Classes{}));
      CHECK(request != MPI_REQUEST_NULL);
    }
    MPI_OK(MPI_Request_free(&request));
    CHECK(request == MPI_REQUEST_NULL);
    return in;
  });
}

// Open MPI 4.1 delivers nothing more to that peer on a communicator where this has happened.
TEST_CASE("Ibsend without room fails at once, and its handler waits for another operation", "[handlers]") {
  const Type type = vector(5000, 1, 2);
  for (const bool persistent : {false, true}) {
    if (persistent && any_host_only()) continue;
    Watched watched;
    BsendBuffer attached(100);
    Buffer out(Place::device, type, 1), in(Place::device, type, 1);
    out.fill(key_of(rank(), 1));
    MPI_Request failing = MPI_REQUEST_NULL, requests[2];
    MPI_OK(MPI_Irecv(in.address(), 1, type, rank(), 1, comm(), &requests[0]));
    MPI_OK(MPI_Isend(out.address(), 1, type, rank(), 1, comm(), &requests[1]));
    in_handler = [&] { MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE)); };
    if (persistent) {
      MPI_OK(MPI_Bsend_init(out.address(), 1, type, rank(), 2, watched, &failing));
      MPI_FAILS(MPI_Start(&failing), MPI_ERR_BUFFER);
      CHECK(take_calls() == Classes{MPI_ERR_BUFFER});
      MPI_OK(MPI_Request_free(&failing));
    } else {
      MPI_FAILS(MPI_Ibsend(out.address(), 1, type, rank(), 2, watched, &failing), MPI_ERR_BUFFER);
      CHECK(take_calls() == Classes{MPI_ERR_BUFFER});
    }
    in.expect(stream_of(type, 1, key_of(rank(), 1)));
    CHECK(in.difference() == "");
  }
}

// --- failures of gpudt's own -----------------------------------------------------------------------------------------

namespace {

void check_usable() {
  const Type type = vector(50, 1, 2);
  exchange_both_ways({type, 1, Place::device, type, 1, Place::device}, 5);
}

/// Runs calls that must fail for want of staging memory.
template <class Call>
void no_memory(const char* name, Call call) {
  INFO(name);
  step(name);
  MPI_FAILS(call(), MPI_ERR_NO_MEM);
  CHECK(take_calls() == Classes{MPI_ERR_NO_MEM});
}

}  // namespace

// To be run with a small GPUDT_STAGING_LIMIT.
TEST_CASE("no staging memory for messages", "[.][staging-limit]") {
  const Type type = vector(1 << 14, 1, 2);  // 128 KiB
  Watched watched;
  BsendBuffer attached(1 << 18);
  Buffer buffer(Place::device, type, 1), other(Place::device, type, 1);
  void* const address = buffer.address();
  const int me = rank();
  MPI_Request request = MPI_REQUEST_NULL;
  for (const SendMode& mode : send_modes)
    no_memory(mode.name, [&] { return mode.send({address, 1, type, me, 1, watched}); });
  no_memory("Recv", [&] { return MPI_Recv(address, 1, type, me, 1, watched, MPI_STATUS_IGNORE); });
  no_memory("Irecv", [&] { return MPI_Irecv(address, 1, type, me, 1, watched, &request); });
  no_memory("Recv_init", [&] { return MPI_Recv_init(address, 1, type, me, 1, watched, &request); });
  no_memory("Sendrecv", [&] {
    return MPI_Sendrecv(address, 1, type, me, 1, other.address(), 1, type, me, 1, watched, MPI_STATUS_IGNORE);
  });
  no_memory("Sendrecv_replace",
            [&] { return MPI_Sendrecv_replace(address, 1, type, me, 1, me, 1, watched, MPI_STATUS_IGNORE); });
  CHECK(request == MPI_REQUEST_NULL);
  CHECK(buffer.difference() == "");
  CHECK(other.difference() == "");
  check_usable();
}

// The handler is that of the communicator that the message came by, freed or not, and the message can still be
// received.
TEST_CASE("no staging memory for matched messages", "[.][staging-limit]") {
  const Type type = vector(1 << 14, 1, 2);
  for (const bool freed : {false, true})
    for (const bool nonblocking : {false, true}) {
      Watched watched;
      Buffer out(Place::host, type, 1), in(Place::host, type, 1), buffer(Place::device, type, 1);
      out.fill(key_of(rank(), 1));
      MPI_Request send = MPI_REQUEST_NULL, request = MPI_REQUEST_NULL;
      MPI_Message message = MPI_MESSAGE_NULL;
      int flag = 0;
      MPI_OK(MPI_Isend(out.address(), 1, type, rank(), 1, watched, &send));
      if (nonblocking)
        while (flag == 0) MPI_OK(MPI_Improbe(rank(), 1, watched, &flag, &message, MPI_STATUS_IGNORE));
      else
        MPI_OK(MPI_Mprobe(rank(), 1, watched, &message, MPI_STATUS_IGNORE));
      if (freed) watched.free();
      for (int attempt = 0; attempt < 2; ++attempt) {
        const int code = nonblocking ? MPI_Imrecv(buffer.address(), 1, type, &message, &request)
                                     : MPI_Mrecv(buffer.address(), 1, type, &message, MPI_STATUS_IGNORE);
        MPI_FAILS(code, MPI_ERR_NO_MEM);
        CHECK(take_calls() == Classes{MPI_ERR_NO_MEM});
      }
      MPI_OK(MPI_Mrecv(in.address(), 1, type, &message, MPI_STATUS_IGNORE));
      MPI_OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
      in.expect(stream_of(type, 1, key_of(rank(), 1)));
      CHECK(in.difference() == "");
      CHECK(buffer.difference() == "");
    }
  check_usable();
}

// Each error costs no staging memory: else there would soon be none.
TEST_CASE("messages that fail leave no staging memory behind", "[.][staging-limit]") {
  if (!all_have_partners()) return;
  const Type type = vector(1 << 10, 1, 2), part = vector(1 << 9, 1, 2);  // 8 KiB, 4 KiB
  Watched watched;
  Buffer out(Place::device, type, 1), in(Place::device, part, 1);
  for (int i = 0; i < 50; ++i) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank() % 2 == 0) {
      MPI_OK(MPI_Send(out.address(), 1, type, partner(), 1, watched));
    } else if (i % 2 == 0) {
      MPI_FAILS(MPI_Recv(in.address(), 1, part, partner(), 1, watched, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    } else {
      MPI_OK(MPI_Irecv(in.address(), 1, part, partner(), 1, watched, &request));
      MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    }
    MPI_FAILS(MPI_Isend(out.address(), 1, type, ranks(), 1, watched, &request), MPI_ERR_RANK);
    MPI_FAILS(MPI_Irecv(out.address(), 1, type, 0, -77, watched, &request), MPI_ERR_TAG);
    MPI_FAILS(MPI_Ibcast(out.address(), 1, type, ranks(), watched, &request), MPI_ERR_ROOT);
  }
  take_calls();
  check_usable();
}

// To be run on simulated devices, of which each test spoils one: a GPU that has failed fails for ever.
TEST_CASE("an unpack that fails on the GPU reaches the handler, after the communicator is freed too", "[.][fault]") {
  const Type type = vector(500, 1, 2);
  const int gpu = current_gpu();
  for (const bool freed : {false, true}) {
    step(freed ? "freed" : "not freed");
    Watched watched;
    Buffer out(Place::host, type, 1);
    use_gpu(freed ? 2 : 3);
    std::optional<Buffer> in(std::in_place, Place::device, type, 1);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(in->address(), 1, type, rank(), 1, watched, &request));
    in.reset();
    MPI_OK(MPI_Send(out.address(), 1, type, rank(), 1, watched));
    int flag = 0;
    while (flag == 0) MPI_OK(MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE));
    CHECK(take_calls().empty());
    if (freed) watched.free();
    MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_BUFFER);
    CHECK(take_calls() == Classes{MPI_ERR_BUFFER});
    use_gpu(gpu);
    check_usable();
  }
}

// The default stream of a GPU that has failed cannot be marked any more.
TEST_CASE("a receive that fails takes no message", "[.][fault]") {
  const Type type = vector(500, 1, 2);
  const int gpu = current_gpu();
  const Watched watched;
  Buffer host(Place::host, type, 1);
  use_gpu(4);
  Buffer& in = *new Buffer(Place::device, type, 1);  // nor can its memory be given back
  std::optional<Buffer> freed(std::in_place, Place::device, type, 1);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(freed->address(), 1, type, rank(), 1, watched, &request));
  freed.reset();
  MPI_OK(MPI_Send(host.address(), 1, type, rank(), 1, watched));
  MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_BUFFER);
  MPI_FAILS(MPI_Recv(in.address(), 1, type, rank(), 1, watched, MPI_STATUS_IGNORE), MPI_ERR_OTHER);  // it is there
  use_gpu(gpu);
  take_calls();

  host.fill(7);
  Buffer arrived(Place::host, type, 1);
  MPI_OK(MPI_Irecv(arrived.address(), 1, type, rank(), 1, watched, &request));
  MPI_OK(MPI_Send(host.address(), 1, type, rank(), 1, watched));
  MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  arrived.expect(stream_of(type, 1, 7));
  CHECK(arrived.difference() == "");
  check_usable();
}

// With messages that go in fragments: what has been sent cannot be taken back. Then all is well again, in the same
// order.
TEST_CASE("a pack that fails on the GPU in the middle of a message reaches both ends", "[.][fault-midway]") {
  if (!all_have_partners()) return;
  const Type type = vector(1 << 20, 1, 2);  // 8 MiB
  const int gpu = current_gpu();
  for (int i = 0; i < 3; ++i)  // the first ones go in one piece
    exchange_both_ways({type, 1, Place::device, type, 1, Place::device}, 60);
  for (const Place place : {Place::device, Place::host}) {
    step(place_name(place));
    Watched watched;
    Buffer following(place, type, 1), good(Place::device, type, 1);
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    if (rank() % 2 == 0) {
      use_gpu(place == Place::device ? 2 : 3);
      std::optional<Buffer> out(std::in_place, Place::device, type, 1);
      MPI_OK(MPI_Isend(out->address(), 1, type, partner(), 1, watched, &requests[0]));
      out.reset();
      use_gpu(gpu);
      good.fill(key_of(rank(), 2));
      MPI_OK(MPI_Isend(good.address(), 1, type, partner(), 2, watched, &requests[1]));
      MPI_FAILS(MPI_Wait(&requests[0], MPI_STATUS_IGNORE), MPI_ERR_BUFFER);
    } else {
      Buffer in(place, type, 1);
      MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, watched, &requests[0]));
      MPI_OK(MPI_Irecv(following.address(), 1, type, partner(), 2, watched, &requests[1]));
      MPI_FAILS(MPI_Wait(&requests[0], MPI_STATUS_IGNORE), MPI_ERR_OTHER);
      following.expect(stream_of(type, 1, key_of(partner(), 2)));
    }
    MPI_OK(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
    if (rank() % 2 != 0) CHECK(following.difference() == "");
    CHECK(take_calls() == Classes{rank() % 2 == 0 ? MPI_ERR_BUFFER : MPI_ERR_OTHER});
    check_usable();
  }
}

// Of two processes on one GPU: the lower-ranked process writes to the other one's memory.
TEST_CASE("a message that its sender fails to write to the receiver's memory reaches both ends", "[.][fault-put]") {
  if (!all_have_partners()) return;
  const Type type = vector(1 << 14, 1, 2);  // 128 KiB: a longer one the receiver may fetch itself, if it has to wait
  const int gpu = current_gpu();
  Watched watched;
  if (rank() % 2 == 0) {
    use_gpu(2);
    std::optional<Buffer> out(std::in_place, Place::device, type, 1);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Isend(out->address(), 1, type, partner(), 1, watched, &request));
    out.reset();
    use_gpu(gpu);
    MPI_OK(MPI_Send(nullptr, 0, MPI_BYTE, partner(), 2, comm()));
    MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_BUFFER);
  } else {
    MPI_OK(MPI_Recv(nullptr, 0, MPI_BYTE, partner(), 2, comm(), MPI_STATUS_IGNORE));
    use_gpu(2);
    Buffer in(Place::device, type, 1);
    MPI_FAILS(MPI_Recv(in.address(), 1, type, partner(), 1, watched, MPI_STATUS_IGNORE), MPI_ERR_OTHER);
    use_gpu(gpu);
  }
  CHECK(take_calls() == Classes{rank() % 2 == 0 ? MPI_ERR_BUFFER : MPI_ERR_OTHER});
  check_usable();
}

// --- MPI functions that fail when they are told to -------------------------------------------------------------------

namespace {
std::atomic<bool> no_generalized_requests{false};
}

// gpudt comes here, too: a program's own definition stands before the MPI library's.
extern "C" __attribute__((visibility("default"))) int PMPI_Grequest_start(MPI_Grequest_query_function* query,
                                                                          MPI_Grequest_free_function* release,
                                                                          MPI_Grequest_cancel_function* cancel,
                                                                          void* extra, MPI_Request* request) {
  static const auto real = reinterpret_cast<decltype(&PMPI_Grequest_start)>(dlsym(RTLD_NEXT, "PMPI_Grequest_start"));
  return no_generalized_requests ? MPI_ERR_NO_MEM : real(query, release, cancel, extra, request);
}

TEST_CASE("an operation without a request has not been started", "[handlers]") {
  if (host_only()) return;
  const Type type = vector(500, 1, 2);
  Buffer out(Place::device, type, 1), in(Place::device, type, 1), lost(Place::device, type, 1);
  out.fill(key_of(rank(), 1));
  for (const bool persistent : {false, true}) {
    step(persistent ? "persistent" : "nonblocking");
    MPI_Request request = MPI_REQUEST_NULL, ready = MPI_REQUEST_NULL;
    if (persistent) MPI_OK(MPI_Recv_init(lost.address(), 1, type, rank(), 1, comm(), &ready));
    no_generalized_requests = true;
    if (persistent)
      MPI_FAILS(MPI_Start(&ready), MPI_ERR_NO_MEM);
    else
      MPI_FAILS(MPI_Irecv(lost.address(), 1, type, rank(), 1, comm(), &request), MPI_ERR_NO_MEM);
    MPI_FAILS(MPI_Isend(lost.address(), 1, type, rank(), 1, comm(), &request), MPI_ERR_NO_MEM);
    no_generalized_requests = false;
    // Had one of them been started, the message would go to the first or come from the second.
    in.poison();
    MPI_OK(
        MPI_Sendrecv(out.address(), 1, type, rank(), 1, in.address(), 1, type, rank(), 1, comm(), MPI_STATUS_IGNORE));
    in.expect(stream_of(type, 1, key_of(rank(), 1)));
    CHECK(in.difference() == "");
    CHECK(lost.difference() == "");
    if (persistent) MPI_OK(MPI_Request_free(&ready));
  }
}
