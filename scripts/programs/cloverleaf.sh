#!/usr/bin/env bash
# CloverLeaf (UoB-HPC, its CUDA model), 3840^2 cells, 87 steps (clover_bm16_short.in), in seconds: before, with its own
# staging buffer; after, with device pointers. It compares the kinetic energy with the deck's.
#
# usage: cloverleaf.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/UoB-HPC/CloverLeaf.git
by_cmake "$sources" -DMODEL=cuda -DENABLE_MPI=ON "-DCUDA_ARCH=sm_$gpu_arch"
built

solve() {
  local staging=true
  [ "$1" = before ] || staging=false
  mpi "$1" -wdir "$work" "$here/own_gpu.sh" "$work/build/cuda-cloverleaf" --staging-buffer $staging \
    --file "$sources/InputDecks/clover_bm16_short.in" |
    awk '/Wall clock/ { time = $3 } /Outcome: PASSED/ { passed = 1 } END { print passed ? time : "failed" }'
}

compare 'CloverLeaf bm16_short' s solve
