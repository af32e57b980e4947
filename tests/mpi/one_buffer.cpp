// Several receives at once into one buffer of host memory. MPI forbids that, but benchmarks of bandwidth do so: all
// messages are alike, and of what arrives in the buffer for one receive another's RTS may be left.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int tag = 18, window = 64;

/// `window` messages each way, from device memory into one buffer.
void exchange_windows(int bytes) {
  const Type type = plain(MPI_CHAR);
  Buffer out(Place::device, type, bytes), in(Place::host, type, bytes);
  out.fill(key_of(rank(), bytes));
  std::vector<MPI_Request> requests(2 * window, MPI_REQUEST_NULL);
  for (std::size_t i = 0; i < window; ++i)
    MPI_OK(MPI_Irecv(in.address(), bytes, type, partner(), tag, comm(), &requests[i]));
  for (std::size_t i = 0; i < window; ++i)
    MPI_OK(MPI_Isend(out.address(), bytes, type, partner(), tag, comm(), &requests[window + i]));
  MPI_OK(MPI_Waitall(2 * window, requests.data(), MPI_STATUSES_IGNORE));
  in.expect(stream_of(type, bytes, key_of(partner(), bytes)));
  CHECK(in.difference() == "");
}

}  // namespace

TEST_CASE("many device messages for one buffer in host memory", "[.][peer]") {
  // An RTS from another node is known by its bytes alone.
  const char* const protocol = std::getenv("GPUDT_PROTOCOL");
  if (!all_have_partners() || (protocol != nullptr && protocol == std::string("pipelined"))) return;
  const Type type = plain(MPI_BYTE);
  exchange_both_ways({type, 4, Place::device, type, 4, Place::device}, 1);  // short messages are offered from now on
  MPI_OK(MPI_Barrier(comm()));
  for (const int bytes : {64, 601, 1000, 5000, 300'000})
    for (int times = 0; times < 5; ++times) exchange_windows(bytes);
}
