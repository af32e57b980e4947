#!/usr/bin/env bash
# SpFFT (eth-cscs), 256^3 complex to complex, data on the GPU, buffered exchange, in milliseconds for a transform back
# and forth: before, its own staging; after, its build with SPFFT_GPU_DIRECT. Own tests: its MPI tests of that build,
# with gpudt, but for the unbuffered exchange (docs/programs.md).
#
# usage: spfft.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
# Needs FFTW, GoogleTest, CLI11 and nlohmann-json (Debian: libfftw3-dev libgtest-dev libcli11-dev nlohmann-json3-dev), or
# CMAKE_PREFIX_PATH with them.
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/eth-cscs/SpFFT.git
for direct in ON OFF; do
  build_folder=$work/direct-$direct by_cmake "$sources" -DSPFFT_GPU_BACKEND=CUDA -DSPFFT_GPU_DIRECT=$direct -DSPFFT_OMP=OFF \
    -DSPFFT_BUILD_TESTS=ON -DSPFFT_BUNDLED_LIBS=OFF -DSPFFT_FFTW_LIB=FFTW
done
built

repeats=50
transform() {
  local direct=OFF
  [ "$1" = before ] || direct=ON
  rm -f "$work/times.json"
  mpi "$1" "$work/direct-$direct/tests/benchmark" -d 256 256 256 -r $repeats -o "$work/times.json" -e buffered \
    -p gpu-gpu >/dev/null || return
  python3 - "$work/times.json" $repeats <<'END' 2>>"$log"
import json, sys
def times(nodes):
    for name, node in nodes.items():
        yield from node["timings"] if name == "Buffered" else times(node["sub-timings"])
total = sum(times(json.load(open(sys.argv[1]))["timings"]))
print(f"{total / int(sys.argv[2]) * 1e3:.4g}")
END
}

say 'SpFFT: own tests'
chosen='*'
[ "${PROGRAMS_SHORT:-0}" = 0 ] || chosen='*Transpose*:*BufferedGPUSize11x12x13:*BufferedGPUSize100x100x100'
output=$(seconds=900 mpi after "$here/own_gpu.sh" "$work/direct-ON/tests/run_mpi_tests" --gtest_color=no \
  "--gtest_filter=$chosen-*Unbuffered*") || true
tests=$(awk '/^\[=+\] Running/ { all = $3 } /^\[  PASSED  \]/ { passed = $4 } END { print all ? passed + 0 "/" all : "no result" }' \
  <<<"$output")
compare 'SpFFT 256^3, buffered' ms transform
