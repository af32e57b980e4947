// gpudt_mpi.h: which way data go, and why; the counters of gpudt.h.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "include/gpudt.h"
#include "include/gpudt_mpi.h"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/rma/registry.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/report.hpp"

extern "C" const char* gpudt_why_not();

namespace gpudt::interpose {
namespace {

struct Answer {
  int way;
  std::string text;
};

Answer answer(const Went& went) {
  if (went.why_through_host == nullptr) return {GPUDT_WAY_GPU, went.way};
  return {GPUDT_WAY_HOST, std::string(went.way) + ": " + went.why_through_host};
}

/// Where the answer goes.
struct Place {
  int* way;
  char* text;
  int size;

  void check() const {
    if (way == nullptr) throw MpiError(MPI_ERR_ARG, "argument way is NULL; it takes the address of an int");
    if (size < 0 || (size > 0 && text == nullptr))
      throw MpiError(MPI_ERR_ARG, "argument size is " + std::to_string(size) +
                                      "; it takes 0 or more, and the number of bytes at text, which must not be NULL");
  }
  void fill(const Answer& given) const {
    *way = given.way;
    if (size == 0) return;
    const std::size_t length = std::min(given.text.size(), static_cast<std::size_t>(size) - 1);
    std::memcpy(text, given.text.data(), length);
    text[length] = '\0';
  }
};

/// Runs `find()`, and puts the answer into `place`.
template <class Handle, class Find>
int tell(const Handle& handle, const char* call, const Place& place, const Find& find) {
  return guarded(handle, call, [&] {
    place.check();
    place.fill(gpudt_active() != 0 ? find() : Answer{GPUDT_WAY_NONE, gpudt_why_not()});
    return int(MPI_SUCCESS);
  });
}

Answer message(const void* buf, MPI_Count count, MPI_Datatype type, int dest, MPI_Comm comm) {
  if (count < 0) throw MpiError(MPI_ERR_COUNT, "argument count is " + std::to_string(count) + "; it takes 0 or more");
  if (type == MPI_DATATYPE_NULL)
    throw MpiError(MPI_ERR_TYPE, "argument datatype is MPI_DATATYPE_NULL; it takes committed datatypes");
  if (dest == MPI_PROC_NULL) return {GPUDT_WAY_NONE, "nothing is sent to MPI_PROC_NULL"};
  const int peers = peers_of(comm);
  if (dest < 0 || dest >= peers)
    throw MpiError(MPI_ERR_RANK, "argument dest is " + std::to_string(dest) + "; it takes ranks from 0 to " +
                                     std::to_string(peers - 1) + ", or MPI_PROC_NULL");
  const std::optional<Went> went = expected_route(buf, count, type, {dest, /*tag=*/0, comm});
  return went ? answer(*went) : Answer{GPUDT_WAY_NONE, "the buffer has no data in GPU memory"};
}

Answer request(MPI_Request handle) {
  if (handle == MPI_REQUEST_NULL) return {GPUDT_WAY_NONE, "the request is MPI_REQUEST_NULL: it is complete"};
  const PersistentRef persistent = persistent_find(handle);
  if (persistent && persistent->active == MPI_REQUEST_NULL) return {GPUDT_WAY_OPEN, "the request is not started"};
  const RequestWay found = engine_way_of(persistent ? persistent->active : handle);
  switch (found.state) {
    case RequestWay::State::not_followed:
      return {GPUDT_WAY_OPEN, "not recorded: set GPUDT_REQUIRE=warn or GPUDT_REPORT=1"};
    case RequestWay::State::open:
      return {GPUDT_WAY_OPEN, "its message has not come, or its collective has not been begun by all processes"};
    case RequestWay::State::known:
      return answer(found.went);
    default:
      return {GPUDT_WAY_NONE, "MPI has the request as it is: it has no data in GPU memory, or is complete"};
  }
}

Answer window(MPI_Win win, int target) {
  const auto served = served_window(win);
  if (!served)
    return {GPUDT_WAY_NONE, "MPI serves the window, whose memory is host memory; buffers in GPU memory are staged"};
  const std::optional<Went> went = served->way_to(target);
  return went ? answer(*went) : Answer{GPUDT_WAY_OPEN, "it depends on the GPU with the origin's buffer"};
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int gpudt_route_message(const void* buf, MPI_Count count, MPI_Datatype datatype, int dest, MPI_Comm comm,
                                     int* way, char* text, int size) {
  constexpr const char* call = "gpudt_route_message";
  if (comm == MPI_COMM_NULL)
    return fail(comm, call, MPI_ERR_COMM, "argument comm is MPI_COMM_NULL; it takes communicators");
  return tell(comm, call, {way, text, size}, [&] { return message(buf, count, datatype, dest, comm); });
}

GPUDT_EXPORT int gpudt_route_request(MPI_Request request, int* way, char* text, int size) {
  return tell(MPI_COMM_NULL, "gpudt_route_request", {way, text, size},
              [&] { return gpudt::interpose::request(request); });
}

GPUDT_EXPORT int gpudt_route_window(MPI_Win win, int target, int* way, char* text, int size) {
  constexpr const char* call = "gpudt_route_window";
  if (win == MPI_WIN_NULL)
    return fail(MPI_Comm{MPI_COMM_NULL}, call, MPI_ERR_WIN, "argument win is MPI_WIN_NULL; it takes windows");
  return tell(OfWindow{win}, call, {way, text, size}, [&] { return window(win, target); });
}

GPUDT_EXPORT int gpudt_counter(int index, const char** name, long long* value) {
  std::int64_t count = 0;
  const char* const found = report_counter(index, count);
  if (found == nullptr) return 0;
  if (name != nullptr) *name = found;
  if (value != nullptr) *value = count;
  return 1;
}
