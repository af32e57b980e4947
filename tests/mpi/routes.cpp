// gpudt_mpi.h: which way data go, and why; the counters of gpudt.h.
#include <array>
#include <cstdlib>
#include <map>
#include <string>

#include "include/gpudt.h"
#include "include/gpudt_mpi.h"
#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int routed_count = 1 << 17;  ///< doubles
constexpr int routed_tag = 3;

bool is_set(const char* name, const std::string& value) {
  const char* const text = std::getenv(name);
  return text != nullptr && text == value;
}
bool stages() {
  return is_set("GPUDT_PROTOCOL", "staging");
}
/// The answer for long data in GPU memory between partners, where GPUs reach each other.
int usual_way() {
  if (host_only()) return GPUDT_WAY_NONE;
  return stages() ? GPUDT_WAY_HOST : GPUDT_WAY_GPU;
}

/// From now on messages are offered on comm() from the first one on.
void know_each_other() {
  PMPI_Barrier(comm());
}

struct Answer {
  int code, way = -1;
  std::array<char, 300> text{};
  std::string str() const { return text.data(); }
};

Answer message(const void* buffer, int count, int dest, MPI_Comm on, MPI_Datatype type = MPI_DOUBLE) {
  Answer got{};
  got.code = gpudt_route_message(buffer, count, type, dest, on, &got.way, got.text.data(), int(got.text.size()));
  return got;
}
Answer request(MPI_Request of) {
  Answer got{};
  got.code = gpudt_route_request(of, &got.way, got.text.data(), int(got.text.size()));
  return got;
}
Answer window(MPI_Win win, int target) {
  Answer got{};
  got.code = gpudt_route_window(win, target, &got.way, got.text.data(), int(got.text.size()));
  return got;
}

std::map<std::string, long long> counters() {
  std::map<std::string, long long> all;
  const char* name = nullptr;
  long long value = 0;
  for (int index = 0; gpudt_counter(index, &name, &value) == 1; ++index) all[name] = value;
  return all;
}

}  // namespace

TEST_CASE("gpudt_route_message foretells the way of a message", "[.routes]") {
  Memory device(Place::device, routed_count * sizeof(double)), host(Place::host, routed_count * sizeof(double));
  know_each_other();
  const Answer usual = message(device.data(), routed_count, partner(), comm());
  MPI_OK(usual.code);
  CHECK(usual.way == usual_way());
  INFO(usual.str());
  CHECK(usual.str().find(stages() ? "GPUDT_PROTOCOL" : host_only() ? "no data" : "peer") != std::string::npos);
  CHECK(message(host.data(), routed_count, partner(), comm()).way == GPUDT_WAY_NONE);
  CHECK(message(device.data(), 0, partner(), comm()).way == GPUDT_WAY_NONE);
  CHECK(message(device.data(), routed_count, MPI_PROC_NULL, comm()).way == GPUDT_WAY_NONE);
  if (!host_only()) CHECK(message(device.data(), 7, partner(), comm(), MPI_BYTE).way == GPUDT_WAY_HOST);
  lock_step();
}

TEST_CASE("gpudt_route_message refuses nonsense", "[.routes]") {
  Memory device(Place::device, 64);
  const Answer wrong = message(device.data(), 1, ranks(), comm());
  MPI_FAILS(wrong.code, MPI_ERR_RANK);
  MPI_FAILS(message(device.data(), -1, 0, comm()).code, MPI_ERR_COUNT);
  int way = 0;
  std::array<char, 8> text{};
  MPI_FAILS(gpudt_route_message(device.data(), 1, MPI_DATATYPE_NULL, 0, comm(), &way, text.data(), 8), MPI_ERR_TYPE);
  MPI_FAILS(gpudt_route_message(device.data(), 1, MPI_BYTE, 0, comm(), nullptr, text.data(), 8), MPI_ERR_ARG);
  MPI_FAILS(gpudt_route_message(device.data(), 1, MPI_BYTE, 0, comm(), &way, nullptr, 8), MPI_ERR_ARG);
  MPI_OK(gpudt_route_message(device.data(), 1, MPI_BYTE, 0, comm(), &way, nullptr, 0));
  text.fill('x');
  MPI_OK(gpudt_route_message(device.data(), 1, MPI_BYTE, 0, comm(), &way, text.data(), 4));
  CHECK(text[3] == '\0');
  CHECK(text[4] == 'x');
}

TEST_CASE("gpudt_route_request tells the way of a message", "[.routes]") {
  Memory out(Place::device, routed_count * sizeof(double)), in(Place::device, routed_count * sizeof(double));
  std::array<MPI_Request, 2> requests{};
  know_each_other();
  MPI_OK(MPI_Irecv(in.data(), routed_count, MPI_DOUBLE, partner(), routed_tag, comm(), &requests[0]));
  const Answer early = request(requests[0]);
  MPI_OK(early.code);
  CHECK(early.way == (host_only() ? GPUDT_WAY_NONE : GPUDT_WAY_OPEN));
  lock_step();
  MPI_OK(MPI_Isend(out.data(), routed_count, MPI_DOUBLE, partner(), routed_tag, comm(), &requests[1]));
  CHECK(request(requests[1]).way == usual_way());
  // Both are complete, and not completed, once the way of the receive is known.
  if (!host_only()) CHECK(eventually([&] { return request(requests[0]).way == usual_way(); }));
  MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE);
  CHECK(request(MPI_REQUEST_NULL).way == GPUDT_WAY_NONE);
}

TEST_CASE("gpudt_route_window tells the way to a target", "[.routes]") {
  Memory exposed(Place::device, 4096);
  MPI_Win win = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(exposed.data(), 4096, 1, MPI_INFO_NULL, comm(), &win));
  MPI_OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
  const Answer usual = window(win, partner());
  MPI_OK(usual.code);
  CHECK(usual.way == usual_way());
  if (!host_only()) MPI_FAILS(window(win, ranks()).code, MPI_ERR_RANK);
  MPI_OK(MPI_Win_free(&win));
}

TEST_CASE("gpudt_counter counts the ways of buffers", "[.routes]") {
  Memory out(Place::device, routed_count * sizeof(double)), in(Place::device, routed_count * sizeof(double));
  know_each_other();
  const auto before = counters();
  REQUIRE(before.contains("bytes_by_gpus"));
  MPI_Sendrecv(out.data(), routed_count, MPI_DOUBLE, partner(), routed_tag, in.data(), routed_count, MPI_DOUBLE,
               partner(), routed_tag, comm(), MPI_STATUS_IGNORE);
  auto after = counters();
  for (const auto& [name, value] : before) after[name] -= value;
  const long long bytes = host_only() ? 0 : 2LL * routed_count * 8, buffers = host_only() ? 0 : 2;
  CHECK(after["bytes_by_gpus"] == (stages() ? 0 : bytes));
  CHECK(after["buffers_by_gpus"] == (stages() ? 0 : buffers));
  CHECK(after["bytes_through_host"] == (stages() ? bytes : 0));
  CHECK(after["messages_offered"] == (stages() || host_only() ? 0 : 1));
  const char* name = nullptr;
  CHECK(gpudt_counter(-1, &name, nullptr) == 0);
}
