// Which message meets which receive: wildcards, probes, self, nobody, intercommunicators, and the order of messages.
#include <algorithm>
#include <deque>

#include "tests/mpi/exchange.hpp"
#include "tests/support/mpi_world.hpp"

using namespace gpudt::test;

namespace {

constexpr int messages_each = 6;

/// Rank 0 takes what all others send, by `receive(buffer, type, status)`; the status tells which message it was.
template <class Receive>
void gather_from_anyone(const Type& type, Receive&& receive) {
  if (rank() == 0) {
    std::vector<int> seen(static_cast<std::size_t>(ranks() * messages_each), 0);
    for (int i = 0; i < (ranks() - 1) * messages_each; ++i) {
      Buffer in(basic_places[i % 2], type, 1);
      MPI_Status status{};
      receive(in, status);
      REQUIRE(status.MPI_SOURCE > 0);
      REQUIRE(status.MPI_SOURCE < ranks());
      REQUIRE(status.MPI_TAG >= 0);
      REQUIRE(status.MPI_TAG < messages_each);
      check_status(status, status.MPI_SOURCE, status.MPI_TAG, type, type.size());
      in.expect(stream_of(type, 1, key_of(status.MPI_SOURCE, status.MPI_TAG)));
      CHECK(in.difference() == "");
      ++seen[static_cast<std::size_t>(status.MPI_SOURCE * messages_each + status.MPI_TAG)];
    }
    CHECK(std::all_of(seen.begin() + messages_each, seen.end(), [](int times) { return times == 1; }));
  } else {
    for (int tag = 0; tag < messages_each; ++tag) {
      Buffer out(basic_places[(tag + 1) % 2], type, 1);
      out.fill(key_of(rank(), tag));
      MPI_OK(MPI_Send(out.address(), 1, type, 0, tag, comm()));
    }
  }
  lock_step();
}

}  // namespace

TEST_CASE("receives from anyone, with any tag", "[matching]") {
  for (const int bytes : {200, 20000}) {
    const Type type = vector(bytes / 8, 1, 2);
    step("Recv");
    gather_from_anyone(type, [&](Buffer& in, MPI_Status& status) {
      MPI_OK(MPI_Recv(in.address(), 1, type, MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &status));
    });
    step("Irecv");
    gather_from_anyone(type, [&](Buffer& in, MPI_Status& status) {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Irecv(in.address(), 1, type, MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &request));
      MPI_OK(MPI_Wait(&request, &status));
    });
    step("Mprobe, Mrecv");
    gather_from_anyone(type, [&](Buffer& in, MPI_Status& status) {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status probed{};
      MPI_OK(MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &message, &probed));
      check_status(probed, probed.MPI_SOURCE, probed.MPI_TAG, type, type.size());
      MPI_OK(MPI_Mrecv(in.address(), 1, type, &message, &status));
      CHECK(message == MPI_MESSAGE_NULL);
      CHECK(status.MPI_SOURCE == probed.MPI_SOURCE);
      CHECK(status.MPI_TAG == probed.MPI_TAG);
    });
    step("Probe, Recv of what was found");
    gather_from_anyone(type, [&](Buffer& in, MPI_Status& status) {
      MPI_Status probed{};
      MPI_OK(MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &probed));
      check_status(probed, probed.MPI_SOURCE, probed.MPI_TAG, type, type.size());
      MPI_OK(MPI_Recv(in.address(), 1, type, probed.MPI_SOURCE, probed.MPI_TAG, comm(), &status));
      CHECK(status.MPI_SOURCE == probed.MPI_SOURCE);
      CHECK(status.MPI_TAG == probed.MPI_TAG);
    });
    step("Improbe, Imrecv");
    gather_from_anyone(type, [&](Buffer& in, MPI_Status& status) {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Request request = MPI_REQUEST_NULL;
      int flag = 0;
      while (flag == 0) MPI_OK(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &flag, &message, MPI_STATUS_IGNORE));
      MPI_OK(MPI_Imrecv(in.address(), 1, type, &message, &request));
      CHECK(message == MPI_MESSAGE_NULL);
      MPI_OK(MPI_Wait(&request, &status));
    });
    step("Iprobe, Irecv");
    gather_from_anyone(type, [&](Buffer& in, MPI_Status& status) {
      MPI_Status probed{};
      int flag = 0;
      while (flag == 0) MPI_OK(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &flag, &probed));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Irecv(in.address(), 1, type, probed.MPI_SOURCE, probed.MPI_TAG, comm(), &request));
      MPI_OK(MPI_Wait(&request, &status));
    });
  }
}

TEST_CASE("probes see the real size of a device message", "[matching]") {
  if (!all_have_partners()) return;
  for (int layout = 0; layout < layout_count; ++layout)
    for (const int count : {0, 1, 5}) {
      const Type type = named_layout(layout, any_host_only() ? std::min(3000, most_of_mixed_structs / 5) : 3000);
      INFO(count << " x " << type.text());
      step(type.text());
      Buffer out(Place::device, type, count), in(Place::device, type, count);
      out.fill(key_of(rank(), layout));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Isend(out.address(), count, type, partner(), layout, comm(), &request));
      MPI_Status status{};
      MPI_OK(MPI_Probe(partner(), layout, comm(), &status));
      check_status(status, partner(), layout, type, type.size() * count);
      MPI_OK(MPI_Recv(in.address(), count, type, partner(), layout, comm(), &status));
      check_status(status, partner(), layout, type, type.size() * count);
      in.expect(stream_of(type, count, key_of(partner(), layout)));
      CHECK(in.difference() == "");
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

TEST_CASE("messages of several types to several ranks, and odd ones between them", "[matching]") {
  // What describes a message takes the place of what did, or of the data of a short one.
  const Type types[] = {vector(500, 1, 2), vector(250, 2, 5), vector(90, 3, 7, MPI_INT)};
  const Type odd = vector(1, 769, 769, MPI_CHAR);
  const auto each_message = [&](const auto& exchange) {
    int number = 0;
    for (int turn = 0; turn < 4; ++turn)
      for (const Type& type : types)
        for (int to = 1; to < ranks(); ++to) {
          exchange(type, Place::device, to, ++number);
          exchange(odd, turn < 2 ? Place::host : Place::device, to, ++number);
        }
  };
  each_message([&](const Type& type, Place place, int to, int number) {
    Buffer buffer(place, type, 1);
    if (rank() == 0) {
      buffer.fill(key_of(0, number));
      MPI_OK(MPI_Send(buffer.address(), 1, type, to, number, comm()));
    } else if (rank() == to) {
      MPI_OK(MPI_Recv(buffer.address(), 1, type, 0, number, comm(), MPI_STATUS_IGNORE));
      buffer.expect(stream_of(type, 1, key_of(0, number)));
      CHECK(buffer.difference() == "");
    }
  });
  lock_step();
}

TEST_CASE("messages with MPI_PROC_NULL", "[matching]") {
  const Type type = vector(100, 1, 2);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    Buffer out(place, type, 1), in(place, type, 1);
    out.fill(seed());
    BsendBuffer attached(8000);
    for (const SendMode& mode : send_modes) {
      INFO(mode.name);
      MPI_OK(mode.send({out.address(), 1, type, MPI_PROC_NULL, 1, comm()}));
    }
    for (const ReceiveMode& mode : receive_modes) {
      INFO(mode.name);
      MPI_Status status{};
      status.MPI_SOURCE = status.MPI_TAG = 77;
      MPI_OK(mode.receive({in.address(), 1, type, MPI_PROC_NULL, 1, comm()}, &status));
      if (tells_of_proc_null) check_status(status, MPI_PROC_NULL, MPI_ANY_TAG, type, 0);
      CHECK(in.difference() == "");
    }
  }
}

TEST_CASE("messages to self", "[matching]") {
  for (const int bytes : {200, 100000})
    for (const Place send : basic_places)
      for (const Place receive : basic_places)
        for (const MPI_Comm where : {comm(), MPI_COMM_SELF}) {
          const Type type = named_layout(4, bytes);
          const std::string text = std::string(place_name(send)) + " to " + place_name(receive) + ", " + type.text();
          INFO(text);
          step(text);
          if (where == MPI_COMM_SELF && world() != MPI_COMM_WORLD) continue;  // a session has none
          const int self = where == MPI_COMM_SELF ? 0 : rank();
          Buffer out(send, type, 1), in(receive, type, 1), again(receive, type, 1);
          out.fill(seed());
          MPI_Request request = MPI_REQUEST_NULL;
          MPI_Status status{};
          MPI_OK(MPI_Isend(out.address(), 1, type, self, 1, where, &request));
          MPI_OK(MPI_Recv(in.address(), 1, type, self, 1, where, &status));
          MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
          in.expect(stream_of(type, 1, seed()));
          CHECK(in.difference() == "");
          check_status(status, self, 1, type, type.size());
          MPI_OK(MPI_Irecv(again.address(), 1, type, MPI_ANY_SOURCE, 2, where, &request));
          MPI_OK(MPI_Ssend(out.address(), 1, type, self, 2, where));
          MPI_OK(MPI_Wait(&request, &status));
          again.expect(stream_of(type, 1, seed()));
          CHECK(again.difference() == "");
          check_status(status, self, 2, type, type.size());
        }
}

TEST_CASE("messages over an intercommunicator", "[matching]") {
  if (ranks() < 2) return;
  const int half = rank() % 2;
  MPI_Comm mine = MPI_COMM_NULL, both = MPI_COMM_NULL;
  MPI_Comm_split(comm(), half, rank(), &mine);
  PMPI_Intercomm_create(mine, 0, comm(), 1 - half, 5, &both);
  int local = 0, local_size = 0, remote_size = 0;
  PMPI_Comm_rank(both, &local);
  PMPI_Comm_size(both, &local_size);
  PMPI_Comm_remote_size(both, &remote_size);
  for (const int bytes : {300, 50000})
    for (const Place send : basic_places)
      for (const Place receive : basic_places) {
        const Type type = named_layout(10, bytes);
        const std::string text = std::string(place_name(send)) + " to " + place_name(receive) + ", " + type.text();
        INFO(text);
        step(text);
        const int peer = local < remote_size ? local : MPI_PROC_NULL;
        Buffer out(send, type, 1), in(receive, type, 1);
        out.fill(key_of(rank(), bytes));
        MPI_Request requests[2];
        MPI_Status statuses[2];
        MPI_OK(MPI_Irecv(in.address(), 1, type, peer, 1, both, &requests[0]));
        MPI_OK(MPI_Isend(out.address(), 1, type, peer, 1, both, &requests[1]));
        MPI_OK(MPI_Waitall(2, requests, statuses));
        if (peer != MPI_PROC_NULL) {
          in.expect(stream_of(type, 1, key_of(rank() ^ 1, bytes)));
          check_status(statuses[0], peer, 1, type, type.size());
        }
        CHECK(in.difference() == "");
      }
  PMPI_Comm_free(&both);
  PMPI_Comm_free(&mine);
}

namespace {

constexpr int order_messages = 60;

/// Issues `number`th message in one of several ways that do not wait for the receiver; keeps the request.
void issue(int way, const Buffer& out, const Type& type, int tag, MPI_Request* request) {
  switch (way) {
    case 0:
      MPI_OK(MPI_Ibsend(out.address(), 1, type, partner(), tag, comm(), request));
      break;
    case 1:
      MPI_OK(MPI_Issend(out.address(), 1, type, partner(), tag, comm(), request));
      break;
    case 2:
      *request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Bsend(out.address(), 1, type, partner(), tag, comm()));
      break;
    case 3:
      MPI_OK(MPI_Send_init(out.address(), 1, type, partner(), tag, comm(), request));
      MPI_OK(MPI_Start(request));
      break;
    default:
      MPI_OK(MPI_Isend(out.address(), 1, type, partner(), tag, comm(), request));
  }
}

void keep_order(const std::string& label, bool receive_first, bool one_tag) {
  if (!all_have_partners()) return;
  auto random = random_numbers(label);
  BsendBuffer attached(20 << 20);
  const int sizes[] = {8, 300, 5000, 70000, 300000};
  std::deque<Type> types;
  for (const int size : sizes) types.push_back(vector(size / 8, 1, 2));
  std::vector<Buffer> in, out;
  std::vector<MPI_Request> sends(order_messages, MPI_REQUEST_NULL), receives(order_messages, MPI_REQUEST_NULL);
  std::vector<std::size_t> size_of;
  const Type& largest = types.back();
  const auto start_receives = [&] {
    for (int i = 0; i < order_messages; ++i)
      MPI_OK(MPI_Irecv(in[static_cast<std::size_t>(i)].address(), 1, largest, i % 3 == 0 ? MPI_ANY_SOURCE : partner(),
                       one_tag ? 1 : MPI_ANY_TAG, comm(), &receives[static_cast<std::size_t>(i)]));
  };
  std::vector<int> ways;
  for (int i = 0; i < order_messages; ++i) {
    size_of.push_back(random() % std::size(sizes));
    const Place send = basic_places[random() % 2], receive = basic_places[random() % 2];
    in.emplace_back(receive, largest, 1);
    out.emplace_back(send, types[size_of.back()], 1);
    out.back().fill(key_of(rank(), i));
    ways.push_back(static_cast<int>(random() % 8));
  }
  if (receive_first) start_receives();
  for (int i = 0; i < order_messages; ++i) {
    const auto n = static_cast<std::size_t>(i);
    step("send " + std::to_string(i));
    issue(ways[n], out[n], types[size_of[n]], one_tag ? 1 : i, &sends[n]);
  }
  if (!receive_first) start_receives();
  std::vector<MPI_Status> statuses(order_messages);
  step("Waitall of the receives");
  MPI_OK(MPI_Waitall(order_messages, receives.data(), statuses.data()));
  step("Waitall of the sends");
  MPI_OK(MPI_Waitall(order_messages, sends.data(), MPI_STATUSES_IGNORE));
  for (int i = 0; i < order_messages; ++i) {
    const auto n = static_cast<std::size_t>(i);
    INFO("message " << i << ", " << types[size_of[n]].text() << ", sent in way " << ways[n]);
    const Stream stream = stream_of(types[size_of[n]], 1, key_of(partner(), i));
    int bytes = 0;
    MPI_Get_elements(&statuses[n], largest, &bytes);
    CHECK(bytes == static_cast<int>(stream.size() / sizeof(double)));
    CHECK(statuses[n].MPI_TAG == (one_tag ? 1 : i));
    in[n].expect(stream);
    CHECK(in[n].difference() == "");
    if (sends[n] != MPI_REQUEST_NULL) MPI_OK(MPI_Request_free(&sends[n]));
  }
}

}  // namespace

TEST_CASE("messages keep their order, receives waiting, one tag", "[matching][order]") {
  keep_order("order 1", true, true);
}
TEST_CASE("messages keep their order, receives waiting, any tag", "[matching][order]") {
  keep_order("order 2", true, false);
}
TEST_CASE("messages keep their order, receives late, one tag", "[matching][order]") {
  keep_order("order 3", false, true);
}
TEST_CASE("messages keep their order, receives late, any tag", "[matching][order]") {
  keep_order("order 4", false, false);
}

TEST_CASE("a small host message does not overtake a large device message", "[matching][order]") {
  if (!all_have_partners()) return;
  const Type large = vector(1 << 18, 1, 2), small = plain(MPI_INT);
  for (int i = 0; i < 5; ++i) {
    step(std::to_string(i));
    if (rank() % 2 == 0) {
      Buffer first(Place::device, large, 1), second(Place::host, small, 1);
      first.fill(key_of(rank(), i));
      second.fill(key_of(rank(), i + 100));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Isend(first.address(), 1, large, partner(), 3, comm(), &request));
      MPI_OK(MPI_Send(second.address(), 1, small, partner(), 4, comm()));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else {
      Buffer first(Place::host, large, 1), second(Place::device, small, 1);
      MPI_Status status{};
      MPI_OK(MPI_Recv(first.address(), 1, large, partner(), MPI_ANY_TAG, comm(), &status));
      CHECK(status.MPI_TAG == 3);
      MPI_OK(MPI_Recv(second.address(), 1, small, MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &status));
      CHECK(status.MPI_TAG == 4);
      first.expect(stream_of(large, 1, key_of(partner(), i)));
      CHECK(first.difference() == "");
      second.expect(stream_of(small, 1, key_of(partner(), i + 100)));
      CHECK(second.difference() == "");
    }
  }
}

TEST_CASE("a host send in each mode waits its turn behind a device send", "[matching][order]") {
  if (!all_have_partners()) return;
  BsendBuffer attached(1 << 16);
  const Type large = vector(1 << 16, 1, 2), small = vector(5, 1, 2);
  for (const SendMode& mode : send_modes) {
    if (mode.needs_posted_receive) continue;
    INFO(mode.name);
    step(mode.name);
    if (rank() % 2 == 0) {
      Buffer first(Place::device, large, 1), second(Place::host, small, 1);
      first.fill(key_of(rank(), 1));
      second.fill(key_of(rank(), 2));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Isend(first.address(), 1, large, partner(), 1, comm(), &request));
      MPI_OK(mode.send({second.address(), 1, small, partner(), 1, comm()}));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else {
      Buffer first(Place::device, large, 1), second(Place::device, small, 1);
      MPI_OK(MPI_Recv(first.address(), 1, large, partner(), 1, comm(), MPI_STATUS_IGNORE));
      MPI_OK(MPI_Recv(second.address(), 1, small, partner(), 1, comm(), MPI_STATUS_IGNORE));
      first.expect(stream_of(large, 1, key_of(partner(), 1)));
      second.expect(stream_of(small, 1, key_of(partner(), 2)));
      CHECK(first.difference() == "");
      CHECK(second.difference() == "");
    }
  }
}
