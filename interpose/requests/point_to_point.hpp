// Sends and receives, blocking and nonblocking: what the MPI functions of chapter 3 do with the program's buffers, and
// collectives that go as messages.
#pragma once

#include <mpi.h>

#include <memory>

#include "base/function_ref.hpp"
#include "interpose/requests/arrival.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

/// Whether a process or a tag is one, without wildcards and MPI_PROC_NULL.
bool valid_rank(MPI_Comm comm, int peer);
bool valid_tag(MPI_Comm comm, int tag);
/// True if MPI will accept (peer, tag) for a send on `comm`. Otherwise MPI itself is to report the error, at once, not
/// when the deferred send is issued.
bool valid_target(MPI_Comm comm, int peer, int tag);
/// valid_target() for a receive; wildcards are valid.
bool valid_source(MPI_Comm comm, int peer, int tag);

/// Refuses an operation that is started early (EarlyStart) and cannot wait: MPI is to have its buffer as it is, or
/// GPUDT_CHECK looks at it. False if it is not started early, or can wait as far as is known.
bool refused_early(const BufferPeek& peek);
/// Refuses the operation on this buffer. False if it is not started early.
bool refused_early(const DeviceBuffer& operand);

// --- sends (sends.cpp) -----------------------------------------------------------------------------------------------

/// Whether MPI can have a send as it is, at once: it is in host memory, no RTS has its length, and no send is deferred.
inline bool goes_as_it_is(const BufferPeek& peek) {
  return peek.bytes_on_host >= 0 && !peer::is_plain(peek.bytes_on_host) && !engine_defers();
}

/// Whether MPI must get host memory even if it takes device memory (mpi_takes_device_memory()): the message may be an
/// RTS, or MPI copies it on the host.
template <class Pmpi>
bool needs_host_memory(Pmpi pmpi, int dest, MPI_Comm comm) {
  return is_buffered(pmpi) || peer_exchanges_rts(dest, comm);
}

/// MPI_Send, MPI_Bsend, MPI_Ssend or MPI_Rsend, by `pmpi`.
int send_blocking(BlockingSend pmpi, const char* call, const void* buf, int count, MPI_Datatype type, int dest, int tag,
                  MPI_Comm comm);
/// MPI_Isend or another NonblockingSend, by `pmpi`. `owner`: gets errors; `located`: where `buf` lies, if known.
int send_nonblocking(NonblockingSend pmpi, const char* call, const void* buf, int count, MPI_Datatype type, int dest,
                     int tag, MPI_Comm comm, MPI_Request* request, const ErrorOwner& owner, Located located = {});

// --- receives (receives.cpp) -----------------------------------------------------------------------------------------

/// The program's buffer.
struct ReceiveBuffer {
  void* address;
  int count;
  MPI_Datatype type;
  Located located{};  ///< where it lies, if that is known
};

/// Gives MPI a receive into `into`, which is the program's buffer or memory in its place.
using ReceiveNow = FunctionRef<int(const Outgoing& into, MPI_Status* status)>;
using StartReceive = FunctionRef<int(const Outgoing& into, MPI_Request* request)>;

/// How a blocking receive is given to MPI.
struct BlockingReceive {
  ReceiveNow receive;
  bool sends_first = false;  ///< receive() also sends
};

/// Whether a blocking receive into the buffer is given to MPI as it is.
bool comes_as_it_is(const BufferPeek& peek);
/// To be called after such a receive has returned `code`. Returns what the program's call is to return.
int came_as_it_is(int code, const char* call, const Outgoing& program, const SeenStatus& seen, const ErrorOwner& owner);
/// The most elements that a receive may get: none from MPI_PROC_NULL.
inline int most_from(const Selects& selects, int count) {
  return selects && selects->source == MPI_PROC_NULL ? 0 : count;
}

/// Receives into the program's buffer. Bytes of it beyond the end of the message keep their values.
int receive_blocking(const BlockingReceive& pmpi, const char* call, const ReceiveBuffer& buffer,
                     const ErrorOwner& owner, const Selects& selects, MPI_Status* status);

/// The sender of a receive, as far as it is known.
struct From {
  int source = MPI_ANY_SOURCE;
  MPI_Comm comm = MPI_COMM_NULL;

  /// Whether the message may be an RTS of a process of this node, which is read in host memory.
  bool may_be_rts() const { return peer_exchanges_rts(source, comm); }
};

/// `from`: the sender, also of a hidden or matched message, for which `selects` is empty, since no probe can see it.
/// `room`: the least bytes of staging memory that MPI gets for a receive into device memory.
int receive_nonblocking(StartReceive pmpi, const char* call, const ReceiveBuffer& buffer, const ErrorOwner& owner,
                        const Selects& selects, const From& from, MPI_Request* request, std::int64_t room = rts_room());
/// Starts a receive of `payload`'s as an operation. `on_device`: the program's buffer is in device memory.
int start_receive(StartReceive pmpi, std::shared_ptr<ReceivePayload> payload, const ErrorOwner& owner,
                  const Selects& selects, bool on_device, MPI_Request* request);

// --- of collectives that go as messages (collectives/peer_exchange.hpp) ----------------------------------------------

/// How the hidden messages between two processes are sent (mpi/workarounds.hpp).
struct HiddenWay {
  MPI_Comm comm;
  int peer;  ///< the other process's rank in `comm`
  int tag;
};

/// As MPI_Isend and MPI_Irecv, but unseen by the program's own receives and probes. Errors go to the error handler
/// of `comm`, the program's communicator. `buf` is device memory, `call` the collective's name.
int send_for_collective(const char* call, const void* buf, int count, MPI_Datatype type, const HiddenWay& way,
                        MPI_Comm comm, MPI_Request* request);
int receive_for_collective(const char* call, void* buf, int count, MPI_Datatype type, const HiddenWay& way,
                           MPI_Comm comm, MPI_Request* request);

}  // namespace gpudt::interpose
