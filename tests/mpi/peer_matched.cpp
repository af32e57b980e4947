// Rendezvous requests that have been matched, or received, and that nobody has looked at yet: what comes behind them is
// not taken for them, and their senders are told when they are not received.
#include <string>
#include <vector>

#include "interpose/transport/peer/shared_segment.hpp"
#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;
namespace peer = gpudt::interpose::peer;

namespace {

constexpr int tag = 5, other_tag = 6;
constexpr int plain_bytes = static_cast<int>(peer::shortest_rts);  ///< as the RTS before it is
constexpr char device_data = 'd', plain_data = 'p';

/// Of a device message.
int device_bytes() {
  static const auto bytes = static_cast<int>(not_sent_before_received().size());
  return bytes;
}

/// `bytes` bytes, all alike.
Memory filled(Place place, int bytes, char with) {
  Memory memory(place, static_cast<std::size_t>(bytes));
  const std::vector<char> data(memory.bytes(), with);
  memory.write(data.data(), data.size());
  return memory;
}

bool holds(const Memory& memory, int bytes, char wanted) {
  std::vector<char> data(static_cast<std::size_t>(bytes));
  memory.read(data.data(), data.size());
  return data == std::vector<char>(data.size(), wanted);
}

/// A message that is under way.
class Sent {
 public:
  Sent(Place place, int bytes, char data) : memory_(filled(place, bytes, data)) {
    MPI_OK(MPI_Isend(memory_.data(), bytes, MPI_CHAR, partner(), tag, comm(), &request_));
  }
  void wait() { MPI_OK(MPI_Wait(&request_, MPI_STATUS_IGNORE)); }

 private:
  Memory memory_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace

// The host message is as long as the RTS before it, which a receive has that nobody has asked about. There are too
// many others for all of them to be looked at whenever MPI is called.
TEST_CASE("a truncated host message behind a receive that is complete", "[peer]") {
  if (!all_have_partners()) return;
  constexpr int others = 400, room = 1000;
  const Memory rooms(Place::device, std::size_t{others} * room);
  for (const Place place : basic_places)
    for (const bool nonblocking : {true, false})
      for (int turn = 0; turn < 5; ++turn) {
        const std::string what = std::string(nonblocking ? "nonblocking, " : "blocking, ") + place_name(place);
        INFO(what);
        step(what);
        const Memory in(Place::device, static_cast<std::size_t>(device_bytes())), little(place, 40);
        MPI_Request receive = MPI_REQUEST_NULL, truncated = MPI_REQUEST_NULL;
        std::vector<MPI_Request> receives(others, MPI_REQUEST_NULL);
        MPI_OK(MPI_Irecv(in.data(), device_bytes(), MPI_CHAR, partner(), tag, comm(), &receive));
        for (std::size_t i = 0; i < receives.size(); ++i)
          MPI_OK(MPI_Irecv(rooms.data() + room * i, room, MPI_CHAR, partner(), other_tag, comm(), &receives[i]));
        if (nonblocking) MPI_OK(MPI_Irecv(little.data(), 40, MPI_CHAR, partner(), tag, comm(), &truncated));
        lock_step();
        Sent first(Place::device, device_bytes(), device_data), second(Place::host, plain_bytes, plain_data);
        lock_step();
        if (nonblocking)
          MPI_FAILS(MPI_Wait(&truncated, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
        else
          MPI_FAILS(MPI_Recv(little.data(), 40, MPI_CHAR, partner(), tag, comm(), MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
        MPI_OK(MPI_Wait(&receive, MPI_STATUS_IGNORE));
        CHECK(holds(in, device_bytes(), device_data));
        first.wait();
        second.wait();
        for (int i = 0; i < others; ++i) MPI_OK(MPI_Send(&i, 1, MPI_INT, partner(), other_tag, comm()));
        MPI_OK(MPI_Waitall(others, receives.data(), MPI_STATUSES_IGNORE));
      }
}
