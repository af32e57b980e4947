// Long messages from host memory into the memory of GPUs, which blocking sends offer once the receiver wants them
// (transport/peer/from_host.hpp).
#include <algorithm>
#include <array>
#include <vector>

#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/exchange.hpp"
#include "tests/support/counters.hpp"

using namespace gpudt::test;

namespace {

constexpr int from_host_tag = 11;
/// Bytes: just not offered; the shortest that are; in few parts; in more parts than there are places for; in parts of
/// several lengths.
constexpr std::array from_host_sizes = {32'767, 32'768, 32'769, 300'000, 1 << 20, 9'000'001};
constexpr int each_sent = 5;

long long offers() {
  return counter("messages_from_host");
}

/// Whether messages between GPUs are offered at all in this run, and counted, as one shows.
bool are_offered() {
  const Type type = vector(1000, 1, 2);
  const long long before = counter("messages_offered");
  for (int i = 0; i < 3; ++i) exchange_both_ways({type, 1, Place::device, type, 1, Place::device}, from_host_tag);
  PMPI_Barrier(comm());
  return counter("messages_offered") != before && counter("messages_in_fragments") == 0;
}

/// Data in host memory of the first of each pair, and room on the GPU of the second.
struct HostToGpu {
  std::vector<char> data;
  Memory in;
  explicit HostToGpu(int bytes) : data(static_cast<std::size_t>(bytes)), in(Place::device, data.size()) {}

  void fill(int round) {
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = static_cast<char>(i * 7 + i / 256 + static_cast<std::size_t>(round));
  }
  /// Whether the first `bytes` bytes of the GPU's memory are those that fill() makes.
  bool has(int round, std::size_t bytes) {
    fill(round);
    std::vector<char> got(data.size());
    in.read(got.data(), got.size());
    return std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(bytes), data.begin());
  }
};

}  // namespace

TEST_CASE("long messages from host memory into that of GPUs", "[peer][from-host]") {
  if (!all_have_partners() || any_host_only()) return;
  const Type one = plain(MPI_BYTE), strided = vector(1000, 24, 32);
  for (const int bytes : from_host_sizes)
    for (const Place place : {Place::host, Place::pinned, Place::registered})
      for (const ReceiveMode& mode : receive_modes)
        send_again({one, bytes, place, one, bytes + 3, Place::device}, mode, from_host_tag,
                   [](int sent) { return sent == each_sent; });
  for (const Place to : {Place::managed, Place::stream_ordered})
    send_again({one, 300'000, Place::host, one, 300'000, to}, receive_modes[0], from_host_tag,
               [](int sent) { return sent == each_sent; });
  // Other layouts at the receiver, and at the sender, where they stay with MPI.
  const int count = 40;
  const int bytes = static_cast<int>(strided.size()) * count;
  const auto ends = [](int sent) { return sent == each_sent; };
  send_again({one, bytes, Place::host, strided, count, Place::device}, receive_modes[0], from_host_tag, ends);
  send_again({strided, count, Place::host, one, bytes, Place::device}, receive_modes[0], from_host_tag, ends);
}

TEST_CASE("which messages from host memory are offered", "[.][from-host]") {
  if (!all_have_partners() || any_host_only() || !are_offered()) return;
  const Type one = plain(MPI_BYTE);
  for (const int bytes : from_host_sizes) {
    INFO(bytes);
    const long long before = offers();
    // The receiver publishes the envelope at the end of its first receive, which the sender may not wait for.
    send_again(
        {one, bytes, Place::host, one, bytes, Place::device}, receive_modes[0], from_host_tag + bytes % 997,
        [](int sent) { return sent == each_sent; }, First::receiver);
    if (first_of_pair()) CHECK(offers() - before == (bytes < 32'768 ? 0 : each_sent - 1));
  }
}

TEST_CASE("messages from host memory received by turns into host memory and a GPU's", "[peer][from-host]") {
  if (!all_have_partners() || any_host_only()) return;
  const Type one = plain(MPI_BYTE);
  for (int turn = 0; turn < 4; ++turn)
    for (const Place to : {Place::device, Place::host})
      for (const ReceiveMode& mode : receive_modes)
        send_again({one, 200'000, Place::host, one, 200'000, to}, mode, from_host_tag,
                   [&](int sent) { return sent == turn % 3 + 1; });
}

TEST_CASE("receives by turns into host memory and a GPU's get ever fewer offers", "[.][from-host]") {
  if (!all_have_partners() || any_host_only() || !are_offered()) return;
  const Type one = plain(MPI_BYTE);
  const long long before = offers();
  for (int turn = 0; turn < 20; ++turn)
    for (const Place to : {Place::device, Place::host})
      send_again({one, 100'000, Place::host, one, 100'000, to}, receive_modes[0], from_host_tag + 1,
                 [](int) { return true; });
  // The back-off skips 1, 2, 4, 8 ... of them.
  if (first_of_pair()) CHECK((offers() > before && offers() - before < 8));
}

TEST_CASE("several processes send from host memory by one tag", "[.][from-host]") {
  if (ranks() < 3 || any_host_only() || !are_offered()) return;
  constexpr int bytes = 60'000, rounds = 10;
  HostToGpu both(bytes);
  const long long before = offers();
  for (int round = 0; round < rounds; ++round) {
    both.fill(round);
    PMPI_Barrier(comm());  // the receiver may publish the envelope after the first message has been sent
    if (rank() != 0) MPI_OK(MPI_Send(both.data.data(), bytes, MPI_BYTE, 0, from_host_tag + 2, comm()));
    for (int source = 1; rank() == 0 && source < ranks(); ++source) {
      MPI_OK(MPI_Recv(both.in.data(), bytes, MPI_BYTE, source, from_host_tag + 2, comm(), MPI_STATUS_IGNORE));
      CHECK(both.has(round, bytes));
    }
  }
  if (rank() != 0) CHECK(offers() - before == rounds - 1);
}

TEST_CASE("no data where an offer from host memory is wanted", "[peer][from-host]") {
  if (!all_have_partners() || any_host_only()) return;
  constexpr int bytes = 100'000;
  HostToGpu both(bytes);
  ErrorComm errors(/*own_handler=*/false);
  for (int round = 0; round < 3; ++round) {
    both.fill(round);
    if (first_of_pair()) {
      MPI_OK(MPI_Send(both.data.data(), bytes, MPI_BYTE, partner(), from_host_tag, errors));
      CHECK(MPI_Send(nullptr, bytes, MPI_BYTE, partner(), from_host_tag, errors) != MPI_SUCCESS);
    } else {
      MPI_OK(MPI_Recv(both.in.data(), bytes, MPI_BYTE, partner(), from_host_tag, errors, MPI_STATUS_IGNORE));
      CHECK(both.has(round, bytes));
    }
  }
}

TEST_CASE("offered messages from host memory that are too long for the receive", "[peer][from-host]") {
  // Open MPI writes long messages that are not offered beyond the end of the receive buffer.
  if (!all_have_partners() || any_host_only() || !are_offered()) return;
  constexpr int bytes = 500'000;
  HostToGpu both(bytes);
  ErrorComm errors(/*own_handler=*/false);
  for (int round = 0; round < 6; ++round) {
    const int room = round % 2 == 0 ? bytes : bytes / 3;
    if (first_of_pair()) {
      both.fill(round);
      MPI_OK(MPI_Send(both.data.data(), bytes, MPI_BYTE, partner(), from_host_tag, errors));
    } else {
      MPI_Status status{};
      const int code = MPI_Recv(both.in.data(), room, MPI_BYTE, partner(), from_host_tag, errors, &status);
      CHECK(error_class(code) == (room < bytes ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
      if (room == bytes) CHECK(both.has(round, bytes));
    }
  }
}

TEST_CASE("messages from host memory to several tags and both ways", "[peer][from-host]") {
  if (!all_have_partners() || any_host_only()) return;
  constexpr int bytes = 150'000;
  HostToGpu both(bytes);
  for (int round = 0; round < 12; ++round) {
    const int tag = from_host_tag + round % 3;
    both.fill(round);
    if (first_of_pair()) {
      MPI_OK(MPI_Ssend(both.data.data(), bytes, MPI_BYTE, partner(), tag, comm()));
      MPI_OK(MPI_Recv(both.in.data(), bytes, MPI_BYTE, partner(), tag, comm(), MPI_STATUS_IGNORE));
    } else {
      MPI_OK(MPI_Recv(both.in.data(), bytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), MPI_STATUS_IGNORE));
      MPI_OK(MPI_Send(both.data.data(), bytes, MPI_BYTE, partner(), tag, comm()));
    }
    CHECK(both.has(round, bytes));
  }
}
