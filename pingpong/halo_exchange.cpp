#include "pingpong/halo_exchange.hpp"

#if defined(GPUDT_MPI_PERSISTENT_COLLECTIVES)
#define GPUDT_NEIGHBOR_ALLTOALLW_INIT MPI_Neighbor_alltoallw_init
#elif defined(GPUDT_MPIX_PERSISTENT_COLLECTIVES)
#include <mpi-ext.h>
#define GPUDT_NEIGHBOR_ALLTOALLW_INIT MPIX_Neighbor_alltoallw_init
#endif

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/common/sampling.hpp"

namespace gpudt::bench {
namespace {

constexpr int tag_base = 10;  // the i-th piece has tag tag_base + i

std::byte* at(void* block, std::int64_t offset) {
  return static_cast<std::byte*>(block) + offset;
}

/// Of one block, as MPI takes them.
struct Pieces {
  std::vector<int> counts;
  std::vector<MPI_Aint> displs;
  std::vector<MPI_Datatype> types;
  void add(const Message& message, std::int64_t offset) {
    counts.push_back(message.count());
    displs.push_back(static_cast<MPI_Aint>(offset));
    types.push_back(message.type());
  }
};

class TypedExchange final : public HaloExchange {
 public:
  explicit TypedExchange(const Halo& halo) : halo_(halo), requests_(2 * halo.pieces.size()) {}

  void run(void* block) override {
    MPI_Request* request = requests_.data();
    int tag = tag_base;
    for (const HaloPiece& piece : halo_.pieces) {
      MPI_Irecv(at(block, piece.receive_offset), piece.receive.count(), piece.receive.type(), piece.source, tag++,
                halo_.comm, request++);
    }
    tag = tag_base;
    for (const HaloPiece& piece : halo_.pieces) {
      MPI_Isend(at(block, piece.send_offset), piece.send.count(), piece.send.type(), piece.destination, tag++,
                halo_.comm, request++);
    }
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
  }

 private:
  const Halo& halo_;
  std::vector<MPI_Request> requests_;
};

class PersistentExchange final : public HaloExchange {
 public:
  explicit PersistentExchange(const Halo& halo) : halo_(halo) {}
  PersistentExchange(const PersistentExchange&) = delete;
  PersistentExchange& operator=(const PersistentExchange&) = delete;
  ~PersistentExchange() override { free_requests(); }

  void run(void* block) override {
    if (block != block_) prepare(block);
    MPI_Startall(static_cast<int>(requests_.size()), requests_.data());
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
  }

 private:
  void free_requests() {
    for (MPI_Request& request : requests_) MPI_Request_free(&request);
    requests_.clear();
  }

  void prepare(void* block) {
    free_requests();
    requests_.reserve(2 * halo_.pieces.size());
    int tag = tag_base;
    for (const HaloPiece& piece : halo_.pieces) {
      MPI_Recv_init(at(block, piece.receive_offset), piece.receive.count(), piece.receive.type(), piece.source, tag++,
                    halo_.comm, &requests_.emplace_back());
    }
    tag = tag_base;
    for (const HaloPiece& piece : halo_.pieces) {
      MPI_Send_init(at(block, piece.send_offset), piece.send.count(), piece.send.type(), piece.destination, tag++,
                    halo_.comm, &requests_.emplace_back());
    }
    block_ = block;
  }

  const Halo& halo_;
  std::vector<MPI_Request> requests_;
  void* block_ = nullptr;  ///< of the requests
};

/// All pieces for one rank, in their order, as one message.
class JoinedExchange final : public HaloExchange {
 public:
  explicit JoinedExchange(const Halo& halo) : comm_(halo.comm) {
    std::map<int, Pieces> to, from;
    for (const HaloPiece& piece : halo.pieces) {
      if (piece.destination != MPI_PROC_NULL) to[piece.destination].add(piece.send, piece.send_offset);
      if (piece.source != MPI_PROC_NULL) from[piece.source].add(piece.receive, piece.receive_offset);
    }
    for (const auto& [rank, pieces] : to) sends_.push_back({rank, join(pieces)});
    for (const auto& [rank, pieces] : from) receives_.push_back({rank, join(pieces)});
    requests_.resize(sends_.size() + receives_.size());
  }
  JoinedExchange(const JoinedExchange&) = delete;
  JoinedExchange& operator=(const JoinedExchange&) = delete;
  ~JoinedExchange() override {
    for (std::vector<Joined>* side : {&sends_, &receives_})
      for (Joined& joined : *side) MPI_Type_free(&joined.type);
  }

  void run(void* block) override {
    MPI_Request* request = requests_.data();
    for (const Joined& joined : receives_) MPI_Irecv(block, 1, joined.type, joined.peer, tag_base, comm_, request++);
    for (const Joined& joined : sends_) MPI_Isend(block, 1, joined.type, joined.peer, tag_base, comm_, request++);
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
  }

 private:
  struct Joined {
    int peer;
    MPI_Datatype type;
  };
  static MPI_Datatype join(const Pieces& pieces) {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_create_struct(static_cast<int>(pieces.counts.size()), pieces.counts.data(), pieces.displs.data(),
                           pieces.types.data(), &type);
    MPI_Type_commit(&type);
    return type;
  }

  MPI_Comm comm_;
  std::vector<Joined> sends_, receives_;
  std::vector<MPI_Request> requests_;
};

/// Where one rank is the neighbour in several directions, its messages match in the order of the pieces.
class NeighbourExchange : public HaloExchange {
 public:
  explicit NeighbourExchange(const Halo& halo) {
    std::vector<int> sources, destinations;
    for (const HaloPiece& piece : halo.pieces) {
      if (piece.source != MPI_PROC_NULL) {
        sources.push_back(piece.source);
        receive_.add(piece.receive, piece.receive_offset);
      }
      if (piece.destination != MPI_PROC_NULL) {
        destinations.push_back(piece.destination);
        send_.add(piece.send, piece.send_offset);
      }
    }
    MPI_Dist_graph_create_adjacent(halo.comm, static_cast<int>(sources.size()), sources.data(), MPI_UNWEIGHTED,
                                   static_cast<int>(destinations.size()), destinations.data(), MPI_UNWEIGHTED,
                                   MPI_INFO_NULL, 0, &graph_);
  }
  NeighbourExchange(const NeighbourExchange&) = delete;
  NeighbourExchange& operator=(const NeighbourExchange&) = delete;
  ~NeighbourExchange() override { MPI_Comm_free(&graph_); }

  void run(void* block) override {
    MPI_Neighbor_alltoallw(block, send_.counts.data(), send_.displs.data(), send_.types.data(), block,
                           receive_.counts.data(), receive_.displs.data(), receive_.types.data(), graph_);
  }

 protected:
  Pieces send_, receive_;
  MPI_Comm graph_ = MPI_COMM_NULL;
};

#if defined(GPUDT_NEIGHBOR_ALLTOALLW_INIT)
/// The same as a persistent request.
class StartedExchange final : public NeighbourExchange {
 public:
  using NeighbourExchange::NeighbourExchange;
  StartedExchange(const StartedExchange&) = delete;
  StartedExchange& operator=(const StartedExchange&) = delete;
  ~StartedExchange() override { free_request(); }

  void run(void* block) override {
    if (block != block_) prepare(block);
    MPI_Start(&request_);
    MPI_Wait(&request_, MPI_STATUS_IGNORE);
  }

 private:
  void free_request() {
    if (request_ != MPI_REQUEST_NULL) MPI_Request_free(&request_);
  }

  void prepare(void* block) {
    free_request();
    GPUDT_NEIGHBOR_ALLTOALLW_INIT(block, send_.counts.data(), send_.displs.data(), send_.types.data(), block,
                                  receive_.counts.data(), receive_.displs.data(), receive_.types.data(), graph_,
                                  MPI_INFO_NULL, &request_);
    block_ = block;
  }

  MPI_Request request_ = MPI_REQUEST_NULL;
  void* block_ = nullptr;  ///< of the request
};
#endif

std::unique_ptr<HaloExchange> make_started_exchange([[maybe_unused]] const Halo& halo) {
#if defined(GPUDT_NEIGHBOR_ALLTOALLW_INIT)
  return std::make_unique<StartedExchange>(halo);
#else
  return nullptr;
#endif
}

using MoverFactory = std::function<std::unique_ptr<Mover>(const Message&)>;

class StagedExchange final : public HaloExchange {
 public:
  StagedExchange(const Halo& halo, const MoverFactory& make_mover) : comm_(halo.comm) {
    constexpr std::int64_t alignment = 256;
    std::int64_t end = 0;
    const auto add = [&](std::vector<Leg>& legs, int peer, int tag, const Message& message, std::int64_t offset) {
      if (peer == MPI_PROC_NULL) return;
      legs.push_back({peer, tag, static_cast<int>(message.size()), offset, end, make_mover(message)});
      complete_ = complete_ && legs.back().mover != nullptr;
      end += (message.size() + alignment - 1) / alignment * alignment;
    };
    int tag = tag_base;
    for (const HaloPiece& piece : halo.pieces) {
      add(sends_, piece.destination, tag, piece.send, piece.send_offset);
      add(receives_, piece.source, tag, piece.receive, piece.receive_offset);
      ++tag;
    }
    staging_.reserve(static_cast<std::size_t>(end));
    arriving_.resize(receives_.size());
    leaving_.resize(sends_.size());
  }
  bool complete() const { return complete_; }

  void run(void* block) override {
    post_receives();
    send_all(block);
    unpack_in_order_of_arrival(block);
    PMPI_Waitall(static_cast<int>(leaving_.size()), leaving_.data(), MPI_STATUSES_IGNORE);
  }

 private:
  struct Leg {
    int peer, tag, bytes;
    std::int64_t block_offset, staging_offset;
    std::unique_ptr<Mover> mover;
  };

  std::byte* staged(const Leg& leg) const { return staging_.data() + leg.staging_offset; }

  void post_receives() {
    MPI_Request* request = arriving_.data();
    for (const Leg& leg : receives_) {
      PMPI_Irecv(staged(leg), leg.bytes, MPI_PACKED, leg.peer, leg.tag, comm_, request++);
    }
  }

  void send_all(void* block) {
    for (const Leg& leg : sends_) leg.mover->start_pack(at(block, leg.block_offset), staged(leg));
    MPI_Request* request = leaving_.data();
    for (const Leg& leg : sends_) {
      leg.mover->wait();
      PMPI_Isend(staged(leg), leg.bytes, MPI_PACKED, leg.peer, leg.tag, comm_, request++);
    }
  }

  void unpack_in_order_of_arrival(void* block) {
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      int which = 0;
      PMPI_Waitany(static_cast<int>(arriving_.size()), arriving_.data(), &which, MPI_STATUS_IGNORE);
      const Leg& leg = receives_[static_cast<std::size_t>(which)];
      leg.mover->start_unpack(staged(leg), at(block, leg.block_offset));
    }
    for (const Leg& leg : receives_) leg.mover->wait();
  }

  MPI_Comm comm_;
  Buffer staging_{Place::pinned};
  std::vector<Leg> sends_, receives_;
  std::vector<MPI_Request> arriving_, leaving_;
  bool complete_ = true;
};

std::unique_ptr<HaloExchange> make_staged_exchange(const Halo& halo, const std::string& way) {
  const auto stream = std::make_shared<const Stream>();
  auto exchange = std::make_unique<StagedExchange>(halo, [&](const Message& message) {
    return way == "kernel" ? make_kernel_mover(message, Place::pinned)
                           : make_copy2d_mover(message, Place::pinned, stream);
  });
  return exchange->complete() ? std::move(exchange) : nullptr;
}

double timed(HaloExchange& exchange, void* memory) {
  PMPI_Barrier(MPI_COMM_WORLD);
  const double start = now_us();
  exchange.run(memory);
  return now_us() - start;
}

}  // namespace

std::vector<Direction> all_directions(std::size_t dimensions) {
  std::vector<Direction> all = {{}};
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::vector<Direction> longer;
    for (const Direction& direction : all) {
      for (const int step : {-1, 0, 1}) {
        longer.push_back(direction);
        longer.back().push_back(step);
      }
    }
    all = std::move(longer);
  }
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  return all;
}

ProcessGrid::ProcessGrid(std::vector<int> dims, bool periodic)
    : dims_(std::move(dims)), place_(dims_.size()), periodic_(periodic) {
  int size = 0, rank = 0, product = 1;
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const int dim : dims_) product *= std::max(dim, 1);
  const int n = static_cast<int>(dims_.size());
  const bool any_free = std::find(dims_.begin(), dims_.end(), 0) != dims_.end();
  if (any_free ? size % product != 0 : size != product) {
    throw Refusal(fmt::format("a grid of {} processes cannot be made of {} ranks", describe(), size));
  }
  MPI_Dims_create(size, n, dims_.data());
  const std::vector<int> periods(dims_.size(), periodic ? 1 : 0);
  MPI_Cart_create(MPI_COMM_WORLD, n, dims_.data(), periods.data(), 0, &comm_);
  PMPI_Comm_rank(comm_, &rank);
  MPI_Cart_coords(comm_, rank, n, place_.data());
}

ProcessGrid::~ProcessGrid() {
  MPI_Comm_free(&comm_);
}

int ProcessGrid::neighbour(const Direction& direction, int sign) const {
  std::vector<int> there(place_);
  for (std::size_t d = 0; d < there.size(); ++d) {
    there[d] += sign * direction[d];
    if (!periodic_ && (there[d] < 0 || there[d] >= dims_[d])) return MPI_PROC_NULL;
  }
  int rank = MPI_PROC_NULL;
  MPI_Cart_rank(comm_, there.data(), &rank);
  return rank;
}

std::string ProcessGrid::describe() const {
  std::string text;
  for (const int dim : dims_) text += (text.empty() ? "" : " x ") + std::to_string(dim);
  return text;
}

std::int64_t Halo::bytes() const {
  std::int64_t sum = 0;
  for (const HaloPiece& piece : pieces) sum += piece.source == MPI_PROC_NULL ? 0 : piece.receive.size();
  return sum;
}

std::unique_ptr<HaloExchange> make_exchange(const Halo& halo, const std::string& way) {
  if (way == "mpi") return std::make_unique<TypedExchange>(halo);
  if (way == "neighbour") return std::make_unique<NeighbourExchange>(halo);
  if (way == "started") return make_started_exchange(halo);
  if (way == "persistent") return std::make_unique<PersistentExchange>(halo);
  if (way == "joined") return std::make_unique<JoinedExchange>(halo);
  return make_staged_exchange(halo, way);
}

void measure_exchanges(Contest& contest, const std::vector<std::string>& cells, const nlohmann::json& about,
                       const Halo& halo, const std::vector<std::string>& ways, ExchangedMemory& memory) {
  std::vector<std::unique_ptr<HaloExchange>> exchanges;
  std::vector<Entry> entries;
  for (const std::string& way : ways) {
    exchanges.push_back(make_exchange(halo, way));
    HaloExchange* const exchange = exchanges.back().get();
    if (any_rank(exchange == nullptr)) continue;
    entries.push_back({"exchange", way, [&memory, exchange] { return timed(*exchange, memory.address()); },
                       [&memory, exchange](std::int64_t round) {
                         memory.fill(round);
                         PMPI_Barrier(MPI_COMM_WORLD);
                         exchange->run(memory.address());
                         return memory.mismatch(round);
                       },
                       static_cast<double>(halo.bytes())});
  }
  contest.measure(cells, about, std::move(entries));
}

}  // namespace gpudt::bench
