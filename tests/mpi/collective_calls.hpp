// Every collective operation in every form, called through one table.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/mpi/region.hpp"

namespace gpudt::test {

enum class Form {
  reference,  ///< blocking, under the PMPI_ name
  blocking,
  nonblocking,
  persistent,
};
const char* form_name(Form form);
/// The forms under test: persistent only where the MPI has it.
extern const std::vector<Form> forms;

/// Which process gives data to which.
enum class Flow { broadcast, gather, scatter, allgather, alltoall, reduce, allreduce, reduce_scatter, scan };
/// How the blocks of a buffer are described: equal ones, by counts and displacements, by types too.
enum class Blocking { equal, v, w };

/// The arguments of all of them. Bcast has its buffer in recvbuf.
struct Arguments {
  const void* sendbuf = nullptr;
  int sendcount = 0;
  MPI_Datatype sendtype = MPI_BYTE;
  std::vector<int> sendcounts, sdispls;
  std::vector<MPI_Aint> sdispls_bytes;
  std::vector<MPI_Datatype> sendtypes;
  void* recvbuf = nullptr;
  int recvcount = 0;
  MPI_Datatype recvtype = MPI_BYTE;
  std::vector<int> recvcounts, rdispls;
  std::vector<MPI_Aint> rdispls_bytes;
  std::vector<MPI_Datatype> recvtypes;
  MPI_Op op = MPI_SUM;
  int root = 0;
  MPI_Comm comm = MPI_COMM_NULL;
};

struct Operation {
  const char* name;
  Flow flow;
  Blocking blocking;
  bool neighbours;  ///< needs a topology
  /// The request is for the forms that have one.
  int (*call)(const Arguments&, Form, MPI_Request*);
};

extern const std::vector<Operation> operations;
/// The forms of an operation that give right results on host memory, within a group or `between` two.
std::vector<Form> forms_of(const Operation& operation, bool between = false);
const Operation& operation(std::string_view name);

/// A call of a form with a request, on datatypes that are freed as soon as the call has returned, as MPI allows (but
/// those of a persistent request live as long as this: Open MPI 4.1 crashes otherwise). Keeps the arrays of counts,
/// displacements and handles, which MPI may look at until the operation is complete.
class Started {
 public:
  Started(const Operation& operation, Arguments arguments, Form form);
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;
  ~Started();

  int code = MPI_SUCCESS;
  MPI_Request request = MPI_REQUEST_NULL;

 private:
  void free_types();

  Arguments arguments_;
  std::vector<MPI_Datatype> duplicates_;
};

/// Runs a form and the reference side by side and compares what is in the regions afterwards; a persistent request is
/// started twice. `fill(round)` gives the regions their contents; `refer()` calls MPI to get what is expected.
void perform(const Operation& operation, Form form, const Arguments& arguments, const std::function<int()>& refer,
             const Region& send, const Region& receive, const std::function<void(int round)>& fill);

}  // namespace gpudt::test
