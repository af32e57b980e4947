#include "interpose/collective_messages.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "interpose/errors.hpp"
#include "interpose/log.hpp"
#include "interpose/operand.hpp"
#include "interpose/peer.hpp"
#include "interpose/peer_segment.hpp"
#include "interpose/peer_world.hpp"
#include "interpose/report.hpp"
#include "interpose/workarounds.hpp"

namespace gpudt::interpose {
namespace {

/// From here on a block goes sooner as a message than its share of a collective on staged data does.
constexpr std::int64_t least_block = 24 << 10;
constexpr std::int64_t least_block_from_root = 8 << 10;
constexpr int most_passed = 255;
constexpr int tags = 32768;  ///< that every MPI library has; one for each call, in turn

/// How many calls of an operation pass before all are asked again. (Not if all is to be offered.)
struct Patience {
  std::string_view call;
  int passing = 0, left = 0;

  bool passes() { return left > 0 && left-- > 0; }
  void grow() { left = passing = std::min(2 * passing + 1, most_passed); }
  void reset() { passing = left = 0; }
};

/// What is kept with a communicator, the same in all of its processes.
struct Circle {
  bool together = false;              ///< all can be asked
  MPI_Comm messages = MPI_COMM_NULL;  ///< theirs alone; made when first needed
  int calls = 0;                      ///< that went so
  std::vector<Patience> patience = {};

  Patience& patience_with(std::string_view call) {
    for (Patience& known : patience)
      if (known.call == call) return known;
    return patience.emplace_back(Patience{call});
  }
};

std::atomic<bool> asking{false};
PeerUse announced_use = PeerUse::never;
int keyval = MPI_KEYVAL_INVALID;

std::mutex mutex;           // of what follows
std::set<Circle*> circles;  ///< of all communicators
/// By rank in MPI_COMM_WORLD: whether the process can be asked; not looked up yet: -1.
std::vector<signed char> askable;

std::int64_t least_wanted(Flow flow) {
  if (announced_use == PeerUse::always) return 1;
  return flow == Flow::from_root ? least_block_from_root : least_block;
}

int own_rank_by_launcher() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr ? -1 : std::atoi(rank);
}

/// The caller holds the mutex.
bool can_be_asked(int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= askable.size()) return false;
  signed char& known = askable[static_cast<std::size_t>(rank)];
  if (known < 0) known = peer::announced(peer::job_name(), rank) == static_cast<int>(announced_use) ? 1 : 0;
  return known != 0;
}

bool all_can_be_asked(MPI_Comm comm) {
  int inter = 0;
  PMPI_Comm_test_inter(comm, &inter);
  if (inter != 0) return false;
  const std::vector<int> ranks = peer::world_ranks(comm);
  const std::lock_guard<std::mutex> lock(mutex);
  return ranks.size() > 1 && std::all_of(ranks.begin(), ranks.end(), can_be_asked);
}

Circle* kept_with(MPI_Comm comm) {
  void* value = nullptr;
  int found = 0;
  PMPI_Comm_get_attr(comm, keyval, static_cast<void*>(&value), &found);
  return found == 0 ? nullptr : static_cast<Circle*>(value);
}

/// Null if there is no memory.
Circle* circle_of(MPI_Comm comm) {
  if (Circle* const known = kept_with(comm)) return known;
  auto made = std::make_unique<Circle>();
  made->together = all_can_be_asked(comm);
  if (PMPI_Comm_set_attr(comm, keyval, made.get()) != MPI_SUCCESS) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  circles.insert(made.get());
  return made.release();
}

/// Not the communicator for messages: that has gone before.
int drop_circle(MPI_Comm, int, void* value, void*) {
  auto* const circle = static_cast<Circle*>(value);
  const std::lock_guard<std::mutex> lock(mutex);
  circles.erase(circle);
  delete circle;
  return MPI_SUCCESS;
}

std::int64_t bytes_of(const Parcel& parcel) {
  MPI_Count size = 0;
  PMPI_Type_size_x(parcel.type, &size);
  return parcel.count * size;
}

bool right(const std::vector<Parcel>& parcels) {
  return std::all_of(parcels.begin(), parcels.end(),
                     [](const Parcel& each) { return each.count >= 0 && each.type != MPI_DATATYPE_NULL; });
}

/// Types that are not known are MPI's to refuse.
bool may_go(const Parcel& parcel) {
  return parcel.count <= std::numeric_limits<int>::max() && locate_buffer(parcel.buffer, parcel.type).on_device() &&
         datatype::type_info(parcel.type);
}

/// Takes out what is empty. Bytes, less those of as many blocks that are just not long enough: positive, if messages
/// are the better way.
std::int64_t weigh(std::vector<Parcel>& parcels, std::int64_t least) {
  std::int64_t weight = 0;
  std::erase_if(parcels, [&](const Parcel& each) {
    const std::int64_t bytes = bytes_of(each);
    if (bytes != 0) weight += bytes - (least - 1);
    return bytes == 0;
  });
  return weight;
}

/// Whether all processes would have it so, and one of them has much to send or to receive.
bool all_agree(MPI_Comm comm, bool unfit, std::int64_t weight) {
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

/// What a process gives to itself, from layout to layout.
class OwnBlocks {
 public:
  /// Takes these out of `parcels`, unless messages alone can move them.
  OwnBlocks(const char* call, int rank, Parcels& parcels) {
    const auto own = [rank](const Parcel& parcel) { return parcel.rank == rank; };
    if (!pair(call, chosen(parcels.given, own), chosen(parcels.taken, own))) {
      pairs_.clear();
      return;
    }
    std::erase_if(parcels.given, own);
    std::erase_if(parcels.taken, own);
  }
  void start() {
    transfers_.reserve(pairs_.size());
    for (const auto& [from, to] : pairs_)
      transfers_.push_back(device::transfer(to.ordinal, side(from), side(to), 0, to.bytes()));
  }
  void wait() {
    for (device::Transfer& transfer : transfers_) transfer.wait();
  }

 private:
  template <class Own>
  static std::vector<Parcel> chosen(const std::vector<Parcel>& parcels, Own own) {
    std::vector<Parcel> found;
    std::copy_if(parcels.begin(), parcels.end(), std::back_inserter(found), own);
    return found;
  }
  static device::Side side(const Operand& operand) { return {&operand.info->layout(), operand.count, operand.buffer}; }
  /// False if some are of different lengths, which is an error, or on different GPUs.
  bool pair(const char* call, const std::vector<Parcel>& given, const std::vector<Parcel>& taken) {
    if (given.size() != taken.size()) return false;
    pairs_.resize(given.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
      auto& [from, to] = pairs_[i];
      if (!resolve_mapped(given[i].buffer, given[i].count, given[i].type, call, from) ||
          !resolve_mapped(taken[i].buffer, taken[i].count, taken[i].type, call, to) || from.bytes() != to.bytes() ||
          from.ordinal != to.ordinal)
        return false;
    }
    return true;
  }

  std::vector<std::pair<Operand, Operand>> pairs_;
  std::vector<device::Transfer> transfers_;  // after pairs_, which hold their layouts
};

/// Messages under way.
class Messages {
 public:
  explicit Messages(std::size_t most) { requests_.reserve(most); }
  /// After an error. What others still send by this call's tag, no later call receives.
  ~Messages() {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  int receive(const Parcel& parcel, int tag, MPI_Comm comm) {
    return MPI_Irecv(const_cast<void*>(parcel.buffer), static_cast<int>(parcel.count), parcel.type, parcel.rank, tag,
                     comm, &requests_.emplace_back(MPI_REQUEST_NULL));
  }
  int send(const Parcel& parcel, int tag, MPI_Comm comm) {
    return MPI_Isend(parcel.buffer, static_cast<int>(parcel.count), parcel.type, parcel.rank, tag, comm,
                     &requests_.emplace_back(MPI_REQUEST_NULL));
  }
  int wait() {
    std::vector<MPI_Status> statuses(requests_.size());
    const int code = MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), statuses.data());
    return code == MPI_ERR_IN_STATUS ? error_in(statuses) : code;
  }

 private:
  std::vector<MPI_Request> requests_;
};

/// May throw device::Error.
int move(const char* call, MPI_Comm comm, int tag, Parcels& parcels) {
  OwnBlocks own(call, Seat(comm).rank, parcels);
  Messages messages(parcels.taken.size() + parcels.given.size());
  int code = MPI_SUCCESS;
  for (const Parcel& parcel : parcels.taken)
    if (code == MPI_SUCCESS) code = messages.receive(parcel, tag, comm);
  for (const Parcel& parcel : parcels.given)
    if (code == MPI_SUCCESS) code = messages.send(parcel, tag, comm);
  if (code != MPI_SUCCESS) return code;
  own.start();
  code = messages.wait();
  own.wait();
  return code;
}

}  // namespace

void collectives_announce(PeerUse use) {
  const bool has_messages = use == PeerUse::automatic || use == PeerUse::always || use == PeerUse::shared;
  const std::string job = peer::job_name();
  if (!has_messages || !all_receives_are_known() || job.empty()) return;
  const int rank = own_rank_by_launcher();
  if (rank >= 0 && peer::announce(job, rank, static_cast<int>(use))) announced_use = use;
}

void collectives_start() {
  if (announced_use == PeerUse::never || !init_waits_for_all()) return;
  int size = 0;
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  askable.assign(static_cast<std::size_t>(size), -1);
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, drop_circle, &keyval, nullptr);
  asking.store(true);
}

void collectives_stop() {
  if (!asking.exchange(false)) return;
  PMPI_Comm_free_keyval(&keyval);
  const std::lock_guard<std::mutex> lock(mutex);
  for (Circle* const circle : circles)
    if (circle->messages != MPI_COMM_NULL) PMPI_Comm_free(&circle->messages);
}

void collectives_forget_comm(MPI_Comm comm) {
  if (!asking.load(std::memory_order_relaxed)) return;
  Circle* const circle = kept_with(comm);
  if (circle != nullptr && circle->messages != MPI_COMM_NULL) MPI_Comm_free(&circle->messages);
}

namespace collective_messages {

bool asked(const Call& call, MPI_Comm comm, Flow flow, std::int64_t elements, MPI_Datatype type) {
  if (!asking.load(std::memory_order_relaxed) || call.request != nullptr || comm == MPI_COMM_NULL) return false;
  if (elements != varying &&
      (elements <= 0 || type == MPI_DATATYPE_NULL || bytes_of({nullptr, elements, type, 0}) < least_wanted(flow)))
    return false;
  Circle* const circle = circle_of(comm);
  return circle != nullptr && circle->together && !circle->patience_with(call.name).passes();
}

std::optional<int> exchange(const Call& call, MPI_Comm comm, Flow flow, Parcels parcels) {
  if (!right(parcels.given) || !right(parcels.taken)) return std::nullopt;
  const std::int64_t least = least_wanted(flow);
  const std::int64_t weight = std::max(weigh(parcels.given, least), weigh(parcels.taken, least));
  const bool fit = active.load(std::memory_order_acquire) && peer_checks() &&
                   std::all_of(parcels.given.begin(), parcels.given.end(), may_go) &&
                   std::all_of(parcels.taken.begin(), parcels.taken.end(), may_go);
  Circle& circle = *circle_of(comm);
  Patience& patience = circle.patience_with(call.name);
  if (!all_agree(comm, !fit, weight)) {
    if (announced_use != PeerUse::always) patience.grow();
    return std::nullopt;
  }
  patience.reset();
  if (circle.messages == MPI_COMM_NULL) {
    circle.messages = bare_copy(comm);
    PMPI_Comm_set_errhandler(circle.messages, MPI_ERRORS_RETURN);
  }
  report_peer(PeerEvent::collective);
  if (tracing())
    log_trace(std::string(call.name) + ": as " + std::to_string(parcels.given.size()) + " messages to, and " +
              std::to_string(parcels.taken.size()) + " from, processes of the node");
  const int code = move(call.name, circle.messages, circle.calls++ % tags, parcels);
  return code == MPI_SUCCESS ? code : raise(comm, code);
}

}  // namespace collective_messages
}  // namespace gpudt::interpose
