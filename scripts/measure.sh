#!/usr/bin/env bash
# Takes all the measurements that the README's results come from, in about six minutes on a machine with two GPUs:
# tables (.txt) and statistics (.json) in the folder given. Needs a build (scripts/demo.sh makes one).
#
# usage: measure.sh FOLDER
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

[ $# -eq 1 ] || die "usage: measure.sh FOLDER"
out=$1
preload=$build/libgpudt-pmpi.so
bin=$build/pingpong
[ -x "$bin/gpudt-pingpong" ] || die "nothing is built in $build: run scripts/demo.sh first"
have_gpu || die "there is no GPU here"
mkdir -p "$out"
export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1}  # shared memory between the two ranks, whatever network the machine has

failures=0
# measure NAME COMMAND...: the table goes to NAME.txt and the screen, and the command is told to write NAME.json.
measure() {
  local name=$1
  shift
  say "$name"
  if ! "$@" --json "$out/$name.json" 2>&1 | tee "$out/$name.txt"; then
    echo "measure.sh: $name failed" | tee -a "$out/$name.txt" >&2
    failures=$((failures + 1))
  fi
}

with() { run_mpi 2 300 "LD_PRELOAD=$preload" -- "$@"; }
without() { run_mpi 2 300 -- "$@"; }
alone_with() { run_mpi 1 300 "LD_PRELOAD=$preload" -- "$@"; }
# by_way RANKS WAY COMMAND...: with GPUDT_WAY.
by_way() {
  local ranks=$1 way=$2
  shift 2
  run_mpi "$ranks" 300 "LD_PRELOAD=$preload" "GPUDT_WAY=$way" -- "$@"
}

{
  date -u
  uname -a
  nvidia-smi -L 2>/dev/null || true
  nvidia-smi --query-gpu=driver_version,clocks.max.sm,clocks.max.mem --format=csv 2>/dev/null || true
  lscpu | sed -n '/Model name/p;/^CPU(s)/p;/NUMA/p'
  mpirun --version | head -n 1
} >"$out/machine.txt"

# Every layout, 64 B to 16 MiB, by MPI and by hand.
measure pingpong with "$bin/gpudt-pingpong" --seconds 0.1

# Packing alone: one buffer at all sizes, then buffers in rotation so that no cache helps.
measure packbench alone_with "$bin/gpudt-packbench" --sizes 1K:16M --iterations 60 --seconds 0.05
measure packbench-rotated alone_with "$bin/gpudt-packbench" --sizes 16M --targets device --rotate 512M \
  --iterations 40 --seconds 0.05 --ways mpi,kernel

# The paper's figure 5: one number of blocks, many block lengths.
blocks=8192
layouts='' sizes=''
for length in 4 8 12 16 20 24 32 48 64 80 96 128 192 256; do
  layouts=$layouts${layouts:+,}vector:$length
  sizes=$sizes${sizes:+,}$((blocks * length))
done
measure block-lengths alone_with "$bin/gpudt-packbench" --layouts "$layouts" --sizes "$sizes" --targets host \
  --calls pack --ways mpi,kernel,memcpy2d --iterations 30 --seconds 0.02

# Small applications: halo exchanges in two and three dimensions, and a mesh of many arrays.
measure stencil with "$bin/gpudt-stencil" --seconds 0.03
measure stencil-torus with "$bin/gpudt-stencil" --seconds 0.03 --sizes 256,2K --precision double --periodic
measure halo with "$bin/gpudt-halo" --seconds 0.05 --factor 4
measure mesh with "$bin/gpudt-mesh" --seconds 0.03

# The paper's table 2: packing beside the application's own work, and messages beside it.
measure contention by_way 1 auto "$bin/gpudt-contention" --iterations 11
measure contention-messages by_way 2 auto "$bin/gpudt-contention" --iterations 7
for way in kernel copy; do
  measure "contention-$way" by_way 1 "$way" "$bin/gpudt-contention" --ways mpi --iterations 11
  measure "contention-messages-$way" by_way 2 "$way" "$bin/gpudt-contention" --ways mpi --iterations 7
done

# What the library costs messages between host buffers, with and without it in turn.
for turn in 1 2 3; do
  measure "host-without-$turn" without "$bin/gpudt-pingpong" --ways mpi --send host --recv host --layouts contiguous \
    --sizes 64:16M --factor 16 --iterations 2000 --seconds 0.2
  measure "host-with-$turn" with "$bin/gpudt-pingpong" --ways mpi --send host --recv host --layouts contiguous \
    --sizes 64:16M --factor 16 --iterations 2000 --seconds 0.2
  measure "overhead-without-$turn" without "$bin/gpudt-overhead"
  measure "overhead-with-$turn" with "$bin/gpudt-overhead"
  measure "overhead-device-$turn" with "$bin/gpudt-overhead" --device
done

if python3 -c 'import matplotlib' 2>/dev/null; then
  "$root/scripts/plot.py" "$out/packbench.json" "$out/block-lengths.json" "$out/pingpong.json" --out "$out"
else
  say "no matplotlib here: run scripts/plot.py on the JSON files where there is one"
fi
say "results: $out ($failures failed)"
[ "$failures" -eq 0 ]
