# What the scripts of programs have in common; to be sourced. Each is called as
#   NAME.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
# and sets `sources`, `ranks`, `gpu_arch`, `work` (an own folder in the build folder) and `log` from that.
# In the environment:
#   PROGRAMS_RUNS  how often each way is measured, in turns (5)
#   PROGRAMS_JOBS  compilations at once (all cores)
#   PROGRAMS_SHORT=1  only those own tests that take little time
# shellcheck shell=bash
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

here=$root/scripts/programs
library=$build/libgpudt-pmpi.so
program=$(basename "$0" .sh)
build_only=no run_only=no gpu_arch=''
while [[ ${1:-} == --* ]]; do
  case $1 in
    --gpu-arch) gpu_arch=${2:?a number is missing, as in --gpu-arch 90} && shift ;;
    --build-only) build_only=yes ;;
    --run-only) run_only=yes ;;
    *) die "there is no option $1: see --help" ;;
  esac
  shift
done
work=$build/programs/$program
mkdir -p "$work"
sources=${1:-$work/sources}
ranks=${2:-2}
log=$work/log
runs=${PROGRAMS_RUNS:-5}
[ $((runs % 2)) -eq 1 ] || die "PROGRAMS_RUNS is an odd number, for the median"
jobs=${PROGRAMS_JOBS:-$(nproc)}
cuda=${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}
export PATH=$PATH:$cuda/bin
if [ -z "$gpu_arch" ]; then
  gpu_arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n '1s/\.//p') || true
  [[ $gpu_arch =~ ^[0-9]+$ ]] || gpu_arch=90
fi
: >"$log"

# quietly COMMAND...: a step of the build, whose output goes to the log and is shown only if it fails.
quietly() {
  [ "$run_only" = no ] || return 0
  printf '+ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 || {
    tail -n 25 "$log" >&2
    die "failed: $* (all output: $log)"
  }
}

# from_git URL [FOLDER]: the sources, unless they are there.
from_git() {
  local folder=${2:-$sources}
  if [ ! -d "$folder" ]; then
    say "fetching $1"
    quietly git clone -q --depth 1 "$1" "$folder"
  fi
}

# What is changed for a build is changed in a copy; prints its folder.
copy_of_sources() {
  if [ "$run_only" = no ]; then
    rm -rf "${work:?}/copy"
    cp -r "$sources" "$work/copy"
  fi
  echo "$work/copy"
}

# As git describes the sources, or a file `.git-describe` where they were packed without git.
version() {
  if [ -e "$sources/.git" ]; then
    git -C "$sources" describe --tags --always
  else
    cat "$sources/.git-describe" 2>/dev/null || echo unknown
  fi
}

# by_cmake SOURCES OPTIONS...: in build_folder, all or the target named.
by_cmake() {
  local from=$1 into=${build_folder:-$work/build}
  shift
  command -v cmake >/dev/null 2>&1 || die "cmake is missing"
  quietly cmake -S "$from" -B "$into" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CUDA_ARCHITECTURES=$gpu_arch" \
    "-DCMAKE_CUDA_COMPILER=$(command -v nvcc)" "$@"
  quietly cmake --build "$into" -j "$jobs" ${target:+--target "$target"}
}

# Prints a folder with include/nccl.h and lib/libnccl.so: NCCL_HOME, or one made of Python's package.
nccl_home() {
  local package
  if [ -n "${NCCL_HOME:-}" ]; then
    echo "$NCCL_HOME"
    return
  fi
  package=$(python3 -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0])' 2>/dev/null) || return 1
  mkdir -p "$work/nccl/lib"
  ln -sfn "$package/include" "$work/nccl/include"
  ln -sf "$package/lib/libnccl.so.2" "$work/nccl/lib/libnccl.so.2"
  ln -sf libnccl.so.2 "$work/nccl/lib/libnccl.so"
  echo "$work/nccl"
}

# After the build: the rest needs a GPU and gpudt.
built() {
  sources=$(cd "$sources" && pwd)
  say "$program $(version): ready for sm_$gpu_arch"
  if [ "$build_only" = yes ]; then
    exit 0
  fi
  have_gpu || die "there is no GPU here, and without one there is nothing to measure (--build-only builds)"
  [ -f "$library" ] || die "there is no $library: build gpudt first"
}

# mpi before|after COMMAND...: on all ranks, without gpudt or with it.
mpi() {
  local way=$1 command=(mpirun -np "${np:-$ranks}")
  shift
  if [ "$(nproc)" -lt $((2 * ${np:-$ranks})) ]; then
    command+=(--oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
  fi
  if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1}
  command+=("$@")
  if [ "$way" = after ]; then
    command=("$root/scripts/gpudt-run" --library "$library" "${command[@]}")
  fi
  printf '+ %s\n' "${command[*]}" >>"$log"
  timeout --kill-after=10 "${seconds:-300}" "${command[@]}" </dev/null 2>&1 | tee -a "$log"
}

# An mpirun for test suites that start it themselves: with gpudt, and a GPU for each rank.
launcher_with_gpudt() {
  cat >"$work/mpirun" <<END
#!/usr/bin/env bash
# -np RANKS PROGRAM ARGUMENTS...
exec "$root/scripts/gpudt-run" --library "$library" mpirun --oversubscribe --bind-to none "\$1" "\$2" "$here/own_gpu.sh" "\${@:3}"
END
  chmod +x "$work/mpirun"
  echo "$work/mpirun"
}

# own_tests REGEX...: those of CTest, by the launcher that the build was configured with; sets `tests` to passed/all.
own_tests() {
  say "$program: own tests"
  (cd "$work/build" && timeout --kill-after=10 "${seconds:-900}" ctest -j 1 --timeout 120 "$@") >>"$log" 2>&1 || true
  # CTest 4 leaves the number of failed tests out where it is 0.
  tests=$(sed -nE 's/^[0-9]+% tests passed(, ([0-9]+) tests? failed)? out of ([0-9]+)$/\3 \2/p' "$log" | tail -n 1 |
    awk '{ print $1 - $2 "/" $1 }')
  tests=${tests:-no result}
}

median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

number='^[0-9.]+([eE][-+]?[0-9]+)?$'

gpus_used() {
  local all
  all=$(nvidia-smi -L | grep -c ^GPU)
  printf '%s x %s' $((ranks < all ? ranks : all)) "$(nvidia-smi --query-gpu=name --format=csv,noheader | sed -n 1p)"
}

# row LABEL BEFORE AFTER RATIO TESTS: a row of the table.
row() {
  printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$(version)" "$ranks" "$(gpus_used)" "${@:2}"
}

# compare LABEL UNIT FUNCTION ARGUMENTS...: `FUNCTION before ARGUMENTS...` and `FUNCTION after ...` in turns, each of
# which runs the program, checks its result and prints a number, or `-` where there is no such way. Prints the row with
# the medians, and how many times as fast it is with gpudt; without own tests the runs with gpudt whose result was right
# count.
compare() {
  local label=$1 unit=$2 way value ratio=- right=0
  local -A values=() failed=() medians=() shown=()
  shift 2
  for ((run = 0; run < runs; run++)); do
    for way in before after; do
      value=$("$1" "$way" "${@:2}") || value=failed
      if [[ $value =~ $number ]]; then
        values[$way]+=$value$'\n'
        [ $way = before ] || right=$((right + 1))
      elif [ "$value" != - ]; then
        failed[$way]=yes
      fi
    done
  done
  for way in before after; do
    shown[$way]=-
    if [ -n "${failed[$way]:-}" ]; then
      shown[$way]=failed
    elif [ -n "${values[$way]:-}" ]; then
      medians[$way]=$(printf '%s' "${values[$way]}" | median)
      shown[$way]="${medians[$way]} $unit"
    fi
  done
  if [ ${#medians[@]} -eq 2 ]; then
    ratio=$(awk -v a="${medians[before]}" -v b="${medians[after]}" -v unit="$unit" \
      'BEGIN { if (a > 0 && b > 0) printf "%.2f", unit ~ /\/s$/ ? b / a : a / b }')
  fi
  row "$label" "${shown[before]}" "${shown[after]}" "$ratio" "${tests:-$right/$runs}"
}
