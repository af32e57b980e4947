// Rounds of point-to-point messages (messages_plan.hpp).
#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>

#include "tests/random/messages_plan.hpp"
#include "tests/random/requests.hpp"

namespace gpudt::test {
namespace {

constexpr int ring_tag = 10000, unmatched_tag = 31000;
constexpr int collective_count = 100;

/// One message as this rank sees it: its buffers, and what became of it.
struct Part {
  std::optional<Layout> send_layout, receive_layout;
  Spot from, to;
  int send_slot = -1, receive_slot = -1;
  bool status_known = false;
};

class MessageRound {
 public:
  explicit MessageRound(Context& context)
      : context_(context),
        plan_(plan_messages(context)),
        parts_(plan_.messages.size()),
        dice_(mix(mix(context.key, 3), static_cast<std::uint64_t>(rank()))),
        requests_(context, dice_.word()) {}

  void run() {
    reserve_buffers();
    context_.arenas.prepare(context_.key);
    for (std::size_t i = 0; i < plan_.messages.size(); ++i) fill(i);
    context_.arenas.upload();
    for (std::size_t i = 0; i < plan_.messages.size(); ++i)
      if (receives(i) && plan_.messages[i].posted_before) receive(i);
    context_.step("the barrier before the steps");
    if (plan_.needs_barrier) PMPI_Barrier(context_.control);
    for (const Step& step : plan_.steps) {
      take(step);
      requests_.act();
      if (dice_.one_in(40)) std::this_thread::sleep_for(std::chrono::microseconds(dice_.below(2000)));
    }
    cancel_unmatched();
    requests_.finish();
    context_.step("the barrier after the steps");
    MPI_Barrier(context_.control);
    verify();
  }

 private:
  const Communicator& comm_of(const Message& message) const {
    return context_.communicators[static_cast<std::size_t>(message.comm)];
  }
  bool sends(std::size_t i) const { return plan_.messages[i].from == rank(); }
  bool receives(std::size_t i) const { return plan_.messages[i].to == rank(); }
  std::string name(std::size_t i) const {
    const Message& m = plan_.messages[i];
    return "message " + std::to_string(i) + ": " + std::to_string(m.from) + " to " + std::to_string(m.to) +
           ", communicator " + std::to_string(m.comm) + ", tag " + std::to_string(m.tag) + ", " +
           std::to_string(m.bytes) + " B from " + place_name(m.from_place) + " by way " +
           std::to_string(static_cast<int>(m.send)) + ", room for " + std::to_string(m.room) + " in " +
           place_name(m.to_place) + std::string(m.posted_before ? ", posted before" : "") + ", received by way " +
           std::to_string(static_cast<int>(m.receive)) +
           (m.wildcard != Wildcard::none ? ", wildcard " + std::to_string(static_cast<int>(m.wildcard)) : "");
  }

  // --- before ---

  void reserve_buffers() {
    for (std::size_t i = 0; i < plan_.messages.size(); ++i) {
      const Message& message = plan_.messages[i];
      Part& part = parts_[i];
      const int skew = mix(message.key, 5) % 3 == 0 ? static_cast<int>(message.key % 16) : 0;
      if (sends(i)) {
        part.send_layout = message.send_layout();
        part.from = reserve(context_, message.from_place, *part.send_layout, part.send_layout->count(), skew);
      }
      if (receives(i)) {
        part.receive_layout = message.receive_layout();
        part.to = reserve(context_, message.to_place, *part.receive_layout, part.receive_layout->count(), skew);
      }
    }
    const Layout unmatched = Layout::packed(2000);
    for (const Place place : basic_places) unmatched_.push_back(reserve(context_, place, unmatched, 2000));
  }

  void fill(std::size_t i) {
    if (!sends(i)) return;
    const Layout& layout = *parts_[i].send_layout;
    fill_pattern(parts_[i].from.image() + layout.low(), static_cast<std::size_t>(layout.high() - layout.low()),
                 plan_.messages[i].key);
  }

  // --- the steps ---

  void take(const Step& step) {
    const Communicator& comm = context_.communicators[static_cast<std::size_t>(step.comm)];
    switch (step.kind) {
      case StepKind::message:
        return message(static_cast<std::size_t>(step.index));
      case StepKind::ring:
        if (comm.has(rank())) ring(step, comm);
        return;
      case StepKind::nowhere:
        if (comm.has(rank())) nowhere(step, comm);
        return;
      case StepKind::unmatched:
        if (comm.has(rank())) post_unmatched(step, comm);
        return;
      case StepKind::collective:
        if (comm.has(rank())) collective(step, comm);
    }
  }

  void message(std::size_t i) {
    if (!sends(i) && !receives(i)) return;
    context_.step(name(i));
    const bool receive_now = receives(i) && !plan_.messages[i].posted_before;
    const bool first = plan_.messages[i].send < Send::isend;  // a blocking send to oneself needs its receive
    if (receive_now && first) receive(i);
    if (sends(i)) send(i);
    if (receive_now && !first) receive(i);
  }

  void send(std::size_t i) {
    const Message& message = plan_.messages[i];
    Part& part = parts_[i];
    const Communicator& comm = comm_of(message);
    const int to = comm.rank_of(message.to), count = part.send_layout->count();
    const MPI_Datatype type = part.send_layout->type();
    const auto call = [&](auto function) {
      return function(part.from.address(), count, type, to, message.tag, comm.handle);
    };
    MPI_Request request = MPI_REQUEST_NULL;
    const auto start = [&](auto function) {
      return function(part.from.address(), count, type, to, message.tag, comm.handle, &request);
    };
    int error = MPI_SUCCESS;
    switch (message.send) {
      case Send::send:
        error = call(MPI_Send);
        break;
      case Send::bsend:
        error = call(MPI_Bsend);
        break;
      case Send::ssend:
        error = call(MPI_Ssend);
        break;
      case Send::rsend:
        error = call(MPI_Rsend);
        break;
      case Send::isend:
      case Send::freed:
        error = start(MPI_Isend);
        break;
      case Send::ibsend:
        error = start(MPI_Ibsend);
        break;
      case Send::issend:
        error = start(MPI_Issend);
        break;
      case Send::irsend:
        error = start(MPI_Irsend);
        break;
      case Send::init:
        error = start(MPI_Send_init);
        break;
      case Send::binit:
        error = start(MPI_Bsend_init);
        break;
      case Send::sinit:
        error = start(MPI_Ssend_init);
        break;
    }
    if (message.send >= Send::init && message.send <= Send::sinit) context_.check(MPI_Start(&request), "MPI_Start");
    context_.check(error, "a send");
    if (message.send == Send::freed) MPI_Request_free(&request);
    if (request != MPI_REQUEST_NULL)
      part.send_slot =
          requests_.add(request, message.wildcard == Wildcard::none && message.receive != Receive::cancelled_first
                                     ? After::anything
                                     : After::everything);
    if (dice_.one_in(4)) part.send_layout->free_type();
  }

  void receive(std::size_t i) {
    const Message& message = plan_.messages[i];
    const Communicator& comm = comm_of(message);
    const bool any_source = message.wildcard == Wildcard::source || message.wildcard == Wildcard::both;
    const bool any_tag = message.wildcard == Wildcard::tag || message.wildcard == Wildcard::both;
    Envelope envelope{any_source ? MPI_ANY_SOURCE : comm.rank_of(message.from), any_tag ? MPI_ANY_TAG : message.tag,
                      comm.handle};
    if (message.wildcard != Wildcard::none) in_order_[message.comm].push_back(i);
    if (message.receive >= Receive::probe && message.receive <= Receive::improbe_irecv)
      receive_probed(i, envelope);
    else if (message.receive == Receive::cancelled_first)
      receive_cancelled(i, envelope);
    else
      receive_plainly(i, envelope, message.receive);
    if (dice_.one_in(4)) parts_[i].receive_layout->free_type();
  }

  struct Envelope {
    int source, tag;
    MPI_Comm comm;
  };

  void receive_plainly(std::size_t i, const Envelope& envelope, Receive way) {
    Part& part = parts_[i];
    void* address = part.to.address();
    const int count = part.receive_layout->count();
    const MPI_Datatype type = part.receive_layout->type();
    if (way == Receive::recv) {
      const Message& message = plan_.messages[i];
      const bool ignore =
          message.ignores_status && message.wildcard == Wildcard::none && message.receive == Receive::recv;
      MPI_Status status = {};
      const int error = MPI_Recv(address, count, type, envelope.source, envelope.tag, envelope.comm,
                                 ignore ? MPI_STATUS_IGNORE : &status);
      part.receive_slot = requests_.add_done(error, status);
      part.status_known = !ignore;
      return;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    const auto function = way == Receive::init ? MPI_Recv_init : MPI_Irecv;
    context_.check(function(address, count, type, envelope.source, envelope.tag, envelope.comm, &request), "a receive");
    if (way == Receive::init) context_.check(MPI_Start(&request), "MPI_Start");
    // One that is made before the steps may be for a later one.
    part.receive_slot = requests_.add(request, plan_.messages[i].posted_before ? After::everything : After::anything,
                                      plan_.messages[i].truncated());
    part.status_known = true;
  }

  void receive_probed(std::size_t i, const Envelope& envelope) {
    const Message& message = plan_.messages[i];
    Part& part = parts_[i];
    const bool matched = message.receive >= Receive::mprobe;
    const bool waits = message.receive == Receive::probe || message.receive == Receive::mprobe ||
                       message.receive == Receive::mprobe_irecv;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status = {};
    int flag = 0, error = MPI_SUCCESS;
    do {
      if (waits && matched) error = MPI_Mprobe(envelope.source, envelope.tag, envelope.comm, &handle, &status);
      if (waits && !matched) error = MPI_Probe(envelope.source, envelope.tag, envelope.comm, &status);
      if (!waits && matched) error = MPI_Improbe(envelope.source, envelope.tag, envelope.comm, &flag, &handle, &status);
      if (!waits && !matched) error = MPI_Iprobe(envelope.source, envelope.tag, envelope.comm, &flag, &status);
    } while (!waits && flag == 0 && error == MPI_SUCCESS);
    context_.check(error, "a probe");
    int found = 0;
    MPI_Get_elements(&status, MPI_BYTE, &found);
    probed_.push_back({i, found, status.MPI_SOURCE, status.MPI_TAG});
    if (!matched)  // which, with wildcards, is to be the message that was probed
      return receive_plainly(i, {status.MPI_SOURCE, status.MPI_TAG, envelope.comm},
                             dice_.one_in(2) ? Receive::recv : Receive::irecv);
    receive_matched(i, handle);
    part.status_known = true;
  }

  void receive_matched(std::size_t i, MPI_Message handle) {
    Part& part = parts_[i];
    const Layout& layout = *part.receive_layout;
    if (plan_.messages[i].receive == Receive::mprobe_irecv || plan_.messages[i].receive == Receive::improbe_irecv) {
      MPI_Request request = MPI_REQUEST_NULL;
      context_.check(MPI_Imrecv(part.to.address(), layout.count(), layout.type(), &handle, &request), "MPI_Imrecv");
      part.receive_slot = requests_.add(request, After::anything, plan_.messages[i].truncated());
    } else {
      MPI_Status status = {};
      const int error = MPI_Mrecv(part.to.address(), layout.count(), layout.type(), &handle, &status);
      part.receive_slot = requests_.add_done(error, status);
    }
  }

  void receive_cancelled(std::size_t i, const Envelope& envelope) {
    Part& part = parts_[i];
    const Layout& layout = *part.receive_layout;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status = {};
    int cancelled = 0;
    MPI_Irecv(part.to.address(), layout.count(), layout.type(), envelope.source, envelope.tag, envelope.comm, &request);
    if (dice_.one_in(2)) std::this_thread::sleep_for(std::chrono::microseconds(dice_.below(3000)));
    context_.check(MPI_Cancel(&request), "MPI_Cancel");
    const int error = MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    if (cancelled != 0) return receive_plainly(i, envelope, Receive::recv);
    part.receive_slot = requests_.add_done(error, status);
    part.status_known = true;
  }

  /// Every process sends to the next one of the communicator.
  void ring(const Step& step, const Communicator& comm) {
    context_.step("a ring on communicator " + std::to_string(step.comm));
    const auto size = static_cast<int>(comm.group.size());
    const int me = comm.rank_of(rank()), next = (me + 1) % size, before = (me + size - 1) % size;
    const auto bytes = [&](int of) {
      Dice dice(mix(step.key, static_cast<std::uint64_t>(of)));
      return static_cast<int>(random_size(dice, 20000));
    };
    const auto key = [&](int of) { return mix(step.key, static_cast<std::uint64_t>(of) + 100); };
    Dice places(mix(step.key, static_cast<std::uint64_t>(me) + 200));
    const bool replace = step.way % 3 == 0;
    const int sent = replace ? longest(size, bytes) : bytes(me), room = replace ? sent : bytes(before);
    std::vector<char> out(static_cast<std::size_t>(sent)), in(static_cast<std::size_t>(room)), wanted(in.size());
    fill_pattern(out.data(), out.size(), key(me));
    fill_pattern(wanted.data(), wanted.size(), key(before));
    Memory from(context_.place(places, 50), out.size()), to(context_.place(places, 50), in.size());
    from.write(out.data(), out.size());
    MPI_Status status = {};
    const int tag = ring_tag + step.way % 5;
    int error = MPI_SUCCESS;
    if (replace) {
      error = MPI_Sendrecv_replace(from.data(), sent, MPI_BYTE, next, tag, before, tag, comm.handle, &status);
      from.read(in.data(), in.size());
    } else if (step.way % 3 == 1) {
      error = MPI_Sendrecv(from.data(), sent, MPI_BYTE, next, tag, to.data(), room, MPI_BYTE, before, tag, comm.handle,
                           &status);
      to.read(in.data(), in.size());
    } else {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Issend(from.data(), sent, MPI_BYTE, next, tag, comm.handle, &request);
      error = MPI_Recv(to.data(), room, MPI_BYTE, before, tag, comm.handle, &status);
      context_.check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
      to.read(in.data(), in.size());
    }
    context_.check(error, "a ring");
    int found = 0;
    MPI_Get_count(&status, MPI_BYTE, &found);
    if (in != wanted) context_.fail("wrong data, " + std::to_string(in.size()) + " B");
    if (found != static_cast<int>(wanted.size()) || status.MPI_SOURCE != before || status.MPI_TAG != tag)
      context_.fail("wrong status");
    context_.log("ring " + std::to_string(found) + " " + hash_of(in.data(), in.size()));
  }

  template <class Bytes>
  static int longest(int size, Bytes&& bytes) {
    int most = 0;
    for (int i = 0; i < size; ++i) most = std::max(most, bytes(i));
    return most;
  }

  /// To and from MPI_PROC_NULL.
  void nowhere(const Step& step, const Communicator& comm) {
    context_.step("MPI_PROC_NULL");
    const Spot& spot = unmatched_[static_cast<std::size_t>(step.way % 2)];
    MPI_Status status = {};
    int error = MPI_SUCCESS, found = -1;
    switch (step.way / 2 % 5) {
      case 0:
        context_.check(MPI_Ssend(spot.address(), 1000, MPI_BYTE, MPI_PROC_NULL, 1, comm.handle), "MPI_Ssend");
        [[fallthrough]];
      case 1:
        error = MPI_Recv(spot.address(), 1000, MPI_BYTE, MPI_PROC_NULL, 1, comm.handle, &status);
        break;
      case 2:
        error = MPI_Probe(MPI_PROC_NULL, 1, comm.handle, &status);
        break;
      case 3:
        error = MPI_Sendrecv(spot.address(), 1000, MPI_BYTE, MPI_PROC_NULL, 1, spot.address(), 1000, MPI_BYTE,
                             MPI_PROC_NULL, 1, comm.handle, &status);
        break;
      default: {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Irecv(spot.address(), 1000, MPI_BYTE, MPI_PROC_NULL, 1, comm.handle, &request);
        error = MPI_Wait(&request, &status);
      }
    }
    context_.check(error, "MPI_PROC_NULL");
    MPI_Get_count(&status, MPI_BYTE, &found);
    if (status.MPI_SOURCE != MPI_PROC_NULL || status.MPI_TAG != MPI_ANY_TAG || found != 0)
      context_.fail("wrong status");
  }

  /// A receive that nobody sends to: it is cancelled in the end, or soon.
  void post_unmatched(const Step& step, const Communicator& comm) {
    context_.step("a receive to be cancelled");
    MPI_Request request = MPI_REQUEST_NULL;
    const Spot& spot = unmatched_[static_cast<std::size_t>(step.way % 2)];
    const int source = step.way / 2 % 2 == 0 ? MPI_ANY_SOURCE : 0;
    if (step.way / 4 % 4 == 0) {
      MPI_Recv_init(spot.address(), step.way / 16 % 2000, MPI_BYTE, source, unmatched_tag, comm.handle, &request);
      MPI_Start(&request);
    } else {
      MPI_Irecv(spot.address(), step.way / 16 % 2000, MPI_BYTE, source, unmatched_tag, comm.handle, &request);
    }
    to_cancel_.push_back(request);
    if (dice_.one_in(2)) cancel_unmatched();
  }

  void cancel_unmatched() {
    for (MPI_Request& request : to_cancel_) {
      MPI_Status status = {};
      int cancelled = 0;
      context_.step("MPI_Cancel");
      context_.check(MPI_Cancel(&request), "MPI_Cancel");
      context_.check(MPI_Wait(&request, &status), "MPI_Wait of a cancelled receive");
      MPI_Test_cancelled(&status, &cancelled);
      if (cancelled == 0) context_.fail("a receive that nothing matches is not cancelled");
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    }
    to_cancel_.clear();
  }

  /// A collective call among the messages.
  void collective(const Step& step, const Communicator& comm) {
    context_.step("a collective call on communicator " + std::to_string(step.comm));
    if (step.way % 3 == 0) {
      context_.check(MPI_Barrier(comm.handle), "MPI_Barrier");
      return;
    }
    Dice places(mix(step.key, static_cast<std::uint64_t>(rank())));
    const std::size_t bytes = collective_count * sizeof(int);
    std::vector<int> values(collective_count, rank() + 1);
    Memory memory(context_.place(places, 50), bytes);
    memory.write(values.data(), bytes);
    const int root = step.way % static_cast<int>(comm.group.size());
    int wanted = comm.group[static_cast<std::size_t>(root)] + 1;
    if (step.way % 3 == 1) {
      context_.check(MPI_Bcast(memory.data(), collective_count, MPI_INT, root, comm.handle), "MPI_Bcast");
    } else {
      context_.check(MPI_Allreduce(MPI_IN_PLACE, memory.data(), collective_count, MPI_INT, MPI_SUM, comm.handle),
                     "MPI_Allreduce");
      wanted = 0;
      for (const int member : comm.group) wanted += member + 1;
    }
    memory.read(values.data(), bytes);
    if (std::count(values.begin(), values.end(), wanted) != collective_count) context_.fail("wrong data");
  }

  // --- after ---

  /// The message that each receive of this rank has got: its own, or with wildcards the next one of the status' source
  /// and tag, for messages do not overtake each other.
  std::vector<std::size_t> messages_received() {
    std::vector<std::size_t> got(parts_.size());
    for (std::size_t i = 0; i < got.size(); ++i) got[i] = i;
    for (const auto& [comm_index, receives_in_order] : in_order_) {
      const Communicator& comm = context_.communicators[static_cast<std::size_t>(comm_index)];
      std::map<std::pair<int, int>, std::vector<std::size_t>> waiting;  // by source and tag, the last one first
      for (std::size_t i = plan_.messages.size(); i-- > 0;)
        if (receives(i) && plan_.messages[i].comm == comm_index)
          waiting[{comm.rank_of(plan_.messages[i].from), plan_.messages[i].tag}].push_back(i);
      for (const std::size_t i : receives_in_order) {
        const MPI_Status& status = requests_.outcome(parts_[i].receive_slot).status;
        auto& list = waiting[{status.MPI_SOURCE, status.MPI_TAG}];
        if (list.empty()) {
          context_.fail(name(i) + ": a status of a message that was not sent: source " +
                        std::to_string(status.MPI_SOURCE) + ", tag " + std::to_string(status.MPI_TAG));
          continue;
        }
        got[i] = list.back();
        list.pop_back();
      }
    }
    return got;
  }

  void verify() {
    context_.step("verification");
    const std::vector<std::size_t> got = messages_received();
    context_.arenas.download();
    std::vector<std::string> lines(parts_.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].send_slot >= 0 && !context_.check(requests_.outcome(parts_[i].send_slot).error, "a send"))
        context_.fail(name(i));
      if (receives(i)) {
        lines[got[i]] = verify_receive(i, got[i]);
        ++context_.messages;
      }
    }
    for (const Probed& probed : probed_) {
      const Message& message = plan_.messages[got[probed.index]];
      if (probed.bytes != message.bytes || probed.tag != message.tag ||
          probed.source != comm_of(message).rank_of(message.from))
        context_.fail(name(probed.index) + ": the probe told of " + std::to_string(probed.bytes) + " B from " +
                      std::to_string(probed.source) + ", tag " + std::to_string(probed.tag) +
                      ", and this came: " + name(got[probed.index]));
    }
    for (const std::string& line : lines)
      if (!line.empty()) context_.log(line);
    context_.compare_memory();
  }

  std::string verify_receive(std::size_t i, std::size_t got) {
    const Part& part = parts_[i];
    const Message& message = plan_.messages[got];
    const Layout& layout = *part.receive_layout;
    const Outcome& outcome = requests_.outcome(part.receive_slot);
    const bool truncated = plan_.messages[i].room < message.bytes;
    if (!context_.check(outcome.error, "a receive", truncated ? MPI_ERR_TRUNCATE : MPI_SUCCESS))
      context_.fail(name(i) + ", completed by " + outcome.call);
    std::string line = "message " + std::to_string(got);
    if (outcome.error != MPI_SUCCESS || truncated) {
      const std::ptrdiff_t at = part.to.offset;
      part.to.arena->ignore(at + layout.low(), at + layout.high());
      const bool right =
          outcome.status.MPI_SOURCE == comm_of(message).rank_of(message.from) && outcome.status.MPI_TAG == message.tag;
      if (part.status_known && !right) context_.fail(name(i) + ": wrong status, completed by " + outcome.call);
      return line + " error class " + std::to_string(error_class(outcome.error));
    }
    const std::vector<char> stream = message.stream();
    std::vector<char> found(stream.size());
    layout.gather(part.to.found(), found);
    layout.scatter(part.to.image(), stream);
    if (found != stream) context_.fail(name(i) + ": wrong data; sent: " + name(got) + describe(found));
    line += " " + hash_of(found.data(), found.size());
    return part.status_known ? line + verify_status(i, got, outcome.status) : line;
  }

  /// Which of the messages these data are, if any.
  std::string describe(const std::vector<char>& found) const {
    for (std::size_t i = 0; i < plan_.messages.size(); ++i)
      if (receives(i)) {
        const std::vector<char> stream = plan_.messages[i].stream();
        const std::size_t bytes = std::min<std::size_t>({found.size(), stream.size(), 64});
        if (bytes > 7 && std::equal(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(bytes), stream.begin()))
          return "; the data begin like those of " + name(i);
      }
    return "";
  }

  std::string verify_status(std::size_t i, std::size_t got, const MPI_Status& status) {
    const Message& message = plan_.messages[got];
    int count = -1, elements = -1, cancelled = -1;
    const MPI_Datatype type = message.random_receiver ? MPI_PACKED : MPI_BYTE;
    MPI_Get_count(&status, type, &count);
    MPI_Get_elements(&status, type, &elements);
    MPI_Test_cancelled(&status, &cancelled);
    if (status.MPI_SOURCE != comm_of(message).rank_of(message.from) || status.MPI_TAG != message.tag ||
        count != message.bytes || elements != message.bytes || cancelled != 0)
      context_.fail(name(i) + ": wrong status: source " + std::to_string(status.MPI_SOURCE) + ", tag " +
                    std::to_string(status.MPI_TAG) + ", count " + std::to_string(count) + ", elements " +
                    std::to_string(elements) + "; sent: " + name(got));
    return " from " + std::to_string(status.MPI_SOURCE) + " tag " + std::to_string(status.MPI_TAG) + " count " +
           std::to_string(count) + " " + std::to_string(elements);
  }

  struct Probed {
    std::size_t index;
    std::int64_t bytes;
    int source, tag;
  };

  Context& context_;
  MessagePlan plan_;
  std::vector<Part> parts_;
  Dice dice_;
  Requests requests_;
  std::vector<Spot> unmatched_;
  std::vector<MPI_Request> to_cancel_;
  std::map<int, std::vector<std::size_t>>
      in_order_;  ///< with wildcards: receives in the order of matching, by communicator
  std::vector<Probed> probed_;
};

}  // namespace

void exchange_messages(Context& context) {
  MessageRound(context).run();
}

}  // namespace gpudt::test
