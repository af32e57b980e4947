#include "initiated/programs/check_kernels.hpp"

#include "initiated/device.cuh"
#include "initiated/gaspi.cuh"

namespace gpudt::initiated::programs {
namespace {

template <class Scope>
__device__ Status move_once(Rank& rank, const OneMove& p) {
  const Remote there = at(p.window, 1, p.offset, p.plain_there != 0 ? nullptr : &p.there);
  const Local mine = here(p.memory, p.plain_here != 0 ? nullptr : &p.here);
  if (p.call == Call::put) {
    rank.put<Scope>(at(p.window, 1, p.offset + p.aside, there.layout), mine, p.bytes);
    return rank.put_notify<Scope>(there, mine, p.bytes, 3);
  }
  rank.get<Scope>(here(p.memory + p.aside, mine.layout), there, p.bytes);
  return rank.get_notify<Scope>(mine, there, p.bytes, 3);
}

__global__ void __launch_bounds__(1024) one_move(const __grid_constant__ OneMove p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  if (rank.gpu() == 1) {
    if (blockIdx.x == 0) rank.wait_notifications({p.window.id, 0, 3});
    return;
  }
  if (rank.gpu() != 0) return;
  Status status = Status::ok;
  const bool first = blockIdx.x == 0;
  if (p.by == By::grid) status = move_once<Grid>(rank, p);
  if (p.by == By::block && first) status = move_once<Block>(rank, p);
  if (p.by == By::warp && first && threadIdx.x < 32) status = move_once<Warp>(rank, p);
  if (p.by == By::thread && first && threadIdx.x == 0) status = move_once<Thread>(rank, p);
  if (first && threadIdx.x == 0) *p.status = static_cast<std::int32_t>(status);
}

/// How many of a step's notifications of a rank have a tag or a window.
template <class Of>
__device__ int count_of(Rank& rank, int step, int value, const Of& of) {
  int count = 0;
  for (int source = 0; source < rank.size(); ++source) count += of(source, rank.rank(), step) == value ? 1 : 0;
  return count;
}

__global__ void __launch_bounds__(256) many_notifications(const __grid_constant__ ManyNotifications p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const auto tally = [&](bool right, const Notification& last) {
    if (threadIdx.x != 0) return;
    if (!right || last.tag < 0 || last.tag >= tags) atomicAdd(p.wrong, 1ull);
    if (p.matching == Matching::by_source || p.matching == Matching::any) atomicAdd(p.consumed + (last.tag & 3), 1ull);
  };
  const auto tally_many = [&](int tag, int number) {
    if (threadIdx.x == 0) atomicAdd(p.consumed + tag, static_cast<unsigned long long>(number));
  };
  for (int step = 0; step < p.steps; ++step) {
    for (int i = 0; i < rank.size(); ++i) {
      const int target = (rank.rank() + i) % rank.size();
      rank.notify(target, tag_of(rank.rank(), target, step), window_of(rank.rank(), target, step));
    }
    Notification last = {-1, -1, -1};
    if (p.matching == Matching::by_source) {
      // From whom, in an order of the rank's own; each one's come in the order of its steps.
      for (int i = 0; i < rank.size(); ++i) {
        const int source = (i * 5 + rank.rank() + step) % rank.size();
        rank.wait_notifications({any_value, source, any_value}, 1, &last);
        tally(last.source == source && last.tag == tag_of(source, rank.rank(), step) &&
                  last.window == window_of(source, rank.rank(), step),
              last);
      }
    } else if (p.matching == Matching::by_tag) {
      for (int tag = tags - 1; tag >= 0; --tag) {
        const int number = count_of(rank, step, tag, tag_of);
        if (number == 0) continue;
        rank.wait_notifications({any_value, any_value, tag}, number, &last);
        tally(last.tag == tag, last);
        tally_many(tag, number);
      }
    } else if (p.matching == Matching::by_window) {
      for (int window = windows - 1; window >= 0; --window) {
        const int number = count_of(rank, step, window, window_of);
        if (number == 0) continue;
        rank.wait_notifications({window, any_value, any_value}, number, &last);
        tally(last.window == window, last);
        tally_many(window, number);
      }
    } else {
      for (int i = 0; i < rank.size(); ++i) {
        rank.wait_notifications(Pattern{}, 1, &last);
        tally(true, last);
      }
    }
  }
  rank.barrier();
  if (rank.test_notifications(Pattern{}) != Status::not_yet && threadIdx.x == 0) atomicAdd(p.wrong, 1ull);
}

__global__ void __launch_bounds__(256) collectives(const __grid_constant__ Collectives p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const int n = rank.size(), right = (rank.rank() + 1) % n;
  std::uint64_t* const words = reinterpret_cast<std::uint64_t*>(p.window.base);
  const auto expect = [&](bool ok) {
    if (!ok) atomicAdd(p.wrong, 1ull);
  };
  for (int step = 1; step <= p.steps; ++step) {
    // What was put before a barrier is there behind it.
    if (threadIdx.x == 0) words[n + rank.rank()] = static_cast<std::uint64_t>(step) * 1000 + rank.rank();
    rank.put(at(p.window, right, static_cast<std::int64_t>(sizeof(std::uint64_t)) * right),
             here(words + n + rank.rank()), sizeof(std::uint64_t));
    rank.barrier();
    if (threadIdx.x == 0) expect(detail::relaxed(words + rank.rank()) == step * 1000ull + (rank.rank() + n - 1) % n);
    const double sum = rank.reduce(1.0 + rank.rank() * (threadIdx.x + 1.0), 2, Sum());
    if (threadIdx.x < 2) expect(sum == n + n * (n - 1) / 2.0 * (threadIdx.x + 1.0));
    const int most = rank.reduce(rank.rank() * (step % 2 == 0 ? 1 : -1), 1, Max());
    if (threadIdx.x == 0) expect(most == (step % 2 == 0 ? n - 1 : 0));
    const long long least = rank.device_reduce(static_cast<long long>(rank.rank()), 1, Min());
    if (threadIdx.x == 0) expect(least == static_cast<long long>(rank.gpu()) * rank.local_size());
    rank.device_barrier();
  }
}

template <class T, class Operator>
__device__ void accumulate_kind(Rank& rank, const Accumulations& p, int kind, const Operator& with) {
  const KernelLayout& from = sizeof(T) == 4 ? p.from_4 : p.from_8;
  const KernelLayout& to = sizeof(T) == 4 ? p.to_4 : p.to_8;
  // Of each rank its own part: the source has room for 32 of them.
  T* const mine = reinterpret_cast<T*>(p.source + (rank.local_rank() * 4 + kind) * 2 * 8 * accumulated);
  const Sides paint = {
      reinterpret_cast<Address>(mine), reinterpret_cast<Address>(mine), {nullptr, from.total}, {&from, from.total}};
  for (int i = static_cast<int>(threadIdx.x); i < accumulated; i += static_cast<int>(blockDim.x))
    *reinterpret_cast<T*>(paint.place(i * static_cast<std::int64_t>(sizeof(T)), device::NoTile()).to) =
        static_cast<T>(contribution(rank.rank(), i));
  __syncthreads();
  for (const int gpu : {0, rank.gpus() - 1}) {
    const Status status = rank.accumulate<T>(at(p.window, gpu * rank.local_size(), kind * 2 * 8 * accumulated, &to),
                                             here(mine, &from), from.total, with);
    if (status != Status::ok) *p.status = static_cast<std::int32_t>(status);
    if (rank.gpus() == 1) break;
  }
}

__global__ void __launch_bounds__(256) accumulations(const __grid_constant__ Accumulations p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  accumulate_kind<std::int32_t>(rank, p, 0, Sum());
  accumulate_kind<double>(rank, p, 1, Sum());
  accumulate_kind<float>(rank, p, 2, Max());
  accumulate_kind<long long>(rank, p, 3, Min());
  rank.barrier();
}

/// GPU 0 writes to segment 1 of GPU 1 and notifies; GPU 1 writes it back to segment 0. Every step in three ways.
__global__ void gaspi_exchange(const __grid_constant__ GaspiExchange p) {
  __shared__ gpu_gaspi_state state;
  const gpu_gaspi_context& context = p.context;
  gpu_gaspi_init(context, state);
  const auto expect = [&](bool ok) {
    if (!ok && threadIdx.x == 0) atomicAdd(p.wrong, 1ull);
  };
  if (context.world.gpu > 1) return;
  const bool first = context.world.gpu == 0;
  const int other = 1 - context.world.gpu, to = first ? 1 : 0, bytes = p.words * 4;
  auto* const mine = reinterpret_cast<std::uint32_t*>(context.segment[first ? 0 : 1].base);
  for (int step = 1; step <= p.steps; ++step) {
    const int id = step % gaspi_flags;
    const auto send = [&] {
      if (step % 2 == 0) {
        expect(gpu_gaspi_write_notify(state, first ? 0 : 1, 0, other, to, 0, bytes, id, step) == GASPI_SUCCESS);
      } else {
        expect(gpu_gaspi_write(state, first ? 0 : 1, 0, other, to, 0, bytes) == GASPI_SUCCESS);
        expect(gpu_gaspi_notify(state, to, other, id, step) == GASPI_SUCCESS);
      }
    };
    if (first) {
      for (int i = threadIdx.x; i < p.words; i += blockDim.x) mine[i] = static_cast<std::uint32_t>(step * 1000 + i);
      send();
    }
    int got = -1;
    unsigned value = 0;
    expect(gpu_gaspi_notify_waitsome(state, first ? 0 : 1, 0, gaspi_flags, &got) == GASPI_SUCCESS && got == id);
    expect(gpu_gaspi_notify_reset(state, first ? 0 : 1, got, &value) == GASPI_SUCCESS &&
           value == static_cast<unsigned>(step));
    for (int i = threadIdx.x; i < p.words; i += blockDim.x)
      if (mine[i] != static_cast<std::uint32_t>(step * 1000 + i)) atomicAdd(p.wrong, 1ull);
    if (!first) send();
  }
  int none = 0;
  if (first) expect(gpu_gaspi_notify_waitsome(state, 0, 0, gaspi_flags, &none, 1) == GASPI_TIMEOUT);
  expect(gpu_gaspi_write(state, 0, 0, 99, 1, 0, bytes) == GASPI_ERROR);
  expect(gpu_gaspi_notify(state, 1, other, gaspi_flags, 1) == GASPI_ERROR);
}

__global__ void wrong_calls_of(const __grid_constant__ WrongCalls p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const Local mine = here(p.window.base);
  const Status statuses[wrong_calls] = {
      rank.put(at(p.window, rank.size(), 0), mine, 8),
      rank.put(at(p.window, -1, 0), mine, 8),
      rank.put(at(p.window, 0, p.window.bytes - 7), mine, 8),
      rank.get(mine, at(p.window, 0, -1), 8),
      rank.put(at(p.window, 0, 0, &p.not_made), mine, 8),
      rank.put_notify(at(p.window, 0, 0, &p.layout), mine, p.layout.total + 1, 1),
      rank.notify(0, -5),
      rank.test_notifications({any_value, rank.size(), any_value}),
  };
  if (blockIdx.x == 0 && threadIdx.x == 0)
    for (int i = 0; i < wrong_calls; ++i) p.statuses[i] = static_cast<std::int32_t>(statuses[i]);
}

}  // namespace

const void* one_move_kernel() {
  return reinterpret_cast<const void*>(one_move);
}
const void* many_notifications_kernel() {
  return reinterpret_cast<const void*>(many_notifications);
}
const void* collectives_kernel() {
  return reinterpret_cast<const void*>(collectives);
}
const void* accumulations_kernel() {
  return reinterpret_cast<const void*>(accumulations);
}
const void* gaspi_kernel() {
  return reinterpret_cast<const void*>(gaspi_exchange);
}
const void* wrong_calls_kernel() {
  return reinterpret_cast<const void*>(wrong_calls_of);
}
void expected_statuses(std::int32_t (&statuses)[wrong_calls]) {
  constexpr Status expected[wrong_calls] = {Status::bad_rank,  Status::bad_rank,   Status::bad_range,
                                            Status::bad_range, Status::bad_layout, Status::bad_layout,
                                            Status::bad_tag,   Status::bad_rank};
  for (int i = 0; i < wrong_calls; ++i) statuses[i] = static_cast<std::int32_t>(expected[i]);
}

}  // namespace gpudt::initiated::programs
