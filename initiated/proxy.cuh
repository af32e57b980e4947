// How kernels reach GPUs through the proxy of their process (proxy.hpp): commands in a ring of host memory
// (proxy_ring.hpp), which threads of a scope fill together. Included by the objects that programs are linked with.
#pragma once

#include "initiated/device.cuh"
#include "initiated/proxy_runs.hpp"

namespace gpudt::initiated::detail {
namespace {

/// The threads of a scope; of a grid those of one block.
class Team {
 public:
  __device__ explicit Team(FarScope scope) : scope_(scope) {}

  __device__ bool is_block() const { return scope_ == FarScope::block || scope_ == FarScope::grid; }
  __device__ std::int64_t index() const {
    return is_block() ? Block::index() : scope_ == FarScope::warp ? Warp::index() : Thread::index();
  }
  __device__ std::int64_t count() const {
    return is_block() ? Block::count() : scope_ == FarScope::warp ? Warp::count() : Thread::count();
  }
  __device__ bool leads() const { return index() == 0; }
  __device__ void sync() const {
    is_block() ? Block::sync() : scope_ == FarScope::warp ? Warp::sync() : Thread::sync();
  }
  /// The leader's value for all.
  __device__ std::uint64_t tell(std::uint64_t value) const {
    if (scope_ == FarScope::thread) return value;
    if (scope_ == FarScope::warp) return __shfl_sync(whole_chunk, value, 0);
    __shared__ std::uint64_t told;
    __syncthreads();
    if (threadIdx.x == 0) told = value;
    __syncthreads();
    return told;
  }

 private:
  FarScope scope_;
};

/// What of [begin, end) is this block's part of the grid's, in steps of 16 bytes.
__device__ void block_part(std::int64_t& begin, std::int64_t& end) {
  const std::int64_t share = ((end - begin + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
  const std::int64_t first = min(begin + share * blockIdx.x, end);
  end = min(first + share, end);
  begin = first;
}

/// What ProxyQueue asks of memory.
struct ProxyAccess {
  WaitTimer& timer;

  __device__ std::uint64_t next(std::uint64_t* word) const {
    return DeviceWord(*word).fetch_add(1, ::cuda::memory_order_relaxed);
  }
  __device__ std::uint64_t count(std::uint64_t* word) const {
    return DeviceWord(*word).load(::cuda::memory_order_relaxed);
  }
  __device__ std::uint64_t load(const std::uint64_t* word) const { return acquire(const_cast<std::uint64_t*>(word)); }
  __device__ std::uint64_t seen(const std::uint64_t* word) const { return acquire(const_cast<std::uint64_t*>(word)); }
  __device__ void raise(std::uint64_t* word, std::uint64_t value) const {
    fence_all();
    atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
  }
  /// Behind what other threads have written before a barrier, too.
  __device__ void publish(std::uint64_t* word, std::uint64_t value) const {
    fence_all();
    store_relaxed(word, value);
  }
  __device__ void poll() const { timer.poll(); }
};

__device__ int own_rank(const KernelWorld& world) {
  const int local = world.ranks.per_gpu == 1 ? 0 : static_cast<int>(blockIdx.x);
  return world.gpu * world.ranks.per_gpu + local;
}
__device__ Call proxy_call(const char* name, int gpu, std::int64_t bytes) {
  return {name, {"process", "bytes", "block"}, {gpu, bytes, blockIdx.x}};
}

/// Bytes from the begin of the memory that has the queues.
__device__ std::int64_t queue_offset(const KernelWorld& world, const std::uint64_t* word) {
  return reinterpret_cast<const char*>(word) - reinterpret_cast<const char*>(world.rings);
}

/// Appends runs to a list with `room` entries. `count` goes on beyond it: the proxy then stops with an error, since
/// kernels cannot report one.
struct RunList {
  ProxyRun* list;
  std::uint32_t* count;
  std::uint32_t room;
  bool shared;  ///< among the threads of a block

  __device__ void operator()(const ProxyRun& run) const {
    const std::uint32_t number = shared ? atomicAdd(count, 1u) : (*count)++;
    if (number < room) list[number] = run;
  }
};

/// Writes the runs of the window's side to the payload from `at` on, in any order. Returns their number, to the leader.
__device__ std::uint32_t list_runs(const Team& team, const FarMove& move, const Piece& piece, ProxySlot& slot,
                                   std::int64_t at) {
  __shared__ std::uint32_t of_block;
  std::uint32_t of_leader = 0;
  const bool all = team.is_block();
  std::uint32_t* const count = all ? &of_block : &of_leader;
  if (team.leads()) *count = 0;
  team.sync();
  if (!all && !team.leads()) return 0;
  const auto room = static_cast<std::uint32_t>((proxy_payload - at) / static_cast<std::int64_t>(sizeof(ProxyRun)));
  const RunList list = {reinterpret_cast<ProxyRun*>(slot.payload + at), count, room, all};
  for_runs({move.there.layout, move.end}, move.there.offset, piece, all ? team.index() : 0, all ? team.count() : 1,
           list);
  if (all) __syncthreads();
  return *count;
}

__device__ ProxyCommand command_of(ProxyCall call, const FarMove& move, const Piece& piece) {
  ProxyCommand command;
  command.call = call;
  command.target = move.gpu;
  command.memory = move.there.window.id;
  command.bytes = piece.end - piece.begin;
  return command;
}
__device__ std::int64_t contiguous_offset(const FarMove& move, std::int64_t begin) {
  return move.there.offset + SideMap{move.there.layout, move.end}.place(begin, device::NoTile()).offset;
}

/// All of the scope's threads pack; one command for each piece, in order.
__device__ void put_by_proxy(const FarMove& put, const KernelWorld& world) {
  const Team team(put.scope);
  WaitTimer timer(world, own_rank(world),
                  proxy_call("put, waiting for the proxy to complete others", put.gpu, put.end - put.begin));
  const ProxyAccess access{timer};
  const ProxyQueue<ProxyAccess> queue(world.proxy, access);
  std::int64_t begin = put.begin, end = put.end;
  if (put.scope == FarScope::grid) block_part(begin, end);
  const bool listed = !is_contiguous(put.there.layout);
  const std::int64_t most = listed ? proxy_listed_put(put.there.layout->align) : proxy_payload;
  bool signalled = !put.with_signal;
  while (begin < end || !signalled) {
    const Piece piece = first_piece(begin, end, most);
    timer.restart();
    const std::uint64_t ticket = team.tell(team.leads() ? queue.take() : 0);
    ProxySlot& slot = queue.slot(ticket);
    ProxyCommand command = command_of(ProxyCall::put, put, piece);
    if (begin < end) {
      const Sides sides = {reinterpret_cast<Address>(put.here.address),
                           reinterpret_cast<Address>(slot.payload) - static_cast<Address>(begin),
                           {put.here.layout, end},
                           {nullptr, piece.end}};
      move_directly(sides, piece.begin, piece.end, team.index(), team.count());
      if (listed)
        command.runs = list_runs(team, put, piece, slot, proxy_list_at(command.bytes));
      else
        command.offset = contiguous_offset(put, begin);
    }
    if (put.with_signal && piece.end == end) {
      command.signal = queue_offset(world, put.posting.slot);
      command.word = put.posting.word;
      signalled = true;
    }
    fence_all();
    team.sync();
    if (team.leads()) queue.publish(ticket, command);
    begin = piece.end;
  }
  team.sync();
}

/// One piece after the other: the window's side packed by the other process's proxy, then unpacked from the slot.
__device__ void get_by_proxy(const FarMove& get, const KernelWorld& world) {
  const Team team(get.scope);
  WaitTimer timer(world, own_rank(world), proxy_call("get, waiting for the proxy", get.gpu, get.end - get.begin));
  const ProxyAccess access{timer};
  const ProxyQueue<ProxyAccess> queue(world.proxy, access);
  std::int64_t begin = get.begin, end = get.end;
  if (get.scope == FarScope::grid) block_part(begin, end);
  const bool listed = !is_contiguous(get.there.layout);
  const std::int64_t most = listed ? proxy_listed_get(get.there.layout->align) : proxy_payload;
  while (begin < end) {
    const Piece piece = first_piece(begin, end, most);
    timer.restart();
    const std::uint64_t ticket = team.tell(team.leads() ? queue.take() : 0);
    ProxySlot& slot = queue.slot(ticket);
    ProxyCommand command = command_of(ProxyCall::get, get, piece);
    if (listed)
      command.runs = list_runs(team, get, piece, slot, 0);
    else
      command.offset = contiguous_offset(get, begin);
    fence_all();
    team.sync();
    if (team.leads()) {
      queue.publish(ticket, command);
      queue.await_answer(ticket);
    }
    team.sync();
    const Sides sides = {reinterpret_cast<Address>(slot.payload) - static_cast<Address>(begin),
                         reinterpret_cast<Address>(get.here.address),
                         {nullptr, piece.end},
                         {get.here.layout, end}};
    move_directly(sides, piece.begin, piece.end, team.index(), team.count());
    team.sync();
    if (team.leads()) queue.release(ticket);
    begin = piece.end;
  }
}

__device__ void word_by_proxy(const KernelWorld& world, int memory, std::int64_t offset, std::uint64_t word, int gpu) {
  WaitTimer timer(world, own_rank(world),
                  proxy_call("notify, waiting for the proxy to complete others", gpu, sizeof word));
  const ProxyAccess access{timer};
  const ProxyQueue<ProxyAccess> queue(world.proxy, access);
  ProxyCommand command;
  command.call = ProxyCall::word;
  command.target = gpu;
  command.memory = memory;
  command.offset = offset;
  command.word = word;
  queue.publish(queue.take(), command);
}

__device__ void complete_by_proxy(const KernelWorld& world) {
  fence_all();  // a flush also covers direct stores to GPUs that this one reaches
  WaitTimer timer(world, own_rank(world), proxy_call("flush, waiting for the proxy", world.gpu, 0));
  const ProxyAccess access{timer};
  ProxyQueue<ProxyAccess>(world.proxy, access).flush();
}

}  // namespace
}  // namespace gpudt::initiated::detail
