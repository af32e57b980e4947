// What a program may let go of while an operation is under way: requests, datatypes, communicators; and cancelling.
#include <algorithm>
#include <optional>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int nobody_sends = 99;  ///< a tag

int cancelled(const MPI_Status& status) {
  int flag = -1;
  MPI_OK(MPI_Test_cancelled(&status, &flag));
  return flag;
}

template <class Do>
void for_each_mix(Do&& run) {
  for (const int blocks : {40, 40000})
    for (const Place send : basic_places)
      for (const Place receive : basic_places) {
        const std::string text = std::to_string(blocks) + " blocks, " + place_name(send) + " to " + place_name(receive);
        INFO(text);
        step(text);
        run(blocks, send, receive);
      }
}

}  // namespace

TEST_CASE("a cancelled receive", "[lifetime]") {
  if (!all_have_partners()) return;
  const Type type = vector(200, 1, 2);
  for (const Place place : basic_places)
    for (const bool by_test : {false, true}) {
      INFO(place_name(place));
      step(place_name(place));
      Buffer dropped(place, type, 1), in(place, type, 1), out(place, type, 1);
      out.fill(key_of(rank(), 1));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Status status{};
      MPI_OK(MPI_Irecv(dropped.address(), 1, type, partner(), 3, comm(), &request));
      MPI_OK(MPI_Cancel(&request));
      if (by_test)
        for (int flag = 0; flag == 0;) MPI_OK(MPI_Test(&request, &flag, &status));
      else
        MPI_OK(MPI_Wait(&request, &status));
      CHECK(request == MPI_REQUEST_NULL);
      CHECK(cancelled(status) == 1);
      lock_step();
      // The message that comes later belongs to another receive.
      MPI_OK(MPI_Sendrecv(out.address(), 1, type, partner(), 3, in.address(), 1, type, partner(), 3, comm(), &status));
      CHECK(cancelled(status) == 0);
      in.expect(stream_of(type, 1, key_of(partner(), 1)));
      CHECK(in.difference() == "");
      CHECK(dropped.difference() == "");
      lock_step();
    }
}

TEST_CASE("one cancelled receive among others", "[lifetime]") {
  if (!all_have_partners()) return;
  const Type type = vector(2000, 1, 2);
  std::vector<Buffer> in, out;
  MPI_Request requests[6];
  for (int i = 0; i < 3; ++i) {
    in.emplace_back(Place::device, type, 1);
    out.emplace_back(Place::device, type, 1);
    out.back().fill(key_of(rank(), i));
  }
  for (std::size_t i = 0; i < 3; ++i)
    MPI_OK(MPI_Irecv(in[i].address(), 1, type, partner(), i == 1 ? nobody_sends : static_cast<int>(i), comm(),
                     &requests[i]));
  MPI_OK(MPI_Cancel(&requests[1]));
  for (std::size_t i = 0; i < 3; ++i)
    MPI_OK(MPI_Isend(out[i].address(), 1, type, i == 1 ? MPI_PROC_NULL : partner(), static_cast<int>(i), comm(),
                     &requests[3 + i]));
  MPI_Status statuses[6];
  MPI_OK(MPI_Waitall(6, requests, statuses));
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(cancelled(statuses[i]) == (i == 1 ? 1 : 0));
    if (i != 1) in[i].expect(stream_of(type, 1, key_of(partner(), static_cast<int>(i))));
    CHECK(in[i].difference() == "");
  }
}

TEST_CASE("a cancelled persistent receive is started again", "[lifetime]") {
  if (!all_have_partners()) return;
  const Type type = vector(200, 1, 2);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    Buffer in(place, type, 1), out(place, type, 1);
    out.fill(key_of(rank(), 1));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status{};
    MPI_OK(MPI_Recv_init(in.address(), 1, type, partner(), 3, comm(), &request));
    MPI_OK(MPI_Start(&request));
    MPI_OK(MPI_Cancel(&request));
    MPI_OK(MPI_Wait(&request, &status));
    CHECK(cancelled(status) == 1);
    lock_step();
    MPI_OK(MPI_Start(&request));
    MPI_OK(MPI_Send(out.address(), 1, type, partner(), 3, comm()));
    MPI_OK(MPI_Wait(&request, &status));
    CHECK(cancelled(status) == 0);
    in.expect(stream_of(type, 1, key_of(partner(), 1)));
    CHECK(in.difference() == "");
    MPI_OK(MPI_Request_free(&request));
    lock_step();
  }
}

TEST_CASE("cancelling too late changes nothing", "[lifetime]") {
  if (!all_have_partners()) return;
  for_each_mix([](int blocks, Place send, Place receive) {
    const Type type = vector(blocks, 1, 2);
    Buffer in(receive, type, 1), out(send, type, 1);
    out.fill(key_of(rank(), 1));
    MPI_Request requests[2];
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 3, comm(), &requests[0]));
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 3, comm(), &requests[1]));
    int arrived = 0;
    while (arrived == 0) MPI_OK(MPI_Request_get_status(requests[0], &arrived, MPI_STATUS_IGNORE));
    MPI_Status status{};
    MPI_OK(MPI_Cancel(&requests[0]));
    MPI_OK(MPI_Wait(&requests[0], &status));
    CHECK(cancelled(status) == 0);
    check_status(status, partner(), 3, type, type.size());
    MPI_OK(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
    in.expect(stream_of(type, 1, key_of(partner(), 1)));
    CHECK(in.difference() == "");
  });
}

// A library need not be able to cancel sends; then the message must arrive.
TEST_CASE("a cancelled send either arrives or not", "[lifetime]") {
  if (!all_have_partners()) return;
  const Type type = vector(20000, 1, 2);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    step(place_name(place));
    Buffer in(place, type, 1), out(place, type, 1);
    out.fill(key_of(rank(), 1));
    MPI_Request send = MPI_REQUEST_NULL, receive = MPI_REQUEST_NULL;
    MPI_Status status{};
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 3, comm(), &send));
    MPI_OK(MPI_Cancel(&send));
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 3, comm(), &receive));
    MPI_OK(MPI_Wait(&send, &status));
    int gone = cancelled(status), theirs = 0;
    PMPI_Sendrecv(&gone, 1, MPI_INT, partner(), 4, &theirs, 1, MPI_INT, partner(), 4, comm(), MPI_STATUS_IGNORE);
    if (theirs != 0) MPI_OK(MPI_Cancel(&receive));
    MPI_OK(MPI_Wait(&receive, &status));
    CHECK(cancelled(status) == theirs);
    if (theirs == 0) in.expect(stream_of(type, 1, key_of(partner(), 1)));
    CHECK(in.difference() == "");
  }
}

TEST_CASE("requests freed before completion still do their work", "[lifetime]") {
  if (!all_have_partners()) return;
  for_each_mix([](int blocks, Place send, Place receive) {
    const Type type = vector(blocks, 1, 2);
    Buffer in(receive, type, 1), out(send, type, 1);
    out.fill(key_of(rank(), 1));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 3, comm(), &request));
    MPI_OK(MPI_Request_free(&request));
    CHECK(request == MPI_REQUEST_NULL);
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 3, comm(), &request));
    MPI_OK(MPI_Request_free(&request));
    CHECK(request == MPI_REQUEST_NULL);
    in.expect(stream_of(type, 1, key_of(partner(), 1)));
    CHECK(eventually([&] { return in.difference().empty(); }));
    CHECK(in.difference() == "");
    lock_step();
  });
}

TEST_CASE("a datatype is freed while messages of it are under way", "[lifetime]") {
  if (!all_have_partners()) return;
  for (const int layout : {1, 3, 4, 6, 10})
    for_each_mix([layout](int blocks, Place send, Place receive) {
      const Type lasting = named_layout(layout, blocks * 8);
      std::optional<Type> freed;
      freed.emplace(named_layout(layout, blocks * 8));
      Buffer in(receive, lasting, 1), out(send, lasting, 1);
      out.fill(key_of(rank(), 1));
      MPI_Request requests[4];
      MPI_OK(MPI_Irecv(in.address(), 1, *freed, partner(), 3, comm(), &requests[0]));
      MPI_OK(MPI_Isend(out.address(), 1, *freed, partner(), 3, comm(), &requests[1]));
      freed->free();
      freed.reset();
      MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
      in.expect(stream_of(lasting, 1, key_of(partner(), 1)));
      CHECK(in.difference() == "");
      // Persistent requests keep their type too, and so do types built on it.
      in.poison();
      freed.emplace(named_layout(layout, blocks * 8));
      MPI_OK(MPI_Recv_init(in.address(), 1, *freed, partner(), 4, comm(), &requests[2]));
      MPI_OK(MPI_Send_init(out.address(), 1, *freed, partner(), 4, comm(), &requests[3]));
      freed.reset();
      for (int round = 0; round < 2; ++round) {
        MPI_OK(MPI_Startall(2, requests + 2));
        MPI_OK(MPI_Waitall(2, requests + 2, MPI_STATUSES_IGNORE));
      }
      in.expect(stream_of(lasting, 1, key_of(partner(), 1)));
      CHECK(in.difference() == "");
      MPI_OK(MPI_Request_free(&requests[2]));
      MPI_OK(MPI_Request_free(&requests[3]));
    });
}

TEST_CASE("datatype handles come back with other layouts", "[lifetime]") {
  if (!all_have_partners()) return;
  for (int i = 0; i < 50; ++i) {  // a library that remembers handles after MPI_Type_free mistakes one for another
    const Type type = vector(20 + i, 1 + i % 3, 4 + i % 2, i % 2 == 0 ? MPI_INT : MPI_DOUBLE);
    exchange_both_ways({type, 1, Place::device, type, 1, Place::device}, 10);
  }
}

TEST_CASE("a communicator is freed while messages on it are under way", "[lifetime]") {
  if (!all_have_partners()) return;
  for_each_mix([](int blocks, Place send, Place receive) {
    const Type type = vector(blocks, 1, 2);
    MPI_Comm other = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_dup(comm(), &other));
    Buffer in(receive, type, 1), out(send, type, 1);
    out.fill(key_of(rank(), 1));
    MPI_Request requests[2];
    MPI_Status statuses[2];
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 3, other, &requests[0]));
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 3, other, &requests[1]));
    MPI_OK(MPI_Comm_free(&other));
    MPI_OK(MPI_Waitall(2, requests, statuses));
    check_status(statuses[0], partner(), 3, type, type.size());
    in.expect(stream_of(type, 1, key_of(partner(), 1)));
    CHECK(in.difference() == "");
  });
}

TEST_CASE("the send buffer is the program's again when the send is complete", "[lifetime]") {
  if (!all_have_partners()) return;
  BsendBuffer attached(8 << 20);
  for (const int blocks : {40, 400, 40000})
    for (const SendMode& mode : send_modes) {
      if (mode.needs_posted_receive) continue;
      INFO(mode.name << ", " << blocks << " blocks");
      step(mode.name);
      const Type type = vector(blocks, 1, 2);
      Buffer in(Place::device, type, 1), out(Place::device, type, 1);
      out.fill(key_of(rank(), 1));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 3, comm(), &request));
      MPI_OK(mode.send({out.address(), 1, type, partner(), 3, comm()}));
      out.poison();
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      in.expect(stream_of(type, 1, key_of(partner(), 1)));
      CHECK(in.difference() == "");
    }
}
