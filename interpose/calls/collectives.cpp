// MPI-4.1 chapters 6 and 8: collective communication, also among neighbours; blocking, nonblocking and persistent. One
// function serves the three forms of an operation. Barriers have no buffer and are not here.
#include <cxxabi.h>

#include <exception>
#include <numeric>
#include <utility>

#include "interpose/calls/collective_forms.hpp"
#include "interpose/calls/partners.hpp"
#include "interpose/calls/persistent_collectives.hpp"
#include "interpose/collectives/aliases.hpp"
#include "interpose/collectives/block_messages.hpp"
#include "interpose/collectives/call_order.hpp"
#include "interpose/collectives/comm_state.hpp"
#include "interpose/collectives/peer_exchange.hpp"
#include "interpose/collectives/reductions.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/requests/float16_types.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"

namespace gpudt::interpose {
namespace {

template <class Count>
std::int64_t sum(const Count* counts, int n) {
  return counts == nullptr ? 0 : std::accumulate(counts, counts + n, std::int64_t(0));
}

/// Initialises a persistent collective by `through_host(call)`. `asked`: GPUs may do its starts, about each of which
/// the processes agree; `to_offer()` returns how this process publishes a start.
template <class ToOffer, class ThroughHost>
int initialise(const Call& call, MPI_Comm comm, bool asked, const ToOffer& to_offer, const ThroughHost& through_host) {
  settle_collectives(comm);
  const bool asks = asked && matches_persistent_by_init();  // MPI gets a declined start later
  int code = MPI_ERR_OTHER;
  std::exception_ptr failure;
  PrepareOffer prepare;
  bool staged = false;
  try {
    code = through_host(call);
    staged = code == MPI_SUCCESS && persistent_payload(*call.request) != nullptr;
    if (asks && staged) prepare = to_offer();
  } catch (const abi::__forced_unwind&) {  // the thread is ending
    throw;
  } catch (...) {  // the others wait until this process declines or publishes
    if (code != MPI_SUCCESS) failure = std::current_exception();
  }
  std::unique_ptr<PersistentOffer> offer;
  if (asks) offer = PersistentOffer::make(comm_state_of(comm), std::move(prepare));
  if (failure) std::rethrow_exception(failure);
  if (offer)
    persistent_offers(*call.request, std::move(offer));
  else if (staged)
    report_fallback(Fallback::nonblocking_collective);
  if (code == MPI_SUCCESS) persistent_in_stream(comm, *call.request);
  return code;
}

/// Does a collective that moves blocks: by GPUs (kernels or messages), or else by `through_host(call)`.
template <class List, class ThroughHost>
int moving(const Call& call, MPI_Comm comm, Flow flow, const Known& known, List list, const ThroughHost& through_host) {
  if (call.persistent)
    return initialise(
        call, comm, collective_messages::asked(call, comm, flow, known), [&] { return exchange_to_offer(call, list); },
        through_host);
  if (!call.blocks()) return start_in_order(call, comm, offer_exchange(call, comm, flow, known, list), through_host);
  settle_collectives(comm);
  const auto code = as_messages(call, comm, flow, known, list);
  return code ? *code : through_host(call);
}

/// Does a reduction: by kernels, or else by `through_host(call)`.
template <class ThroughHost>
int reducing(const Call& call, MPI_Comm comm, const ReductionArguments& arguments, MPI_Datatype type, MPI_Op op,
             const ThroughHost& through_host) {
  if (call.persistent)
    return initialise(
        call, comm, starts_asked(comm, arguments, type, op),
        [&] { return reduction_to_offer(call, arguments, type, op); }, through_host);
  if (!call.blocks()) return start_in_order(call, comm, offer_reduction(call, comm, arguments, type, op), through_host);
  settle_collectives(comm);
  const auto code = reduce_on_gpus(call, comm, arguments, type, op);
  return code ? *code : through_host(call);
}

/// Arguments with which reducing() always goes through the host.
ReductionArguments not_for_gpus() {
  return {.sendbuf = nullptr, .recvbuf = nullptr, .count = 0};
}

// --- operations with a root ------------------------------------------------------------------------------------------

template <class Pmpi, class Count>
int bcast(const Call& call, const Pmpi& pmpi, void* buf, Count count, MPI_Datatype type, int root, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      Given data{buf, type};
      if (comm != MPI_COMM_NULL && (is_root(comm, root) || is_served(comm, root)))
        data = c.buffer(is_root(comm, root) ? Role::in : Role::out, buf, count, type);
      return c.run(call, pmpi, data.buffer, count, data.type, root, comm);
    };
    return moving(
        call, comm, Flow::from_root, {count, type},
        [&](BlockMessages& blocks) {
          const auto block = same_block(buf, count, type);
          return list_from_root(blocks, comm, root, /*own=*/false, block, block);
        },
        through_host);
  });
}

template <class Pmpi, class Count>
int gather(const Call& call, const Pmpi& pmpi, const void* sendbuf, Count sendcount, MPI_Datatype sendtype,
           void* recvbuf, Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const bool here = comm != MPI_COMM_NULL && is_root(comm, root);
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      Given in{const_cast<void*>(sendbuf), sendtype}, out{recvbuf, recvtype};
      if (comm != MPI_COMM_NULL && is_served(comm, root)) in = c.buffer(Role::in, sendbuf, sendcount, sendtype);
      const std::int64_t own = own_place(comm, recvcount);
      const bool alias =
          here && sendtype == recvtype && sendcount == recvcount && is_refused_alias(sendbuf, recvbuf, own, recvtype);
      if (here)
        out = c.buffer(out_or_inout(sendbuf, alias), recvbuf, std::int64_t(recvcount) * peers_of(comm), recvtype);
      if (alias) in.buffer = own_block(out, own);
      return c.run(call, pmpi, in.buffer, sendcount, in.type, out.buffer, recvcount, out.type, root, comm);
    };
    // Arguments that only the root has may be wrong; then the others must not wait for it.
    const bool in_place = here && sendbuf == MPI_IN_PLACE;
    return moving(
        call, comm, Flow::to_root, in_place ? distinct(recvcount, recvtype) : distinct(sendcount, sendtype),
        [&](BlockMessages& p) {
          return list_to_root(p, comm, root, sendbuf != MPI_IN_PLACE, same_block(sendbuf, sendcount, sendtype),
                              equal_blocks(recvbuf, recvcount, recvtype));
        },
        through_host);
  });
}

template <class Pmpi, class Count, class Displacement>
int gatherv(const Call& call, const Pmpi& pmpi, const void* sendbuf, Count sendcount, MPI_Datatype sendtype,
            void* recvbuf, const Count* recvcounts, const Displacement* displs, MPI_Datatype recvtype, int root,
            MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      Given in{const_cast<void*>(sendbuf), sendtype};
      GivenV<Displacement> out{recvbuf, recvtype, displs};
      if (comm != MPI_COMM_NULL && is_served(comm, root)) in = c.buffer(Role::in, sendbuf, sendcount, sendtype);
      const bool here = comm != MPI_COMM_NULL && is_root(comm, root);
      const bool alias =
          here && sendtype == recvtype && is_refused_alias(sendbuf, recvbuf, own_place(comm, displs), recvtype);
      if (here) out = c.buffer_v(out_or_inout(sendbuf, alias), recvbuf, peers_of(comm), recvcounts, displs, recvtype);
      if (alias) in.buffer = own_block(out, own_place(comm, out.displs));
      return c.run(call, pmpi, in.buffer, sendcount, in.type, out.buffer, recvcounts, out.displs, out.type, root, comm);
    };
    return moving(
        call, comm, Flow::to_root, varying,
        [&](BlockMessages& blocks) {
          return list_to_root(blocks, comm, root, sendbuf != MPI_IN_PLACE, same_block(sendbuf, sendcount, sendtype),
                              v_blocks(recvbuf, recvcounts, displs, recvtype));
        },
        through_host);
  });
}

template <class Pmpi, class Count>
int scatter(const Call& call, const Pmpi& pmpi, const void* sendbuf, Count sendcount, MPI_Datatype sendtype,
            void* recvbuf, Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const bool here = comm != MPI_COMM_NULL && is_root(comm, root);
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      Given in{const_cast<void*>(sendbuf), sendtype}, out{recvbuf, recvtype};
      const std::int64_t own = own_place(comm, sendcount);
      const bool alias =
          here && sendtype == recvtype && sendcount == recvcount && is_refused_alias(recvbuf, sendbuf, own, sendtype);
      if (here) in = c.buffer(Role::in, sendbuf, std::int64_t(sendcount) * peers_of(comm), sendtype);
      if (comm != MPI_COMM_NULL && is_served(comm, root))
        out = c.buffer(out_or_inout(sendbuf, alias), recvbuf, recvcount, recvtype);
      if (alias) out.buffer = own_block(in, own);
      return c.run(call, pmpi, in.buffer, sendcount, in.type, out.buffer, recvcount, out.type, root, comm);
    };
    return moving(
        call, comm, Flow::from_root, here ? distinct(sendcount, sendtype) : distinct(recvcount, recvtype),
        [&](BlockMessages& p) {
          return list_from_root(p, comm, root, recvbuf != MPI_IN_PLACE, equal_blocks(sendbuf, sendcount, sendtype),
                                same_block(recvbuf, recvcount, recvtype));
        },
        through_host);
  });
}

template <class Pmpi, class Count, class Displacement>
int scatterv(const Call& call, const Pmpi& pmpi, const void* sendbuf, const Count* sendcounts,
             const Displacement* displs, MPI_Datatype sendtype, void* recvbuf, Count recvcount, MPI_Datatype recvtype,
             int root, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      GivenV<Displacement> in{const_cast<void*>(sendbuf), sendtype, displs};
      Given out{recvbuf, recvtype};
      const bool here = comm != MPI_COMM_NULL && is_root(comm, root);
      const bool alias =
          here && sendtype == recvtype && is_refused_alias(recvbuf, sendbuf, own_place(comm, displs), sendtype);
      if (here) in = c.buffer_v(Role::in, sendbuf, peers_of(comm), sendcounts, displs, sendtype);
      if (comm != MPI_COMM_NULL && is_served(comm, root))
        out = c.buffer(out_or_inout(sendbuf, alias), recvbuf, recvcount, recvtype);
      if (alias) out.buffer = own_block(in, own_place(comm, in.displs));
      return c.run(call, pmpi, in.buffer, sendcounts, in.displs, in.type, out.buffer, recvcount, out.type, root, comm);
    };
    return moving(
        call, comm, Flow::from_root, varying,
        [&](BlockMessages& blocks) {
          return list_from_root(blocks, comm, root, recvbuf != MPI_IN_PLACE,
                                v_blocks(sendbuf, sendcounts, displs, sendtype),
                                same_block(recvbuf, recvcount, recvtype));
        },
        through_host);
  });
}

template <class Pmpi, class Count>
int reduce(const Call& call, const Pmpi& pmpi, const void* sendbuf, void* recvbuf, Count count, MPI_Datatype type,
           MPI_Op op, int root, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      Given in{const_cast<void*>(sendbuf), type}, out{recvbuf, type};
      if (comm != MPI_COMM_NULL && is_served(comm, root)) in = c.reduction(Role::in, sendbuf, count, type);
      const bool here = comm != MPI_COMM_NULL && is_root(comm, root), alias = here && is_alias(sendbuf, recvbuf);
      if (here) out = c.reduction(out_or_inout(sendbuf, alias), recvbuf, count, type);
      if (alias) in = out;
      return c.run(call, pmpi, in.buffer, out.buffer, count, type, operator_for_mpi(op, type), root, comm);
    };
    const ReductionArguments arguments = {.sendbuf = sendbuf, .recvbuf = recvbuf, .count = count, .root = root};
    // MPI reports a wrong root.
    return reducing(call, comm, root >= 0 ? arguments : not_for_gpus(), type, op, through_host);
  });
}

// --- exchanges -------------------------------------------------------------------------------------------------------

template <class Pmpi, class Count>
int exchange(const Call& call, const Pmpi& pmpi, FindPartners find, const void* sendbuf, Count sendcount,
             MPI_Datatype sendtype, void* recvbuf, Count recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const Partners partners = find(comm);
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      const std::int64_t own = partners.one_block ? own_place(comm, recvcount) : 0;
      const bool alias = partners.among == Among::all && sendtype == recvtype && sendcount == recvcount &&
                         is_refused_alias(sendbuf, recvbuf, own, recvtype);
      Given in = c.buffer(Role::in, sendbuf, std::int64_t(sendcount) * partners.out_of, sendtype);
      const Given out =
          c.buffer(partners.receiving(sendbuf, alias), recvbuf, std::int64_t(recvcount) * partners.into, recvtype);
      if (alias) in.buffer = own_block(out, own);
      return c.run(call, pmpi, in.buffer, sendcount, in.type, out.buffer, recvcount, out.type, comm);
    };
    return moving(
        call, comm, Flow::other,
        known_among(partners, {.elements = recvcount, .type = recvtype, .distinct = !partners.one_block}),
        [&](BlockMessages& blocks) {
          const auto take = equal_blocks(recvbuf, recvcount, recvtype);
          if (!partners.one_block) {
            return sendbuf != MPI_IN_PLACE && list_exchange(blocks, comm, partners.among, /*own=*/true,
                                                            equal_blocks(sendbuf, sendcount, sendtype), take);
          }
          return list_gathering(blocks, comm, partners.among, sendbuf, sendcount, sendtype, take);
        },
        through_host);
  });
}

template <class Pmpi, class Count, class Displacement>
int gathering(const Call& call, const Pmpi& pmpi, FindPartners find, const void* sendbuf, Count sendcount,
              MPI_Datatype sendtype, void* recvbuf, const Count* recvcounts, const Displacement* displs,
              MPI_Datatype recvtype, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const Partners partners = find(comm);
    const Known known = known_among(partners, {sum(recvcounts, partners.into), recvtype, partners.into});
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      const bool alias = partners.among == Among::all && sendtype == recvtype &&
                         is_refused_alias(sendbuf, recvbuf, own_place(comm, displs), recvtype);
      Given in = c.buffer(Role::in, sendbuf, sendcount, sendtype);
      const GivenV<Displacement> out = c.buffer_v(out_or_inout(sendbuf, alias), recvbuf, partners.into, recvcounts,
                                                  displs, recvtype, partners.absent);
      if (alias) in.buffer = own_block(out, own_place(comm, out.displs));
      return c.run(call, pmpi, in.buffer, sendcount, in.type, out.buffer, recvcounts, out.displs, out.type, comm);
    };
    return moving(
        call, comm, Flow::other, known,
        [&](BlockMessages& blocks) {
          return list_gathering(blocks, comm, partners.among, sendbuf, sendcount, sendtype,
                                v_blocks(recvbuf, recvcounts, displs, recvtype));
        },
        through_host);
  });
}

template <class Pmpi, class Count, class Displacement>
int exchange_v(const Call& call, const Pmpi& pmpi, FindPartners find, const void* sendbuf, const Count* sendcounts,
               const Displacement* sdispls, MPI_Datatype sendtype, void* recvbuf, const Count* recvcounts,
               const Displacement* rdispls, MPI_Datatype recvtype, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const Partners partners = find(comm);
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      const bool alias = partners.among == Among::all && sendtype == recvtype && sendcounts == recvcounts &&
                         is_refused_alias(sendbuf, recvbuf, 0, recvtype);
      GivenV<Displacement> in =
          c.buffer_v(Role::in, sendbuf, partners.out_of, sendcounts, sdispls, sendtype, partners.absent);
      const GivenV<Displacement> out = c.buffer_v(out_or_inout(sendbuf, alias), recvbuf, partners.into, recvcounts,
                                                  rdispls, recvtype, partners.absent);
      if (alias) in.buffer = out.buffer;
      return c.run(call, pmpi, in.buffer, sendcounts, in.displs, in.type, out.buffer, recvcounts, out.displs, out.type,
                   comm);
    };
    return moving(
        call, comm, Flow::other, varying,
        [&](BlockMessages& blocks) {
          return sendbuf != MPI_IN_PLACE && list_exchange(blocks, comm, partners.among, /*own=*/true,
                                                          v_blocks(sendbuf, sendcounts, sdispls, sendtype),
                                                          v_blocks(recvbuf, recvcounts, rdispls, recvtype));
        },
        through_host);
  });
}

template <class Pmpi, class Count, class Displacement>
int exchange_w(const Call& call, const Pmpi& pmpi, FindPartners find, const void* sendbuf, const Count* sendcounts,
               const Displacement* sdispls, const MPI_Datatype* sendtypes, void* recvbuf, const Count* recvcounts,
               const Displacement* rdispls, const MPI_Datatype* recvtypes, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const Partners partners = find(comm);
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      const bool alias = partners.among == Among::all && sendtypes == recvtypes && sendcounts == recvcounts &&
                         is_refused_alias(sendbuf, recvbuf, 0, MPI_BYTE);
      auto in = c.buffer_w(Role::in, sendbuf, partners.out_of, sendcounts, sdispls, sendtypes, partners.absent);
      const auto out = c.buffer_w(out_or_inout(sendbuf, alias), recvbuf, partners.into, recvcounts, rdispls, recvtypes,
                                  partners.absent);
      if (alias) {
        in.buffer = out.buffer;
        in.types = out.types;
      }
      return c.run(call, pmpi, in.buffer, sendcounts, in.displs, in.types, out.buffer, recvcounts, out.displs,
                   out.types, comm);
    };
    return moving(
        call, comm, Flow::other, varying,
        [&](BlockMessages& blocks) {
          return sendbuf != MPI_IN_PLACE && list_exchange(blocks, comm, partners.among, /*own=*/true,
                                                          w_blocks(sendbuf, sendcounts, sdispls, sendtypes),
                                                          w_blocks(recvbuf, recvcounts, rdispls, recvtypes));
        },
        through_host);
  });
}

// --- reductions without a root ---------------------------------------------------------------------------------------

/// The processes that share the result of a Reduce_scatter.
int sharers(MPI_Comm comm) {
  int size = 0;
  if (comm != MPI_COMM_NULL) PMPI_Comm_size(comm, &size);
  return size;
}

/// Allreduce, Scan and Reduce_scatter_block. The input is `blocks` times `count` elements: one block, or one for each
/// process.
template <class Pmpi, class Count>
int reduction(const Call& call, const Pmpi& pmpi, device::Result result, int blocks, const void* sendbuf, void* recvbuf,
              Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    ReductionArguments arguments = {
        .result = result, .sendbuf = sendbuf, .recvbuf = recvbuf, .count = std::int64_t(count) * blocks};
    if (blocks > 1) arguments.blocks.assign(static_cast<std::size_t>(blocks), count);
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      const std::int64_t given = std::int64_t(count) * blocks;
      const bool alias = is_alias(sendbuf, recvbuf);
      const Given out =
          c.reduction(out_or_inout(sendbuf, alias), recvbuf, alias || sendbuf == MPI_IN_PLACE ? given : count, type);
      const Given in = alias ? out : c.reduction(Role::in, sendbuf, given, type);
      return c.run(call, pmpi, in.buffer, out.buffer, count, type, operator_for_mpi(op, type), comm);
    };
    return reducing(call, comm, arguments, type, op, through_host);
  });
}

/// The first process gets nothing: its receive buffer is read if it is the send buffer, too, and ignored otherwise.
template <class Pmpi, class Count>
int exscan(const Call& call, const Pmpi& pmpi, const void* sendbuf, void* recvbuf, Count count, MPI_Datatype type,
           MPI_Op op, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const ReductionArguments arguments = {
        .result = device::Result::exscan, .sendbuf = sendbuf, .recvbuf = recvbuf, .count = count};
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      int rank = 0;
      if (comm != MPI_COMM_NULL) PMPI_Comm_rank(comm, &rank);
      const bool alias = is_alias(sendbuf, recvbuf);
      Given out{recvbuf, type};
      if (rank != 0)
        out = c.reduction(out_or_inout(sendbuf, alias), recvbuf, count, type);
      else if (alias || sendbuf == MPI_IN_PLACE)
        out = c.reduction(Role::in, recvbuf, count, type);
      const Given in = alias ? out : c.reduction(Role::in, sendbuf, count, type);
      return c.run(call, pmpi, in.buffer, out.buffer, count, type, operator_for_mpi(op, type), comm);
    };
    return reducing(call, comm, arguments, type, op, through_host);
  });
}

template <class Pmpi, class Count>
int reduce_scatter(const Call& call, const Pmpi& pmpi, const void* sendbuf, void* recvbuf, const Count* recvcounts,
                   MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return guarded(comm, call.name, [&] {
    const auto through_host = [=](const Call& call) {
      CallBuffers c(call.name, {.comm = comm});
      Given in{const_cast<void*>(sendbuf), type}, out{recvbuf, type};
      if (comm != MPI_COMM_NULL && recvcounts != nullptr) {
        int rank = 0, size = 0;  // of the local group, whose processes share the result
        PMPI_Comm_rank(comm, &rank);
        PMPI_Comm_size(comm, &size);
        const std::int64_t total = sum(recvcounts, size);
        const bool alias = is_alias(sendbuf, recvbuf);
        out = c.reduction(out_or_inout(sendbuf, alias), recvbuf,
                          alias || sendbuf == MPI_IN_PLACE ? total : recvcounts[rank], type);
        in = alias ? out : c.reduction(Role::in, sendbuf, total, type);
      }
      return c.run(call, pmpi, in.buffer, out.buffer, recvcounts, type, operator_for_mpi(op, type), comm);
    };
    ReductionArguments arguments = not_for_gpus();
    if (const int size = sharers(comm); size > 1 && recvcounts != nullptr)
      arguments = {.sendbuf = sendbuf,
                   .recvbuf = recvbuf,
                   .count = sum(recvcounts, size),
                   .blocks = {recvcounts, recvcounts + size}};
    return reducing(call, comm, arguments, type, op, through_host);
  });
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

// The namespaces only give Count and Displacement their meaning: the functions are C functions.
namespace small_counts {
using Count = int;
using Displacement = int;
#define GPUDT_COLLECTIVE GPUDT_SMALL_COUNTS
#include "interpose/calls/collective_functions.inc"
#undef GPUDT_COLLECTIVE
}  // namespace small_counts

#if defined(GPUDT_MPI_LARGE_COUNTS)
namespace large_counts {
using Count = MPI_Count;
using Displacement = MPI_Aint;
#define GPUDT_COLLECTIVE GPUDT_LARGE_COUNTS
#include "interpose/calls/collective_functions.inc"
}  // namespace large_counts
#endif
