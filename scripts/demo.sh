#!/usr/bin/env bash
# Installs what is missing, builds the library and one program, and runs a ping-pong of noncontiguous GPU buffers between
# two ranks with libgpudt-pmpi.so preloaded: on the GPUs if there are any, else on the simulated device. Every byte is
# verified.
#
# usage: demo.sh [--all | --short]
#   --all    every layout, size and way
#   --short  the same with few sizes and iterations
# e.g. demo.sh --all
# In the environment: BUILD_DIR (build, if everything has been built there; else build-demo, for this machine's GPU alone)
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

layouts="contiguous,vector:8,subarray,indexed:32"
rows=(--layouts "$layouts" --sizes "1K,64K,1M,16M" --ways "mpi,zerocopy,memcpy2d")
simulated_rows=(--layouts "$layouts" --sizes "1K,64K" --ways "mpi,memcpy2d" --seconds 0.02)
case "$#:${1:-}" in
  0:) ;;
  1:--all) rows=() simulated_rows=(--sizes 64:256K --seconds 0.02) ;;
  1:--short) rows=(--check) simulated_rows=(--check) ;;
  *) die "usage: demo.sh [--all | --short]" ;;
esac

# The architecture of the first GPU, "90", or nothing.
gpu_architecture() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. '
}

on_gpu=no
if have_gpu && have_nvcc; then
  on_gpu=yes
fi
if [ -z "${BUILD_DIR:-}" ] && [ ! -x "$build/pingpong/gpudt-pingpong" ]; then
  build=$root/build-demo
fi

"$root/scripts/setup.sh" --demo
say "build: $build"
if [ ! -f "$build/build.ninja" ]; then
  cuda=(-Dcuda=disabled -Doptimization=1)  # soon there; its times mean nothing
  if [ "$on_gpu" = yes ]; then
    cuda=(-Dgpu_archs="$(gpu_architecture)")
  fi
  # shellcheck disable=SC2086  # several arguments
  meson setup "$build" "$root" -Dtests=false -Dinitiated=disabled $several_at_once "${cuda[@]}" ${MESON_ARGS:-}
fi
ninja -C "$build" libgpudt-pmpi.so.0 libgpudt-sim.so pingpong/gpudt-pingpong

preload=$build/libgpudt-pmpi.so
if [ "$on_gpu" = yes ]; then
  say "ping-pong on the GPU, libgpudt-pmpi.so preloaded:"
  nvidia-smi -L 2>/dev/null || true
else
  if have_gpu; then
    say "there is a GPU, but gpudt was built without CUDA (no nvcc)"
  fi
  say "ping-pong on the SIMULATED device (no GPU is used; the times mean nothing), libgpudt-pmpi.so preloaded:"
  preload=$preload:$build/libgpudt-sim.so
  rows=("${simulated_rows[@]}")
fi
run_mpi 2 600 "LD_PRELOAD=$preload" -- "$build/pingpong/gpudt-pingpong" "${rows[@]}" ||
  die "the ping-pong failed or ran out of time (exit code $?)"
cat <<END

Ways: mpi is MPI_Send and MPI_Recv of GPU memory with the datatype, which gpudt makes possible. The others are what
programs do by hand: zerocopy packs by a kernel into mapped host memory, memcpy2d copies rows to the host and back. /hand
is a row's time divided by that of zerocopy.
Next: ./scripts/demo.sh --all   every layout, size and way
      ./scripts/test.sh         all tests
      scripts/gpudt-run mpirun -np 2 ./app   your own program (README.md)
END
say "demo: every byte arrived"
