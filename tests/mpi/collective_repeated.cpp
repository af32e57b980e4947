// Exchanges that a program repeats: with the same blocks, and with blocks that look the same and are not.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "pingpong/common/driver.hpp"
#include "tests/mpi/collective_exchange.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::test;

namespace {

constexpr int most_ints = 24;  ///< in a block
constexpr int room = 4096;     ///< bytes of a block's place

/// `ints` integers in pieces of a length and at a distance that this process chooses alone.
Type pieces(int ints, std::mt19937_64& own) {
  const int piece = 1 << own() % 3;
  return vector(ints / piece, piece, piece + static_cast<int>(own() % 5), MPI_INT);
}

/// The arguments of MPI_Alltoallw but for its buffers. The same integers go from each process to each.
class Blocks {
 public:
  Blocks(int ints, std::mt19937_64& own) : ints_(ints) {
    for (int other = 0; other < ranks(); ++other) {
      places_.push_back(other * room);
      for (Side* const side : {&given_, &taken_}) {
        side->types.emplace_back(pieces(ints, own));
        side->handles.push_back(*side->types.back());
      }
    }
  }

  /// Replaces one type by another, to which MPI may give the same handle.
  void change_a_type(std::mt19937_64& own) {
    Side& side = own() % 2 == 0 ? given_ : taken_;
    const std::size_t other = own() % side.types.size();
    side.types[other].reset();
    side.handles[other] = side.types[other].emplace(pieces(ints_, own));
  }

  template <class Function, class... More>
  int exchange(Function function, const void* from, void* to, MPI_Comm comm, More... more) const {
    return function(from, counts_.data(), places_.data(), given_.handles.data(), to, counts_.data(), places_.data(),
                    taken_.handles.data(), comm, more...);
  }

 private:
  struct Side {
    std::vector<std::optional<Type>> types;
    std::vector<MPI_Datatype> handles;
  };
  int ints_;
  Side given_, taken_;
  std::vector<int> counts_ = std::vector<int>(static_cast<std::size_t>(ranks()), 1), places_;
};

struct Field {
  Region send{Place::device, {{0, ranks() * room, MPI_BYTE}}};
  Region receive{Place::device, {{0, ranks() * room, MPI_BYTE}}};
};

void exchange_once(const Blocks& blocks, Field& field, MPI_Comm comm, bool blocking, std::uint64_t round) {
  field.send.fill(2 * round + 1);
  field.receive.fill(2 * round + 2);
  MPI_OK(blocks.exchange(PMPI_Alltoallw, field.send.reference(), field.receive.reference(), comm));
  if (blocking) {
    MPI_OK(blocks.exchange(MPI_Alltoallw, field.send.address(), field.receive.address(), comm));
  } else {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(blocks.exchange(MPI_Ialltoallw, field.send.address(), field.receive.address(), comm, &request));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  }
  CHECK(field.send.difference() == "");
  CHECK(field.receive.difference() == "");
}

}  // namespace

// Types and memory come and go, so that handles and addresses are those of earlier ones, in some processes only.
TEST_CASE("exchanges are repeated while types and memory change", "[collective][messages]") {
  std::mt19937_64 random = random_numbers("repeated exchanges");
  std::mt19937_64 own(random() + static_cast<std::uint64_t>(rank()));
  const Peers peers = Peers::all();
  std::vector<Blocks> blocks;
  std::vector<std::unique_ptr<Field>> fields;
  for (int i = 0; i < 3; ++i) {
    blocks.emplace_back(most_ints, own);
    fields.push_back(std::make_unique<Field>());
  }
  for (int round = 0; round < scaled(150); ++round) {
    const std::size_t which = random() % blocks.size(), field = random() % fields.size();
    switch (random() % 8) {
      case 0:  // another signature for all
        blocks[which] = Blocks(most_ints - 4 * static_cast<int>(random() % 3), own);
        break;
      case 1:
        if (rank() % 2 != 0) break;
        fields[field].reset();  // the next one may get its memory
        fields[field] = std::make_unique<Field>();
        break;
      case 2:
        if (rank() % 2 == 0) blocks[which].change_a_type(own);
        break;
      default:
        break;
    }
    exchange_once(blocks[which], *fields[field], peers.comm(), random() % 4 != 0, static_cast<std::uint64_t>(round));
  }
}

// Types of the same handles in one process after the other, where nothing else changes.
TEST_CASE("an exchange is repeated with other types of the same handles", "[collective][messages]") {
  std::mt19937_64 own(static_cast<std::uint64_t>(rank()) + 1);
  const Peers peers = Peers::all();
  Field field;
  Blocks blocks(most_ints, own);
  for (int round = 0; round < 40; ++round) {
    if (round % ranks() == rank()) blocks.change_a_type(own);
    exchange_once(blocks, field, peers.comm(), /*blocking=*/true, static_cast<std::uint64_t>(round));
  }
}

// A type without data is replaced by one with the same handle.
TEST_CASE("an exchange is repeated with a type that had no data before", "[collective][messages]") {
  if (ranks() > 16) return;
  const Peers peers = Peers::all();
  Region send(Place::device, {{0, ranks() * room, MPI_BYTE}}), receive(Place::device, {{0, ranks() * room, MPI_BYTE}});
  const auto size = static_cast<std::size_t>(ranks());
  std::vector<int> counts(size, 1), places;
  for (int other = 0; other < ranks(); ++other) places.push_back(other * room);
  for (std::uint64_t round = 0; round < 12; ++round) {
    std::vector<Type> types;
    std::vector<MPI_Datatype> handles(size, MPI_INT);
    // To the last process, by all.
    types.push_back(vector(round % 2 == 0 ? 0 : 5, 1, 2, MPI_INT));
    std::vector<MPI_Datatype> given = handles, taken = handles;
    given.back() = types.back();
    if (rank() == ranks() - 1) std::fill(taken.begin(), taken.end(), types.back());
    send.fill(2 * round + 1);
    receive.fill(2 * round + 2);
    const auto exchange_by = [&](auto function, const void* from, void* to) {
      return function(from, counts.data(), places.data(), given.data(), to, counts.data(), places.data(), taken.data(),
                      peers.comm());
    };
    MPI_OK(exchange_by(PMPI_Alltoallw, send.reference(), receive.reference()));
    MPI_OK(exchange_by(MPI_Alltoallw, send.address(), receive.address()));
    CHECK(receive.difference() == "");
  }
}

TEST_CASE("more different exchanges than are remembered", "[collective][messages]") {
  std::mt19937_64 own(static_cast<std::uint64_t>(rank()) + 1);
  const Peers peers = Peers::all();
  Field field;
  std::vector<Blocks> blocks;
  for (int i = 0; i < 21; ++i) blocks.emplace_back(most_ints - 4 * (i % 3), own);
  for (int round = 0; round < 63; ++round)
    exchange_once(blocks[static_cast<std::size_t>(round) % blocks.size()], field, peers.comm(), round % 4 != 0,
                  static_cast<std::uint64_t>(round));
}

namespace {

/// Memory of cuMemCreate that others can map, in two pieces, of which the second one can be exchanged for another.
class TwoPieces {
 public:
  TwoPieces() {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    REQUIRE(cudaGetDevice(&properties_.location.id) == cudaSuccess);
    REQUIRE(GPUDT_DRIVER(cuMemAddressReserve)(&address_, 2 * piece, 0, 0, 0) == CUDA_SUCCESS);
    map(address_);
    map(address_ + piece);
  }
  ~TwoPieces() {
    GPUDT_DRIVER(cuMemUnmap)(address_, 2 * piece);
    GPUDT_DRIVER(cuMemAddressFree)(address_, 2 * piece);
  }
  TwoPieces(const TwoPieces&) = delete;
  TwoPieces& operator=(const TwoPieces&) = delete;
  void exchange_second() {
    REQUIRE(GPUDT_DRIVER(cuMemUnmap)(address_ + piece, piece) == CUDA_SUCCESS);
    map(address_ + piece);
  }
  char* data() const { return reinterpret_cast<char*>(address_); }
  static constexpr std::size_t piece = std::size_t{2} << 20;

 private:
  void map(CUdeviceptr address) const {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAccessDesc access = {};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    REQUIRE(GPUDT_DRIVER(cuMemCreate)(&handle, piece, &properties_, 0) == CUDA_SUCCESS);
    REQUIRE(GPUDT_DRIVER(cuMemMap)(address, piece, 0, handle, 0) == CUDA_SUCCESS);
    REQUIRE(GPUDT_DRIVER(cuMemRelease)(handle) == CUDA_SUCCESS);
    REQUIRE(GPUDT_DRIVER(cuMemSetAccess)(address, piece, &access, 1) == CUDA_SUCCESS);
  }
  CUmemAllocationProp properties_ = {};
  CUdeviceptr address_ = 0;
};

}  // namespace

TEST_CASE("an exchange is repeated after a piece of its memory has been exchanged", "[collective][messages]") {
  if (any_host_only()) return;
  const Peers peers = Peers::all();
  TwoPieces send, receive;
  const std::size_t all = 2 * TwoPieces::piece, block = all / static_cast<std::size_t>(ranks()) / 4 * 4;
  for (int round = 0; round < 6; ++round) {
    std::vector<char> given(all), taken(all, 0);
    for (std::size_t i = 0; i < all; ++i)
      given[i] = static_cast<char>(i / 997 + 31 * static_cast<std::size_t>(rank() + round));
    REQUIRE(cudaMemcpy(send.data(), given.data(), all, cudaMemcpyDefault) == cudaSuccess);
    REQUIRE(cudaMemcpy(receive.data(), taken.data(), all, cudaMemcpyDefault) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    MPI_OK(MPI_Alltoall(send.data(), static_cast<int>(block / 4), MPI_INT, receive.data(), static_cast<int>(block / 4),
                        MPI_INT, peers.comm()));
    REQUIRE(cudaMemcpy(taken.data(), receive.data(), all, cudaMemcpyDefault) == cudaSuccess);
    std::size_t wrong = 0;
    for (std::size_t from = 0; from < static_cast<std::size_t>(ranks()); ++from)
      for (std::size_t i = 0; i < block; ++i) {
        const std::size_t place = static_cast<std::size_t>(rank()) * block + i;
        const auto wanted = static_cast<char>(place / 997 + 31 * (from + static_cast<std::size_t>(round)));
        if (taken[from * block + i] != wanted) ++wrong;
      }
    CHECK(wrong == 0);
    MPI_OK(MPI_Barrier(peers.comm()));
    if (round % 2 == 0) send.exchange_second();
    if (round % 3 == 1) receive.exchange_second();
  }
}
