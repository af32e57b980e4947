# What the scripts have in common; to be sourced. Sets `root` and `build` (BUILD_DIR, if that is set), and
# defines what is below. With --help as its first argument the script prints the comment that it begins with, and ends.
# shellcheck shell=bash

case ${1:-} in
  -h | --help)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD_DIR:-$root/build}
# Options for a build folder that is made once: several files are compiled as one, in a third of the time.
# shellcheck disable=SC2034  # for the scripts that this is sourced by
several_at_once="-Db_pch=true -Dunity=on -Dunity_size=8"

say() { printf '== %s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# A GPU that answers. nvidia-smi may be missing where the driver is not (containers): then the device node counts.
have_gpu() {
  if command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null  # to its end: else a pipefail counts
  else
    [ -e /dev/nvidia0 ]
  fi
}

have_nvcc() { command -v nvcc >/dev/null 2>&1 || [ -x "${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}/bin/nvcc" ]; }

python_with_mpi4py() { python3 "$root/tests/apps/python_calls.py" find; }

# Prints the Fortran compiler: FC, or the one of MPI's compiler wrapper, whose modules it reads, or any other.
fortran_compiler() {
  local name
  for name in "${FC:-}" "$(mpifort --showme:command 2>/dev/null)" "$(mpifort -show 2>/dev/null | cut -d ' ' -f 1)" \
    gfortran $(compgen -c gfortran- | grep -x 'gfortran-[0-9]*' | sort -rV | head -n 1) flang-new flang nvfortran ifx; do
    if [ -n "$name" ] && command -v "$name"; then
      return
    fi
  done
  return 1
}

# Configures once, with MESON_ARGS. A build folder made without a Fortran compiler, where there is one now, is configured
# again.
configure_build() {
  local again=() compiler
  if compiler=$(fortran_compiler); then
    export FC=$compiler
  fi
  if [ -f "$build/build.ninja" ] && [ -n "${FC:-}" ] && ! grep -q '^rule fortran_COMPILER' "$build/build.ninja"; then
    again=(--reconfigure)
  fi
  if [ ! -f "$build/build.ninja" ] || [ ${#again[@]} -gt 0 ]; then
    # shellcheck disable=SC2086  # several arguments
    meson setup "${again[@]}" "$build" "$root" ${MESON_ARGS:-}
  fi
}

# The same, and builds.
build_all() {
  configure_build
  ninja -C "$build"
}

# run_mpi RANKS SECONDS ENVIRONMENT... -- PROGRAM ARGUMENTS...: mpirun under a time-out; each NAME=VALUE of the
# environment reaches the ranks, and only them.
run_mpi() {
  local ranks=$1 seconds=$2 flags=()
  shift 2
  while [ "$1" != -- ]; do
    flags+=(-x "$1")
    shift
  done
  shift
  if [ "$(nproc)" -lt $((2 * ranks)) ]; then
    # Ranks that poll without a pause would keep the threads of the simulated device from running.
    flags+=(--oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
  fi
  if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  if ! command -v ssh >/dev/null 2>&1; then
    # Open MPI 4 and 5 look for ssh even when every rank is here.
    export OMPI_MCA_plm_rsh_agent=sh PRTE_MCA_plm_ssh_agent=sh
  fi
  timeout --kill-after=10 "$seconds" mpirun -np "$ranks" "${flags[@]}" "$@"
}
