#include "interpose/collectives/comm_state.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <new>
#include <utility>

#include "base/mixed.hpp"
#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/collectives/board_group.hpp"
#include "interpose/collectives/node_groups.hpp"
#include "interpose/job/presence.hpp"
#include "interpose/mpi/modex.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {
std::atomic<bool> detail::collectives_asking{false};
ForcedProtocol detail::announced_protocol = Protocol::mapped_staging;

namespace {

// All processes must agree about the same calls, and a job may have several builds of the library. So this number must
// change whenever the format of what is published changes, or the choice of the calls about which processes agree (over
// several nodes also the length and order of chunks and slices: node_reductions.cpp).
constexpr int agreement_version = 13;

std::atomic<bool> takes_part{false};
bool world_over_nodes = false;  ///< all processes of MPI_COMM_WORLD can take part, and are on several nodes
int keyval = MPI_KEYVAL_INVALID;

/// The last look-up of a thread: MPI takes as long to find an attribute as all the rest of a call on host memory.
struct LastLookUp {
  MPI_Comm comm = MPI_COMM_NULL;
  CommState* state = nullptr;
  unsigned dropped = 0;  ///< states_dropped at that time; since then the handle may be another communicator's
};
thread_local LastLookUp last_look_up;
std::atomic<unsigned> states_dropped{0};

/// The number that this process announces. Processes with the same number can do collectives together.
int announcement(ForcedProtocol forced) {
  constexpr int values = 8;
  static_assert(protocols.size() < values);
  return agreement_version * values + (forced ? 1 + static_cast<int>(*forced) : 0);
}

bool can_be_asked(int rank) {
  return rank >= 0 && presence_announced(rank) == announcement(detail::announced_protocol);
}

/// can_be_asked() for processes on any node. All processes that can take part get the same answer.
bool can_be_asked_anywhere(int rank) {
  return rank >= 0 && modex_offered(rank) == announcement(detail::announced_protocol);
}

bool is_in_world(int rank) {
  return rank >= 0;
}

bool all_are(bool (*such)(int world_rank), const std::vector<int>& world_ranks) {
  return world_ranks.size() > 1 && std::all_of(world_ranks.begin(), world_ranks.end(), such);
}

bool all_are(bool (*such)(int world_rank), MPI_Comm comm) {
  return all_are(such, peer::world_ranks(comm));
}

/// How many communicators have had a context and these members, if the MPI library reuses contexts. All processes count
/// the same communicators: each has to free one before it gets the next.
struct Incarnations {
  Mutex mutex;
  std::map<std::uint64_t, std::uint64_t> seen GUARDED_BY(mutex);  ///< by context and members
};
auto& incarnations = never_destroyed<Incarnations>();

std::uint64_t incarnation_of(std::uint64_t identity) {
  if (!contexts_recur) return 0;
  const LockGuard lock(incarnations.mutex);
  return ++incarnations.seen[identity];
}

int drop_state(MPI_Comm, int, void* value, void*) {
  states_dropped.fetch_add(1, std::memory_order_relaxed);
  delete static_cast<CommState*>(value);
  return MPI_SUCCESS;
}

/// Made at the first call.
CommState& attached_state(MPI_Comm comm) {
  if (CommState* const state = comm_state_if_any(comm)) return *state;
  auto made = std::make_unique<CommState>();
  std::vector<int> ranks = is_between_groups(comm) ? std::vector<int>() : peer::world_ranks(comm);
  const bool on_node = all_are(can_be_asked, ranks);
  made->together = on_node && collectives_take_part() && has_common_context(comm);
  made->over_nodes = !on_node && world_over_nodes && all_are(is_in_world, ranks);
  if (PMPI_Comm_set_attr(comm, keyval, made.get()) != MPI_SUCCESS) throw std::bad_alloc();
  CommState& state = *made.release();
  if (!state.together) return state;
  try {  // last: processes that count a communicator more often than others would wait for them
    state.members = members_of(comm, std::move(ranks));
  } catch (...) {
    PMPI_Comm_delete_attr(comm, keyval);
    throw;
  }
  return state;
}

}  // namespace

std::uint64_t Members::key_of_request(std::uint64_t request) const {
  return mixed(key, request);
}

Members members_of(MPI_Comm comm, std::vector<int> world_ranks) {
  Members members{.world_ranks = std::move(world_ranks)};
  PMPI_Comm_rank(comm, &members.rank);
  if (!collectives_take_part()) return members;
  std::uint64_t identity = lasting_context(comm);
  for (const int rank : members.world_ranks) identity = mixed(identity, static_cast<std::uint64_t>(rank));
  members.key = std::max<std::uint64_t>(mixed(identity, incarnation_of(identity)), 1);
  return members;
}

AskBackoff& CommState::backoff_for(std::string_view call, int length) {
  // Other processes may call the other of MPI_X and MPI_X_c.
  if (call.ends_with("_c")) call.remove_suffix(2);
  for (AskBackoff& known : backoff)
    if (known.call == call && known.length == length) return known;
  return backoff.emplace_back(AskBackoff{call, length});
}

CommState* comm_state_if_any(MPI_Comm comm) {
  void* value = nullptr;
  int found = 0;
  PMPI_Comm_get_attr(comm, keyval, static_cast<void*>(&value), &found);
  return found != 0 ? static_cast<CommState*>(value) : nullptr;
}

CommState& comm_state_of(MPI_Comm comm) {
  const unsigned dropped = states_dropped.load(std::memory_order_relaxed);
  if (last_look_up.comm == comm && last_look_up.dropped == dropped && last_look_up.state) return *last_look_up.state;
  last_look_up = {comm, &attached_state(comm), dropped};
  return *last_look_up.state;
}

void collectives_announce(ForcedProtocol forced) {
  const bool has_messages = !forced || forced == Protocol::peer || forced == Protocol::shared;
  if (!presence_announce(announcement(forced)) || !has_messages || !is_known_version()) return;
  detail::announced_protocol = forced;
  modex_offer(announcement(forced));
}

// No process announces anything from here on, so that all get the same answers.
void collectives_start() {
  modex_offer(0);
  if (detail::announced_protocol == Protocol::mapped_staging || !init_waits_for_all()) return;
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, drop_state, &keyval, nullptr);
  detail::collectives_asking.store(true);
  world_over_nodes =
      has_hidden_messages() && !all_are(can_be_asked, MPI_COMM_WORLD) && all_are(can_be_asked_anywhere, MPI_COMM_WORLD);
  if (world_over_nodes) node_groups_start();
  start_contexts();
  if (all_are(can_be_asked, MPI_COMM_WORLD)) start_hidden_messages();
}

void collectives_stop() {
  if (!detail::collectives_asking.exchange(false)) return;
  node_groups_stop();
  stop_hidden_messages();
  stop_contexts();
  PMPI_Comm_free_keyval(&keyval);
}

void collectives_tell_started() noexcept {
  takes_part.store(collectives_ask() && peer::world != nullptr && contexts_are_known());
  presence_tell_started(collectives_take_part());
}

bool collectives_take_part() {
  return takes_part.load(std::memory_order_relaxed);
}

}  // namespace gpudt::interpose
