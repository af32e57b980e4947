// Rounds of persistent requests, started again and again with other data.
#include <algorithm>

#include "tests/random/messages_plan.hpp"
#include "tests/random/requests.hpp"

namespace gpudt::test {
namespace {

constexpr int first_tag = 40, most_requests = 30, repetitions = 4;
/// So that one round's fit into the attached buffer.
constexpr std::int64_t most_buffered_persistent = 100000;

/// Open MPI itself sends wrong data from host memory when such a request is started again.
bool may_be_buffered(const Message& message) {
  return !host_only() && !on_host(message.from_place) && message.bytes <= most_buffered_persistent;
}

class PersistentRound {
 public:
  explicit PersistentRound(Context& context)
      : context_(context), dice_(mix(mix(context.key, 5), static_cast<std::uint64_t>(rank()))) {
    plan();
  }

  void run() {
    for (Pair& pair : pairs_) make(pair);
    for (int i = 0; i < repetitions; ++i) repeat(i);
    for (Pair& pair : pairs_)
      for (MPI_Request* request : {&pair.send, &pair.receive})
        if (*request != MPI_REQUEST_NULL) context_.check(MPI_Request_free(request), "MPI_Request_free");
  }

 private:
  struct Pair {
    Message message;
    std::optional<Layout> send_layout, receive_layout;
    Spot from, to;
    MPI_Request send = MPI_REQUEST_NULL, receive = MPI_REQUEST_NULL;
    int send_slot = -1, receive_slot = -1;
  };

  void plan() {
    Dice dice(mix(context_.key, 4));
    const int count = dice.between(1, most_requests), on_device = dice.pick(std::vector{0, 50, 100});
    for (int i = 0; i < count; ++i) {
      Message message;
      message.comm = dice.below(static_cast<int>(context_.communicators.size()));
      const Communicator& comm = context_.communicators[static_cast<std::size_t>(message.comm)];
      message.from = dice.pick(comm.group);
      message.to = dice.pick(comm.peers_of(message.from));
      message.tag = first_tag + i;
      message.bytes = message.room = random_size(dice, dice.one_in(10) ? 1 << 20 : 20000);
      message.send = dice.pick(std::vector{Send::init, Send::binit, Send::sinit, Send::rsend});
      message.from_place = context_.place(dice, on_device);
      message.to_place = context_.place(dice, on_device);
      if (message.send == Send::binit && !may_be_buffered(message)) message.send = Send::init;
      message.key = dice.word();
      pairs_.emplace_back();
      pairs_.back().message = message;
    }
    for (Pair& pair : pairs_) {
      const Message& message = pair.message;
      pair.send_layout = message.send_layout();
      if (message.from == rank())
        pair.from = reserve(context_, message.from_place, *pair.send_layout, pair.send_layout->count());
      if (message.to != rank()) continue;
      pair.receive_layout = message.receive_layout();
      pair.to = reserve(context_, message.to_place, *pair.receive_layout, pair.receive_layout->count());
    }
    context_.arenas.prepare(context_.key);
  }

  void make(Pair& pair) {
    const Message& message = pair.message;
    const Communicator& comm = context_.communicators[static_cast<std::size_t>(message.comm)];
    const auto function = message.send == Send::init    ? MPI_Send_init
                          : message.send == Send::binit ? MPI_Bsend_init
                          : message.send == Send::sinit ? MPI_Ssend_init
                                                        : MPI_Rsend_init;
    context_.step("making persistent requests");
    if (message.from == rank()) {
      const Layout& layout = *pair.send_layout;
      context_.check(function(pair.from.address(), layout.count(), layout.type(), comm.rank_of(message.to), message.tag,
                              comm.handle, &pair.send),
                     "a persistent send");
    }
    if (message.to == rank()) {
      const Layout& layout = *pair.receive_layout;
      context_.check(MPI_Recv_init(pair.to.address(), layout.count(), layout.type(), comm.rank_of(message.from),
                                   message.tag, comm.handle, &pair.receive),
                     "MPI_Recv_init");
    }
  }

  void repeat(int repetition) {
    const auto key = [&](const Pair& pair) { return mix(pair.message.key, static_cast<std::uint64_t>(repetition)); };
    for (Pair& pair : pairs_)
      if (pair.message.from == rank())
        fill_pattern(pair.from.image() + pair.send_layout->low(),
                     static_cast<std::size_t>(pair.send_layout->high() - pair.send_layout->low()), key(pair));
    context_.arenas.upload();
    Requests requests(context_, dice_.word(), true);
    start(requests, false);
    PMPI_Barrier(context_.control);  // for ready sends
    start(requests, true);
    requests.finish();
    context_.step("the barrier after a repetition");
    MPI_Barrier(context_.control);
    context_.arenas.download();
    for (Pair& pair : pairs_) verify(pair, key(pair), requests);
    context_.compare_memory();
  }

  /// All sends or all receives, one by one or together.
  void start(Requests& requests, bool sends) {
    std::vector<Pair*> mine;
    for (Pair& pair : pairs_)
      if ((sends ? pair.send : pair.receive) != MPI_REQUEST_NULL) mine.push_back(&pair);
    std::shuffle(mine.begin(), mine.end(), dice_.engine());
    std::vector<MPI_Request> together;
    for (Pair* pair : mine) together.push_back(sends ? pair->send : pair->receive);
    const bool all = !mine.empty() && dice_.one_in(2);
    context_.step(all ? "MPI_Startall" : "MPI_Start");
    if (all) context_.check(MPI_Startall(static_cast<int>(together.size()), together.data()), "MPI_Startall");
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (!all) context_.check(MPI_Start(&together[i]), "MPI_Start");
      (sends ? mine[i]->send_slot : mine[i]->receive_slot) = requests.add(together[i]);
    }
    for (std::size_t i = 0; sends && i < mine.size(); ++i) requests.act();
  }

  void verify(Pair& pair, std::uint64_t key, const Requests& requests) {
    const Message& message = pair.message;
    const std::string name = "persistent " + std::to_string(message.tag) + ", " + std::to_string(message.bytes) + " B";
    if (message.from == rank() && !context_.check(requests.outcome(pair.send_slot).error, "a send"))
      context_.fail(name);
    if (message.to != rank()) return;
    ++context_.messages;
    const Outcome& outcome = requests.outcome(pair.receive_slot);
    std::vector<char> stream(static_cast<std::size_t>(message.bytes)), found(stream.size());
    std::vector<char> region(static_cast<std::size_t>(pair.send_layout->high() - pair.send_layout->low()));
    fill_pattern(region.data(), region.size(), key);
    pair.send_layout->gather(region.data() - pair.send_layout->low(), stream);
    pair.receive_layout->gather(pair.to.found(), found);
    pair.receive_layout->scatter(pair.to.image(), stream);
    int count = -1;
    MPI_Get_count(&outcome.status, MPI_BYTE, &count);
    context_.check(outcome.error, "a receive");
    if (found != stream) context_.fail(name + ": wrong data");
    if (count != message.bytes || outcome.status.MPI_TAG != message.tag) context_.fail(name + ": wrong status");
    context_.log(name + " " + hash_of(found.data(), found.size()));
  }

  Context& context_;
  Dice dice_;
  std::vector<Pair> pairs_;
};

}  // namespace

void exchange_persistent(Context& context) {
  PersistentRound(context).run();
}

}  // namespace gpudt::test
