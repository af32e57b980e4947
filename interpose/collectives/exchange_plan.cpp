#include "interpose/collectives/exchange_plan.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "datatype/decode.hpp"

namespace gpudt::interpose {
namespace {

/// A communicator has few patterns: a halo or a transpose forth and back, for some fields.
constexpr std::size_t most_plans = 8;

bool same(const std::vector<BlockMessage>& some, const std::vector<BlockMessage>& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const BlockMessage& one, const BlockMessage& other) {
                      return one.buffer == other.buffer && one.count == other.count && one.type == other.type &&
                             one.rank == other.rank;
                    });
}

}  // namespace

bool Moves::hold_for(const std::vector<peer::Contribution>& now) const {
  return std::equal(all.begin(), all.end(), now.begin(), now.end(),
                    [](peer::Contribution before, const peer::Contribution& after) {
                      before.fit = after.fit;  // says nothing of the blocks
                      before.shares = after.shares;
                      return after.content != 0 && std::memcmp(&before, &after, sizeof before) == 0;
                    });
}

/// A single block is better moved as a message is, and blocks that are all contiguous by a kernel for these.
void Moves::prepare(int ordinal) {
  ++attempts;
  std::vector<device::SidePair> pairs;
  bool any_strided = false;
  for (const Move& move : moves) {
    if (move.contiguous && move.from.user == move.to.user) continue;
    if (!move.contiguous) any_strided = true;
    pairs.push_back({move.from, move.to});
  }
  if (any_strided && pairs.size() > 1) prepared = device::prepare(ordinal, pairs);
}

bool ExchangePlan::Memory::is_there(device::Importers by) const {
  if (ordinal < 0) return true;
  device::Exported now;
  return device::export_memory(ordinal, first_byte, now, by) && std::memcmp(&now, &exported, sizeof now) == 0;
}

std::shared_ptr<const Moves> ExchangePlan::moves() const {
  const LockGuard lock(mutex_);
  return moves_;
}

void ExchangePlan::keep(std::shared_ptr<const Moves> moves) const {
  const LockGuard lock(mutex_);
  moves_.swap(moves);
}

std::shared_ptr<const ExchangePlan> ExchangePlans::find(const BlockMessages& blocks, std::int64_t least,
                                                        device::Importers by) {
  const std::uint64_t freed = datatype::types_freed();
  std::erase_if(plans_, [freed](const auto& plan) { return plan->types_freed != freed; });
  const auto found = std::find_if(plans_.begin(), plans_.end(), [&](const auto& plan) {
    return plan->least == least && same(plan->listed.given, blocks.given) && same(plan->listed.taken, blocks.taken);
  });
  if (found == plans_.end()) return nullptr;
  if (!(*found)->sent.is_there(by) || !(*found)->received.is_there(by)) {
    plans_.erase(found);
    return nullptr;
  }
  std::rotate(found, found + 1, plans_.end());
  return plans_.back();
}

void ExchangePlans::add(std::shared_ptr<const ExchangePlan> plan) {
  if (plans_.size() == most_plans) plans_.erase(plans_.begin());
  plans_.push_back(std::move(plan));
}

}  // namespace gpudt::interpose
