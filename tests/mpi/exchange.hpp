// Ways to send and to receive one message, as tables that tests run through.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/mpi_harness.hpp"
#include "tests/support/mpi_quirks.hpp"

namespace gpudt::test {

/// The arguments of a send or a receive.
struct Message {
  void* buffer;
  int count;
  MPI_Datatype type;
  int peer;
  int tag;
  MPI_Comm comm;
};

struct SendMode {
  const char* name;
  bool needs_posted_receive;  ///< the ready modes
  int (*send)(const Message&);
};

struct ReceiveMode {
  const char* name;
  bool nonblocking;  ///< can be posted before the send: `start` then MPI_Wait
  int (*start)(const Message&, MPI_Request*);
  int (*receive)(const Message&, MPI_Status*);
};

extern const std::vector<SendMode> send_modes;
extern const std::vector<ReceiveMode> receive_modes;

/// Memory for the buffered modes, attached for its own lifetime.
class BsendBuffer {
 public:
  explicit BsendBuffer(std::size_t bytes) : bytes_(bytes + 64 * MPI_BSEND_OVERHEAD) {
    PMPI_Buffer_attach(bytes_.data(), static_cast<int>(bytes_.size()));
  }
  ~BsendBuffer() {
    void* address = nullptr;
    int size = 0;
    PMPI_Buffer_detach(&address, &size);
  }
  BsendBuffer(const BsendBuffer&) = delete;
  BsendBuffer& operator=(const BsendBuffer&) = delete;

 private:
  std::vector<char> bytes_;
};

/// What the two ends of a message are.
struct Ends {
  const Type& send_type;
  int send_count;
  Place send_place;
  const Type& receive_type;
  int receive_count;
  Place receive_place;
  std::size_t skew = 0;  ///< of the sender's buffer; the receiver's is the other way round

  std::string text() const;
};

/// One message from `from` to `to` (ranks in comm()), verified in every byte, with its status. Other ranks return
/// at once.
void exchange(const SendMode& mode, const ReceiveMode& receive_mode, const Ends& ends, int from, int to, int tag);

/// Standard mode, blocking, both ways between partners.
void exchange_both_ways(const Ends& ends, int tag);

/// Which side of a message comes first.
enum class First { either, receiver };

/// Messages of ever new data, from one memory of the first of each pair to one of the second. `done(sent)` in the first
/// process ends them. With First::receiver that process sends when the other one calls the receive.
void send_again(const Ends& ends, const ReceiveMode& mode, int tag, const std::function<bool(int)>& done,
                First first = First::either);

/// Of device messages: longer than what is sent though nobody receives it, where each message is offered. Open MPI
/// writes long ones that are not beyond the end of the receive buffer.
Type not_sent_before_received();

/// The status of a message of `bytes` bytes in elements of `type`.
void check_status(const MPI_Status& status, int source, int tag, const Type& type, std::int64_t bytes);

}  // namespace gpudt::test
