#!/usr/bin/env bash
# hypre's driver `ij`: a 7-point Laplacian of 128^3 points by conjugate gradients with its algebraic multigrid
# (BoomerAMG), the solution in seconds: before, hypre stages without gpudt (-gpu_mpi 0); after, it passes device pointers
# (-gpu_mpi 1). A run counts if it has reached the tolerance.
#
# usage: hypre.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/hypre-space/hypre.git
target=ij  # of by_cmake
by_cmake "$sources/src" -DHYPRE_ENABLE_CUDA=ON -DHYPRE_ENABLE_GPU_AWARE_MPI=ON -DHYPRE_BUILD_TESTS=ON \
  -DHYPRE_ENABLE_UMPIRE=OFF
built
ij=$(find "$work/build" -name ij -type f -perm -u+x | sed -n 1p)

# The time that ij prints for its solver (1: conjugate gradients with AMG), not for setting it up; with the methods that
# hypre has on GPUs.
solve() {
  local gpu_mpi=0
  [ "$1" = before ] || gpu_mpi=1
  mpi "$1" "$ij" -n 128 128 128 -P "$ranks" 1 1 -solver 1 -tol 1e-8 \
    -pmis -interptype 6 -rlx 18 -keepT 1 -exec_device -memory_device -gpu_mpi $gpu_mpi |
    awk '/^PCG Solve:/ { solving = 1 }
      solving && /wall clock time/ { time = $5; solving = 0 }
      /^Final Relative Residual Norm/ { norm = $6 }
      END { print norm != "" && norm < 1e-8 ? time : "failed" }'
}

compare 'hypre ij 128^3' s solve
