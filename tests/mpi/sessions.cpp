// Communicators made of groups of sessions, whose contexts in Open MPI 5 are others in each process.
#include <array>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

/// A session, and the communicator of all its processes.
class SessionComm {
 public:
  SessionComm() {
    MPI_OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session_));
    // On some ranks a further communicator, so that what comes after it has other numbers there.
    if (rank() % 2 == 0) make("mpi://SELF", &extra_);
    make("mpi://WORLD", &all_);
  }
  ~SessionComm() {
    MPI_Comm_free(&all_);
    if (extra_ != MPI_COMM_NULL) MPI_Comm_free(&extra_);
    MPI_Session_finalize(&session_);
  }
  SessionComm(const SessionComm&) = delete;
  SessionComm& operator=(const SessionComm&) = delete;
  operator MPI_Comm() const { return all_; }  // NOLINT(google-explicit-constructor): stands in for the handle

 private:
  void make(const char* set, MPI_Comm* made) {
    MPI_Group group = MPI_GROUP_NULL;
    MPI_OK(MPI_Group_from_session_pset(session_, set, &group));
    MPI_OK(MPI_Comm_create_from_group(group, set, MPI_INFO_NULL, MPI_ERRORS_RETURN, made));
    MPI_Group_free(&group);
  }

  MPI_Session session_ = MPI_SESSION_NULL;
  MPI_Comm all_ = MPI_COMM_NULL, extra_ = MPI_COMM_NULL;
};

}  // namespace

TEST_CASE("device messages on a communicator of a session, probed first", "[peer]") {
  if (!all_have_partners()) return;
  const SessionComm all;
  int tag = 0;
  for (const int bytes : {1024, 5000, 300000})
    for (const int layout : {0, 3}) {
      const Type type = named_layout(layout, bytes);
      ++tag;
      step(type.text());
      INFO(type.text());
      Buffer out(Place::device, type, 1), in(Place::device, type, 1);
      out.fill(key_of(rank(), tag));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Status status{};
      MPI_OK(MPI_Isend(out.address(), 1, type, partner(), tag, all, &request));
      MPI_OK(MPI_Probe(MPI_ANY_SOURCE, tag, all, &status));
      check_status(status, partner(), tag, type, type.size());
      MPI_OK(MPI_Recv(in.address(), 1, type, MPI_ANY_SOURCE, tag, all, &status));
      check_status(status, partner(), tag, type, type.size());
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      in.expect(stream_of(type, 1, key_of(partner(), tag)));
      CHECK(in.difference() == "");
    }
}

TEST_CASE("collectives among GPUs on a communicator of a session", "[peer]") {
  const SessionComm all;
  const Type type = vector(4000, 1, 2);
  Buffer buffer(Place::device, type, 1);
  if (rank() == 0) buffer.fill(key_of(0, 0));
  MPI_OK(MPI_Bcast(buffer.address(), 1, type, 0, all));
  if (rank() != 0) buffer.expect(stream_of(type, 1, key_of(0, 0)));
  CHECK(buffer.difference() == "");
}
