// MPI-4.1 chapter 6: collective communication, blocking and nonblocking. One function serves both forms of an
// operation: a null request means blocking. Barriers have no buffer and are not here.
#include <numeric>

#include "interpose/collective.hpp"
#include "interpose/errors.hpp"
#include "interpose/export.hpp"

namespace gpudt::interpose {
namespace {

std::int64_t sum(const int* counts, int n) {
  return counts == nullptr ? 0 : std::accumulate(counts, counts + n, std::int64_t(0));
}

Role out_or_inout(const void* other) {
  return other == MPI_IN_PLACE ? Role::inout : Role::out;
}

int bcast(const char* call, void* buf, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    Given data{buf, type};
    if (comm != MPI_COMM_NULL && (is_root(comm, root) || is_served(comm, root)))
      data = c.buffer(is_root(comm, root) ? Role::in : Role::out, buf, count, type);
    return c.run(
        request, [&] { return PMPI_Bcast(data.buffer, count, data.type, root, comm); },
        [&](MPI_Request* r) { return PMPI_Ibcast(data.buffer, count, data.type, root, comm, r); });
  });
}

int gather(const char* call, const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
           MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    Given in{const_cast<void*>(sendbuf), sendtype}, out{recvbuf, recvtype};
    if (comm != MPI_COMM_NULL && is_served(comm, root)) in = c.buffer(Role::in, sendbuf, sendcount, sendtype);
    if (comm != MPI_COMM_NULL && is_root(comm, root))
      out = c.buffer(out_or_inout(sendbuf), recvbuf, std::int64_t(recvcount) * collective_peers(comm), recvtype);
    return c.run(
        request,
        [&] { return PMPI_Gather(in.buffer, sendcount, in.type, out.buffer, recvcount, out.type, root, comm); },
        [&](MPI_Request* r) {
          return PMPI_Igather(in.buffer, sendcount, in.type, out.buffer, recvcount, out.type, root, comm, r);
        });
  });
}

int gatherv(const char* call, const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
            const int* recvcounts, const int* displs, MPI_Datatype recvtype, int root, MPI_Comm comm,
            MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    Given in{const_cast<void*>(sendbuf), sendtype};
    GivenV out{recvbuf, recvtype, displs};
    if (comm != MPI_COMM_NULL && is_served(comm, root)) in = c.buffer(Role::in, sendbuf, sendcount, sendtype);
    if (comm != MPI_COMM_NULL && is_root(comm, root))
      out = c.buffer_v(out_or_inout(sendbuf), recvbuf, collective_peers(comm), recvcounts, displs, recvtype);
    return c.run(
        request,
        [&] {
          return PMPI_Gatherv(in.buffer, sendcount, in.type, out.buffer, recvcounts, out.displs, out.type, root, comm);
        },
        [&](MPI_Request* r) {
          return PMPI_Igatherv(in.buffer, sendcount, in.type, out.buffer, recvcounts, out.displs, out.type, root, comm,
                               r);
        });
  });
}

int scatter(const char* call, const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
            MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    Given in{const_cast<void*>(sendbuf), sendtype}, out{recvbuf, recvtype};
    if (comm != MPI_COMM_NULL && is_root(comm, root))
      in = c.buffer(Role::in, sendbuf, std::int64_t(sendcount) * collective_peers(comm), sendtype);
    if (comm != MPI_COMM_NULL && is_served(comm, root)) out = c.buffer(Role::out, recvbuf, recvcount, recvtype);
    return c.run(
        request,
        [&] { return PMPI_Scatter(in.buffer, sendcount, in.type, out.buffer, recvcount, out.type, root, comm); },
        [&](MPI_Request* r) {
          return PMPI_Iscatter(in.buffer, sendcount, in.type, out.buffer, recvcount, out.type, root, comm, r);
        });
  });
}

int scatterv(const char* call, const void* sendbuf, const int* sendcounts, const int* displs, MPI_Datatype sendtype,
             void* recvbuf, int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    GivenV in{const_cast<void*>(sendbuf), sendtype, displs};
    Given out{recvbuf, recvtype};
    if (comm != MPI_COMM_NULL && is_root(comm, root))
      in = c.buffer_v(Role::in, sendbuf, collective_peers(comm), sendcounts, displs, sendtype);
    if (comm != MPI_COMM_NULL && is_served(comm, root)) out = c.buffer(Role::out, recvbuf, recvcount, recvtype);
    return c.run(
        request,
        [&] {
          return PMPI_Scatterv(in.buffer, sendcounts, in.displs, in.type, out.buffer, recvcount, out.type, root, comm);
        },
        [&](MPI_Request* r) {
          return PMPI_Iscatterv(in.buffer, sendcounts, in.displs, in.type, out.buffer, recvcount, out.type, root, comm,
                                r);
        });
  });
}

using Exchange = int (*)(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm);
using NonblockingExchange = int (*)(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm, MPI_Request*);

/// Allgather, Alltoall and their neighbourhood forms.
int exchange(const char* call, Blocks blocks, Exchange pmpi, NonblockingExchange ipmpi, const void* sendbuf,
             int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount, MPI_Datatype recvtype, MPI_Comm comm,
             MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    const Given in = c.buffer(Role::in, sendbuf, std::int64_t(sendcount) * blocks.out_of, sendtype);
    const Given out = c.buffer(out_or_inout(sendbuf), recvbuf, std::int64_t(recvcount) * blocks.into, recvtype);
    return c.run(
        request, [&] { return pmpi(in.buffer, sendcount, in.type, out.buffer, recvcount, out.type, comm); },
        [&](MPI_Request* r) { return ipmpi(in.buffer, sendcount, in.type, out.buffer, recvcount, out.type, comm, r); });
  });
}

using Gathering = int (*)(const void*, int, MPI_Datatype, void*, const int*, const int*, MPI_Datatype, MPI_Comm);
using NonblockingGathering = int (*)(const void*, int, MPI_Datatype, void*, const int*, const int*, MPI_Datatype,
                                     MPI_Comm, MPI_Request*);

/// Allgatherv and its neighbourhood form.
int gathering(const char* call, int into, Gathering pmpi, NonblockingGathering ipmpi, const void* sendbuf,
              int sendcount, MPI_Datatype sendtype, void* recvbuf, const int* recvcounts, const int* displs,
              MPI_Datatype recvtype, MPI_Comm comm, MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    const Given in = c.buffer(Role::in, sendbuf, sendcount, sendtype);
    const GivenV out = c.buffer_v(out_or_inout(sendbuf), recvbuf, into, recvcounts, displs, recvtype);
    return c.run(
        request,
        [&] { return pmpi(in.buffer, sendcount, in.type, out.buffer, recvcounts, out.displs, out.type, comm); },
        [&](MPI_Request* r) {
          return ipmpi(in.buffer, sendcount, in.type, out.buffer, recvcounts, out.displs, out.type, comm, r);
        });
  });
}

using ExchangeV = int (*)(const void*, const int*, const int*, MPI_Datatype, void*, const int*, const int*,
                          MPI_Datatype, MPI_Comm);
using NonblockingExchangeV = int (*)(const void*, const int*, const int*, MPI_Datatype, void*, const int*, const int*,
                                     MPI_Datatype, MPI_Comm, MPI_Request*);

int exchange_v(const char* call, Blocks blocks, ExchangeV pmpi, NonblockingExchangeV ipmpi, const void* sendbuf,
               const int* sendcounts, const int* sdispls, MPI_Datatype sendtype, void* recvbuf, const int* recvcounts,
               const int* rdispls, MPI_Datatype recvtype, MPI_Comm comm, MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    const GivenV in = c.buffer_v(Role::in, sendbuf, blocks.out_of, sendcounts, sdispls, sendtype);
    const GivenV out = c.buffer_v(out_or_inout(sendbuf), recvbuf, blocks.into, recvcounts, rdispls, recvtype);
    return c.run(
        request,
        [&] {
          return pmpi(in.buffer, sendcounts, in.displs, in.type, out.buffer, recvcounts, out.displs, out.type, comm);
        },
        [&](MPI_Request* r) {
          return ipmpi(in.buffer, sendcounts, in.displs, in.type, out.buffer, recvcounts, out.displs, out.type, comm,
                       r);
        });
  });
}

template <class Displacement>
using ExchangeW = int (*)(const void*, const int*, const Displacement*, const MPI_Datatype*, void*, const int*,
                          const Displacement*, const MPI_Datatype*, MPI_Comm);
template <class Displacement>
using NonblockingExchangeW = int (*)(const void*, const int*, const Displacement*, const MPI_Datatype*, void*,
                                     const int*, const Displacement*, const MPI_Datatype*, MPI_Comm, MPI_Request*);

template <class Displacement>
int exchange_w(const char* call, Blocks blocks, ExchangeW<Displacement> pmpi, NonblockingExchangeW<Displacement> ipmpi,
               const void* sendbuf, const int* sendcounts, const Displacement* sdispls, const MPI_Datatype* sendtypes,
               void* recvbuf, const int* recvcounts, const Displacement* rdispls, const MPI_Datatype* recvtypes,
               MPI_Comm comm, MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    const auto in = c.buffer_w(Role::in, sendbuf, blocks.out_of, sendcounts, sdispls, sendtypes);
    const auto out = c.buffer_w(out_or_inout(sendbuf), recvbuf, blocks.into, recvcounts, rdispls, recvtypes);
    return c.run(
        request,
        [&] {
          return pmpi(in.buffer, sendcounts, in.displs, in.types, out.buffer, recvcounts, out.displs, out.types, comm);
        },
        [&](MPI_Request* r) {
          return ipmpi(in.buffer, sendcounts, in.displs, in.types, out.buffer, recvcounts, out.displs, out.types, comm,
                       r);
        });
  });
}

int reduce(const char* call, const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, int root,
           MPI_Comm comm, MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    Given in{const_cast<void*>(sendbuf), type}, out{recvbuf, type};
    if (comm != MPI_COMM_NULL && is_served(comm, root)) in = c.reduction(Role::in, sendbuf, count, type);
    if (comm != MPI_COMM_NULL && is_root(comm, root)) out = c.reduction(out_or_inout(sendbuf), recvbuf, count, type);
    return c.run(
        request, [&] { return PMPI_Reduce(in.buffer, out.buffer, count, type, op, root, comm); },
        [&](MPI_Request* r) { return PMPI_Ireduce(in.buffer, out.buffer, count, type, op, root, comm, r); });
  });
}

using Reduction = int (*)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm);
using NonblockingReduction = int (*)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request*);

/// Allreduce, Scan, Exscan and Reduce_scatter_block: `in_blocks` times `count` elements go in. The first process of
/// an Exscan gets nothing (`Role::in` for its output means that nothing is written back).
int reduction(const char* call, int in_blocks, bool gets_result, Reduction pmpi, NonblockingReduction ipmpi,
              const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
              MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    const bool in_place = sendbuf == MPI_IN_PLACE;
    const Given in = c.reduction(Role::in, sendbuf, std::int64_t(count) * in_blocks, type);
    const Role role = gets_result ? out_or_inout(sendbuf) : Role::in;
    const Given out = c.reduction(role, recvbuf, in_place ? std::int64_t(count) * in_blocks : count, type);
    return c.run(
        request, [&] { return pmpi(in.buffer, out.buffer, count, type, op, comm); },
        [&](MPI_Request* r) { return ipmpi(in.buffer, out.buffer, count, type, op, comm, r); });
  });
}

int reduce_scatter(const char* call, const void* sendbuf, void* recvbuf, const int* recvcounts, MPI_Datatype type,
                   MPI_Op op, MPI_Comm comm, MPI_Request* request) {
  return guarded(comm, call, [&] {
    Collective c(call, comm);
    Given in{const_cast<void*>(sendbuf), type}, out{recvbuf, type};
    if (comm != MPI_COMM_NULL && recvcounts != nullptr) {
      int rank = 0, size = 0;  // of the local group: its processes share the result
      PMPI_Comm_rank(comm, &rank);
      PMPI_Comm_size(comm, &size);
      const std::int64_t total = sum(recvcounts, size);
      in = c.reduction(Role::in, sendbuf, total, type);
      out = c.reduction(out_or_inout(sendbuf), recvbuf, sendbuf == MPI_IN_PLACE ? total : recvcounts[rank], type);
    }
    return c.run(
        request, [&] { return PMPI_Reduce_scatter(in.buffer, out.buffer, recvcounts, type, op, comm); },
        [&](MPI_Request* r) { return PMPI_Ireduce_scatter(in.buffer, out.buffer, recvcounts, type, op, comm, r); });
  });
}

int peers(MPI_Comm comm) {
  return comm == MPI_COMM_NULL ? 0 : collective_peers(comm);
}

int local_size(MPI_Comm comm) {
  int size = 0;
  if (comm != MPI_COMM_NULL) PMPI_Comm_size(comm, &size);
  return size;
}

bool is_first(MPI_Comm comm) {
  int rank = 0;
  if (comm != MPI_COMM_NULL) PMPI_Comm_rank(comm, &rank);
  return rank == 0;
}

/// An allgather sends one block, whoever listens.
Blocks one_to(int into) {
  return {1, into};
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Bcast(void* buf, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  return bcast("MPI_Bcast", buf, count, type, root, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ibcast(void* buf, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  return bcast("MPI_Ibcast", buf, count, type, root, comm, request);
}

GPUDT_EXPORT int MPI_Gather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                            MPI_Datatype recvtype, int root, MPI_Comm comm) {
  return gather("MPI_Gather", sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, nullptr);
}
GPUDT_EXPORT int MPI_Igather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                             MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request* request) {
  return gather("MPI_Igather", sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, request);
}

GPUDT_EXPORT int MPI_Gatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                             const int recvcounts[], const int displs[], MPI_Datatype recvtype, int root,
                             MPI_Comm comm) {
  return gatherv("MPI_Gatherv", sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, comm,
                 nullptr);
}
GPUDT_EXPORT int MPI_Igatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                              const int recvcounts[], const int displs[], MPI_Datatype recvtype, int root,
                              MPI_Comm comm, MPI_Request* request) {
  return gatherv("MPI_Igatherv", sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, comm,
                 request);
}

GPUDT_EXPORT int MPI_Scatter(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                             MPI_Datatype recvtype, int root, MPI_Comm comm) {
  return scatter("MPI_Scatter", sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, nullptr);
}
GPUDT_EXPORT int MPI_Iscatter(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                              MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request* request) {
  return scatter("MPI_Iscatter", sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, request);
}

GPUDT_EXPORT int MPI_Scatterv(const void* sendbuf, const int sendcounts[], const int displs[], MPI_Datatype sendtype,
                              void* recvbuf, int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm) {
  return scatterv("MPI_Scatterv", sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root, comm,
                  nullptr);
}
GPUDT_EXPORT int MPI_Iscatterv(const void* sendbuf, const int sendcounts[], const int displs[], MPI_Datatype sendtype,
                               void* recvbuf, int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm,
                               MPI_Request* request) {
  return scatterv("MPI_Iscatterv", sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root, comm,
                  request);
}

GPUDT_EXPORT int MPI_Allgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                               MPI_Datatype recvtype, MPI_Comm comm) {
  return exchange("MPI_Allgather", one_to(peers(comm)), PMPI_Allgather, PMPI_Iallgather, sendbuf, sendcount, sendtype,
                  recvbuf, recvcount, recvtype, comm, nullptr);
}
GPUDT_EXPORT int MPI_Iallgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                                MPI_Datatype recvtype, MPI_Comm comm, MPI_Request* request) {
  return exchange("MPI_Iallgather", one_to(peers(comm)), PMPI_Allgather, PMPI_Iallgather, sendbuf, sendcount, sendtype,
                  recvbuf, recvcount, recvtype, comm, request);
}

GPUDT_EXPORT int MPI_Alltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                              MPI_Datatype recvtype, MPI_Comm comm) {
  return exchange("MPI_Alltoall", {peers(comm), peers(comm)}, PMPI_Alltoall, PMPI_Ialltoall, sendbuf, sendcount,
                  sendtype, recvbuf, recvcount, recvtype, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ialltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                               MPI_Datatype recvtype, MPI_Comm comm, MPI_Request* request) {
  return exchange("MPI_Ialltoall", {peers(comm), peers(comm)}, PMPI_Alltoall, PMPI_Ialltoall, sendbuf, sendcount,
                  sendtype, recvbuf, recvcount, recvtype, comm, request);
}

GPUDT_EXPORT int MPI_Neighbor_allgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                        int recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  return exchange("MPI_Neighbor_allgather", one_to(neighbours(comm).into), PMPI_Neighbor_allgather,
                  PMPI_Ineighbor_allgather, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ineighbor_allgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                         int recvcount, MPI_Datatype recvtype, MPI_Comm comm, MPI_Request* request) {
  return exchange("MPI_Ineighbor_allgather", one_to(neighbours(comm).into), PMPI_Neighbor_allgather,
                  PMPI_Ineighbor_allgather, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
}

GPUDT_EXPORT int MPI_Neighbor_alltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                       int recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  return exchange("MPI_Neighbor_alltoall", neighbours(comm), PMPI_Neighbor_alltoall, PMPI_Ineighbor_alltoall, sendbuf,
                  sendcount, sendtype, recvbuf, recvcount, recvtype, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ineighbor_alltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                        int recvcount, MPI_Datatype recvtype, MPI_Comm comm, MPI_Request* request) {
  return exchange("MPI_Ineighbor_alltoall", neighbours(comm), PMPI_Neighbor_alltoall, PMPI_Ineighbor_alltoall, sendbuf,
                  sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
}

GPUDT_EXPORT int MPI_Allgatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                const int recvcounts[], const int displs[], MPI_Datatype recvtype, MPI_Comm comm) {
  return gathering("MPI_Allgatherv", peers(comm), PMPI_Allgatherv, PMPI_Iallgatherv, sendbuf, sendcount, sendtype,
                   recvbuf, recvcounts, displs, recvtype, comm, nullptr);
}
GPUDT_EXPORT int MPI_Iallgatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                 const int recvcounts[], const int displs[], MPI_Datatype recvtype, MPI_Comm comm,
                                 MPI_Request* request) {
  return gathering("MPI_Iallgatherv", peers(comm), PMPI_Allgatherv, PMPI_Iallgatherv, sendbuf, sendcount, sendtype,
                   recvbuf, recvcounts, displs, recvtype, comm, request);
}

GPUDT_EXPORT int MPI_Neighbor_allgatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                         const int recvcounts[], const int displs[], MPI_Datatype recvtype,
                                         MPI_Comm comm) {
  return gathering("MPI_Neighbor_allgatherv", neighbours(comm).into, PMPI_Neighbor_allgatherv,
                   PMPI_Ineighbor_allgatherv, sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm,
                   nullptr);
}
GPUDT_EXPORT int MPI_Ineighbor_allgatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                          const int recvcounts[], const int displs[], MPI_Datatype recvtype,
                                          MPI_Comm comm, MPI_Request* request) {
  return gathering("MPI_Ineighbor_allgatherv", neighbours(comm).into, PMPI_Neighbor_allgatherv,
                   PMPI_Ineighbor_allgatherv, sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm,
                   request);
}

GPUDT_EXPORT int MPI_Alltoallv(const void* sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype,
                               void* recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype,
                               MPI_Comm comm) {
  return exchange_v("MPI_Alltoallv", {peers(comm), peers(comm)}, PMPI_Alltoallv, PMPI_Ialltoallv, sendbuf, sendcounts,
                    sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ialltoallv(const void* sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype,
                                void* recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype,
                                MPI_Comm comm, MPI_Request* request) {
  return exchange_v("MPI_Ialltoallv", {peers(comm), peers(comm)}, PMPI_Alltoallv, PMPI_Ialltoallv, sendbuf, sendcounts,
                    sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm, request);
}

GPUDT_EXPORT int MPI_Neighbor_alltoallv(const void* sendbuf, const int sendcounts[], const int sdispls[],
                                        MPI_Datatype sendtype, void* recvbuf, const int recvcounts[],
                                        const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm) {
  return exchange_v("MPI_Neighbor_alltoallv", neighbours(comm), PMPI_Neighbor_alltoallv, PMPI_Ineighbor_alltoallv,
                    sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ineighbor_alltoallv(const void* sendbuf, const int sendcounts[], const int sdispls[],
                                         MPI_Datatype sendtype, void* recvbuf, const int recvcounts[],
                                         const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm,
                                         MPI_Request* request) {
  return exchange_v("MPI_Ineighbor_alltoallv", neighbours(comm), PMPI_Neighbor_alltoallv, PMPI_Ineighbor_alltoallv,
                    sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm, request);
}

GPUDT_EXPORT int MPI_Alltoallw(const void* sendbuf, const int sendcounts[], const int sdispls[],
                               const MPI_Datatype sendtypes[], void* recvbuf, const int recvcounts[],
                               const int rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm) {
  return exchange_w<int>("MPI_Alltoallw", {peers(comm), peers(comm)}, PMPI_Alltoallw, PMPI_Ialltoallw, sendbuf,
                         sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ialltoallw(const void* sendbuf, const int sendcounts[], const int sdispls[],
                                const MPI_Datatype sendtypes[], void* recvbuf, const int recvcounts[],
                                const int rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm,
                                MPI_Request* request) {
  return exchange_w<int>("MPI_Ialltoallw", {peers(comm), peers(comm)}, PMPI_Alltoallw, PMPI_Ialltoallw, sendbuf,
                         sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm, request);
}

GPUDT_EXPORT int MPI_Neighbor_alltoallw(const void* sendbuf, const int sendcounts[], const MPI_Aint sdispls[],
                                        const MPI_Datatype sendtypes[], void* recvbuf, const int recvcounts[],
                                        const MPI_Aint rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm) {
  return exchange_w<MPI_Aint>("MPI_Neighbor_alltoallw", neighbours(comm), PMPI_Neighbor_alltoallw,
                              PMPI_Ineighbor_alltoallw, sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts,
                              rdispls, recvtypes, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ineighbor_alltoallw(const void* sendbuf, const int sendcounts[], const MPI_Aint sdispls[],
                                         const MPI_Datatype sendtypes[], void* recvbuf, const int recvcounts[],
                                         const MPI_Aint rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm,
                                         MPI_Request* request) {
  return exchange_w<MPI_Aint>("MPI_Ineighbor_alltoallw", neighbours(comm), PMPI_Neighbor_alltoallw,
                              PMPI_Ineighbor_alltoallw, sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts,
                              rdispls, recvtypes, comm, request);
}

GPUDT_EXPORT int MPI_Reduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, int root,
                            MPI_Comm comm) {
  return reduce("MPI_Reduce", sendbuf, recvbuf, count, type, op, root, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ireduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, int root,
                             MPI_Comm comm, MPI_Request* request) {
  return reduce("MPI_Ireduce", sendbuf, recvbuf, count, type, op, root, comm, request);
}

GPUDT_EXPORT int MPI_Allreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op,
                               MPI_Comm comm) {
  return reduction("MPI_Allreduce", 1, true, PMPI_Allreduce, PMPI_Iallreduce, sendbuf, recvbuf, count, type, op, comm,
                   nullptr);
}
GPUDT_EXPORT int MPI_Iallreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op,
                                MPI_Comm comm, MPI_Request* request) {
  return reduction("MPI_Iallreduce", 1, true, PMPI_Allreduce, PMPI_Iallreduce, sendbuf, recvbuf, count, type, op, comm,
                   request);
}

GPUDT_EXPORT int MPI_Scan(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduction("MPI_Scan", 1, true, PMPI_Scan, PMPI_Iscan, sendbuf, recvbuf, count, type, op, comm, nullptr);
}
GPUDT_EXPORT int MPI_Iscan(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                           MPI_Request* request) {
  return reduction("MPI_Iscan", 1, true, PMPI_Scan, PMPI_Iscan, sendbuf, recvbuf, count, type, op, comm, request);
}

GPUDT_EXPORT int MPI_Exscan(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op,
                            MPI_Comm comm) {
  return reduction("MPI_Exscan", 1, !is_first(comm), PMPI_Exscan, PMPI_Iexscan, sendbuf, recvbuf, count, type, op, comm,
                   nullptr);
}
GPUDT_EXPORT int MPI_Iexscan(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                             MPI_Request* request) {
  return reduction("MPI_Iexscan", 1, !is_first(comm), PMPI_Exscan, PMPI_Iexscan, sendbuf, recvbuf, count, type, op,
                   comm, request);
}

GPUDT_EXPORT int MPI_Reduce_scatter_block(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op,
                                          MPI_Comm comm) {
  return reduction("MPI_Reduce_scatter_block", local_size(comm), true, PMPI_Reduce_scatter_block,
                   PMPI_Ireduce_scatter_block, sendbuf, recvbuf, count, type, op, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ireduce_scatter_block(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op,
                                           MPI_Comm comm, MPI_Request* request) {
  return reduction("MPI_Ireduce_scatter_block", local_size(comm), true, PMPI_Reduce_scatter_block,
                   PMPI_Ireduce_scatter_block, sendbuf, recvbuf, count, type, op, comm, request);
}

GPUDT_EXPORT int MPI_Reduce_scatter(const void* sendbuf, void* recvbuf, const int recvcounts[], MPI_Datatype type,
                                    MPI_Op op, MPI_Comm comm) {
  return reduce_scatter("MPI_Reduce_scatter", sendbuf, recvbuf, recvcounts, type, op, comm, nullptr);
}
GPUDT_EXPORT int MPI_Ireduce_scatter(const void* sendbuf, void* recvbuf, const int recvcounts[], MPI_Datatype type,
                                     MPI_Op op, MPI_Comm comm, MPI_Request* request) {
  return reduce_scatter("MPI_Ireduce_scatter", sendbuf, recvbuf, recvcounts, type, op, comm, request);
}

GPUDT_EXPORT int MPI_Reduce_local(const void* inbuf, void* inoutbuf, int count, MPI_Datatype type, MPI_Op op) {
  constexpr const char* call = "MPI_Reduce_local";
  return guarded(MPI_COMM_WORLD, call, [&] {
    Collective c(call, MPI_COMM_WORLD);
    const Given in = c.reduction(Role::in, inbuf, count, type);
    const Given inout = c.reduction(Role::inout, inoutbuf, count, type);
    return c.run([&] { return PMPI_Reduce_local(in.buffer, inout.buffer, count, type, op); });
  });
}
