// Messages long enough to go to another node in fragments, if the memory that they come from or go to asks for that.
#include <string_view>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int doubles = 600'000;  // 4.8 MB
constexpr int tag = 5;

std::uint64_t key_of(int from, int number) {
  return mix(seed(), static_cast<std::uint64_t>(from) * 1000 + static_cast<std::uint64_t>(number));
}

struct LongTypes {
  const Type gaps = vector(doubles, 1, 2), dense = vector(1, doubles, doubles);
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
