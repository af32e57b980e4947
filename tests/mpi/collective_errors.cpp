// Errors in collectives: the class that the same call has on host memory, through the handler of its communicator,
// once; and life goes on afterwards.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/mpi/handler_calls.hpp"
#include "tests/mpi/pending_sums.hpp"
#include "tests/mpi/region.hpp"
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
    // Open MPI 4.1 crashes in others.
    {"no communicator", has_root, [](Arguments& a) { a.comm = MPI_COMM_NULL; }},
    {"no operator", is_reduction, [](Arguments& a) { a.op = MPI_OP_NULL; }},
    {"operator that is not for the type", is_reduction, [](Arguments& a) { a.op = MPI_MAXLOC; }},
};

/// Whose handler hears of errors in calls on `comm`.
MPI_Comm handled_by(MPI_Comm comm) {
  return comm == MPI_COMM_NULL ? MPI_COMM_WORLD : comm;
}

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
        Call call(operation, comm, 10);
        Arguments reference = call.arguments(true), arguments = call.arguments(false);
        mistake.make(reference);
        mistake.make(arguments);
        HandlerCalls<MPI_Comm> handler(handled_by(arguments.comm));
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

/// All processes fail if MPI refuses the buffer, so that none waits for another.
bool fails_everywhere(const Operation& operation) {
  return !has_root(operation) && operation.flow != Flow::allgather;
}

void check_alias(const Operation& operation, Form form, MPI_Comm comm) {
  Call call(operation, comm, 10);
  const auto with_one_buffer = [&](bool on_host) {
    Arguments a = call.arguments(on_host);
    a.recvbuf = const_cast<void*>(a.sendbuf);
    if (is_reduction(operation)) a.sendcount = a.recvcount = 3;  // Open MPI lets one element pass
    return a;
  };
  HandlerCalls<MPI_Comm> handler(comm);
  const int wanted = error_class(call.run(with_one_buffer(true), form));
  const std::vector<int> calls_wanted = handler.take();
  CHECK(error_class(call.run(with_one_buffer(false), form)) == wanted);
  CHECK(handler.take() == calls_wanted);
  if (wanted != MPI_SUCCESS) call.check_bounds();  // else results are where the call's inputs were
}

}  // namespace

TEST_CASE("one buffer to send from and to receive into", "[collective][errors]") {
  MPI_Comm alone = MPI_COMM_NULL;
  PMPI_Comm_dup(MPI_COMM_SELF, &alone);
  const Peers peers = Peers::all();
  for (const Operation& operation : operations)
    for (const Form form : forms) {
      // With other arrays for what is received, MPICH does not refuse it, and ends.
      const bool ends = mpich && operation.flow == Flow::alltoall && operation.blocking != Blocking::equal;
      if (operation.neighbours || operation.flow == Flow::broadcast || ends) continue;
      const std::string text = std::string(operation.name) + " " + form_name(form);
      INFO(text);
      step(text);
      check_alias(operation, form, alone);
      if (fails_everywhere(operation)) check_alias(operation, form, peers.comm());
    }
  check_usable(peers.comm());
  PMPI_Comm_free(&alone);
}

// Within a group that would be the own block in the other buffer, which MPI may refuse.
TEST_CASE("between groups a block is sent from where one of its rank is received", "[collective][intercomm]") {
  constexpr int block = 1024;
  for (int first = 1; first < ranks(); ++first) {
    const Peers peers = Peers::intercommunicator(first);
    int place = 0, others = 0;
    PMPI_Comm_rank(peers.comm(), &place);
    PMPI_Comm_remote_size(peers.comm(), &others);
    const int from = block * std::max(place, others);
    Region memory(Place::device, {{0, from + block, MPI_INT}});
    auto* const in = static_cast<int*>(memory.address());
    auto* const wanted = static_cast<int*>(memory.reference());
    std::vector<int> counts(static_cast<std::size_t>(others), block), displs(counts.size());
    for (std::size_t i = 0; i < displs.size(); ++i) displs[i] = static_cast<int>(i) * block;
    step("groups of " + std::to_string(first) + " and others");
    memory.fill(key_of(rank(), first));
    MPI_OK(PMPI_Allgather(wanted + from, block, MPI_INT, wanted, block, MPI_INT, peers.comm()));
    MPI_OK(MPI_Allgather(in + from, block, MPI_INT, in, block, MPI_INT, peers.comm()));
    CHECK(memory.difference() == "");
    memory.fill(key_of(rank(), -first));
    MPI_OK(PMPI_Allgatherv(wanted + from, block, MPI_INT, wanted, counts.data(), displs.data(), MPI_INT, peers.comm()));
    MPI_OK(MPI_Allgatherv(in + from, block, MPI_INT, in, counts.data(), displs.data(), MPI_INT, peers.comm()));
    CHECK(memory.difference() == "");
  }
}

namespace {

/// Two processes: more would wait for what the one that has failed does not pass on. The second one is sent too much.
class Couple {
 public:
  Couple() {
    PMPI_Comm_split(gpudt::test::comm(), rank() / 2, rank(), &comm_);
    PMPI_Comm_dup(comm_, &order_);
    if (partner() == MPI_PROC_NULL) return;
    const int other = 1 - rank() % 2;
    PMPI_Dist_graph_create_adjacent(comm_, 1, &other, MPI_UNWEIGHTED, 1, &other, MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                    &neighbours_);
  }
  ~Couple() {
    for (MPI_Comm* const comm : {&comm_, &order_, &neighbours_})
      if (*comm != MPI_COMM_NULL) PMPI_Comm_free(comm);
  }
  Couple(const Couple&) = delete;
  Couple& operator=(const Couple&) = delete;
  bool first() const { return rank() % 2 == 0; }
  /// For this operation.
  MPI_Comm comm(const Operation& operation) const { return operation.neighbours ? neighbours_ : comm_; }
  void meet() const { PMPI_Barrier(order_); }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL, order_ = MPI_COMM_NULL, neighbours_ = MPI_COMM_NULL;
};

/// Whether MPI reports MPI_ERR_TRUNCATE on host memory when a message of the operation is too long. Open MPI 4.1
/// reports MPI_ERR_IN_STATUS where a blocking operation waits for several requests at once, and hangs in
/// MPI_Neighbor_alltoall. MPICH 4.0 reports it in blocking operations among all processes alone; others succeed, or
/// give MPI_ERR_OTHER.
bool is_reported(const Operation& operation, Form form) {
  const bool blocking = form == Form::blocking;
  if (mpich) return blocking && !operation.neighbours;
  if (operation.name == std::string("Neighbor_alltoall")) return false;
  return !blocking || !(operation.neighbours || operation.blocking == Blocking::w);
}

/// The second process has posted its receives before the first sends: Open MPI 4.1 tells of another error if it finds
/// the message there already.
int run_in_order(const Operation& operation, const Arguments& arguments, Form form, const Couple& couple) {
  if (form == Form::blocking) return run(operation, arguments, form);
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_SUCCESS;
  if (form == Form::persistent) code = operation.call(arguments, form, &request);  // not local: MPI-4.1 section 6.13
  if (couple.first()) couple.meet();
  if (form != Form::persistent)
    code = operation.call(arguments, form, &request);
  else if (code == MPI_SUCCESS)
    code = MPI_Start(&request);
  if (!couple.first()) couple.meet();
  if (code == MPI_SUCCESS) code = MPI_Wait(&request, MPI_STATUS_IGNORE);
  if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  return code;
}

/// The first process has four elements for the second; all else is single ones, or as long.
Arguments too_much(const Operation& operation, const Couple& couple, const Type& type, const Region& send,
                   const Region& receive) {
  const int amount = couple.first() ? 4 : 1;
  Arguments a;
  a.comm = couple.comm(operation);
  a.root = operation.flow == Flow::gather ? 1 : 0;
  a.sendbuf = send.address();
  a.recvbuf = receive.address();
  a.sendtype = a.recvtype = type;
  a.sendcount = amount;
  a.recvcount = operation.neighbours || operation.blocking != Blocking::equal ? 1 : amount;
  a.sendcounts = operation.neighbours ? std::vector<int>{amount} : std::vector<int>{1, amount};
  a.recvcounts = {operation.flow == Flow::allgather && !operation.neighbours ? amount : 1, 1};
  a.sdispls = a.rdispls = {0, operation.blocking == Blocking::w ? 4 * static_cast<int>(type.extent()) : 4};
  a.sdispls_bytes = a.rdispls_bytes = {0, 4 * type.extent()};
  a.sendtypes = a.recvtypes = {type, type};
  return a;
}

}  // namespace

TEST_CASE("messages of collectives that are too long", "[collective][errors]") {
  MPICH5_CANNOT("it ends the program");
  if (host_only()) return_errors(MPI_COMM_WORLD);
  const bool offered = by_gpus();
  for (const Operation& operation : operations)
    for (const Form form : forms) {
      if (is_reduction(operation) || !is_reported(operation, form)) continue;
      const Couple couple;  // of its own: what remains of a failed collective might meet the next one
      if (partner() == MPI_PROC_NULL) continue;
      const std::string text = std::string(operation.name) + " " + form_name(form);
      INFO(text);
      step(text);
      HandlerCalls<MPI_Comm> handler(couple.comm(operation));
      const Type type = vector(40, 1, 2, MPI_INT);
      Region send(Place::device, {{0, 8, type}}), receive(Place::device, {{0, 8, type}});
      const Arguments a = too_much(operation, couple, type, send, receive);
      const int code = run_in_order(operation, a, form, couple);
      if (couple.first()) continue;
      // Once GPUs cannot do the call MPI gets it late, in all processes at a time, so that the message may come before
      // its receive.
      const bool late = offered && form != Form::blocking && error_class(code) == MPI_ERR_OTHER;
      const int expected = late ? MPI_ERR_OTHER : MPI_ERR_TRUNCATE;
      CHECK(error_class(code) == expected);
      // It takes the errors of requests on host memory to MPI_COMM_WORLD's handler.
      if (form == Form::blocking || !host_only()) CHECK(handler.take() == std::vector<int>{expected});
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
      const bool in_place = operation.flow == Flow::reduce_scatter;
      if (is_reduction(operation) && form != Form::persistent && !in_place) continue;  // GPUs need none
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
        if (in_place) a.sendbuf = MPI_IN_PLACE;
      }
      MPI_FAILS(call.run(a, form), MPI_ERR_NO_MEM);
      CHECK(handler.take() == std::vector<int>{MPI_ERR_NO_MEM});
      check_usable(peers.comm());
    }
}
