#include "device/memory/gates.hpp"

#include <algorithm>

namespace gpudt::device {

bool Gate::take_told() const {
  const std::atomic_ref<std::uint32_t> told(words_->told);
  if (told.load(std::memory_order_acquire) != in_graph) return false;
  told.store(0, std::memory_order_relaxed);  // before the gate is opened, and so before the next launch
  return true;
}

void Gate::set(std::uint32_t number) const {
  for (std::uint32_t* const word : {&words_->told, &words_->done})
    std::atomic_ref<std::uint32_t>(*word).store(number, std::memory_order_release);
}

void Gate::tell_in(Meeting& meeting, std::uint32_t number) const {
  meeting.told = &words_->told;
  meeting.value = number;
}

void Gate::wait_in(Meeting& meeting, std::uint32_t number, bool closes) const {
  meeting.wait[meeting.waits++] = {&words_->done, number, closes};
}

Gates::~Gates() {
  if (any_taken()) return;
  for (const auto& chunk : chunks_) runtime_.mapped_free(chunk->ordinal, chunk->words);
}

void Gates::prepare(int ordinal) {
  const LockGuard lock(mutex_);
  if (idle(ordinal).empty()) add_chunk(ordinal);
}

Gate* Gates::take(int ordinal, bool for_graph) {
  const LockGuard lock(mutex_);
  std::vector<Gate*>& some = idle(ordinal);
  if (some.empty()) add_chunk(ordinal);
  Gate* const gate = some.back();
  some.pop_back();
  taken.fetch_add(1, std::memory_order_acq_rel);
  if (for_graph) gate->ready_for_graph();
  return gate;
}

void Gates::give(Gate* gate) noexcept {
  const LockGuard lock(mutex_);
  gate->ready_for_next();
  idle(gate->ordinal()).push_back(gate);  // there is room: add_chunk()
  taken.fetch_sub(1, std::memory_order_acq_rel);
}

std::vector<Gate*>& Gates::idle(int ordinal) {
  const auto place = static_cast<std::size_t>(ordinal);
  if (idle_.size() <= place) idle_.resize(place + 1);
  return idle_[place];
}

void Gates::add_chunk(int ordinal) {
  auto chunk = std::make_unique<Chunk>(Chunk{ordinal, nullptr, {}});
  chunk->gates.reserve(in_chunk);
  std::vector<Gate*>& some = idle(ordinal);
  some.reserve((chunks_.size() + 1) * in_chunk);
  chunks_.reserve(chunks_.size() + 1);
  chunk->words = static_cast<GateWords*>(runtime_.mapped_alloc(ordinal, in_chunk * sizeof(GateWords)));  // all zeros
  for (std::size_t i = 0; i < in_chunk; ++i) {
    chunk->gates.emplace_back(ordinal, chunk->words + i);
    some.push_back(&chunk->gates.back());
  }
  chunks_.push_back(std::move(chunk));
}

}  // namespace gpudt::device
