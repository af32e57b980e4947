// The choice among protocols, and the names by which GPUDT_PROTOCOL forces one.
#include "interpose/transport/protocol.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string>

#include "interpose/transport/peer/short_rts.hpp"
#include "tests/support/catch.hpp"

namespace gpudt::interpose {
namespace {

constexpr std::int64_t short_bytes = peer::least_offered - 1, long_bytes = 64 << 10, very_long_bytes = 8 << 20;

Protocol chosen(std::int64_t bytes, const Route& route) {
  return choose({.bytes = bytes}, route);
}

/// What is chosen for messages of some lengths, among them all at which a rule changes: one letter for each.
std::string chosen_by_length(const Route& route, const Message& message = {}) {
  constexpr std::array<std::int64_t, 12> lengths = {peer::least_short - 1,
                                                    peer::least_short,
                                                    peer::most_short,
                                                    peer::shortest_rts,
                                                    peer::least_offered - 1,
                                                    peer::least_offered,
                                                    peer::longest_buffered,
                                                    peer::longest_buffered + 1,
                                                    long_bytes,
                                                    (4 << 20) - 1,
                                                    4 << 20,
                                                    very_long_bytes};
  std::string letters;
  for (const std::int64_t bytes : lengths) {
    Message sent = message;
    sent.bytes = bytes;
    const Protocol taken = choose(sent, route);
    letters += taken == Protocol::mapped_staging ? '-' : *protocol_name(taken);
  }
  return letters;
}

std::string read_text(const std::string& name) {
  std::ifstream file(GPUDT_SOURCE_ROOT "/" + name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_CASE("each protocol has a name of its own", "[datatype][choose]") {
  std::set<std::string> names;
  for (const ProtocolRow& row : protocols) names.insert(row.name);
  CHECK(names.size() == protocols.size());
}

TEST_CASE("an MPI that takes device pointers gets them, unless the message is too long or divided",
          "[datatype][choose]") {
  const Route route{.mpi_takes_device_memory = true, .forward_max = long_bytes};
  CHECK(choose({.bytes = long_bytes, .contiguous = true}, route) == Protocol::direct);
  CHECK(choose({.bytes = long_bytes}, route) == Protocol::device_staging);
  CHECK(choose({.bytes = long_bytes + 1, .contiguous = true}, route) == Protocol::mapped_staging);
  CHECK(choose({.bytes = long_bytes, .contiguous = true, .divided = true}, route) == Protocol::mapped_staging);
  CHECK(choose({.bytes = long_bytes + 1, .contiguous = true}, {.mpi_takes_device_memory = true}) == Protocol::direct);
  CHECK(choose({.bytes = 8, .contiguous = true}, {}) == Protocol::mapped_staging);
}

TEST_CASE("an MPI that takes device pointers gets none where an RTS may come or go", "[datatype][choose]") {
  Route route{.mpi_takes_device_memory = true, .host_memory_only = true};
  CHECK(choose({.bytes = long_bytes, .contiguous = true}, route) == Protocol::mapped_staging);
  route.receiver = Receiver::sharing;
  CHECK(choose({.bytes = long_bytes, .contiguous = true}, route) == Protocol::peer);
  CHECK(choose({.bytes = long_bytes}, route) == Protocol::peer);
}

TEST_CASE("long messages from device memory go to other nodes in fragments if packing takes a while",
          "[datatype][choose]") {
  Route route{.receiver = Receiver::remote, .mpi_takes_device_memory = true, .host_memory_only = true};
  CHECK(choose({.bytes = very_long_bytes, .packing_us = 200}, route) == Protocol::pipelined);
  CHECK(choose({.bytes = very_long_bytes, .packing_us = 10}, route) == Protocol::mapped_staging);
  CHECK(choose({.bytes = very_long_bytes}, route) == Protocol::pipelined);
  CHECK(choose({.bytes = long_bytes, .packing_us = 200}, route) == Protocol::mapped_staging);
  route.forced = Protocol::pipelined;
  CHECK(choose({.bytes = very_long_bytes, .packing_us = 10}, route) == Protocol::pipelined);
}

TEST_CASE("messages to processes that share memory are offered", "[datatype][choose]") {
  Route route{.receiver = Receiver::sharing};
  CHECK(chosen(short_bytes, route) == Protocol::mapped_staging);
  CHECK(chosen(short_bytes + 1, route) == Protocol::peer);
  route.expects_short = true;  // RTS messages as short as what they stand for
  for (const std::int64_t bytes : {peer::least_short, peer::shortest_rts - 1, peer::shortest_rts,
                                   peer::shortest_rts + 1, peer::most_short, short_bytes})
    CHECK(chosen(bytes, route) == Protocol::peer);
  CHECK(chosen(peer::least_short - 1, route) == Protocol::mapped_staging);
  route.expects_short = false;
  CHECK(chosen(very_long_bytes, route) == Protocol::peer);
  CHECK(choose({.bytes = long_bytes, .divided = true}, route) == Protocol::mapped_staging);
  route.backing_off = true;
  CHECK(chosen(long_bytes, route) == Protocol::mapped_staging);
  route.receiver = Receiver::unreachable;
  CHECK(chosen(long_bytes, route) == Protocol::mapped_staging);
}

TEST_CASE("only long messages to other nodes go in fragments", "[datatype][choose]") {
  Route route{.receiver = Receiver::remote};
  CHECK(chosen((4 << 20) - 1, route) == Protocol::mapped_staging);
  CHECK(chosen(4 << 20, route) == Protocol::pipelined);
  route.forced = Protocol::pipelined;
  CHECK(chosen(peer::longest_buffered, route) == Protocol::mapped_staging);
  CHECK(chosen(peer::longest_buffered + 1, route) == Protocol::pipelined);
}

TEST_CASE("the choice at every length and setting", "[datatype][choose]") {
  // "-" mapped staging, "d" direct or device staging, "p" peer or pipelined, "s" shared
  const std::string staged = "------------", offered = "-----ppppppp", with_short = "-ppppppppppp",
                    through_segment = "-----sssssss", fragments = "----------pp", fragments_forced = "-------ppppp";
  const ForcedProtocol free;
  struct Expected {
    Receiver receiver;
    ForcedProtocol forced;
    std::string chosen;
  };
  for (const Expected& row : std::initializer_list<Expected>{
           {Receiver::none, free, staged},
           {Receiver::none, Protocol::peer, staged},
           {Receiver::none, Protocol::pipelined, staged},
           {Receiver::unreachable, free, staged},
           {Receiver::unreachable, Protocol::peer, staged},
           {Receiver::unreachable, Protocol::pipelined, staged},
           {Receiver::sharing, free, offered},
           {Receiver::sharing, Protocol::mapped_staging, staged},
           {Receiver::sharing, Protocol::peer, offered},
           {Receiver::sharing, Protocol::shared, through_segment},
           {Receiver::sharing, Protocol::pipelined, offered},
           {Receiver::remote, free, fragments},
           {Receiver::remote, Protocol::mapped_staging, staged},
           {Receiver::remote, Protocol::peer, fragments},
           {Receiver::remote, Protocol::shared, fragments},
           {Receiver::remote, Protocol::pipelined, fragments_forced},
       }) {
    INFO(static_cast<int>(row.receiver) << ", forced: " << (row.forced ? protocol_name(*row.forced) : "none"));
    const Route route{.receiver = row.receiver, .forced = row.forced};
    CHECK(chosen_by_length(route) == row.chosen);
    CHECK(chosen_by_length(route, {.contiguous = true}) == row.chosen);
    CHECK(chosen_by_length(route, {.divided = true}) == staged);
    Route other = route;
    other.backing_off = true;
    CHECK(chosen_by_length(other) == (row.receiver == Receiver::sharing ? staged : row.chosen));
    other = route;
    other.mpi_takes_device_memory = other.host_memory_only = true;
    CHECK(chosen_by_length(other, {.contiguous = true}) == row.chosen);
  }
  CHECK(chosen_by_length({.receiver = Receiver::sharing, .expects_short = true}) == with_short);
  CHECK(chosen_by_length({.receiver = Receiver::sharing, .expects_short = true, .forced = Protocol::shared}) ==
        "-sssssssssss");
  CHECK(chosen_by_length({.receiver = Receiver::remote, .expects_short = true}) == fragments);
  CHECK(chosen_by_length({.mpi_takes_device_memory = true}) == "dddddddddddd");
  CHECK(chosen_by_length({.mpi_takes_device_memory = true, .forward_max = peer::longest_buffered}) == "ddddddd-----");
}

TEST_CASE("GPUDT_PROTOCOL forces a protocol where it can be taken", "[datatype][choose]") {
  const auto to = [](Receiver receiver, Protocol forced) {
    return chosen(very_long_bytes, {.receiver = receiver, .forced = forced});
  };
  CHECK(to(Receiver::sharing, Protocol::mapped_staging) == Protocol::mapped_staging);
  CHECK(to(Receiver::remote, Protocol::mapped_staging) == Protocol::mapped_staging);
  CHECK(to(Receiver::sharing, Protocol::peer) == Protocol::peer);
  CHECK(to(Receiver::sharing, Protocol::shared) == Protocol::shared);
  CHECK(to(Receiver::remote, Protocol::shared) == Protocol::pipelined);
  CHECK(to(Receiver::sharing, Protocol::pipelined) == Protocol::peer);  // a message to oneself: all others are remote
  CHECK(to(Receiver::none, Protocol::peer) == Protocol::mapped_staging);
}

TEST_CASE("the trace tells of each protocol what is in its way", "[datatype][choose]") {
  CHECK(comparison({.bytes = long_bytes}, {.receiver = Receiver::sharing, .forced = Protocol::shared}) ==
        "direct: MPI takes no device pointers; peer: GPUDT_PROTOCOL; shared: taken; pipelined: the receiver shares "
        "memory; device staging: MPI takes no device pointers; mapped staging: possible");
}

TEST_CASE("what keeps a single message from being offered", "[datatype][choose]") {
  const auto to_peer = [](const Message& message, const Route& route) {
    const Obstacle obstacle = row_of(Protocol::peer).obstacle(message, route);
    return std::string(obstacle != nullptr ? obstacle : "");
  };
  const Route unseen{.receiver = Receiver::unseen};
  CHECK(to_peer({.bytes = long_bytes}, unseen).empty());
  CHECK(to_peer({.bytes = peer::least_short}, unseen).empty());
  CHECK(to_peer({.bytes = long_bytes, .buffered = true}, unseen) ==
        "the send is buffered, or blocking and to the process itself");
  CHECK(to_peer({.bytes = long_bytes}, {.receiver = Receiver::sharing, .not_offered = "as found"}) == "as found");
  CHECK(to_peer({.bytes = long_bytes, .on_host = true}, unseen) == "the data are in host memory");
  CHECK(choose({.bytes = long_bytes, .on_host = true}, {.receiver = Receiver::sharing}) == Protocol::shared);
  CHECK(choose({.bytes = long_bytes, .on_host = true}, {.receiver = Receiver::remote}) == Protocol::mapped_staging);
  const Route on_device{.receiver = Receiver::sharing, .mpi_takes_device_memory = true};
  CHECK_FALSE(to_peer({.bytes = long_bytes}, on_device).empty());
  CHECK(choose({.bytes = long_bytes}, on_device) == Protocol::device_staging);
}

TEST_CASE("GPUDT_PROTOCOL takes what the table and the documentation name", "[datatype][choose]") {
  CHECK_FALSE(parse_protocol("auto").value().has_value());
  CHECK_FALSE(parse_protocol("").value().has_value());
  CHECK_FALSE(parse_protocol("direct").has_value());
  CHECK(protocol_values() == "auto, peer, shared, pipelined or staging");
  const std::string page = read_text("docs/variables.md");
  const std::size_t row = page.find("| `GPUDT_PROTOCOL` |");
  REQUIRE(row != std::string::npos);
  const std::string line = page.substr(row, page.find('\n', row) - row);
  for (const ProtocolRow& name : protocols) {
    if (name.value == nullptr) continue;
    INFO(name.value);
    CHECK(parse_protocol(name.value).value() == name.protocol);
    CHECK(line.find("`" + std::string(name.value) + "`") != std::string::npos);
  }
}

}  // namespace gpudt::interpose
