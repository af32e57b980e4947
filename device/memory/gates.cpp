#include "device/memory/gates.hpp"

#include <algorithm>

namespace gpudt::device {

bool Gate::has_told(std::uint32_t number) const {
  if (static_cast<std::int32_t>(told() - number) >= 0) return true;
  if (std::atomic_ref<std::uint32_t>(words_->given_up).load(std::memory_order_acquire) == number)
    throw Error(Failure::runtime, "its stream has not come to the operation in time");
  return false;
}

void Gate::ready_for_graph() const {
  for (std::uint32_t* const word : {&words_->told, &words_->done})
    std::atomic_ref<std::uint32_t>(*word).store(0, std::memory_order_release);
}

void Gate::tell_in(Meeting& meeting, std::uint32_t number) const {
  meeting.told = &words_->told;
  meeting.value = number;
}

void Gate::wait_in(Meeting& meeting, std::uint32_t number, bool closes) const {
  meeting.wait[meeting.waits++] = {&words_->done, number, closes};
}

void Gates::prepare(int ordinal) {
  const LockGuard lock(mutex_);
  for (const bool for_graph : {false, true})
    while (idle(ordinal, for_graph).empty()) add_chunk(ordinal, for_graph);
}

/// Numbers of a gate that has been for other operations never fall, since a stream may yet have to wait at it.
Gate* Gates::take(int ordinal, bool for_graph) {
  const LockGuard lock(mutex_);
  while (idle(ordinal, for_graph).empty()) add_chunk(ordinal, for_graph);
  std::vector<Gate*>& some = idle(ordinal, for_graph);
  Gate* const gate = some.back();
  some.pop_back();
  {
    const LockGuard guard(taking);
    taken.fetch_add(1, std::memory_order_acq_rel);
  }
  if (for_graph) gate->ready_for_graph();
  return gate;
}

void Gates::give(Gate* gate, bool for_graph) noexcept {
  const LockGuard lock(mutex_);
  idle(gate->ordinal(), for_graph).push_back(gate);  // there is room: add_chunk()
  taken.fetch_sub(1, std::memory_order_acq_rel);
}

std::vector<Gate*>& Gates::idle(int ordinal, bool for_graph) {
  const std::size_t place = 2 * static_cast<std::size_t>(ordinal) + (for_graph ? 1 : 0);
  if (idle_.size() <= place) idle_.resize(place + 1);
  return idle_[place];
}

/// For threads of the program, which may wait for launches. The mutex is not held meanwhile: it is taken to give gates
/// back.
void Gates::add_chunk(int ordinal, bool for_graph) {
  auto chunk = std::make_unique<Chunk>(Chunk{ordinal, nullptr, {}});
  chunk->gates.reserve(in_chunk);
  {
    const Unlocked unlocked(mutex_);
    chunk->words = static_cast<GateWords*>(runtime_.mapped_alloc(ordinal, in_chunk * sizeof(GateWords)));  // all zeros
  }
  std::vector<Gate*>& some = idle(ordinal, for_graph);
  some.reserve((chunks_.size() + 1) * in_chunk);
  chunks_.reserve(chunks_.size() + 1);
  for (std::size_t i = 0; i < in_chunk; ++i) {
    chunk->gates.emplace_back(ordinal, chunk->words + i);
    some.push_back(&chunk->gates.back());
  }
  chunks_.push_back(std::move(chunk));
}

}  // namespace gpudt::device
