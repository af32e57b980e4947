// Messages that are matched before their streams have come to them.
#include <array>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/mpi/held_stream.hpp"
#include "tests/mpi/pending_sums.hpp"
#include "tests/mpi/streams.hpp"

using namespace gpudt::test;

namespace {

constexpr int count = 300;

/// Tells the partner that this rank is so far, and waits until it is.
void meet_partner() {
  MPI_OK(MPI_Sendrecv(nullptr, 0, MPI_BYTE, partner(), 99, nullptr, 0, MPI_BYTE, partner(), 99, comm(),
                      MPI_STATUS_IGNORE));
}

/// Where message `i` of several lies: kinds that begin early and ones that cannot.
struct Mixed {
  explicit Mixed(int i) : numbers(2 * count), kind(i % 3) {}
  double* data() const { return kind == 1 ? numbers.host() : numbers.device(); }
  int elements() const { return kind == 2 ? 1 : count; }
  MPI_Datatype type() const { return kind == 2 ? MPI_Datatype(strided) : MPI_DOUBLE; }

  Numbers numbers;
  int kind;
  Type strided = vector(count, 1, 2);
};

}  // namespace

TEST_CASE("A message is matched before its stream has come to it, and sent afterwards", "[streams][early]") {
  if (!all_have_partners()) return;
  const bool early = by_gpus();
  const EnqueuingStream stream;
  for (const int length : {count, 200000}) {
    Numbers numbers(static_cast<std::size_t>(length));
    numbers.clear(stream.cuda());
    stream.synchronize();
    if (rank() % 2 == 0) {
      HeldStream held(stream.cuda());
      numbers.write(stream.cuda(), first_of(rank(), 0));
      MPI_OK(MPIX_Send_enqueue(numbers.device(), length, MPI_DOUBLE, partner(), 3, stream.comm()));
      numbers.clear(stream.cuda());
      meet_partner();
      held.release();
      stream.synchronize();
    } else {
      int found = 0;
      MPI_Status status;
      const auto probes = [&] {
        MPI_OK(MPI_Iprobe(partner(), 3, stream.comm(), &found, &status));
        return found != 0;
      };
      if (early) {
        REQUIRE(eventually(probes));
        int elements = 0;
        MPI_Get_elements(&status, MPI_DOUBLE, &elements);
        CHECK(elements == length);
      }
      meet_partner();
      MPI_OK(MPI_Recv(numbers.device(), length, MPI_DOUBLE, partner(), 3, stream.comm(), MPI_STATUS_IGNORE));
      numbers.read(stream.cuda());
      stream.synchronize();
      CHECK(numbers.values() == counted(static_cast<std::size_t>(length), first_of(partner(), 0)));
    }
  }
}

TEST_CASE("A receive that is matched early leaves its buffer alone until its stream comes to it", "[streams][early]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  for (const bool from_stream : {false, true}) {
    Numbers numbers(count), before(count);
    if (rank() % 2 == 0) {
      numbers.write(stream.cuda(), first_of(rank(), 1));
      stream.synchronize();
      MPI_Request request = MPI_REQUEST_NULL;
      if (from_stream)
        MPI_OK(MPIX_Send_enqueue(numbers.device(), count, MPI_DOUBLE, partner(), 4, stream.comm()));
      else
        MPI_OK(MPI_Isend(numbers.device(), count, MPI_DOUBLE, partner(), 4, stream.comm(), &request));
      meet_partner();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      meet_partner();
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      stream.synchronize();
    } else {
      numbers.write(stream.cuda(), 7);
      stream.synchronize();
      HeldStream held(stream.cuda());
      REQUIRE(cudaMemcpyAsync(before.host(), numbers.device(), count * sizeof(double), cudaMemcpyDefault,
                              stream.cuda()) == cudaSuccess);
      MPI_OK(MPIX_Recv_enqueue(numbers.device(), count, MPI_DOUBLE, partner(), 4, stream.comm(), MPI_STATUS_IGNORE));
      numbers.read(stream.cuda());
      meet_partner();
      meet_partner();
      held.release();
      stream.synchronize();
      CHECK(before.values() == counted(count, 7));
      CHECK(numbers.values() == counted(count, first_of(partner(), 1)));
    }
  }
}

TEST_CASE("Messages that begin early and ones that cannot stay in order", "[streams][early]") {
  if (!all_have_partners()) return;
  constexpr int messages = 24;
  const EnqueuingStream stream;
  for (const bool receives_in_stream : {false, true}) {
    std::vector<std::unique_ptr<Mixed>> all;
    all.reserve(messages);
    for (int i = 0; i < messages; ++i) all.push_back(std::make_unique<Mixed>(rank() % 2 == 0 ? i : i + 1));
    const bool sends = rank() % 2 == 0;
    for (const auto& each : all) each->numbers.clear(stream.cuda());
    stream.delay();
    for (int i = 0; i < messages; ++i) {
      const Mixed& mixed = *all[static_cast<std::size_t>(i)];
      if (sends) {
        all[static_cast<std::size_t>(i)]->numbers.write(stream.cuda(), first_of(rank(), i));
        MPI_OK(MPIX_Send_enqueue(mixed.data(), mixed.elements(), mixed.type(), partner(), 5, stream.comm()));
      } else if (receives_in_stream) {
        MPI_OK(MPIX_Recv_enqueue(mixed.data(), mixed.elements(), mixed.type(), partner(), 5, stream.comm(),
                                 MPI_STATUS_IGNORE));
      } else {
        if (i == 0) stream.synchronize();
        MPI_OK(MPI_Recv(mixed.data(), mixed.elements(), mixed.type(), partner(), 5, stream.comm(), MPI_STATUS_IGNORE));
      }
    }
    stream.synchronize();
    for (int i = 0; !sends && i < messages; ++i) {
      const Mixed& mixed = *all[static_cast<std::size_t>(i)];
      const Mixed sent(i);
      std::vector<double> in(2 * count);
      REQUIRE(cudaMemcpy(in.data(), mixed.data(), in.size() * sizeof(double), cudaMemcpyDefault) == cudaSuccess);
      const double second = sent.kind == 2 ? 2 : 1;
      const std::size_t apart = mixed.kind == 2 ? 2 : 1;
      INFO("message " << i);
      CHECK(in[0] == first_of(partner(), i));
      CHECK(in[apart] == first_of(partner(), i) + second);
    }
  }
}

TEST_CASE("A long message that waits for its stream does not hold up those of other streams", "[streams][early]") {
  if (!all_have_partners()) return;
  constexpr int length = 1 << 20;
  const EnqueuingStream first, second;
  Numbers one(length), other(length), go(8);
  for (int round = 0; round < 2; ++round) {
    if (rank() % 2 == 0) {
      one.write(first.cuda(), first_of(rank(), round));
      other.write(second.cuda(), first_of(rank(), round + 10));
      MPI_OK(MPIX_Recv_enqueue(go.device(), 8, MPI_DOUBLE, partner(), 1, first.comm(), MPI_STATUS_IGNORE));
      MPI_OK(MPIX_Send_enqueue(one.device(), length, MPI_DOUBLE, partner(), 2, first.comm()));
      meet_partner();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      MPI_OK(MPIX_Send_enqueue(other.device(), length, MPI_DOUBLE, partner(), 3, second.comm()));
      second.synchronize();
      first.synchronize();
    } else {
      std::array<MPI_Request, 2> requests{};
      MPI_OK(MPI_Irecv(one.device(), length, MPI_DOUBLE, partner(), 2, first.comm(), &requests[0]));
      MPI_OK(MPI_Irecv(other.device(), length, MPI_DOUBLE, partner(), 3, second.comm(), &requests[1]));
      meet_partner();
      MPI_OK(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
      MPI_OK(MPI_Send(go.device(), 8, MPI_DOUBLE, partner(), 1, first.comm()));
      MPI_OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
      one.read(first.cuda());
      other.read(first.cuda());
      first.synchronize();
      CHECK(one.values() == counted(length, first_of(partner(), round)));
      CHECK(other.values() == counted(length, first_of(partner(), round + 10)));
    }
  }
}

TEST_CASE("What is enqueued behind the launch of a graph is not matched before the graph's messages", "[graphs]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  Numbers first(count), in_graph(count), last(count);
  const auto send = [&](const Numbers& numbers) {
    MPI_OK(MPIX_Send_enqueue(numbers.device(), count, MPI_DOUBLE, partner(), 6, stream.comm()));
  };
  if (rank() % 2 == 0) {
    double value = 0;
    for (Numbers* const each : {&first, &in_graph, &last}) each->write(stream.cuda(), value += 1000);
    stream.synchronize();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream.cuda(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    send(in_graph);
    REQUIRE(cudaStreamEndCapture(stream.cuda(), &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
    {
      HeldStream held(stream.cuda());
      send(first);
      REQUIRE(cudaGraphLaunch(executable, stream.cuda()) == cudaSuccess);
      send(last);
      meet_partner();
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  } else {
    meet_partner();
    for (const double value : {1000.0, 2000.0, 3000.0}) {
      MPI_OK(MPI_Recv(first.device(), count, MPI_DOUBLE, partner(), 6, stream.comm(), MPI_STATUS_IGNORE));
      first.read(stream.cuda());
      stream.synchronize();
      CHECK(first.values() == counted(count, value));
    }
  }
}
