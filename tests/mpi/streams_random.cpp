// Random messages of several streams: enqueued ones with each other and with ordinary calls.
#include <algorithm>
#include <memory>
#include <random>

#include "tests/mpi/streams.hpp"

using namespace gpudt::test;

namespace {

constexpr int stream_count = 2;
constexpr int messages = 30;  ///< of a round

enum class Mode { waiting, requesting, ordinary };
enum class Memory { device, host, strided };

/// One end of a message.
struct End {
  int rank;
  Mode mode;
  Memory memory;
  bool waits_soon;  ///< the stream waits for a request at once, and not at the end
};

struct Planned {
  End from, to;
  int stream, tag, length;
};

template <class Value>
Value pick(std::mt19937_64& random, std::initializer_list<Value> values) {
  return values.begin()[random() % values.size()];
}

End random_end(std::mt19937_64& random, int rank) {
  return {rank, pick(random, {Mode::waiting, Mode::waiting, Mode::requesting, Mode::ordinary}),
          pick(random, {Memory::device, Memory::device, Memory::host, Memory::strided}), random() % 2 == 0};
}

/// The same on all ranks, which carry the messages out in this order, so that no stream waits for a later one. Ordinary
/// calls have no order with enqueued ones: they have tags of their own.
std::vector<Planned> random_plan(std::mt19937_64& random) {
  std::vector<Planned> plan;
  for (int i = 0; i < messages; ++i) {
    const int from = static_cast<int>(random() % static_cast<unsigned>(ranks()));
    const int to = (from + 1 + static_cast<int>(random() % static_cast<unsigned>(ranks() - 1))) % ranks();
    Planned each{random_end(random, from), random_end(random, to), static_cast<int>(random() % stream_count),
                 static_cast<int>(random() % 2), pick(random, {1, 4, 65, 500, 3000, 70000})};
    if (each.from.mode == Mode::ordinary || each.to.mode == Mode::ordinary) each.tag = 10 + i;
    plan.push_back(each);
  }
  return plan;
}

/// The data of an end.
class Data {
 public:
  Data(const End& end, int length)
      : numbers(static_cast<std::size_t>(end.memory == Memory::strided ? 2 * length : length)),
        step(end.memory == Memory::strided ? 2 : 1),
        address(end.memory == Memory::host ? numbers.host() : numbers.device()),
        count(end.memory == Memory::strided ? 1 : length),
        strided_(vector(length, 1, 2)) {}
  MPI_Datatype type() const { return step == 2 ? MPI_Datatype(strided_) : MPI_DOUBLE; }
  std::vector<double> values() const {
    std::vector<double> all(numbers.count());
    REQUIRE(cudaMemcpy(all.data(), address, all.size() * sizeof(double), cudaMemcpyDefault) == cudaSuccess);
    return every(static_cast<std::size_t>(step), all);
  }

  Numbers numbers;
  const int step;
  double* const address;
  const int count;

 private:
  Type strided_;
};

/// A round of messages on this rank.
class Round {
 public:
  Round(const std::vector<std::unique_ptr<EnqueuingStream>>& streams, const std::vector<Planned>& plan)
      : streams_(streams), plan_(plan), requests_(streams.size()) {
    for (const Planned& each : plan) {
      out_.push_back(each.from.rank == rank() ? std::make_unique<Data>(each.from, each.length) : nullptr);
      in_.push_back(each.to.rank == rank() ? std::make_unique<Data>(each.to, each.length) : nullptr);
    }
  }

  void run(std::mt19937_64& random) {
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      if (in_[i]) in_[i]->numbers.clear(nullptr);
      if (out_[i] && plan_[i].from.mode == Mode::ordinary) out_[i]->numbers.write(nullptr, first_of(i));
    }
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    lock_step();
    for (const auto& stream : streams_)
      if (random() % 2 == 0) stream->delay();
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      if (out_[i]) send(i);
      if (in_[i]) receive(i);
    }
    for (std::size_t s = 0; s < streams_.size(); ++s) wait(s);
    MPI_OK(MPI_Waitall(static_cast<int>(ordinary_.size()), ordinary_.data(), MPI_STATUSES_IGNORE));
    for (const auto& stream : streams_) stream->synchronize();
  }

  void check() const {
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      if (!in_[i]) continue;
      const Planned& each = plan_[i];
      const auto length = static_cast<std::size_t>(each.length);
      const std::size_t apart = each.from.memory == Memory::strided ? 2 : 1;
      INFO("message " << i << " from rank " << each.from.rank << ", " << each.length << " numbers");
      CHECK(in_[i]->values() == every(apart, counted(apart * length, first_of(i))));
    }
  }

 private:
  static double first_of(std::size_t message) { return 1e6 * static_cast<double>(message + 1); }

  void send(std::size_t i) {
    const Planned& each = plan_[i];
    const EnqueuingStream& stream = of(each);
    Data& data = *out_[i];
    const auto to = each.to.rank;
    if (each.from.mode == Mode::ordinary) {
      MPI_OK(MPI_Isend(data.address, data.count, data.type(), to, each.tag, stream.comm(), &ordinary()));
      return;
    }
    data.numbers.write(stream.cuda(), first_of(i));
    if (each.from.mode == Mode::waiting) {
      MPI_OK(MPIX_Send_enqueue(data.address, data.count, data.type(), to, each.tag, stream.comm()));
      data.numbers.clear(stream.cuda());
    } else {
      MPI_OK(MPIX_Isend_enqueue(data.address, data.count, data.type(), to, each.tag, stream.comm(), &enqueued(each)));
      if (each.from.waits_soon) wait(static_cast<std::size_t>(each.stream));
    }
  }

  void receive(std::size_t i) {
    const Planned& each = plan_[i];
    const EnqueuingStream& stream = of(each);
    Data& data = *in_[i];
    const auto from = each.from.rank;
    if (each.to.mode == Mode::ordinary) {
      MPI_OK(MPI_Irecv(data.address, data.count, data.type(), from, each.tag, stream.comm(), &ordinary()));
    } else if (each.to.mode == Mode::waiting) {
      MPI_OK(
          MPIX_Recv_enqueue(data.address, data.count, data.type(), from, each.tag, stream.comm(), MPI_STATUS_IGNORE));
    } else {
      MPI_OK(MPIX_Irecv_enqueue(data.address, data.count, data.type(), from, each.tag, stream.comm(), &enqueued(each)));
      if (each.to.waits_soon) wait(static_cast<std::size_t>(each.stream));
    }
  }

  /// Lets a stream wait for its requests.
  void wait(std::size_t stream) {
    std::vector<MPI_Request>& all = requests_[stream];
    MPI_OK(MPIX_Waitall_enqueue(static_cast<int>(all.size()), all.data(), MPI_STATUSES_IGNORE));
    all.clear();
  }

  const EnqueuingStream& of(const Planned& each) const { return *streams_[static_cast<std::size_t>(each.stream)]; }
  MPI_Request& ordinary() { return ordinary_.emplace_back(MPI_REQUEST_NULL); }
  MPI_Request& enqueued(const Planned& each) {
    return requests_[static_cast<std::size_t>(each.stream)].emplace_back(MPI_REQUEST_NULL);
  }

  const std::vector<std::unique_ptr<EnqueuingStream>>& streams_;
  const std::vector<Planned>& plan_;
  std::vector<std::unique_ptr<Data>> out_, in_;
  std::vector<std::vector<MPI_Request>> requests_;  ///< enqueued, by stream
  std::vector<MPI_Request> ordinary_;
};

}  // namespace

TEST_CASE("Random messages of several streams", "[streams][early]") {
  if (ranks() < 2) return;
  std::mt19937_64 random = random_numbers("streams");
  std::vector<std::unique_ptr<EnqueuingStream>> streams;
  streams.reserve(stream_count);
  for (int i = 0; i < stream_count; ++i) streams.push_back(std::make_unique<EnqueuingStream>());
  for (int round = 0; round < scaled(8); ++round) {
    INFO("round " << round);
    step("round " + std::to_string(round));
    const std::vector<Planned> plan = random_plan(random);
    Round here(streams, plan);
    here.run(random);
    here.check();
  }
}
