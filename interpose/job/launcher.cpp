#include "interpose/job/launcher.hpp"

#include <mpi.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <sstream>

namespace gpudt::interpose {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The number in the first of these environment variables that is set and not empty; -1 if there is none.
int number_in(std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (const std::string value = variable(name); !value.empty()) return std::atoi(value.c_str());
  return -1;
}

/// When a process began, in clock ticks since the machine booted; empty if that is unknown.
std::string start_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line, word;
  std::getline(file, line);
  // Behind the program's name, which may have spaces in it: the state is the third field, the start the 22nd.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  for (int field = 3; field <= 22; ++field)
    if (!(fields >> word)) return {};
  return word;
}

// Programs may inherit variables of another launcher, from a shell under srun or from another MPI's job. With MPICH,
// PMI_FD shows that MPICH's own launcher, Hydra, has started the process.
#ifdef OPEN_MPI
bool started_by_hydra() {
  return false;
}
constexpr std::initializer_list<const char*> job_names = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"};
constexpr std::initializer_list<const char*> ranks = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
constexpr std::initializer_list<const char*> counts_on_node = {"OMPI_COMM_WORLD_LOCAL_SIZE"};
#else
bool started_by_hydra() {
  return number_in({"PMI_FD"}) >= 0;
}
constexpr std::initializer_list<const char*> job_names = {"PMIX_NAMESPACE"};
constexpr std::initializer_list<const char*> ranks = {"PMIX_RANK", "PMI_RANK"};
constexpr std::initializer_list<const char*> counts_on_node = {};
#endif

/// This process's PID namespace, such as "pid:[4026531836]"; empty if unknown. It is part of the job's name, since
/// processes in different containers may have the same PID.
std::string namespace_of_processes() {
  char name[64] = "";
  return readlink("/proc/self/ns/pid", name, sizeof name - 1) < 0 ? "" : name;
}

/// On each node MPICH's mpirun (Hydra) has a process that starts the job's processes and creates their sockets PMI_FD.
/// Its PID, which the socket tells, and its start time identify the job. It may also have started processes for
/// MPI_Comm_spawn, so these get no name.
std::string job_of_hydra() {
  const int socket = number_in({"PMI_FD"});
  ucred maker{};
  socklen_t size = sizeof maker;
  if (socket < 0 || number_in({"PMI_SPAWNED"}) > 0 || getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &maker, &size) != 0 ||
      maker.pid <= 0)
    return {};
  const std::string start = start_of(maker.pid);
  return start.empty() ? "" : "PMI_FD=" + std::to_string(maker.pid) + ";" + start + ";" + namespace_of_processes();
}

}  // namespace

std::string job_name() {
  if (started_by_hydra()) return job_of_hydra();
  for (const char* const name : job_names)
    if (const std::string value = variable(name); !value.empty())
      // OMPI_MCA_orte_precondition_transports is a random number that mpirun has drawn. Other users do not know it,
      // since they cannot read this process's environment.
      return std::string(name) + "=" + value + ";" + variable("PMIX_SERVER_URI2") + ";" +
             variable("OMPI_MCA_orte_precondition_transports");
  return {};
}

int rank_by_launcher() {
  return started_by_hydra() ? number_in({"PMI_RANK"}) : number_in(ranks);
}

int processes_on_node() {
  return started_by_hydra() ? number_in({"MPI_LOCALNRANKS"}) : number_in(counts_on_node);
}

}  // namespace gpudt::interpose
