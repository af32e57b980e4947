#!/usr/bin/env bash
# Communication that kernels start (docs/initiated.md): builds the library and its programs for the GPUs that are here,
# verifies everything, then measures: tables (.txt) and statistics (.json) in a folder, and a summary at the end. Some
# five minutes on two GPUs. A step that fails, or takes too long, is told and does not stop the next.
#
# usage: initiated.sh [--check] FOLDER [STEP...]
#   --check  short forms, which verify
#   STEP     some of: check check-proxy ends dcuda pingpong latency latency-proxy gpurdma apps apps-1 memcheck racecheck,
#            and where there is NVSHMEM check-nvshmem pingpong-nvshmem; all of them otherwise
# e.g. initiated.sh --check results check apps
# In the environment: BUILD_DIR (build-initiated), GPU_ARCHS (90), GPUS (2), SECONDS_IN_ALL (300), NVSHMEM_HOME or what
# else find_nvshmem.py knows.
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

usage='usage: initiated.sh [--check] FOLDER [STEP...]'
check=()
while [ $# -gt 0 ]; do
  case $1 in
    --check) check=(--check) ;;
    --*) die "$usage" ;;
    *) break ;;
  esac
  shift
done
[ $# -ge 1 ] || die "$usage"
mkdir -p "$1" || exit 1
out=$(cd "$1" && pwd)
shift
steps=("$@")
gpus=${GPUS:-2} most=${SECONDS_IN_ALL:-300}
build=${BUILD_DIR:-$root/build-initiated}
bin=$build/initiated/programs/gpudt-initiated

# --- build ----------------------------------------------------------------------------------------------------------

have_nvcc || die "no nvcc"
export PATH="${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}/bin:$PATH"
nvshmem=$("$root/scripts/find_nvshmem.py" | sed -n 3p)
if [ ${#steps[@]} -eq 0 ]; then
  steps=(check check-proxy ends dcuda pingpong latency latency-proxy gpurdma apps apps-1 memcheck racecheck)
  [ -z "$nvshmem" ] || steps+=(check-nvshmem pingpong-nvshmem)
fi
if [ ! -f "$build/build.ninja" ]; then
  meson setup "$build" "$root" -Dgpu_archs="${GPU_ARCHS:-90}" -Dtests=false -Dwerror=false -Dinitiated=enabled >"$out/build.log" 2>&1 ||
    { tail -n 20 "$out/build.log"; die "meson failed: $out/build.log"; }
fi
targets=(libgpudt-pmpi.so.0)
for program in check ends dcuda pingpong latency gpurdma apps; do
  targets+=("initiated/programs/gpudt-initiated-$program")
done
ninja -C "$build" "${targets[@]}" >>"$out/build.log" 2>&1 ||
  { tail -n 40 "$out/build.log"; die "the build failed: $out/build.log"; }
say "built in $SECONDS s"
have_gpu || die "built; but there is no GPU here to run on"

# --- steps ----------------------------------------------------------------------------------------------------------

export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1}
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}
export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy:-none}  # NVSHMEM has threads of its own
with=("LD_PRELOAD=$build/libgpudt-pmpi.so" NVSHMEM_DISABLE_NVLS=1 NCCL_NVLS_ENABLE=0)
[ -z "$nvshmem" ] || with+=("LD_LIBRARY_PATH=$(dirname "$nvshmem")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")

# left LIMIT: the seconds that a step may take, of what is left.
left() {
  local rest=$((most - SECONDS))
  echo $((rest < $1 ? rest : $1))
}

# program NAME SECONDS RANKS ARGUMENTS...: one of ours, with the preloaded library.
program() {
  local name=$1 seconds=$2 ranks=$3
  shift 3
  run_mpi "$ranks" "$seconds" "${with[@]}" -- "$bin-$name" "$@"
}

# Mistakes end a program of a checked build with the message that it names; side by side, on one GPU.
mistakes() {
  local seconds=$1 name names='rank range layout tag source count address partition twice receive granted queue timeout blocks threads' folder code=0
  folder=$(mktemp -d)
  for name in $names; do
    run_mpi 1 "$seconds" "${with[@]}" -- "$bin-ends" "$name" >"$folder/$name" 2>&1 </dev/null &
  done
  wait
  for name in $names; do
    if grep -v '^expected: ' "$folder/$name" | grep -qF "$(sed -n 's/^expected: //p' "$folder/$name" | grep . || echo NOTHING)"; then
      echo "$name: as expected: $(grep -v '^expected: ' "$folder/$name" | grep -m 1 gpudt-initiated)"
    else
      echo "$name: NOT AS EXPECTED"
      tail -n 15 "$folder/$name"
      code=1
    fi
  done
  rm -r "$folder"
  return $code
}

sanitized() {
  local tool=$1 seconds=$2
  shift 2
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 1; }
  run_mpi "$gpus" "$seconds" "${with[@]}" -- compute-sanitizer --tool "$tool" --error-exitcode 9 \
    --report-api-errors no --print-limit 20 "$@"
}

step_check() { program check "$(left 45)" "$gpus" --limit 40 "${check[@]}" --json "$out/check.json"; }
# As between nodes.
step_check_proxy() {
  GPUDT_UNMAP_FREED=0 program check "$(left 60)" "$gpus" --wire proxy --limit 55 "${check[@]}" --json "$out/check-proxy.json"
}
step_latency_proxy() {
  GPUDT_UNMAP_FREED=0 program latency "$(left 60)" "$gpus" --wire proxy --far --limit 55 "${check[@]}" --json "$out/latency-proxy.json"
}
step_check_nvshmem() {
  program check "$(left 45)" "$gpus" --wire nvshmem --limit 40 "${check[@]}" --json "$out/check-nvshmem.json"
}
step_ends() {
  local code=0
  mistakes "$(left 25)" || code=1
  [ -z "$nvshmem" ] || program ends "$(left 20)" "$gpus" mpi-first || code=1
  program ends "$(left 20)" "$gpus" world-first || code=1
  program ends "$(left 20)" "$gpus" proxy-first || code=1
  return $code
}
step_dcuda() {
  program dcuda "$(left 20)" "$gpus" && program dcuda "$(left 20)" 1 && program dcuda "$(left 60)" "$gpus" proxy
}
step_pingpong() { program pingpong "$(left 75)" "$gpus" --limit 70 "${check[@]}" --json "$out/pingpong.json"; }
step_pingpong_nvshmem() {
  program pingpong "$(left 75)" "$gpus" --wire nvshmem --limit 70 "${check[@]}" --json "$out/pingpong-nvshmem.json"
}
step_latency() { program latency "$(left 45)" "$gpus" --limit 42 "${check[@]}" --json "$out/latency.json"; }
step_gpurdma() { program gpurdma "$(left 35)" "$gpus" --limit 32 "${check[@]}" --json "$out/gpurdma.json"; }
step_apps() { program apps "$(left 45)" "$gpus" --limit 42 "${check[@]}" --json "$out/apps.json"; }
step_apps_1() { program apps "$(left 35)" 1 --limit 32 "${check[@]}" --json "$out/apps-1.json"; }
step_memcheck() { sanitized memcheck "$(left 300)" "$bin-check" --check --limit 290 --wait 280; }
step_racecheck() { sanitized racecheck "$(left 45)" "$bin-check" --check --limit 40 --wait 35; }

failed=()
for name in "${steps[@]}"; do
  if [ "$(left 5)" -lt 5 ]; then
    say "$name: NOT RUN, $SECONDS s are over"
    failed+=("$name")
    continue
  fi
  say "$name"
  started=$SECONDS
  "step_${name//-/_}" 2>&1 | tee "$out/$name.txt"
  code=${PIPESTATUS[0]}
  say "$name: $((SECONDS - started)) s$([ "$code" -eq 0 ] || echo ", FAILED with $code")"
  [ "$code" -eq 0 ] || failed+=("$name")
done

# --- summary --------------------------------------------------------------------------------------------------------

say "summary"
"$root/scripts/measure/initiated_results.py" "$out" 2>&1 | tee "$out/summary.txt"
if python3 -c 'import matplotlib' 2>/dev/null; then
  python3 "$root/scripts/measure/plot.py" "$out"/*.json --out "$out" || true
fi
say "$SECONDS s; steps that failed: ${failed[*]:-none}" | tee -a "$out/summary.txt"
[ ${#failed[@]} -eq 0 ]
