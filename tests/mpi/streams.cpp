// Messages and collectives that are enqueued in streams.
#include "tests/mpi/streams.hpp"

#include <algorithm>
#include <array>
#include <memory>

using namespace gpudt::test;

namespace {

constexpr int gap = 3;  ///< of the noncontiguous type: one of so many numbers

struct Layout {
  Type type;
  int count;
  std::size_t numbers;  ///< that it spans
  std::size_t step;     ///< from one number that it has to the next

  std::vector<double> sent(double first) const { return pick(counted(numbers, first)); }
  std::vector<double> pick(const std::vector<double>& from) const { return every(step, from); }
};

Layout contiguous(int count) {
  return {plain(MPI_DOUBLE), count, static_cast<std::size_t>(count), 1};
}
Layout strided(int blocks) {
  return {vector(blocks, 1, gap), 1, static_cast<std::size_t>(gap * (blocks - 1) + 1), gap};
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int count : {1, 128, 700, 40000}) {
    all.push_back(contiguous(count));
    all.push_back(strided(count));
  }
  return all;
}

std::vector<double> first_part(const std::vector<double>& all, std::size_t count) {
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

TEST_CASE("An enqueued send takes what its stream has written, and what follows sees what came", "[streams]") {
  if (!all_have_partners()) return;
  for (const unsigned flags : {cudaStreamNonBlocking, cudaStreamDefault}) {
    const EnqueuingStream stream(flags);
    for (const Layout& layout : layouts())
      for (int round = 0; round < 2; ++round) {
        INFO(layout.type.text() << ", round " << round);
        step(layout.type.text());
        Numbers numbers(layout.numbers);
        MPI_Status status;
        numbers.clear(stream.cuda());
        if (rank() % 2 == 0) {
          if (round == 0) stream.delay();
          numbers.write(stream.cuda(), first_of(rank(), round));
          MPI_OK(MPIX_Send_enqueue(numbers.device(), layout.count, layout.type, partner(), 5, stream.comm()));
          numbers.clear(stream.cuda());
          stream.synchronize();
        } else {
          if (round == 1) stream.delay();
          MPI_OK(MPIX_Recv_enqueue(numbers.device(), layout.count, layout.type, partner(), 5, stream.comm(), &status));
          numbers.read(stream.cuda());
          stream.synchronize();
          CHECK(layout.pick(numbers.values()) == layout.sent(first_of(partner(), round)));
          int elements = 0;
          MPI_Get_elements(&status, MPI_DOUBLE, &elements);
          CHECK(elements == static_cast<int>(layout.sent(0).size()));
          CHECK(status.MPI_SOURCE == partner());
        }
      }
  }
}

TEST_CASE("Enqueued operations match ordinary calls of other ranks", "[streams]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  for (const Layout& layout : layouts())
    for (const bool sends : {true, false}) {
      INFO(layout.type.text() << (sends ? ", sent from a stream" : ", received in a stream"));
      Numbers numbers(layout.numbers);
      const bool sender = (rank() % 2 == 0) == sends;
      const bool enqueues = rank() % 2 == 0;
      numbers.clear(stream.cuda());
      if (sender) numbers.write(stream.cuda(), first_of(rank(), 0));
      if (!enqueues) stream.synchronize();
      if (sender && enqueues)
        MPI_OK(MPIX_Send_enqueue(numbers.device(), layout.count, layout.type, partner(), 6, stream.comm()));
      else if (sender)
        MPI_OK(MPI_Send(numbers.device(), layout.count, layout.type, partner(), 6, stream.comm()));
      else if (enqueues)
        MPI_OK(MPIX_Recv_enqueue(numbers.device(), layout.count, layout.type, MPI_ANY_SOURCE, 6, stream.comm(),
                                 MPI_STATUS_IGNORE));
      else
        MPI_OK(MPI_Recv(numbers.device(), layout.count, layout.type, partner(), MPI_ANY_TAG, stream.comm(),
                        MPI_STATUS_IGNORE));
      numbers.read(stream.cuda());
      stream.synchronize();
      if (!sender) CHECK(layout.pick(numbers.values()) == layout.sent(first_of(partner(), 0)));
    }
}

TEST_CASE("A stream that waits for a message does not hold up the send of another", "[streams]") {
  if (!all_have_partners()) return;
  const EnqueuingStream first, second;
  // Each rank receives in one stream what the other sends in the stream of the same communicator.
  const EnqueuingStream& receiving = rank() % 2 == 0 ? first : second;
  const EnqueuingStream& sending = rank() % 2 == 0 ? second : first;
  for (int round = 0; round < 20; ++round) {
    Numbers in(5000), out(5000);
    MPI_OK(MPIX_Recv_enqueue(in.device(), 5000, MPI_DOUBLE, partner(), 1, receiving.comm(), MPI_STATUS_IGNORE));
    in.read(receiving.cuda());
    if (round % 4 == 0) sending.delay();
    out.write(sending.cuda(), first_of(rank(), round));
    MPI_OK(MPIX_Send_enqueue(out.device(), 5000, MPI_DOUBLE, partner(), 1, sending.comm()));
    out.clear(sending.cuda());
    receiving.synchronize();
    sending.synchronize();
    CHECK(in.values() == counted(5000, first_of(partner(), round)));
  }
}

TEST_CASE("Many operations at once, for which a stream waits together", "[streams]") {
  constexpr int messages = 100;  // more than one meeting
  const EnqueuingStream stream;
  const Layout layout = strided(60);
  std::vector<std::unique_ptr<Numbers>> in, out;
  for (int i = 0; i < messages; ++i) {
    in.push_back(std::make_unique<Numbers>(layout.numbers));
    out.push_back(std::make_unique<Numbers>(layout.numbers));
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<MPI_Request> requests(2 * messages + 1, MPI_REQUEST_NULL);
    std::vector<MPI_Status> statuses(requests.size());
    if (round == 0) stream.delay();
    for (int i = 0; i < messages; ++i) {
      const auto at = static_cast<std::size_t>(i);
      MPI_OK(MPIX_Irecv_enqueue(in[at]->device(), layout.count, layout.type, left(), i, stream.comm(), &requests[at]));
    }
    for (int i = 0; i < messages; ++i) {
      const auto at = static_cast<std::size_t>(i);
      out[at]->write(stream.cuda(), first_of(rank(), round) + i);
      MPI_OK(MPIX_Isend_enqueue(out[at]->device(), layout.count, layout.type, right(), i, stream.comm(),
                                &requests[messages + at]));
    }
    MPI_OK(MPIX_Waitall_enqueue(static_cast<int>(requests.size()), requests.data(),
                                round == 1 ? MPI_STATUSES_IGNORE : statuses.data()));
    CHECK(std::count(requests.begin(), requests.end(), MPI_REQUEST_NULL) == 2 * messages + 1);
    for (const auto& numbers : in) numbers->read(stream.cuda());
    stream.synchronize();
    for (int i = 0; i < messages; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(layout.pick(in[at]->values()) == layout.sent(first_of(left(), round) + i));
      if (round != 1) CHECK(statuses[at].MPI_TAG == i);
    }
  }
}

TEST_CASE("A request of an enqueued operation is one for MPI_Wait and MPI_Test, too", "[streams]") {
  const EnqueuingStream stream;
  Numbers in(200), out(200);
  MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
  MPI_Status status;
  MPI_OK(MPIX_Irecv_enqueue(in.device(), 200, MPI_DOUBLE, left(), 3, stream.comm(), &receive));
  out.write(stream.cuda(), first_of(rank(), 0));
  MPI_OK(MPIX_Isend_enqueue(out.device(), 200, MPI_DOUBLE, right(), 3, stream.comm(), &send));
  MPI_OK(MPI_Wait(&receive, &status));
  CHECK(status.MPI_SOURCE == left());
  CHECK(status.MPI_TAG == 3);
  int done = 0;
  CHECK(eventually([&] {
    MPI_OK(MPI_Test(&send, &done, MPI_STATUS_IGNORE));
    return done != 0;
  }));
  in.read(stream.cuda());
  stream.synchronize();
  CHECK(in.values() == counted(200, first_of(left(), 0)));
}

TEST_CASE("A process sends messages to itself in a stream", "[streams]") {
  const EnqueuingStream stream;
  Numbers in(3000), out(3000);
  std::array<MPI_Request, 2> requests{};
  out.write(stream.cuda(), 7);
  MPI_OK(MPIX_Irecv_enqueue(in.device(), 3000, MPI_DOUBLE, rank(), 3, stream.comm(), requests.data()));
  MPI_OK(MPIX_Isend_enqueue(out.device(), 3000, MPI_DOUBLE, rank(), 3, stream.comm(), &requests[1]));
  MPI_OK(MPIX_Waitall_enqueue(2, requests.data(), MPI_STATUSES_IGNORE));
  in.read(stream.cuda());
  stream.synchronize();
  CHECK(in.values() == counted(3000, 7));
}

TEST_CASE("Short messages to each other, sent first", "[streams]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  Numbers in(64), out(64);
  for (int round = 0; round < 5; ++round) {
    out.write(stream.cuda(), first_of(rank(), round));
    MPI_OK(MPIX_Send_enqueue(out.device(), 64, MPI_DOUBLE, partner(), 0, stream.comm()));
    MPI_OK(MPIX_Recv_enqueue(in.device(), 64, MPI_DOUBLE, partner(), 0, stream.comm(), MPI_STATUS_IGNORE));
    in.read(stream.cuda());
    stream.synchronize();
    CHECK(in.values() == counted(64, first_of(partner(), round)));
  }
}

TEST_CASE("Enqueued collectives", "[streams]") {
  const EnqueuingStream stream;
  const auto each = static_cast<std::size_t>(ranks());
  for (const int count : {1, 130, 9000}) {
    INFO(count << " numbers");
    const auto n = static_cast<std::size_t>(count);
    Numbers out(n * each), in(n * each);
    const auto write = [&] { out.write(stream.cuda(), first_of(rank(), 0)); };
    const auto received = [&] {
      in.read(stream.cuda());
      stream.synchronize();
      return in.values();
    };
    stream.delay();
    write();
    MPI_OK(MPIX_Allreduce_enqueue(out.device(), in.device(), count, MPI_DOUBLE, MPI_MAX, stream.comm()));
    std::vector<double> wanted = counted(n, first_of(ranks() - 1, 0));
    CHECK(first_part(received(), n) == wanted);

    MPI_OK(MPIX_Reduce_scatter_block_enqueue(out.device(), in.device(), count, MPI_DOUBLE, MPI_MAX, stream.comm()));
    wanted = counted(n, first_of(ranks() - 1, 0) + static_cast<double>(rank() * count));
    CHECK(first_part(received(), n) == wanted);

    const auto concatenated = [&](auto first) {
      std::vector<double> all;
      for (int from = 0; from < ranks(); ++from)
        for (const double number : counted(n, first(from))) all.push_back(number);
      return all;
    };
    const std::vector<double> gathered = concatenated([](int from) { return first_of(from, 0); });
    MPI_OK(MPIX_Allgather_enqueue(out.device(), count, MPI_DOUBLE, in.device(), count, MPI_DOUBLE, stream.comm()));
    CHECK(received() == gathered);

    std::vector<int> counts(each, count), places(each), bytes(each);
    std::vector<MPI_Datatype> types(each, MPI_DOUBLE);
    for (std::size_t i = 0; i < each; ++i) places[i] = static_cast<int>(i) * count;
    in.clear(stream.cuda());
    MPI_OK(MPIX_Allgatherv_enqueue(out.device(), count, MPI_DOUBLE, in.device(), counts.data(), places.data(),
                                   MPI_DOUBLE, stream.comm()));
    CHECK(received() == gathered);

    const std::vector<double> exchanged =
        concatenated([&](int from) { return first_of(from, 0) + static_cast<double>(rank() * count); });
    MPI_OK(MPIX_Alltoall_enqueue(out.device(), count, MPI_DOUBLE, in.device(), count, MPI_DOUBLE, stream.comm()));
    CHECK(received() == exchanged);

    in.clear(stream.cuda());
    MPI_OK(MPIX_Alltoallv_enqueue(out.device(), counts.data(), places.data(), MPI_DOUBLE, in.device(), counts.data(),
                                  places.data(), MPI_DOUBLE, stream.comm()));
    CHECK(received() == exchanged);

    for (std::size_t i = 0; i < each; ++i) bytes[i] = static_cast<int>(sizeof(double)) * places[i];
    in.clear(stream.cuda());
    MPI_OK(MPIX_Alltoallw_enqueue(out.device(), counts.data(), bytes.data(), types.data(), in.device(), counts.data(),
                                  bytes.data(), types.data(), stream.comm()));
    std::fill(counts.begin(), counts.end(), 0);  // the arrays are the program's again
    CHECK(received() == exchanged);

    MPI_OK(MPIX_Bcast_enqueue(rank() == ranks() - 1 ? out.device() : in.device(), count, MPI_DOUBLE, ranks() - 1,
                              stream.comm()));
    if (rank() != ranks() - 1) CHECK(first_part(received(), n) == counted(n, first_of(ranks() - 1, 0)));
    stream.synchronize();
  }
}

TEST_CASE("An enqueued exchange with neighbours, of subarrays", "[streams]") {
  const int size = ranks(), periodic = 1;
  MPI_Comm ring = MPI_COMM_NULL;
  MPI_OK(MPI_Cart_create(comm(), 1, &size, &periodic, 0, &ring));
  {
    const EnqueuingStream stream(cudaStreamNonBlocking, ring);
    const Layout layout = strided(50);
    Numbers numbers(4 * layout.numbers);
    numbers.write(stream.cuda(), first_of(rank(), 0));
    const std::array<int, 2> counts{1, 1};
    const auto bytes = static_cast<MPI_Aint>(layout.numbers * sizeof(double));
    const std::array<MPI_Aint, 2> from{0, bytes}, to{2 * bytes, 3 * bytes};
    const std::array<MPI_Datatype, 2> types{layout.type, layout.type};
    MPI_OK(MPIX_Neighbor_alltoallw_enqueue(numbers.device(), counts.data(), from.data(), types.data(), numbers.device(),
                                           counts.data(), to.data(), types.data(), stream.comm()));
    numbers.read(stream.cuda());
    stream.synchronize();
    const std::vector<double> found = numbers.values();
    const auto n = static_cast<std::ptrdiff_t>(layout.numbers);
    const double beside = static_cast<double>(layout.numbers);
    if (ranks() > 2) {  // with two, both neighbours are the same process
      CHECK(layout.pick({found.begin() + 2 * n, found.begin() + 3 * n}) == layout.sent(first_of(left(), 0) + beside));
      CHECK(layout.pick({found.begin() + 3 * n, found.end()}) == layout.sent(first_of(right(), 0)));
    }
  }
  MPI_Comm_free(&ring);
}

TEST_CASE("Types, operators and communicators may be freed as soon as a call is enqueued", "[streams]") {
  if (!all_have_partners()) return;
  const EnqueuingStream outer;
  MPI_Comm freed = MPI_COMM_NULL;
  MPIX_Stream stream = MPIX_STREAM_NULL;
  MPI_Info info = MPI_INFO_NULL;
  const cudaStream_t cuda = outer.cuda();
  MPI_Info_create(&info);
  MPI_Info_set(info, "type", "cudaStream_t");
  MPI_OK(MPIX_Info_set_hex(info, "value", &cuda, sizeof cuda));
  MPI_OK(MPIX_Stream_create(info, &stream));
  MPI_Info_free(&info);
  MPI_OK(MPIX_Stream_comm_create(comm(), stream, &freed));
  Numbers in(300), out(300), sum(300);
  Layout layout = strided(100);
  outer.delay();
  in.clear(cuda);
  out.write(cuda, first_of(rank(), 0));
  std::array<MPI_Request, 2> requests{};
  MPI_Op op = MPI_OP_NULL;
  MPI_Op_create(
      [](void* a, void* b, int* n, MPI_Datatype*) {
        for (int i = 0; i < *n; ++i) static_cast<double*>(b)[i] += static_cast<double*>(a)[i];
      },
      1, &op);
  MPI_OK(MPIX_Irecv_enqueue(in.device(), 1, layout.type, partner(), 1, freed, requests.data()));
  MPI_OK(MPIX_Isend_enqueue(out.device(), 1, layout.type, partner(), 1, freed, &requests[1]));
  MPI_OK(MPIX_Waitall_enqueue(2, requests.data(), MPI_STATUSES_IGNORE));
  MPI_OK(MPIX_Allreduce_enqueue(out.device(), sum.device(), 300, MPI_DOUBLE, op, freed));
  layout.type.free();
  MPI_OK(MPI_Op_free(&op));
  CHECK(op == MPI_OP_NULL);
  MPI_OK(MPI_Comm_free(&freed));
  CHECK(freed == MPI_COMM_NULL);
  MPI_OK(MPIX_Stream_free(&stream));
  CHECK(stream == MPIX_STREAM_NULL);
  in.read(cuda);
  sum.read(cuda);
  outer.synchronize();
  CHECK(layout.pick(in.values()) == layout.sent(first_of(partner(), 0)));
  double first = 0;
  for (int each = 0; each < ranks(); ++each) first += first_of(each, 0);
  CHECK(sum.values()[0] == first);
}
