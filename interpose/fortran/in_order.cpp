// The Fortran procedures that are collective over a communicator (calls/in_order.cpp), because those of Open MPI call
// the PMPI_ functions of C. Each passes its arguments on unchanged, once no collective waits on the communicator.
#include <cstddef>

#include "interpose/collectives/call_order.hpp"
#include "interpose/fortran/arguments.hpp"
#include "interpose/fortran/procedure.hpp"
#include "interpose/streams/program_stream.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"

namespace gpudt::interpose::fortran {
namespace {

/// `ierror`, or a variable for it: mpi_f08 passes a null pointer for an absent ierror.
MPI_Fint* present(MPI_Fint* ierror) {
  static MPI_Fint unwanted;
  return ierror == nullptr ? &unwanted : ierror;
}

template <class... Arguments>
void settle_and_call(const char* name, const void* comm, Arguments... arguments) {
  settle_collectives(PMPI_Comm_f2c(*static_cast<const MPI_Fint*>(comm)));
  procedure<void(Arguments...)>(name)(arguments...);
}

/// MPI_Comm_idup while collectives wait on the communicator: MPI gets it after them. The handle is set before the
/// request is complete, as by Open MPI's own procedure.
int idup_in_turn(MPI_Comm comm, MPI_Fint* made, MPI_Request* request) {
  const char* const name = "MPI_Comm_idup";
  return guarded(comm, name, [&] {
    return start_in_order({name, request}, comm, nullptr, [=](const Call& call) {
      MPI_Comm copy = MPI_COMM_NULL;
      const int code = CallBuffers(call.name, {.comm = comm})
                           .run(call, Forms<MPI_Comm, MPI_Comm*>{PMPI_Comm_dup, PMPI_Comm_idup, nullptr}, comm, &copy);
      if (code == MPI_SUCCESS) *made = PMPI_Comm_c2f(copy);
      return code;
    });
  });
}

void idup(void* comm, void* made, void* request, MPI_Fint* ierror) {
  const MPI_Comm original = PMPI_Comm_f2c(*static_cast<const MPI_Fint*>(comm));
  if (!collectives_wait(original)) return settle_and_call("mpi_comm_idup_", comm, comm, made, request, ierror);
  MPI_Request started = MPI_REQUEST_NULL;
  *ierror = idup_in_turn(original, static_cast<MPI_Fint*>(made), &started);
  if (*ierror == MPI_SUCCESS) *static_cast<MPI_Fint*>(request) = PMPI_Request_c2f(started);
}

void in_stream(const void* comm, const void* window, MPI_Fint code) {
  if (code != MPI_SUCCESS) return;
  const auto of = [](const void* handle) { return *static_cast<const MPI_Fint*>(handle); };
  const MPI_Win made = PMPI_Win_f2c(of(window));
  attach_if(MPI_SUCCESS, &made, PMPI_Comm_f2c(of(comm)));
}

}  // namespace
}  // namespace gpudt::interpose::fortran

using gpudt::interpose::fortran::idup;
using gpudt::interpose::fortran::in_stream;
using gpudt::interpose::fortran::present;
using gpudt::interpose::fortran::settle_and_call;

#define GPUDT_LIST(...) __VA_ARGS__
/// Defines the procedure gpudt_<procedure>. `parameters` and `arguments` are bracketed lists without ierror.
#define GPUDT_SETTLING(procedure, comm, parameters, arguments)                   \
  GPUDT_EXPORT void gpudt_##procedure(GPUDT_LIST parameters, MPI_Fint* ierror) { \
    settle_and_call(#procedure, comm, GPUDT_LIST arguments, present(ierror));    \
  }

GPUDT_SETTLING(mpi_comm_dup_, a, (void* a, void* b), (a, b))
GPUDT_SETTLING(mpi_comm_dup_with_info_, a, (void* a, void* b, void* c), (a, b, c))
GPUDT_EXPORT void gpudt_mpi_comm_idup_(void* comm, void* made, void* request, MPI_Fint* ierror) {
  idup(comm, made, request, present(ierror));
}
GPUDT_SETTLING(mpi_comm_idup_with_info_, a, (void* a, void* b, void* c, void* d), (a, b, c, d))
GPUDT_SETTLING(mpi_comm_create_, a, (void* a, void* b, void* c), (a, b, c))
GPUDT_SETTLING(mpi_comm_split_, a, (void* a, void* b, void* c, void* d), (a, b, c, d))
GPUDT_SETTLING(mpi_comm_split_type_, a, (void* a, void* b, void* c, void* d, void* e), (a, b, c, d, e))
GPUDT_SETTLING(mpi_intercomm_create_, a, (void* a, void* b, void* c, void* d, void* e, void* f), (a, b, c, d, e, f))
GPUDT_SETTLING(mpi_cart_create_, a, (void* a, void* b, void* c, void* d, void* e, void* f), (a, b, c, d, e, f))
GPUDT_SETTLING(mpi_cart_sub_, a, (void* a, void* b, void* c), (a, b, c))
GPUDT_SETTLING(mpi_graph_create_, a, (void* a, void* b, void* c, void* d, void* e, void* f), (a, b, c, d, e, f))
GPUDT_SETTLING(mpi_dist_graph_create_, a,
               (void* a, void* b, void* c, void* d, void* e, void* f, void* g, void* h, void* i),
               (a, b, c, d, e, f, g, h, i))
GPUDT_SETTLING(mpi_dist_graph_create_adjacent_, a,
               (void* a, void* b, void* c, void* d, void* e, void* f, void* g, void* h, void* i, void* j),
               (a, b, c, d, e, f, g, h, i, j))
/// The same for a function that makes the window `f` on the communicator `d`.
#define GPUDT_ALLOCATING(procedure)                                                                             \
  GPUDT_EXPORT void gpudt_##procedure(void* a, void* b, void* c, void* d, void* e, void* f, MPI_Fint* ierror) { \
    settle_and_call(#procedure, d, a, b, c, d, e, f, present(ierror));                                          \
    in_stream(d, f, *present(ierror));                                                                          \
  }
GPUDT_ALLOCATING(mpi_win_allocate_)
GPUDT_ALLOCATING(mpi_win_allocate_shared_)
GPUDT_ALLOCATING(mpi_win_allocate_cptr_)
GPUDT_ALLOCATING(mpi_win_allocate_shared_cptr_)

// The lengths of strings follow ierror, by value.
GPUDT_EXPORT void gpudt_mpi_file_open_(void* comm, void* name, void* mode, void* info, void* file, MPI_Fint* ierror,
                                       std::size_t name_length) {
  settle_and_call("mpi_file_open_", comm, comm, name, mode, info, file, present(ierror), name_length);
}
GPUDT_EXPORT void gpudt_mpi_comm_accept_(void* port, void* info, void* root, void* comm, void* made, MPI_Fint* ierror,
                                         std::size_t port_length) {
  settle_and_call("mpi_comm_accept_", comm, port, info, root, comm, made, present(ierror), port_length);
}
GPUDT_EXPORT void gpudt_mpi_comm_connect_(void* port, void* info, void* root, void* comm, void* made, MPI_Fint* ierror,
                                          std::size_t port_length) {
  settle_and_call("mpi_comm_connect_", comm, port, info, root, comm, made, present(ierror), port_length);
}
GPUDT_EXPORT void gpudt_mpi_comm_spawn_(void* command, void* argv, void* processes, void* info, void* root, void* comm,
                                        void* made, void* codes, MPI_Fint* ierror, std::size_t command_length,
                                        std::size_t argv_length) {
  settle_and_call("mpi_comm_spawn_", comm, command, argv, processes, info, root, comm, made, codes, present(ierror),
                  command_length, argv_length);
}
GPUDT_EXPORT void gpudt_mpi_comm_spawn_multiple_(void* count, void* commands, void* argvs, void* processes, void* infos,
                                                 void* root, void* comm, void* made, void* codes, MPI_Fint* ierror,
                                                 std::size_t commands_length, std::size_t argvs_length) {
  settle_and_call("mpi_comm_spawn_multiple_", comm, count, commands, argvs, processes, infos, root, comm, made, codes,
                  present(ierror), commands_length, argvs_length);
}
