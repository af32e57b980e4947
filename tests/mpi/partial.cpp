// Messages shorter than the receive, down to ones that end inside an element.
#include <algorithm>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

/// A receive type, and a shorter stretch of its signature for the sender.
struct Case {
  Type receive_type;
  int receive_count;
  Type send_type;
  int send_count;
  int elements;  ///< basic elements in the message
};

Type struct_of(std::vector<MPI_Datatype> members, std::vector<MPI_Aint> places, const std::string& text) {
  const std::vector<int> ones(members.size(), 1);
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_create_struct(static_cast<int>(members.size()), ones.data(), places.data(), members.data(), &made);
  return {made, text};
}

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&list](Type receive_type, int receive_count, Type send_type, int send_count, int elements) {
    list.push_back({std::move(receive_type), receive_count, std::move(send_type), send_count, elements});
  };
  add(vector(10, 2, 3, MPI_INT), 4, vector(10, 2, 3, MPI_INT), 2, 40);    // whole elements
  add(vector(10, 2, 3, MPI_INT), 4, plain(MPI_INT), 0, 0);                // nothing at all
  add(vector(10, 2, 3, MPI_INT), 4, plain(MPI_INT), 1, 1);                // inside the first element
  add(vector(10, 2, 3, MPI_INT), 4, plain(MPI_INT), 33, 33);              // inside the second
  add(vector(10, 2, 3, MPI_INT), 4, plain(MPI_INT), 79, 79);              // all but one
  add(vector(3000, 1, 2, MPI_DOUBLE), 2, plain(MPI_DOUBLE), 3001, 3001);  // rendezvous
  add(vector(4000, 1, 2, MPI_CHAR), 3, plain(MPI_CHAR), 8191, 8191);      // unaligned end
  add(named_layout(4, 3000), 1, plain(MPI_INT), 101, 101);                // an index list
  add(named_layout(3, 6000), 1, plain(MPI_FLOAT), 333, 333);              // a subarray
  add(named_layout(8, 3000), 2, plain(MPI_DOUBLE), 123, 123);             // backwards
  add(plain(MPI_INT), 100, plain(MPI_INT), 7, 7);                         // contiguous
  const auto record = [] {
    return struct_of({MPI_INT, MPI_DOUBLE, MPI_SHORT}, {24, 8, 0}, "struct{INT@24;DOUBLE@8;SHORT@0}");
  };
  add(record(), 5, record(), 3, 9);
  add(record(), 5, struct_of({MPI_INT}, {4}, "struct{INT}"), 1, 1);
  add(record(), 5, struct_of({MPI_INT, MPI_DOUBLE}, {0, 8}, "struct{INT;DOUBLE}"), 1, 2);
  add(record(), 5, struct_of({MPI_INT, MPI_DOUBLE, MPI_SHORT, MPI_INT}, {0, 8, 16, 20}, "struct{INT;DOUBLE;SHORT;INT}"),
      1, 4);
  add(record(), 5,
      struct_of({MPI_INT, MPI_DOUBLE, MPI_SHORT, MPI_INT, MPI_DOUBLE}, {0, 8, 16, 20, 24},
                "struct{INT;DOUBLE;SHORT;INT;DOUBLE}"),
      1, 5);
  return list;
}

void check_short_status(const MPI_Status& status, const Case& test) {
  const std::int64_t bytes = test.send_type.size() * test.send_count;
  check_status(status, partner(), 5, test.receive_type, bytes);
  int elements = -1;
  MPI_Count elements_x = -1;
  MPI_OK(MPI_Get_elements(&status, test.receive_type, &elements));
  MPI_OK(MPI_Get_elements_x(&status, test.receive_type, &elements_x));
  CHECK(elements == test.elements);
  CHECK(elements_x == test.elements);
}

template <class Receive>
void receive_short(const char* name, Receive&& receive) {
  if (!all_have_partners()) return;
  int number = 0;
  for (const Case& test : cases())
    for (const Place send : basic_places)
      for (const Place place : basic_places) {
        ++number;
        const std::string text =
            std::string(name) + ": " +
            Ends{test.send_type, test.send_count, send, test.receive_type, test.receive_count, place}.text();
        INFO(text);
        step(text);
        Buffer out(send, test.send_type, test.send_count), in(place, test.receive_type, test.receive_count);
        out.fill(key_of(rank(), number));
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Status status{};
        MPI_OK(MPI_Isend(out.address(), test.send_count, test.send_type, partner(), 5, comm(), &request));
        receive(Message{in.address(), test.receive_count, test.receive_type, partner(), 5, comm()}, status);
        MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        in.expect(stream_of(test.send_type, test.send_count, key_of(partner(), number)));
        CHECK(in.difference() == "");
        check_short_status(status, test);
      }
}

}  // namespace

TEST_CASE("short messages into every receive mode", "[partial]") {
  for (const ReceiveMode& mode : receive_modes)
    receive_short(mode.name,
                  [&](const Message& message, MPI_Status& status) { MPI_OK(mode.receive(message, &status)); });
}

TEST_CASE("short messages into a persistent receive", "[partial]") {
  receive_short("Recv_init", [](const Message& m, MPI_Status& status) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Recv_init(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, &request));
    MPI_OK(MPI_Start(&request));
    MPI_OK(MPI_Wait(&request, &status));
    MPI_OK(MPI_Request_free(&request));
  });
}

TEST_CASE("short messages into the receiving half of Sendrecv", "[partial]") {
  receive_short("Sendrecv", [](const Message& m, MPI_Status& status) {
    MPI_OK(
        MPI_Sendrecv(nullptr, 0, MPI_INT, MPI_PROC_NULL, 1, m.buffer, m.count, m.type, m.peer, m.tag, m.comm, &status));
  });
}

TEST_CASE("the status of a short message by Test, Waitany, Waitsome and Request_get_status", "[partial]") {
  receive_short("Test", [](const Message& m, MPI_Status& status) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, &request));
    for (int flag = 0; flag == 0;) MPI_OK(MPI_Test(&request, &flag, &status));
  });
  receive_short("Waitany", [](const Message& m, MPI_Status& status) {
    MPI_Request request = MPI_REQUEST_NULL;
    int index = -1;
    MPI_OK(MPI_Irecv(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, &request));
    MPI_OK(MPI_Waitany(1, &request, &index, &status));
    CHECK(index == 0);
  });
  receive_short("Waitsome", [](const Message& m, MPI_Status& status) {
    MPI_Request request = MPI_REQUEST_NULL;
    int done = 0, index = -1;
    MPI_OK(MPI_Irecv(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, &request));
    MPI_OK(MPI_Waitsome(1, &request, &done, &index, &status));
    CHECK(done == 1);
  });
  receive_short("Request_get_status", [](const Message& m, MPI_Status& status) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, &request));
    for (int flag = 0; flag == 0;) MPI_OK(MPI_Request_get_status(request, &flag, &status));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  });
}

TEST_CASE("Sendrecv_replace receives less than it sends", "[partial]") {
  if (!all_have_partners()) return;
  const Type type = vector(30, 1, 2, MPI_INT);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    const int mine = rank() % 2 == 0 ? 4 : 2;
    // Each side receives as many elements as it sends at most: only the one with more gets a short message.
    Buffer buffer(place, type, 4);
    buffer.fill(key_of(rank(), 1));
    MPI_Status status{};
    if (mine == 4) {
      MPI_OK(MPI_Sendrecv_replace(buffer.address(), 4, type, partner(), 1, partner(), 1, comm(), &status));
      Stream stream = stream_of(type, 4, key_of(partner(), 1));
      stream.resize(static_cast<std::size_t>(2 * type.size()));
      buffer.expect(stream);
      CHECK(buffer.difference() == "");
      check_status(status, partner(), 1, type, 2 * type.size());
    } else {
      Buffer in(place, type, 4);
      MPI_OK(
          MPI_Sendrecv(buffer.address(), 2, type, partner(), 1, in.address(), 4, type, partner(), 1, comm(), &status));
      in.expect(stream_of(type, 4, key_of(partner(), 1)));
      CHECK(in.difference() == "");
    }
  }
}

/// Memory that other processes cannot map is packed for them, from 32 MiB on in several parts.
TEST_CASE("long messages into longer receives", "[partial]") {
  if (!all_have_partners()) return;
  constexpr int block = 1 << 20;
  const Type sent = vector(33, block, block + 64, MPI_CHAR);
  for (const Type& received : {plain(MPI_CHAR), vector(1, block, block + 16, MPI_CHAR)}) {
    const int count = received.size() == 1 ? 34 * block : 34;
    INFO(received.text());
    step(received.text());
    Buffer out(Place::device, sent, 1), in(Place::device, received, count);
    out.fill(key_of(rank(), 1));
    MPI_Request send = MPI_REQUEST_NULL;
    MPI_Status status{};
    MPI_OK(MPI_Isend(out.address(), 1, sent, partner(), 3, comm(), &send));
    MPI_OK(MPI_Recv(in.address(), count, received, partner(), 3, comm(), &status));
    MPI_OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
    check_status(status, partner(), 3, received, sent.size());
    in.expect(stream_of(sent, 1, key_of(partner(), 1)));
    CHECK(in.difference() == "");
  }
}
