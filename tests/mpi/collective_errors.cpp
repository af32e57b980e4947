// Errors in collectives: the class that the same call has on host memory, through the handler of its communicator,
// once; and life goes on afterwards.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/mpi/handler_calls.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

bool is_reduction(const Operation& operation) {
  return operation.flow > Flow::alltoall;
}

bool has_root(const Operation& operation) {
  return operation.flow == Flow::broadcast || operation.flow == Flow::gather || operation.flow == Flow::scatter ||
         operation.flow == Flow::reduce;
}

/// Every process sends, in one type. (Open MPI 4.1 does not look whether types to receive are committed, and crashes.)
bool sends_to_all(const Operation& operation) {
  return (operation.flow == Flow::gather || operation.flow == Flow::allgather || operation.flow == Flow::alltoall) &&
         operation.blocking != Blocking::w;
}

/// The error of a form, wherever it comes up.
int run(const Operation& operation, const Arguments& arguments, Form form) {
  MPI_Request request = MPI_REQUEST_NULL;
  int code = operation.call(arguments, form, &request);
  if (code == MPI_SUCCESS && form == Form::persistent) code = MPI_Start(&request);
  if (code == MPI_SUCCESS && request != MPI_REQUEST_NULL) code = MPI_Wait(&request, MPI_STATUS_IGNORE);
  if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  return code;
}

/// Device buffers and right arguments for any operation among all processes; the result of an error is not looked at.
class Call {
 public:
  Call(const Operation& operation, MPI_Comm comm, int elements)
      : operation_(operation),
        comm_(comm),
        type_(vector(elements, 1, 2, MPI_INT)),
        send_(Place::device, {{0, ranks(), type_}}),
        receive_(Place::device, {{0, ranks(), type_}}) {}

  Arguments arguments(bool on_host) {
    Arguments a;
    a.comm = comm_;
    a.sendbuf = on_host ? send_.reference() : send_.address();
    a.recvbuf = on_host ? receive_.reference() : receive_.address();
    a.sendcount = a.recvcount = 1;
    a.sendtype = a.recvtype = is_reduction(operation_) ? MPI_INT : type_;
    const auto n = static_cast<std::size_t>(ranks());
    a.sendcounts = a.recvcounts = std::vector<int>(n, 1);
    a.sendtypes = a.recvtypes = std::vector<MPI_Datatype>(n, type_);
    for (int i = 0; i < ranks(); ++i) {
      a.sdispls.push_back(operation_.blocking == Blocking::w ? i * static_cast<int>(type_.extent()) : i);
      a.sdispls_bytes.push_back(i * type_.extent());
    }
    a.rdispls = a.sdispls;
    a.rdispls_bytes = a.sdispls_bytes;
    return a;
  }

  int run(const Arguments& arguments, Form form) const { return ::run(operation_, arguments, form); }

  void check_bounds() const {
    CHECK(send_.difference_outside() == "");
    CHECK(receive_.difference_outside() == "");
  }

 private:
  const Operation& operation_;
  MPI_Comm comm_;
  Type type_;
  Region send_, receive_;
};

/// A way to make arguments wrong.
struct Mistake {
  const char* what;
  bool (*concerns)(const Operation&);
  void (*make)(Arguments&);
};

MPI_Datatype uncommitted() {
  static MPI_Datatype type = [] {
    MPI_Datatype made = MPI_DATATYPE_NULL;
    PMPI_Type_vector(2, 1, 2, MPI_INT, &made);
    return made;
  }();
  return type;
}

const Mistake mistakes[] = {
    {"root out of range", has_root, [](Arguments& a) { a.root = ranks(); }},
    {"negative root", has_root, [](Arguments& a) { a.root = -77; }},
    {"negative counts", [](const Operation&) { return true; },
     [](Arguments& a) {
       a.sendcount = a.recvcount = -1;
       a.sendcounts[0] = a.recvcounts[0] = -1;
     }},
    {"no datatype", [](const Operation&) { return true; },
     [](Arguments& a) {
       a.sendtype = a.recvtype = MPI_DATATYPE_NULL;
       a.sendtypes[0] = a.recvtypes[0] = MPI_DATATYPE_NULL;
     }},
    {"uncommitted datatype to send", sends_to_all, [](Arguments& a) { a.sendtype = uncommitted(); }},
    {"no operator", is_reduction, [](Arguments& a) { a.op = MPI_OP_NULL; }},
    {"operator that is not for the type", is_reduction, [](Arguments& a) { a.op = MPI_MAXLOC; }},
};

void check_usable(MPI_Comm comm) {
  Call call(operation("Allgather"), comm, 5);
  MPI_OK(call.run(call.arguments(false), Form::blocking));
}

}  // namespace

TEST_CASE("wrong arguments of collectives", "[collective][errors]") {
  MPICH_CANNOT("its MPI_Reduce crashes with a negative count");
  const Peers peers = Peers::all(), ring = Peers::ring();
  for (const Operation& operation : operations)
    for (const Mistake& mistake : mistakes) {
      if (!mistake.concerns(operation)) continue;
      const MPI_Comm comm = operation.neighbours ? ring.comm() : peers.comm();
      for (const Form form : forms) {
        const std::string text = std::string(operation.name) + " " + form_name(form) + ", " + mistake.what;
        INFO(text);
        step(text);
        HandlerCalls<MPI_Comm> handler(comm);
        Call call(operation, comm, 10);
        Arguments reference = call.arguments(true), arguments = call.arguments(false);
        mistake.make(reference);
        mistake.make(arguments);
        const int wanted = error_class(call.run(reference, Form::reference));
        const std::vector<int> calls_wanted = handler.take();
        CHECK(wanted != MPI_SUCCESS);
        CHECK(error_class(call.run(arguments, form)) == wanted);
        CHECK(handler.take() == calls_wanted);
        call.check_bounds();
      }
    }
  check_usable(peers.comm());
}

namespace {

/// Two processes: more would wait for what the one that has failed does not pass on.
class Couple {
 public:
  Couple() { PMPI_Comm_split(gpudt::test::comm(), rank() / 2, rank(), &comm_); }
  ~Couple() { PMPI_Comm_free(&comm_); }
  Couple(const Couple&) = delete;
  Couple& operator=(const Couple&) = delete;
  MPI_Comm comm() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace

// Blocking: Open MPI 4.1 aborts when a nonblocking collective finds a message too long. In MPI_Alltoallw it tells of
// another error.
TEST_CASE("blocks of collectives that are too long", "[collective][errors]") {
  for (const char* name : {"Gather", "Gatherv", "Scatterv", "Allgatherv", "Alltoallv"}) {
    const Couple couple;
    if (partner() == MPI_PROC_NULL) continue;
    INFO(name);
    step(name);
    HandlerCalls<MPI_Comm> handler(couple.comm());
    const Type type = vector(40, 1, 2, MPI_INT);
    Region send(Place::device, {{0, 8, type}}), receive(Place::device, {{0, 8, type}});
    const bool first = rank() % 2 == 0;
    Arguments a;  // the first process has four elements for the second; all else is single ones
    a.comm = couple.comm();
    a.root = name == std::string("Scatterv") ? 0 : 1;
    a.sendbuf = send.address();
    a.recvbuf = receive.address();
    a.sendtype = a.recvtype = type;
    a.sendcount = first ? 4 : 1;
    a.recvcount = 1;
    a.sendcounts = {1, first ? 4 : 1};
    a.recvcounts = {first && name == std::string("Allgatherv") ? 4 : 1, 1};
    a.sdispls = a.rdispls = {0, 4};
    const int code = run(operation(name), a, Form::blocking);
    if (first) continue;
    CHECK(error_class(code) == MPI_ERR_TRUNCATE);
    CHECK(handler.take() == std::vector<int>{MPI_ERR_TRUNCATE});
    CHECK(receive.difference_outside() == "");
  }
  const Peers peers = Peers::all();
  check_usable(peers.comm());
}

// Blocking for the same reason.
TEST_CASE("messages of collectives that are too long", "[collective][errors]") {
  for (const char* name : {"Bcast", "Scatter", "Allgather", "Alltoall"}) {
    const Couple couple;  // of its own: what remains of a failed collective might meet the next one
    if (partner() == MPI_PROC_NULL) continue;
    INFO(name);
    step(name);
    HandlerCalls<MPI_Comm> handler(couple.comm());
    const bool root = rank() % 2 == 0;
    const Type type = vector(40, 1, 2, MPI_INT);
    Region send(Place::device, {{0, 8, type}}), receive(Place::device, {{0, 2, type}});
    Arguments a;
    a.comm = couple.comm();
    a.sendbuf = send.address();
    a.sendcount = 4;
    a.sendtype = a.recvtype = type;
    a.recvbuf = root ? send.address() : receive.address();
    a.recvcount = root && name == std::string("Bcast") ? 4 : 1;
    if (root && name == std::string("Scatter")) a.recvbuf = MPI_IN_PLACE;
    const int code = run(operation(name), a, Form::blocking);
    if (root) continue;
    CHECK(error_class(code) == MPI_ERR_TRUNCATE);
    CHECK(handler.take() == std::vector<int>{MPI_ERR_TRUNCATE});
    CHECK(receive.difference_outside() == "");
  }
  const Peers peers = Peers::all();
  check_usable(peers.comm());
}

// To be run with a small GPUDT_STAGING_LIMIT.
TEST_CASE("no staging memory for collectives", "[.][staging-limit]") {
  constexpr int elements = 1 << 14;  // 64 KiB
  const Peers peers = Peers::all(), ring = Peers::ring();
  for (const Operation& operation : operations)
    for (const Form form : forms) {
      const std::string text = std::string(operation.name) + " " + form_name(form);
      INFO(text);
      step(text);
      const MPI_Comm comm = operation.neighbours ? ring.comm() : peers.comm();
      HandlerCalls<MPI_Comm> handler(comm);
      Call call(operation, comm, elements);
      Arguments a = call.arguments(false);
      if (is_reduction(operation)) {
        a.recvcount = elements;
        a.recvcounts.assign(static_cast<std::size_t>(ranks()), elements);
        if (operation.flow == Flow::reduce_scatter) a.sendbuf = MPI_IN_PLACE;
      }
      MPI_FAILS(call.run(a, form), MPI_ERR_NO_MEM);
      CHECK(handler.take() == std::vector<int>{MPI_ERR_NO_MEM});
      check_usable(peers.comm());
    }
}
