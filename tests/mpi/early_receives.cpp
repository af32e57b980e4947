// Receives of a few bytes that are pending when their process is offered its first message: they have no room for an
// RTS. If it comes to one of them, the receive fails, and the sender goes on nevertheless. This is the first test case
// of its processes.
#include <array>
#include <vector>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int long_bytes = 8192;
constexpr int order_tag = 20, later_tag = 21;

struct Early {
  Type type;
  int count;
  bool persistent;
};

/// By tag.
std::vector<Early> early_receives() {
  std::vector<Early> all;
  for (const bool persistent : {false, true}) {
    all.push_back({plain(MPI_BYTE), 4, persistent});
    all.push_back({plain(MPI_INT), 25, persistent});
    all.push_back({vector(5, 1, 3, MPI_DOUBLE), 1, persistent});
  }
  return all;
}

void send_device(int tag) {
  const Type type = plain(MPI_BYTE);
  Buffer out(Place::device, type, long_bytes);
  out.fill(key_of(tag));
  MPI_OK(MPI_Send(out.address(), long_bytes, type, partner(), tag, comm()));
}

void receive_device(int tag) {
  const Type type = plain(MPI_BYTE);
  Buffer in(Place::device, type, long_bytes);
  MPI_OK(MPI_Recv(in.address(), long_bytes, type, partner(), tag, comm(), MPI_STATUS_IGNORE));
  in.expect(stream_of(type, long_bytes, key_of(tag)));
  CHECK(in.difference() == "");
}

void send_to_all(const std::vector<Early>& all) {
  MPI_OK(MPI_Barrier(comm()));
  for (std::size_t tag = 0; tag < all.size(); ++tag) send_device(static_cast<int>(tag));
  std::array<char, 2000> host{};
  MPI_OK(MPI_Send(host.data(), static_cast<int>(host.size()), MPI_BYTE, partner(), order_tag, comm()));
  send_device(order_tag);
  send_device(later_tag);
}

void receive_all(const std::vector<Early>& all) {
  std::vector<Buffer> buffers;
  std::vector<MPI_Request> requests(all.size(), MPI_REQUEST_NULL);
  buffers.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [type, count, persistent] = all[i];
    const auto start = persistent ? MPI_Recv_init : MPI_Irecv;
    buffers.emplace_back(Place::host, type, count);
    MPI_OK(start(buffers[i].address(), count, type, partner(), static_cast<int>(i), comm(), &requests[i]));
    if (persistent) MPI_OK(MPI_Start(&requests[i]));
  }
  int word = 0;
  MPI_Request in_order = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(&word, 1, MPI_INT, partner(), order_tag, comm(), &in_order));
  MPI_OK(MPI_Barrier(comm()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    step("receive " + std::to_string(i));
    MPI_FAILS(MPI_Wait(&requests[i], MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    CHECK(buffers[i].difference_outside() == "");
    if (requests[i] != MPI_REQUEST_NULL) MPI_OK(MPI_Request_free(&requests[i]));
  }
  // The message from the host is too long for this one: what is offered behind it with the same tag is not.
  step("the message from the host");
  MPI_FAILS(MPI_Wait(&in_order, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
  receive_device(order_tag);
  receive_device(later_tag);
}

}  // namespace

TEST_CASE("senders go on whose messages are too long for receives made before the first offer", "[.][early]") {
  if (!all_have_partners() || any_host_only()) return;
  const std::vector<Early> all = early_receives();
  if (rank() < partner()) {
    send_to_all(all);
    int word = 0;
    MPI_FAILS(MPI_Recv(&word, 1, MPI_INT, partner(), 0, comm(), MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    receive_device(later_tag);
  } else {
    receive_all(all);
    send_device(0);  // the receive has been waiting for its process's first offer
    send_device(later_tag);
  }
}
