// Rendezvous requests that have been matched, or received, and that nobody has looked at yet: what comes behind them is
// not taken for them, and their senders are told when they are not received.
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "interpose/shared/shared_segment.hpp"
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

/// By MPI_Mprobe or MPI_Improbe.
MPI_Message matched(bool blocking, MPI_Status* status) {
  MPI_Message message = MPI_MESSAGE_NULL;
  if (blocking) MPI_OK(MPI_Mprobe(partner(), tag, comm(), &message, status));
  for (int found = blocking ? 1 : 0; found == 0;)
    MPI_OK(MPI_Improbe(MPI_ANY_SOURCE, tag, comm(), &found, &message, status));
  return message;
}

/// The next message is the plain one.
void expect_plain() {
  MPI_Status status{};
  MPI_OK(MPI_Probe(partner(), tag, comm(), &status));
  CHECK(bytes_in(status) == plain_bytes);
  const Memory in(Place::host, plain_bytes);
  MPI_OK(MPI_Recv(in.data(), plain_bytes, MPI_CHAR, partner(), tag, comm(), &status));
  CHECK(bytes_in(status) == plain_bytes);
  CHECK(holds(in, plain_bytes, plain_data));
}

}  // namespace

TEST_CASE("a message matched without a status is not taken for the next", "[peer]") {
  if (!all_have_partners()) return;
  for (const bool blocking : {true, false}) {
    Sent first(Place::device, device_bytes(), device_data), second(Place::host, plain_bytes, plain_data);
    MPI_Message message = matched(blocking, MPI_STATUS_IGNORE);
    expect_plain();
    const Memory in(Place::device, static_cast<std::size_t>(device_bytes()));
    MPI_OK(MPI_Mrecv(in.data(), device_bytes(), MPI_CHAR, &message, MPI_STATUS_IGNORE));
    CHECK(holds(in, device_bytes(), device_data));
    first.wait();
    second.wait();
  }
}

TEST_CASE("a matched device message that is too long for its receive releases its sender", "[peer]") {
  if (!all_have_partners()) return;
  for (const bool blocking : {true, false})
    for (const Place place : basic_places)
      for (const int room : {40, 513, 800}) {
        const std::string what = std::string(blocking ? "Mprobe" : "Improbe") + ", room for " + std::to_string(room) +
                                 " bytes of " + place_name(place);
        INFO(what);
        step(what);
        Sent first(Place::device, device_bytes(), device_data), second(Place::host, plain_bytes, plain_data);
        MPI_Status status{};
        MPI_Message message = matched(blocking, &status);
        CHECK(bytes_in(status) == device_bytes());
        const Memory in(place, static_cast<std::size_t>(room));
        if (blocking) {
          MPI_FAILS(MPI_Mrecv(in.data(), room, MPI_CHAR, &message, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
        } else {
          MPI_Request request = MPI_REQUEST_NULL;
          MPI_OK(MPI_Imrecv(in.data(), room, MPI_CHAR, &message, &request));
          MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
        }
        first.wait();
        expect_plain();
        second.wait();
      }
}

TEST_CASE("a device message to oneself that is too long for a receive posted before releases its sender", "[peer]") {
  // MPI would write all of a message that is not offered to where the receive is.
  const char* const protocol = std::getenv("GPUDT_PROTOCOL");
  if (protocol != nullptr && std::string(protocol) == "staging") return;
  constexpr int bytes = 5000;
  for (const Place place : basic_places)
    for (const int room : {16, 400, 600})
      for (const bool nonblocking : {true, false}) {
        if (place == Place::host && !nonblocking) continue;  // short ones are looked at by the Wait that follows
        INFO("room for " << room << " bytes of " << place_name(place) << (nonblocking ? ", Isend" : ", Send"));
        const Memory out = filled(Place::device, bytes, device_data);
        const Memory in(place, bytes);
        MPI_Request send = MPI_REQUEST_NULL, receive = MPI_REQUEST_NULL;
        MPI_OK(MPI_Irecv(in.data(), room, MPI_CHAR, rank(), tag, comm(), &receive));
        if (nonblocking)
          MPI_OK(MPI_Isend(out.data(), bytes, MPI_CHAR, rank(), tag, comm(), &send));
        else
          MPI_OK(MPI_Send(out.data(), bytes, MPI_CHAR, rank(), tag, comm()));
        MPI_FAILS(MPI_Wait(&receive, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
        MPI_OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
      }
}

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

namespace {

/// What two threads do with the two messages; false if a probe told a wrong size.
enum class Takes { mprobe, improbe, recv, irecv };

bool take_one(Takes how) {
  std::vector<char> in(static_cast<std::size_t>(device_bytes()));
  int probed = 0, received = 0, found = 0;
  MPI_Status status{};
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  if (how == Takes::mprobe) MPI_Mprobe(partner(), tag, comm(), &message, &status);
  while (how == Takes::improbe && found == 0) MPI_Improbe(partner(), MPI_ANY_TAG, comm(), &found, &message, &status);
  PMPI_Get_count(&status, MPI_CHAR, &probed);
  if (how == Takes::irecv) {
    MPI_Irecv(in.data(), device_bytes(), MPI_CHAR, MPI_ANY_SOURCE, tag, comm(), &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return true;
  }
  if (message == MPI_MESSAGE_NULL)
    MPI_Recv(in.data(), device_bytes(), MPI_CHAR, partner(), tag, comm(), &status);
  else
    MPI_Mrecv(in.data(), device_bytes(), MPI_CHAR, &message, &status);
  PMPI_Get_count(&status, MPI_CHAR, &received);
  return how == Takes::recv || probed == received;
}

}  // namespace

TEST_CASE("one thread probes a host message behind a device message that another one takes", "[.][threads]") {
  if (!all_have_partners()) return;
  const int gpu = current_gpu();
  for (const auto& [first_takes, second_takes] : {std::pair{Takes::mprobe, Takes::improbe},
                                                  {Takes::improbe, Takes::improbe},
                                                  {Takes::recv, Takes::mprobe},
                                                  {Takes::recv, Takes::improbe},
                                                  {Takes::irecv, Takes::improbe}}) {
    int wrong = 0;
    for (int turn = 0; turn < scaled(500); ++turn) {
      if ((rank() + turn) % 2 == 0) {
        Sent first(Place::device, device_bytes(), device_data), second(Place::host, plain_bytes, plain_data);
        first.wait();
        second.wait();
      } else {
        bool right = true;
        std::thread other([&, takes = second_takes] {
          use_gpu(gpu);
          right = take_one(takes);
        });
        if (!take_one(first_takes)) ++wrong;
        other.join();
        if (!right) ++wrong;
      }
      lock_step();
    }
    INFO("ways " << static_cast<int>(first_takes) << ", " << static_cast<int>(second_takes));
    CHECK(wrong == 0);
  }
}

// An RTS ends within an element of these types.
TEST_CASE("messages from a GPU come to pending receives of elements in host memory", "[peer]") {
  if (!all_have_partners()) return;
  for (MPI_Datatype basic : {MPI_INT, MPI_DOUBLE, MPI_LONG_DOUBLE, MPI_C_DOUBLE_COMPLEX})
    for (const int count : {60, 300, 2000, 40000}) {
      const Type type = plain(basic);
      step(type.text() + ", " + std::to_string(count));
      Buffer out(Place::device, type, count), in(Place::host, type, count);
      out.fill(key_of(rank(), count));
      in.poison();
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Irecv(in.address(), count, type, partner(), 7, comm(), &request));
      lock_step();
      MPI_OK(MPI_Send(out.address(), count, type, partner(), 7, comm()));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      in.expect(stream_of(type, count, key_of(partner(), count)));
      CHECK(in.difference() == "");
    }
}
