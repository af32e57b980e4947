// Partitioned communication: each partition is sent when it is ready, and in place when it has arrived.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int partitions_tag = 12, rounds = 3;

/// What is received, looked at partition by partition. `type` has no gaps before its first byte.
class Parts {
 public:
  Parts(Place place, const Type& type, int count, int partitions)
      : type_(type),
        count_(count),
        each_(count / partitions),
        image_(type, count),
        memory_(place, image_.bytes().size()) {}

  void* address() const { return memory_.data() + image_.origin(); }
  void poison() {
    image_.poison();
    memory_.write(image_.bytes().data(), image_.bytes().size());
  }
  void expect(const Stream& stream) { unpack_into(image_, type_, count_, stream); }
  bool is_in_place(int partition) const {
    const auto bytes = static_cast<std::size_t>(each_ * type_.extent());
    const std::size_t begin = static_cast<std::size_t>(image_.origin()) + static_cast<std::size_t>(partition) * bytes;
    const std::size_t end = std::min(begin + bytes, image_.bytes().size());
    std::vector<char> found(end - begin);
    memory_.read(found.data(), found.size(), begin);
    return std::equal(found.begin(), found.end(), image_.bytes().begin() + static_cast<std::ptrdiff_t>(begin));
  }
  bool all_in_place() const {
    std::vector<char> found(image_.bytes().size());
    memory_.read(found.data(), found.size());
    return found == image_.bytes();
  }

 private:
  const Type& type_;
  int count_, each_;
  Image image_;
  Memory memory_;
};

/// Makes the partitions ready, in an order and by a function that depend on the round.
void make_ready(int partitions, int round, MPI_Request request) {
  if (round == 0) {
    for (int i = partitions; i-- > 0;) MPI_OK(MPI_Pready(i, request));
  } else if (round == 1) {
    MPI_OK(MPI_Pready(partitions - 1, request));
    if (partitions > 1) MPI_OK(MPI_Pready_range(0, partitions - 2, request));
  } else {
    std::vector<int> list;
    for (int i = 0; i < partitions; ++i) list.push_back((i + 1) % partitions);
    MPI_OK(MPI_Pready_list(partitions, list.data(), request));
  }
}

/// `count` elements from each process to the next.
void around(int count, Place send, Place receive, const Type& out_type, const Type& in_type, int out_partitions,
            int in_partitions) {
  if (!partitions_freely &&
      (host_only() || send == Place::host || receive == Place::host || out_partitions != in_partitions))
    return;
  const std::string text = std::to_string(count) + " x " + out_type.text() + " to " + in_type.text() + ", " +
                           place_name(send) + " to " + place_name(receive) + ", " + std::to_string(out_partitions) +
                           " to " + std::to_string(in_partitions) + " partitions";
  INFO(text);
  step(text);
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  Buffer out(send, out_type, count);
  Parts in(receive, in_type, count, in_partitions);
  MPI_Request requests[2];
  MPI_OK(MPI_Psend_init(out.address(), out_partitions, count / out_partitions, out_type, right, partitions_tag, comm(),
                        MPI_INFO_NULL, &requests[0]));
  MPI_OK(MPI_Precv_init(in.address(), in_partitions, count / in_partitions, in_type, left, partitions_tag, comm(),
                        MPI_INFO_NULL, &requests[1]));
  for (int round = 0; round < rounds; ++round) {
    out.fill(key_of(rank(), round));
    in.poison();
    in.expect(stream_of(out_type, count, key_of(left, round)));
    MPI_OK(MPI_Startall(2, requests));
    make_ready(out_partitions, round, requests[0]);
    for (int i = 0; i < in_partitions && round != 2; ++i) {  // in the last round MPI_Waitall brings all
      int arrived = 0;
      CHECK(eventually([&] {
        MPI_OK(MPI_Parrived(requests[1], i, &arrived));
        return arrived != 0;
      }));
      CHECK(in.is_in_place(i));
    }
    MPI_Status statuses[2] = {};
    MPI_OK(MPI_Waitall(2, requests, statuses));
    check_status(statuses[1], left, partitions_tag, in_type, count * in_type.size());
    CHECK(in.all_in_place());
    CHECK(out.difference() == "");
    if (mpich && (receive == Place::host || host_only())) continue;  // it does not allow what follows
    int arrived = 0;
    MPI_OK(MPI_Parrived(requests[1], 0, &arrived));  // inactive
    CHECK(arrived == 1);
  }
  for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
}

}  // namespace

TEST_CASE("partitioned communication", "[partitioned]") {
  const int partitions[][2] = {{4, 4}, {6, 3}, {3, 6}, {1, 4}, {12, 1}};
  for (const int blocks : {3, 3000})
    for (const Place send : basic_places)
      for (const Place receive : basic_places)
        for (const auto& [out, in] : partitions) {
          const Type spread = vector(blocks, 2, 5), other = vector(blocks / 3, 6, 7);
          around(12, send, receive, spread, other, out, in);
        }
}

namespace {

/// Each process sends the next one `sent` partitions, each an element, in device memory, and receives as many elements
/// from the one before as `received` partitions. Both requests are started.
struct Ring {
  Ring(int sent, int received)
      : out(Place::device, type, sent), in(Place::device, type, sent, received), elements(sent) {
    const int right = (rank() + 1) % ranks();
    out.fill(key_of(rank(), 0));
    in.poison();
    MPI_OK(MPI_Psend_init(out.address(), sent, 1, type, right, partitions_tag, comm(), MPI_INFO_NULL, &requests[0]));
    MPI_OK(MPI_Precv_init(in.address(), received, sent / received, type, left, partitions_tag, comm(), MPI_INFO_NULL,
                          &requests[1]));
    MPI_OK(MPI_Startall(2, requests));
  }
  void end() {
    MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    in.expect(stream_of(type, elements, key_of(left, 0)));
    CHECK(in.all_in_place());
    for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
  }

  const int left = (rank() + ranks() - 1) % ranks();
  const Type type = vector(1000, 2, 5);
  Buffer out;
  Parts in;
  const int elements;
  MPI_Request requests[2];
};

}  // namespace

TEST_CASE("a partition that is not ready has not arrived", "[partitioned]") {
  if (!partitions_freely && host_only()) return not_possible("it puts partitions with gaps elsewhere");
  Ring ring(2, 2);
  MPI_OK(MPI_Pready(0, ring.requests[0]));
  lock_step();
  int arrived = 1;
  for (int i = 0; i < 100; ++i) MPI_OK(MPI_Parrived(ring.requests[1], 1, &arrived));
  CHECK(arrived == 0);
  CHECK(ring.in.is_in_place(1));  // untouched
  int flag = 1;
  MPI_OK(MPI_Testall(2, ring.requests, &flag, MPI_STATUSES_IGNORE));
  CHECK(flag == 0);
  lock_step();
  MPI_OK(MPI_Pready(1, ring.requests[0]));
  ring.end();
}

// Open MPI 5 then answers yes as soon as the sender's first partition has arrived.
TEST_CASE("fewer partitions than the sender has are right in the end", "[partitioned]") {
  if (!partitions_freely && host_only()) return not_possible("it puts partitions with gaps elsewhere");
  Ring ring(4, 1);
  MPI_OK(MPI_Pready(0, ring.requests[0]));
  int arrived = 0;
  for (int i = 0; i < 1000 && arrived == 0; ++i) MPI_OK(MPI_Parrived(ring.requests[1], 0, &arrived));
  lock_step();
  MPI_OK(MPI_Pready_range(1, 3, ring.requests[0]));
  ring.end();
}

TEST_CASE("partitioned requests that are freed, and wrong ones", "[partitioned]") {
  if (!partitions_freely) return not_possible("it does not free those that were never started");
  const Type type = vector(10, 1, 2);
  Buffer buffer(Place::device, type, 4);
  MPI_Request request = MPI_REQUEST_NULL;
  for (int i = 0; i < 50; ++i) {
    MPI_OK(MPI_Psend_init(buffer.address(), 4, 1, type, rank(), partitions_tag, comm(), MPI_INFO_NULL, &request));
    MPI_OK(MPI_Request_free(&request));
    CHECK(request == MPI_REQUEST_NULL);
  }
  MPI_FAILS(MPI_Psend_init(buffer.address(), 4, 1, type, ranks() + 3, partitions_tag, comm(), MPI_INFO_NULL, &request),
            MPI_ERR_RANK);
  MPI_FAILS(MPI_Psend_init(buffer.address(), 4, -1, type, rank(), partitions_tag, comm(), MPI_INFO_NULL, &request),
            MPI_ERR_COUNT);
  MPI_FAILS(MPI_Precv_init(buffer.address(), 4, 1, MPI_DATATYPE_NULL, rank(), partitions_tag, comm(), MPI_INFO_NULL,
                           &request),
            MPI_ERR_TYPE);
  CHECK(buffer.difference() == "");
}

// To be run with a small GPUDT_STAGING_LIMIT.
TEST_CASE("no staging memory for partitions, and for Isendrecv", "[.][staging-limit]") {
  const Type type = vector(1 << 14, 1, 2);  // 128 KiB
  Buffer buffer(Place::device, type, 1), other(Place::device, type, 1);
  MPI_Request request = MPI_REQUEST_NULL;
  for (int i = 0; i < 3; ++i) {
    MPI_FAILS(MPI_Psend_init(buffer.address(), 1, 1, type, rank(), partitions_tag, comm(), MPI_INFO_NULL, &request),
              MPI_ERR_NO_MEM);
    MPI_FAILS(MPI_Precv_init(buffer.address(), 1, 1, type, rank(), partitions_tag, comm(), MPI_INFO_NULL, &request),
              MPI_ERR_NO_MEM);
    MPI_FAILS(MPI_Isendrecv(buffer.address(), 1, type, rank(), partitions_tag, other.address(), 1, type, rank(),
                            partitions_tag, comm(), &request),
              MPI_ERR_NO_MEM);
  }
  CHECK(request == MPI_REQUEST_NULL);
  CHECK(buffer.difference() == "");
  const Type small = vector(30, 1, 2);
  around(4, Place::device, Place::device, small, small, 2, 2);
}
