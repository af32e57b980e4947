#include "tests/mpi/exchange.hpp"

#include <algorithm>
#include <cstdlib>

namespace gpudt::test {
namespace {

using Nonblocking = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);
using Blocking = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm);

template <Blocking call>
int blocking_send(const Message& m) {
  return call(m.buffer, m.count, m.type, m.peer, m.tag, m.comm);
}

template <Nonblocking call>
int nonblocking_send(const Message& m) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int error = call(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, &request);
  return error != MPI_SUCCESS ? error : MPI_Wait(&request, MPI_STATUS_IGNORE);
}

int start_irecv(const Message& m, MPI_Request* request) {
  return MPI_Irecv(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, request);
}

int receive(const Message& m, MPI_Status* status) {
  return MPI_Recv(m.buffer, m.count, m.type, m.peer, m.tag, m.comm, status);
}

int receive_irecv(const Message& m, MPI_Status* status) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int error = start_irecv(m, &request);
  return error != MPI_SUCCESS ? error : MPI_Wait(&request, status);
}

int receive_mrecv(const Message& m, MPI_Status* status) {
  MPI_Message message = MPI_MESSAGE_NULL;
  const int error = MPI_Mprobe(m.peer, m.tag, m.comm, &message, MPI_STATUS_IGNORE);
  return error != MPI_SUCCESS ? error : MPI_Mrecv(m.buffer, m.count, m.type, &message, status);
}

int receive_imrecv(const Message& m, MPI_Status* status) {
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  int error = MPI_Mprobe(m.peer, m.tag, m.comm, &message, MPI_STATUS_IGNORE);
  if (error == MPI_SUCCESS) error = MPI_Imrecv(m.buffer, m.count, m.type, &message, &request);
  return error != MPI_SUCCESS ? error : MPI_Wait(&request, status);
}

// MPICH's own MPI_Isendrecv crashes.
#if defined(GPUDT_MPI_ISENDRECV) && defined(OPEN_MPI)
#define GPUDT_TEST_ISENDRECV

/// The receiving half alone.
int start_isendrecv(const Message& m, MPI_Request* request) {
  return MPI_Isendrecv(nullptr, 0, MPI_BYTE, MPI_PROC_NULL, 0, m.buffer, m.count, m.type, m.peer, m.tag, m.comm,
                       request);
}

int receive_isendrecv(const Message& m, MPI_Status* status) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int error = start_isendrecv(m, &request);
  return error != MPI_SUCCESS ? error : MPI_Wait(&request, status);
}
#endif

/// Basic elements in one element of `type`, by a message to self in host memory.
MPI_Count basic_elements(const Type& type) {
  Image from(type, 1), to(type, 1);
  MPI_Status status{};
  PMPI_Sendrecv(from.base(), 1, type, 0, 0, to.base(), 1, type, 0, 0, MPI_COMM_SELF, &status);
  MPI_Count elements = 0;
  PMPI_Get_elements_x(&status, type, &elements);
  return elements;
}

}  // namespace

const std::vector<SendMode> send_modes = {
    {"Send", false, blocking_send<MPI_Send>},        {"Bsend", false, blocking_send<MPI_Bsend>},
    {"Ssend", false, blocking_send<MPI_Ssend>},      {"Rsend", true, blocking_send<MPI_Rsend>},
    {"Isend", false, nonblocking_send<MPI_Isend>},   {"Ibsend", false, nonblocking_send<MPI_Ibsend>},
    {"Issend", false, nonblocking_send<MPI_Issend>}, {"Irsend", true, nonblocking_send<MPI_Irsend>},
};

const std::vector<ReceiveMode> receive_modes = {
    {"Recv", false, nullptr, receive},
    {"Irecv", true, start_irecv, receive_irecv},
    {"Mrecv", false, nullptr, receive_mrecv},
    {"Imrecv", false, nullptr, receive_imrecv},
#ifdef GPUDT_TEST_ISENDRECV
    {"Isendrecv", true, start_isendrecv, receive_isendrecv},
#endif
};

std::string Ends::text() const {
  return std::string(place_name(send_place)) + " " + std::to_string(send_count) + " x " + send_type.text() + " -> " +
         place_name(receive_place) + " " + std::to_string(receive_count) + " x " + receive_type.text();
}

void check_status(const MPI_Status& status, int source, int tag, const Type& type, std::int64_t bytes) {
  CHECK(status.MPI_SOURCE == source);
  CHECK(status.MPI_TAG == tag);
  int cancelled = 1;
  MPI_Test_cancelled(&status, &cancelled);
  CHECK(cancelled == 0);
  int count = -1;
  MPI_Get_count(&status, type, &count);
  const std::int64_t size = type.size();
  const bool whole = size == 0 ? bytes == 0 : bytes % size == 0;
  const int wanted = !whole ? MPI_UNDEFINED : size == 0 ? 0 : static_cast<int>(bytes / size);
  CHECK(count == wanted);
  if (!whole || !counts_elements) return;
  MPI_Count elements = -1;
  MPI_Get_elements_x(&status, type, &elements);
  CHECK(elements == (size == 0 ? 0 : basic_elements(type) * (bytes / size)));
}

void exchange(const SendMode& mode, const ReceiveMode& receive_mode, const Ends& ends, int from, int to, int tag) {
  const std::string text =
      std::string(mode.name) + " to " + receive_mode.name + ", " + ends.text() + ", tag " + std::to_string(tag);
  INFO(text);
  step(text);
  const std::uint64_t key = mix(seed(), static_cast<std::uint64_t>(tag) * 1000 + static_cast<std::uint64_t>(from));
  int ready = 0;
  if (rank() == from) {
    Buffer out(ends.send_place, ends.send_type, ends.send_count, ends.skew);
    out.fill(key);
    if (mode.needs_posted_receive) PMPI_Recv(&ready, 1, MPI_INT, to, tag + 1, comm(), MPI_STATUS_IGNORE);
    MPI_OK(mode.send({out.address(), ends.send_count, ends.send_type, to, tag, comm()}));
    CHECK(out.difference() == "");
  } else if (rank() == to) {
    Buffer in(ends.receive_place, ends.receive_type, ends.receive_count, ends.skew == 0 ? 0 : 16 - ends.skew);
    const Message message{in.address(), ends.receive_count, ends.receive_type, from, tag, comm()};
    MPI_Status status{};
    if (mode.needs_posted_receive) {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(receive_mode.start(message, &request));
      PMPI_Send(&ready, 1, MPI_INT, from, tag + 1, comm());
      MPI_OK(MPI_Wait(&request, &status));
    } else {
      MPI_OK(receive_mode.receive(message, &status));
    }
    const Stream stream = stream_of(ends.send_type, ends.send_count, key);
    in.expect(stream);
    CHECK(in.difference() == "");
    check_status(status, from, tag, ends.receive_type, static_cast<std::int64_t>(stream.size()));
  }
}

void exchange_both_ways(const Ends& ends, int tag) {
  if (!all_have_partners()) return;
  const int low = std::min(rank(), partner()), high = std::max(rank(), partner());
  exchange(send_modes[0], receive_modes[0], ends, low, high, tag);
  exchange(send_modes[0], receive_modes[0], ends, high, low, tag + 2);
}

Type not_sent_before_received() {
  const char* const protocol = std::getenv("GPUDT_PROTOCOL");
  return vector(protocol != nullptr && std::string(protocol) == "peer" ? 3000 : 400, 1, 2);
}

void send_again(const Ends& ends, const ReceiveMode& mode, int tag, const std::function<bool(int)>& done, First first) {
  INFO(mode.name << ", " << ends.text());
  Buffer mine(first_of_pair() ? ends.send_place : ends.receive_place,
              first_of_pair() ? ends.send_type : ends.receive_type,
              first_of_pair() ? ends.send_count : ends.receive_count, ends.skew);
  const bool receiver_first = first == First::receiver;
  int more = 1, ready = 1;
  for (int sent = 0; more != 0; ++sent) {
    const std::uint64_t key = key_of(rank() & ~1, sent);
    if (first_of_pair()) {
      mine.fill(key);
      if (receiver_first) PMPI_Recv(&ready, 1, MPI_INT, partner(), tag + 1, comm(), MPI_STATUS_IGNORE);
      MPI_OK(MPI_Send(mine.address(), ends.send_count, ends.send_type, partner(), tag, comm()));
      more = done(sent + 1) ? 0 : 1;
      PMPI_Send(&more, 1, MPI_INT, partner(), tag, comm());
    } else {
      MPI_Status status{};
      mine.poison();
      if (receiver_first) PMPI_Send(&ready, 1, MPI_INT, partner(), tag + 1, comm());
      MPI_OK(mode.receive({mine.address(), ends.receive_count, ends.receive_type, partner(), tag, comm()}, &status));
      const Stream stream = stream_of(ends.send_type, ends.send_count, key);
      mine.expect(stream);
      CHECK(mine.difference() == "");
      check_status(status, partner(), tag, ends.receive_type, static_cast<std::int64_t>(stream.size()));
      PMPI_Recv(&more, 1, MPI_INT, partner(), tag, comm(), MPI_STATUS_IGNORE);
    }
  }
}

}  // namespace gpudt::test
