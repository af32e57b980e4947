// What Rank (device.cuh) is made of: who it is, the checks of arguments, and how data are moved.
#pragma once

#include "initiated/device_parts.cuh"

namespace gpudt::initiated::detail {

/// A rank: its world, and its block's state.
class RankCore {
 public:
  __device__ __forceinline__ int rank() const { return world_.gpu * world_.ranks.per_gpu + local_; }
  __device__ __forceinline__ int size() const { return world_.size(); }
  __device__ __forceinline__ int gpu() const { return world_.gpu; }
  __device__ __forceinline__ int gpus() const { return world_.gpus; }
  __device__ __forceinline__ int local_rank() const { return local_; }  ///< among those of this GPU
  __device__ __forceinline__ int local_size() const { return world_.ranks.per_gpu; }
  __device__ __forceinline__ int gpu_of(int rank) const { return world_.ranks.gpu_of(rank); }

  /// What a call answers that is refused; ends the kernel of a checked build. For what is made of a Rank.
  __device__ __forceinline__ Status failed(Status status, [[maybe_unused]] const Call& call) const {
#if defined(GPUDT_INITIATED_CHECK)
    fail(world_, rank(), call, status);
#endif
    return status;
  }

 protected:
  __device__ __forceinline__ RankCore(const KernelWorld& world, RankState& state)
      : world_(world), state_(state), local_(world.ranks.per_gpu == 1 ? 0 : static_cast<int>(blockIdx.x)) {}

  /// Inbox::heads and ::returned, from launch to launch.
  __device__ __forceinline__ Ticket* saved_heads() const {
    return world_.heads + static_cast<std::int64_t>(2 * local_) * world_.gpus;
  }

  /// Of a move by all threads of a block its number in the state, if it was made before, and the place of the thread's
  /// first word, which is loaded meanwhile.
  struct Kept {
    int number = known_moves;  ///< or more: it is not kept
    WordPlace first = {0, 0};
  };
  template <class Scope>
  __device__ __forceinline__ Kept find_move(const KernelLayout* from, const KernelLayout* to, std::int64_t begin,
                                            std::int64_t bytes) const {
    Kept kept;
    if constexpr (is_block_wide<Scope>) {
      if (from == nullptr && to == nullptr) return kept;
      const unsigned lane = threadIdx.x % 32;
      const bool is_it = lane < known_moves && state_.moves[lane].is(from, to, begin, bytes, Scope::count());
      kept.number = lowest_set(__ballot_sync(whole_chunk, is_it));
      if (kept.number < known_moves) kept.first = first_place(places_of(world_, kept.number));
    }
    return kept;
  }

  /// Sets `place` to where the remote side is; nowhere() if loads and stores do not reach it. `known`: the number that
  /// find_move() says. Of a move that was made before the layouts need not be looked at.
  __device__ __forceinline__ Status check(const Remote& remote, const KernelLayout* local, std::int64_t begin,
                                          std::int64_t bytes, int known, bool puts, char*& place) const {
    if (remote.rank < 0 || remote.rank >= size()) return Status::bad_rank;
    const int gpu = gpu_of(remote.rank);
    const Part part = part_of(world_, remote.window, gpu);
    place = part.address != nullptr ? part.address + remote.offset : nowhere();
    if (begin < 0 || bytes < 0) return Status::bad_range;
    Touched there;
    if (known < known_moves) {
      there = puts ? state_.moves[known].to_touched : state_.moves[known].from_touched;
    } else {
      for (const KernelLayout* layout : {remote.layout, local})
        if (layout != nullptr && (layout->form == not_made || layout->total < begin + bytes)) return Status::bad_layout;
      there = touched(remote.layout, begin + bytes);
    }
    const std::int64_t low = remote.offset + there.low, high = remote.offset + there.high;
    if (remote.window.regions != nullptr) return check_address(remote, gpu, low, high, place);
    return low >= 0 && low <= high && high <= part.bytes ? Status::ok : Status::bad_range;
  }
  /// The rest of it in a dynamic window, whose bytes [low, high) are accessed.
  __device__ __forceinline__ Status check_address(const Remote& remote, int gpu, std::int64_t low, std::int64_t high,
                                                  char*& place) const {
    place = nullptr;
    if (low == high) return Status::ok;  // nothing is accessed
    place = place_in(remote.window.regions[gpu], remote.offset, low, high);
    return low <= high && place != nowhere() ? Status::ok : Status::bad_range;
  }
  /// The same with a notification in the remote side's window.
  __device__ __forceinline__ Status check(const Remote& remote, const KernelLayout* local, std::int64_t begin,
                                          std::int64_t bytes, int known, bool puts, char*& place, int tag) const {
    const Status status = check(remote, local, begin, bytes, known, puts, place);
    if (status != Status::ok) return status;
    if (tag < 0) return Status::bad_tag;
    return remote.window.id < 0 || remote.window.id >= most_windows ? Status::bad_window : Status::ok;
  }
  __device__ __forceinline__ Status check(const Pattern& pattern, int count) const {
    if (pattern.source < any_value || pattern.source >= size()) return Status::bad_rank;
    if (pattern.window < any_value || pattern.window > no_window) return Status::bad_window;
    return pattern.tag < any_value || count < 1 ? Status::bad_tag : Status::ok;
  }

  const KernelWorld& world_;
  RankState& state_;
  int local_;
};

/// Moves data.
class RankData : public RankCore {
 protected:
  using RankCore::RankCore;

  /// Whether the last put of a message carries its notification.
  template <class Scope>
  __device__ __forceinline__ bool signals(const Remote& to, const char* place) const {
    if constexpr (!std::is_same_v<Scope, Block>) return false;
    return to.layout == nullptr && place == nowhere();
  }

  /// Positions [begin, end), which the scope moves together; `there` is where `to` is, as check() says; `kept` as
  /// find_move() says.
  template <class Scope>
  __device__ __forceinline__ void put_out(const Remote& to, char* there, const Local& from, std::int64_t begin,
                                          std::int64_t end, const Kept& kept) {
    if (there == nowhere()) return put_packed_to<Scope>(to, from, begin, end, gpu_of(to.rank), false);
    if (there == from.address && to.layout == from.layout) return;  // dCUDA: windows that overlap
    if (!move_if_short<Scope>(from.address, from.layout, there, to.layout, begin, end, kept))
      move_directly(sides_of(from.address, from.layout, there, to.layout, end), begin, end, Scope::index(),
                    Scope::count());
  }
  /// The same with the notification that was reserved in the state, where signals<Scope>() holds.
  template <class Scope>
  __device__ __forceinline__ void put_out_with_signal(const Remote& to, const Local& from, std::int64_t begin,
                                                      std::int64_t end) {
    put_packed_to<Scope>(to, from, begin, end, gpu_of(to.rank), true);
  }

  template <class Scope>
  __device__ __forceinline__ void get_in(const Local& to, const Remote& from, const char* there, std::int64_t begin,
                                         std::int64_t end, const Kept& kept) {
    // Loads of the source must not find what this multiprocessor cached of it before.
    if (leads<Scope>()) acquire_fence();
    Scope::sync();
    if (there == nowhere())
      get_far({from, to, begin, end, gpu_of(from.rank), far_scope<Scope>, false, {}}, world_);
    else if (!move_if_short<Scope>(there, from.layout, to.address, to.layout, begin, end, kept))
      move_directly(sides_of(there, from.layout, to.address, to.layout, end), begin, end, Scope::index(),
                    Scope::count());
  }

  static __device__ __forceinline__ Sides sides_of(const void* from, const KernelLayout* from_layout, void* to,
                                                   const KernelLayout* to_layout, std::int64_t end) {
    return {reinterpret_cast<Address>(from), reinterpret_cast<Address>(to), {from_layout, end}, {to_layout, end}};
  }

 private:
  /// A short move by loads and stores, if it is one: contiguous on both sides, or by a block along places that it has
  /// kept, or keeps from now on.
  template <class Scope>
  __device__ __forceinline__ bool move_if_short(const void* from, const KernelLayout* from_layout, void* to,
                                                const KernelLayout* to_layout, std::int64_t begin, std::int64_t end,
                                                Kept kept) {
    const auto from_address = reinterpret_cast<Address>(from), to_address = reinterpret_cast<Address>(to);
    const auto first = static_cast<Address>(begin);
    if (from_layout == nullptr && to_layout == nullptr)
      return copy_short(from_address + first, to_address + first, end - begin, Scope::index(), Scope::count(),
                        UsualMemory());
    if constexpr (!is_block_wide<Scope>) return false;
    const std::int64_t blocks = is_grid<Scope> ? gridDim.x : 1;
    if (kept.number >= known_moves || !state_.moves[kept.number].suits(from_address, to_address)) {
      if (end - begin > 16 * known_words * blocks) return false;
      kept.number = learn_move(world_, state_, sides_of(from, from_layout, to, to_layout, end), begin, end,
                               Scope::index(), Scope::count(), kept.number);
      if (kept.number >= known_moves) return false;
      kept.first = first_place(places_of(world_, kept.number));
    }
    move_known(from_address, to_address, end - begin, state_.moves[kept.number].word,
               movers_of(Scope::index(), Scope::count()), places_of(world_, kept.number), kept.first, UsualMemory());
    return true;
  }

  template <class Scope>
  __device__ __forceinline__ void put_packed_to(const Remote& to, const Local& from, std::int64_t begin,
                                                std::int64_t end, int gpu, bool with_signal) {
    const Posting posting = with_signal ? state_.posting : Posting{};
    put_far({to, from, begin, end, gpu, far_scope<Scope>, with_signal, posting}, world_);
  }
};

}  // namespace gpudt::initiated::detail
