#!/usr/bin/env bash
# TeaLeaf (UoB-HPC, its CUDA model), 1000^2 cells, 10 steps of conjugate gradients (tea_bm_5e_1.in), in seconds: before,
# with its own staging buffer; after, with device pointers. It compares the temperature with tea.problems.
#
# usage: tealeaf.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/UoB-HPC/TeaLeaf.git
by_cmake "$sources" -DMODEL=cuda -DENABLE_MPI=ON "-DCUDA_ARCH=sm_$gpu_arch"
built

solve() {
  local staging=true
  [ "$1" = before ] || staging=false
  mpi "$1" -wdir "$work" "$here/own_gpu.sh" "$work/build/cuda-tealeaf" --staging-buffer $staging \
    --file "$sources/Benchmarks/tea_bm_5e_1.in" --problems "$sources/tea.problems" |
    awk '/Wallclock:/ { time = $2 + 0 } /Outcome: PASSED/ { passed = 1 } END { print passed ? time : "failed" }'
}

compare 'TeaLeaf bm_5e_1' s solve
