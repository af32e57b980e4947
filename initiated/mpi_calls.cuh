// MPI's calls for kernels: the arguments of MPI_Put and its like, in their order, over Rank (device.cuh), whose scopes,
// memory order and errors they have.
//
//   __global__ void kernel(const __grid_constant__ Arguments arguments) {
//     __shared__ RankState state;
//     Rank rank(arguments.world, state);
//     const mpi::Win win(rank, arguments.window);
//     put(source, 3, arguments.column, right, 0, 3 * n, mpi::basic<double>(), win);
//     put_notify(source, 1, arguments.column, right, 0, 1, arguments.column, win, tag);
//     wait(left, win, tag);
//     pready(partition, mpi::Request(rank, arguments.send));
//   }
//
// Ranks are the World's: with world.view(1) those of the window; otherwise thread blocks, and all blocks of one GPU
// share its part of the window. Displacements are in the window's displacement units, in a dynamic window addresses of
// the target's process (MPI_Get_address there). A type is an MPI datatype that Datatype (world.hpp) has uploaded, or
// basic<T>(). Both sides of a call must have the same size in bytes; whether their type signatures match is not
// checked. An access that returns ok is complete at the origin, or behind flush() where Rank says so.
#pragma once

#include "initiated/device.cuh"

namespace gpudt::initiated::mpi {

/// An MPI datatype, in a call. Keeps a pointer to a Datatype's KernelType, which must lie in the kernel's parameters (a
/// __grid_constant__) or in global memory.
struct Type {
  const KernelType* made;  ///< null: a predefined one
  std::int64_t size;       ///< packed bytes of an element; negative: no Datatype has made it
  std::int64_t most;       ///< elements that a call takes
  Element element;         ///< what it is made of, for accumulate()

  // NOLINTNEXTLINE(google-explicit-constructor): a KernelType is the argument of calls
  __device__ __forceinline__ Type(const KernelType& type)
      : made(&type), size(type.size), most(type.most), element(type.element) {}
  __host__ __device__ constexpr Type(std::int64_t its_size, Element its_element)
      : made(nullptr), size(its_size), most((std::int64_t{1} << 61) / its_size), element(its_element) {}
};

namespace detail {

template <class T>
__host__ __device__ constexpr Element element_of() {
  if constexpr (std::is_same_v<T, float>) return Element::float32;
  if constexpr (std::is_same_v<T, double>) return Element::float64;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool> && sizeof(T) == 4)
    return std::is_signed_v<T> ? Element::int32 : Element::uint32;
  if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return std::is_signed_v<T> ? Element::int64 : Element::uint64;
  return Element::other;
}

}  // namespace detail

/// The predefined datatype of elements of type T: basic<double>() is MPI_DOUBLE.
template <class T>
__host__ __device__ constexpr Type basic() {
  return {static_cast<std::int64_t>(sizeof(T)), detail::element_of<T>()};
}

/// A window and the rank that uses it. Keeps references to both. The calls below are found through it.
struct Win {
  __device__ __forceinline__ Win(Rank& its_rank, const Window& its_window) : rank(its_rank), window(its_window) {}
  Rank& rank;
  const Window& window;
};

namespace detail {

/// Layout and size of a number of elements, as Rank takes them.
struct Data {
  const KernelLayout* layout;
  std::int64_t bytes;
  Status status;
};
__device__ __forceinline__ Data data_of(const Type& type, std::int64_t count) {
  if (type.size < 0) return {nullptr, 0, Status::bad_type};
  if (count < 0 || count > type.most) return {nullptr, 0, Status::bad_count};
  if (type.made == nullptr || type.made->plain != 0) return {nullptr, count * type.size, Status::ok};
  // One element is the usual number, and its layout the faster one.
  return {count == 1 ? &type.made->one : &type.made->many, count * type.size, Status::ok};
}

/// Both sides of an access.
struct Access {
  Local here;
  Remote there;
  std::int64_t bytes;
  Status status;
};
__device__ __forceinline__ Access access_of(const void* origin_addr, std::int64_t origin_count, const Type& origin_type,
                                            int target_rank, std::int64_t target_disp, std::int64_t target_count,
                                            const Type& target_type, const Win& win) {
  const Data origin = data_of(origin_type, origin_count), target = data_of(target_type, target_count);
  Access made = {here(origin_addr, origin.layout), at(win.window, target_rank, 0, target.layout), origin.bytes,
                 origin.status};
  if (made.status == Status::ok) made.status = target.status;
  if (made.status == Status::ok && origin.bytes != target.bytes) made.status = Status::bad_count;
  if (made.status == Status::ok && (target_rank < 0 || target_rank >= win.rank.size())) made.status = Status::bad_rank;
  if (made.status == Status::ok) {
    const std::int64_t unit = initiated::detail::unit_of(win.window, win.rank.gpu_of(target_rank));
    made.there.offset = target_disp * unit;
    if (__mul64hi(target_disp, unit) != made.there.offset >> 63) made.status = Status::bad_range;
  }
  return made;
}
__device__ __forceinline__ Status refused(const char* name, Status status, std::int64_t origin_count, int target_rank,
                                          std::int64_t target_count, const Win& win) {
  return win.rank.failed(
      status, {name, {"origin_count", "target_rank", "target_count"}, {origin_count, target_rank, target_count}});
}

}  // namespace detail

/// MPI_Put. Errors: those of Rank::put, bad_count, bad_type.
template <class Scope = Block>
__device__ Status put(const void* origin_addr, std::int64_t origin_count, const Type& origin_type, int target_rank,
                      std::int64_t target_disp, std::int64_t target_count, const Type& target_type, const Win& win) {
  const detail::Access made = detail::access_of(origin_addr, origin_count, origin_type, target_rank, target_disp,
                                                target_count, target_type, win);
  if (made.status != Status::ok)
    return detail::refused("put", made.status, origin_count, target_rank, target_count, win);
  return win.rank.put<Scope>(made.there, made.here, made.bytes);
}

/// MPI_Get. The data are there when it returns. Errors: those of put().
template <class Scope = Block>
__device__ Status get(void* origin_addr, std::int64_t origin_count, const Type& origin_type, int target_rank,
                      std::int64_t target_disp, std::int64_t target_count, const Type& target_type, const Win& win) {
  const detail::Access made = detail::access_of(origin_addr, origin_count, origin_type, target_rank, target_disp,
                                                target_count, target_type, win);
  if (made.status != Status::ok)
    return detail::refused("get", made.status, origin_count, target_rank, target_count, win);
  return win.rank.get<Scope>(made.here, made.there, made.bytes);
}

/// MPI_Accumulate, of elements of one predefined datatype of 4 or 8 bytes on both sides, integers or reals, at
/// multiples of their size. Atomic as Rank::accumulate is. Errors: those of put(), bad_op, unreachable, and bad_layout
/// if an element is not at a multiple of its size.
template <class Scope = Block>
__device__ Status accumulate(const void* origin_addr, std::int64_t origin_count, const Type& origin_type,
                             int target_rank, std::int64_t target_disp, std::int64_t target_count,
                             const Type& target_type, Op op, const Win& win) {
  detail::Access made = detail::access_of(origin_addr, origin_count, origin_type, target_rank, target_disp,
                                          target_count, target_type, win);
  if (made.status == Status::ok && origin_type.element != target_type.element) made.status = Status::bad_type;
  if (made.status != Status::ok)
    return detail::refused("accumulate", made.status, origin_count, target_rank, target_count, win);
  return win.rank.accumulate<Scope>(target_type.element, op, made.there, made.here, made.bytes);
}

/// put(), and a notification of the target with `tag` behind the data. Errors: those of put() and Rank::put_notify.
template <class Scope = Block>
__device__ Status put_notify(const void* origin_addr, std::int64_t origin_count, const Type& origin_type,
                             int target_rank, std::int64_t target_disp, std::int64_t target_count,
                             const Type& target_type, const Win& win, int tag) {
  const detail::Access made = detail::access_of(origin_addr, origin_count, origin_type, target_rank, target_disp,
                                                target_count, target_type, win);
  if (made.status != Status::ok)
    return detail::refused("put_notify", made.status, origin_count, target_rank, target_count, win);
  return win.rank.put_notify<Scope>(made.there, made.here, made.bytes, tag);
}

/// A notification alone, behind what the scope has put to that rank. Errors: those of Rank::notify.
template <class Scope = Block>
__device__ Status notify(int target_rank, const Win& win, int tag) {
  return win.rank.notify<Scope>(target_rank, tag, win.window.id);
}

/// Waits for `count` notifications of the window, from `source_rank` and with `tag`, or any_value, and consumes them.
/// `last`, if not null, is the latest. Errors: those of Rank::wait_notifications.
template <class Scope = Block>
__device__ Status wait(int source_rank, const Win& win, int tag, int count = 1, Notification* last = nullptr) {
  return win.rank.wait_notifications<Scope>({win.window.id, source_rank, tag}, count, last);
}
/// The same without waiting: not_yet if there are not enough; then none is consumed. Not for the Grid.
template <class Scope = Block>
__device__ Status test(int source_rank, const Win& win, int tag, int count = 1, Notification* last = nullptr) {
  return win.rank.test_notifications<Scope>({win.window.id, source_rank, tag}, count, last);
}

/// MPI_Win_flush: returns when all that the scope has put is in the targets' memory, not that of `target_rank` alone.
/// Errors: bad_rank.
template <class Scope = Block>
__device__ Status flush(int target_rank, const Win& win) {
  if (target_rank < 0 || target_rank >= win.rank.size())
    return win.rank.failed(Status::bad_rank,
                           {"flush", {"target_rank", "window", "size"}, {target_rank, win.window.id, win.rank.size()}});
  win.rank.flush<Scope>();
  return Status::ok;
}

// --- partitioned communication --------------------------------------------------------------------------------------

/// A request of World::psend_init or precv_init, and the rank that uses it. Keeps references to both.
struct Request {
  __device__ __forceinline__ Request(Rank& its_rank, const KernelRequest& its_request)
      : rank(its_rank), request(its_request) {}
  Rank& rank;
  const KernelRequest& request;
};

/// MPI_Pready. Errors: those of Rank::pready.
template <class Scope = Block>
__device__ Status pready(int partition, const Request& request) {
  return request.rank.pready<Scope>(request.request, partition);
}
/// MPI_Pready_range: partitions from `partition_low` to `partition_high`, both included, up to the first error.
template <class Scope = Block>
__device__ Status pready_range(int partition_low, int partition_high, const Request& request) {
  Status status = Status::ok;
  for (int partition = partition_low; partition <= partition_high && status == Status::ok; ++partition)
    status = pready<Scope>(partition, request);
  return status;
}
/// MPI_Pready_list: `length` partitions, up to the first error. All threads of the scope read the list, which must be
/// complete and the same for all.
template <class Scope = Block>
__device__ Status pready_list(int length, const int* array_of_partitions, const Request& request) {
  Status status = Status::ok;
  for (int i = 0; i < length && status == Status::ok; ++i) status = pready<Scope>(array_of_partitions[i], request);
  return status;
}
/// MPI_Parrived: `*flag` is 1 if the partition is there, else 0. Errors: those of Rank::parrived.
template <class Scope = Block>
__device__ Status parrived(const Request& request, int partition, int* flag) {
  const Status status = request.rank.parrived<Scope>(request.request, partition);
  *flag = status == Status::ok ? 1 : 0;
  return status == Status::not_yet ? Status::ok : status;
}
/// Waits until the partition is there. Errors: those of Rank::wait_partition.
template <class Scope = Block>
__device__ Status wait(const Request& request, int partition) {
  return request.rank.wait_partition<Scope>(request.request, partition);
}

}  // namespace gpudt::initiated::mpi
