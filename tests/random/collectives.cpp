// Rounds of collective calls that move data: blocking and nonblocking ones, several under way, on all communicators.
#include <algorithm>

#include "tests/random/collectives.hpp"
#include "tests/random/layout.hpp"
#include "tests/random/messages_plan.hpp"
#include "tests/random/requests.hpp"

namespace gpudt::test {
namespace {

enum class Kind {
  bcast,
  gather,
  gatherv,
  scatter,
  scatterv,
  allgather,
  allgatherv,
  alltoall,
  alltoallv,
  alltoallw,
  neighbor_allgather,
  neighbor_allgatherv,
  neighbor_alltoall,
  neighbor_alltoallv,
  neighbor_alltoallw,
};
constexpr int kinds = static_cast<int>(Kind::neighbor_alltoallw) + 1;
constexpr const char* kind_names[] = {"bcast",
                                      "gather",
                                      "gatherv",
                                      "scatter",
                                      "scatterv",
                                      "allgather",
                                      "allgatherv",
                                      "alltoall",
                                      "alltoallv",
                                      "alltoallw",
                                      "neighbor_allgather",
                                      "neighbor_allgatherv",
                                      "neighbor_alltoall",
                                      "neighbor_alltoallv",
                                      "neighbor_alltoallw"};

bool among(Kind kind, std::initializer_list<Kind> list) {
  return std::find(list.begin(), list.end(), kind) != list.end();
}
bool neighbours(Kind kind) {
  return kind >= Kind::neighbor_allgather;
}
bool gathers(Kind kind) {
  return among(kind, {Kind::gather, Kind::gatherv});
}
bool scatters(Kind kind) {
  return among(kind, {Kind::scatter, Kind::scatterv});
}
bool one_for_all(Kind kind) {
  return gathers(kind) || among(kind, {Kind::bcast, Kind::allgather, Kind::allgatherv, Kind::neighbor_allgather,
                                       Kind::neighbor_allgatherv});
}
bool by_types(Kind kind) {
  return among(kind, {Kind::alltoallw, Kind::neighbor_alltoallw});
}
bool counted(Kind kind) {
  return by_types(kind) || among(kind, {Kind::gatherv, Kind::scatterv, Kind::allgatherv, Kind::alltoallv,
                                        Kind::neighbor_allgatherv, Kind::neighbor_alltoallv});
}

/// What is sent to, or received from, one other process.
struct Block {
  int peer;  ///< rank of MPI_COMM_WORLD
  int count;
  std::ptrdiff_t offset = 0;  ///< bytes from the buffer's address
  std::size_t layout = 0;     ///< index of its element's layout
};

/// A buffer of a collective call, with one array for each of MPI's arguments.
struct Side {
  std::vector<Layout> layouts;
  std::vector<Block> blocks;
  std::vector<int> counts, displacements;
  std::vector<MPI_Aint> offsets;
  std::vector<MPI_Datatype> types;
  Spot spot;

  int count() const { return counts.empty() ? 0 : counts[0]; }
  MPI_Datatype type() const { return layouts.empty() ? MPI_BYTE : layouts[0].type(); }
};

class DataCall : public CollectiveCall {
 public:
  DataCall(Context& context, std::uint64_t key) : context_(context), key_(key), plan_(key) {
    kind_ = static_cast<Kind>(plan_.below(kinds));
    comm_ =
        context.communicators[static_cast<std::size_t>(plan_.below(static_cast<int>(context.communicators.size())))];
    if (comm_.inter() && !among(kind_, {Kind::bcast, Kind::allgather, Kind::allgatherv, Kind::alltoall, Kind::alltoallv,
                                        Kind::alltoallw}))
      kind_ = Kind::alltoallv;
    // On one process Open MPI 4.1 itself takes the displacements for numbers of elements.
    if (kind_ == Kind::alltoallw && comm_.group.size() == 1 && !comm_.inter()) kind_ = Kind::alltoallv;
    root_ = plan_.pick(comm_.group);
    if (neighbours(kind_)) {
      comm_ = context.communicators[0];
      comm_.handle = context.graph;
    }
    unit_ = plan_.between(1, 64);
    most_ = plan_.pick(std::vector{1, 4, 100});
    if (plan_.one_in(3)) unit_ = static_cast<int>(random_size(plan_, 40000)), most_ = 2;
    if (plan_.one_in(12)) unit_ = static_cast<int>(random_size(plan_, 1 << 20)), most_ = 1;
    in_place_ = !comm_.inter() && !neighbours(kind_) && plan_.one_in(4);
    // Here, and in any nonblocking ones where there are threads, Open MPI 4.1 itself may hang.
    nonblocking_ = plan_.one_in(2) && context.single_threaded();
    if (kind_ == Kind::alltoallw) in_place_ = in_place_ && !nonblocking_;
    if (kind_ == Kind::alltoallv) nonblocking_ = nonblocking_ && !comm_.inter();
    on_device_ = plan_.pick(std::vector{0, 50, 100, 100});
    member_ = comm_.handle != MPI_COMM_NULL;
    if (member_) arrange();
  }

  void fill() override {
    if (!member_) return;
    // In place what is sent lies where it is received, or is its own block there.
    Side& side = exchanges_in_place() ? receive_ : send_;
    for (const Block& block : side.blocks) put(side, block, stream(rank(), block.peer, block.count));
    if (in_place_ && !exchanges_in_place())
      for (const Block& block : receive_.blocks)
        if (block.peer == rank()) put(receive_, block, stream(rank(), rank(), block.count));
  }

  MPI_Request start() override {
    MPI_Request request = MPI_REQUEST_NULL;
    if (!member_) return request;
    context_.step(name());
    context_.check(call(&request), "a collective call");
    return request;
  }

  void verify() override {
    if (!member_) return;
    std::string line = name();
    for (const Block& block : receive_.blocks) {
      const Layout& layout = receive_.layouts[block.layout];
      const std::vector<char> wanted = stream(block.peer, rank(), block.count);
      std::vector<char> found(wanted.size());
      layout.gather(receive_.spot.found() + block.offset, found);
      layout.scatter(receive_.spot.image() + block.offset, wanted);
      if (found != wanted)
        context_.fail(name() + ": wrong data from process " + std::to_string(block.peer) + ", " +
                      std::to_string(wanted.size()) + " B, " + layout.text());
      line += " " + hash_of(found.data(), found.size());
    }
    context_.log(line);
  }

  std::string name() const override {
    return std::string(nonblocking_ ? "i" : "") + kind_names[static_cast<int>(kind_)] + (in_place_ ? " in place" : "") +
           " on " + std::to_string(comm_.group.size()) +
           (comm_.inter() ? " + " + std::to_string(comm_.remote.size()) : "") + " processes, units of " +
           std::to_string(unit_) + " B, at most " + std::to_string(most_);
  }

 private:
  bool is_root() const { return rank() == root_; }
  bool exchanges_in_place() const {
    return in_place_ && among(kind_, {Kind::alltoall, Kind::alltoallv, Kind::alltoallw});
  }

  /// Elements that process `from` sends to process `to`.
  int count(int from, int to) const {
    if (!counted(kind_)) return most_;
    if (one_for_all(kind_)) to = 0;
    if (exchanges_in_place() && from > to) std::swap(from, to);
    return static_cast<int>(mix(mix(key_, static_cast<std::uint64_t>(from)), static_cast<std::uint64_t>(to)) %
                            static_cast<std::uint64_t>(most_ + 1));
  }

  std::vector<char> stream(int from, int to, int count) const {
    if (one_for_all(kind_)) to = 0;
    std::vector<char> bytes(static_cast<std::size_t>(count) * static_cast<std::size_t>(unit_));
    fill_pattern(bytes.data(), bytes.size(),
                 mix(mix(key_, static_cast<std::uint64_t>(from)), static_cast<std::uint64_t>(to) + 1000));
    return bytes;
  }

  /// Whom this process sends blocks to, in the order of the arguments.
  std::vector<int> destinations() const {
    if (kind_ == Kind::bcast || scatters(kind_)) return is_root() ? comm_.peers_of(rank()) : std::vector<int>{};
    if (gathers(kind_)) return {root_};
    if (!neighbours(kind_)) return comm_.peers_of(rank());
    std::vector<int> found;
    for (const int other : comm_.group)
      if (has_edge(rank(), other)) found.push_back(other);
    return found;
  }

  std::vector<int> sources() const {
    const bool from_root = !comm_.inter() || comm_.peers_of(rank()) != comm_.remote;
    if (kind_ == Kind::bcast) return !is_root() && from_root ? std::vector<int>{root_} : std::vector<int>{};
    if (scatters(kind_)) return {root_};
    if (gathers(kind_)) return is_root() ? comm_.group : std::vector<int>{};
    if (!neighbours(kind_)) return comm_.peers_of(rank());
    std::vector<int> found;
    for (const int other : comm_.group)
      if (has_edge(other, rank())) found.push_back(other);
    return found;
  }

  void arrange() {
    std::vector<int> to = destinations(), from = sources();
    if (one_for_all(kind_) && to.size() > 1) to.resize(1);
    for (const int peer : to) send_.blocks.push_back({peer, count(rank(), peer)});
    for (const int peer : from) receive_.blocks.push_back({peer, count(peer, rank())});
    const std::uint64_t mine = mix(key_, static_cast<std::uint64_t>(rank()) + 77);
    const bool gathering = gathers(kind_) || among(kind_, {Kind::allgatherv, Kind::neighbor_allgatherv});
    place(send_, mix(mine, 1), counted(kind_) && !gathering);
    place(receive_, mix(mine, 2), counted(kind_) && !scatters(kind_));
  }

  void place(Side& side, std::uint64_t key, bool displaced) {
    // In place both ends of a message have the type of this process: the same layout everywhere then.
    Dice own(key), layouts(exchanges_in_place() ? key_ : mix(key, 3));
    const std::size_t kinds_of_elements = by_types(kind_) ? std::max<std::size_t>(side.blocks.size(), 1) : 1;
    for (std::size_t i = 0; i < kinds_of_elements; ++i) {
      if (exchanges_in_place()) layouts = Dice(key_);
      side.layouts.push_back(Layout::element_of_bytes(layouts, unit_));
    }
    std::int64_t low = 0, high = 0, next = 0;
    for (std::size_t i = 0; i < side.blocks.size(); ++i) {
      Block& block = side.blocks[i];
      block.layout = by_types(kind_) ? i : 0;
      const Layout& layout = side.layouts[block.layout];
      const std::int64_t gap = displaced && own.one_in(3) ? own.between(1, 3) : 0;
      const std::int64_t at = by_types(kind_) ? next + gap - layout.low(block.count) : (next + gap) * layout.extent();
      block.offset = at;
      low = std::min(low, at + layout.low(block.count));
      high = std::max(high, at + layout.high(block.count));
      side.counts.push_back(block.count);
      side.displacements.push_back(by_types(kind_) ? static_cast<int>(at) : static_cast<int>(next + gap));
      side.offsets.push_back(at);
      side.types.push_back(layout.type());
      next = by_types(kind_) ? at + layout.high(block.count) : next + gap + block.count;
    }
    Arena& arena = context_.arenas.at(context_.place(own, on_device_));
    side.spot = {&arena, arena.reserve(low, high, own.one_in(3) ? own.below(16) : 0)};
  }

  void put(Side& side, const Block& block, const std::vector<char>& bytes) {
    side.layouts[block.layout].scatter(side.spot.image() + block.offset, bytes);
  }

  // MPI's arguments
  const void* from() const {
    const bool own_block = gathers(kind_) ? is_root() : !scatters(kind_) && kind_ != Kind::bcast;
    return in_place_ && own_block ? MPI_IN_PLACE : send_.spot.address();
  }
  void* to() const { return in_place_ && scatters(kind_) && is_root() ? MPI_IN_PLACE : receive_.spot.address(); }
  int root() const {
    if (!comm_.inter()) return comm_.rank_of(root_);
    return is_root() ? MPI_ROOT : comm_.peers_of(rank()) == comm_.remote ? MPI_PROC_NULL : comm_.rank_of(root_);
  }
  /// The broadcast's one buffer.
  const Side& broadcast() const { return receive_.blocks.empty() ? send_ : receive_; }

#define CALL(name, lower, ...) (nonblocking_ ? MPI_I##lower(__VA_ARGS__, request) : MPI_##name(__VA_ARGS__))
#define SENT from(), send_.count(), send_.type()
#define SENT_V from(), send_.counts.data(), send_.displacements.data(), send_.type()
#define RECEIVED to(), receive_.count(), receive_.type()
#define RECEIVED_V to(), receive_.counts.data(), receive_.displacements.data(), receive_.type()
  int call(MPI_Request* request) {
    const MPI_Comm comm = comm_.handle;
    switch (kind_) {
      case Kind::bcast:
        return CALL(Bcast, bcast, broadcast().spot.address(), broadcast().count(), broadcast().type(), root(), comm);
      case Kind::gather:
        return CALL(Gather, gather, SENT, RECEIVED, root(), comm);
      case Kind::gatherv:
        return CALL(Gatherv, gatherv, SENT, RECEIVED_V, root(), comm);
      case Kind::scatter:
        return CALL(Scatter, scatter, SENT, RECEIVED, root(), comm);
      case Kind::scatterv:
        return CALL(Scatterv, scatterv, SENT_V, RECEIVED, root(), comm);
      case Kind::allgather:
        return CALL(Allgather, allgather, SENT, RECEIVED, comm);
      case Kind::allgatherv:
        return CALL(Allgatherv, allgatherv, SENT, RECEIVED_V, comm);
      case Kind::alltoall:
        return CALL(Alltoall, alltoall, SENT, RECEIVED, comm);
      case Kind::alltoallv:
        return CALL(Alltoallv, alltoallv, SENT_V, RECEIVED_V, comm);
      case Kind::alltoallw:
        return CALL(Alltoallw, alltoallw, from(), send_.counts.data(), send_.displacements.data(), send_.types.data(),
                    to(), receive_.counts.data(), receive_.displacements.data(), receive_.types.data(), comm);
      case Kind::neighbor_allgather:
        return CALL(Neighbor_allgather, neighbor_allgather, SENT, RECEIVED, comm);
      case Kind::neighbor_allgatherv:
        return CALL(Neighbor_allgatherv, neighbor_allgatherv, SENT, RECEIVED_V, comm);
      case Kind::neighbor_alltoall:
        return CALL(Neighbor_alltoall, neighbor_alltoall, SENT, RECEIVED, comm);
      case Kind::neighbor_alltoallv:
        return CALL(Neighbor_alltoallv, neighbor_alltoallv, SENT_V, RECEIVED_V, comm);
      case Kind::neighbor_alltoallw:
        return CALL(Neighbor_alltoallw, neighbor_alltoallw, from(), send_.counts.data(), send_.offsets.data(),
                    send_.types.data(), to(), receive_.counts.data(), receive_.offsets.data(), receive_.types.data(),
                    comm);
    }
    return MPI_ERR_INTERN;
  }

  Context& context_;
  std::uint64_t key_;
  Dice plan_;
  Kind kind_;
  Communicator comm_;
  int root_, unit_, most_, on_device_;
  bool in_place_, nonblocking_, member_;
  Side send_, receive_;
};

constexpr int most_calls = 6;

}  // namespace

std::unique_ptr<CollectiveCall> make_data_call(Context& context, std::uint64_t key) {
  return std::make_unique<DataCall>(context, key);
}

void call_collectives(Context& context) {
  Dice dice(mix(context.key, 6)), own(mix(mix(context.key, 7), static_cast<std::uint64_t>(rank())));
  std::vector<std::unique_ptr<CollectiveCall>> calls;
  for (int i = dice.between(1, most_calls); i > 0; --i)
    calls.push_back(dice.one_in(3) ? make_reduction(context, dice.word()) : make_data_call(context, dice.word()));
  context.arenas.prepare(context.key);
  for (auto& call : calls) call->fill();
  context.arenas.upload();
  Requests requests(context, own.word());
  std::vector<int> slots;
  for (auto& call : calls) {
    const MPI_Request request = call->start();
    if (request != MPI_REQUEST_NULL) slots.push_back(requests.add(request, After::everything));
    requests.act();
  }
  std::string names;
  for (const auto& call : calls) names += call->name() + "; ";
  requests.finish(names);
  for (const int slot : slots) context.check(requests.outcome(slot).error, "a nonblocking collective call");
  context.step("verification");
  context.arenas.download();
  for (auto& call : calls) call->verify();
  if (rank() == 0) context.collectives += static_cast<std::int64_t>(calls.size());
  context.compare_memory();
}

}  // namespace gpudt::test
