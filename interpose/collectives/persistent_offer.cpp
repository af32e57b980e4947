#include "interpose/collectives/persistent_offer.hpp"

#include <new>
#include <utility>

namespace gpudt::interpose {
namespace {

/// Boards for persistent requests; the others are for communicators.
constexpr std::size_t most_boards = peer::board_count / 2;

}  // namespace

PersistentOffer::PersistentOffer(std::shared_ptr<BoardGroup> group, PrepareOffer prepare)
    : group_(std::move(group)), prepare_(std::move(prepare)) {}

std::unique_ptr<PersistentOffer> PersistentOffer::make(CommState& state, PrepareOffer prepare) {
  const std::uint64_t key = state.members.key_of_request(++state.requests);
  auto group = std::make_shared<BoardGroup>(state.members, key, most_boards);
  if (!prepare) {
    group->decline_all();
    return nullptr;
  }
  return std::unique_ptr<PersistentOffer>(new PersistentOffer(std::move(group), std::move(prepare)));
}

std::unique_ptr<BoardCall> PersistentOffer::next(bool declines) {
  try {
    if (!declines && may_offer(*group_)) return prepare_(group_);
  } catch (const std::bad_alloc&) {  // this process declines
  }
  group_->decline();
  return nullptr;
}

}  // namespace gpudt::interpose
