// Errors: the right class, through the error handler of the right communicator, once; and life goes on afterwards.
#include <algorithm>

#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/exchange.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

/// Sends what is too long for the receive, calls `receive` on the other side, then a message that is right.
template <class Receive>
void truncate(const char* name, Receive&& receive) {
  if (!all_have_partners()) return;
  for (const int blocks : {20, 20000})
    for (const Place send : basic_places)
      for (const Place place : basic_places)
        for (const bool own_handler : {false, true}) {
          const std::string text = std::string(name) + ", " + std::to_string(blocks) + " blocks, " + place_name(send) +
                                   " to " + place_name(place) + (own_handler ? ", own handler" : "");
          INFO(text);
          step(text);
          const Type type = vector(blocks, 1, 2);
          ErrorComm errors(own_handler);
          Buffer out(send, type, 3), in(place, type, 2), right(place, type, 2);
          out.fill(key_of(rank(), blocks));
          if (rank() % 2 == 0) {
            MPI_OK(MPI_Send(out.address(), 3, type, partner(), 1, errors));
            MPI_OK(MPI_Send(out.address(), 2, type, partner(), 1, errors));
          } else {
            receive(Message{in.address(), 2, type, partner(), 1, errors}, errors);
            CHECK(in.difference_outside() == "");
            MPI_OK(MPI_Recv(right.address(), 2, type, partner(), 1, errors, MPI_STATUS_IGNORE));
            Stream stream = stream_of(type, 3, key_of(partner(), blocks));
            stream.resize(static_cast<std::size_t>(2 * type.size()));
            right.expect(stream);
            CHECK(right.difference() == "");
            CHECK(handler_calls.empty());
          }
        }
}

/// The status of a truncated message names its sender.
void check_truncated(const MPI_Status& status, const Message& m) {
  CHECK(status.MPI_SOURCE == m.peer);
  CHECK(status.MPI_TAG == m.tag);
}

MPI_Request start(const Message& m) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, &request));
  return request;
}

}  // namespace

TEST_CASE("truncation in Recv", "[errors]") {
  truncate("Recv", [](const Message& m, ErrorComm& errors) {
    MPI_Status status{};
    MPI_FAILS(MPI_Recv(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, &status), MPI_ERR_TRUNCATE);
    errors.check_called(MPI_ERR_TRUNCATE);
    check_truncated(status, m);
  });
}

TEST_CASE("truncation in Mrecv", "[errors]") {
  truncate("Mrecv", [](const Message& m, ErrorComm& errors) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status{};
    MPI_OK(MPI_Mprobe(m.peer, m.tag, m.comm, &message, &status));
    MPI_FAILS(MPI_Mrecv(m.buffer, m.count, m.type, &message, &status), MPI_ERR_TRUNCATE);
    errors.check_called(MPI_ERR_TRUNCATE, MPI_SUCCESS, true);
  });
}

TEST_CASE("truncation in Imrecv and Wait", "[errors]") {
  truncate("Imrecv", [](const Message& m, ErrorComm& errors) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Mprobe(m.peer, m.tag, m.comm, &message, MPI_STATUS_IGNORE));
    MPI_OK(MPI_Imrecv(m.buffer, m.count, m.type, &message, &request));
    MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    errors.check_called(MPI_ERR_TRUNCATE, MPI_SUCCESS, true);
    CHECK(request == MPI_REQUEST_NULL);
  });
}

TEST_CASE("truncation in Irecv and Wait", "[errors]") {
  truncate("Wait", [](const Message& m, ErrorComm& errors) {
    MPI_Request request = start(m);
    MPI_Status status{};
    MPI_FAILS(MPI_Wait(&request, &status), MPI_ERR_TRUNCATE);
    errors.check_called(MPI_ERR_TRUNCATE, MPI_SUCCESS, true);
    check_truncated(status, m);
    CHECK(request == MPI_REQUEST_NULL);
  });
}

TEST_CASE("truncation in Irecv and Test", "[errors]") {
  truncate("Test", [](const Message& m, ErrorComm& errors) {
    MPI_Request request = start(m);
    MPI_Status status{};
    int flag = 0, error = MPI_SUCCESS;
    while (flag == 0 && error == MPI_SUCCESS) error = MPI_Test(&request, &flag, &status);
    MPI_FAILS(error, MPI_ERR_TRUNCATE);
    errors.check_called(MPI_ERR_TRUNCATE, MPI_SUCCESS, true);
    check_truncated(status, m);
    CHECK(request == MPI_REQUEST_NULL);
  });
}

TEST_CASE("truncation in Irecv and Waitany", "[errors]") {
  truncate("Waitany", [](const Message& m, ErrorComm& errors) {
    MPI_Request requests[2] = {MPI_REQUEST_NULL, start(m)};
    MPI_Status status{};
    int index = -1;
    MPI_FAILS(MPI_Waitany(2, requests, &index, &status), MPI_ERR_TRUNCATE);
    errors.check_called(MPI_ERR_TRUNCATE, MPI_SUCCESS, true);
    CHECK(index == 1);
    check_truncated(status, m);
    CHECK(requests[1] == MPI_REQUEST_NULL);
  });
}

TEST_CASE("truncation in Irecv and Testany", "[errors]") {
  truncate("Testany", [](const Message& m, ErrorComm& errors) {
    MPI_Request requests[2] = {MPI_REQUEST_NULL, start(m)};
    MPI_Status status{};
    int index = -1, flag = 0, code = MPI_SUCCESS;
    while (flag == 0 && code == MPI_SUCCESS) code = MPI_Testany(2, requests, &index, &flag, &status);
    MPI_FAILS(code, MPI_ERR_TRUNCATE);
    errors.check_called(MPI_ERR_TRUNCATE, MPI_SUCCESS, true);
    CHECK(index == 1);
    check_truncated(status, m);
    CHECK(requests[1] == MPI_REQUEST_NULL);
  });
}

namespace {

/// Three receives of which the middle one is truncated, completed by `complete(requests, statuses)`.
template <class Complete>
void truncate_one_of_three(const char* name, Complete&& complete) {
  truncate(name, [&](const Message& m, ErrorComm& errors) {
    // The neighbours come from this rank itself, so that the middle one alone is in error.
    const Type type = plain(MPI_INT);
    Buffer first(Place::device, type, 10), last(Place::host, type, 10), out(Place::device, type, 10);
    out.fill(seed());
    MPI_Request requests[5] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL,
                               MPI_REQUEST_NULL};
    MPI_OK(MPI_Irecv(first.address(), 10, type, rank(), 8, m.comm, &requests[0]));
    requests[1] = start(m);
    MPI_OK(MPI_Irecv(last.address(), 10, type, rank(), 9, m.comm, &requests[2]));
    MPI_OK(MPI_Isend(out.address(), 10, type, rank(), 8, m.comm, &requests[3]));
    MPI_OK(MPI_Isend(out.address(), 10, type, rank(), 9, m.comm, &requests[4]));
    MPI_Status statuses[5] = {};
    for (MPI_Status& status : statuses) status.MPI_ERROR = MPI_ERR_OTHER;
    complete(requests, statuses);
    // Open MPI hands the handler the class of the first failed request, and returns MPI_ERR_IN_STATUS.
    errors.check_called(MPI_ERR_IN_STATUS, MPI_ERR_TRUNCATE, true);
    CHECK(error_class(statuses[1].MPI_ERROR) == MPI_ERR_TRUNCATE);
    for (const int i : {0, 2, 3, 4}) {
      const int code = statuses[i].MPI_ERROR;
      CHECK((code == MPI_SUCCESS || code == MPI_ERR_PENDING));
    }
    CHECK(requests[1] == MPI_REQUEST_NULL);
    // Those that were pending have not been completed: they are waited for now.
    MPI_OK(MPI_Waitall(5, requests, MPI_STATUSES_IGNORE));
    first.expect(stream_of(type, 10, seed()));
    last.expect(stream_of(type, 10, seed()));
    CHECK(first.difference() == "");
    CHECK(last.difference() == "");
  });
}

}  // namespace

TEST_CASE("truncation in one of several requests, Waitall", "[errors]") {
  truncate_one_of_three("Waitall", [](MPI_Request* requests, MPI_Status* statuses) {
    MPI_FAILS(MPI_Waitall(5, requests, statuses), MPI_ERR_IN_STATUS);
  });
}

TEST_CASE("truncation in one of several requests, Testall", "[errors]") {
  MPICH5_CANNOT("its MPI_Testall leaves the request that has failed to the next call");
  truncate_one_of_three("Testall", [](MPI_Request* requests, MPI_Status* statuses) {
    int flag = 0, error = MPI_SUCCESS;
    while (flag == 0 && error == MPI_SUCCESS) error = MPI_Testall(5, requests, &flag, statuses);
    MPI_FAILS(error, MPI_ERR_IN_STATUS);
  });
}

namespace {

/// Calls `some(requests, done, indices, statuses)` until the truncated one is among those it has completed.
template <class Some>
void complete_some(MPI_Request* requests, MPI_Status* statuses, Some some) {
  for (int i = 0; i < 5; ++i) statuses[i].MPI_ERROR = MPI_ERR_PENDING;
  int error = MPI_SUCCESS;
  while (error == MPI_SUCCESS) {
    int done = 0, indices[5];
    MPI_Status found[5] = {};
    error = some(requests, &done, indices, found);
    CHECK(done != MPI_UNDEFINED);
    if (done == MPI_UNDEFINED) return;
    for (int i = 0; i < done; ++i) {
      statuses[indices[i]] = found[i];
      if (error == MPI_SUCCESS) statuses[indices[i]].MPI_ERROR = MPI_SUCCESS;
    }
  }
  MPI_FAILS(error, MPI_ERR_IN_STATUS);
}

}  // namespace

TEST_CASE("truncation in one of several requests, Waitsome", "[errors]") {
  truncate_one_of_three("Waitsome", [](MPI_Request* requests, MPI_Status* statuses) {
    complete_some(requests, statuses, [](MPI_Request* all, int* done, int* indices, MPI_Status* found) {
      return MPI_Waitsome(5, all, done, indices, found);
    });
  });
}

TEST_CASE("truncation in one of several requests, Testsome", "[errors]") {
  truncate_one_of_three("Testsome", [](MPI_Request* requests, MPI_Status* statuses) {
    complete_some(requests, statuses, [](MPI_Request* all, int* done, int* indices, MPI_Status* found) {
      return MPI_Testsome(5, all, done, indices, found);
    });
  });
}

TEST_CASE("truncation in Sendrecv_replace", "[errors]") {
  if (!all_have_partners()) return;
  for (const Place place : basic_places) {
    INFO(place_name(place));
    step(place_name(place));
    const Type type = vector(100, 1, 2);  // Open MPI writes longer ones beyond the end of the receive buffer
    ErrorComm errors(true);
    const int room = rank() % 2 == 0 ? 3 : 2;
    Buffer buffer(place, type, room);
    buffer.fill(key_of(rank(), 1));
    const int error =
        MPI_Sendrecv_replace(buffer.address(), room, type, partner(), 1, partner(), 1, errors, MPI_STATUS_IGNORE);
    if (room == 3) {
      MPI_OK(error);
      buffer.expect(stream_of(type, 2, key_of(partner(), 1)));
      CHECK(buffer.difference() == "");
    } else {
      MPI_FAILS(error, MPI_ERR_TRUNCATE);
      errors.check_called(MPI_ERR_TRUNCATE);
      CHECK(buffer.difference_outside() == "");
    }
  }
}

TEST_CASE("truncation in Sendrecv", "[errors]") {
  if (!all_have_partners()) return;
  for (const Place place : basic_places)
    for (const bool own_handler : {false, true}) {
      const std::string text = std::string(place_name(place)) + (own_handler ? ", own handler" : "");
      INFO(text);
      step(text);
      const Type type = vector(500, 1, 2);
      ErrorComm errors(own_handler);
      Buffer out(place, type, 3), in(place, type, 3);
      out.fill(key_of(rank(), 1));
      const int room = rank() % 2 == 0 ? 3 : 2;
      const int error = MPI_Sendrecv(out.address(), 3, type, partner(), 1, in.address(), room, type, partner(), 1,
                                     errors, MPI_STATUS_IGNORE);
      if (room == 3) {
        MPI_OK(error);
        in.expect(stream_of(type, 3, key_of(partner(), 1)));
        CHECK(in.difference() == "");
      } else {
        MPI_FAILS(error, MPI_ERR_TRUNCATE);
        errors.check_called(MPI_ERR_TRUNCATE);
        CHECK(in.difference_outside() == "");
      }
    }
}

TEST_CASE("truncation of a persistent receive, which is then started again", "[errors]") {
  if (!all_have_partners()) return;
  for (const Place place : basic_places) {
    INFO(place_name(place));
    step(place_name(place));
    const Type type = vector(3000, 1, 2);
    ErrorComm errors(true);
    Buffer out(place, type, 3), in(place, type, 2);
    out.fill(key_of(rank(), 1));
    if (rank() % 2 == 0) {
      MPI_OK(MPI_Send(out.address(), 3, type, partner(), 1, errors));
      MPI_OK(MPI_Send(out.address(), 1, type, partner(), 1, errors));
      continue;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Recv_init(in.address(), 2, type, partner(), 1, errors, &request));
    MPI_OK(MPI_Start(&request));
    MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    errors.check_called(MPI_ERR_TRUNCATE, MPI_SUCCESS, true);
    // Open MPI 4.1 frees even a persistent request when it has failed.
    if (request == MPI_REQUEST_NULL) MPI_OK(MPI_Recv_init(in.address(), 2, type, partner(), 1, errors, &request));
    in.poison();
    MPI_OK(MPI_Start(&request));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    Stream stream = stream_of(type, 3, key_of(partner(), 1));
    stream.resize(static_cast<std::size_t>(type.size()));
    in.expect(stream);
    CHECK(in.difference() == "");
    MPI_OK(MPI_Request_free(&request));
  }
}

namespace {

/// The handler of MPI_COMM_WORLD, to which errors without a communicator go, remembers.
class WatchedWorld {
 public:
  WatchedWorld() {
    PMPI_Comm_get_errhandler(MPI_COMM_WORLD, &before_);
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    PMPI_Comm_create_errhandler(remember_call, &handler);
    PMPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    PMPI_Errhandler_free(&handler);
    handler_calls.clear();
  }
  ~WatchedWorld() {
    PMPI_Comm_set_errhandler(MPI_COMM_WORLD, before_);
    PMPI_Errhandler_free(&before_);
    handler_calls.clear();
  }
  WatchedWorld(const WatchedWorld&) = delete;
  WatchedWorld& operator=(const WatchedWorld&) = delete;

  /// Runs a call that must fail with this class, by one call of the handler.
  template <class Call>
  void check(const char* name, int wanted, Call&& call) const {
    INFO(name);
    step(name);
    MPI_FAILS(call(), wanted);
    CHECK(handler_calls.size() == 1);
    for (const HandlerCall& one : handler_calls) CHECK(one.error_class == wanted);
    handler_calls.clear();
  }

 private:
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

}  // namespace

// MPI_MESSAGE_NULL is left out: Open MPI 4.1 ends the program, whatever the handlers are.
TEST_CASE("handles that are null, with buffers of either kind", "[errors]") {
  MPICH5_CANNOT("it goes on with a call when it has told the handler of an error");
  const Type type = vector(10, 1, 2, MPI_INT), long_type = vector(400, 1, 2);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    Buffer buffer(place, type, 2), other(place, type, 2), long_one(place, long_type, 1);
    void* const address = buffer.address();
    const int me = rank();
    MPI_Request request = MPI_REQUEST_NULL;
    int position = 0;
    const WatchedWorld world;
    const auto no_comm = [&](const char* name, auto call) { world.check(name, MPI_ERR_COMM, call); };
    for (const SendMode& mode : send_modes) {
      no_comm(mode.name, [&] { return mode.send({address, 1, type, me, 1, MPI_COMM_NULL}); });
      no_comm(mode.name, [&] { return mode.send({long_one.address(), 1, long_type, me, 1, MPI_COMM_NULL}); });
    }
    no_comm("Recv", [&] { return MPI_Recv(address, 1, type, me, 1, MPI_COMM_NULL, MPI_STATUS_IGNORE); });
    no_comm("Irecv", [&] { return MPI_Irecv(address, 1, type, me, 1, MPI_COMM_NULL, &request); });
    no_comm("Recv_init", [&] { return MPI_Recv_init(address, 1, type, me, 1, MPI_COMM_NULL, &request); });
    no_comm("Sendrecv", [&] {
      return MPI_Sendrecv(address, 1, type, me, 1, other.address(), 1, type, me, 1, MPI_COMM_NULL, MPI_STATUS_IGNORE);
    });
    no_comm("Sendrecv_replace",
            [&] { return MPI_Sendrecv_replace(address, 1, type, me, 1, me, 1, MPI_COMM_NULL, MPI_STATUS_IGNORE); });
    no_comm("Pack", [&] { return MPI_Pack(address, 1, type, other.address(), 80, &position, MPI_COMM_NULL); });
    no_comm("Unpack", [&] { return MPI_Unpack(other.address(), 80, &position, address, 1, type, MPI_COMM_NULL); });
    const auto no_window = [&](const char* name, auto call) { world.check(name, MPI_ERR_WIN, call); };
    no_window("Put", [&] { return MPI_Put(address, 1, type, me, 0, 1, type, MPI_WIN_NULL); });
    no_window("Get", [&] { return MPI_Get(address, 1, type, me, 0, 1, type, MPI_WIN_NULL); });
    no_window("Rput", [&] { return MPI_Rput(address, 1, type, me, 0, 1, type, MPI_WIN_NULL, &request); });
    no_window("Accumulate",
              [&] { return MPI_Accumulate(address, 1, MPI_INT, me, 0, 1, MPI_INT, MPI_SUM, MPI_WIN_NULL); });
    no_window("Get_accumulate", [&] {
      return MPI_Get_accumulate(address, 1, MPI_INT, other.address(), 1, MPI_INT, me, 0, 1, MPI_INT, MPI_SUM,
                                MPI_WIN_NULL);
    });
    no_window("Fetch_and_op",
              [&] { return MPI_Fetch_and_op(address, other.address(), MPI_INT, me, 0, MPI_SUM, MPI_WIN_NULL); });
    CHECK(request == MPI_REQUEST_NULL);
    CHECK(position == 0);
    CHECK(buffer.difference() == "");
    CHECK(other.difference() == "");
  }
  exchange_both_ways({type, 2, Place::device, type, 2, Place::device}, 61);
}

// Open MPI 4.1 delivers nothing more to that peer on that communicator, so that success is tried on another.
TEST_CASE("Bsend without room", "[errors]") {
  const Type type = vector(5000, 1, 2);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    step(place_name(place));
    Buffer out(place, type, 1), in(place, type, 1);
    out.fill(seed());
    {
      ErrorComm errors(true);
      BsendBuffer attached(100);
      MPI_FAILS(MPI_Bsend(out.address(), 1, type, rank(), 1, errors), MPI_ERR_BUFFER);
      errors.check_called(MPI_ERR_BUFFER);
    }
    ErrorComm fresh(true);
    BsendBuffer attached(50000);
    MPI_OK(MPI_Bsend(out.address(), 1, type, rank(), 1, fresh));
    MPI_OK(MPI_Recv(in.address(), 1, type, rank(), 1, fresh, MPI_STATUS_IGNORE));
    in.expect(stream_of(type, 1, seed()));
    CHECK(in.difference() == "");
  }
}

TEST_CASE("errors of one-sided calls go to the window's handler", "[errors]") {
  const Type type = vector(10, 1, 2, MPI_INT);
  std::vector<char> own;
  MPI_Win window = MPI_WIN_NULL;
  make_host_window(400, comm(), own, &window);
  PMPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
  for (const Place place : basic_places) {
    Buffer out(place, type, 1);
    MPI_OK(MPI_Win_lock_all(0, window));
    MPI_FAILS(MPI_Put(out.address(), 1, type, ranks() + 3, 0, 1, type, window), MPI_ERR_RANK);
    MPI_FAILS(MPI_Put(out.address(), -1, type, rank(), 0, 1, type, window), MPI_ERR_COUNT);
    MPI_FAILS(MPI_Put(out.address(), 1, MPI_DATATYPE_NULL, rank(), 0, 1, type, window), MPI_ERR_TYPE);
    MPI_OK(MPI_Win_unlock_all(window));
  }
  PMPI_Barrier(comm());
  MPI_OK(MPI_Win_free(&window));
}
