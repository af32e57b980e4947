// Persistent requests: every mode, started again and again with new data, freed while active and while not.
#include <array>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

using Init = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);

struct PersistentMode {
  const char* name;
  Init init;
};

constexpr int rounds = 4;
// Open MPI 4.1 itself sends zeros when a persistent buffered send longer than its eager limit is started a second
// time: host memory only, since gpudt sends device memory in another way.
constexpr int bsend_restart_limit = 4000;

const std::array<PersistentMode, 4>& persistent_modes() {
  static const std::array<PersistentMode, 4> modes = {{{"Send_init", MPI_Send_init},
                                                       {"Bsend_init", MPI_Bsend_init},
                                                       {"Ssend_init", MPI_Ssend_init},
                                                       {"Rsend_init", MPI_Rsend_init}}};
  return modes;
}

/// A status that says "no operation": MPI-3.1 section 3.7.3.
void check_empty(const MPI_Status& status) {
  CHECK(status.MPI_SOURCE == MPI_ANY_SOURCE);
  CHECK(status.MPI_TAG == MPI_ANY_TAG);
  int count = -1;
  MPI_Get_count(&status, MPI_BYTE, &count);
  CHECK(count == 0);
}

}  // namespace

TEST_CASE("persistent requests of every mode are restarted", "[persistent]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  BsendBuffer attached(1 << 20);
  for (const PersistentMode& mode : persistent_modes())
    for (const int bytes : {500, 50000})
      for (const Place send : basic_places)
        for (const Place receive : basic_places) {
          const Type type = vector(bytes / 16, 2, 3);
          const std::string text =
              std::string(mode.name) + " " + place_name(send) + " to " + place_name(receive) + ", " + type.text();
          INFO(text);
          step(text);
          Buffer out(send, type, 2), in(receive, type, 2);
          MPI_Request requests[2];
          MPI_OK(MPI_Recv_init(in.address(), 2, type, left, 4, comm(), &requests[0]));
          MPI_OK(mode.init(out.address(), 2, type, right, 4, comm(), &requests[1]));
          const bool broken_restart =
              mode.init == MPI_Bsend_init && bytes > bsend_restart_limit && (send == Place::host || any_host_only());
          for (int round = 0; round < (broken_restart ? 1 : rounds); ++round) {
            out.fill(key_of(rank(), round));
            in.poison();
            MPI_OK(MPI_Start(&requests[0]));
            lock_step();  // the ready mode needs the receive to be there
            MPI_OK(MPI_Start(&requests[1]));
            MPI_Status statuses[2];
            MPI_OK(MPI_Waitall(2, requests, statuses));
            CHECK(requests[0] != MPI_REQUEST_NULL);
            CHECK(requests[1] != MPI_REQUEST_NULL);
            in.expect(stream_of(type, 2, key_of(left, round)));
            CHECK(in.difference() == "");
            check_status(statuses[0], left, 4, type, 2 * type.size());
          }
          MPI_OK(MPI_Request_free(&requests[0]));
          MPI_OK(MPI_Request_free(&requests[1]));
          CHECK(requests[0] == MPI_REQUEST_NULL);
          CHECK(requests[1] == MPI_REQUEST_NULL);
        }
}

TEST_CASE("persistent requests are restarted after their communicator has been freed", "[persistent]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  constexpr int messages = 6, restarts = 20;
  for (const PersistentMode& mode : persistent_modes()) {
    if (mode.init == MPI_Bsend_init) continue;  // Open MPI 4.1 loses their data
    step(mode.name);
    INFO(mode.name);
    MPI_Comm gone = MPI_COMM_NULL;
    MPI_OK(MPI_Comm_dup(comm(), &gone));
    const Type type = vector(16, 2, 3);
    std::vector<Buffer> outs, ins;
    std::vector<MPI_Request> receives(messages), sends(messages);
    for (std::size_t i = 0; i < messages; ++i) {
      const int tag = static_cast<int>(i);
      outs.emplace_back(basic_places[i % 2], type, 1);
      ins.emplace_back(basic_places[i / 2 % 2], type, 1);
      MPI_OK(MPI_Recv_init(ins[i].address(), 1, type, left, tag, gone, &receives[i]));
      MPI_OK(mode.init(outs[i].address(), 1, type, right, tag, gone, &sends[i]));
    }
    MPI_OK(MPI_Comm_free(&gone));
    for (int round = 0; round < restarts; ++round) {
      for (std::size_t i = 0; i < messages; ++i) {
        outs[i].fill(key_of(rank(), round) + i);
        ins[i].poison();
      }
      MPI_OK(MPI_Startall(messages, receives.data()));
      if (mode.init == MPI_Rsend_init) lock_step();
      MPI_OK(MPI_Startall(messages, sends.data()));
      MPI_OK(MPI_Waitall(messages, sends.data(), MPI_STATUSES_IGNORE));
      MPI_OK(MPI_Waitall(messages, receives.data(), MPI_STATUSES_IGNORE));
      for (std::size_t i = 0; i < messages; ++i) {
        ins[i].expect(stream_of(type, 1, key_of(left, round) + i));
        CHECK(ins[i].difference() == "");
      }
    }
    for (MPI_Request& request : receives) MPI_OK(MPI_Request_free(&request));
    for (MPI_Request& request : sends) MPI_OK(MPI_Request_free(&request));
  }
}

TEST_CASE("Startall starts host and device requests together", "[persistent]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  const Type types[] = {vector(30, 1, 2), named_layout(4, 30000), named_layout(6, 3000), named_layout(3, 90000)};
  std::vector<Buffer> ins, outs;
  std::vector<MPI_Request> requests;
  for (int i = 0; i < 4; ++i)
    for (const Place place : basic_places) {
      ins.emplace_back(place, types[i], 1);
      outs.emplace_back(place == Place::host ? Place::device : Place::host, types[i], 1);
    }
  for (int i = 0; i < 8; ++i) {
    const Type& type = types[i / 2];
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Recv_init(ins[static_cast<std::size_t>(i)].address(), 1, type, left, i, comm(), &request));
    requests.push_back(request);
    MPI_OK(MPI_Send_init(outs[static_cast<std::size_t>(i)].address(), 1, type, right, i, comm(), &request));
    requests.push_back(request);
  }
  for (int round = 0; round < rounds; ++round) {
    step("round " + std::to_string(round));
    for (std::size_t i = 0; i < 8; ++i) {
      outs[i].fill(key_of(rank(), round) + i);
      ins[i].poison();
    }
    MPI_OK(MPI_Startall(static_cast<int>(requests.size()), requests.data()));
    MPI_OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
    for (std::size_t i = 0; i < 8; ++i) {
      ins[i].expect(stream_of(types[i / 2], 1, key_of(left, round) + i));
      INFO("round " << round << ", request " << i << ", " << types[i / 2].text());
      CHECK(ins[i].difference() == "");
    }
  }
  for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
}

TEST_CASE("waiting for an inactive persistent request returns at once, with an empty status", "[persistent]") {
  const Type type = vector(10, 1, 2);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    Buffer buffer(place, type, 1);
    MPI_Request requests[2];
    MPI_OK(MPI_Recv_init(buffer.address(), 1, type, MPI_ANY_SOURCE, 4, comm(), &requests[0]));
    MPI_OK(MPI_Send_init(buffer.address(), 1, type, rank(), 4, comm(), &requests[1]));
    MPI_Status status{};
    int flag = 0, index = 0;
    for (MPI_Request& request : requests) {
      MPI_OK(MPI_Wait(&request, &status));
      check_empty(status);
      MPI_OK(MPI_Test(&request, &flag, &status));
      CHECK(flag == 1);
      check_empty(status);
      MPI_OK(MPI_Request_get_status(request, &flag, &status));
      CHECK(flag == 1);
      check_empty(status);
      CHECK(request != MPI_REQUEST_NULL);
    }
    MPI_OK(MPI_Waitany(2, requests, &index, &status));
    CHECK(index == MPI_UNDEFINED);
    check_empty(status);
    MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    int indices[2], outcount = 0;
    MPI_OK(MPI_Waitsome(2, requests, &outcount, indices, MPI_STATUSES_IGNORE));
    CHECK(outcount == MPI_UNDEFINED);
    for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
    CHECK(buffer.difference() == "");
  }
}

TEST_CASE("a persistent request freed while active still does its work", "[persistent]") {
  if (!all_have_partners()) return;
  const Type type = vector(20000, 1, 2);
  for (const Place send : basic_places)
    for (const Place receive : basic_places) {
      const std::string text = std::string(place_name(send)) + " to " + place_name(receive);
      INFO(text);
      step(text);
      Buffer out(send, type, 1), in(receive, type, 1);
      out.fill(key_of(rank(), 0));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Recv_init(in.address(), 1, type, partner(), 6, comm(), &request));
      MPI_OK(MPI_Start(&request));
      MPI_OK(MPI_Request_free(&request));
      CHECK(request == MPI_REQUEST_NULL);
      MPI_OK(MPI_Send_init(out.address(), 1, type, partner(), 6, comm(), &request));
      MPI_OK(MPI_Start(&request));
      MPI_OK(MPI_Request_free(&request));
      CHECK(request == MPI_REQUEST_NULL);
      in.expect(stream_of(type, 1, key_of(partner(), 0)));
      CHECK(eventually([&] { return in.difference().empty(); }));
      CHECK(in.difference() == "");
      lock_step();  // the partner has the data, so the send has been done too
    }
}

TEST_CASE("persistent requests with MPI_PROC_NULL and with no elements", "[persistent]") {
  const Type type = vector(10, 1, 2);
  for (const int count : {0, 1}) {
    Buffer out(Place::device, type, 1), in(Place::device, type, 1);
    const int peer = count == 0 ? rank() : MPI_PROC_NULL;
    MPI_Request requests[2];
    MPI_OK(MPI_Recv_init(in.address(), count, type, peer, 8, comm(), &requests[0]));
    MPI_OK(MPI_Send_init(out.address(), count, type, peer, 8, comm(), &requests[1]));
    for (int round = 0; round < rounds; ++round) {
      MPI_Status statuses[2];
      MPI_OK(MPI_Startall(2, requests));
      MPI_OK(MPI_Waitall(2, requests, statuses));
      if (count == 0 || tells_of_proc_null) check_status(statuses[0], peer, count == 0 ? 8 : MPI_ANY_TAG, type, 0);
    }
    for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
    CHECK(in.difference() == "");
  }
}

TEST_CASE("a persistent receive from anyone takes what comes", "[persistent]") {
  const Type type = vector(100, 2, 3);
  Buffer in(Place::device, type, 1), out(Place::device, type, 1);
  out.fill(key_of(rank(), 7));
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Recv_init(in.address(), 1, type, MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &request));
  for (int round = 0; round < rounds; ++round) {
    MPI_Status status{};
    MPI_OK(MPI_Start(&request));
    MPI_OK(MPI_Send(out.address(), 1, type, right, round, comm()));
    MPI_OK(MPI_Wait(&request, &status));
    in.expect(stream_of(type, 1, key_of(left, 7)));
    CHECK(in.difference() == "");
    check_status(status, left, round, type, type.size());
    in.poison();
    lock_step();
  }
  MPI_OK(MPI_Request_free(&request));
}
