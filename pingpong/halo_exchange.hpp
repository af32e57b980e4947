// The exchange of a block's boundary layers with all its neighbours in a grid of processes: through MPI with datatypes
// on the block itself, or by hand with packed copies in pinned memory.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/layouts.hpp"
#include "pingpong/common/movers.hpp"

namespace gpudt::bench {

/// A step in the grid: -1, 0 or 1 for each dimension.
using Direction = std::vector<int>;

/// All of them but the one that stays where it is: 8 in two dimensions, 26 in three.
std::vector<Direction> all_directions(std::size_t dimensions);

/// The processes, in a Cartesian communicator.
class ProcessGrid {
 public:
  /// `dims`, slowest first; 0: MPI chooses. Throws Refusal where they do not multiply to the number of ranks.
  ProcessGrid(std::vector<int> dims, bool periodic);
  ProcessGrid(const ProcessGrid&) = delete;
  ProcessGrid& operator=(const ProcessGrid&) = delete;
  ~ProcessGrid();

  MPI_Comm comm() const { return comm_; }
  const std::vector<int>& dims() const { return dims_; }
  const std::vector<int>& place() const { return place_; }  ///< of this rank
  bool periodic() const { return periodic_; }
  /// The rank that is `sign` times `direction` away, or MPI_PROC_NULL beyond the edge.
  int neighbour(const Direction& direction, int sign) const;
  /// "2 x 1"
  std::string describe() const;

 private:
  std::vector<int> dims_, place_;
  bool periodic_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// What moves in one direction: to the neighbour there, and from the one behind. Each message begins so many bytes
/// behind the block's address.
struct HaloPiece {
  int destination, source;
  Message send, receive;
  std::int64_t send_offset = 0, receive_offset = 0;
};

/// All pieces of one block; the i-th piece has the same direction on all ranks.
struct Halo {
  MPI_Comm comm;
  std::vector<HaloPiece> pieces;
  std::int64_t bytes() const;  ///< that this rank receives
};

/// Fills a block's halo from its neighbours; returns when it is there and the block may change. Refers to the halo.
class HaloExchange {
 public:
  virtual ~HaloExchange() = default;
  virtual void run(void* block) = 0;
};

/// The ways, by name:
///   mpi         MPI_Irecv, MPI_Isend and MPI_Waitall with the pieces' types
///   persistent  the same by persistent requests
///   joined      one message to each rank, whose type is the struct of all pieces for it
///   neighbour   one MPI_Neighbor_alltoallw with the pieces' types
///   memcpy2d    packed by hand into pinned memory, all copies on one stream, sent with PMPI_Isend, unpacked in the
///               order of arrival
///   kernel      the same with a hand-written kernel for each piece
/// Null where there is no such way.
std::unique_ptr<HaloExchange> make_exchange(const Halo& halo, const std::string& way);

/// Memory that is exchanged, and what is right in it.
class ExchangedMemory {
 public:
  virtual ~ExchangedMemory() = default;
  virtual void* address() const = 0;
  virtual void fill(std::int64_t round) = 0;  ///< with data of this round
  /// After fill() and an exchange: what is wrong, if anything.
  virtual std::optional<std::string> mismatch(std::int64_t round) = 0;
};

/// Contest::measure() of the call "exchange", in those of the ways that are possible on all ranks. Collective.
void measure_exchanges(Contest& contest, const std::vector<std::string>& cells, const nlohmann::json& about,
                       const Halo& halo, const std::vector<std::string>& ways, ExchangedMemory& memory);

}  // namespace gpudt::bench
