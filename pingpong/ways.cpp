#include "pingpong/ways.hpp"

#include <mpi.h>

#include <utility>

#include "pingpong/common/sampling.hpp"

namespace gpudt::bench {
namespace {

constexpr int tag = 1;

class TypedSend final : public Leg {
 public:
  TypedSend(const Message& message, void* buffer, decltype(&PMPI_Send) send)
      : message_(message), buffer_(buffer), send_(send) {}
  void run(int peer) override { send_(buffer_, message_.count(), message_.type(), peer, tag, MPI_COMM_WORLD); }

 private:
  const Message& message_;
  void* buffer_;
  decltype(&PMPI_Send) send_;
};

class TypedReceive final : public Leg {
 public:
  TypedReceive(const Message& message, void* buffer, decltype(&PMPI_Recv) receive)
      : message_(message), buffer_(buffer), receive_(receive) {}
  void run(int peer) override {
    receive_(buffer_, message_.count(), message_.type(), peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }

 private:
  const Message& message_;
  void* buffer_;
  decltype(&PMPI_Recv) receive_;
};

class StagedLeg : public Leg {
 public:
  StagedLeg(const Message& message, void* user, void* staging, std::shared_ptr<Mover> mover)
      : size_(static_cast<int>(message.size())), user_(user), staging_(staging), mover_(std::move(mover)) {}

 protected:
  int size_;
  void* user_;
  void* staging_;
  std::shared_ptr<Mover> mover_;
};

class StagedSend final : public StagedLeg {
 public:
  using StagedLeg::StagedLeg;
  void run(int peer) override {
    mover_->pack(user_, staging_);
    PMPI_Send(staging_, size_, MPI_PACKED, peer, tag, MPI_COMM_WORLD);
  }
};

class StagedReceive final : public StagedLeg {
 public:
  using StagedLeg::StagedLeg;
  void run(int peer) override {
    PMPI_Recv(staging_, size_, MPI_PACKED, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    mover_->unpack(staging_, user_);
  }
};

}  // namespace

void Endpoint::reserve(const Message& message) {
  send.reserve(message);
  receive.reserve(message);
  send_staging.reserve(static_cast<std::size_t>(message.size()));
  receive_staging.reserve(static_cast<std::size_t>(message.size()));
}

Way make_typed_way(const Message& message, const Endpoint& endpoint, bool profiled) {
  return {std::make_unique<TypedSend>(message, endpoint.send.address(), profiled ? MPI_Send : PMPI_Send),
          std::make_unique<TypedReceive>(message, endpoint.receive.address(), profiled ? MPI_Recv : PMPI_Recv)};
}

Way make_staged_way(const Message& message, const Endpoint& endpoint, std::shared_ptr<Mover> mover) {
  Way way = make_typed_way(message, endpoint, false);
  if (on_device(endpoint.send.place())) {
    way.send = std::make_unique<StagedSend>(message, endpoint.send.address(), endpoint.send_staging.data(), mover);
  }
  if (on_device(endpoint.receive.place())) {
    way.receive = std::make_unique<StagedReceive>(message, endpoint.receive.address(), endpoint.receive_staging.data(),
                                                  std::move(mover));
  }
  return way;
}

void PingPong::exchange() {
  if (rank_ == 0) {
    way_.send->run(peer());
    way_.receive->run(peer());
  } else {
    way_.receive->run(peer());
    way_.send->run(peer());
  }
}

double PingPong::round_trip() {
  PMPI_Barrier(MPI_COMM_WORLD);
  const double start = now_us();
  exchange();
  return (now_us() - start) / 2;
}

std::optional<std::string> PingPong::verified_round_trip(std::int64_t round) {
  endpoint_->send.load(*message_, {rank_, round});
  endpoint_->receive.poison(*message_);
  PMPI_Barrier(MPI_COMM_WORLD);
  exchange();
  return endpoint_->receive.mismatch(*message_, {peer(), round});
}

}  // namespace gpudt::bench
