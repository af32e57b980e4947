// Receives into device memory that declare far more than GPUDT_STAGING_LIMIT: nothing but what comes by way of the host
// may take pinned memory, and no more than there is.
#include <limits>
#include <string>
#include <vector>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

/// A message of `sent` elements, both ways, into a receive that declares as many as an int can tell.
void receive_any_length(Place from, const Type& type, int sent, bool nonblocking) {
  INFO(sent << " of " << type.text() << " from " << place_name(from));
  Buffer out(from, type, sent), in(Place::device, type, sent);
  constexpr int most = std::numeric_limits<int>::max();
  out.fill(key_of(rank(), sent));
  MPI_Request send = MPI_REQUEST_NULL, receive = MPI_REQUEST_NULL;
  MPI_Status status{};
  MPI_OK(MPI_Isend(out.address(), sent, type, partner(), 1, comm(), &send));
  if (nonblocking) {
    MPI_OK(MPI_Irecv(in.address(), most, type, partner(), 1, comm(), &receive));
    MPI_OK(MPI_Wait(&receive, &status));
  } else {
    MPI_OK(MPI_Recv(in.address(), most, type, partner(), 1, comm(), &status));
  }
  MPI_OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
  check_status(status, partner(), 1, type, sent * type.size());
  in.expect(stream_of(type, sent, key_of(partner(), sent)));
  CHECK(in.difference() == "");
}

}  // namespace

TEST_CASE("more receives of device messages than there is pinned memory for", "[.][long-receives]") {
  if (!all_have_partners()) return;
  constexpr int messages = 6;
  const Type type = vector(1, 8 << 20, 8 << 20, MPI_CHAR);
  std::vector<Buffer> in, out;
  std::vector<MPI_Request> requests(2 * messages);
  for (int i = 0; i < messages; ++i) {
    in.emplace_back(Place::device, type, 1);
    MPI_OK(MPI_Irecv(in.back().address(), 1, type, partner(), i, comm(), &requests[static_cast<std::size_t>(i)]));
  }
  for (int i = 0; i < messages; ++i) {
    out.emplace_back(Place::device, type, 1);
    out.back().fill(key_of(rank(), i));
    MPI_OK(MPI_Isend(out.back().address(), 1, type, partner(), i, comm(),
                     &requests[static_cast<std::size_t>(messages + i)]));
  }
  MPI_OK(MPI_Waitall(2 * messages, requests.data(), MPI_STATUSES_IGNORE));
  for (int i = 0; i < messages; ++i) {
    in[static_cast<std::size_t>(i)].expect(stream_of(type, 1, key_of(partner(), i)));
    CHECK(in[static_cast<std::size_t>(i)].difference() == "");
  }
}

TEST_CASE("receives of any length into device memory", "[.][long-receives]") {
  if (!all_have_partners()) return;
  MPI_Datatype resized = MPI_DATATYPE_NULL, three = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(3, MPI_SHORT, &three);
  MPI_Type_create_resized(three, 0, 10, &resized);
  MPI_Type_commit(&resized);
  MPI_Type_free(&three);
  const Type with_gaps(resized, "3 shorts of 5"), doubles = plain(MPI_DOUBLE);
  for (const Place from : basic_places)
    for (const bool nonblocking : {false, true})
      for (const int sent : {16, 100'000, 100'000}) {  // the third time into pinned memory, if there were any
        receive_any_length(from, with_gaps, sent, nonblocking);
        receive_any_length(from, doubles, sent, nonblocking);
      }
}

TEST_CASE("long messages from host memory go through what pinned memory there is", "[.][long-receives]") {
  if (!all_have_partners()) return;
  const Type contiguous = vector(1, 9 << 20, 9 << 20, MPI_CHAR), strided = vector(600'000, 1, 2, MPI_DOUBLE);
  for (int time = 0; time < 2; ++time)
    for (const Type* const type : {&contiguous, &strided})
      exchange_both_ways({*type, 1, Place::host, *type, 1, Place::device}, time);
}
