// GPUDT_REQUIRE: whether calls fail whose data in device memory go through the host, and only these; their data arrive
// in any case. The same cases run where GPUs do everything and where they do nothing.
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int long_count = 1 << 17;  ///< doubles
constexpr int tag = 3;

std::string setting(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// Whether this run sends what is in device memory through the host, and that is an error.
bool is_forbidden() {
  const bool through_host = setting("GPUDT_PROTOCOL") == "staging" || setting("GPUDT_SIM_PEERS") == "0";
  return through_host && setting("GPUDT_REQUIRE").starts_with("gpu") && !host_only();
}

bool is_refusal(int code) {
  return error_text(code).find("GPUDT_REQUIRE") != std::string::npos;
}

void expect(int code, bool refused) {
  if (refused)
    CHECK(is_refusal(code));
  else
    MPI_OK(code);
}
void expect(int code) {
  expect(code, is_forbidden());
}

/// A message both ways between partners, of `count` elements.
struct BothWays {
  const Type& type;
  int count;
  Buffer out, in;

  BothWays(const Type& sent, int elements, Place from = Place::device, Place to = Place::device)
      : type(sent), count(elements), out(from, sent, elements), in(to, sent, elements) {
    out.fill(key_of(rank()));
    in.expect(stream_of(type, count, key_of(partner())));
    PMPI_Barrier(comm());  // from now on all know it, and messages are offered from the first one on
  }
  /// Whatever the call returned.
  void check_arrived() const { CHECK(in.difference() == ""); }
};

std::vector<Type> types() {
  std::vector<Type> all;
  all.push_back(plain(MPI_DOUBLE));
  all.push_back(vector(1024, 4, 9));
  return all;
}

int count_of(const Type& type) {
  return static_cast<int>(long_count * std::int64_t{8} / type.size());
}

}  // namespace

TEST_CASE("GPUDT_REQUIRE and blocking messages", "[.require]") {
  for (const Type& type : types()) {
    BothWays each(type, count_of(type));
    for (const int sender : {0, 1}) {
      const bool sends = rank() % 2 == sender;
      const auto [out, in] = std::array{each.out.address(), each.in.address()};
      expect(sends ? MPI_Send(out, each.count, type, partner(), tag, comm())
                   : MPI_Recv(in, each.count, type, partner(), tag, comm(), MPI_STATUS_IGNORE));
    }
    each.check_arrived();
  }
}

TEST_CASE("GPUDT_REQUIRE and nonblocking messages", "[.require]") {
  for (const Type& type : types()) {
    BothWays each(type, count_of(type));
    std::array<MPI_Request, 2> requests{};
    std::array<MPI_Status, 2> statuses{};
    MPI_OK(MPI_Irecv(each.in.address(), each.count, type, partner(), tag, comm(), &requests[0]));
    MPI_OK(MPI_Isend(each.out.address(), each.count, type, partner(), tag, comm(), &requests[1]));
    const int code = MPI_Waitall(2, requests.data(), statuses.data());
    if (is_forbidden()) {
      CHECK(error_class(code) == MPI_ERR_IN_STATUS);
      for (const MPI_Status& status : statuses) CHECK(is_refusal(status.MPI_ERROR));
    } else {
      MPI_OK(code);
    }
    CHECK(requests[0] == MPI_REQUEST_NULL);
    CHECK(requests[1] == MPI_REQUEST_NULL);
    each.check_arrived();
  }
}

TEST_CASE("GPUDT_REQUIRE and persistent messages", "[.require]") {
  const Type type = vector(1024, 4, 9);
  BothWays each(type, count_of(type));
  std::array<MPI_Request, 2> requests{};
  MPI_OK(MPI_Recv_init(each.in.address(), each.count, type, partner(), tag, comm(), &requests[0]));
  MPI_OK(MPI_Send_init(each.out.address(), each.count, type, partner(), tag, comm(), &requests[1]));
  for (int start = 0; start < 3; ++start) {
    MPI_OK(MPI_Startall(2, requests.data()));
    for (MPI_Request& request : requests) expect(MPI_Wait(&request, MPI_STATUS_IGNORE));
    each.check_arrived();
  }
  for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
}

TEST_CASE("GPUDT_REQUIRE and MPI_Sendrecv", "[.require]") {
  const Type type = plain(MPI_DOUBLE);
  BothWays each(type, long_count);
  expect(MPI_Sendrecv(each.out.address(), each.count, type, partner(), tag, each.in.address(), each.count, type,
                      partner(), tag, comm(), MPI_STATUS_IGNORE));
  each.check_arrived();
}

TEST_CASE("GPUDT_REQUIRE calls the error handler once for each call", "[.require]") {
  const Type type = plain(MPI_DOUBLE);
  BothWays each(type, long_count);
  ErrorComm errors(/*own_handler=*/true);
  PMPI_Barrier(errors);
  const std::size_t expected = is_forbidden() ? 1 : 0;
  expect(MPI_Sendrecv(each.out.address(), each.count, type, partner(), tag, each.in.address(), each.count, type,
                      partner(), tag, errors, MPI_STATUS_IGNORE));
  CHECK(handler_calls.size() == expected);
  each.check_arrived();
  handler_calls.clear();
  const int block = long_count / ranks();
  expect(MPI_Alltoall(each.out.address(), block, type, each.in.address(), block, type, errors));
  CHECK(handler_calls.size() == expected);
  handler_calls.clear();
}

TEST_CASE("GPUDT_REQUIRE and MPI_Sendrecv_replace, which stages what it sends", "[.require]") {
  const bool is_error = setting("GPUDT_REQUIRE").starts_with("gpu") && !host_only();
  const Type type = plain(MPI_DOUBLE);
  BothWays each(type, long_count);
  const bool even = rank() % 2 == 0;
  if (even) {
    expect(MPI_Sendrecv_replace(each.out.address(), long_count, type, partner(), tag, partner(), tag, comm(),
                                MPI_STATUS_IGNORE),
           is_error);
  } else {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(each.in.address(), long_count, type, partner(), tag, comm(), &request));
    expect(MPI_Send(each.out.address(), long_count, type, partner(), tag, comm()));
    expect(MPI_Wait(&request, MPI_STATUS_IGNORE), is_error);
    each.check_arrived();
  }
}

TEST_CASE("GPUDT_REQUIRE lets short data, local calls, cancelled receives and host memory pass", "[.require]") {
  const Type type = plain(MPI_DOUBLE);
  for (const auto& [count, place] : {std::pair(8, Place::device), std::pair(long_count, Place::host)}) {
    BothWays each(type, count, place, place);
    MPI_OK(MPI_Sendrecv(each.out.address(), count, type, partner(), tag, each.in.address(), count, type, partner(), tag,
                        comm(), MPI_STATUS_IGNORE));
    each.check_arrived();
  }
  BothWays each(type, long_count);
  std::vector<char> packed(long_count * sizeof(double));
  int position = 0;
  MPI_OK(MPI_Pack(each.out.address(), long_count, type, packed.data(), static_cast<int>(packed.size()), &position,
                  comm()));
  MPI_Op on_host = MPI_OP_NULL;
  MPI_OK(MPI_Op_create([](void*, void*, int*, MPI_Datatype*) {}, 1, &on_host));
  MPI_OK(MPI_Reduce_local(each.out.address(), each.in.address(), long_count, MPI_DOUBLE, on_host));
  MPI_OK(MPI_Op_free(&on_host));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(each.in.address(), long_count, type, partner(), tag + 1, comm(), &request));
  MPI_OK(MPI_Cancel(&request));
  MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  MPI_OK(MPI_Recv(each.in.address(), long_count, type, MPI_PROC_NULL, tag, comm(), MPI_STATUS_IGNORE));
  MPI_OK(MPI_Send(each.in.address(), long_count, type, MPI_PROC_NULL, tag, comm()));
}

TEST_CASE("GPUDT_REQUIRE and data that one side has on the host", "[.require]") {
  const bool is_error = setting("GPUDT_REQUIRE").starts_with("gpu") && !host_only();
  const Type type = plain(MPI_DOUBLE);
  const bool even = rank() % 2 == 0;
  for (const Place senders : {Place::host, Place::device}) {
    const Place receivers = senders == Place::host ? Place::device : Place::host;
    BothWays each(type, long_count, senders, receivers);
    if (even)
      expect(MPI_Send(each.out.address(), long_count, type, partner(), tag, comm()),
             is_error && senders == Place::device);
    else
      expect(MPI_Recv(each.in.address(), long_count, type, partner(), tag, comm(), MPI_STATUS_IGNORE),
             is_error && receivers == Place::device);
    if (!even) each.check_arrived();
  }
}

TEST_CASE("GPUDT_REQUIRE and collectives", "[.require]") {
  const Type type = plain(MPI_DOUBLE);
  Memory out(Place::device, long_count * sizeof(double)), in(Place::device, long_count * sizeof(double));
  std::vector<double> values(long_count, rank() + 1.0), found(long_count);
  out.write(values.data(), out.bytes());
  const double sum = ranks() * (ranks() + 1) / 2.0;
  const auto check_sum = [&] {
    in.read(found.data(), in.bytes());
    CHECK(found == std::vector<double>(long_count, sum));
  };
  for (int times = 0; times < 3; ++times) {
    expect(MPI_Allreduce(out.data(), in.data(), long_count, MPI_DOUBLE, MPI_SUM, comm()));
    check_sum();
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Iallreduce(out.data(), in.data(), long_count, MPI_DOUBLE, MPI_SUM, comm(), &request));
    expect(MPI_Wait(&request, MPI_STATUS_IGNORE));
    check_sum();
    const int block = long_count / ranks();
    expect(MPI_Alltoall(out.data(), block, MPI_DOUBLE, in.data(), block, MPI_DOUBLE, comm()));
    in.read(found.data(), in.bytes());
    for (int from = 0; from < ranks(); ++from) CHECK(found[static_cast<std::size_t>(from * block)] == from + 1);
    expect(MPI_Bcast(in.data(), long_count, MPI_DOUBLE, 0, comm()));
  }
}

TEST_CASE("GPUDT_REQUIRE and windows", "[.require]") {
  const Type type = plain(MPI_DOUBLE);
  BothWays each(type, long_count);
  Memory exposed(Place::device, long_count * sizeof(double));
  MPI_Win win = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(exposed.data(), static_cast<MPI_Aint>(exposed.bytes()), sizeof(double), MPI_INFO_NULL, comm(),
                        &win));
  MPI_OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
  const int to = partner();
  MPI_OK(MPI_Win_fence(0, win));
  expect(MPI_Put(each.out.address(), long_count, type, to, 0, long_count, type, win));
  MPI_OK(MPI_Win_fence(0, win));
  std::vector<double> values(long_count);
  exposed.read(values.data(), exposed.bytes());
  const Stream sent = stream_of(type, long_count, key_of(partner()));
  CHECK(std::string_view(reinterpret_cast<const char*>(values.data()), exposed.bytes()) ==
        std::string_view(sent.data(), sent.size()));
  MPI_OK(MPI_Win_fence(0, win));

  std::vector<double> on_host(long_count);
  MPI_OK(MPI_Get(on_host.data(), long_count, type, to, 0, long_count, type, win));  // no device buffer of this process
  MPI_OK(MPI_Win_fence(0, win));
  CHECK(std::string_view(reinterpret_cast<const char*>(on_host.data()), exposed.bytes()) ==
        std::string_view(stream_of(type, long_count, key_of(rank())).data(), exposed.bytes()));

  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, to, 0, win));
  MPI_Request request = MPI_REQUEST_NULL;
  each.in.poison();
  each.in.expect(stream_of(type, long_count, key_of(rank())));  // what this process has put there
  MPI_OK(MPI_Rget(each.in.address(), long_count, type, to, 0, long_count, type, win, &request));
  expect(MPI_Wait(&request, MPI_STATUS_IGNORE));
  MPI_OK(MPI_Win_unlock(to, win));
  each.check_arrived();
  MPI_OK(MPI_Win_free(&win));
}
