// Arguments that MPI refuses: reported once, through the error handler of the communicator.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/exchange.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

/// Arguments of which one is wrong.
struct Wrong {
  const char* what;
  int count, peer, tag;
  MPI_Datatype type;
  int error_class;
};

/// Open MPI 4.1 does not look whether the type is committed in these calls, and crashes.
bool crashes_open_mpi(const std::string& name, const Wrong& wrong) {
  return wrong.type != MPI_DATATYPE_NULL && wrong.error_class == MPI_ERR_TYPE &&
         (name == "Bsend_init" || name == "Ssend_init" || name == "Rsend_init");
}

template <class Call>
void check_each_wrong(const char* name, ErrorComm& errors, const std::vector<Wrong>& list, Call&& call) {
  for (const Wrong& wrong : list) {
    if (crashes_open_mpi(name, wrong)) continue;
    INFO(name << " with a wrong " << wrong.what);
    step(std::string(name) + " with a wrong " + wrong.what);
    MPI_FAILS(call(wrong), wrong.error_class);
    errors.check_called(wrong.error_class);
  }
}

}  // namespace

TEST_CASE("wrong arguments are reported through the communicator's handler", "[errors]") {
  MPI_Datatype raw = MPI_DATATYPE_NULL;
  PMPI_Type_vector(10, 1, 2, MPI_INT, &raw);
  const Type type = vector(10, 1, 2, MPI_INT);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    ErrorComm errors(true);
    Buffer buffer(place, type, 2), other(place, type, 2);
    void* const address = buffer.address();
    const int me = rank();
    const std::vector<Wrong> list = {
        {"rank", 1, ranks() + 7, 1, type, MPI_ERR_RANK},
        {"tag", 1, me, -77, type, MPI_ERR_TAG},
        {"count", -1, me, 1, type, MPI_ERR_COUNT},
        {"type (null)", 1, me, 1, MPI_DATATYPE_NULL, MPI_ERR_TYPE},
        {"type (not committed)", 1, me, 1, raw, MPI_ERR_TYPE},
    };
    MPI_Request request = MPI_REQUEST_NULL;
    using Blocking = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm);
    using Nonblocking = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);
    const std::pair<const char*, Blocking> blocking[] = {
        {"Send", MPI_Send}, {"Bsend", MPI_Bsend}, {"Ssend", MPI_Ssend}, {"Rsend", MPI_Rsend}};
    const std::pair<const char*, Nonblocking> nonblocking[] = {
        {"Isend", MPI_Isend},           {"Ibsend", MPI_Ibsend},        {"Issend", MPI_Issend},
        {"Irsend", MPI_Irsend},         {"Send_init", MPI_Send_init},  {"Bsend_init", MPI_Bsend_init},
        {"Ssend_init", MPI_Ssend_init}, {"Rsend_init", MPI_Rsend_init}};
    for (const auto& [name, call] : blocking)
      check_each_wrong(name, errors, list, [&, call = call](const Wrong& w) {
        return call(address, w.count, w.type, w.peer, w.tag, errors);
      });
    for (const auto& [name, call] : nonblocking)
      check_each_wrong(name, errors, list, [&, call = call](const Wrong& w) {
        return call(address, w.count, w.type, w.peer, w.tag, errors, &request);
      });
    check_each_wrong("Recv", errors, list, [&](const Wrong& w) {
      return MPI_Recv(address, w.count, w.type, w.peer, w.tag, errors, MPI_STATUS_IGNORE);
    });
    check_each_wrong("Irecv", errors, list, [&](const Wrong& w) {
      return MPI_Irecv(address, w.count, w.type, w.peer, w.tag, errors, &request);
    });
    check_each_wrong("Recv_init", errors, list, [&](const Wrong& w) {
      return MPI_Recv_init(address, w.count, w.type, w.peer, w.tag, errors, &request);
    });
    check_each_wrong("Sendrecv's sending half", errors, list, [&](const Wrong& w) {
      return MPI_Sendrecv(address, w.count, w.type, w.peer, w.tag, other.address(), 1, type, MPI_PROC_NULL, 1, errors,
                          MPI_STATUS_IGNORE);
    });
    check_each_wrong("Sendrecv_replace", errors, list, [&](const Wrong& w) {
      return MPI_Sendrecv_replace(address, w.count, w.type, w.peer, w.tag, w.peer, w.tag < 0 ? w.tag : 1, errors,
                                  MPI_STATUS_IGNORE);
    });
    CHECK(buffer.difference() == "");
    CHECK(other.difference() == "");
  }
  PMPI_Type_free(&raw);
  exchange_both_ways({type, 2, Place::device, type, 2, Place::device}, 60);
}

TEST_CASE("probes with wrong arguments", "[errors]") {
  ErrorComm errors(true);
  const std::vector<Wrong> list = {{"rank", 0, ranks() + 7, 1, MPI_BYTE, MPI_ERR_RANK},
                                   {"tag", 0, rank(), -77, MPI_BYTE, MPI_ERR_TAG}};
  int flag = 1;  // as an earlier probe may have left it
  MPI_Status status{};
  MPI_Message message = MPI_MESSAGE_NULL;
  check_each_wrong("Probe", errors, list, [&](const Wrong& w) { return MPI_Probe(w.peer, w.tag, errors, &status); });
  check_each_wrong("Iprobe", errors, list,
                   [&](const Wrong& w) { return MPI_Iprobe(w.peer, w.tag, errors, &flag, &status); });
  check_each_wrong("Mprobe", errors, list,
                   [&](const Wrong& w) { return MPI_Mprobe(w.peer, w.tag, errors, &message, &status); });
  check_each_wrong("Improbe", errors, list,
                   [&](const Wrong& w) { return MPI_Improbe(w.peer, w.tag, errors, &flag, &message, &status); });
  CHECK(message == MPI_MESSAGE_NULL);
}

TEST_CASE("null pointers for what a call is to tell", "[errors]") {
  if (!mpich) return not_possible("Open MPI crashes, without gpudt, too");
  ErrorComm errors(true);
  MPI_Status* const no_status = nullptr;
  int flag = 0;
  MPI_FAILS(MPI_Iprobe(rank(), 1, errors, nullptr, MPI_STATUS_IGNORE), MPI_ERR_ARG);
  errors.check_called(MPI_ERR_ARG);
  MPI_FAILS(MPI_Comm_dup(errors, nullptr), MPI_ERR_ARG);
  errors.check_called(MPI_ERR_ARG);
  MPI_FAILS(MPI_Iprobe(rank(), 1, errors, &flag, no_status), MPI_ERR_ARG);
  errors.check_called(MPI_ERR_ARG);
  MPI_FAILS(MPI_Recv(&flag, 1, MPI_INT, rank(), 1, errors, no_status), MPI_ERR_ARG);
  errors.check_called(MPI_ERR_ARG);
}

TEST_CASE("a communicator that cannot be made", "[errors]") {
  ErrorComm errors(true);
  MPI_Comm made;
  std::memset(&made, 0x55, sizeof made);  // as a variable that has not been set
  const int too_many = ranks() + 1, periodic = 0;
  CHECK(failure_class(MPI_Cart_create(errors, 1, &too_many, &periodic, 0, &made), MPI_ERR_DIMS) != MPI_SUCCESS);
  errors.check_called(MPI_ERR_DIMS, MPI_ERR_ARG);
}

// Long enough to go in fragments, to other nodes.
TEST_CASE("long messages with wrong arguments", "[errors]") {
  const Type type = vector(1 << 18, 1, 2);
  ErrorComm errors(true);
  Buffer buffer(Place::device, type, 1);
  MPI_Request request = MPI_REQUEST_NULL;
  const std::vector<Wrong> list = {{"rank", 1, ranks() + 7, 1, type, MPI_ERR_RANK},
                                   {"tag", 1, rank(), -77, type, MPI_ERR_TAG}};
  check_each_wrong("Send", errors, list,
                   [&](const Wrong& w) { return MPI_Send(buffer.address(), w.count, w.type, w.peer, w.tag, errors); });
  check_each_wrong("Isend", errors, list, [&](const Wrong& w) {
    return MPI_Isend(buffer.address(), w.count, w.type, w.peer, w.tag, errors, &request);
  });
  check_each_wrong("Sendrecv", errors, list, [&](const Wrong& w) {
    return MPI_Sendrecv(buffer.address(), w.count, w.type, w.peer, w.tag, nullptr, 0, type, MPI_PROC_NULL, 1, errors,
                        MPI_STATUS_IGNORE);
  });
  // What is to come never does.
  Buffer coming(Place::device, type, 1);
  const int next = (rank() + 1) % ranks();
  check_each_wrong("Sendrecv that receives", errors, list, [&](const Wrong& w) {
    return MPI_Sendrecv(buffer.address(), w.count, w.type, w.peer == rank() ? next : w.peer, w.tag, coming.address(), 1,
                        type, next, 1, errors, MPI_STATUS_IGNORE);
  });
  // On this communicator ranks need no translation.
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_OK(PMPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler));
  MPI_OK(PMPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  for (const int nobody : {ranks() + 7, 1 << 30, -77})
    MPI_FAILS(MPI_Send(buffer.address(), 1, type, nobody, 1, MPI_COMM_WORLD), MPI_ERR_RANK);
  MPI_OK(PMPI_Comm_set_errhandler(MPI_COMM_WORLD, handler));
  PMPI_Errhandler_free(&handler);
  CHECK(buffer.difference() == "");
}

namespace {

/// Checks that the library returns an error of the class that MPI itself, called as PMPI, returns.
void expect_same(const char* name, int without, int with) {
  INFO(name);
  CHECK(without != MPI_SUCCESS);
  CHECK(error_class(with) == error_class(without));
}

}  // namespace

TEST_CASE("null pointers for requests, handles and positions are reported by MPI", "[errors]") {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  constexpr int count = 2;
  int index = 0, flag = 0, indices[count];
  MPI_Status all[count];
  expect_same("Wait", PMPI_Wait(nullptr, all), MPI_Wait(nullptr, all));
  expect_same("Test", PMPI_Test(nullptr, &flag, all), MPI_Test(nullptr, &flag, all));
  expect_same("Waitall", PMPI_Waitall(count, nullptr, all), MPI_Waitall(count, nullptr, all));
  expect_same("Testall", PMPI_Testall(count, nullptr, &flag, all), MPI_Testall(count, nullptr, &flag, all));
  expect_same("Waitany", PMPI_Waitany(count, nullptr, &index, all), MPI_Waitany(count, nullptr, &index, all));
  expect_same("Testany", PMPI_Testany(count, nullptr, &index, &flag, all),
              MPI_Testany(count, nullptr, &index, &flag, all));
  expect_same("Waitsome", PMPI_Waitsome(count, nullptr, &index, indices, all),
              MPI_Waitsome(count, nullptr, &index, indices, all));
  expect_same("Testsome", PMPI_Testsome(count, nullptr, &index, indices, all),
              MPI_Testsome(count, nullptr, &index, indices, all));
  expect_same("Start", PMPI_Start(nullptr), MPI_Start(nullptr));
  expect_same("Startall", PMPI_Startall(count, nullptr), MPI_Startall(count, nullptr));
  expect_same("Cancel", PMPI_Cancel(nullptr), MPI_Cancel(nullptr));
  expect_same("Request_free", PMPI_Request_free(nullptr), MPI_Request_free(nullptr));
  expect_same("Pack", PMPI_Pack(&index, 1, MPI_INT, indices, sizeof indices, nullptr, comm()),
              MPI_Pack(&index, 1, MPI_INT, indices, sizeof indices, nullptr, comm()));
  expect_same("Unpack", PMPI_Unpack(indices, sizeof indices, nullptr, &index, 1, MPI_INT, comm()),
              MPI_Unpack(indices, sizeof indices, nullptr, &index, 1, MPI_INT, comm()));
  if (mpich) {  // Open MPI reads the handles
    expect_same("Comm_free", PMPI_Comm_free(nullptr), MPI_Comm_free(nullptr));
    expect_same("Comm_disconnect", PMPI_Comm_disconnect(nullptr), MPI_Comm_disconnect(nullptr));
    expect_same("Win_free", PMPI_Win_free(nullptr), MPI_Win_free(nullptr));
  } else {  // MPICH reads this one
    expect_same("Type_free", PMPI_Type_free(nullptr), MPI_Type_free(nullptr));
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
}
