// Calls of psend_init and precv_init as all processes know them: which match, and where the words of each lie.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "initiated/error.hpp"

namespace gpudt::initiated {

/// A call of psend_init or precv_init, as processes exchange it. Plain data.
struct PartitionedCall {
  std::int32_t sends = 0;
  std::int32_t partner = -1;  ///< a process; -1: MPI_PROC_NULL
  std::int32_t tag = 0;
  std::int32_t partitions = 1;
  std::int64_t count = 0;          ///< elements of a partition
  std::int64_t bytes = 0;          ///< packed, of a partition
  std::int64_t address = 0;        ///< of a receive: its buffer's, in its process,
  std::int64_t low = 0, high = 0;  ///< the bytes from there that are touched,
  std::int64_t layout_bytes = 0;   ///< and its datatype's, serialised
};

/// By process, in the order of its calls.
using PartitionedCalls = std::vector<std::vector<PartitionedCall>>;

/// Words of a request in its process's part of a window of the World. A send has the last round that its receiver has
/// granted, the round, and how many partitions are complete; then a Ticket for each partition. A receive has the round;
/// then a flag for each partition of the sender. What different processes write is in different lines of 128 bytes.
constexpr std::int64_t granted_word = 0, round_word = 16, completed_word = 17, first_word = 32, words_step = 16;

inline std::int64_t words_of(const PartitionedCall& call, std::int64_t flags) {
  const std::int64_t words = first_word + (call.sends != 0 ? (call.partitions + 1) / 2 : flags);
  return (words + words_step - 1) / words_step * words_step;
}

/// What matches a call.
struct PartitionedMatch {
  int call = -1;           ///< of the partner; -1: none, for MPI_PROC_NULL
  std::int64_t words = 0;  ///< where those of the call begin
};

class CallMatcher {
 public:
  /// Sends and receives of two processes with one tag match in the order of their calls. Throws Error where one is left
  /// over, or if the two have not as many bytes.
  explicit CallMatcher(const PartitionedCalls& calls) : calls_(calls), matches_(calls.size()) {
    for (std::size_t process = 0; process < calls.size(); ++process)
      for (std::size_t i = 0; i < calls[process].size(); ++i) {
        const PartitionedCall& call = calls[process][i];
        const auto me = static_cast<std::int32_t>(process);
        const Route route = call.sends != 0 ? Route{me, call.partner, call.tag} : Route{call.partner, me, call.tag};
        if (call.partner >= 0) routes_[route][call.sends != 0 ? 0 : 1].push_back(static_cast<int>(i));
        matches_[process].emplace_back();
      }
    for (const auto& [route, sides] : routes_) match(route, sides[0], sides[1]);
    place_words();
  }

  const PartitionedMatch& of(int process, int call) const {
    return matches_[static_cast<std::size_t>(process)][static_cast<std::size_t>(call)];
  }
  /// Words of the process that has most, and of receives.
  std::int64_t most_words() const { return most_words_; }
  int most_receives() const { return most_receives_; }

 private:
  using Route = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  ///< sender, receiver, tag
  using Numbers = std::vector<int>;

  static std::string text_of(const Route& route) {
    return "from process " + std::to_string(std::get<0>(route)) + " to process " + std::to_string(std::get<1>(route)) +
           " with tag " + std::to_string(std::get<2>(route));
  }
  const PartitionedCall& call(std::int32_t process, int number) const {
    return calls_[static_cast<std::size_t>(process)][static_cast<std::size_t>(number)];
  }
  void match(const Route& route, const Numbers& sends, const Numbers& receives) {
    if (sends.size() != receives.size())
      throw Error("World::match: " + std::to_string(sends.size()) + " calls of psend_init and " +
                  std::to_string(receives.size()) + " of precv_init " + text_of(route));
    const auto [sender, receiver, tag] = route;
    for (std::size_t i = 0; i < sends.size(); ++i) {
      const PartitionedCall &send = call(sender, sends[i]), &receive = call(receiver, receives[i]);
      if (send.partitions * send.bytes != receive.partitions * receive.bytes)
        throw Error("World::match: " + std::to_string(send.partitions) + " partitions of " +
                    std::to_string(send.bytes) + " bytes, and of the receive " + std::to_string(receive.partitions) +
                    " of " + std::to_string(receive.bytes) + ", " + text_of(route));
      matches_[static_cast<std::size_t>(sender)][static_cast<std::size_t>(sends[i])].call = receives[i];
      matches_[static_cast<std::size_t>(receiver)][static_cast<std::size_t>(receives[i])].call = sends[i];
    }
  }
  void place_words() {
    for (std::size_t process = 0; process < calls_.size(); ++process) {
      std::int64_t words = 0;
      int receives = 0;
      for (std::size_t i = 0; i < calls_[process].size(); ++i) {
        const PartitionedCall& mine = calls_[process][i];
        PartitionedMatch& match = matches_[process][i];
        match.words = words;
        words += words_of(mine, match.call < 0 ? 0 : call(mine.partner, match.call).partitions);
        receives += mine.sends != 0 ? 0 : 1;
      }
      most_words_ = std::max(most_words_, words);
      most_receives_ = std::max(most_receives_, receives);
    }
  }

  const PartitionedCalls& calls_;
  std::vector<std::vector<PartitionedMatch>> matches_;
  std::map<Route, std::array<Numbers, 2>> routes_;  ///< sends, receives
  std::int64_t most_words_ = 0;
  int most_receives_ = 0;
};

/// How a send's partitions lie on both sides: `from`, `to` and steps of KernelRequest. If a partition of the sender
/// consists of whole elements of the receiver, the layouts are those of one partition, and addresses move from one to
/// the next: the places of words that a block keeps (KnownMove) serve all. Otherwise the layouts are those of the whole
/// message, and a partition is a range of its packed bytes.
struct PartitionSteps {
  std::int64_t from_count, to_count;  ///< elements that the layouts are of
  std::int64_t from_step, to_step, begin_step;
};
inline PartitionSteps steps_of(const PartitionedCall& send, std::int64_t from_extent, const PartitionedCall& receive,
                               std::int64_t to_extent) {
  const std::int64_t to_size = receive.count > 0 ? receive.bytes / receive.count : 0;
  if (to_size == 0 || send.bytes % to_size != 0)
    return {send.partitions * send.count, receive.partitions * receive.count, 0, 0, send.bytes};
  const std::int64_t to_count = send.bytes / to_size;
  return {send.count, to_count, send.count * from_extent, to_count * to_extent, 0};
}

}  // namespace gpudt::initiated
