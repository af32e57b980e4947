#include "tests/random/messages_plan.hpp"

#include <algorithm>
#include <cmath>

namespace gpudt::test {
namespace {

constexpr std::int64_t budget = 24 << 20;         ///< bytes of one round
constexpr std::int64_t most_buffered = 64 << 10;  ///< bytes of one buffered message
constexpr std::int64_t buffered_budget = 6 << 20;
/// Longer ones come to Open MPI 4.1 in fragments. It may write beyond the end of a receive that is too short for them,
/// and beyond its own memory where an element of more than 16 bytes is divided.
constexpr std::int64_t most_eager = 3500;

/// What the messages of one round are like.
struct Flavour {
  int messages;
  std::int64_t largest;
  int sizes;         ///< 0: any, 1: around the sizes of the library's own messages, 2: short
  int on_device;     ///< of a hundred buffers
  int wildcards;     ///< of a hundred communicators
  int probes;        ///< of a hundred receives
  int odd_steps;     ///< of a hundred steps: other things than messages
  bool nonblocking;  ///< all sends
  int pairs;         ///< different (communicator, source, destination, tag); few make for long sequences
};

Flavour choose_flavour(Dice& dice) {
  Flavour flavour{};
  flavour.on_device = dice.pick(std::vector{0, 10, 50, 50, 90, 100});
  flavour.wildcards = dice.pick(std::vector{0, 0, 40, 100});
  flavour.probes = dice.pick(std::vector{0, 20, 60});
  flavour.odd_steps = dice.pick(std::vector{0, 10, 25});
  flavour.pairs = dice.pick(std::vector{1, 2, 5, 20, 100});
  flavour.sizes = dice.pick(std::vector{0, 0, 1, 1, 2});
  switch (dice.below(6)) {
    case 0:  // many in flight
      flavour.messages = dice.between(100, 500);
      flavour.largest = 4096;
      flavour.sizes = dice.between(1, 2);
      flavour.nonblocking = true;
      break;
    case 1:  // long ones
      flavour.messages = dice.between(2, 8);
      flavour.largest = dice.one_in(3) ? 5 << 20 : 1 << 20;
      flavour.sizes = 0;
      break;
    default:
      flavour.messages = dice.between(5, 60);
      flavour.largest = 64 << 10;
      flavour.nonblocking = dice.one_in(3);
  }
  return flavour;
}

std::int64_t size_of_flavour(Dice& dice, const Flavour& flavour) {
  if (flavour.sizes == 1 || (flavour.sizes == 0 && dice.one_in(3))) {
    // As long as RTS messages: compact ones, ordinary ones, or about as long.
    const int kind = dice.below(3);
    if (kind < 2) return kind == 0 ? 33 + 2 * dice.between(0, 31) : 515 + 2 * dice.between(0, 8);
    return dice.between(500, 800);
  }
  return random_size(dice, flavour.sizes == 2 ? 600 : flavour.largest);
}

bool nonblocking(Send send) {
  return send >= Send::isend;
}

bool ready(Send send) {
  return send == Send::rsend || send == Send::irsend;
}

bool buffered(Send send) {
  return send == Send::bsend || send == Send::ibsend || send == Send::binit;
}

class Planner {
 public:
  explicit Planner(const Context& context)
      : context_(context), dice_(mix(context.key, 2)), flavour_(choose_flavour(dice_)) {}

  MessagePlan make() {
    for (std::size_t i = 0; i < context_.communicators.size(); ++i)
      wildcards_.push_back(dice_.percent(flavour_.wildcards) ? static_cast<Wildcard>(dice_.between(1, 3))
                                                             : Wildcard::none);
    for (int i = 0; i < flavour_.pairs; ++i) pairs_.push_back(make_pair());
    for (int i = 0; i < flavour_.messages; ++i) {
      if (dice_.percent(flavour_.odd_steps)) add_odd_step();
      add_message();
    }
    level_wildcards();
    return std::move(plan_);
  }

 private:
  /// Messages of one pair overtake each other never.
  struct Pair {
    int comm, from, to, tag;
    bool posted_before;
  };

  Pair make_pair() {
    Pair pair{};
    pair.comm = dice_.below(static_cast<int>(context_.communicators.size()));
    const Communicator& comm = context_.communicators[static_cast<std::size_t>(pair.comm)];
    pair.from = dice_.pick(comm.inter() && dice_.one_in(2) ? comm.remote : comm.group);
    pair.to = dice_.pick(comm.peers_of(pair.from));
    pair.tag = dice_.one_in(8) ? dice_.between(0, 30000) : dice_.below(4);
    // Of receives that may take each other's messages all or none are posted before.
    const std::uint64_t group = wildcards_[static_cast<std::size_t>(pair.comm)] == Wildcard::none
                                    ? mix(static_cast<std::uint64_t>(pair.from), static_cast<std::uint64_t>(pair.tag))
                                    : 0;
    pair.posted_before = mix(mix(context_.key, group), static_cast<std::uint64_t>(pair.comm * 64 + pair.to)) % 10 < 3;
    return pair;
  }

  void add_message() {
    const Pair& pair = pairs_[static_cast<std::size_t>(dice_.below(flavour_.pairs))];
    Message message;
    message.comm = pair.comm, message.from = pair.from, message.to = pair.to, message.tag = pair.tag;
    message.posted_before = pair.posted_before;
    message.wildcard = wildcards_[static_cast<std::size_t>(pair.comm)];
    message.key = dice_.word();
    message.bytes = size_of_flavour(dice_, flavour_);
    if (used_ + message.bytes > budget) message.bytes = dice_.between(500, 800);
    message.from_place = context_.place(dice_, flavour_.on_device);
    message.to_place = context_.place(dice_, flavour_.on_device);
    choose_room(message);
    choose_ways(message);
    used_ += message.bytes;
    plan_.steps.push_back({StepKind::message, static_cast<int>(plan_.messages.size())});
    plan_.messages.push_back(message);
  }

  void choose_room(Message& message) {
    message.room = message.bytes;
    if (message.wildcard != Wildcard::none) return;  // level_wildcards
    // Of messages that are too long Open MPI 4.1 does not tell a process that has sent them to itself, nor does it
    // return from MPI_Waitall where there are threads; and it may overrun a random type that is received from the
    // process itself.
    const bool to_itself = message.from == message.to;
    if (!to_itself && dice_.one_in(10)) {
      message.random_receiver = dice_.one_in(2);
      message.random_receiver = message.random_receiver && message.receive_layout().bytes() <= most_eager;
      message.random_sender = !message.random_receiver;
      message.bytes = message.room = (message.random_sender ? message.send_layout() : message.receive_layout()).bytes();
    } else if (dice_.one_in(5)) {
      message.room += dice_.pick(std::vector{1, 2, 100, 5000});
    } else if (!to_itself && context_.single_threaded() && message.bytes > 0 && message.bytes <= most_eager &&
               dice_.one_in(12)) {
      message.room = dice_.below(static_cast<int>(message.bytes));
    }
  }

  void choose_ways(Message& message) {
    const bool quietly = flavour_.nonblocking || message.wildcard != Wildcard::none;
    do {
      message.send =
          static_cast<Send>(dice_.between(quietly ? static_cast<int>(Send::isend) : 0, static_cast<int>(Send::freed)));
    } while (
        (ready(message.send) && !message.posted_before) ||
        (buffered(message.send) && (message.bytes > most_buffered || buffered_ + message.bytes > buffered_budget)));
    if (buffered(message.send)) buffered_ += message.bytes + MPI_BSEND_OVERHEAD;
    plan_.needs_barrier |= ready(message.send);
    message.receive = dice_.pick(std::vector{Receive::recv, Receive::irecv, Receive::irecv, Receive::init});
    if (dice_.percent(flavour_.probes))
      message.receive = static_cast<Receive>(
          dice_.between(static_cast<int>(Receive::probe), static_cast<int>(Receive::improbe_irecv)));
    if (message.posted_before) message.receive = dice_.one_in(3) ? Receive::init : Receive::irecv;
    if (message.from == message.to && message.receive == Receive::recv && !nonblocking(message.send))
      message.receive = Receive::irecv;
    if (message.from == message.to && message.receive >= Receive::probe && !nonblocking(message.send))
      message.send = Send::isend;
    // Of persistent ones Open MPI 4.1 itself does not tell the errors in MPI_Testall and others.
    if (message.truncated() && message.receive == Receive::init) message.receive = Receive::irecv;
    message.ignores_status = dice_.one_in(6);
    cancel_first(message);
  }

  /// A receive of its own tag that is cancelled, and made again if that was in time. Where there are threads Open MPI
  /// loses messages that come from other processes meanwhile.
  void cancel_first(Message& message) {
    if (!context_.single_threaded() && message.from != message.to) return;
    if (message.wildcard != Wildcard::none || message.posted_before || !dice_.one_in(25)) return;
    message.tag = 20000 + static_cast<int>(plan_.messages.size());
    message.receive = Receive::cancelled_first;
    if (!nonblocking(message.send)) message.send = Send::isend;
  }

  /// Receives that may take each other's messages must have room for each.
  void level_wildcards() {
    for (Message& message : plan_.messages)
      if (message.wildcard != Wildcard::none)
        for (const Message& other : plan_.messages)
          if (other.comm == message.comm && other.to == message.to) message.room = std::max(message.room, other.bytes);
  }

  void add_odd_step() {
    Step step{static_cast<StepKind>(dice_.between(1, 4))};
    step.comm = dice_.below(static_cast<int>(context_.communicators.size()));
    step.way = dice_.below(1 << 20);
    step.key = dice_.word();
    const bool any_tag = wildcards_[static_cast<std::size_t>(step.comm)] >= Wildcard::tag;
    const bool inter = context_.communicators[static_cast<std::size_t>(step.comm)].inter();
    if (step.kind == StepKind::ring && (inter || any_tag)) return;
    if (step.kind == StepKind::collective && inter) return;
    plan_.steps.push_back(step);
  }

  const Context& context_;
  Dice dice_;
  Flavour flavour_;
  std::vector<Wildcard> wildcards_;  ///< of the receives on each communicator
  std::vector<Pair> pairs_;
  std::int64_t used_ = 0, buffered_ = 0;
  MessagePlan plan_;
};

}  // namespace

std::int64_t random_size(Dice& dice, std::int64_t most) {
  switch (dice.below(8)) {
    case 0:
      return dice.pick(std::vector{0, 0, 1, 2, 3, 4, 7, 8});
    case 1:
      return std::min<std::int64_t>(most, dice.between(500, 800));
    case 2: {  // about a power of two
      const auto exponent = dice.between(4, static_cast<int>(std::log2(static_cast<double>(most))));
      return std::min(most, (std::int64_t{1} << exponent) + dice.between(-2, 2));
    }
    default:
      return static_cast<std::int64_t>(
          std::exp2(dice.between(0, 1000) / 1000.0 * std::log2(static_cast<double>(most))));
  }
}

Layout Message::send_layout() const {
  Dice dice(mix(key, 1));
  if (random_sender) return Layout::random(dice, false);
  return random_receiver ? Layout::packed(bytes) : Layout::of_bytes(dice, bytes);
}

Layout Message::receive_layout() const {
  Dice dice(mix(key, 2));
  if (random_receiver) return Layout::random(dice, true);
  return random_sender ? Layout::packed(room) : Layout::of_bytes(dice, room);
}

std::vector<char> Message::stream() const {
  const Layout layout = send_layout();
  std::vector<char> region(static_cast<std::size_t>(layout.high() - layout.low())),
      stream(static_cast<std::size_t>(bytes));
  fill_pattern(region.data(), region.size(), key);
  layout.gather(region.data() - layout.low(), stream);
  return stream;
}

MessagePlan plan_messages(const Context& context) {
  return Planner(context).make();
}

}  // namespace gpudt::test
