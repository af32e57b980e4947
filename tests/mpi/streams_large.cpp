// The functions that enqueue with large counts (suffix _c).
#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/mpi/streams.hpp"

using namespace gpudt::test;

namespace {

constexpr int n = 60;  ///< numbers of each block

/// Both forms of a collective, which puts its result there.
struct Forms {
  const char* name;
  std::function<int(double*)> small, large;
};

}  // namespace

TEST_CASE("Enqueued collectives with large counts do what those with int counts do", "[streams]") {
  const int size = ranks(), periodic = 1;
  MPI_Comm ring = MPI_COMM_NULL;
  MPI_OK(MPI_Cart_create(comm(), 1, &size, &periodic, 0, &ring));
  {
    const EnqueuingStream stream(cudaStreamNonBlocking, ring);
    const MPI_Comm comm = stream.comm();
    const auto blocks = static_cast<std::size_t>(size), all = blocks * n;
    Numbers out(all), one(all), other(all);
    const double* const from = out.device();
    std::vector<int> counts(blocks, n), places(blocks), bytes(blocks);
    std::vector<MPI_Count> counts_c(blocks, n);
    std::vector<MPI_Aint> places_c(blocks), bytes_c(blocks);
    const std::vector<MPI_Datatype> types(blocks, MPI_DOUBLE);
    for (std::size_t i = 0; i < blocks; ++i) {
      places_c[i] = places[i] = n * static_cast<int>(i);
      bytes_c[i] = bytes[i] = places[i] * static_cast<int>(sizeof(double));
    }
    const std::array<int, 2> two{n, n};
    const std::array<MPI_Count, 2> two_c{n, n};
    const std::array<MPI_Aint, 2> halves{0, n * sizeof(double)};
    const auto sums = [&](auto function) {
      return [=](double* to) { return function(from, to, n, MPI_DOUBLE, MPI_SUM, comm); };
    };
    const auto equal = [&](auto function) {
      return [=](double* to) { return function(from, n, MPI_DOUBLE, to, n, MPI_DOUBLE, comm); };
    };
    const auto gathers = [&](auto function, const auto& count, const auto& place) {
      return [=, &count, &place](double* to) {
        return function(from, n, MPI_DOUBLE, to, count.data(), place.data(), MPI_DOUBLE, comm);
      };
    };
    const auto exchanges = [&](auto function, const auto& count, const auto& place, const auto& type) {
      return [=, &count, &place, &type](double* to) {
        return function(from, count.data(), place.data(), type, to, count.data(), place.data(), type, comm);
      };
    };
    const MPI_Datatype number = MPI_DOUBLE;
    const MPI_Datatype* const numbers = types.data();
    const std::vector<Forms> list = {
        {"Allreduce", sums(MPIX_Allreduce_enqueue), sums(MPIX_Allreduce_enqueue_c)},
        {"Reduce_scatter_block", sums(MPIX_Reduce_scatter_block_enqueue), sums(MPIX_Reduce_scatter_block_enqueue_c)},
        {"Allgather", equal(MPIX_Allgather_enqueue), equal(MPIX_Allgather_enqueue_c)},
        {"Alltoall", equal(MPIX_Alltoall_enqueue), equal(MPIX_Alltoall_enqueue_c)},
        {"Allgatherv", gathers(MPIX_Allgatherv_enqueue, counts, places),
         gathers(MPIX_Allgatherv_enqueue_c, counts_c, places_c)},
        {"Alltoallv", exchanges(MPIX_Alltoallv_enqueue, counts, places, number),
         exchanges(MPIX_Alltoallv_enqueue_c, counts_c, places_c, number)},
        {"Alltoallw", exchanges(MPIX_Alltoallw_enqueue, counts, bytes, numbers),
         exchanges(MPIX_Alltoallw_enqueue_c, counts_c, bytes_c, numbers)},
        {"Neighbor_alltoallw", exchanges(MPIX_Neighbor_alltoallw_enqueue, two, halves, numbers),
         exchanges(MPIX_Neighbor_alltoallw_enqueue_c, two_c, halves, numbers)},
    };
    out.write(stream.cuda(), first_of(rank(), 0));
    for (const Forms& forms : list) {
      INFO(forms.name);
      for (Numbers* const each : {&one, &other}) each->clear(stream.cuda());
      MPI_OK(forms.small(one.device()));
      MPI_OK(forms.large(other.device()));
      for (Numbers* const each : {&one, &other}) each->read(stream.cuda());
      stream.synchronize();
      CHECK(other.values() == one.values());
      CHECK(other.values()[0] > 0);
    }
    MPI_OK(MPIX_Bcast_enqueue_c(out.device(), n, MPI_DOUBLE, ranks() - 1, comm));
    out.read(stream.cuda());
    stream.synchronize();
    CHECK(out.values()[1] == first_of(ranks() - 1, 0) + 1);
  }
  MPI_Comm_free(&ring);
}

TEST_CASE("Enqueued messages with large counts", "[streams]") {
  const EnqueuingStream stream;
  Numbers in(n), out(n);
  out.write(stream.cuda(), first_of(rank(), 0));
  std::array<MPI_Request, 2> requests{};
  MPI_OK(MPIX_Irecv_enqueue_c(in.device(), n, MPI_DOUBLE, left(), 1, stream.comm(), requests.data()));
  MPI_OK(MPIX_Isend_enqueue_c(out.device(), n, MPI_DOUBLE, right(), 1, stream.comm(), &requests[1]));
  MPI_OK(MPIX_Waitall_enqueue(2, requests.data(), MPI_STATUSES_IGNORE));
  in.read(stream.cuda());
  stream.synchronize();
  CHECK(in.values() == counted(n, first_of(left(), 0)));
  if (!all_have_partners()) return;
  MPI_Status status;
  if (rank() % 2 == 0)
    MPI_OK(MPIX_Send_enqueue_c(out.device(), n, MPI_DOUBLE, partner(), 2, stream.comm()));
  else
    MPI_OK(MPIX_Recv_enqueue_c(in.device(), n, MPI_DOUBLE, partner(), 2, stream.comm(), &status));
  in.read(stream.cuda());
  stream.synchronize();
  if (rank() % 2 != 0) CHECK(in.values() == counted(n, first_of(partner(), 0)));
}

TEST_CASE("Counts beyond int", "[streams]") {
  const EnqueuingStream stream;
  const MPI_Count many = MPI_Count(std::numeric_limits<int>::max()) + 1;
  MPI_Datatype nothing = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(0, MPI_DOUBLE, &nothing);
  MPI_Type_commit(&nothing);
  std::array<MPI_Request, 2> requests{};
  Numbers numbers(1);
  const auto receive = [&](MPI_Count count) {
    return MPIX_Irecv_enqueue_c(numbers.device(), count, nothing, rank(), 1, stream.comm(), requests.data());
  };
#if defined(GPUDT_MPI_LARGE_COUNTS)
  MPI_OK(receive(many));
  MPI_OK(MPIX_Isend_enqueue_c(numbers.device(), many, nothing, rank(), 1, stream.comm(), &requests[1]));
  MPI_OK(MPIX_Waitall_enqueue(2, requests.data(), MPI_STATUSES_IGNORE));
#else
  MPI_FAILS(receive(many), MPI_ERR_COUNT);
#endif
  MPI_FAILS(receive(-many), MPI_ERR_COUNT);
  stream.synchronize();
  MPI_Type_free(&nothing);
}
