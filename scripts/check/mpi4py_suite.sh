#!/usr/bin/env bash
# Runs mpi4py's own tests (4.1.2) on two ranks over Open MPI and compares: on host memory without libgpudt-pmpi.so and
# with it, with and without a device; the same tests must fail, or none. With --cupy once, with the library, on CuPy's
# arrays: no test may fail. Arrays of unsigned numbers are filled with -1 there as NumPy 1 did, modulo 2^n: NumPy 2
# refuses that, in some ranks only, whose collectives then match those of the next test in the others.
#
# usage: mpi4py_suite.sh [--cupy] [ARGUMENTS...]
#   ARGUMENTS are for mpi4py's test/main.py, as `-i p2p` or `-e spawn` (Open MPI 4.1.4 may hang in tests of spawned
#   processes where there are more processes than cores)
# e.g. mpi4py_suite.sh -i p2p
# In the environment:
#   MPI4PY_PYTHON   a Python that has mpi4py 4.1.2; else one is installed by pip
#   MPI4PY_TESTS    the folder `test` of mpi4py's source package; else that is fetched by pip
#   MPI4PY_SECONDS  for each run (1500)
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

version=4.1.2
seconds=${MPI4PY_SECONDS:-1500}
work=$build/mpi4py
cupy=no
if [ "${1:-}" = --cupy ]; then
  cupy=yes
  shift
fi
[ -f "$build/libgpudt-pmpi.so" ] || die "there is no $build/libgpudt-pmpi.so: build it first"
mkdir -p "$work"

has_mpi4py() { "$1" -c "import mpi4py; assert mpi4py.__version__ == '$version'" 2>/dev/null; }

fetch_source() {
  [ -f "$work/mpi4py-$version.tar.gz" ] ||
    python3 -m pip download -q --no-deps --no-binary mpi4py --dest "$work" "mpi4py==$version"
}

python=${MPI4PY_PYTHON:-}
for candidate in "$(command -v python3)" "$work/venv/bin/python"; do
  if [ -z "$python" ] && has_mpi4py "$candidate"; then
    python=$candidate
  fi
done
if [ -z "$python" ]; then
  say "installing mpi4py $version in $work/venv"
  fetch_source
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q numpy "$work/mpi4py-$version.tar.gz"
  python=$work/venv/bin/python
fi
has_mpi4py "$python" || die "$python has no mpi4py $version"

tests=${MPI4PY_TESTS:-}
if [ -z "$tests" ]; then
  fetch_source
  tar -xzf "$work/mpi4py-$version.tar.gz" -C "$work"
  tests=$work/mpi4py-$version/test
fi
[ -f "$tests/main.py" ] || die "there is no $tests/main.py"

# suite NAME ENVIRONMENT... -- ARGUMENTS...: one run, whose output goes to a folder of that name.
suite() {
  local name=$1 environment=()
  shift
  while [ "$1" != -- ]; do
    environment+=("$1")
    shift
  done
  shift
  rm -rf "${work:?}/$name"
  say "$name"
  run_mpi 2 "$seconds" "${environment[@]}" -- --output-filename "$work/$name" \
    "$python" -u "$tests/main.py" --no-builddir -v "$@" >"$work/$name.log" 2>&1 || true  # the output tells
}

results() { "$python" "$root/scripts/check/mpi4py_results.py" "$@"; }

library=$build/libgpudt-pmpi.so
export GPUDT_TUNING=none
if [ "$cupy" = yes ]; then
  rm -rf "$work/cupy-tests"
  cp -r "$tests" "$work/cupy-tests"
  tests=$work/cupy-tests
  wrapped='numpy.array(arg).astype(typecode)'
  sed -i "/class GPUArrayCuPy/,/def address/{
    s/self.array.fill(arg)/self.array.fill($wrapped.item())/
    s/cupy.asarray(arg, typecode)/cupy.asarray($wrapped)/
  }" "$tests/arrayimpl.py"
  [ "$(grep -cF "$wrapped" "$tests/arrayimpl.py")" = 2 ] || die "$tests/arrayimpl.py is not that of mpi4py $version"
  suite cupy "LD_PRELOAD=$library" GPUDT_ORDER=default-stream -- --cupy "$@"  # the tests do not synchronise
  results "$work/cupy"
  exit
fi
suite without -- "$@"
suite no-device "LD_PRELOAD=$library" GPUDT_DEVICE=none -- "$@"
if have_gpu && have_nvcc; then
  suite device "LD_PRELOAD=$library" -- "$@"
else
  suite device "LD_PRELOAD=$library:$build/libgpudt-sim.so" GPUDT_DEVICE=sim -- "$@"
fi
results "$work/without" "$work/no-device" "$work/device"
