#!/usr/bin/env bash
# Comb (LLNL), halos of a periodic block of 100^3 cells a rank, 3 variables, in microseconds a cycle: before, its buffers
# in pinned memory, packed by its own kernels; after, its buffers in device memory, and MPI's datatypes on the mesh
# itself. It checks each cell (assertions are left on).
#
# usage: comb.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
#   COMB_BLT  a folder with LLNL's BLT, for sources without their submodules
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/LLNL/Comb.git
blt=${COMB_BLT:-$sources/blt}
if [ ! -f "$blt/SetupBLT.cmake" ]; then
  blt=$work/blt
  from_git https://github.com/LLNL/blt.git "$blt"
fi
# Release defines NDEBUG, which would leave out the checks. CUDA 13 has NVTX in a folder of its own, and no library of it.
nvtx=-I$cuda/include/nvtx3
# CUDA 13 takes a place where these calls took a device.
cat >"$work/devices.hpp" <<'END'
#include <cuda_runtime.h>
#if CUDART_VERSION >= 13000
inline cudaMemLocation place_of(int device) {
  cudaMemLocation place{};
  place.type = device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  place.id = device < 0 ? 0 : device;
  return place;
}
inline cudaError_t cudaMemAdvise(const void* memory, size_t bytes, cudaMemoryAdvise advice, int device) {
  return cudaMemAdvise(memory, bytes, advice, place_of(device));
}
inline cudaError_t cudaMemPrefetchAsync(const void* memory, size_t bytes, int device, cudaStream_t stream) {
  return cudaMemPrefetchAsync(memory, bytes, place_of(device), 0, stream);
}
#endif
END
by_cmake "$sources" "-DBLT_SOURCE_DIR=$blt" -DENABLE_CUDA=ON "-DCUDA_ARCH=sm_$gpu_arch" -DENABLE_OPENMP=OFF \
  -DCOMB_ENABLE_RAJA=OFF -DCOMB_ENABLE_NV_TOOLS_EXT=OFF -DCMAKE_CXX_FLAGS_RELEASE=-O3 -DCMAKE_CUDA_FLAGS_RELEASE=-O3 \
  "-DCMAKE_CXX_FLAGS=$nvtx" "-DCMAKE_CUDA_FLAGS=$nvtx -include $work/devices.hpp" -DBLT_CXX_STD=c++17 -DCMAKE_CUDA_STANDARD=17
built

cycles=100
halo() {
  local way=$1 packing=$2 memory=CudaDevice flags=(-cuda_aware_mpi -memory buffer enable cuda_device)
  if [ "$way" = before ]; then
    packing=cuda memory=CudaHostPinned flags=()
  fi
  rm -f "$work"/Comb_*
  # It may end with an error after all is done (docs/programs.md); a check that fails ends it before the result.
  mpi "$way" -wdir "$work" "$here/own_gpu.sh" "$work/build/bin/comb" "$((100 * ranks))_100_100" -divide "${ranks}_1_1" \
    -periodic 1_1_1 -ghost 1_1_1 -vars 3 -cycles $cycles -comm cutoff 250 -comm disable mock -exec disable seq -exec enable cuda \
    -exec enable mpi_type -memory disable host "${flags[@]}" >/dev/null || true
  [ -n "$(compgen -G "$work/Comb_*_summary")" ] || return 1
  cat "$work"/Comb_*_summary >>"$log"
  awk -v test="Comm mpi Mesh cuda CudaDevice Buffers $packing $memory $packing $memory" -v cycles=$cycles '
    /^Starting test/ { wanted = index($0, test) } wanted && /bench-comm/ { for (i = 1; i < NF; i++) if ($i == "avg") time = $(i + 1) }
    END { print time ? time / cycles * 1e6 : "failed" }' "$work"/Comb_*_summary
}

compare 'Comb, device buffers' us halo cuda
compare "Comb, MPI's datatypes" us halo mpi_type
