// Functions that some MPI library lacks or has wrong. There they work around it; elsewhere they call MPI's own
// function. Each family of MPI libraries has an implementation, workarounds_<family>.cpp; the build picks one.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <cstring>

namespace gpudt::interpose {

/// The number of bytes that a completed receive has received, never MPI_UNDEFINED.
#ifdef OPEN_MPI
// The same as MPI_Get_elements for MPI_BYTE, at a tenth of its cost: this is called for every receive.
inline std::int64_t received_bytes(const MPI_Status& status) {
  return static_cast<std::int64_t>(status._ucount);
}
#else
std::int64_t received_bytes(const MPI_Status& status);
#endif

/// Whether the status of a receive that failed because the message was too long has the message's length. MPICH sets
/// source and tag alone.
#ifdef OPEN_MPI
inline constexpr bool truncated_statuses_tell = true;
#else
inline constexpr bool truncated_statuses_tell = false;
#endif

/// Whether a short message to the process itself that is too long for a receive posted before it is cut off, and the
/// receive succeeds, unless the send is synchronous.
#ifdef OPEN_MPI
inline constexpr bool cuts_off_own_messages = true;
#else
inline constexpr bool cuts_off_own_messages = false;
#endif

/// Whether PMPI_Info_set takes MPI_INFO_ENV. MPICH 5 refuses it, and ends the process.
#ifdef OPEN_MPI
inline constexpr bool environment_is_writable = true;
#else
inline constexpr bool environment_is_writable = false;
#endif

/// PMPI_Waitall.
int wait_all(int count, MPI_Request* requests, MPI_Status* statuses);

/// PMPI_Testsome that calls no error handler and leaves failed requests alone, as far as the MPI library allows.
int test_some(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses);

/// PMPI_Request_get_status that calls no error handler. In MPICH the return code shows that a request has failed, and
/// the status stays as it was.
int get_status(MPI_Request request, int* complete, MPI_Status* status);
/// Whether the call that completes a request still returns its status after MPI_Request_get_status.
bool get_status_leaves_status();

/// Whether gpudt knows enough of this version of the MPI library for peer transfers, collectives and windows by GPUs.
bool is_known_version();

/// Whether gpudt checks every receive of this MPI library for RTS messages, as peer transfers need.
bool all_receives_are_known();

/// Whether MPI matches persistent collectives by their initialisations: they may be started in any order, at any time.
bool matches_persistent_by_init();

/// Whether a call returns its error after an error handler of the program has been called. MPICH 4.3 and 5.0 return
/// MPI_SUCCESS, so that a message which MPI has refused would seem to be sent.
#ifdef OPEN_MPI
inline constexpr bool returns_handled_errors = true;
#else
inline constexpr bool returns_handled_errors = false;
#endif

/// Whether MPI refuses all collectives whose send and receive buffers have the same address and type. Open MPI refuses
/// only MPI_Allreduce and MPI_Reduce.
#ifdef OPEN_MPI
inline constexpr bool refuses_all_aliases = false;
#else
inline constexpr bool refuses_all_aliases = true;
#endif

/// Whether MPI_Parrived may answer yes before all of a partition has come. Open MPI 5 does where the sender has more
/// partitions than the receiver.
#ifdef OPEN_MPI
inline constexpr bool partitions_come_early = true;
#else
inline constexpr bool partitions_come_early = false;
#endif

void make_progress();

/// Finds the offset of the context id in a communicator object. To be called once, in MPI_Init. `own`: a communicator
/// that this library has made from MPI_COMM_SELF. False if it is not found: then context_of() must not be called.
bool find_contexts(MPI_Comm own);
/// To be called in MPI_Init, before any communicator is made, and in MPI_Finalize. They do something only for MPI
/// libraries for which gpudt numbers contexts.
void start_contexts();
void stop_contexts();
/// Whether context_of() and lasting_context() work, also if no messages are offered.
bool contexts_are_known();
/// Whether a communicator may get the context of a freed one.
#ifdef OPEN_MPI
inline constexpr bool contexts_recur = true;
#else
inline constexpr bool contexts_recur = false;
#endif
/// A longer number for a communicator with a common context, the same in all its processes. Unless contexts recur, no
/// two communicators ever have the same, freed ones included.
std::uint64_t lasting_context(MPI_Comm comm);
/// To be called when the program has made communicator `made` (or MPI_COMM_NULL) from `of`. Numbers its context if MPI
/// does not show contexts.
#ifdef OPEN_MPI
inline void number_context(MPI_Comm, MPI_Comm) {}
#else
void number_context(MPI_Comm of, MPI_Comm made);
#endif
/// Where contexts are numbered: from this number on they belong to communicators that the program has made, and that
/// the receiver may not have numbered (mpi_f08 and tools bypass the library).
inline constexpr std::uint32_t first_made_context = 3;
/// Finds the offset of the communicator in a request object, for request_comm(). False if it is not found.
bool find_request_contexts(MPI_Comm own);
/// The largest element, in bytes, within which a received message may end, as RTS messages do; MPI fails for larger
/// ones.
std::int64_t widest_received_in_parts();
/// This bit marks contexts that differ between processes: in Open MPI 5 those of MPI_Comm_create_from_group. No message
/// is offered on such communicators.
inline constexpr std::uint32_t local_context = 1U << 31;
#ifdef OPEN_MPI
/// Offsets in bytes in the objects that the handles point to.
struct ContextOffsets {
  std::size_t context;                ///< in a communicator: context, rank, flags
  std::uint32_t common;               ///< the flag of contexts that are the same in all processes; 0 if all are
  std::size_t comm, kind;             ///< in a request; `comm` is 0 if these have not been found
  std::size_t completion;             ///< in a request; 0 if it has not been found
  static constexpr int messages = 0;  ///< the kind of sends and receives
};
extern ContextOffsets context_offsets;

/// The number by which MPI distinguishes the messages of a communicator from those of other communicators. It is the
/// same in all processes of the communicator, or has the bit local_context.
inline std::uint32_t context_of(MPI_Comm comm) {
  std::uint32_t found[3];
  std::memcpy(found, reinterpret_cast<const char*>(comm) + context_offsets.context, sizeof found);
  return (found[2] & context_offsets.common) == context_offsets.common ? found[0] : found[0] | local_context;
}
/// The communicator of a pending send or receive, even if its handle has been freed. MPI_COMM_NULL if it is unknown, or
/// if the request is of another kind. `request` may be MPI_REQUEST_NULL.
inline MPI_Comm request_comm(MPI_Request request) {
  MPI_Comm comm = MPI_COMM_NULL;
  int kind = 0;
  std::memcpy(&kind, reinterpret_cast<const char*>(request) + context_offsets.kind, sizeof kind);
  if (context_offsets.comm != 0 && kind == ContextOffsets::messages)
    std::memcpy(&comm, reinterpret_cast<const char*>(request) + context_offsets.comm, sizeof(MPI_Comm));
  return comm;
}
/// Whether the request belongs to `comm`, a result of request_comm() for another request.
inline bool request_has_comm(MPI_Request request, MPI_Comm comm) {
  MPI_Comm own = MPI_COMM_NULL;
  std::memcpy(&own, reinterpret_cast<const char*>(request) + context_offsets.comm, sizeof(MPI_Comm));
  return own == comm;
}
/// False if a pending send or receive is certainly not complete. Does not call MPI.
inline bool request_may_be_complete(MPI_Request request) {
  constexpr std::uintptr_t complete = 1;  // 0 or a pointer: pending
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
/// The context of the request's communicator; negative if that is unknown.
inline std::int64_t request_context(MPI_Request request) {
  const MPI_Comm comm = request_comm(request);
  return comm == MPI_COMM_NULL ? -1 : std::int64_t{context_of(comm)};
}

/// Whether every process has entered MPI_Init before any has left it. To be called after MPI_Init; all processes get
/// the same answer.
bool init_waits_for_all();

// Hidden messages, which no receive or probe of the program can match.
//
// In Open MPI they have negative tags. Unlike a private communicator these need no collective set-up: the job may have
// processes without the library, and making a communicator does not wait for another one. Open MPI's own messages have
// the tags -7 and below. In MPICH one communicator carries the hidden messages of all communicators, by different
// tags. It exists if all processes of the job are on one node and have the library, and serves only
// collectives.
enum HiddenTag : int { control_tag = -3, fragment_tag = -4, collective_tag = -5, vote_tag = -6 };
/// To be called by all processes of the job: in MPI_Init, and before MPI_Finalize.
void start_hidden_messages();
void stop_hidden_messages();
/// Whether hidden messages are possible; all processes get the same answer. To be called after MPI_Init. The functions
/// below need them.
bool has_hidden_messages();
#ifdef OPEN_MPI
inline constexpr bool hidden_messages_share_comm = false;
#else
inline constexpr bool hidden_messages_share_comm = true;
#endif
/// The communicator of all hidden messages, with the ranks of MPI_COMM_WORLD; MPI_COMM_NULL if there is none.
MPI_Comm hidden_comm();
/// The tag for a number on that communicator; numbers that are far apart may have the same tag.
int hidden_tag(std::uint64_t number);
/// PMPI_Isend and PMPI_Irecv of a hidden message; the source may be MPI_ANY_SOURCE. They call no error handler.
int hidden_send(const void* data, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request* request);
int hidden_receive(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request* request);

/// Whether MPI makes progress in all probes. On a communicator of one process, those of MPICH make none.
#ifdef OPEN_MPI
inline constexpr bool probes_make_progress = true;
#else
inline constexpr bool probes_make_progress = false;
#endif

}  // namespace gpudt::interpose
