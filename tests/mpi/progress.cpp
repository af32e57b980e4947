// What must not hang: device messages go on while the program sits in other MPI calls.
#include <algorithm>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

/// One message of each size, host or device at either end: `run(type, out, in)`, and then what `in` must hold.
template <class Run>
void each_message(const char* name, Run&& run) {
  if (!all_have_partners()) return;
  int number = 0;
  for (const int blocks : {30, 700, 50000})
    for (const Place send : basic_places)
      for (const Place receive : basic_places) {
        ++number;
        const std::string text = std::string(name) + ", " + std::to_string(blocks) + " blocks, " + place_name(send) +
                                 " to " + place_name(receive);
        INFO(text);
        step(text);
        const Type type = vector(blocks, 1, 2);
        Buffer out(send, type, 1), in(receive, type, 1);
        out.fill(key_of(rank(), number));
        run(type, out, in);
        if (in.difference().empty()) continue;  // this rank only sent
        in.expect(stream_of(type, 1, key_of(partner(), number)));
        CHECK(in.difference() == "");
      }
}

/// After `run` this rank must have received.
template <class Run>
void each_exchange(const char* name, Run&& run) {
  each_message(name, [&](const Type& type, Buffer& out, Buffer& in) {
    run(type, out, in);
    CHECK(in.difference() != "");
  });
}

void two_by_two(void (*call)(MPI_Comm)) {
  MPI_Comm pair = MPI_COMM_NULL;
  MPI_Comm_split(comm(), rank() / 2, rank(), &pair);
  call(pair);
  PMPI_Comm_free(&pair);
}

void barrier(MPI_Comm pair) {
  MPI_OK(MPI_Barrier(pair));
}

}  // namespace

TEST_CASE("Isend, Barrier, Wait against Recv, Barrier", "[progress]") {
  each_message("Isend, Barrier", [](const Type& type, Buffer& out, Buffer& in) {
    if (first_of_pair()) {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &request));
      two_by_two(barrier);
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else {
      MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 1, comm(), MPI_STATUS_IGNORE));
      two_by_two(barrier);
      CHECK(in.difference() != "");
    }
  });
}

TEST_CASE("Irecv, Barrier, Wait against Ssend, Barrier", "[progress]") {
  each_message("Irecv, Barrier", [](const Type& type, Buffer& out, Buffer& in) {
    if (first_of_pair()) {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &request));
      two_by_two(barrier);
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      CHECK(in.difference() != "");
    } else {
      MPI_OK(MPI_Ssend(out.address(), 1, type, partner(), 1, comm()));
      two_by_two(barrier);
    }
  });
}

TEST_CASE("head to head: Isend, Recv, Wait", "[progress]") {
  each_exchange("Isend, Recv", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &request));
    MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 1, comm(), MPI_STATUS_IGNORE));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  });
}

TEST_CASE("head to head: Issend, Recv, Wait", "[progress]") {
  each_exchange("Issend, Recv", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Issend(out.address(), 1, type, partner(), 1, comm(), &request));
    MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 1, comm(), MPI_STATUS_IGNORE));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  });
}

TEST_CASE("head to head: Irecv, Send, Wait", "[progress]") {
  each_exchange("Irecv, Send", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &request));
    MPI_OK(MPI_Send(out.address(), 1, type, partner(), 1, comm()));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  });
}

TEST_CASE("head to head: Irecv, Ssend, Wait", "[progress]") {
  each_exchange("Irecv, Ssend", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &request));
    MPI_OK(MPI_Ssend(out.address(), 1, type, partner(), 1, comm()));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  });
}

TEST_CASE("head to head: Sendrecv", "[progress]") {
  each_exchange("Sendrecv", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_OK(MPI_Sendrecv(out.address(), 1, type, partner(), 1, in.address(), 1, type, partner(), 1, comm(),
                        MPI_STATUS_IGNORE));
  });
}

TEST_CASE("head to head: Mprobe while the own send is under way", "[progress]") {
  each_exchange("Isend, Mprobe", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &request));
    MPI_OK(MPI_Mprobe(partner(), 1, comm(), &message, MPI_STATUS_IGNORE));
    MPI_OK(MPI_Mrecv(in.address(), 1, type, &message, MPI_STATUS_IGNORE));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  });
}

TEST_CASE("Isend and Waitany", "[progress]") {
  each_exchange("Isend, Irecv, Waitany", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request requests[3] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &requests[2]));
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &requests[0]));
    int index = -1;
    for (int i = 0; i < 2; ++i) {
      MPI_OK(MPI_Waitany(3, requests, &index, MPI_STATUS_IGNORE));
      CHECK((index == 0 || index == 2));
    }
    MPI_OK(MPI_Waitany(3, requests, &index, MPI_STATUS_IGNORE));
    CHECK(index == MPI_UNDEFINED);
  });
}

namespace {

/// The first rank starts a send and a receive and then waits in `wait`, which ends only when its partner has had
/// its message: the partner receives first, then takes part in `join`.
template <class Wait, class Join>
void waits_elsewhere(const char* name, Wait&& wait, Join&& join) {
  each_exchange(name, [&](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request requests[2];
    if (first_of_pair()) {
      MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &requests[0]));
      MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &requests[1]));
      wait();
      MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    } else {
      MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 1, comm(), MPI_STATUS_IGNORE));
      MPI_OK(MPI_Ssend(out.address(), 1, type, partner(), 1, comm()));
      join();
    }
  });
}

constexpr int token_tag = 77;

void send_token() {
  int token = 1;
  MPI_OK(MPI_Send(&token, 1, MPI_INT, partner(), token_tag, comm()));
}

MPI_Request expect_token(int* token) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(token, 1, MPI_INT, partner(), token_tag, comm(), &request));
  return request;
}

void split(MPI_Comm pair) {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_OK(MPI_Comm_split(pair, 0, 0, &half));
  MPI_OK(MPI_Comm_free(&half));
}

void allreduce(MPI_Comm pair) {
  int one = 1, sum = 0;
  MPI_OK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, pair));
}

}  // namespace

TEST_CASE("device messages go on in Comm_split", "[progress]") {
  waits_elsewhere(
      "Comm_split", [] { two_by_two(split); }, [] { two_by_two(split); });
}

TEST_CASE("device messages go on in Allreduce", "[progress]") {
  waits_elsewhere(
      "Allreduce", [] { two_by_two(allreduce); }, [] { two_by_two(allreduce); });
}

TEST_CASE("device messages go on in a host Recv", "[progress]") {
  waits_elsewhere(
      "Recv",
      [] {
        int token = 0;
        MPI_OK(MPI_Recv(&token, 1, MPI_INT, partner(), token_tag, comm(), MPI_STATUS_IGNORE));
      },
      send_token);
}

TEST_CASE("device messages go on in Probe", "[progress]") {
  waits_elsewhere(
      "Probe",
      [] {
        int token = 0;
        MPI_OK(MPI_Probe(partner(), token_tag, comm(), MPI_STATUS_IGNORE));
        MPI_OK(MPI_Recv(&token, 1, MPI_INT, partner(), token_tag, comm(), MPI_STATUS_IGNORE));
      },
      send_token);
}

TEST_CASE("device messages go on in a loop of Iprobe", "[progress]") {
  waits_elsewhere(
      "Iprobe",
      [] {
        int token = 0, flag = 0;
        while (flag == 0) MPI_OK(MPI_Iprobe(partner(), token_tag, comm(), &flag, MPI_STATUS_IGNORE));
        MPI_OK(MPI_Recv(&token, 1, MPI_INT, partner(), token_tag, comm(), MPI_STATUS_IGNORE));
      },
      send_token);
}

TEST_CASE("device messages go on in Waitsome on another request", "[progress]") {
  waits_elsewhere(
      "Waitsome",
      [] {
        int token = 0, done = 0, index = -1;
        MPI_Request request = expect_token(&token);
        MPI_OK(MPI_Waitsome(1, &request, &done, &index, MPI_STATUSES_IGNORE));
        CHECK(done == 1);
      },
      send_token);
}

TEST_CASE("device messages go on in loops of Testall and Request_get_status on another request", "[progress]") {
  waits_elsewhere(
      "Testall",
      [] {
        int token = 0, flag = 0;
        MPI_Request request = expect_token(&token);
        while (flag == 0) MPI_OK(MPI_Testall(1, &request, &flag, MPI_STATUSES_IGNORE));
      },
      send_token);
  waits_elsewhere(
      "Request_get_status",
      [] {
        int token = 0, flag = 0;
        MPI_Request request = expect_token(&token);
        while (flag == 0) MPI_OK(MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE));
        MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      },
      send_token);
}

TEST_CASE("Testall, Testsome, Testany and Request_get_status alone complete device messages", "[progress]") {
  each_exchange("Testall", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request requests[2];
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &requests[0]));
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &requests[1]));
    for (int flag = 0; flag == 0;) MPI_OK(MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE));
  });
  each_exchange("Testsome", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request requests[2];
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &requests[0]));
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &requests[1]));
    for (int all = 0; all < 2;) {
      int done = 0, indices[2];
      MPI_OK(MPI_Testsome(2, requests, &done, indices, MPI_STATUSES_IGNORE));
      all += done;
    }
  });
  each_exchange("Testany", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request requests[2];
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &requests[0]));
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &requests[1]));
    for (int all = 0; all < 2;) {
      int flag = 0, index = -1;
      MPI_OK(MPI_Testany(2, requests, &index, &flag, MPI_STATUS_IGNORE));
      all += flag;
    }
  });
  each_exchange("Request_get_status", [](const Type& type, Buffer& out, Buffer& in) {
    MPI_Request requests[2];
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &requests[0]));
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &requests[1]));
    for (MPI_Request& request : requests) {
      for (int flag = 0; flag == 0;) MPI_OK(MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
  });
}

TEST_CASE("messages taken in the other order than sent", "[progress]") {
  if (!all_have_partners()) return;
  constexpr int many = 40;
  const Type type = vector(3000, 1, 2);
  std::vector<Buffer> out, in;
  std::vector<MPI_Request> requests(many);
  for (int i = 0; i < many; ++i) {
    out.emplace_back(basic_places[i % 2], type, 1);
    in.emplace_back(basic_places[(i / 2) % 2], type, 1);
    out.back().fill(key_of(rank(), i));
  }
  for (int i = 0; i < many; ++i)
    MPI_OK(MPI_Isend(out[static_cast<std::size_t>(i)].address(), 1, type, partner(), i, comm(),
                     &requests[static_cast<std::size_t>(i)]));
  for (int i = many - 1; i >= 0; --i)
    MPI_OK(MPI_Recv(in[static_cast<std::size_t>(i)].address(), 1, type, partner(), i, comm(), MPI_STATUS_IGNORE));
  MPI_OK(MPI_Waitall(many, requests.data(), MPI_STATUSES_IGNORE));
  for (int i = 0; i < many; ++i) {
    in[static_cast<std::size_t>(i)].expect(stream_of(type, 1, key_of(partner(), i)));
    CHECK(in[static_cast<std::size_t>(i)].difference() == "");
  }
}

TEST_CASE("a window is synchronised while device messages are under way", "[progress]") {
  if (!all_have_partners()) return;
  std::vector<char> own;
  MPI_Win window = MPI_WIN_NULL;
  make_host_window(64, comm(), own, &window);
  each_message("Win_fence", [&](const Type& type, Buffer& out, Buffer& in) {
    if (first_of_pair()) {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &request));
      MPI_OK(MPI_Win_fence(0, window));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else {
      MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 1, comm(), MPI_STATUS_IGNORE));
      MPI_OK(MPI_Win_fence(0, window));
      CHECK(in.difference() != "");
    }
  });
  MPI_OK(MPI_Win_free(&window));
}
