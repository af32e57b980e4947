// Memory that other processes cannot map: its data are packed for the receiver, unless that is waiting already. Then
// the sender's GPU writes them into the receiver's memory.
#include <chrono>

#include "tests/mpi/exchange.hpp"
#include "tests/support/counters.hpp"

using namespace gpudt::test;

namespace {

constexpr int tag_of_written = 11, few_sent = 20;

Type doubles(int count) {
  return vector(1, count, count);
}

/// The messages that this process's GPU has written.
long long written() {
  return counter("messages_put");
}

/// After some messages, the sender's GPU writes them: the memory is mapped when opening it is not put off any more.
void check_written(Place from, const Type& type) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const long long before = written();
  send_again(
      {type, 1, from, type, 1, Place::device}, receive_modes[0], tag_of_written,
      [&](int) { return written() > before || std::chrono::steady_clock::now() > deadline; }, First::receiver);
  CHECK((written() > before || !first_of_pair()));
}

}  // namespace

TEST_CASE("data that would be packed first are written by their sender's GPU", "[.][written]") {
  for (const Place from : {Place::mapped, Place::stream_ordered, Place::managed})
    for (const int count : {3000, 300'000}) {
      const Type one = doubles(count), rows = vector(count / 100, 100, 150), longer = doubles(count + 1000);
      check_written(from, one);
      // Written, too, unless GPUDT_WAY makes rows better packed.
      for (const Ends& ends :
           {Ends{rows, 1, from, longer, 1, Place::device}, Ends{one, 1, from, rows, 1, Place::device}})
        send_again(
            ends, receive_modes[0], tag_of_written, [](int sent) { return sent == few_sent; }, First::receiver);
    }
}

TEST_CASE("data that others can map are fetched", "[.][written]") {
  const Type one = doubles(300'000);
  for (const Place from : {Place::device, Place::shareable}) {
    const long long before = written();
    send_again({one, 1, from, one, 1, Place::device}, receive_modes[0], tag_of_written,
               [](int sent) { return sent == few_sent; });
    // One of two processes that share a GPU writes (the test "one-gpu").
    if (!kernels_take_turns()) CHECK(written() == before);
  }
}
