// Messages long enough to go to another node in fragments, if the memory that they come from or go to asks for that.
#include <string_view>

#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

/// 7.2 MB, 32 bytes apart: packed in 33 us by the built-in cost model, which is more than least_packing_us.
constexpr int doubles = 900'000, stride = 4;
constexpr int tag = 5;

struct LongTypes {
  const Type gaps = vector(doubles, 1, stride), dense = vector(1, doubles, doubles);
  const Type& operator[](int which) const { return which == 0 ? gaps : dense; }
};

}  // namespace

TEST_CASE("long messages of one layout into another", "[fragments]") {
  const LongTypes types;
  std::size_t next = 0;
  const auto other_mode = [&]() -> const SendMode& {
    while (true) {
      const SendMode& mode = send_modes[next++ % send_modes.size()];
      if (std::string_view(mode.name).find("bsend") == std::string_view::npos && std::string_view(mode.name) != "Bsend")
        return mode;
    }
  };
  const int low = rank() - rank() % 2;
  if (!all_have_partners()) return;
  for (const ReceiveMode& receive : receive_modes)
    for (const auto& [from, to] : {std::pair{Place::device, Place::device}, std::pair{Place::device, Place::host},
                                   std::pair{Place::host, Place::device}})
      for (int which = 0; which < 4; ++which) {
        if (from != to && which / 2 == which % 2) continue;  // of these, what packs on one side alone will do
        const SendMode& mode = other_mode();
        if (mode.needs_posted_receive && !receive.nonblocking) continue;
        exchange(mode, receive, {types[which / 2], 1, from, types[which % 2], 1, to}, low, low + 1, tag);
      }
}

TEST_CASE("long messages from any source, of which the receive has room for more", "[fragments]") {
  if (!all_have_partners()) return;
  const LongTypes types;
  for (int which = 0; which < 4; ++which) {
    const Type &sent = types[which / 2], &received = types[which % 2];
    if (rank() % 2 == 0) {
      Buffer out(Place::device, sent, 1);
      out.fill(key_of(rank(), which));
      MPI_OK(MPI_Send(out.address(), 1, sent, partner(), tag, comm()));
      continue;
    }
    Buffer in(Place::device, received, 2);
    MPI_Status status{};
    MPI_OK(MPI_Recv(in.address(), 2, received, MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &status));
    check_status(status, partner(), tag, received, received.size());
    in.expect(stream_of(sent, 1, key_of(partner(), which)));
    CHECK(in.difference() == "");
  }
}

TEST_CASE("long messages both ways, persistent ones and replaced ones", "[fragments]") {
  if (!all_have_partners()) return;
  const LongTypes types;
  for (int which = 0; which < 2; ++which) {
    const Type& type = types[which];
    Buffer out(Place::device, type, 1), in(Place::device, types[1 - which], 1);
    MPI_Request requests[2];
    MPI_OK(MPI_Recv_init(in.address(), 1, types[1 - which], partner(), tag, comm(), &requests[0]));
    MPI_OK(MPI_Send_init(out.address(), 1, type, partner(), tag, comm(), &requests[1]));
    for (int turn = 0; turn < 3; ++turn) {
      out.fill(key_of(rank(), turn));
      MPI_OK(MPI_Startall(2, requests));
      MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
      in.expect(stream_of(type, 1, key_of(partner(), turn)));
      CHECK(in.difference() == "");
    }
    for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
    Buffer both(Place::device, type, 1);
    both.fill(key_of(rank(), 7));
    MPI_OK(MPI_Sendrecv_replace(both.address(), 1, type, partner(), tag, partner(), tag, comm(), MPI_STATUS_IGNORE));
    both.expect(stream_of(type, 1, key_of(partner(), 7)));
    CHECK(both.difference() == "");
  }
}

TEST_CASE("senders of long noncontiguous messages go on when the receive is truncated", "[fragments]") {
  if (!all_have_partners()) return;
  const LongTypes types;
  const Type short_type = vector(100, 1, 2);
  Buffer out(Place::device, types.gaps, 1), next(Place::device, short_type, 1);
  out.fill(key_of(rank(), 0));
  next.fill(key_of(rank(), 1));
  for (int turn = 0; turn < 3; ++turn)  // the first ones to a process do not go in fragments yet
    exchange_both_ways({types.gaps, 1, Place::device, types.gaps, 1, Place::device}, tag);
  for (const bool nonblocking : {false, true})
    for (const int room : {300'000, 125, 4})  // doubles: longer than every RTS, likewise, shorter than any
      for (const Type& type : {vector(room, 1, 2), vector(1, room, room)}) {
        INFO(room << " doubles, " << nonblocking);
        const ErrorComm errors(/*own_handler=*/false);
        if (rank() % 2 == 0) {
          MPI_OK(MPI_Send(out.address(), 1, types.gaps, partner(), tag, errors));
          MPI_OK(MPI_Send(next.address(), 1, short_type, partner(), tag, errors));
          continue;
        }
        Buffer in(Place::device, type, 1), right(Place::device, short_type, 1);
        if (nonblocking) {
          MPI_Request request = MPI_REQUEST_NULL;
          MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), tag, errors, &request));
          MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
        } else {
          MPI_FAILS(MPI_Recv(in.address(), 1, type, partner(), tag, errors, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
        }
        CHECK(in.difference_outside() == "");
        MPI_OK(MPI_Recv(right.address(), 1, short_type, partner(), tag, errors, MPI_STATUS_IGNORE));
        right.expect(stream_of(short_type, 1, key_of(partner(), 1)));
        CHECK(right.difference() == "");
      }
}

TEST_CASE("messages as long as an RTS, to receives that are longer", "[fragments]") {
  if (!all_have_partners()) return;
  for (const int bytes : {515, 517, 769})
    for (const int blocks : {1, 2}) {  // contiguous, or with a gap
      INFO(bytes << " bytes, " << blocks);
      const Type sent = vector(1, bytes, bytes, MPI_CHAR);
      const Type received = vector(blocks, 4000 / blocks, 5000, MPI_CHAR);
      Buffer out(Place::device, sent, 1), in(Place::device, received, 1);
      out.fill(key_of(rank(), bytes));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Status status{};
      MPI_OK(MPI_Irecv(in.address(), 1, received, partner(), tag, comm(), &request));
      MPI_OK(MPI_Send(out.address(), 1, sent, partner(), tag, comm()));
      MPI_OK(MPI_Wait(&request, &status));
      check_status(status, partner(), tag, received, bytes);
      in.expect(stream_of(sent, 1, key_of(partner(), bytes)));
      CHECK(in.difference() == "");
    }
}
