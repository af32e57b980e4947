// Calls that send and receive, beside blocking sends to them: neither may wait for the other to call again.
#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int there = 4, back = 5;  // tags
constexpr int doubles = 1 << 17;    // 1 MiB: no MPI sends it before it is received

/// The even rank sends, then receives; `exchange(buffers)` of the odd one does both at once.
template <class Exchange>
void send_beside(const Type& sent, const Type& answered, Place place, Exchange exchange) {
  if (!all_have_partners()) return;
  for (const Place from : {Place::device, Place::host})
    for (int turn = 0; turn < 2; ++turn) {  // the first messages to a process may go another way than later ones
      INFO(place_name(from) << " to " << place_name(place) << ", turn " << turn);
      Buffer out(from, sent, 1), in(from, answered, 1);
      out.fill(key_of(rank(), turn));
      if (rank() % 2 != 0) {
        exchange(turn);
        continue;
      }
      MPI_OK(MPI_Send(out.address(), 1, sent, partner(), there, comm()));
      MPI_OK(MPI_Recv(in.address(), 1, answered, partner(), back, comm(), MPI_STATUS_IGNORE));
      in.expect(stream_of(answered, 1, key_of(partner(), turn)));
      CHECK(in.difference() == "");
    }
}

}  // namespace

TEST_CASE("a blocking send to an MPI_Sendrecv whose own message waits for the sender", "[peer][long]") {
  const Type gaps = vector(doubles, 1, 2), dense = vector(1, doubles, doubles);
  for (const Place place : {Place::host, Place::device})
    for (const Type* own : {&gaps, &dense})
      send_beside(gaps, *own, place, [&](int turn) {
        Buffer out(place, *own, 1), in(place, dense, 1);
        out.fill(key_of(rank(), turn));
        MPI_Status status{};
        MPI_OK(MPI_Sendrecv(out.address(), 1, *own, partner(), back, in.address(), 1, dense, partner(), there, comm(),
                            &status));
        check_status(status, partner(), there, dense, dense.size());
        in.expect(stream_of(gaps, 1, key_of(partner(), turn)));
        CHECK(in.difference() == "");
      });
}

TEST_CASE("a blocking send to an MPI_Sendrecv_replace whose own message waits for the sender", "[peer][long]") {
  const Type gaps = vector(doubles, 1, 2), dense = vector(1, doubles, doubles);
  for (const Place place : {Place::host, Place::device})
    for (const Type* own : {&gaps, &dense})
      send_beside(gaps, *own, place, [&](int turn) {
        Buffer both(place, *own, 1);
        both.fill(key_of(rank(), turn));
        MPI_Status status{};
        MPI_OK(MPI_Sendrecv_replace(both.address(), 1, *own, partner(), back, partner(), there, comm(), &status));
        check_status(status, partner(), there, *own, own->size());
        both.expect(stream_of(gaps, 1, key_of(partner(), turn)));
        CHECK(both.difference() == "");
      });
}

TEST_CASE("MPI_Sendrecv_replace that sends to nobody, or receives from nobody", "[peer]") {
  if (!all_have_partners()) return;
  for (const Place place : basic_places)
    for (const int elements : {5, 500, 5000})
      for (const bool low_sends : {false, true}) {
        const Type type = vector(elements, 1, 2);
        INFO(place_name(place) << ", " << type.text());
        Buffer both(place, type, 1);
        both.fill(key_of(rank(), elements));
        const bool sends = (rank() < partner()) == low_sends;
        const int dest = sends ? partner() : MPI_PROC_NULL, source = sends ? MPI_PROC_NULL : partner();
        MPI_Status status{};
        MPI_OK(MPI_Sendrecv_replace(both.address(), 1, type, dest, there, source, there, comm(), &status));
        if (!sends) {
          check_status(status, partner(), there, type, type.size());
          both.expect(stream_of(type, 1, key_of(partner(), elements)));
        }
        CHECK(both.difference() == "");
      }
}
