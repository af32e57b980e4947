#include "tests/support/mpi_world.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace gpudt::test {

namespace {

#ifdef GPUDT_TEST_SESSIONS

MPI_Session world_session = MPI_SESSION_NULL;
MPI_Comm world_of_session = MPI_COMM_NULL;

void begin_session(bool threads) {
  MPI_Info info = MPI_INFO_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  PMPI_Info_create(&info);
  PMPI_Info_set(info, "thread_level", threads ? "MPI_THREAD_MULTIPLE" : "MPI_THREAD_SINGLE");
  MPI_Session_init(info, MPI_ERRORS_RETURN, &world_session);
  PMPI_Info_free(&info);
  MPI_Group_from_session_pset(world_session, "mpi://WORLD", &group);
  MPI_Comm_create_from_group(group, "gpudt tests", MPI_INFO_NULL, MPI_ERRORS_RETURN, &world_of_session);
  PMPI_Group_free(&group);
}

void end_session() {
  MPI_Comm_free(&world_of_session);
  MPI_Session_finalize(&world_session);
}

#else

const MPI_Comm world_of_session = MPI_COMM_NULL;

void begin_session(bool) {
  std::fputs("this MPI library has no sessions\n", stderr);
  std::exit(5);
}

void end_session() {}

#endif

}  // namespace

bool in_session() {
  return std::getenv("GPUDT_TEST_SESSION") != nullptr;
}

namespace {

/// A receive by which a process decides to look for no RTS that is shorter than an ordinary one
/// (interpose/transport/peer/short_rts.hpp). Over MPICH it does not: there all receives are checked.
void receive_unchecked() {
  constexpr int bytes = 100, tag = 1;
  std::array<char, bytes> out{}, in{};
  MPI_Request request = MPI_REQUEST_NULL;
  int own = 0;
  MPI_Comm_rank(world(), &own);
  MPI_Irecv(in.data(), bytes, MPI_CHAR, own, tag, world(), &request);
  MPI_Send(out.data(), bytes, MPI_CHAR, own, tag, world());
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

}  // namespace

void begin_world(int* argc, char*** argv, bool threads) {
  int provided = 0;
  if (in_session())
    begin_session(threads);
  else if (threads)
    MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
  else
    MPI_Init(argc, argv);
  if (std::getenv("GPUDT_TEST_ORDINARY_RTS") != nullptr) receive_unchecked();
}

MPI_Comm world() {
  return in_session() ? world_of_session : MPI_COMM_WORLD;
}

void end_world() {
  in_session() ? end_session() : static_cast<void>(MPI_Finalize());
}

}  // namespace gpudt::test
