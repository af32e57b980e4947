// What some MPI library does wrongly, or not at all, done by other means; in all others the function itself. One
// implementation for each family of MPI libraries, workarounds_<family>.cpp; the build picks one.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <cstring>

namespace gpudt::interpose {

/// Of a receive that has ended: the bytes that have come, MPI_UNDEFINED aside.
#ifdef OPEN_MPI
// What MPI_Get_elements tells of MPI_BYTE, at a tenth of its cost: every receive is asked.
inline std::int64_t received_bytes(const MPI_Status& status) {
  return static_cast<std::int64_t>(status._ucount);
}
#else
std::int64_t received_bytes(const MPI_Status& status);
#endif

/// Whether the status of a receive that has failed, since the message was too long, tells its length. In MPICH it is
/// what was there before.
#ifdef OPEN_MPI
inline constexpr bool truncated_statuses_tell = true;
#else
inline constexpr bool truncated_statuses_tell = false;
#endif

/// PMPI_Waitall.
int wait_all(int count, MPI_Request* requests, MPI_Status* statuses);

/// PMPI_Testsome that calls no error handler and leaves failed requests alone, as far as the MPI library allows.
int test_some(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses);

/// PMPI_Request_get_status that calls no error handler. In MPICH a request that has failed is told by what it returns,
/// and its status is what was there before.
int get_status(MPI_Request request, int* complete, MPI_Status* status);
/// Whether MPI_Request_get_status leaves the status to the call that completes the request.
bool get_status_leaves_status();

/// Whether this is a version of the MPI library of which gpudt knows what collectives and windows between GPUs need.
bool is_known_version();

/// Whether gpudt looks at what every receive of this MPI library brings, as peer transfers need.
bool all_receives_are_known();

/// Whether MPI matches persistent collectives by their initialisations: they may be started in any order, and late.
bool matches_persistent_by_init();

/// Whether a call returns the error that it has told an error handler of the program's own. MPICH 4.3 and 5.0 return
/// MPI_SUCCESS: what MPI has refused would pass for sent.
#ifdef OPEN_MPI
inline constexpr bool returns_handled_errors = true;
#else
inline constexpr bool returns_handled_errors = false;
#endif

/// Whether MPI refuses each collective that is to receive what it sends where it is, in the same type. Open MPI refuses
/// MPI_Allreduce and MPI_Reduce alone.
#ifdef OPEN_MPI
inline constexpr bool refuses_all_aliases = false;
#else
inline constexpr bool refuses_all_aliases = true;
#endif

/// Lets MPI make progress. `self`: a communicator of this process alone, where nothing is ever sent.
void make_progress(MPI_Comm self);

/// Finds at run time the offsets of the context id in a communicator object and of the communicator in a request
/// object. Call once, in MPI_Init. `own`: a communicator that this library has made of MPI_COMM_SELF. False if that
/// cannot be found; then the functions that follow may not be called, or know nothing.
bool find_contexts(MPI_Comm own);
/// To be called in MPI_Init, before any communicator is made, and in MPI_Finalize, where contexts are numbered.
void start_contexts();
void stop_contexts();
/// Whether context_of() and lasting_context() tell what they are to, also where no messages are offered.
bool contexts_are_known();
/// Whether a communicator may get the context of one that has been freed.
#ifdef OPEN_MPI
inline constexpr bool contexts_recur = true;
#else
inline constexpr bool contexts_recur = false;
#endif
/// As context_of(), of a communicator with a common context: unless contexts recur no two communicators, of those that
/// have been freed, too, have the same.
std::uint64_t lasting_context(MPI_Comm comm);
/// To be called when the program has made communicator `made`, or not (MPI_COMM_NULL), of `of`: where MPI does not tell
/// contexts, it is numbered.
#ifdef OPEN_MPI
inline void number_context(MPI_Comm, MPI_Comm) {}
#else
void number_context(MPI_Comm of, MPI_Comm made);
#endif
/// Contexts from here on a process may have or not, where they are numbered.
inline constexpr std::uint32_t first_made_context = 3;
bool find_request_contexts(MPI_Comm own);
/// MPI receives messages that end amid an element, as RTS messages may, if no element of the datatype has more bytes.
std::int64_t widest_received_in_parts();
/// A bit of contexts that are not the same in all processes: in Open MPI 5 those of MPI_Comm_create_from_group. No
/// message is offered with one.
inline constexpr std::uint32_t local_context = 1U << 31;
#ifdef OPEN_MPI
/// In bytes, in what the handles point to.
struct ContextOffsets {
  std::size_t context;                ///< in a communicator: context, rank, flags
  std::uint32_t common;               ///< the flag of contexts that all processes have; 0 if all are
  std::size_t comm, kind;             ///< in a request; `comm` is 0 if they have not been found
  std::size_t completion;             ///< in a request; 0 if it has not been found
  static constexpr int messages = 0;  ///< the kind of sends and receives
};
extern ContextOffsets context_offsets;

/// What MPI tells the messages of one communicator from those of all others of this process by: the same in all
/// processes of the communicator, or with local_context.
inline std::uint32_t context_of(MPI_Comm comm) {
  std::uint32_t found[3];
  std::memcpy(found, reinterpret_cast<const char*>(comm) + context_offsets.context, sizeof found);
  return (found[2] & context_offsets.common) == context_offsets.common ? found[0] : found[0] | local_context;
}
/// The communicator of a pending send or receive, even if its handle has been freed; MPI_COMM_NULL if it is not known,
/// or the request is another one. It may be MPI_REQUEST_NULL.
inline MPI_Comm request_comm(MPI_Request request) {
  MPI_Comm comm = MPI_COMM_NULL;
  int kind = 0;
  std::memcpy(&kind, reinterpret_cast<const char*>(request) + context_offsets.kind, sizeof kind);
  if (context_offsets.comm != 0 && kind == ContextOffsets::messages)
    std::memcpy(&comm, reinterpret_cast<const char*>(request) + context_offsets.comm, sizeof(MPI_Comm));
  return comm;
}
/// Whether `comm`, which another request has told, is that of this one, too.
inline bool request_has_comm(MPI_Request request, MPI_Comm comm) {
  MPI_Comm own = MPI_COMM_NULL;
  std::memcpy(&own, reinterpret_cast<const char*>(request) + context_offsets.comm, sizeof(MPI_Comm));
  return own == comm;
}
/// False of a pending send or receive that is certainly not complete. Without a call to MPI.
inline bool request_may_be_complete(MPI_Request request) {
  constexpr std::uintptr_t complete = 1;  // 0, or a pointer: not yet
  if (context_offsets.completion == 0) return true;
  const auto* const place = reinterpret_cast<const char*>(request) + context_offsets.completion;
  return __atomic_load_n(reinterpret_cast<const std::uintptr_t*>(place), __ATOMIC_ACQUIRE) == complete;
}
inline constexpr bool sees_completion = true;
#else
inline bool request_may_be_complete(MPI_Request) {
  return true;
}
inline constexpr bool sees_completion = false;
std::uint32_t context_of(MPI_Comm comm);
MPI_Comm request_comm(MPI_Request request);
bool request_has_comm(MPI_Request request, MPI_Comm comm);
#endif
/// Whether the context of this communicator is the same in all its processes.
inline bool has_common_context(MPI_Comm comm) {
  return (context_of(comm) & local_context) == 0;
}
/// The context of that communicator; negative if there is none.
inline std::int64_t request_context(MPI_Request request) {
  const MPI_Comm comm = request_comm(request);
  return comm == MPI_COMM_NULL ? -1 : std::int64_t{context_of(comm)};
}

/// Whether no process has left MPI_Init before all others had entered it. To be called after it; the same in all.
bool init_waits_for_all();

// Hidden messages, which no receive or probe of the program can match. In Open MPI they have negative tags. Unlike a
// private communicator these need no collective set-up: processes without the library may be part of the job, and no
// other communicator's making waits for this one's. Open MPI's own messages have tags from -7 on downwards. In MPICH
// they have a communicator of their own, if all processes of the job are on one node and have the library: of all
// communicators, which tags tell apart there. It is for collectives alone.
enum HiddenTag : int { control_tag = -3, fragment_tag = -4, collective_tag = -5, vote_tag = -6 };
/// To be called by all processes of the job, in MPI_Init, and before MPI_Finalize.
void start_hidden_messages();
void stop_hidden_messages();
/// Whether the MPI library has a way for them, the same in all processes; once it is initialized. Only then may the
/// others be called.
bool has_hidden_messages();
#ifdef OPEN_MPI
inline constexpr bool hidden_messages_share_comm = false;
#else
inline constexpr bool hidden_messages_share_comm = true;
#endif
/// The communicator that they share, of all processes of MPI_COMM_WORLD, by their ranks there; else MPI_COMM_NULL.
MPI_Comm hidden_comm();
/// A tag there; numbers that are far apart may have the same one.
int hidden_tag(std::uint64_t number);
/// As PMPI_Isend and PMPI_Irecv, of a hidden message; the source may be MPI_ANY_SOURCE. They call no error handler.
int hidden_send(const void* data, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request* request);
int hidden_receive(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request* request);

/// PMPI_Probe, PMPI_Iprobe, PMPI_Mprobe and PMPI_Improbe; what is pending advances in them.
int probe(int source, int tag, MPI_Comm comm, MPI_Status* status);
int iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status);
int mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status);
int improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status);

}  // namespace gpudt::interpose
