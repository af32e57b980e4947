// The table of collective operations.
#include "tests/mpi/collective_calls.hpp"

#include <stdexcept>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/support/derived_type.hpp"
#include "tests/support/mpi_quirks.hpp"

#if defined(GPUDT_MPI_PERSISTENT_COLLECTIVES)
#define INIT_OF(name) MPI_##name##_init
#elif defined(GPUDT_MPIX_PERSISTENT_COLLECTIVES)
#include <mpi-ext.h>
#define INIT_OF(name) MPIX_##name##_init
#endif

namespace gpudt::test {
namespace {

#if defined(INIT_OF)
#define IF_PERSISTENT(call) return call
#else
#define IF_PERSISTENT(call) throw std::logic_error("this MPI has no persistent collectives")
#endif

#define LIST(...) __VA_ARGS__
// An operation whose arguments, from Arguments `a`, are a bracketed list.
#define OPERATION(name, iname, flow, blocking, neighbours, arguments)                             \
  Operation {                                                                                     \
#name, flow, blocking, neighbours, [](const Arguments& a, Form form, MPI_Request* request) {    \
      switch (form) {                                                                             \
        case Form::reference:                                                                     \
          return PMPI_##name(LIST arguments);                                                     \
        case Form::nonblocking:                                                                   \
          return MPI_##iname(LIST arguments, request);                                            \
        case Form::persistent:                                                                    \
          IF_PERSISTENT(INIT_OF(name)(LIST arguments, MPI_INFO_NULL, request));                   \
        default:                                                                                  \
          return MPI_##name(LIST arguments);                                                      \
      }                                                                                           \
    } \
  }

#define SEND a.sendbuf, a.sendcount, a.sendtype
#define SEND_V a.sendbuf, a.sendcounts.data(), a.sdispls.data(), a.sendtype
#define RECEIVE a.recvbuf, a.recvcount, a.recvtype
#define RECEIVE_V a.recvbuf, a.recvcounts.data(), a.rdispls.data(), a.recvtype
#define EXCHANGE_W                                                                                      \
  a.sendbuf, a.sendcounts.data(), a.sdispls.data(), a.sendtypes.data(), a.recvbuf, a.recvcounts.data(), \
      a.rdispls.data(), a.recvtypes.data(), a.comm
#define NEIGHBOR_EXCHANGE_W                                                                                   \
  a.sendbuf, a.sendcounts.data(), a.sdispls_bytes.data(), a.sendtypes.data(), a.recvbuf, a.recvcounts.data(), \
      a.rdispls_bytes.data(), a.recvtypes.data(), a.comm
#define REDUCE a.sendbuf, a.recvbuf, a.recvcount, a.recvtype, a.op

}  // namespace

const std::vector<Operation> operations = {
    OPERATION(Bcast, Ibcast, Flow::broadcast, Blocking::equal, false, (RECEIVE, a.root, a.comm)),
    OPERATION(Gather, Igather, Flow::gather, Blocking::equal, false, (SEND, RECEIVE, a.root, a.comm)),
    OPERATION(Gatherv, Igatherv, Flow::gather, Blocking::v, false, (SEND, RECEIVE_V, a.root, a.comm)),
    OPERATION(Scatter, Iscatter, Flow::scatter, Blocking::equal, false, (SEND, RECEIVE, a.root, a.comm)),
    OPERATION(Scatterv, Iscatterv, Flow::scatter, Blocking::v, false, (SEND_V, RECEIVE, a.root, a.comm)),
    OPERATION(Allgather, Iallgather, Flow::allgather, Blocking::equal, false, (SEND, RECEIVE, a.comm)),
    OPERATION(Allgatherv, Iallgatherv, Flow::allgather, Blocking::v, false, (SEND, RECEIVE_V, a.comm)),
    OPERATION(Alltoall, Ialltoall, Flow::alltoall, Blocking::equal, false, (SEND, RECEIVE, a.comm)),
    OPERATION(Alltoallv, Ialltoallv, Flow::alltoall, Blocking::v, false, (SEND_V, RECEIVE_V, a.comm)),
    OPERATION(Alltoallw, Ialltoallw, Flow::alltoall, Blocking::w, false, (EXCHANGE_W)),
    OPERATION(Neighbor_allgather, Ineighbor_allgather, Flow::allgather, Blocking::equal, true, (SEND, RECEIVE, a.comm)),
    OPERATION(Neighbor_allgatherv, Ineighbor_allgatherv, Flow::allgather, Blocking::v, true, (SEND, RECEIVE_V, a.comm)),
    OPERATION(Neighbor_alltoall, Ineighbor_alltoall, Flow::alltoall, Blocking::equal, true, (SEND, RECEIVE, a.comm)),
    OPERATION(Neighbor_alltoallv, Ineighbor_alltoallv, Flow::alltoall, Blocking::v, true, (SEND_V, RECEIVE_V, a.comm)),
    OPERATION(Neighbor_alltoallw, Ineighbor_alltoallw, Flow::alltoall, Blocking::w, true, (NEIGHBOR_EXCHANGE_W)),
    OPERATION(Reduce, Ireduce, Flow::reduce, Blocking::equal, false, (REDUCE, a.root, a.comm)),
    OPERATION(Allreduce, Iallreduce, Flow::allreduce, Blocking::equal, false, (REDUCE, a.comm)),
    OPERATION(Reduce_scatter_block, Ireduce_scatter_block, Flow::reduce_scatter, Blocking::equal, false,
              (REDUCE, a.comm)),
    OPERATION(Reduce_scatter, Ireduce_scatter, Flow::reduce_scatter, Blocking::v, false,
              (a.sendbuf, a.recvbuf, a.recvcounts.data(), a.recvtype, a.op, a.comm)),
    OPERATION(Scan, Iscan, Flow::scan, Blocking::equal, false, (REDUCE, a.comm)),
    OPERATION(Exscan, Iexscan, Flow::scan, Blocking::equal, false, (REDUCE, a.comm)),
};

const std::vector<Form> forms = {
    Form::blocking,
    Form::nonblocking,
#if defined(INIT_OF)
    Form::persistent,
#endif
};

std::vector<Form> forms_of(const Operation& operation, bool between) {
  // MPICH 4.0 damages data between groups in several forms that do not block, and in some that are persistent.
  if (mpich && between) return {Form::blocking};
  const bool damaged =
      operation.flow == Flow::gather || operation.flow == Flow::scatter || operation.flow == Flow::allgather;
  if (mpich && damaged) return {Form::blocking, Form::nonblocking};
  return forms;
}

const char* form_name(Form form) {
  constexpr const char* names[] = {"reference", "blocking", "nonblocking", "persistent"};
  return names[static_cast<int>(form)];
}

const Operation& operation(std::string_view name) {
  for (const Operation& entry : operations)
    if (entry.name == name) return entry;
  throw std::logic_error("no operation " + std::string(name));
}

Started::Started(const Operation& operation, Arguments arguments, Form form) : arguments_(std::move(arguments)) {
  const auto duplicate = [&](MPI_Datatype& type) {
    if (!is_derived(type)) return;  // not to be freed
    PMPI_Type_dup(MPI_Datatype(type), &type);
    duplicates_.push_back(type);
  };
  duplicate(arguments_.sendtype);
  duplicate(arguments_.recvtype);
  for (MPI_Datatype& type : arguments_.sendtypes) duplicate(type);
  for (MPI_Datatype& type : arguments_.recvtypes) duplicate(type);
  code = operation.call(arguments_, form, &request);
  if (form != Form::persistent) free_types();
}

Started::~Started() {
  free_types();
}

void Started::free_types() {
  for (MPI_Datatype& type : duplicates_) MPI_Type_free(&type);
  duplicates_.clear();
}

void perform(const Operation& operation, Form form, const Arguments& arguments, const std::function<int()>& refer,
             const Region& send, const Region& receive, const std::function<void(int round)>& fill) {
  const auto expect = [&](int round) {
    fill(round);
    MPI_OK(refer());
  };
  const auto check = [&] {
    CHECK(send.difference() == "");
    CHECK(receive.difference() == "");
  };
  expect(0);
  if (form == Form::blocking) {
    MPI_OK(operation.call(arguments, form, nullptr));
    return check();
  }
  Started started(operation, arguments, form);
  MPI_OK(started.code);
  if (form == Form::persistent) MPI_OK(MPI_Start(&started.request));
  MPI_OK(MPI_Wait(&started.request, MPI_STATUS_IGNORE));
  check();
  CHECK((started.request == MPI_REQUEST_NULL) == (form != Form::persistent));
  if (form != Form::persistent) return;
  expect(1);
  MPI_OK(MPI_Startall(1, &started.request));
  MPI_OK(MPI_Waitall(1, &started.request, MPI_STATUSES_IGNORE));
  check();
  MPI_OK(MPI_Request_free(&started.request));
}

}  // namespace gpudt::test
