// Sums that nonblocking and persistent collectives make, and in which order processes call them.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/mpi/ints.hpp"
#include "tests/support/catch.hpp"

namespace gpudt::test {

inline constexpr int enough = 3000;  ///< ints

/// A sum over all processes of a communicator of comm()'s processes.
class PendingSum {
 public:
  PendingSum(MPI_Comm comm, Place place, int key) : key_(key), in_(place, enough), out_(place, enough) {
    in_.write(ints_of(rank(), enough, key));
    out_.write(std::vector<int>(enough, -1));
    code_ = MPI_Iallreduce(in_.address(), out_.address(), enough, MPI_INT, MPI_SUM, comm, &request);
  }
  /// Once it is complete.
  bool right() const { return code_ == MPI_SUCCESS && out_.read() == sum_of_all(ranks(), enough, key_); }
  bool wait() { return MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS && right(); }

  MPI_Request request = MPI_REQUEST_NULL;

 private:
  int key_;
  Ints in_, out_;
  int code_;
};

inline bool has_persistent() {
  return std::find(forms.begin(), forms.end(), Form::persistent) != forms.end();
}

/// The same, to be started again and again.
class PersistentSum {
 public:
  PersistentSum(MPI_Comm comm, Place place) : in_(place, enough), out_(place, enough) {
    Arguments arguments;
    arguments.sendbuf = in_.address();
    arguments.recvbuf = out_.address();
    arguments.recvcount = enough;
    arguments.recvtype = MPI_INT;
    arguments.comm = comm;
    MPI_OK(operation("Allreduce").call(arguments, Form::persistent, &request));
  }
  PersistentSum(const PersistentSum&) = delete;
  PersistentSum& operator=(const PersistentSum&) = delete;
  ~PersistentSum() {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
  void fill(int key) {
    key_ = key;
    in_.write(ints_of(rank(), enough, key));
    out_.write(std::vector<int>(enough, -1));
  }
  void start(int key) {
    fill(key);
    MPI_OK(MPI_Start(&request));
  }
  bool right() const { return out_.read() == sum_of_all(ranks(), enough, key_); }
  bool wait() { return MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS && right(); }

  MPI_Request request = MPI_REQUEST_NULL;

 private:
  int key_ = 0;
  Ints in_, out_;
};

inline bool all_on_one_node() {
  static const bool all = [] {
    MPI_Comm node = MPI_COMM_NULL;
    int here = 0;
    PMPI_Comm_split_type(comm(), MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    PMPI_Comm_size(node, &here);
    PMPI_Comm_free(&node);
    return here == ranks();
  }();
  return all;
}

/// Whether they do collectives of data that they all have.
inline bool by_gpus() {
  const char* const protocol = std::getenv("GPUDT_PROTOCOL");
  const bool may = protocol == nullptr || std::string_view(protocol) == "peer";
  return !any_host_only() && may && std::getenv("GPUDT_ORDER") == nullptr && all_on_one_node();
}

inline Place place_of(bool on_device) {
  return on_device ? Place::device : Place::host;
}

/// All others wait for a message of process 0's, which sends it when it has made its calls.
inline void first_process_first(MPI_Comm comm) {
  int nothing = 0;
  if (rank() != 0) MPI_OK(MPI_Recv(&nothing, 1, MPI_INT, 0, 5, comm, MPI_STATUS_IGNORE));
}
inline void let_others_follow(MPI_Comm comm) {
  const int nothing = 0;
  for (int other = 1; rank() == 0 && other < ranks(); ++other) MPI_OK(MPI_Send(&nothing, 1, MPI_INT, other, 5, comm));
}

}  // namespace gpudt::test
