#include "interpose/collectives/peer_exchange.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "datatype/basic.hpp"
#include "interpose/collectives/board_exchange.hpp"
#include "interpose/collectives/comm_state.hpp"
#include "interpose/collectives/exchange_plan.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/kept_type.hpp"
#include "interpose/requests/point_to_point.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"
#include "interpose/support/require.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {
namespace {

/// Blocks of this length in bytes, and longer ones, are faster as messages than in a collective on staged data.
constexpr std::int64_t least_block = 24 << 10;
constexpr std::int64_t least_block_from_root = 8 << 10;

/// MPI libraries send blocks of this length only to a receiver that has called MPI.
constexpr std::int64_t longer_than_eager = 8 << 10;

/// Over several nodes processes agree by a collective of MPI, which does not pay for shorter blocks.
constexpr std::int64_t least_exchange_over_nodes = 128 << 10;

/// Maximum number of messages that a process sends for one call: with more, they would wait for descriptors.
constexpr std::size_t most_given = 64;

std::int64_t least_wanted(Flow flow) {
  if (collectives_forced() == Protocol::peer) return 1;
  return flow == Flow::from_root ? least_block_from_root : least_block;
}

/// The shortest blocks about which processes agree: kernels are faster for blocks of any length.
std::int64_t least_asked(const Call& call, Flow flow) {
  if (collectives_forced()) return least_wanted(flow);
  return flow == Flow::other || call.blocks() ? 1 : longer_than_eager;
}

int length_of(const Known& known) {
  return known.varies ? -1 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(known.bytes())));
}

std::int64_t bytes_of(const BlockMessage& block) {
  return Known{block.count, block.type}.bytes();
}

bool right(const std::vector<BlockMessage>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(),
                     [](const BlockMessage& each) { return each.count >= 0 && each.type != MPI_DATATYPE_NULL; });
}

/// Whether blocks of this process may lie in device memory, without asking the driver. A process without data waits for
/// the others only if the program is known to use device memory.
bool may_have_data(const BlockMessages& blocks) {
  bool empty = true;
  for (const auto* const side : {&blocks.given, &blocks.taken})
    for (const BlockMessage& each : *side) {
      if (bytes_of(each) == 0) continue;
      if (each.buffer != nullptr && device::surely_host(each.buffer)) return false;
      empty = false;
    }
  return !empty || device_memory_given.load(std::memory_order_relaxed);
}

/// Whether all blocks have known types, and are in device memory. Stores where, which takes a call to the driver.
bool may_all_go(std::vector<BlockMessage>& blocks) {
  device::Region memory;
  for (BlockMessage& block : blocks) {
    if (!datatype::type_info(block.type)) return false;
    block.located = memory = memory_of(block.buffer, block.type, memory);
    if (!memory.location.on_device()) return false;
  }
  return true;
}

std::int64_t bytes_of(const std::vector<BlockMessage>& blocks) {
  std::int64_t bytes = 0;
  for (const BlockMessage& block : blocks) bytes += bytes_of(block);
  return bytes;
}

/// Whether messages can move the blocks if all lie in device memory: `given` are not empty, and this process receives
/// `taken` bytes.
bool suit_messages(const CommState& comm_state, const BlockMessages& blocks, std::size_t given, std::int64_t taken) {
  const auto counts_fit = [](const std::vector<BlockMessage>& some) {
    return std::all_of(some.begin(), some.end(),
                       [](const BlockMessage& each) { return each.count <= std::numeric_limits<int>::max(); });
  };
  return has_hidden_messages() && !comm_state.spoilt && active.load(std::memory_order_acquire) && given <= most_given &&
         peer_has_room(given) && static_cast<std::uint64_t>(taken) <= device::staging_room() / 2 &&
         counts_fit(blocks.given) && counts_fit(blocks.taken);
}

/// Removes empty blocks. Returns the bytes of the others, less `least` - 1 for each: positive if messages are faster.
std::int64_t weigh(std::vector<BlockMessage>& blocks, std::int64_t least) {
  std::int64_t weight = 0;
  std::erase_if(blocks, [&](const BlockMessage& each) {
    const std::int64_t bytes = bytes_of(each);
    if (bytes != 0) weight += bytes - (least - 1);
    return bytes == 0;
  });
  return weight;
}

/// The same for all blocks of a call.
std::int64_t weigh(BlockMessages& blocks, std::int64_t least) {
  const std::int64_t given = weigh(blocks.given, least);
  return std::max(given, weigh(blocks.taken, least));
}

/// Whether messages can move the blocks.
bool all_suit_messages(const CommState& comm_state, BlockMessages& blocks) {
  return suit_messages(comm_state, blocks, blocks.given.size(), bytes_of(blocks.taken)) && may_all_go(blocks.given) &&
         may_all_go(blocks.taken);
}

/// BoardExchange::all_want_messages() by a collective of MPI, over several nodes.
bool all_want_messages(MPI_Comm comm, bool unfit, std::int64_t weight) {
  const std::array<std::int64_t, 2> mine = {unfit ? 1 : 0, weight};
  std::array<std::int64_t, 2> all = {1, 0};
  const int code = PMPI_Allreduce(mine.data(), all.data(), static_cast<int>(mine.size()), MPI_INT64_T, MPI_MAX, comm);
  return code == MPI_SUCCESS && all[0] == 0 && all[1] > 0;
}

int error_in(const std::vector<MPI_Status>& statuses) {
  const auto failed = std::find_if(statuses.begin(), statuses.end(), [](const MPI_Status& status) {
    return status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING;
  });
  return failed == statuses.end() ? MPI_ERR_OTHER : failed->MPI_ERROR;
}

/// The blocks that a process sends to itself; they are copied from layout to layout.
class OwnBlocks {
 public:
  /// Takes these out of `blocks`, unless messages alone can move them.
  OwnBlocks(const char* call, int rank, BlockMessages& blocks) {
    const auto own = [rank](const BlockMessage& block) { return block.rank == rank; };
    if (!pair(call, chosen(blocks.given, own), chosen(blocks.taken, own))) {
      pairs_.clear();
      return;
    }
    std::erase_if(blocks.given, own);
    std::erase_if(blocks.taken, own);
  }
  /// `beside`: messages are under way, too.
  void start(bool beside) {
    transfers_.reserve(pairs_.size());
    for (const Pair& pair : pairs_) {
      const auto& [from, to] = pair;
      moving(pair, [&, &from = from, &to = to] {
        transfers_.push_back(
            device::transfer(to.ordinal, side(from), side(to), 0, to.bytes(), to.after, /*within=*/beside));
      });
    }
  }
  void wait() {
    for (std::size_t i = 0; i < transfers_.size(); ++i) moving(pairs_[i], [&] { transfers_[i].wait(); });
  }

 private:
  template <class Own>
  static std::vector<BlockMessage> chosen(const std::vector<BlockMessage>& blocks, Own own) {
    std::vector<BlockMessage> found;
    std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(found), own);
    return found;
  }
  using Pair = std::pair<DeviceBuffer, DeviceBuffer>;
  template <class Body>
  static void moving(const Pair& pair, const Body& body) {
    device::moving(pair.first, [&] { device::moving(pair.second, body); });
  }
  static device::Side side(const DeviceBuffer& operand) {
    return {&operand.info->layout(), operand.count, operand.buffer};
  }
  /// False if some are of different lengths, which is an error, or not on one GPU.
  bool pair(const char* call, const std::vector<BlockMessage>& given, const std::vector<BlockMessage>& taken) {
    if (given.size() != taken.size()) return false;
    pairs_.resize(given.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
      auto& [from, to] = pairs_[i];
      if (!resolve_mapped(given[i].buffer, given[i].count, given[i].type, call, from) ||
          !resolve_mapped(taken[i].buffer, taken[i].count, taken[i].type, call, to) || from.bytes() != to.bytes() ||
          from.division || to.division || from.ordinal != to.ordinal) {
        forget_reported(i + 1);
        return false;
      }
      report_went(from.reported, {went_by_kernels});
      report_went(to.reported, {went_by_kernels});
    }
    return true;
  }

  /// Messages move the blocks of the first `pairs` pairs, and report them.
  void forget_reported(std::size_t pairs) {
    for (std::size_t i = 0; i < pairs; ++i)
      for (const DeviceBuffer* const each : {&pairs_[i].first, &pairs_[i].second})
        if (each->reported) each->reported->drop();
  }

  std::vector<Pair> pairs_;
  std::vector<device::Transfer> transfers_;  // after pairs_, which hold their layouts
};

class Messages {
 public:
  /// `rank`: this process's in `comm`. `group`: the communicator's boards; null if there are none.
  Messages(const char* call, MPI_Comm comm, int rank, const BoardGroup* group, std::size_t most)
      : call_(call), comm_(comm), rank_(rank), group_(group) {
    requests_.reserve(most);
  }
  /// Cancels requests after an error.
  ~Messages() {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  int receive(const BlockMessage& block) {
    const HiddenWay way = way_to(block.rank, rank_);
    return receive_for_collective(call_, const_cast<void*>(block.buffer), static_cast<int>(block.count), block.type,
                                  way, comm_, &requests_.emplace_back(MPI_REQUEST_NULL));
  }
  int send(const BlockMessage& block) {
    return send_for_collective(call_, block.buffer, static_cast<int>(block.count), block.type,
                               way_to(block.rank, block.rank), comm_, &requests_.emplace_back(MPI_REQUEST_NULL));
  }
  int wait() {
    std::vector<MPI_Status> statuses(requests_.size());
    const int code = MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), statuses.data());
    return code == MPI_ERR_IN_STATUS ? error_in(statuses) : code;
  }

 private:
  /// The way to or from process `rank` of messages that `receiver` receives.
  HiddenWay way_to(int rank, int receiver) const {
    if (!hidden_messages_share_comm) return {comm_, rank, collective_tag};
    return {hidden_comm(), group_->world_rank(static_cast<std::size_t>(rank)),
            group_->message_tag(static_cast<std::size_t>(receiver))};
  }

  const char* call_;
  MPI_Comm comm_;
  int rank_;
  const BoardGroup* group_;
  std::vector<MPI_Request> requests_;
};

/// The communicator's error handler has been called for the code returned. May throw device::Error.
int move(const char* call, MPI_Comm comm, const BoardGroup* group, BlockMessages& blocks) {
  const int rank = CommRank(comm).rank;
  OwnBlocks own(call, rank, blocks);
  Messages messages(call, comm, rank, group, blocks.taken.size() + blocks.given.size());
  int code = MPI_SUCCESS;
  for (const BlockMessage& block : blocks.taken)
    if (code == MPI_SUCCESS) code = messages.receive(block);
  for (const BlockMessage& block : blocks.given)
    if (code == MPI_SUCCESS) code = messages.send(block);
  if (code != MPI_SUCCESS) return code;
  own.start(/*beside=*/!blocks.taken.empty());
  code = messages.wait();
  own.wait();
  return code;
}

}  // namespace

std::int64_t Known::bytes() const {
  return elements * datatype::size_of(type);
}

namespace {

void report(const Call& call, const BlockMessages& blocks) {
  report_peer(PeerEvent::collective);
  if (tracing())
    log_trace(std::string(call.name) + ": as " + std::to_string(blocks.given.size()) + " messages to, and " +
              std::to_string(blocks.taken.size()) + " from, processes of the node");
}

}  // namespace

namespace collective_messages {

namespace {

/// Whether processes on several nodes agree about sending each block as a message. Not for blocks that go to all
/// processes: the trees of MPI carry them to another node only once. Not where a process need not wait for all others,
/// as it would for their agreement.
bool asked_over_nodes(const Call& call, CommState& comm_state, Flow flow, const Known& known) {
  if (!comm_state.over_nodes || flow != Flow::other || !known.distinct || known.varies) return false;
  const std::int64_t least = collectives_forced() == Protocol::peer ? 1 : least_exchange_over_nodes;
  return known.bytes() >= least * known.blocks && !comm_state.backoff_for(call.name, length_of(known)).passes();
}

}  // namespace

bool asked(const Call& call, MPI_Comm comm, Flow flow, const Known& known) {
  if (!collectives_ask() || comm == MPI_COMM_NULL) return require_explains(gpus_take_no_part);
  CommState& comm_state = comm_state_of(comm);
  if (!known.varies && (known.elements <= 0 || known.blocks <= 0 || known.type == MPI_DATATYPE_NULL)) return false;
  if (!comm_state.together)
    return (call.blocks() && asked_over_nodes(call, comm_state, flow, known)) || require_explains(not_on_one_node);
  if (!known.varies && known.bytes() < least_asked(call, flow) * known.blocks)
    return require_explains("its blocks are short");
  require_explains(not_all_for_gpus);  // unless GPUs do it
  const ForcedProtocol forced = collectives_forced();
  if (!call.blocks())  // other protocols exclude GPUs
    return !forced || forced == Protocol::peer || require_explains("GPUDT_PROTOCOL");
  return !comm_state.backoff_for(call.name, length_of(known)).passes() || require_explains(others_were_not);
}

namespace {

/// Blocks whose types the program may free.
struct KeptBlocks {
  BlockMessages blocks;
  std::vector<KeptType> types;  ///< one for all blocks that have the same

  /// False if one is not in device memory.
  bool keep(BlockMessages given_and_taken) {
    blocks = std::move(given_and_taken);
    std::map<MPI_Datatype, MPI_Datatype> kept;
    if (!right(blocks.given) || !right(blocks.taken)) return false;
    for (auto* const side : {&blocks.given, &blocks.taken}) {
      std::erase_if(*side, [](const BlockMessage& each) { return bytes_of(each) == 0; });
      for (BlockMessage& block : *side) {
        DeviceBuffer buffer;
        if (!resolve_layout(block.buffer, block.count, block.type, buffer) || buffer.division) return false;
        const auto [at, is_new] = kept.try_emplace(block.type, MPI_DATATYPE_NULL);
        if (is_new) at->second = types.emplace_back(block.type).get();
        block.type = at->second;
      }
    }
    return true;
  }
};

}  // namespace

PrepareOffer to_offer(const char* call, BlockMessages blocks) {
  const auto kept = std::make_shared<KeptBlocks>();
  if (!kept->keep(std::move(blocks))) return {};
  return [call, kept](const std::shared_ptr<BoardGroup>& group) {
    return offer(call, group, kept->blocks, /*listed=*/true);
  };
}

bool surely_on_host() {
  return !active.load(std::memory_order_acquire) || !device::in_use();
}

namespace {

enum class Outcome { by_gpus, as_messages, by_mpi };

bool has_data(const BlockMessages& blocks, bool listed) {
  return listed && right(blocks.given) && right(blocks.taken) && may_have_data(blocks);
}

/// Nothing if there is no memory, which must not keep this process from agreeing with the others.
BlockMessages copy_of(const BlockMessages& blocks) noexcept try { return blocks; } catch (const std::bad_alloc&) {
  return {};
}

/// Agrees with the processes of the node. Removes empty blocks if the others are to go as messages.
Outcome on_boards(const Call& call, const CommState& comm_state, const std::shared_ptr<BoardGroup>& group,
                  BlockMessages& blocks, bool listed, std::int64_t least, AskBackoff& backoff) {
  if (group->plans().empty() && !has_data(blocks, listed)) {
    group->decline();
    return Outcome::by_mpi;
  }
  BoardExchange exchange(call.name, group);
  const bool again = listed && exchange.recall(blocks, least);
  if (!again && !has_data(blocks, listed)) return Outcome::by_mpi;  // `exchange` declines
  bool possible = again;
  if (again) {
    exchange.set_fit(suit_messages(comm_state, blocks, exchange.given(), exchange.taken_bytes()));
  } else {
    BlockMessages as_given = copy_of(blocks);
    const std::int64_t weight = weigh(blocks, least);
    const bool fit = all_suit_messages(comm_state, blocks);
    const bool by_kernels = exchange.prepare(blocks, /*listed=*/true, fit, weight);
    if (by_kernels) exchange.remember(std::move(as_given), least);
    possible = by_kernels || fit;
  }
  if (by_gpus(exchange, possible, backoff)) {
    exchange.report();
    return Outcome::by_gpus;
  }
  if (again) weigh(blocks, least);
  return exchange.all_want_messages() ? Outcome::as_messages : Outcome::by_mpi;
}

/// Agrees with all processes, some of which are on other nodes.
Outcome over_nodes(MPI_Comm comm, const CommState& comm_state, BlockMessages& blocks, bool listed, std::int64_t least) {
  const bool all_right = has_data(blocks, listed);
  if (!all_right) blocks = {};
  const std::int64_t weight = weigh(blocks, least);
  const bool fit = all_right && all_suit_messages(comm_state, blocks);
  return all_want_messages(comm, !fit, weight) ? Outcome::as_messages : Outcome::by_mpi;
}

}  // namespace

std::optional<int> exchange(const Call& call, MPI_Comm comm, Flow flow, const Known& known, BlockMessages blocks,
                            bool listed) {
  CommState& comm_state = comm_state_of(comm);
  AskBackoff& backoff = comm_state.backoff_for(call.name, length_of(known));
  backoff.failed();  // until worked() is called
  const std::shared_ptr<BoardGroup> group = comm_state.together ? boards_of(comm_state) : nullptr;
  const Timed timed(Clock::mpi);
  const std::int64_t least = least_wanted(flow);
  const Outcome outcome = group ? on_boards(call, comm_state, group, blocks, listed, least, backoff)
                                : over_nodes(comm, comm_state, blocks, listed, least);
  if (outcome == Outcome::by_gpus) return MPI_SUCCESS;
  if (outcome == Outcome::by_mpi) return std::nullopt;
  backoff.worked();
  report(call, blocks);
  comm_state.spoilt = true;  // unless it ends well
  const int code = move(call.name, comm, group.get(), blocks);
  comm_state.spoilt = code != MPI_SUCCESS;
  return code;
}

std::shared_ptr<BoardGroup> offers(MPI_Comm comm) {
  const std::shared_ptr<BoardGroup>& group = boards_of(comm_state_of(comm));
  try {
    if (may_offer(*group)) return group;
  } catch (const std::bad_alloc&) {  // this process declines
  }
  group->decline();
  return nullptr;
}

std::unique_ptr<BoardCall> offer(const char* call, const std::shared_ptr<BoardGroup>& group, BlockMessages blocks,
                                 bool listed) {
  std::unique_ptr<BoardExchange> offered;
  try {
    offered = std::make_unique<BoardExchange>(call, group);
  } catch (const std::bad_alloc&) {  // this process declines
    group->decline();
    return nullptr;
  }
  constexpr std::int64_t no_messages = 0;
  if (listed && offered->recall(blocks, no_messages)) return offered;
  if (!has_data(blocks, listed)) return nullptr;  // it declines as it goes
  BlockMessages as_given = copy_of(blocks);
  for (auto* const side : {&blocks.given, &blocks.taken})
    std::erase_if(*side, [](const BlockMessage& each) { return bytes_of(each) == 0; });
  if (!offered->prepare(blocks, /*listed=*/true, /*fit=*/false, /*weight=*/0)) return nullptr;
  offered->remember(std::move(as_given), no_messages);
  return offered;
}

}  // namespace collective_messages

}  // namespace gpudt::interpose
