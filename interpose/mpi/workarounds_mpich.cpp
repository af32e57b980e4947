// Work-arounds for MPICH 4 and 5.
#include "interpose/mpi/workarounds.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "base/mixed.hpp"
#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/support/sessions.hpp"

namespace gpudt::interpose {
namespace {

// Set in MPI_Init, before there are threads.
MPI_Comm hidden = MPI_COMM_NULL;
std::uint64_t hidden_tags = 1 << 15;  ///< the least number of tags that MPI promises
int context_key = MPI_KEYVAL_INVALID;

// MPICH does not show the contexts of its communicators. So each communicator gets a number that all its processes
// compute alike: from the number of the communicator from which it was made, the number of communicators made from that
// one before, and its first process. The context of messages is this number reduced to 31 bits. Two communicators may
// get the same one, which does harm only if messages on both with the same tag and length are probed at the same time.
struct Context {
  std::uint64_t number;
  std::atomic<std::uint32_t> made{0};  ///< communicators made from this one by the library's wrappers
};
constexpr std::uint32_t hidden_context = 0;

Context* context_at(MPI_Comm comm) {
  static Context world{1}, self{2};
  if (comm == MPI_COMM_WORLD) return &world;
  if (comm == MPI_COMM_SELF) return &self;
  void* value = nullptr;
  int found = 0;
  if (!contexts_are_known() || comm == MPI_COMM_NULL) return nullptr;
  PMPI_Comm_get_attr(comm, context_key, static_cast<void*>(&value), &found);
  return found == 0 ? nullptr : static_cast<Context*>(value);
}

int drop_context(MPI_Comm, int, void* value, void*) {
  delete static_cast<Context*>(value);
  return MPI_SUCCESS;
}

/// The rank in MPI_COMM_WORLD of the first process of an intracommunicator.
int first_rank(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  const int first = 0;
  int rank = 0;
  PMPI_Comm_group(comm, &group);
  PMPI_Comm_group(MPI_COMM_WORLD, &all);
  PMPI_Group_translate_ranks(group, 1, &first, all, &rank);
  for (MPI_Group* const made : {&group, &all}) PMPI_Group_free(made);
  return rank;
}

/// The status of MPI_REQUEST_NULL (MPI-4.1 section 3.7.3).
MPI_Status empty_status() {
  MPI_Status status{};
  status.MPI_SOURCE = MPI_ANY_SOURCE;
  status.MPI_TAG = MPI_ANY_TAG;
  status.MPI_ERROR = MPI_SUCCESS;
  return status;
}

/// A communicator whose error handler is replaced for a time, possibly by several threads at once.
struct Handled {
  Handled(MPI_Comm its_comm, bool its_whatever) : comm(its_comm), whatever(its_whatever) {}
  const MPI_Comm comm;
  const bool whatever;  ///< whether to replace the default handler, too
  Mutex mutex{};
  int users GUARDED_BY(mutex) = 0;
  bool replaced GUARDED_BY(mutex) = false;
  MPI_Errhandler before GUARDED_BY(mutex) = MPI_ERRHANDLER_NULL;
};
auto& world_handled = never_destroyed<Handled>(MPI_COMM_WORLD, true);
auto& self_handled = never_destroyed<Handled>(MPI_COMM_SELF, false);

/// While an object of this class lives, errors of the communicator are returned. The first object replaces the handler,
/// the last restores it, unless a thread of the program has set another one meanwhile.
class ErrorsReturned {
 public:
  explicit ErrorsReturned(Handled& handled) : handled_(handled) {
    if (sessions_alone()) return;
    counted_ = true;
    const LockGuard lock(handled_.mutex);
    if (handled_.users++ != 0) return;
    PMPI_Comm_get_errhandler(handled_.comm, &handled_.before);
    handled_.replaced = handled_.whatever || handled_.before != MPI_ERRORS_ARE_FATAL;
    if (handled_.replaced) PMPI_Comm_set_errhandler(handled_.comm, MPI_ERRORS_RETURN);
  }
  ~ErrorsReturned() {
    if (!counted_) return;
    const LockGuard lock(handled_.mutex);
    if (--handled_.users != 0) return;
    MPI_Errhandler after = MPI_ERRHANDLER_NULL;
    PMPI_Comm_get_errhandler(handled_.comm, &after);
    if (handled_.replaced && after == MPI_ERRORS_RETURN) PMPI_Comm_set_errhandler(handled_.comm, handled_.before);
    PMPI_Errhandler_free(&handled_.before);
    PMPI_Errhandler_free(&after);
  }
  ErrorsReturned(const ErrorsReturned&) = delete;
  ErrorsReturned& operator=(const ErrorsReturned&) = delete;

 private:
  Handled& handled_;
  bool counted_ = false;
};

/// The major version if gpudt knows it, or 0: for other libraries of this family, too, such as Intel MPI.
int known_version() {
  static const int known = [] {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0, major = 0;
    PMPI_Get_library_version(version, &length);
    const bool found = std::sscanf(version, "MPICH Version: %d.", &major) == 1 && (major == 4 || major == 5) &&
                       std::strstr(version, "ch4:") != nullptr;
    return found ? major : 0;
  }();
  return known;
}

}  // namespace

std::int64_t received_bytes(const MPI_Status& status) {
  MPI_Count bytes = 0;
  PMPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  return bytes;
}

/// An assertion in MPICH's MPI_Waitall fails if some requests are null and a generalized one is not complete yet.
int wait_all(int count, MPI_Request* requests, MPI_Status* statuses) {
  const bool some_null =
      count > 0 && requests != nullptr && std::find(requests, requests + count, MPI_REQUEST_NULL) != requests + count;
  if (!some_null) return PMPI_Waitall(count, requests, statuses);
  std::vector<int> places;
  std::vector<MPI_Request> waited;
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    places.push_back(i);
    waited.push_back(requests[i]);
  }
  const bool wanted = statuses != MPI_STATUSES_IGNORE;
  std::vector<MPI_Status> seen(wanted ? waited.size() : 0);
  const int code =
      PMPI_Waitall(static_cast<int>(waited.size()), waited.data(), wanted ? seen.data() : MPI_STATUSES_IGNORE);
  if (wanted) std::fill_n(statuses, count, empty_status());
  for (std::size_t i = 0; i < places.size(); ++i) {
    requests[places[i]] = waited[i];
    if (wanted) statuses[places[i]] = seen[i];
  }
  return code;
}

/// MPICH has no function that leaves failed requests alone. It frees them and calls the handler of MPI_COMM_WORLD,
/// whatever their communicator, or from 4.2 on that of MPI_COMM_SELF if the program has set one. During the call these
/// handlers are MPI_ERRORS_RETURN. They are restored unless another thread has changed them meanwhile.
int test_some(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses) {
  const ErrorsReturned of_world(world_handled), of_self(self_handled);
  const int code = PMPI_Testsome(count, requests, done, indices, statuses);
  int error_class = MPI_SUCCESS;
  PMPI_Error_class(code, &error_class);
  return error_class == MPI_ERR_IN_STATUS ? MPI_ERR_IN_STATUS : code;
}

/// In MPICH 4 and 5 MPI_Init contains barriers of PMI, in which all processes of a node take part.
bool init_waits_for_all() {
  return is_known_version();
}

bool is_known_version() {
  return known_version() != 0;
}

int get_status(MPI_Request request, int* complete, MPI_Status* status) {
  const ErrorsReturned of_world(world_handled), of_self(self_handled);
  return PMPI_Request_get_status(request, complete, status);
}

bool get_status_leaves_status() {
  return known_version() < 5;
}

bool matches_persistent_by_init() {
  return false;
}

/// Tests a pending request, in which MPICH makes progress. (Probes on a communicator of one process make none.)
void make_progress() {
  MPI_Request request = MPI_REQUEST_NULL;
  int ended = 0;
  const int code =
      PMPI_Grequest_start([](void*, MPI_Status*) { return int(MPI_SUCCESS); }, [](void*) { return int(MPI_SUCCESS); },
                          [](void*, int) { return int(MPI_SUCCESS); }, nullptr, &request);
  if (code != MPI_SUCCESS) return;
  PMPI_Test(&request, &ended, MPI_STATUS_IGNORE);
  PMPI_Grequest_complete(request);
  PMPI_Request_free(&request);
}

bool all_receives_are_known() {
  return is_known_version();
}

/// Without hidden messages it is unknown whether all processes have the library, and number contexts.
bool find_contexts(MPI_Comm) {
  return has_hidden_messages();
}

void number_context(MPI_Comm of, MPI_Comm made) {
  Context* const parent = contexts_are_known() ? context_at(of) : nullptr;
  if (parent == nullptr) return;
  const std::uint32_t before = parent->made.fetch_add(1);
  if (made == MPI_COMM_NULL) return;
  const auto first = static_cast<std::uint64_t>(first_rank(made));
  auto* const context = new (std::nothrow) Context{mixed(mixed(parent->number, before), first)};
  if (context != nullptr && PMPI_Comm_set_attr(made, context_key, context) != MPI_SUCCESS) delete context;
}

/// MPICH fails for elements with gaps, and if built with yaksa for all.
std::int64_t widest_received_in_parts() {
  return 0;
}

bool find_request_contexts(MPI_Comm) {
  return false;
}

std::uint32_t context_of(MPI_Comm comm) {
  if (comm == hidden_comm() && comm != MPI_COMM_NULL) return hidden_context;
  const Context* const context = context_at(comm);
  if (context == nullptr) return local_context;
  const std::uint64_t number = context->number;
  if (number < first_made_context) return static_cast<std::uint32_t>(number);
  return static_cast<std::uint32_t>(number % (local_context - first_made_context)) + first_made_context;
}

std::uint64_t lasting_context(MPI_Comm comm) {
  return context_at(comm)->number;
}

MPI_Comm request_comm(MPI_Request) {
  return MPI_COMM_NULL;
}

bool request_has_comm(MPI_Request, MPI_Comm) {
  return false;
}

void start_contexts() {
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, drop_context, &context_key, nullptr);
}

void stop_contexts() {
  if (contexts_are_known()) PMPI_Comm_free_keyval(&context_key);
}

bool contexts_are_known() {
  return context_key != MPI_KEYVAL_INVALID;
}

void start_hidden_messages() {
  MPI_Group all = MPI_GROUP_NULL;
  PMPI_Comm_group(MPI_COMM_WORLD, &all);
  if (PMPI_Comm_create(MPI_COMM_WORLD, all, &hidden) == MPI_SUCCESS)
    PMPI_Comm_set_errhandler(hidden, MPI_ERRORS_RETURN);
  PMPI_Group_free(&all);
  void* value = nullptr;
  int found = 0;
  PMPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &found);
  if (found != 0) hidden_tags = static_cast<std::uint64_t>(*static_cast<int*>(value)) + 1;
}

void stop_hidden_messages() {
  if (hidden == MPI_COMM_NULL) return;
  PMPI_Comm_free(&hidden);
}

bool has_hidden_messages() {
  return hidden != MPI_COMM_NULL;
}

MPI_Comm hidden_comm() {
  return hidden;
}

int hidden_tag(std::uint64_t number) {
  return static_cast<int>(number % hidden_tags);
}

int hidden_send(const void* data, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                MPI_Request* request) {
  return PMPI_Isend(data, count, type, dest, tag, comm, request);
}

int hidden_receive(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request* request) {
  return PMPI_Irecv(data, count, type, source, tag, comm, request);
}

}  // namespace gpudt::interpose
