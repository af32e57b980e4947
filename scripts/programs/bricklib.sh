#!/usr/bin/env bash
# BrickLib, the halo of a block of 256^3 cells a rank, in microseconds an exchange: before, its copy of the whole array to
# the host, exchange by MPI's datatypes there, and copy back; after, the exchange on device memory. It compares the array
# with its bricks.
#
# usage: bricklib.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/CtopCsUtahEdu/bricklib.git
for aware in ON OFF; do
  build_folder=$work/aware-$aware target=weak-cuda by_cmake "$sources" -DBRICK_CUDA_AWARE=$aware -DBRICK_USE_TYPES=ON
done
built

# The program divides its times by the stencils, of which there are ST_ITER for an exchange.
stencils=8
halo() {
  local aware=OFF
  [ "$1" = before ] || aware=ON
  mpi "$1" "$here/own_gpu.sh" "$work/aware-$aware/weak/cuda" -s 256,256,256 -I 25 |
    awk -F '[][,]' -v stencils="$stencils" '/mismatch/ { bad = 1 } /^Arr:/ { array = 1 } /^Bri:/ { array = 0; bricks = 1 }
      array && /^(pack|move|call|wait) / { sum += $3 }
      END { print bricks && !bad ? sum * stencils * 1e6 : "failed" }'
}

compare 'BrickLib 256^3, datatypes' us halo
