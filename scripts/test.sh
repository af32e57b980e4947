#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. The last line is "N passed, N failed".
#
# Without arguments the tests run over Open MPI and then, on the simulated device, over MPICH, where that is installed.
#
# usage: test.sh [--mpich | --sanitize thread|address|undefined] [arguments for meson test]
#   --mpich     over MPICH alone, in a folder of its own
#   --sanitize  builds with this sanitizer, in a folder of its own, without CUDA; without further arguments, runs the
#               tests that are for it: those with several threads, or the unit tests and those under mpirun
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

mpich_arguments="-Dmpi=mpich -Dcuda=disabled -Dprograms=false"
have_mpich() { pkg-config --exists mpich && command -v mpirun.mpich >/dev/null 2>&1; }

also_mpich=no
[ $# -gt 0 ] || also_mpich=yes
prefix=()
if [ "${1:-}" = --sanitize ]; then
  sanitizer=${2:-}
  shift 2 || die "--sanitize thread, address or undefined"
  build=$root/build-$sanitizer
  export MESON_ARGS="-Db_sanitize=$sanitizer -Db_lundef=false -Dcuda=disabled -Dprograms=false
    --buildtype=debugoptimized"
  case $sanitizer in
    thread)
      # Open MPI is not instrumented: what it does with memory is not looked at, only its locks are.
      export TSAN_OPTIONS="ignore_noninstrumented_modules=1 history_size=5 second_deadlock_stack=1"
      # The sanitizer's places for its own memory may be taken when addresses are random.
      if setarch -R true 2>/dev/null; then
        prefix=(setarch -R)
      fi
      [ $# -gt 0 ] || set -- threads rma-threads
      ;;
    address)
      # The library is preloaded before the sanitizer's own, and Open MPI does not free everything.
      export ASAN_OPTIONS="verify_asan_link_order=0:detect_leaks=0:allow_user_segv_handler=1"
      [ $# -gt 0 ] || set -- --suite unit --suite mpi
      ;;
    undefined)
      export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
      [ $# -gt 0 ] || set -- --suite unit --suite mpi
      ;;
    *) die "--sanitize thread, address or undefined" ;;
  esac
elif [ "${1:-}" = --mpich ]; then
  shift
  build=$root/build-mpich
  export MESON_ARGS=$mpich_arguments
fi

"$root/scripts/setup.sh" --tests || die "set-up failed"
build_all || die "the build failed"

if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0

# sum NAME...: of the numbers in the summary's lines "NAME:   number".
sum() {
  local name total=0 number
  for name in "$@"; do
    number=$(sed -n "s/^$name: *\([0-9]*\) *\$/\1/p" "$log" | tail -n 1)
    total=$((total + ${number:-0}))
  done
  echo "$total"
}

# run [ARGUMENTS...]: the tests of the folder `build`, which are added to the counts.
run() {
  local code good bad skipped
  "${prefix[@]}" meson test -C "$build" --no-rebuild --print-errorlogs "$@" 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  good=$(sum 'Ok' 'Expected Fail')
  bad=$(sum 'Fail' 'Unexpected Pass' 'Timeout')
  skipped=$(sum 'Skipped')
  if [ "$skipped" -gt 0 ]; then
    echo "$skipped skipped"
  fi
  # A run that did not come to its end, or ran nothing, has failed whatever was counted.
  if [ "$bad" -eq 0 ] && { [ "$code" -ne 0 ] || [ "$good" -eq 0 ]; }; then
    bad=1
  fi
  passed=$((passed + good))
  failed=$((failed + bad))
}

run "$@"
if [ "$also_mpich" = yes ]; then
  if have_mpich; then
    say "over MPICH"
    build=$root/build-mpich
    export MESON_ARGS=$mpich_arguments
    if build_all; then
      run
    else
      echo "FAILED: the build for MPICH"
      failed=$((failed + 1))
    fi
  else
    say "MPICH is not installed: NOT TESTED over it"
  fi
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
