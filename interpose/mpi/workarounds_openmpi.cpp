// Work-arounds for Open MPI 4 and 5.
#include "interpose/mpi/workarounds.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace gpudt::interpose {
namespace {

/// The major version of the running library, which may differ from that of mpi.h; 0 if it is unknown.
int library_version() {
  static const int found = [] {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0, major = 0;
    PMPI_Get_library_version(version, &length);
    return std::sscanf(version, "Open MPI v%d.", &major) == 1 ? major : 0;
  }();
  return found;
}

/// Open MPI's internal MPI_Testsome: it returns an error, but calls no handler and frees no failed request.
using SilentTestsome = int (*)(std::size_t, MPI_Request*, int*, int*, MPI_Status*);

/// The fourth of Open MPI's functions for requests (ompi/request/request.h, the same since version 1.3): MPI_Testsome
/// calls it and then the error handler.
SilentTestsome find_testsome() {
  constexpr std::size_t test_some = 3;
  auto* const functions = static_cast<const SilentTestsome*>(dlsym(RTLD_DEFAULT, "ompi_request_functions"));
  return functions == nullptr ? nullptr : functions[test_some];
}

/// The layer of Open MPI that sends and receives messages (ompi/mca/pml/pml.h). Unlike MPI's own functions its
/// functions take negative tags, which wildcards do not match.
struct Messaging {
  using Receive = int (*)(void*, std::size_t, MPI_Datatype, int source, int tag, MPI_Comm, MPI_Request*);
  using Send = int (*)(const void*, std::size_t, MPI_Datatype, int dest, int tag, int mode, MPI_Comm, MPI_Request*);
  Receive receive = nullptr;
  Send send = nullptr;
  bool found() const { return receive != nullptr && send != nullptr; }
};

constexpr int standard_mode = 4;

// The internals of communicators and requests (ompi/communicator/communicator.h, ompi/request/request.h). A
// communicator of Open MPI 4 has its name, of MPI_MAX_OBJECT_NAME bytes, then the context, then the process's rank. One
// of Open MPI 5 has a pointer to the name, long identifiers, then context, rank, and flags, one of which means that the
// context is the same in all processes. A request has its kind, its status, its completion (0: pending, 1: complete, or
// the thread that waits for it), pointers to functions and then the communicator. The offsets depend on
// build options.

constexpr std::size_t communicator_size = 512, request_size = 256;  ///< least bytes of predefined ones
constexpr std::size_t least_communicator = 300;                     ///< least bytes of any communicator
constexpr std::size_t from_kind_to_comm = 96, from_kind_to_completion = 32;
constexpr int generalized_kind = 2, null_kind = 5;

template <class Value, class Handle>
Value value_in(Handle handle, std::size_t offset) {
  Value value;
  // NOLINTNEXTLINE(bugprone-sizeof-expression): the size of a pointer, where that is the value
  std::memcpy(&value, reinterpret_cast<const char*>(handle) + offset, sizeof(Value));
  return value;
}

/// The offset of the name in a predefined communicator; empty if it is not found, or found more than once.
std::optional<std::size_t> place_of_name(MPI_Comm comm) {
  char name[MPI_MAX_OBJECT_NAME] = {};
  int length = 0;
  PMPI_Comm_get_name(comm, name, &length);
  std::optional<std::size_t> found;
  const std::size_t end = communicator_size - MPI_MAX_OBJECT_NAME - sizeof(std::uint32_t) - sizeof(int);
  const auto bytes = static_cast<std::size_t>(length) + 1;
  for (std::size_t place = 0; length > 0 && place <= end; ++place) {
    if (std::memcmp(reinterpret_cast<const char*>(comm) + place, name, bytes) != 0) continue;
    if (found) return std::nullopt;
    found = place;
  }
  return found;
}

/// The flag of Open MPI 5; in Open MPI 4 all contexts are common.
std::uint32_t common_context_flag() {
  return library_version() == 4 ? 0 : 0x10000;
}

/// Whether `flags` can be those of a communicator in Open MPI 5: one is set only in the predefined ones. (Fortran
/// handles are small numbers like contexts, but a pointer follows them, a multiple of 8 without that flag.)
bool are_flags(std::uint32_t flags, bool predefined) {
  constexpr std::uint32_t predefined_flag = 0x4;
  const std::uint32_t common = common_context_flag();
  return library_version() == 4 || ((flags & common) != 0 && ((flags & predefined_flag) != 0) == predefined);
}

/// Whether the context and the rank of `comm` can be at this offset.
bool is_context(std::size_t place, MPI_Comm comm, std::uint32_t lowest, std::uint32_t highest, bool predefined) {
  int rank = -1;
  PMPI_Comm_rank(comm, &rank);
  const auto context = value_in<std::uint32_t>(comm, place);
  return context >= lowest && context <= highest && value_in<int>(comm, place + sizeof context) == rank &&
         are_flags(value_in<std::uint32_t>(comm, place + sizeof context + sizeof rank), predefined);
}

/// Whether contexts can be at this offset. `own`: a communicator that is not predefined.
bool are_contexts(std::size_t place, MPI_Comm own) {
  constexpr std::uint32_t first_free = 2, last = 1U << 30;
  return is_context(place, MPI_COMM_WORLD, 0, 0, /*predefined=*/true) &&
         is_context(place, MPI_COMM_SELF, 1, 1, /*predefined=*/true) &&
         is_context(place, own, first_free, last, /*predefined=*/false);
}

std::vector<std::size_t> context_places() {
  std::vector<std::size_t> places;
  if (library_version() == 4) {
    const auto name = place_of_name(MPI_COMM_WORLD);
    if (name && name == place_of_name(MPI_COMM_SELF)) places.push_back(*name + MPI_MAX_OBJECT_NAME);
    return places;
  }
  for (std::size_t place = 0; place + 3 * sizeof(std::uint32_t) <= least_communicator; place += alignof(std::uint32_t))
    places.push_back(place);
  return places;
}

/// A pending receive that no message matches. It ends with the object.
class Probe {
 public:
  explicit Probe(MPI_Comm comm) { PMPI_Irecv(&room_, 1, MPI_CHAR, 0, 0, comm, &request_); }
  ~Probe() {
    PMPI_Cancel(&request_);
    PMPI_Wait(&request_, MPI_STATUS_IGNORE);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  MPI_Request request() const { return request_; }

 private:
  char room_ = 0;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

class Generalized {
 public:
  Generalized() {
    PMPI_Grequest_start([](void*, MPI_Status*) { return int(MPI_SUCCESS); }, [](void*) { return int(MPI_SUCCESS); },
                        [](void*, int) { return int(MPI_SUCCESS); }, nullptr, &request_);
  }
  ~Generalized() {
    PMPI_Grequest_complete(request_);
    PMPI_Request_free(&request_);
  }
  Generalized(const Generalized&) = delete;
  Generalized& operator=(const Generalized&) = delete;
  MPI_Request request() const { return request_; }

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
};

/// The table of the functions of the chosen component; numbers follow the functions.
struct MessagingTable {
  void* const* entries = nullptr;
  std::size_t count = 0;
};

MessagingTable messaging_table() {
  void* const table = dlsym(RTLD_DEFAULT, "mca_pml");
  Dl_info info{};
  ElfW(Sym)* symbol = nullptr;
  if (table == nullptr || dladdr1(table, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0) return {};
  if (symbol == nullptr || info.dli_saddr != table) return {};
  return {static_cast<void* const*>(table), symbol->st_size / sizeof(void*)};
}

/// Whether `function` is named "mca_pml_<component><ending>", as in all components that export theirs.
bool is_named(void* function, std::string_view ending) {
  Dl_info info{};
  if (function == nullptr || dladdr(function, &info) == 0 || info.dli_saddr != function || !info.dli_sname)
    return false;
  const std::string_view name(info.dli_sname);
  return name.substr(0, 8) == "mca_pml_" && name.size() > ending.size() &&
         name.substr(name.size() - ending.size()) == ending;
}

/// The function of the table that is_named() finds; null if there are none or several.
void* function_named(const MessagingTable& table, std::string_view ending) {
  void* found = nullptr;
  for (std::size_t i = 0; i < table.count; ++i) {
    if (!is_named(table.entries[i], ending)) continue;
    if (found != nullptr) return nullptr;
    found = table.entries[i];
  }
  return found;
}

/// Finds the functions by name, since their order differs between versions. Components that do not export their
/// functions are assumed to have the order of Open MPI 1.3 to 4.
Messaging find_messaging() {
  constexpr std::size_t known_receive = 7, known_send = 10;
  const MessagingTable table = messaging_table();
  void* receive = function_named(table, "_irecv");
  void* send = function_named(table, "_isend");
  if (receive == nullptr && send == nullptr && library_version() == 4 && table.count > known_send) {
    receive = table.entries[known_receive];
    send = table.entries[known_send];
  }
  return {reinterpret_cast<Messaging::Receive>(receive), reinterpret_cast<Messaging::Send>(send)};
}

/// To be called once MPI is initialized, which chooses the component.
const Messaging& messaging() {
  static const Messaging found = find_messaging();
  return found;
}

}  // namespace

ContextOffsets context_offsets = {};

bool find_contexts(MPI_Comm own) {
  const std::vector<std::size_t> places = context_places();
  std::size_t found = 0;
  context_offsets.common = common_context_flag();
  for (const std::size_t place : places) {
    if (!are_contexts(place, own)) continue;
    context_offsets.context = place;
    ++found;
  }
  if (found != 1) context_offsets.context = 0;
  return found == 1;
}

bool find_request_contexts(MPI_Comm own) {
  const Probe one(MPI_COMM_SELF), other(own);
  const Generalized generalized;
  for (std::size_t place = from_kind_to_comm; place + sizeof(MPI_Comm) <= request_size; place += alignof(MPI_Comm)) {
    if (value_in<MPI_Comm>(one.request(), place) != MPI_COMM_SELF || value_in<MPI_Comm>(other.request(), place) != own)
      continue;
    // The next match would be in a part that only receives have.
    const std::size_t kind = place - from_kind_to_comm;
    if (value_in<int>(one.request(), kind) != ContextOffsets::messages ||
        value_in<int>(other.request(), kind) != ContextOffsets::messages ||
        value_in<int>(generalized.request(), kind) != generalized_kind ||
        value_in<int>(MPI_REQUEST_NULL, kind) != null_kind)
      return false;
    context_offsets.comm = place;
    context_offsets.kind = kind;
    const std::size_t completion = kind + from_kind_to_completion;
    if (value_in<std::uintptr_t>(one.request(), completion) == 0 &&
        value_in<std::uintptr_t>(other.request(), completion) == 0 &&
        value_in<std::uintptr_t>(MPI_REQUEST_NULL, completion) == 1)
      context_offsets.completion = completion;
    return true;
  }
  return false;
}

int get_status(MPI_Request request, int* complete, MPI_Status* status) {
  return PMPI_Request_get_status(request, complete, status);
}

bool get_status_leaves_status() {
  return true;
}

bool is_known_version() {
  return all_receives_are_known();
}

bool matches_persistent_by_init() {
  return true;
}

void make_progress() {
  // Not by a probe: over UCX only one probe in a hundred makes all of MPI's progress, with this library's part.
  static const auto drive = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "opal_progress"));
  if (drive != nullptr) drive();  // not null if progress_start() has succeeded
}

bool init_waits_for_all() {
  const auto* const asynchronous = static_cast<const bool*>(dlsym(RTLD_DEFAULT, "ompi_async_mpi_init"));
  return asynchronous != nullptr && !*asynchronous;
}

void start_contexts() {}

void stop_contexts() {}

bool contexts_are_known() {
  return context_offsets.context != 0;
}

std::uint64_t lasting_context(MPI_Comm comm) {
  return context_of(comm);
}

void start_hidden_messages() {}

void stop_hidden_messages() {}

MPI_Comm hidden_comm() {
  return MPI_COMM_NULL;
}

int hidden_tag(std::uint64_t) {
  return collective_tag;
}

bool has_hidden_messages() {
  return (library_version() == 4 || library_version() == 5) && messaging().found();
}

int hidden_send(const void* data, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                MPI_Request* request) {
  const int code =
      messaging().send(data, static_cast<std::size_t>(count), type, dest, tag, standard_mode, comm, request);
  return code == 0 ? MPI_SUCCESS : MPI_ERR_OTHER;
}

int hidden_receive(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request* request) {
  const int code = messaging().receive(data, static_cast<std::size_t>(count), type, source, tag, comm, request);
  return code == 0 ? MPI_SUCCESS : MPI_ERR_OTHER;
}

int wait_all(int count, MPI_Request* requests, MPI_Status* statuses) {
  return PMPI_Waitall(count, requests, statuses);
}

int test_some(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses) {
  static const SilentTestsome testsome = find_testsome();
  if (testsome == nullptr) return PMPI_Testsome(count, requests, done, indices, statuses);
  return testsome(static_cast<std::size_t>(count), requests, done, indices, statuses);
}

/// Open MPI 4 unpacks a part of an element in a buffer of 16 bytes, and writes beyond its end for larger elements; Open
/// MPI 5 takes a byte of the gap before the part for one of the part.
std::int64_t widest_received_in_parts() {
  return library_version() == 4 ? 16 : 1;
}

/// An Open MPI that is newer than mpi.h may have receives that gpudt does not wrap.
bool all_receives_are_known() {
  const int version = library_version();
  return version == 4 || (version == 5 && OMPI_MAJOR_VERSION == 5);
}

}  // namespace gpudt::interpose
