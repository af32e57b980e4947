// What comes by peer transfer is told from what comes as it is, by probes and by receives, whatever the program sends:
// host messages as long as RTS messages, on several communicators, with one tag, many at a time.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "interpose/shared/shared_segment.hpp"
#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;
namespace peer = gpudt::interpose::peer;

namespace {

constexpr int identity_tag = 3;

/// Duplicates of comm().
class Duplicates {
 public:
  explicit Duplicates(int count) : comms_(static_cast<std::size_t>(count)) {
    for (MPI_Comm& each : comms_) MPI_Comm_dup(comm(), &each);
  }
  ~Duplicates() {
    for (MPI_Comm& each : comms_) MPI_Comm_free(&each);
  }
  Duplicates(const Duplicates&) = delete;
  Duplicates& operator=(const Duplicates&) = delete;
  MPI_Comm operator[](std::size_t i) const { return comms_[i]; }
  std::size_t size() const { return comms_.size(); }

 private:
  std::vector<MPI_Comm> comms_;
};

/// Bytes that depend on who sends them and on the message's number.
std::vector<char> bytes_of(int from, int number, std::size_t size) {
  std::vector<char> bytes(size);
  std::uint64_t state = mix(seed(), static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint64_t>(number));
  for (char& byte : bytes) byte = static_cast<char>((state = mix(state, 1)) & 0xff);
  return bytes;
}

/// Bytes in some memory.
struct Bytes {
  Bytes(Place place, std::size_t size) : memory(place, size) {}
  Bytes(Place place, const std::vector<char>& bytes) : memory(place, bytes.size()) {
    memory.write(bytes.data(), bytes.size());
  }
  std::vector<char> read() const {
    std::vector<char> bytes(memory.bytes());
    memory.read(bytes.data(), bytes.size());
    return bytes;
  }
  int count() const { return static_cast<int>(memory.bytes()); }
  Memory memory;
};

/// Ways to look at a message before it is received; returns its size. The matched ones give it to `message`.
enum class Probing { probe, iprobe, mprobe, improbe };
constexpr Probing probings[] = {Probing::probe, Probing::iprobe, Probing::mprobe, Probing::improbe};

int probed_size(Probing how, MPI_Comm on, MPI_Message& message) {
  MPI_Status status{};
  int flag = 0;
  message = MPI_MESSAGE_NULL;
  if (how == Probing::probe) MPI_OK(MPI_Probe(partner(), identity_tag, on, &status));
  if (how == Probing::mprobe) MPI_OK(MPI_Mprobe(MPI_ANY_SOURCE, identity_tag, on, &message, &status));
  while (how == Probing::iprobe && flag == 0) MPI_OK(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, on, &flag, &status));
  while (how == Probing::improbe && flag == 0)
    MPI_OK(MPI_Improbe(partner(), MPI_ANY_TAG, on, &flag, &message, &status));
  return bytes_in(status);
}

/// Probes and receives the next message from the partner, which must be this one.
void expect_next(Probing how, MPI_Comm on, Place place, const std::vector<char>& wanted) {
  MPI_Message message = MPI_MESSAGE_NULL;
  const int size = probed_size(how, on, message);
  CHECK(size == static_cast<int>(wanted.size()));
  Bytes in(place, static_cast<std::size_t>(std::max(size, 1)));
  MPI_Status status{};
  if (message == MPI_MESSAGE_NULL)
    MPI_OK(MPI_Recv(in.memory.data(), size, MPI_CHAR, partner(), identity_tag, on, &status));
  else
    MPI_OK(MPI_Mrecv(in.memory.data(), size, MPI_CHAR, &message, &status));
  CHECK(bytes_in(status) == static_cast<int>(wanted.size()));
  CHECK((in.read() == wanted));
}

/// Messages that this rank has under way.
class Sends {
 public:
  ~Sends() {
    for (MPI_Request& request : persistent_) MPI_OK(MPI_Request_free(&request));
  }
  void send(Place place, const std::vector<char>& bytes, MPI_Comm on) {
    const Bytes& out = out_.emplace_back(place, bytes);
    MPI_OK(MPI_Isend(out.memory.data(), out.count(), MPI_CHAR, partner(), identity_tag, on, &add()));
  }
  void send_past_library(const std::vector<char>& bytes, MPI_Comm on) {
    const Bytes& out = out_.emplace_back(Place::host, bytes);
    MPI_OK(PMPI_Isend(out.memory.data(), out.count(), MPI_CHAR, partner(), identity_tag, on, &add()));
  }
  void send_buffered(Place place, const std::vector<char>& bytes, MPI_Comm on) {
    const Bytes& out = out_.emplace_back(place, bytes);
    MPI_OK(MPI_Bsend(out.memory.data(), out.count(), MPI_CHAR, partner(), identity_tag, on));
  }
  using Init = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);
  void start(Init init, Place place, const std::vector<char>& bytes, MPI_Comm on) {
    const Bytes& out = out_.emplace_back(place, bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(init(out.memory.data(), out.count(), MPI_CHAR, partner(), identity_tag, on, &request));
    MPI_OK(MPI_Start(&request));
    persistent_.push_back(request);
  }
  void wait() {
    MPI_OK(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE));
    requests_.clear();
    MPI_OK(MPI_Waitall(static_cast<int>(persistent_.size()), persistent_.data(), MPI_STATUSES_IGNORE));
  }

 private:
  MPI_Request& add() { return requests_.emplace_back(MPI_REQUEST_NULL); }
  std::deque<Bytes> out_;
  std::vector<MPI_Request> requests_, persistent_;
};

}  // namespace

TEST_CASE("probes tell the sizes of host messages of two odd lengths", "[peer]") {
  if (!all_have_partners()) return;
  constexpr int messages = 600, in_flight = 200;
  for (const Probing how : probings) {
    Sends sends;
    const auto size = [](int i) { return static_cast<std::size_t>(i * i % 7 < 3 ? 515 : 517); };
    for (int i = 0; i < messages + in_flight; ++i) {
      if (i < messages) sends.send(Place::host, bytes_of(rank(), i, size(i)), comm());
      if (i < in_flight) continue;
      const int next = i - in_flight;
      expect_next(how, comm(), Place::host, bytes_of(partner(), next, size(next)));
    }
    sends.wait();
  }
}

TEST_CASE("probes tell the sizes of host messages of persistent and buffered sends", "[peer]") {
  if (!all_have_partners()) return;
  constexpr int messages = peer::rts_lengths;
  const BsendBuffer attached(2 * messages * 1000);
  const auto size = [](int i) {  // every length of an RTS, twice, between device messages
    return static_cast<std::size_t>(i % 3 == 2 ? 1500 + i : peer::rts_bytes((i * 37) % peer::rts_lengths));
  };
  for (const auto& [name, init] : {std::pair<const char*, Sends::Init>{"MPI_Send_init", MPI_Send_init},
                                   {"MPI_Bsend_init", MPI_Bsend_init},
                                   {"MPI_Ssend_init", MPI_Ssend_init}})
    for (const Probing how : probings) {
      INFO(name);
      Sends sends;
      for (int i = 0; i < messages; ++i) {
        const std::vector<char> bytes = bytes_of(rank(), i, size(i));
        if (i % 3 == 0)
          sends.start(init, Place::host, bytes, comm());
        else if (i % 3 == 1)
          sends.send_buffered(Place::host, bytes, comm());
        else
          sends.send(Place::device, bytes, comm());
      }
      for (int i = 0; i < messages; ++i) expect_next(how, comm(), basic_places[i % 2], bytes_of(partner(), i, size(i)));
      sends.wait();
    }
}

TEST_CASE("device messages among host messages as long as RTS messages, on several communicators", "[peer]") {
  if (!all_have_partners()) return;
  const Duplicates comms(4);
  std::mt19937_64 random = random_numbers("identity");
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  struct Planned {
    Place place;
    std::size_t size;
    int way;
  };
  for (int turn = 0; turn < scaled(6); ++turn) {
    const BsendBuffer attached(1 << 19);
    step("turn " + std::to_string(turn));
    std::vector<std::vector<Planned>> plans(comms.size());  // the same on both sides
    Sends sends;
    // Few lengths in some turns, so that they meet; the messages that wait are more than can be offered.
    const std::size_t lengths = turn % 2 == 0 ? 3 : peer::rts_lengths;
    for (int i = 0; i < 500; ++i) {
      const std::size_t on = below(comms.size());
      Planned planned{below(3) == 0 ? Place::device : Place::host,
                      static_cast<std::size_t>(peer::rts_bytes(static_cast<int>(below(lengths)))),
                      static_cast<int>(below(12))};
      if (planned.place == Place::device && below(5) != 0) planned.size = 770 + below(5000);
      const auto number = static_cast<int>(on * 1000 + plans[on].size());
      plans[on].push_back(planned);
      const std::vector<char> bytes = bytes_of(rank(), number, planned.size);
      if (planned.way == 0)
        sends.send_buffered(planned.place, bytes, comms[on]);
      else if (planned.way == 1)
        sends.start(MPI_Send_init, planned.place, bytes, comms[on]);
      else
        sends.send(planned.place, bytes, comms[on]);
    }
    std::vector<std::size_t> next(comms.size(), 0);
    for (int i = 0; i < 500; ++i) {
      std::size_t on = below(comms.size());
      while (next[on] == plans[on].size()) on = (on + 1) % comms.size();
      const std::size_t at = next[on]++;
      const Probing how = probings[below(4)];
      const Place place = basic_places[below(2)];
      const std::vector<char> wanted = bytes_of(partner(), static_cast<int>(on * 1000 + at), plans[on][at].size);
      expect_next(how, comms[on], place, wanted);
    }
    sends.wait();
  }
}

TEST_CASE("host messages of all odd lengths after device messages that have been sent", "[peer]") {
  if (!all_have_partners() || any_host_only()) return;
  for (const Probing how : probings) {
    const std::vector<char> first = bytes_of(rank(), 0, 2000), second = bytes_of(rank(), 1, 3000);
    Sends sends;
    for (const std::vector<char>& bytes : {first, second}) {
      const Bytes out(Place::device, bytes);
      MPI_OK(
          MPI_Send(out.memory.data(), out.count(), MPI_CHAR, partner(), identity_tag, comm()));  // before any receive
    }
    const auto odd = [](int from, int index) {
      return bytes_of(from, 10 + index, static_cast<std::size_t>(peer::rts_bytes(index)));
    };
    for (int index = 0; index < peer::rts_lengths; ++index) sends.send(Place::host, odd(rank(), index), comm());
    expect_next(how, comm(), Place::device, bytes_of(partner(), 0, 2000));
    expect_next(how, comm(), Place::host, bytes_of(partner(), 1, 3000));
    for (int index = 0; index < peer::rts_lengths; ++index)
      expect_next(how, comm(), Place::host, odd(partner(), index));
    sends.wait();
  }
}

// As long as nobody has received the host messages, no RTS can be told from them by its length.
TEST_CASE("device messages after host messages of all the lengths that RTS messages have", "[peer]") {
  if (!all_have_partners()) return;
  for (const Probing how : probings) {
    Sends sends;
    std::vector<std::size_t> sizes;
    for (int index = 0; index < peer::rts_lengths; ++index)
      sizes.push_back(static_cast<std::size_t>(peer::rts_bytes(index)));
    for (int i = 0; i < 20; ++i) sizes.push_back(2000 + static_cast<std::size_t>(i));
    for (std::size_t i = 0; i < sizes.size(); ++i)
      sends.send(sizes[i] < 2000 ? Place::host : Place::device, bytes_of(rank(), static_cast<int>(i), sizes[i]),
                 comm());
    for (std::size_t i = 0; i < sizes.size(); ++i)
      expect_next(how, comm(), Place::device, bytes_of(partner(), static_cast<int>(i), sizes[i]));
    sends.wait();
  }
}

// The host message is as long as the RTS before it, which a receive has that nobody has asked about. There are too
// many others for all of them to be looked at whenever MPI is called.
TEST_CASE("a probe behind a receive that is complete", "[peer]") {
  if (!all_have_partners()) return;
  constexpr int others = 400, other_tag = 4;
  for (const bool even_sends : {true, false}) {
    const bool sending = (rank() % 2 == 0) == even_sends;
    Sends sends;
    constexpr std::size_t room = 1000;
    const Memory rooms(Place::device, others * room);
    std::vector<MPI_Request> receives(others, MPI_REQUEST_NULL);
    for (int i = 0; i < others && !sending; ++i)
      MPI_OK(MPI_Irecv(rooms.data() + static_cast<std::size_t>(i) * room, room, MPI_CHAR, partner(), other_tag, comm(),
                       &receives[static_cast<std::size_t>(i)]));
    for (int turn = 0; turn < 10; ++turn) {
      const auto first = [&](int from) { return bytes_of(from, turn, 5000); };
      const auto second = [&](int from) { return bytes_of(from, turn + 1000, peer::shortest_rts); };
      const Bytes in(Place::device, 5000);
      MPI_Request receive = MPI_REQUEST_NULL;
      if (!sending)
        MPI_OK(MPI_Irecv(in.memory.data(), in.count(), MPI_CHAR, partner(), identity_tag, comm(), &receive));
      lock_step();
      if (sending) {
        sends.send(Place::device, first(rank()), comm());
        sends.send(Place::host, second(rank()), comm());
      }
      lock_step();
      if (sending) {
        sends.wait();
      } else {
        expect_next(probings[turn % 4], comm(), Place::host, second(partner()));
        MPI_OK(MPI_Wait(&receive, MPI_STATUS_IGNORE));
        CHECK((in.read() == first(partner())));
      }
    }
    for (int i = 0; i < others && sending; ++i) MPI_OK(MPI_Send(&i, 1, MPI_INT, partner(), other_tag, comm()));
    MPI_OK(MPI_Waitall(others, receives.data(), MPI_STATUSES_IGNORE));
  }
}

namespace {

/// A receive with room for `room` bytes of a longer message.
void receive_too_little(std::size_t room, bool nonblocking, MPI_Comm on) {
  std::vector<char> in(room + 1, 'a');
  const int count = static_cast<int>(room);
  if (nonblocking) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(in.data(), count, MPI_CHAR, partner(), identity_tag, on, &request));
    MPI_FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
  } else {
    MPI_FAILS(MPI_Recv(in.data(), count, MPI_CHAR, partner(), identity_tag, on, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
  }
  CHECK(in[room] == 'a');
}

}  // namespace

TEST_CASE("a truncated host message leaves messages of other communicators alone", "[peer]") {
  if (!all_have_partners()) return;
  const Duplicates comms(2);
  for (const bool nonblocking : {false, true})
    for (const std::size_t room : {40, 513, 600}) {
      INFO("room for " << room << (nonblocking ? " bytes, nonblocking" : " bytes"));
      step("room for " + std::to_string(room));
      Sends sends;
      const auto wanted = [&](int from, int i) { return bytes_of(from, i, 3000 + static_cast<std::size_t>(i)); };
      // So many that they have all the lengths of RTS messages.
      for (int i = 0; i < peer::rts_lengths; ++i) sends.send(Place::device, wanted(rank(), i), comms[0]);
      for (int index = 45; index < peer::rts_lengths; index += 4)
        sends.send(Place::host, bytes_of(rank(), index, static_cast<std::size_t>(peer::rts_bytes(index))), comms[1]);
      for (int index = 45; index < peer::rts_lengths; index += 4) receive_too_little(room, nonblocking, comms[1]);
      for (int i = 0; i < peer::rts_lengths; ++i)
        expect_next(probings[i % 4], comms[0], basic_places[i / 4 % 2], wanted(partner(), i));
      sends.wait();
    }
}

TEST_CASE("a truncated device message releases its sender, and no other", "[peer]") {
  if (!all_have_partners()) return;
  const Duplicates comms(2);
  for (const bool nonblocking : {false, true})
    for (const std::size_t room : {40, 513, 800}) {
      INFO("room for " << room << (nonblocking ? " bytes, nonblocking" : " bytes"));
      step("room for " + std::to_string(room));
      Sends sent, truncated;
      // Open MPI writes longer ones that are not offered beyond the end of the receive buffer.
      const auto wanted = [&](int from, int i) { return bytes_of(from, i, 3000 + static_cast<std::size_t>(i)); };
      for (int i = 0; i < 40; ++i) {
        sent.send(Place::device, wanted(rank(), i), comms[0]);
        truncated.send(Place::device, wanted(rank(), i), comms[1]);
      }
      for (int i = 0; i < 40; ++i) receive_too_little(room, nonblocking, comms[1]);
      truncated.wait();
      for (int i = 0; i < 40; ++i)
        expect_next(probings[i % 4], comms[0], basic_places[i / 4 % 2], wanted(partner(), i));
      sent.wait();
    }
}

namespace {

/// Ways to complete many requests of which one fails; each returns the number of failures.
enum class Completing { waitall, testall, waitsome, testsome, waitany, testany, wait, test };
constexpr Completing completings[] = {Completing::waitall,  Completing::testall, Completing::waitsome,
                                      Completing::testsome, Completing::waitany, Completing::testany,
                                      Completing::wait,     Completing::test};

class Completion {
 public:
  Completion(std::vector<MPI_Request>& requests, bool wants_statuses)
      : requests_(requests), statuses_(requests.size()), indices_(requests.size()), wants_(wants_statuses) {}

  int failures(Completing how) {
    int found = 0;
    while (std::any_of(requests_.begin(), requests_.end(), [](MPI_Request each) { return each != MPI_REQUEST_NULL; }))
      if (call(how) != MPI_SUCCESS) ++found;
    return found;
  }

 private:
  int call(Completing how) {
    const int count = static_cast<int>(requests_.size());
    MPI_Status* const all = wants_ ? statuses_.data() : MPI_STATUSES_IGNORE;
    MPI_Status* const one = wants_ ? statuses_.data() : MPI_STATUS_IGNORE;
    const auto each =
        std::find_if(requests_.begin(), requests_.end(), [](MPI_Request r) { return r != MPI_REQUEST_NULL; });
    int flag = 0, done = 0;
    switch (how) {
      case Completing::waitall:
        return MPI_Waitall(count, requests_.data(), all);
      case Completing::testall:
        return MPI_Testall(count, requests_.data(), &flag, all);
      case Completing::waitsome:
        return MPI_Waitsome(count, requests_.data(), &done, indices_.data(), all);
      case Completing::testsome:
        return MPI_Testsome(count, requests_.data(), &done, indices_.data(), all);
      case Completing::waitany:
        return MPI_Waitany(count, requests_.data(), &done, one);
      case Completing::testany:
        return MPI_Testany(count, requests_.data(), &done, &flag, one);
      case Completing::wait:
        return MPI_Wait(&*each, one);
      default:
        return MPI_Test(&*each, &flag, one);
    }
  }

  std::vector<MPI_Request>& requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> indices_;
  bool wants_;
};

}  // namespace

TEST_CASE("a truncated device message among many receives of a few bytes releases its sender", "[peer]") {
  if (!all_have_partners()) return;
  if (mpich) return not_possible("requests do not tell their communicators");
  const Type message = not_sent_before_received();
  for (const Completing how : completings)
    for (const bool wants_statuses : {false, true})
      for (const int count : {6, 40}) {
        if (how == Completing::waitall &&
            (!waits_for_failed_requests() || !(wants_statuses || reports_errors_without_statuses)))
          continue;
        INFO("way " << static_cast<int>(how) << ", " << count << " requests");
        step("way " + std::to_string(static_cast<int>(how)));
        Buffer out(Place::device, message, 1);
        out.fill(mix(seed(), 1));
        MPI_Request request = MPI_REQUEST_NULL;
        std::vector<MPI_Request> receives(static_cast<std::size_t>(count), MPI_REQUEST_NULL);
        std::vector<int> in(receives.size());
        for (std::size_t i = 0; i < receives.size(); ++i)
          if (i % 7 != 3)
            MPI_OK(MPI_Irecv(&in[i], 1, MPI_INT, partner(), static_cast<int>(i) + 10, comm(), &receives[i]));
        MPI_OK(MPI_Barrier(comm()));
        for (int i = 0; i < count; ++i)
          if (i % 7 != 3 && i != count - 1) MPI_OK(MPI_Send(&i, 1, MPI_INT, partner(), i + 10, comm()));
        MPI_OK(MPI_Isend(out.address(), 1, message, partner(), count + 9, comm(), &request));
        CHECK(Completion(receives, wants_statuses).failures(how) == 1);
        MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      }
}

// What is bound to libmpi itself, past this library, must get what host programs send.
TEST_CASE("host messages received past the library", "[peer]") {
  if (!all_have_partners()) return;
  const BsendBuffer attached(1 << 20);
  Sends sends;
  std::vector<std::vector<char>> messages;
  for (int size = 513; size <= 771; ++size) {
    const std::vector<char> bytes = bytes_of(rank(), size, static_cast<std::size_t>(size));
    if (size % 3 == 0)
      sends.send(Place::host, bytes, comm());
    else if (size % 3 == 1)
      sends.send_buffered(Place::host, bytes, comm());
    else
      sends.start(MPI_Send_init, Place::host, bytes, comm());
  }
  for (int size = 513; size <= 771; ++size) {
    std::vector<char> in(1000, 'a');
    MPI_Status status{};
    MPI_OK(PMPI_Recv(in.data(), 1000, MPI_CHAR, partner(), identity_tag, comm(), &status));
    CHECK(bytes_in(status) == size);
    in.resize(static_cast<std::size_t>(size));
    CHECK((in == bytes_of(partner(), size, static_cast<std::size_t>(size))));
  }
  sends.wait();
}

namespace {

/// Data that look like an RTS of process `sender`, but for the number that nobody can guess.
std::vector<char> like_rts(int index, int sender, std::uint32_t flags) {
  std::vector<char> bytes = bytes_of(rank(), index, static_cast<std::size_t>(peer::rts_bytes(index)));
  const peer::RendezvousRequest rts{peer::rts_mark, {1, 2}, sender, index, 1, flags, 5000, 0};
  std::memcpy(bytes.data(), &rts, sizeof rts);
  return bytes;
}

}  // namespace

TEST_CASE("data that begin as RTS messages do are data", "[peer]") {
  if (!all_have_partners()) return;
  int index = 0;
  for (const int sender : {ranks(), 1 << 20, -1, rank(), partner()})
    for (const std::uint32_t flags : {std::uint32_t{0}, peer::rts_remote, ~std::uint32_t{0}})
      for (const Place from : basic_places)
        for (const Place to : basic_places)
          for (const bool nonblocking : {false, true}) {
            index = (index + 7) % peer::rts_lengths;
            INFO("of process " << sender << ", flags " << flags << ", from " << place_name(from) << " to "
                               << place_name(to));
            step("of process " + std::to_string(sender) + ", flags " + std::to_string(flags));
            const std::vector<char> bytes = like_rts(index, sender, flags);
            Sends sends;
            if (from == Place::host && index % 2 == 0)
              sends.send_past_library(bytes, comm());
            else
              sends.send(from, bytes, comm());
            Bytes in(to, bytes.size()), theirs(to, bytes.size());
            MPI_Status status{};
            MPI_Request request = MPI_REQUEST_NULL;
            if (nonblocking) {
              MPI_OK(MPI_Irecv(in.memory.data(), in.count(), MPI_CHAR, partner(), identity_tag, comm(), &request));
              MPI_OK(MPI_Wait(&request, &status));
            } else {
              MPI_OK(MPI_Recv(in.memory.data(), in.count(), MPI_CHAR, partner(), identity_tag, comm(), &status));
            }
            CHECK(bytes_in(status) == in.count());
            sends.wait();
            // What has come goes back, to be compared by who knows it.
            MPI_OK(MPI_Sendrecv(in.memory.data(), in.count(), MPI_CHAR, partner(), identity_tag, theirs.memory.data(),
                                theirs.count(), MPI_CHAR, partner(), identity_tag, comm(), MPI_STATUS_IGNORE));
            CHECK((theirs.read() == bytes));
          }
}

// Two threads send at once, so that either message may be first; the size that a probe tells is its message's.
TEST_CASE("probes while threads send host messages as long as RTS messages and device messages", "[.][threads]") {
  if (!all_have_partners()) return;
  constexpr int messages = 600;
  const int gpu = current_gpu();
  const auto size_of = [](bool device, int i) {
    return static_cast<std::size_t>(device ? 800 + i : peer::rts_bytes(i % 5));
  };
  const auto send_all = [&](bool device) {
    use_gpu(gpu);
    std::deque<Bytes> out;
    std::vector<MPI_Request> requests;
    for (int i = 0; i < messages; ++i) {
      const std::size_t size = size_of(device, i);
      std::vector<char> bytes(size, static_cast<char>(i));
      std::memcpy(bytes.data(), &size, sizeof size);
      const Bytes& each = out.emplace_back(device ? Place::device : Place::host, bytes);
      MPI_Isend(each.memory.data(), each.count(), MPI_CHAR, partner(), identity_tag, comm(),
                &requests.emplace_back(MPI_REQUEST_NULL));
    }
    MPI_Waitall(messages, requests.data(), MPI_STATUSES_IGNORE);
  };
  std::thread device_sends([&] { send_all(true); }), host_sends([&] { send_all(false); });
  for (int i = 0; i < 2 * messages; ++i) {
    MPI_Message message = MPI_MESSAGE_NULL;
    const auto size = static_cast<std::size_t>(probed_size(probings[i % 4], comm(), message));
    std::vector<char> in(5000);
    MPI_Status status{};
    if (message == MPI_MESSAGE_NULL)
      MPI_OK(MPI_Recv(in.data(), 5000, MPI_CHAR, partner(), identity_tag, comm(), &status));
    else
      MPI_OK(MPI_Mrecv(in.data(), 5000, MPI_CHAR, &message, &status));
    std::size_t said = 0;
    std::memcpy(&said, in.data(), sizeof said);
    CHECK(said == size);
    CHECK(bytes_in(status) == static_cast<int>(said));
  }
  device_sends.join();
  host_sends.join();
}
