// Arguments of the functions that enqueue, for the generated ones (scripts/generate/streams.py). MPI checks them only
// when the stream comes to the operation, and the program's arrays are its own again before that: so keep(comm) of each
// throws MpiError if the argument is wrong, with the class of the blocking function, or returns what is kept of it.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "datatype/decode.hpp"
#include "interpose/calls/enqueued_access.hpp"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/requests/point_to_point.hpp"
#include "interpose/streams/enqueue.hpp"
#include "interpose/support/errors.hpp"

// What an operation with large counts is: without those of MPI-4 the ordinary one, and then counts must fit.
#if defined(GPUDT_MPI_LARGE_COUNTS)
#define GPUDT_LARGE(function) function##_c
#else
#define GPUDT_LARGE(function) function
#endif

namespace gpudt::interpose::enqueued {

#if defined(GPUDT_MPI_LARGE_COUNTS)
using LargeCount = MPI_Count;
using LargeDisplacement = MPI_Aint;
#else
using LargeCount = int;
using LargeDisplacement = int;
#endif

template <class To, class From>
To fitted(From value) {
  if (!std::in_range<To>(value))
    throw MpiError(MPI_ERR_COUNT, "counts and displacements beyond 2147483647 need an MPI library with those of MPI-4");
  return static_cast<To>(value);
}

inline void check(bool right, int error_class, const char* what) {
  if (!right) throw MpiError(error_class, what);
}
inline void check_count(bool right) {
  check(right, MPI_ERR_COUNT, "the count is negative");
}
inline void check_type(MPI_Datatype type) {
  check(datatype::type_info(type) != nullptr, MPI_ERR_TYPE, "the datatype is null or not committed");
}

/// Whether MPI ignores the arguments that follow a send buffer.
inline bool in_place(const void* buffer) {
  return buffer == MPI_IN_PLACE;
}

/// An argument that MPI checks at once, or not at all.
template <class Value>
struct Plain {
  Value value;
  Value keep(MPI_Comm) const { return value; }
};

/// A buffer of `count` elements. At a null address there are only types with absolute addresses.
template <class Address, class Count>
struct Buffer {
  Address address;
  Count count;
  MPI_Datatype type;
  Address keep(MPI_Comm) const {
    const bool missing = address == nullptr && count > 0 && type != MPI_DATATYPE_NULL && datatype::is_predefined(type);
    check(!missing, MPI_ERR_BUFFER, "the buffer is null");
    return address;
  }
};

template <class Value>
struct Count {
  Value value;
  const void* of = nullptr;  ///< the buffer, if it may be MPI_IN_PLACE
  using Kept = std::conditional_t<std::is_same_v<Value, int>, int, LargeCount>;
  Kept keep(MPI_Comm) const {
    if (in_place(of)) return 0;
    check_count(value >= 0);
    return fitted<Kept>(value);
  }
};

struct Datatype {
  MPI_Datatype type;
  const void* of = nullptr;
  MPI_Datatype keep(MPI_Comm) const {
    if (!in_place(of)) check_type(type);
    return type;
  }
};

struct Operator {
  MPI_Op op;
  MPI_Op keep(MPI_Comm) const {
    check(op != MPI_OP_NULL, MPI_ERR_OP, "the operator is null");
    return op;
  }
};

struct Destination {
  int rank;
  int keep(MPI_Comm comm) const {
    check(rank == MPI_PROC_NULL || valid_rank(comm, rank), MPI_ERR_RANK, "the rank is not valid");
    return rank;
  }
};

struct Source {
  int rank;
  int keep(MPI_Comm comm) const {
    const bool special = rank == MPI_PROC_NULL || rank == MPI_ANY_SOURCE;
    check(special || valid_rank(comm, rank), MPI_ERR_RANK, "the rank is not valid");
    return rank;
  }
};

/// The tag of a send, or also MPI_ANY_TAG.
struct Tag {
  int tag;
  bool any = false;
  int keep(MPI_Comm comm) const {
    check((any && tag == MPI_ANY_TAG) || valid_tag(comm, tag), MPI_ERR_TAG, "the tag is not valid");
    return tag;
  }
};

struct Root {
  int rank;
  int keep(MPI_Comm comm) const {
    const bool special = is_between_groups(comm) && (rank == MPI_ROOT || rank == MPI_PROC_NULL);
    check(special || valid_rank(comm, rank), MPI_ERR_ROOT, "the root is not valid");
    return rank;
  }
};

// --- arrays, by block ------------------------------------------------------------------------------------------------

using BlocksOf = int (*)(MPI_Comm);
inline Blocks checked_neighbours(MPI_Comm comm) {
  int topology = MPI_UNDEFINED;
  PMPI_Topo_test(comm, &topology);
  check(topology != MPI_UNDEFINED, MPI_ERR_TOPOLOGY, "the communicator has no topology");
  return neighbours(comm);
}
inline int out_neighbours(MPI_Comm comm) {
  return checked_neighbours(comm).out_of;
}
inline int in_neighbours(MPI_Comm comm) {
  return checked_neighbours(comm).into;
}

/// The number of blocks, and so of elements of each array.
inline int number_of(BlocksOf blocks, MPI_Comm comm, const void* array, const void* of) {
  if (in_place(of)) return 0;
  const int count = blocks(comm);
  check(array != nullptr || count == 0, MPI_ERR_ARG, "an array is null");
  return count;
}

template <class To, class From>
std::vector<To> copied(const From* from, int count) {
  std::vector<To> to(static_cast<std::size_t>(count));
  std::transform(from, from + count, to.begin(), fitted<To, From>);
  return to;
}

template <class Value>
struct Counts {
  const Value* values;
  BlocksOf blocks;
  const void* of = nullptr;
  auto keep(MPI_Comm comm) const {
    const int count = number_of(blocks, comm, values, of);
    check_count(std::all_of(values, values + count, [](Value each) { return each >= 0; }));
    return copied<typename Count<Value>::Kept>(values, count);
  }
};

/// `Kept`: what MPI is given.
template <class Kept, class Value>
struct Displacements {
  const Value* values;
  BlocksOf blocks;
  const void* of = nullptr;
  auto keep(MPI_Comm comm) const { return copied<Kept>(values, number_of(blocks, comm, values, of)); }
};

/// The types of empty blocks may be null. The counts have been kept before.
template <class Value>
struct Datatypes {
  const MPI_Datatype* types;
  const Value* counts;
  BlocksOf blocks;
  const void* of = nullptr;
  auto keep(MPI_Comm comm) const {
    const int count = number_of(blocks, comm, types, of);
    for (int i = 0; i < count; ++i)
      if (counts[i] != 0) check_type(types[i]);
    return std::vector<MPI_Datatype>(types, types + count);
  }
};

/// Readies the GPUs of a call's buffers for the types that follow in the list of arguments: when the program waits to
/// launch work, there may be no memory for them.
class Preparing {
 public:
  explicit Preparing(MPI_Comm comm) : comm_(comm) {}

  template <class Argument>
  void operator()(const Argument&) {}
  template <class Value>
  void operator()(const Plain<Value*>& argument) {
    add(argument.value);
  }
  template <class Address, class Count>
  void operator()(const Buffer<Address, Count>& argument) {
    add(argument.address);
  }
  void operator()(const Datatype& argument) { prepare(argument.type); }
  template <class Value>
  void operator()(const Datatypes<Value>& argument) {
    if (in_place(argument.of)) return;
    for (int i = 0; i < argument.blocks(comm_); ++i)
      if (argument.counts[i] != 0) prepare(argument.types[i]);
  }

 private:
  void add(const void* buffer) {
    if (std::exchange(typed_, false)) buffers_.clear();
    buffers_.push_back(buffer);
  }
  void prepare(MPI_Datatype type) {
    typed_ = true;
    if (type == MPI_DATATYPE_NULL) return;
    const datatype::TypeInfoRef info = datatype::is_predefined(type) ? nullptr : datatype::type_info(type);
    for (const void* const each : buffers_) {
      const std::intptr_t first = reinterpret_cast<std::intptr_t>(each) + (info ? info->layout().true_lb() : 0);
      const device::Location location = device::classify(reinterpret_cast<const void*>(first));
      if (in_place(each) || !location.on_device()) continue;
      device::prepare_for_streams(location.ordinal);
      if (info) device::prepare_layout(location.ordinal, info->layout());
    }
  }

  const MPI_Comm comm_;
  std::vector<const void*> buffers_;  ///< the latest, to which the next type applies
  bool typed_ = false;
};

template <class... Arguments>
void prepare(MPI_Comm comm, const Arguments&... arguments) {
  Preparing preparing(comm);
  (preparing(arguments), ...);
}

// --- operations ------------------------------------------------------------------------------------------------------

template <class Value>
Value given(Value kept) {
  return kept;
}
template <class Value>
const Value* given(const std::vector<Value>& kept) {
  return kept.data();
}

/// `nonblocking(arguments..., handle, request)`. Throws MpiError if an argument is wrong, for the first of them.
template <class Handle, class Nonblocking, class... Arguments>
StartEnqueued start_of(MPI_Comm comm, Handle handle, Nonblocking nonblocking, const Arguments&... arguments) {
  return [handle, nonblocking, kept = std::tuple{arguments.keep(comm)...}](MPI_Request* request) {
    return std::apply([&](const auto&... each) { return nonblocking(given(each)..., handle, request); }, kept);
  };
}

template <class... Arguments>
inline constexpr bool is_message = ((std::is_same_v<Arguments, Destination> || std::is_same_v<Arguments, Source>) ||
                                    ...);

/// Enqueues an operation for which the stream waits.
template <class Nonblocking, class... Arguments>
int waiting(const char* call, MPI_Comm comm, MPI_Status* status, Nonblocking nonblocking,
            const Arguments&... arguments) {
  return guarded(comm, call, [&] {
    const auto stream = stream_of(comm);
    StartEnqueued start = start_of(comm, comm, nonblocking, arguments...);
    prepare(comm, arguments...);
    return enqueue(call, stream, status, {.start = std::move(start), .is_message = is_message<Arguments...>});
  });
}

/// Enqueues an operation that the program waits for by its request.
template <class Nonblocking, class... Arguments>
int requesting(const char* call, MPI_Comm comm, MPI_Request* request, Nonblocking nonblocking,
               const Arguments&... arguments) {
  return guarded(comm, call, [&] {
    const auto stream = stream_of(comm);
    check(request != nullptr, MPI_ERR_REQUEST, "the request is null");
    StartEnqueued start = start_of(comm, comm, nonblocking, arguments...);
    prepare(comm, arguments...);
    return enqueue_nonblocking(call, stream, request,
                               {.start = std::move(start), .is_message = is_message<Arguments...>});
  });
}

/// Enqueues an access to a window, for which the stream waits.
template <class Nonblocking, class... Arguments>
int accessing(const char* call, MPI_Win win, bool lands, int rank, Nonblocking nonblocking,
              const Arguments&... arguments) {
  return guarded(OfWindow{win}, call, [&] {
    const auto stream = stream_of(OfWindow{win});
    Steps steps;
    auto start = start_of(MPI_COMM_NULL, win, nonblocking, arguments...);
    prepare(MPI_COMM_NULL, arguments...);
    if (const int code = access_steps(rank, win, lands, std::move(start), &steps)) return code;
    return enqueue(call, stream, MPI_STATUS_IGNORE, std::move(steps));
  });
}

}  // namespace gpudt::interpose::enqueued
