// What of device.cuh is not inlined: data moved by loads and stores, and the last message.
#include <cstdio>

#include "initiated/device.cuh"

namespace gpudt::initiated::detail {
__device__ void fail(const KernelWorld& world, int rank, Call call, Status status) {
  if (threadIdx.x % 32 + 1 == static_cast<unsigned>(__ffs(static_cast<int>(__activemask()))))
    printf("gpudt-initiated: rank %d of %d (block %u of GPU %d): %s(%s %lld, %s %lld, %s %lld): %s\n", rank,
           world.size(), blockIdx.x, world.gpu, call.name, call.argument[0], call.value[0], call.argument[1],
           call.value[1], call.argument[2], call.value[2], status_text(status));
  __trap();
}

__device__ Taken take_further(const KernelWorld& world, RankState& state, int local, const Pattern& pattern, int count,
                              Notification& latest) {
  const QueueAccess access{world, local};
  const WarpGroup group{access};
  Inbox box = inbox_of(world, state, local);
  return take(box, group, pattern, count, latest);
}

__device__ void send_credit(const KernelWorld& world, int local, int gpu, Ticket head) {
  fence_all();
  send_word(world, world.credit + world.target_index(world.gpu, local), head, gpu);
}

namespace {

struct CreditAccess {
  WaitTimer& timer;

  __device__ Ticket read_credit(const std::uint64_t* word) const {
    return static_cast<Ticket>(acquire(const_cast<std::uint64_t*>(word)));
  }
  __device__ bool go_on() const {
    timer.poll();
    return true;
  }
};

}  // namespace

__device__ Ticket wait_for_credit(const KernelWorld& world, int rank, std::uint64_t index, Ticket ticket, Ticket known,
                                  const Call& call) {
  WaitTimer timer(world, rank, call);
  await_credit(CreditAccess{timer}, world.credit + index, world.capacity_log, ticket, known);
  return known;
}

namespace {

/// Between contiguous sides, both aligned to 16 bytes: without the computation of places one block moves more.
__device__ void copy_words(const Sides& sides, std::int64_t begin, std::int64_t end, std::int64_t index,
                           std::int64_t count) {
  const auto* const from = reinterpret_cast<const uint4*>(sides.place(begin, device::NoTile()).from);
  auto* const to = reinterpret_cast<uint4*>(sides.place(begin, device::NoTile()).to);
  const std::int64_t words = (end - begin) / static_cast<std::int64_t>(sizeof(uint4));
#pragma unroll 4
  for (std::int64_t i = index; i < words; i += count) to[i] = from[i];
}

}  // namespace

__device__ void move_directly(const Sides& sides, std::int64_t begin, std::int64_t end, std::int64_t index,
                              std::int64_t count) {
  const Sides mine = sides;  // in registers: stores could change what is elsewhere
  constexpr std::int64_t width = sizeof(uint4);
  if (is_contiguous(mine.from_map.layout) && is_contiguous(mine.map.layout) && word_of(mine) == width &&
      begin % width == 0 && begin < end) {
    const std::int64_t whole = begin + (end - begin) / width * width;
    copy_words(mine, begin, whole, index, count);
    begin = whole;
  }
  move(mine, UsualMemory(), begin, end, index, count);
}

namespace {

template <class T>
__device__ T combined(Op op, T there, T given) {
  if (op == Op::product) return there * given;
  if (op == Op::minimum) return Min()(there, given);
  if (op == Op::maximum) return Max()(there, given);
  if constexpr (std::is_integral_v<T>) {
    if (op == Op::bit_and) return there & given;
    if (op == Op::bit_or) return there | given;
    if (op == Op::bit_xor) return there ^ given;
  }
  return given;
}

template <class T, class Word>
__device__ void combine(Address to, const Word& word, Op op) {
  T given;
  memcpy(&given, &word, sizeof given);
  const ::cuda::atomic_ref<T, ::cuda::thread_scope_system> there(*reinterpret_cast<T*>(to));
  if (op == Op::sum) {
    there.fetch_add(given, ::cuda::memory_order_relaxed);
  } else if (op == Op::replace) {
    there.store(given, ::cuda::memory_order_relaxed);
  } else {
    T old = there.load(::cuda::memory_order_relaxed);
    while (!there.compare_exchange_weak(old, combined(op, old, given), ::cuda::memory_order_relaxed)) {
    }
  }
}

/// Like AccumulatingMemory, with what is known when the kernel runs: a message has one branch for all its elements,
/// which costs nothing beside the atomic operations.
struct CombiningMemory {
  Element element;
  Op op;

  template <class Word>
  __device__ __forceinline__ Word load(Address from) const {
    return UsualMemory().load<Word>(from);
  }
  template <class Word>
  __device__ __forceinline__ void store(Address to, const Word& word) const {
    if constexpr (sizeof(Word) == 4) {
      if (element == Element::int32) combine<std::int32_t>(to, word, op);
      if (element == Element::uint32) combine<std::uint32_t>(to, word, op);
      if (element == Element::float32) combine<float>(to, word, op);
    } else if constexpr (sizeof(Word) == 8) {
      if (element == Element::int64) combine<std::int64_t>(to, word, op);
      if (element == Element::uint64) combine<std::uint64_t>(to, word, op);
      if (element == Element::float64) combine<double>(to, word, op);
    }
  }
};

}  // namespace

__device__ void combine_directly(const Sides& sides, Element element, Op op, std::int64_t begin, std::int64_t end,
                                 std::int64_t index, std::int64_t count) {
  const Sides mine = sides;
  const CombiningMemory memory = {element, op};
  if (width_of(element) == 4)
    move_range<std::uint32_t>(mine, memory, begin, end, index, count);
  else
    move_range<std::uint64_t>(mine, memory, begin, end, index, count);
}

__device__ char* place_in(const WindowRegions& regions, std::int64_t address, std::int64_t low, std::int64_t high) {
  std::int64_t begin = 0, end = regions.count;
  while (begin < end) {  // the first region that begins behind `low`
    const std::int64_t middle = begin + (end - begin) / 2;
    if (regions.first[middle].begin <= low)
      begin = middle + 1;
    else
      end = middle;
  }
  if (begin == 0 || high > regions.first[begin - 1].end) return nowhere();
  return reinterpret_cast<char*>(address + regions.first[begin - 1].distance);
}

namespace {

/// Layouts that do not change: not in the memory of a thread or block, where others may come to lie.
__device__ bool lasts(const KernelLayout* layout) {
  return layout == nullptr || (!__isLocal(layout) && !__isShared(layout));
}

}  // namespace

__device__ int learn_move(const KernelWorld& world, RankState& state, const Sides& sides, std::int64_t begin,
                          std::int64_t end, std::int64_t index, std::int64_t count, int instead) {
  KnownMove made = {};
  const Movers movers = movers_of(index, count);
  // All threads come to the same answer.
  if (!lasts(sides.from_map.layout) || !lasts(sides.map.layout) || !make_known(sides, begin, end, movers, made))
    return known_moves;
  const int known = instead < known_moves ? instead : static_cast<int>(state.moves_made % known_moves);
  keep_places(sides, made, movers, places_of(world, known));  // read again by the same thread
  __syncthreads();                                            // all have looked at the state
  if (threadIdx.x == 0) {
    state.moves[known] = made;
    state.moves_made += instead < known_moves ? 0 : 1;
  }
  __syncthreads();
  return known;
}

}  // namespace gpudt::initiated::detail
