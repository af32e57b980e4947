// The two directions of a ping-pong, by MPI with the user's datatype or by hand.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "pingpong/common/layouts.hpp"
#include "pingpong/common/movers.hpp"
#include "pingpong/common/pattern.hpp"

namespace gpudt::bench {

/// The memory of one rank: what it sends, what it receives into, and packed copies of both for the ways by hand.
struct Endpoint {
  MessageBuffer send, receive;
  Buffer send_staging, receive_staging;
  void reserve(const Message& message);
};

/// Moves one message; returns when the buffer may be used again or has been filled.
class Leg {
 public:
  virtual ~Leg() = default;
  virtual void run(int peer) = 0;
};

/// One way to send to the other rank and one to receive from it. Refers to the message and the endpoint.
struct Way {
  std::unique_ptr<Leg> send, receive;
};

/// MPI_Send and MPI_Recv with the message's datatype. `profiled`: through the names that a preloaded library may
/// have replaced; otherwise PMPI_Send and PMPI_Recv.
Way make_typed_way(const Message& message, const Endpoint& endpoint, bool profiled);

/// Packed with `mover` into pinned staging memory and sent as MPI_PACKED with PMPI_Send, and the same backwards;
/// on a side whose buffer is in host memory, the datatype alone.
Way make_staged_way(const Message& message, const Endpoint& endpoint, std::shared_ptr<Mover> mover);

/// One way between the two ranks, each of which builds the same one.
class PingPong {
 public:
  PingPong(int rank, const Message& message, Endpoint& endpoint, Way way)
      : rank_(rank), message_(&message), endpoint_(&endpoint), way_(std::move(way)) {}

  /// There and back once; microseconds for one direction (rank 0's clock counts). Collective.
  double round_trip();

  /// There and back with fresh data. What is wrong with what this rank received, if anything. Collective.
  std::optional<std::string> verified_round_trip(std::int64_t round);

 private:
  void exchange();
  int peer() const { return 1 - rank_; }
  int rank_;
  const Message* message_;
  Endpoint* endpoint_;
  Way way_;
};

}  // namespace gpudt::bench
