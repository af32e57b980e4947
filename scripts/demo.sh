#!/usr/bin/env bash
# Installs what is missing, builds, and runs the ping-pong of noncontiguous GPU buffers between two ranks with
# libgpudt-pmpi.so preloaded: on the GPUs if there are any, else on the simulated device.
#
# usage: demo.sh [--short]
#   --short  few sizes and iterations, every way and layout; every byte is verified either way
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

short=no
case "$#:${1:-}" in
  0:) ;;
  1:--short) short=yes ;;
  *) die "usage: demo.sh [--short]" ;;
esac

"$root/scripts/setup.sh"
say "build: $build"
build_all

preload=$build/libgpudt-pmpi.so
arguments=()
if have_gpu && have_nvcc; then
  say "ping-pong on the GPU, libgpudt-pmpi.so preloaded:"
  nvidia-smi -L 2>/dev/null || true
else
  if have_gpu; then
    say "there is a GPU, but gpudt was built without CUDA (no nvcc)"
  fi
  say "ping-pong on the SIMULATED device (no GPU is used; the times mean nothing), libgpudt-pmpi.so preloaded:"
  preload=$preload:$build/libgpudt-sim.so
  arguments=(--sizes 64:256K --seconds 0.02)
fi
if [ "$short" = yes ]; then
  arguments=(--check)
fi
run_mpi 2 600 "LD_PRELOAD=$preload" -- "$build/pingpong/gpudt-pingpong" "${arguments[@]}" ||
  die "the ping-pong failed or ran out of time (exit code $?)"
say "demo: every byte arrived"
