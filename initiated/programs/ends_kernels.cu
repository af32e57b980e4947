#define GPUDT_INITIATED_CHECK 1  // a checked build: before the header
#include "initiated/programs/ends_kernels.hpp"

#include "initiated/mpi_calls.cuh"

namespace gpudt::initiated::programs {
namespace {

__global__ void one_mistake(const __grid_constant__ OneMistake p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const Local mine = here(p.window.base);
  switch (p.mistake) {
    case Mistake::rank:
      rank.put(at(p.window, 7, 0), mine, 8);
      break;
    case Mistake::range:
      rank.put_notify(at(p.window, 0, 1000), mine, 8, 0);
      break;
    case Mistake::layout:
      rank.get(here(p.window.base, &p.not_made), at(p.window, 0, 0), 8);
      break;
    case Mistake::tag:
      rank.notify(0, -5);
      break;
    case Mistake::source:
      rank.test_notifications({any_value, 9, any_value});
      break;
    case Mistake::count:
      put(p.window.base, 3, mpi::basic<float>(), 0, 0, 2, mpi::basic<double>(), mpi::Win(rank, p.window));
      break;
    case Mistake::address:
      put(p.window.base, 1, mpi::basic<float>(), 0, 4096, 1, mpi::basic<float>(), mpi::Win(rank, p.dynamic));
      break;
    case Mistake::partition:
      pready(3, mpi::Request(rank, p.send));
      break;
    case Mistake::twice:
    case Mistake::granted:
      for (int i = 0; i < 2; ++i) pready(1, mpi::Request(rank, p.send));
      break;
    case Mistake::receive:
      wait(mpi::Request(rank, p.send), 0);
      break;
    case Mistake::queue:  // full of what is not waited for
      for (std::uint64_t i = 0; i < std::uint64_t{1} << p.world.capacity_log; ++i) rank.notify(0, 1);
      rank.wait_notifications({any_value, any_value, 2});
      break;
    case Mistake::timeout:
      rank.wait_notifications({any_value, any_value, 3});
      break;
  }
}

__global__ void greeting(const __grid_constant__ Greeting p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  auto* const words = reinterpret_cast<std::uint64_t*>(p.window.base);
  if (threadIdx.x == 0) words[1] = static_cast<std::uint64_t>(100 + rank.rank());
  rank.put_notify(at(p.window, (rank.rank() + 1) % rank.size(), 0), here(words + 1), sizeof *words, 0);
  rank.wait_notifications(Pattern{});
}

}  // namespace

const void* one_mistake_kernel() {
  return reinterpret_cast<const void*>(one_mistake);
}
const void* greeting_kernel() {
  return reinterpret_cast<const void*>(greeting);
}

}  // namespace gpudt::initiated::programs
