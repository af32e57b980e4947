#!/usr/bin/env bash
# Takes all the measurements that the README's results come from: tables (.txt) and statistics (.json) in the folder
# given. All parts together take minutes on two GPUs; each says how long it took. Needs a build (scripts/test.sh makes
# one). scripts/measure/reproduce.sh makes figures and a page of them.
#
# usage: measure.sh [--simulated] FOLDER [PART...]
#   --simulated  in seconds, on the simulated device, to try the script: the figures mean nothing
#   PART         one of: tune pingpong kinds onegpu protocols steps order collectives packing lengths many applications
#                contention host scale; without any, all of them
# e.g. measure.sh results pingpong packing
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

usage="usage: measure.sh [--simulated] FOLDER [PART...]"
preload=$build/libgpudt-pmpi.so
bin=$build/pingpong
simulated=no
if [ "${1:-}" = --simulated ]; then
  simulated=yes
  shift
fi
[ $# -ge 1 ] || die "$usage"
out=$1
shift
[ -x "$bin/gpudt-pingpong" ] || die "nothing is built in $build: run scripts/test.sh first"
# How much of everything: a message's size, bytes of buffers in rotation, blocks of figure 5, iterations.
most=16M rotated=512M blocks=8192 torus=256,2K iterations=60
short=() few_layouts=() sim=''
if [ "$simulated" = yes ]; then
  sim=$build/libgpudt-sim.so
  preload=$preload:$sim
  most=16K rotated=256K blocks=64 torus=40 iterations=3
  short=(--check) few_layouts=(--layouts 'contiguous,vector:8,vector:128,indexed')
elif ! have_gpu; then
  die "there is no GPU here, and without one there is nothing to measure (--simulated tries the script)"
elif ! have_nvcc; then
  die "there is a GPU, but gpudt was built without CUDA (no nvcc)"
fi
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

# by RANKS [NAME=VALUE...] -- COMMAND...: with the library.
by() {
  local ranks=$1
  shift
  run_mpi "$ranks" 300 "LD_PRELOAD=$preload" "$@"
}
with() { by 2 -- "$@"; }
alone_with() { by 1 -- "$@"; }
without() {
  local settings=()
  [ -z "$sim" ] || settings=("LD_PRELOAD=$sim")
  run_mpi 2 300 "${settings[@]}" -- "$@"
}

gpus() { nvidia-smi -L | grep -c ^GPU; }

about_machine() {
  date -u
  uname -a
  nvidia-smi -L 2>/dev/null || true
  nvidia-smi --query-gpu=driver_version,clocks.max.sm,clocks.max.mem --format=csv 2>/dev/null || true
  lscpu | sed -n '/Model name/p;/^CPU(s)/p;/NUMA/p'
  mpirun --version | head -n 1
}

# What the library chooses by, as measured here; the other parts use what a user's cache holds, or the built-in costs.
part_tune() {
  say tune
  LD_PRELOAD=$sim "$bin/gpudt-tune" --out "$out/tuning.json" 2>&1 | tee "$out/tune.txt" || failures=$((failures + 1))
}

# Every layout, 64 B to 16 MiB, by MPI and by hand.
part_pingpong() { measure pingpong with "$bin/gpudt-pingpong" --seconds 0.1 "${short[@]}" "${few_layouts[@]}"; }

# Contiguous messages from every kind of memory to every other, of chars and of doubles.
part_kinds() {
  local chosen=()
  [ "$simulated" = no ] || chosen=(--sizes "1K,$most" --types char)
  measure kinds with "$bin/gpudt-kinds" --seconds 0.02 "${short[@]}" "${chosen[@]}"
}

# The layouts by the other ways between processes: through MPI unfragmented, through shared memory, and in fragments.
part_protocols() {
  local protocol chosen=("${few_layouts[@]}")
  [ ${#chosen[@]} -gt 0 ] || chosen=(--layouts 'contiguous,vector:8,vector:32,vector:128,indexed,nested')
  for protocol in staging shared pipelined; do
    measure "pingpong-$protocol" by 2 "GPUDT_PROTOCOL=$protocol" -- "$bin/gpudt-pingpong" --ways mpi,zerocopy,host \
      --seconds 0.1 "${short[@]}" "${chosen[@]}"
  done
}

# Two ranks on one GPU, by MPI alone: kernels of the ways by hand would make those of the library wait for their turns.
part_onegpu() {
  local one=CUDA_VISIBLE_DEVICES=0
  [ "$simulated" = no ] || one=GPUDT_SIM_DEVICES=1
  measure one-gpu by 2 "$one" -- "$bin/gpudt-pingpong" --ways mpi --seconds 0.1 "${short[@]}" "${few_layouts[@]}"
  measure one-gpu-by-hand by 2 "$one" -- "$bin/gpudt-pingpong" --ways zerocopy,memcpy2d --seconds 0.1 "${short[@]}" \
    --layouts 'contiguous,vector:8,indexed'
}

# Where the time of a message of 1 KiB goes, with the kernel that stays and by launches alone: between the points of
# GPUDT_TIMELINE, of both ranks.
part_steps() {
  local way protocol resident layout name
  for way in 'peer auto' 'peer never' 'staging auto'; do
    read -r protocol resident <<<"$way"
    for layout in contiguous vector:8 nested indexed; do
      name=steps-$protocol-${layout/:/-}
      [ "$resident" = auto ] || name=$name-launched
      say "$name"
      if by 2 "GPUDT_PROTOCOL=$protocol" "GPUDT_RESIDENT=$resident" "GPUDT_TIMELINE=$out/$name" -- \
        "$bin/gpudt-pingpong" --ways mpi --layouts "$layout" --sizes 1K --warmup 10 --iterations $((iterations * 4)) \
        --verify 2 >"$out/$name.txt" 2>&1 &&
        "$root/scripts/measure/timeline.py" "$out/$name.0.json" "$out/$name.1.json" --skip $((10 + iterations)) 2>&1 | tee -a "$out/$name.txt"; then
        rm "$out/$name".[01].json  # large, and not of the form of the other results
      else
        tail -n 5 "$out/$name.txt"
        echo "measure.sh: $name failed" | tee -a "$out/$name.txt" >&2
        failures=$((failures + 1))
      fi
    done
  done
}

# What it costs to come after the program's default stream, which is idle here, beside not doing so. Twice, in turns, so
# that the difference can be told from noise.
part_order() {
  local order turn
  for turn in 1 2; do
    for order in default-stream per-thread none; do
      measure "order-$order-$turn" by 2 "GPUDT_ORDER=$order" -- "$bin/gpudt-pingpong" --ways mpi \
        --layouts contiguous,vector:8 --sizes 8,1K,64K --iterations $((iterations * 20)) "${short[@]}"
    done
  done
}

# Packing alone: one buffer at all sizes, then buffers in rotation so that no cache helps.
part_packing() {
  measure packbench alone_with "$bin/gpudt-packbench" --sizes "1K:$most" --iterations "$iterations" --seconds 0.05 "${few_layouts[@]}"
  measure packbench-rotated alone_with "$bin/gpudt-packbench" --sizes "$most" --targets device \
    --rotate "$rotated" --iterations "$iterations" --seconds 0.05 --ways mpi,kernel
}

# The paper's figure 5: one number of blocks, many block lengths.
part_lengths() {
  local layouts='' sizes='' length
  for length in 4 8 12 16 20 24 32 48 64 80 96 128 192 256; do
    layouts=$layouts${layouts:+,}vector:$length
    sizes=$sizes${sizes:+,}$((blocks * length))
  done
  measure block-lengths alone_with "$bin/gpudt-packbench" --layouts "$layouts" --sizes "$sizes" --targets host \
    --calls pack --ways mpi,kernel,memcpy2d --iterations "$iterations" --seconds 0.02
}

# Collectives, with long blocks as messages between GPUs and without.
part_collectives() {
  local ranks protocol
  for ranks in 2 4; do
    [ "$simulated" = yes ] || [ "$ranks" -le "$(gpus)" ] || continue
    for protocol in auto staging; do
      measure "collectives-$ranks-$protocol" by "$ranks" "GPUDT_PROTOCOL=$protocol" -- "$bin/gpudt-collectives" \
        --ways mpi,memcpy2d --seconds 0.05 "${short[@]}"
    done
  done
}

# Reductions, and one-sided accesses while the target waits in MPI or computes; beside NCCL where it is found.
part_reductions() {
  for_ranks reductions "$bin/gpudt-reductions" --ways mpi,nccl --seconds 0.1
  for_ranks collectives-nccl "$bin/gpudt-collectives" --ways mpi,nccl --sizes "8:$most" --seconds 0.05
}
part_onesided() { measure onesided with "$bin/gpudt-onesided" --seconds 0.05 "${short[@]}"; }

# for_ranks NAME PROGRAM ARGUMENTS...: on two and on four GPUs.
for_ranks() {
  local name=$1 ranks
  shift
  for ranks in 2 4; do
    [ "$simulated" = yes ] || [ "$ranks" -le "$(gpus)" ] || continue
    measure "$name-$ranks" by "$ranks" -- "$@" "${short[@]}"
  done
}

# Many messages at once, and the halo of a block in three dimensions.
part_many() {
  for_ranks many "$bin/gpudt-many" --seconds 0.1
  for_ranks halo "$bin/gpudt-halo" --seconds 0.05 --factor 4
}

# Small applications: halo exchanges in two dimensions, and a mesh of many arrays.
part_applications() {
  measure stencil with "$bin/gpudt-stencil" --seconds 0.03 "${short[@]}"
  measure stencil-torus with "$bin/gpudt-stencil" --seconds 0.03 --sizes "$torus" --precision double \
    --periodic "${short[@]}"
  measure mesh with "$bin/gpudt-mesh" --seconds 0.03 "${short[@]}"
}

# The paper's table 2: packing beside the application's own work, and messages beside it.
part_contention() {
  local way
  if [ "$simulated" = yes ]; then
    say "contention needs a GPU: left out"
    return
  fi
  measure contention by 1 GPUDT_WAY=auto -- "$bin/gpudt-contention" --iterations 11
  measure contention-lists by 1 GPUDT_WAY=auto -- "$bin/gpudt-contention" --layouts indexed:32,nested \
    --sizes 4K,64K,256K --loads long,short --iterations 9
  measure contention-unpacks by 1 GPUDT_WAY=auto -- "$bin/gpudt-contention" --unpack \
    --layouts vector:64,indexed:32,nested --sizes 4K,64K --loads long,short --iterations 9
  measure contention-messages by 2 GPUDT_WAY=auto -- "$bin/gpudt-contention" --iterations 7
  for way in kernel copy; do
    measure "contention-$way" by 1 "GPUDT_WAY=$way" -- "$bin/gpudt-contention" --ways mpi --iterations 11
    measure "contention-messages-$way" by 2 "GPUDT_WAY=$way" -- "$bin/gpudt-contention" --ways mpi --iterations 7
  done
}

# What the library costs messages between host buffers, with and without it in turn.
part_host() {
  local turn calls=()
  [ "$simulated" = no ] || calls=(--calls 100 --batches 3)
  for turn in 1 2 3; do
    measure "host-without-$turn" without "$bin/gpudt-pingpong" --ways mpi --send host --recv host --layouts contiguous \
      --sizes "64:$most" --factor 16 --iterations $((iterations * 40)) --seconds 0.2
    measure "host-with-$turn" with "$bin/gpudt-pingpong" --ways mpi --send host --recv host --layouts contiguous \
      --sizes "64:$most" --factor 16 --iterations $((iterations * 40)) --seconds 0.2
    measure "overhead-without-$turn" without "$bin/gpudt-overhead" "${calls[@]}"
    measure "overhead-with-$turn" with "$bin/gpudt-overhead" "${calls[@]}"
    measure "overhead-device-$turn" with "$bin/gpudt-overhead" --device "${calls[@]}"
    measure "overhead-large-$turn" with "$bin/gpudt-overhead" --large "${calls[@]}"
    measure "overhead-large-device-$turn" with "$bin/gpudt-overhead" --large --device "${calls[@]}"
  done
}

# How time grows with blocks, depth, messages and ranks. More ranks than cores measure the cores; the simulated device
# is the place for that.
part_scale() {
  local ranks most_ranks=16 scale_blocks=256K
  [ "$simulated" = no ] || most_ranks=32 scale_blocks=4K
  for ranks in 1 2 4 8 16 32; do
    if [ "$ranks" -le "$most_ranks" ]; then
      measure "scale-$ranks" by "$ranks" -- "$bin/gpudt-scale" --iterations "$iterations" --seconds 0.1 \
        --sizes "64:$scale_blocks"
    fi
  done
}

parts=(tune pingpong kinds onegpu protocols steps order collectives reductions onesided packing lengths many applications contention host scale)
wanted=("$@")
[ $# -gt 0 ] || wanted=("${parts[@]}")
for part in "${wanted[@]}"; do
  [[ " ${parts[*]} " == *" $part "* ]] || die "there is no part '$part'; there are: ${parts[*]}"
done
about_machine >"$out/machine.txt"
for part in "${wanted[@]}"; do
  started=$SECONDS
  "part_$part"
  say "part $part took $((SECONDS - started)) s"
done
say "results: $out ($failures failed)"
[ "$failures" -eq 0 ]
