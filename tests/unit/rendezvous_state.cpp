// The states of a rendezvous: each transition from each state, and each race of two transitions.
#include "interpose/shared/rendezvous_state.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

namespace gpudt::interpose::peer {
namespace {

using Checked = BasicRendezvousState<true>;
using Unchecked = BasicRendezvousState<false>;

/// What a transition comes to: whether it has been made, and, of a swap, the state that it found.
struct Result {
  bool made;
  std::optional<State> found;
  bool operator<(const Result& other) const { return std::tie(made, found) < std::tie(other.made, other.found); }
};

/// Makes the transition by its member function. Stores and overwrites that are refused throw.
template <class Rendezvous>
Result make(Rendezvous& state, Transition transition) {
  const auto swapped = [](typename Rendezvous::Outcome outcome) { return Result{outcome.made, outcome.found}; };
  const auto stored = [&](void (Rendezvous::*store)()) {
    try {
      (state.*store)();
      return Result{true, {}};
    } catch (const std::logic_error&) {
      return Result{false, {}};
    }
  };
  switch (transition) {
    case Transition::offer:
      return stored(&Rendezvous::offer);
    case Transition::announce:
      return stored(&Rendezvous::announce);
    case Transition::withdraw:
      return swapped(state.withdraw());
    case Transition::buffer:
      return swapped(state.buffer());
    case Transition::accept:
      return swapped(state.accept());
    case Transition::decline:
      return swapped(state.decline());
    case Transition::cancel_put:
      return stored(&Rendezvous::cancel_put);
    case Transition::finish_put:
      return stored(&Rendezvous::finish_put);
    case Transition::fail:
      return swapped(state.fail());
    case Transition::announce_failure:
      return swapped(state.announce_failure());
    case Transition::retract:
      return swapped(state.retract());
    case Transition::claim:
      return swapped(state.claim());
    case Transition::want_fragments:
      return stored(&Rendezvous::want_fragments);
    case Transition::request:
      return swapped(state.request());
    case Transition::ask:
      return stored(&Rendezvous::ask);
    case Transition::take_back:
      return swapped(state.take_back());
    case Transition::resume:
      return swapped(state.resume());
    case Transition::discard:
      return swapped(state.discard());
    case Transition::release:
      return stored(&Rendezvous::release);
  }
  return {};
}

/// As shared memory that another process has left in this state.
template <class Rendezvous>
void set(Rendezvous& state, State value) {
  static_assert(std::is_trivially_copyable_v<State> && sizeof(Rendezvous) == sizeof value);
  std::memcpy(static_cast<void*>(&state), &value, sizeof value);
}

std::vector<State> all_states() {
  std::vector<State> states;
  for (int state = 0; state < state_count; ++state) states.push_back(static_cast<State>(state));
  return states;
}

std::string named(const TransitionRow& row, State from) {
  return std::string(row.name) + " from " + state_name(from);
}

/// What the table says: the result, and the state afterwards.
std::pair<Result, State> expected(const TransitionRow& row, State from) {
  const bool made = row.from.contains(from);
  std::optional<State> found;
  if (row.manner == Manner::swap) found = from;
  return {{made, found}, made ? row.to : from};
}

/// Of two transitions at a time: the result of each, and the state afterwards.
using Both = std::tuple<Result, Result, State>;

/// As if one had been made after the other, whichever was first.
std::set<Both> allowed(const TransitionRow& one, const TransitionRow& other, State from) {
  const auto [first, after_first] = expected(one, from);
  const auto [second, after_second] = expected(other, after_first);
  const auto [second_alone, after_second_alone] = expected(other, from);
  const auto [first_late, after_both] = expected(one, after_second_alone);
  return {{first, second, after_second}, {first_late, second_alone, after_both}};
}

/// A thread that makes the transition of the other party when it is told to, so that a race is not one of starting.
template <class Rendezvous>
class OtherParty {
 public:
  OtherParty(Rendezvous& state, Transition transition)
      : thread_([this, &state, transition] {
          for (int round = 1;; ++round) {
            while (round_.load() < round) {
              if (stop_.load()) return;
              std::this_thread::yield();
            }
            result_ = make(state, transition);
            ended_.store(round);
          }
        }) {}
  ~OtherParty() {
    stop_.store(true);
    thread_.join();
  }
  void begin() { round_.store(++rounds_); }
  Result result() {
    while (ended_.load() < rounds_) std::this_thread::yield();
    return result_;
  }

 private:
  int rounds_ = 0;
  std::atomic<int> round_{0}, ended_{0};
  std::atomic<bool> stop_{false};
  Result result_{};
  std::thread thread_;
};

/// Makes both from `from`, many times; what comes of it must be allowed.
template <class Rendezvous>
void race(const TransitionRow& one, const TransitionRow& other, State from) {
  constexpr int rounds = 1000;
  Rendezvous state;
  const std::set<Both> right = allowed(one, other, from);
  int wrong = 0;
  OtherParty party(state, other.transition);
  for (int round = 0; round < rounds; ++round) {
    set(state, from);
    party.begin();
    for (int pause = round % 64; pause > 0; --pause) static_cast<void>(state.load());
    const Result first = make(state, one.transition);
    const Result second = party.result();
    if (!right.contains({first, second, state.load()})) ++wrong;
  }
  INFO(named(one, from) << " against " << other.name);
  CHECK(wrong == 0);
}

/// Of different parties, and not ordered by something else: who makes a store has the turn.
bool may_race(const TransitionRow& one, const TransitionRow& other, State from) {
  const auto races = [](const TransitionRow& row) {
    return row.manner == Manner::swap || row.transition == Transition::release;
  };
  return one.by == Party::sender && other.by == Party::receiver && one.from.contains(from) &&
         other.from.contains(from) && races(one) && races(other);
}

}  // namespace

TEST_CASE("a transition of a rendezvous is made from the states of its row, and from no other",
          "[datatype][rendezvous]") {
  for (const TransitionRow& row : transitions)
    for (const State from : all_states()) {
      Checked state;
      set(state, from);
      const Result result = make(state, row.transition);
      INFO(named(row, from));
      CHECK(result.made == row.from.contains(from));
      CHECK(state.load() == (result.made ? row.to : from));
      if (row.manner == Manner::swap) CHECK(result.found == from);
    }
}

TEST_CASE("what is not checked does the same where it is allowed", "[datatype][rendezvous]") {
  for (const TransitionRow& row : transitions)
    for (const State from : all_states()) {
      if (row.manner != Manner::swap && !row.from.contains(from)) continue;
      Unchecked state;
      set(state, from);
      INFO(named(row, from));
      CHECK(make(state, row.transition).made == row.from.contains(from));
      CHECK(state.load() == (row.from.contains(from) ? row.to : from));
    }
}

TEST_CASE("of two transitions at a time one sees what the other has done", "[datatype][rendezvous]") {
  int races = 0;
  for (const State from : all_states())
    for (const TransitionRow& one : transitions)
      for (const TransitionRow& other : transitions) {
        if (!may_race(one, other, from)) continue;
        race<Unchecked>(one, other, from);
        ++races;
      }
  CHECK(races > 20);
}

TEST_CASE("every state is reached, and left, but by messages that are over", "[datatype][rendezvous]") {
  for (const State state : all_states()) {
    INFO(state_name(state));
    const auto leaves = [=](const TransitionRow& row) { return row.from.contains(state) && row.to != state; };
    const auto reaches = [=](const TransitionRow& row) { return row.to == state; };
    CHECK(std::any_of(transitions.begin(), transitions.end(), leaves));
    CHECK((state == State::free || std::any_of(transitions.begin(), transitions.end(), reaches)));
  }
}

TEST_CASE("a message is open until somebody comes for it", "[datatype][rendezvous]") {
  for (const State from : all_states()) {
    Checked state;
    set(state, from);
    INFO(state_name(from));
    CHECK(state.is_open() == (from == State::offered || from == State::withdrawing || from == State::buffered));
  }
}

TEST_CASE("docs/ARCHITECTURE.md shows the transitions as they are", "[datatype][rendezvous]") {
  std::ifstream file(GPUDT_SOURCE_ROOT "/docs/ARCHITECTURE.md");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  INFO("it should have:\n" << transition_table());
  CHECK(text.find(transition_table()) != std::string::npos);
}

}  // namespace gpudt::interpose::peer
