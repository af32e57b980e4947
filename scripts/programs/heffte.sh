#!/usr/bin/env bash
# heFFTe, 256^3 complex to complex in double precision by cuFFT, each transform in seconds: before, with heFFTe's own
# staging (-no-gpu-aware); after, with device pointers. Own tests: its CTest suite, with gpudt.
#
# usage: heffte.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/icl-utk-edu/heffte.git
# Tests that CTest starts use the launcher; all of them on one GPU each in turns.
by_cmake "$sources" -DHeffte_ENABLE_CUDA=ON -DHeffte_SEQUENTIAL_TESTING=ON "-DMPIEXEC_EXECUTABLE=$(launcher_with_gpudt)"
built

# Each line `Time per run`, if the error is within the tolerance.
speed() {
  local flags=()
  [ "$1" = after ] || flags=(-no-gpu-aware)
  mpi "$1" "$work/build/benchmarks/speed3d_c2c" cufft double 256 256 256 \
    -mps -n10 "${flags[@]}" |
    awk '/^Time per run:/ { time = $4 } /^Tolerance:/ { most = $2 } /^Max error:/ { error = $3; seen = 1 }
      END { print seen && error <= most ? time : "failed" }'
}

skipped=()
[ "${PROGRAMS_SHORT:-0}" = 0 ] || skipped=(-E 'np(6|7|8|12)')
own_tests "${skipped[@]}"
compare 'heFFTe speed3d_c2c 256^3' s speed
