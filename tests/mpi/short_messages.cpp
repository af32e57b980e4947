// Short messages from device memory and compact RTS messages of longer ones (transport/peer/short_rts.hpp): every kind
// of receive that may get such an RTS, sends without a receive for a while, truncation, probes among messages as long
// as the RTS, and a receive into host memory that has gone to MPI first. They have runs of their own, since what a
// process receives first decides whether it expects them.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "interpose/shared/job_file.hpp"
#include "interpose/transport/peer/short_rts.hpp"
#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;
namespace peer = gpudt::interpose::peer;

namespace {

constexpr int least_short = peer::least_short;  ///< also the least of a truncated RTS by which it is known

constexpr int lengths[] = {1, 7, 8, 9, 12, 15, 16, 17, 100, 512, 513, 514, 515, 516, 600, 768, 769, 770};
constexpr int truncated[] = {9, 12, 15, 16, 17, 100, 512, 513, 514, 516, 600, 768, 800, 3000, 70'000};

bool is_forced() {
  const char* const protocol = std::getenv("GPUDT_PROTOCOL");
  return protocol != nullptr && std::string(protocol) == "peer";
}

/// This process's own segment; null if it has none. To the system, segments that are neighbours in the file may be one
/// mapping, and a segment may be several, as where the driver has registered a part of it.
const peer::Image* own_segment() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uint64_t begin = 0, end = 0, at = 0;
    std::string path;
    char dash = 0;
    fields >> std::hex >> begin >> dash >> end >> path >> at >> path >> path >> path;
    if (path.find("/dev/shm/gpudt") == std::string::npos) continue;
    const std::uint64_t before = at > peer::first_segment ? at - peer::first_segment : 0;
    std::uint64_t number = (before + sizeof(peer::Image) - 1) / sizeof(peer::Image);
    for (;; ++number) {
      const std::uint64_t address = begin + peer::first_segment + number * sizeof(peer::Image) - at;
      if (address >= end) break;
      const auto* const image = reinterpret_cast<const peer::Image*>(address);
      if (image->rank == rank()) return image;
    }
  }
  return nullptr;
}

/// Calls act(descriptor) for all of this process's that have memory: where many offers are abandoned, further ones.
template <class Act>
void for_each_descriptor(const Act& act) {
  auto* const image = const_cast<peer::Image*>(own_segment());
  if (image == nullptr) return;
  for (int index = 0; index < image->descriptors_made.load(); ++index) act(std::as_const(image->descriptor(index)));
}

/// Messages that this process has offered so far.
std::uint64_t offers() {
  std::uint64_t sum = 0;
  for_each_descriptor([&](const peer::Descriptor& descriptor) { sum += descriptor.generation; });
  return sum;
}

/// Of the latest message that this process has offered; null if there was none.
const peer::Descriptor* latest_offer() {
  const peer::Descriptor* latest = nullptr;
  for_each_descriptor([&](const peer::Descriptor& descriptor) {
    if (descriptor.number > (latest == nullptr ? 0 : latest->number)) latest = &descriptor;
  });
  return latest;
}

/// Fragments of the latest message that this process has offered: 0 unless its receiver could not fetch it.
std::uint64_t fragments() {
  const peer::Descriptor* const latest = latest_offer();
  return latest == nullptr ? 0 : latest->produced.load();
}

/// From now on both partners expect RTS messages of short messages, unless something else has been first.
void expect_short() {
  const Type type = plain(MPI_BYTE);
  exchange_both_ways({type, 4, Place::device, type, 4, Place::device}, 1);
  MPI_OK(MPI_Barrier(comm()));
}

/// Begins to receive a short message from the partner's device memory into host memory before this process has received
/// anything else. `checked`: MPI has not got the receive unchanged, so that short messages may be offered to the
/// process.
void receive_before_device(bool checked) {
  const Type type = plain(MPI_BYTE);
  constexpr int bytes = 100, tag = 2;
  Buffer in(Place::host, type, bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(in.address(), bytes, type, partner(), tag, comm(), &request));
  expect_short();
  if (!host_only() && own_segment() != nullptr) CHECK(own_segment()->expects_short == (checked ? 1 : 0));
  Buffer out(Place::device, type, bytes);
  out.fill(key_of(rank(), tag));
  MPI_OK(MPI_Send(out.address(), bytes, type, partner(), tag, comm()));
  MPI_Status status{};
  MPI_OK(MPI_Wait(&request, &status));
  check_status(status, partner(), tag, type, bytes);
  in.expect(stream_of(type, bytes, key_of(partner(), tag)));
  CHECK(in.difference() == "");
}

}  // namespace

// Both before any receive into device memory, in a process of their own.
TEST_CASE("a nonblocking receive into host memory before there is any on a GPU", "[.][short-ignored]") {
  if (!all_have_partners()) return;
  // On a GPU the harness has called CUDA already. Over MPICH all receives are watched, whatever their length.
  receive_before_device(/*checked=*/dlsym(RTLD_DEFAULT, "gpudt_sim_api") == nullptr || mpich);
}

TEST_CASE("a nonblocking receive into host memory of a process that uses a GPU", "[.][short-checked]") {
  if (!all_have_partners()) return;
  const Buffer on_device(Place::device, plain(MPI_BYTE), 100);
  receive_before_device(/*checked=*/true);
}

TEST_CASE("short device messages meet every kind of receive", "[.][short]") {
  if (!all_have_partners()) return;
  expect_short();
  const bool counted = is_forced() && !any_host_only() && own_segment()->expects_short != 0;
  const bool fetched = counted && !kernels_take_turns();  // else not while kernels begin late
  const int low = std::min(rank(), partner()), high = std::max(rank(), partner());
  int tag = 10;
  for (const int bytes : lengths)
    for (const bool gaps : {false, true})
      for (const char* const name : {"Send", "Ssend", "Rsend", "Isend"})
        for (const ReceiveMode& receive_mode : receive_modes)
          for (const Place place : {Place::device, Place::host}) {
            const SendMode& mode = *std::find_if(send_modes.begin(), send_modes.end(),
                                                 [&](const SendMode& each) { return each.name == std::string(name); });
            if (mode.needs_posted_receive && !receive_mode.nonblocking) continue;
            const Type type = gaps ? vector(bytes, 1, 2, MPI_CHAR) : plain(MPI_CHAR);
            const int count = gaps ? 1 : bytes;
            const std::uint64_t before = offers();
            tag += 4;
            exchange(mode, receive_mode, {type, count, Place::device, type, count, place}, low, high, tag);
            exchange(mode, receive_mode, {type, count, Place::device, type, count, place}, high, low, tag);
            const bool offered = bytes >= peer::least_short;  // those as long as an RTS, too, by compact ones
            if (counted) CHECK(offers() - before == (offered ? 1 : 0));
            if (fetched && offered && place == Place::device) CHECK(fragments() == 0);
          }
}

TEST_CASE("short device messages are sent though nobody receives them yet", "[.][short]") {
  if (!all_have_partners() || any_host_only()) return;
  expect_short();
  for (const int bytes : lengths)
    for (const Place place : basic_places)
      for (int times = 0; times < 3; ++times) {
        const Type type = vector(bytes, 1, 2, MPI_CHAR);
        INFO(type.text() << " to " << place_name(place));
        Buffer out(Place::device, type, 1), in(place, type, 1);
        out.fill(key_of(rank(), bytes));
        if (times == 1) {
          MPI_Request request = MPI_REQUEST_NULL;
          MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 4, comm(), &request));
          MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        } else {
          MPI_OK(MPI_Send(out.address(), 1, type, partner(), 4, comm()));  // both at once
        }
        out.poison();
        MPI_Status status{};
        if (times == 0) MPI_OK(MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &status));
        if (times == 0) check_status(status, partner(), 4, type, bytes);
        MPI_OK(MPI_Recv(in.address(), 1, type, MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &status));
        check_status(status, partner(), 4, type, bytes);
        in.expect(stream_of(type, 1, key_of(partner(), bytes)));
        CHECK(in.difference() == "");
      }
}

TEST_CASE("short device messages by calls that send and receive, and by persistent receives", "[.][short]") {
  if (!all_have_partners()) return;
  expect_short();
  const Type type = vector(25, 1, 2);
  const int low = std::min(rank(), partner());
  for (const Place place : basic_places) {
    Buffer out(Place::device, type, 1), in(place, type, 1);
    out.fill(key_of(rank(), 5));
    MPI_Status status{};
    const auto check = [&] {
      check_status(status, partner(), 5, type, type.size());
      in.expect(stream_of(type, 1, key_of(partner(), 5)));
      CHECK(in.difference() == "");
      in.poison();
    };
    // One sends by MPI_Send what the other receives by a call that sends, too.
    for (const bool low_sends : {false, true}) {
      if ((rank() == low) == low_sends) {
        MPI_OK(MPI_Send(out.address(), 1, type, partner(), 5, comm()));
        MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 5, comm(), &status));
      } else {
        MPI_OK(
            MPI_Sendrecv(out.address(), 1, type, partner(), 5, in.address(), 1, type, partner(), 5, comm(), &status));
      }
      check();
    }
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Recv_init(in.address(), 1, type, partner(), MPI_ANY_TAG, comm(), &request));
    for (int times = 0; times < 3; ++times) {
      MPI_OK(MPI_Start(&request));
      MPI_OK(MPI_Send(out.address(), 1, type, partner(), 5, comm()));
      MPI_OK(MPI_Wait(&request, &status));
      check();
    }
    MPI_OK(MPI_Request_free(&request));
    Buffer both(place, type, 1);
    both.fill(key_of(rank(), 5));
    if (rank() == low) {
      MPI_OK(MPI_Send(out.address(), 1, type, partner(), 5, comm()));
      MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 5, comm(), &status));
      check();
    } else {
      MPI_OK(MPI_Sendrecv_replace(both.address(), 1, type, partner(), 5, partner(), 5, comm(), &status));
      both.expect(stream_of(type, 1, key_of(partner(), 5)));
      CHECK(both.difference() == "");
    }
  }
}

TEST_CASE("short device messages that are too long for their receives release their senders", "[.][short]") {
  if (!all_have_partners()) return;
  expect_short();
  const Type type = plain(MPI_CHAR);
  // More than there are descriptors: none keeps its own.
  for (int times = 0; times < 2 * peer::descriptors_at_a_time; ++times)
    for (const Place place : basic_places) {
      const int sent = truncated[static_cast<std::size_t>(times) % std::size(truncated)];
      int room = times % 3 == 0 ? times % least_short : std::max(sent - 1 - times % 40, least_short);
      if (times % 3 == 1 && sent > peer::most_short) room = times % 120;  // about as long as a compact RTS
      INFO(sent << " bytes to " << room << " of " << place_name(place));
      const bool nonblocking = times % 2 == 0;
      Buffer out(Place::device, type, sent), in(place, type, room);
      out.fill(key_of(rank(), sent));
      MPI_Status status{};
      if (rank() < partner()) {
        MPI_OK(MPI_Send(out.address(), sent, type, partner(), 6, comm()));
      } else if (nonblocking) {
        MPI_Request receive = MPI_REQUEST_NULL;
        MPI_OK(MPI_Irecv(in.address(), room, type, partner(), 6, comm(), &receive));
        MPI_FAILS(MPI_Wait(&receive, &status), MPI_ERR_TRUNCATE);
      } else {
        MPI_FAILS(MPI_Recv(in.address(), room, type, partner(), 6, comm(), &status), MPI_ERR_TRUNCATE);
      }
      CHECK(in.difference_outside() == "");
    }
  MPI_OK(MPI_Barrier(comm()));  // all of them have been received
  const std::uint64_t before = offers();
  exchange_both_ways({type, 100, Place::device, type, 100, Place::device}, 7);
  if (is_forced() && !any_host_only() && own_segment()->expects_short != 0) CHECK(offers() - before == 1);
}

// Open MPI cuts their RTS off, without an error, as it does staged messages.
TEST_CASE("short device messages to oneself that are too long for receives posted before", "[.][short]") {
  if (!all_have_partners()) return;
  expect_short();
  if (host_only() || own_segment() == nullptr || own_segment()->expects_short == 0) return;
  const Type type = plain(MPI_CHAR);
  constexpr int tag = 17;
  for (const auto& [sent, room] : {std::pair{64, 16}, {64, 9}, {600, 517}, {514, 512}, {768, 600}, {768, 8}, {100, 4}})
    for (const Place place : basic_places) {
      INFO(sent << " bytes into " << room << " of " << place_name(place));
      Buffer out(Place::device, type, sent), little(place, type, room), in(place, type, sent);
      out.fill(key_of(rank(), sent));
      MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
      MPI_OK(MPI_Irecv(little.address(), room, type, rank(), tag, comm(), &receive));
      MPI_OK(MPI_Isend(out.address(), sent, type, rank(), tag, comm(), &send));
      MPI_FAILS(MPI_Wait(&receive, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
      MPI_OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
      CHECK(little.difference_outside() == "");
      MPI_OK(MPI_Sendrecv(out.address(), sent, type, rank(), tag, in.address(), sent, type, rank(), tag, comm(),
                          MPI_STATUS_IGNORE));
      in.expect(stream_of(type, sent, key_of(rank(), sent)));
      CHECK(in.difference() == "");
    }
}

TEST_CASE("data that look like the RTS of a short message are data", "[.][short]") {
  if (!all_have_partners() || any_host_only()) return;
  expect_short();
  const Type type = plain(MPI_BYTE);
  exchange_both_ways({type, 100, Place::device, type, 100, Place::device}, 7);
  // All that this process has sent as an RTS so far, and what is not quite one.
  std::vector<std::vector<unsigned char>> texts;
  for (const peer::Descriptor& descriptor : own_segment()->descriptors) {
    const auto* const rts = reinterpret_cast<const unsigned char*>(descriptor.rts);
    if (descriptor.generation != 0) texts.emplace_back(rts, rts + 100);
  }
  for (std::vector<unsigned char> text : std::vector(texts)) {
    text[3] ^= 1;
    texts.push_back(std::move(text));
  }
  const int most = static_cast<int>(texts.size());
  int theirs = 0;
  MPI_OK(MPI_Sendrecv(&most, 1, MPI_INT, partner(), 8, &theirs, 1, MPI_INT, partner(), 8, comm(), MPI_STATUS_IGNORE));
  for (int i = 0; i < std::max(most, theirs); ++i) {
    std::vector<unsigned char> first(100), second(100);
    MPI_Request request = MPI_REQUEST_NULL;
    if (i < theirs) MPI_OK(MPI_Irecv(first.data(), 100, type, partner(), 9, comm(), &request));
    for (int times = 0; i < most && times < 3; ++times)
      MPI_OK(MPI_Send(texts[static_cast<std::size_t>(i)].data(), 100, type, partner(), 9, comm()));
    if (i >= theirs) continue;
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    MPI_OK(MPI_Recv(second.data(), 100, type, partner(), 9, comm(), MPI_STATUS_IGNORE));
    CHECK(first == second);
    MPI_OK(MPI_Recv(second.data(), 100, type, partner(), 9, comm(), MPI_STATUS_IGNORE));
    CHECK(first == second);
  }
}

namespace {

/// The length of the RTS of the latest message that this process has offered, if that is compact; 0 if not.
int latest_compact_rts() {
  const peer::Descriptor* const latest = latest_offer();
  if (latest == nullptr || latest->compact == 0) return 0;
  auto* const image = const_cast<peer::Image*>(own_segment());
  return static_cast<int>(peer::length_of_rts(*latest, image->index_of(*latest)));
}

/// The next message is one of `bytes` bytes from the partner: a probe says so, and a receive gets `data`.
void expect_next(int bytes, int tag, const Stream& data, bool matched) {
  const Type type = plain(MPI_CHAR);
  Buffer in(bytes % 4 == 1 ? Place::device : Place::host, type, bytes);
  MPI_Status status{};
  MPI_Message message = MPI_MESSAGE_NULL;
  if (matched) {
    MPI_OK(MPI_Mprobe(partner(), tag, comm(), &message, &status));
    check_status(status, partner(), tag, type, bytes);
    MPI_OK(MPI_Mrecv(in.address(), bytes, type, &message, &status));
  } else {
    MPI_OK(MPI_Probe(MPI_ANY_SOURCE, tag, comm(), &status));
    check_status(status, partner(), tag, type, bytes);
    MPI_OK(MPI_Recv(in.address(), bytes, type, status.MPI_SOURCE, tag, comm(), &status));
  }
  check_status(status, partner(), tag, type, bytes);
  in.expect(data);
  CHECK(in.difference() == "");
}

/// A message of `bytes` bytes that is under way.
class UnderWay {
 public:
  UnderWay(Place place, int bytes, int tag)
      : buffer_(place, plain(MPI_CHAR), bytes), key_(key_of(rank(), bytes)), bytes_(bytes) {
    buffer_.fill(key_);
    MPI_OK(MPI_Isend(buffer_.address(), bytes, plain(MPI_CHAR), partner(), tag, comm(), &request_));
  }
  ~UnderWay() { MPI_OK(MPI_Wait(&request_, MPI_STATUS_IGNORE)); }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  Buffer buffer_;
  std::uint64_t key_;
  int bytes_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

Stream partners(int bytes) {
  return stream_of(plain(MPI_CHAR), bytes, key_of(partner(), bytes));
}

}  // namespace

TEST_CASE("a host message as long as the compact RTS before it", "[.][short]") {
  if (!all_have_partners()) return;
  expect_short();
  constexpr int tag = 11, bytes = 5000;
  Buffer out(Place::device, plain(MPI_CHAR), bytes);  // for all, so that one descriptor is preferred
  out.fill(key_of(rank(), bytes));
  int compact = 0;
  for (int turn = 0; turn < 20; ++turn) {
    MPI_Request first = MPI_REQUEST_NULL;
    MPI_OK(MPI_Isend(out.address(), bytes, MPI_CHAR, partner(), tag, comm(), &first));
    const int own = std::max(latest_compact_rts(), 1);
    compact += own > 1 ? 1 : 0;
    const UnderWay second(Place::host, own, tag);
    int theirs = 0;
    MPI_OK(
        MPI_Sendrecv(&own, 1, MPI_INT, partner(), 12, &theirs, 1, MPI_INT, partner(), 12, comm(), MPI_STATUS_IGNORE));
    expect_next(bytes, tag, partners(bytes), turn % 2 == 0);
    expect_next(theirs, tag, partners(theirs), turn % 3 == 0);
    MPI_OK(MPI_Wait(&first, MPI_STATUS_IGNORE));
  }
  // Each length is used once; the other tests leave some of the 32.
  if (is_forced() && !any_host_only() && own_segment()->expects_short != 0) CHECK(compact > 5);
}

// After the test that most lengths of compact RTS messages are left for, since its host messages may have any of them.
TEST_CASE("random traffic of short messages", "[.][short]") {
  if (!all_have_partners()) return;
  expect_short();
  auto random = random_numbers("short");
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  const int low = std::min(rank(), partner()), high = std::max(rank(), partner());
  for (int i = 0; i < scaled(300); ++i) {
    const int bytes = static_cast<int>(1 + below(below(3) == 0 ? 1500 : 40));
    const Type sent = below(2) == 0 ? plain(MPI_CHAR) : vector(bytes, 1, 2, MPI_CHAR);
    const Type received = below(2) == 0 ? plain(MPI_CHAR) : vector(bytes, 1, 3, MPI_CHAR);
    const auto count_of = [&](const Type& type) { return type.size() == 1 ? bytes : 1; };
    const Place from = basic_places[below(4) == 0 ? 0 : 1], to = basic_places[below(2)];
    const SendMode& mode = send_modes[below(3) == 0 ? 4 : below(2) * 2];
    const ReceiveMode& receive_mode = receive_modes[below(receive_modes.size())];
    const bool up = below(2) == 0;
    exchange(mode, receive_mode, {sent, count_of(sent), from, received, count_of(received), to}, up ? low : high,
             up ? high : low, static_cast<int>(below(5)) * 3);
  }
}

TEST_CASE("messages as long as compact RTS messages before a device message", "[.][short]") {
  if (!all_have_partners()) return;
  expect_short();
  constexpr int tag = 13, bytes = 20'000;
  // In the end no compact RTS is left.
  for (int index = 0; index < peer::compact_rts.number; ++index)
    for (const Place place : basic_places) {
      const int length = static_cast<int>(peer::compact_rts.of(index));
      INFO(length << " bytes of " << place_name(place));
      const UnderWay first(place, length, tag), second(Place::device, bytes, tag), third(place, length, tag);
      expect_next(length, tag, partners(length), index % 2 == 0);
      expect_next(bytes, tag, partners(bytes), index % 3 == 0);
      expect_next(length, tag, partners(length), index % 2 != 0);
    }
  const std::uint64_t before = offers();
  const UnderWay last(Place::device, bytes, tag);
  if (offers() != before) CHECK(latest_compact_rts() == 0);
  expect_next(bytes, tag, partners(bytes), /*matched=*/true);
}

TEST_CASE("a device message that is cut off takes no other one with it", "[.][short]") {
  if (!all_have_partners()) return;
  expect_short();
  // More than there are lengths of compact RTS messages, so that others are as long as that of the first.
  constexpr int tag = 15, messages = 100, bytes = 8000;
  const Type type = plain(MPI_CHAR);
  for (const int room : {4, 16, 40, 200})
    for (const bool nonblocking : {true, false}) {
      INFO("room for " << room << " bytes, " << (nonblocking ? "Irecv" : "Recv"));
      std::vector<Buffer> out;
      for (int i = 0; i < messages; ++i) out.emplace_back(Place::device, type, bytes).fill(key_of(rank(), i));
      std::vector<MPI_Request> sends(messages, MPI_REQUEST_NULL);
      Buffer little(Place::host, type, room), in(Place::device, type, bytes);
      for (std::size_t i = 0; i < sends.size(); ++i)
        MPI_OK(MPI_Isend(out[i].address(), bytes, type, partner(), tag, comm(), &sends[i]));
      MPI_Request receive = MPI_REQUEST_NULL;
      if (nonblocking) {
        MPI_OK(MPI_Irecv(little.address(), room, type, partner(), tag, comm(), &receive));
        MPI_FAILS(MPI_Wait(&receive, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
      } else {
        MPI_FAILS(MPI_Recv(little.address(), room, type, partner(), tag, comm(), MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
      }
      for (int i = 1; i < messages; ++i) {
        MPI_Status status{};
        MPI_OK(MPI_Recv(in.address(), bytes, type, partner(), tag, comm(), &status));
        check_status(status, partner(), tag, type, bytes);
        in.expect(stream_of(type, bytes, key_of(partner(), i)));
        CHECK(in.difference() == "");
      }
      MPI_OK(MPI_Waitall(messages, sends.data(), MPI_STATUSES_IGNORE));
    }
}

TEST_CASE("sends that MPI refuses leave no offers", "[.][short]") {
  if (!all_have_partners()) return;
  expect_short();
  ErrorComm errors(/*own_handler=*/false);
  const Type type = plain(MPI_CHAR);
  for (const int bytes : {100, 8000}) {
    Buffer out(Place::device, type, bytes), in(Place::device, type, bytes);
    constexpr int wrong_tag = -7, tag = 16;
    for (int i = 0; i < 2 * peer::descriptor_count; ++i)
      MPI_FAILS(MPI_Send(out.address(), bytes, type, partner(), wrong_tag, errors), MPI_ERR_TAG);
    const std::uint64_t before = offers();
    const bool is_first = rank() < partner();
    for (const bool sends : {is_first, !is_first})
      if (sends)
        MPI_OK(MPI_Send(out.address(), bytes, type, partner(), tag, comm()));
      else
        MPI_OK(MPI_Recv(in.address(), bytes, type, partner(), tag, comm(), MPI_STATUS_IGNORE));
    if (is_forced() && !any_host_only() && own_segment()->expects_short != 0) CHECK(offers() - before == 1);
  }
}
