#!/usr/bin/env bash
# NVIDIA's multi-GPU Jacobi (multi-gpu-programming-models), 8192^2 cells, 1000 iterations, in seconds: before, its variants for
# NCCL, where that is found; after, the same for MPI. With the norm each iteration, and each 100th. The program compares
# its result with that of one GPU.
#
# usage: jacobi.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
#   NCCL_HOME  a folder with include/nccl.h and lib/libnccl.so; else that of Python's package nvidia-nccl is looked for
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/NVIDIA/multi-gpu-programming-models.git
copy=$(copy_of_sources)
nccl=$(nccl_home) || nccl=''
arguments=(-j "$jobs" "CUDA_HOME=$cuda" "GENCODE_FLAGS=-gencode arch=compute_$gpu_arch,code=sm_$gpu_arch")
# The check of MPI's header is made for the MPI library alone. With CUDA 13, CUB needs C++17.
sed -i 's/-std=c++14/-std=c++17/' "$copy"/{mpi,nccl}*/Makefile
for variant in mpi mpi_overlap; do
  quietly make -C "$copy/$variant" "${arguments[@]}" SKIP_CUDA_AWARENESS_CHECK=1
done
if [ -n "$nccl" ]; then
  export LD_LIBRARY_PATH=$nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  for variant in nccl nccl_overlap; do
    quietly make -C "$copy/$variant" "${arguments[@]}" "NCCL_HOME=$nccl"
  done
fi
built

# The 8th field; the program ends with an error and without this line if the result differs.
solve() {
  local way=$1 variant=$2 overlapping=${3:-} steps=$4
  [ "$way" = after ] || variant=${variant/mpi/nccl}
  if [ "$way" = before ] && [ -z "$nccl" ]; then
    echo -
    return
  fi
  # shellcheck disable=SC2086  # an argument or none
  mpi "$way" "$copy/$variant/jacobi" -csv -nx 8192 -ny 8192 -nccheck "$steps" $overlapping |
    awk -F, '$1 ~ /^(mpi|nccl)/ && NF >= 9 { time = $8 } END { print time ? time + 0 : "failed" }'
}

for steps in 1 100; do
  compare "NVIDIA's Jacobi mpi, norm each $steps" s solve mpi '' $steps
  compare "NVIDIA's Jacobi mpi_overlap, norm each $steps" s solve mpi_overlap -use_hp_streams $steps
done
