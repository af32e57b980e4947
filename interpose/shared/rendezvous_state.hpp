// The state of one offered message, in the descriptor of its sender's segment (shared/shared_segment.hpp):
// whose turn it is, and what becomes of the data. `transitions` lists every change of it, RendezvousState has one
// member function for each, and nothing else writes it.
//
// A process of another node sees an image of the descriptor, with a state of its own. Transitions `by` a process that
// shares no memory arrive as control messages (transport/internode/control_messages.hpp) and are made by their
// receiver.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace gpudt::interpose::peer {

enum class State : std::uint32_t {
  free,     ///< no message yet: what a segment begins with
  offered,  ///< the receiver's turn, when it has got the RTS; or the sender's, to take the offer back
  claimed,  ///< the receiver reads the sender's device memory
  asked,  ///< the receiver asks the sender to write into its memory; the sender may accept or decline, the receiver may
          ///< take the request back
  putting,           ///< the sender is writing to the receiver's memory
  put,               ///< the data are there; the send is complete
  declined,          ///< the sender does not write: the receiver's turn, as in `claimed`
  fragments_wanted,  ///< the receiver cannot read that memory: the sender's turn, to send fragments
  withdrawing,       ///< the sender is moving the data to the descriptor
  buffered,          ///< the data are in the descriptor; the send is complete
  failed,            ///< the send has failed: the message is lost, and the receive fails
  done,              ///< the receiver needs nothing more: the descriptor can have another message
};
inline constexpr int state_count = 12;
const char* state_name(State state);

class StateSet {
 public:
  constexpr StateSet(State state) : bits_(bit(state)) {}  // NOLINT(google-explicit-constructor): a set of one
  constexpr StateSet(std::initializer_list<State> states) {
    for (const State state : states) bits_ |= bit(state);
  }
  constexpr bool contains(State state) const { return (bits_ & bit(state)) != 0; }
  constexpr bool is_one(State state) const { return bits_ == bit(state); }
  constexpr bool meets(StateSet other) const { return (bits_ & other.bits_) != 0; }

 private:
  static constexpr unsigned bit(State state) { return 1U << static_cast<unsigned>(state); }
  unsigned bits_ = 0;
};

enum class Party { sender, receiver };

enum class Transition {
  offer,
  announce,
  withdraw,
  buffer,
  accept,
  decline,
  cancel_put,
  finish_put,
  fail,
  announce_failure,
  retract,
  claim,
  want_fragments,
  request,
  ask,
  take_back,
  resume,
  discard,
  release,
};

/// How a transition is made, which depends on what the other party may do meanwhile.
enum class Manner {
  swap,       ///< compare-and-swap: the other party may leave these states, too; the loser sees that
  store,      ///< the other party waits in these states
  overwrite,  ///< a concurrent change by the other party is ignored
};

struct TransitionRow {
  Transition transition;
  const char* name;
  StateSet from;
  State to;
  Party by;
  Manner manner;
  const char* when;
};

namespace detail {
inline constexpr StateSet reusable = {State::free, State::done};
inline constexpr StateSet of_an_image = {State::free,   State::offered, State::claimed, State::fragments_wanted,
                                         State::failed, State::done};
inline constexpr StateSet unclaimed = {State::offered, State::withdrawing, State::buffered};
inline constexpr StateSet unknown_to_receiver = {State::free, State::offered, State::withdrawing, State::buffered,
                                                 State::failed};
inline constexpr StateSet needing_sender = {State::offered,          State::asked,      State::putting, State::declined,
                                            State::fragments_wanted, State::withdrawing};
inline constexpr StateSet known_to_receiver = {
    State::offered,          State::claimed,     State::putting,  State::put,    State::declined,
    State::fragments_wanted, State::withdrawing, State::buffered, State::failed, State::done};
}  // namespace detail

inline constexpr std::array<TransitionRow, 19> transitions = {{
    {Transition::offer, "offer", detail::reusable, State::offered, Party::sender, Manner::store,
     "the message is described, its RTS about to be sent"},
    {Transition::announce, "announce", detail::of_an_image, State::offered, Party::sender, Manner::overwrite,
     "(receiver's copy of a remote descriptor) a control message announced a new message, or its RTS arrived"},
    {Transition::withdraw, "withdraw", State::offered, State::withdrawing, Party::sender, Manner::swap,
     "no receiver has claimed the short message in time: its data are being copied into the segment so that the send "
     "can complete"},
    {Transition::buffer, "buffer", State::withdrawing, State::buffered, Party::sender, Manner::swap,
     "the data are in the segment; the send completes"},
    {Transition::accept, "accept", State::asked, State::putting, Party::sender, Manner::swap,
     "it writes to the receiver's memory, which stays mapped meanwhile"},
    {Transition::decline, "decline", State::asked, State::declined, Party::sender, Manner::swap,
     "the sender cannot write"},
    {Transition::cancel_put, "cancel_put", State::putting, State::declined, Party::sender, Manner::store,
     "mapping the receiver's memory failed"},
    {Transition::finish_put, "finish_put", State::putting, State::put, Party::sender, Manner::store,
     "the data are in the receiver's memory, and the send ends"},
    {Transition::fail, "fail", detail::needing_sender, State::failed, Party::sender, Manner::swap,
     "the send is given up after an error: the message is lost, and the receive fails"},
    {Transition::announce_failure, "announce_failure", State::offered, State::failed, Party::sender, Manner::swap,
     "in an image: the control message that the offer is void"},
    {Transition::retract, "retract", detail::unknown_to_receiver, State::done, Party::sender, Manner::swap,
     "MPI did not send the RTS; the message is dropped"},
    {Transition::claim, "claim", State::offered, State::claimed, Party::receiver, Manner::swap,
     "it received the RTS and will read the sender's memory"},
    {Transition::want_fragments, "want_fragments", State::claimed, State::fragments_wanted, Party::receiver,
     Manner::store, "it does not reach that memory: the data are to come in fragments"},
    {Transition::request, "request", State::offered, State::fragments_wanted, Party::receiver, Manner::swap,
     "the same by control message, of a receiver on another node"},
    {Transition::ask, "ask", State::claimed, State::asked, Party::receiver, Manner::store,
     "the sender is to write the data, which it would have to pack, or as both processes use one GPU"},
    {Transition::take_back, "take_back", State::asked, State::claimed, Party::receiver, Manner::swap,
     "the sender takes too long to answer, or the receive fails"},
    {Transition::resume, "resume", State::declined, State::claimed, Party::receiver, Manner::swap,
     "the sender has declined: the data are fetched, or come in fragments"},
    {Transition::discard, "discard", detail::unclaimed, State::done, Party::receiver, Manner::swap,
     "the receive had no room for the RTS: the message is truncated, and its sender goes on"},
    {Transition::release, "release", detail::known_to_receiver, State::done, Party::receiver, Manner::overwrite,
     "the data are there, or the receive has failed; from putting only if the sender has ended"},
}};

constexpr const TransitionRow& row_of(Transition transition) {
  return transitions[static_cast<std::size_t>(transition)];
}

/// The table in Markdown, as docs/ARCHITECTURE.md shows it.
std::string transition_table();

namespace detail {

consteval bool rows_are_in_order() {
  for (std::size_t row = 0; row < transitions.size(); ++row)
    if (static_cast<std::size_t>(transitions[row].transition) != row) return false;
  return true;
}
static_assert(rows_are_in_order());

consteval bool stores_are_safe() {
  for (const TransitionRow& row : transitions)
    for (const TransitionRow& other : transitions)
      if (row.manner == Manner::store && other.manner != Manner::overwrite && row.by != other.by &&
          row.from.meets(other.from))
        return false;
  return true;
}
static_assert(stores_are_safe(), "the other party may leave a state that this one leaves by a store");

}  // namespace detail

#ifdef GPUDT_CHECK_TRANSITIONS
inline constexpr bool check_transitions = true;
#else
inline constexpr bool check_transitions = false;
#endif

/// Lies in shared memory: it is as long as a State, and all zeros are State::free. With `checked`, a store or overwrite
/// from a state that its row does not list throws std::logic_error and changes nothing.
template <bool checked>
class BasicRendezvousState {
 public:
  /// The result of a swap: whether the transition was made, and the state found, which has allowed it or not.
  struct Outcome {
    bool made;
    State found;
    explicit operator bool() const { return made; }
  };

  State load() const { return state_.load(std::memory_order_acquire); }
  /// Whether the receiver has not claimed the message yet.
  bool is_open() const { return detail::unclaimed.contains(load()); }

  // --- of the sender
  void offer() { store<Transition::offer>(); }
  void announce() { store<Transition::announce>(); }
  Outcome withdraw() { return swap<Transition::withdraw>(); }
  Outcome buffer() { return swap<Transition::buffer>(); }
  Outcome accept() { return swap<Transition::accept>(); }
  Outcome decline() { return swap<Transition::decline>(); }
  void cancel_put() { store<Transition::cancel_put>(); }
  void finish_put() { store<Transition::finish_put>(); }
  Outcome fail() { return swap<Transition::fail>(); }
  Outcome announce_failure() { return swap<Transition::announce_failure>(); }
  Outcome retract() { return swap<Transition::retract>(); }

  // --- of the receiver
  Outcome claim() { return swap<Transition::claim>(); }
  void want_fragments() { store<Transition::want_fragments>(); }
  Outcome request() { return swap<Transition::request>(); }
  void ask() { store<Transition::ask>(); }
  Outcome take_back() { return swap<Transition::take_back>(); }
  Outcome resume() { return swap<Transition::resume>(); }
  Outcome discard() { return swap<Transition::discard>(); }
  void release() { store<Transition::release>(); }

 private:
  template <Transition transition>
  Outcome swap() {
    constexpr const TransitionRow& row = row_of(transition);
    static_assert(row.manner == Manner::swap);
    constexpr State first = first_of(row.from);
    if constexpr (row.from.is_one(first)) {
      State found = first;
      const bool made = state_.compare_exchange_strong(found, row.to);
      return {made, found};
    } else {
      State found = load();
      while (row.from.contains(found))
        if (state_.compare_exchange_weak(found, row.to)) return {true, found};
      return {false, found};
    }
  }

  template <Transition transition>
  void store() {
    constexpr const TransitionRow& row = row_of(transition);
    static_assert(row.manner != Manner::swap);
    if constexpr (checked)
      if (const State found = load(); !row.from.contains(found))
        throw std::logic_error(std::string("rendezvous: ") + row.name + " from state " + state_name(found));
    state_.store(row.to, std::memory_order_release);
  }

  static constexpr State first_of(StateSet states) {
    int state = 0;
    while (!states.contains(static_cast<State>(state))) ++state;
    return static_cast<State>(state);
  }

  std::atomic<State> state_;
};

using RendezvousState = BasicRendezvousState<check_transitions>;
static_assert(std::atomic<State>::is_always_lock_free && sizeof(RendezvousState) == sizeof(State));

}  // namespace gpudt::interpose::peer
