// The messages of one round, the same on all ranks: who sends what to whom, how, and in which order.
//
// Every rank goes through the steps in their order and does its part of each. No rank ever waits for a later step of
// another one, so that nothing can hang however much MPI synchronises: the lowest step that somebody waits in has been
// begun by all that it needs. Receives with wildcards may take messages of later steps; the sends that they can take
// are therefore nonblocking, and waited for only when all steps have been begun.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/random/layout.hpp"
#include "tests/random/session.hpp"

namespace gpudt::test {

enum class Send { send, bsend, ssend, rsend, isend, ibsend, issend, irsend, init, binit, sinit, freed };
enum class Receive { recv, irecv, init, probe, iprobe, mprobe, improbe, mprobe_irecv, improbe_irecv, cancelled_first };
enum class Wildcard { none, source, tag, both };

struct Message {
  int comm = 0;          ///< index of the communicator
  int from = 0, to = 0;  ///< ranks of MPI_COMM_WORLD
  int tag = 0;
  std::int64_t bytes = 0;
  std::int64_t room = 0;  ///< bytes that the receive takes: less than `bytes` where it is truncated
  Send send = Send::send;
  Receive receive = Receive::recv;
  Place from_place = Place::host, to_place = Place::host;
  Wildcard wildcard = Wildcard::none;                   ///< of its receive
  bool posted_before = false;                           ///< received by a request that is made before all steps
  bool ignores_status = false;                          ///< of a blocking receive
  bool random_sender = false, random_receiver = false;  ///< one side has a random type, the other one MPI_PACKED
  std::uint64_t key = 0;

  bool truncated() const { return room < bytes; }
  Layout send_layout() const;
  Layout receive_layout() const;
  /// What is sent, packed.
  std::vector<char> stream() const;
};

enum class StepKind { message, ring, nowhere, unmatched, collective };

struct Step {
  StepKind kind;
  int index = 0;  ///< of the message
  int comm = 0;
  int way = 0;
  std::uint64_t key = 0;
};

struct MessagePlan {
  std::vector<Message> messages;
  std::vector<Step> steps;
  bool needs_barrier = false;  ///< before the steps: a ready send needs its receive
};

MessagePlan plan_messages(const Context& context);

/// Sizes with an emphasis on those at which something changes.
std::int64_t random_size(Dice& dice, std::int64_t most);

}  // namespace gpudt::test
