#include "interpose/support/sessions.hpp"

#include <atomic>
#include <string>

namespace gpudt::interpose {

#if defined(GPUDT_MPI_SESSIONS)

namespace {

std::atomic<bool> alone{false};
MPI_Session own = MPI_SESSION_NULL;

}  // namespace

bool sessions_alone() {
  return alone.load(std::memory_order_relaxed);
}

int enter_sessions() {
  const int code = PMPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &own);
  alone.store(code == MPI_SUCCESS);
  return code;
}

void enter_world() {
  alone.store(false);
}

void leave_sessions() {
  alone.store(false);
  if (own != MPI_SESSION_NULL) PMPI_Session_finalize(&own);
  own = MPI_SESSION_NULL;
}

MPI_Comm self_of_session(int tag) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  PMPI_Group_from_session_pset(own, "mpi://SELF", &group);
  PMPI_Comm_create_from_group(group, ("gpudt " + std::to_string(tag)).c_str(), MPI_INFO_NULL, MPI_ERRORS_RETURN, &made);
  PMPI_Group_free(&group);
  return made;
}

#else

bool sessions_alone() {
  return false;
}
int enter_sessions() {
  return MPI_ERR_OTHER;
}
void enter_world() {}
void leave_sessions() {}
MPI_Comm self_of_session(int) {
  return MPI_COMM_NULL;
}

#endif

}  // namespace gpudt::interpose
