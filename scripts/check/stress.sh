#!/usr/bin/env bash
# Looks for tests that fail now and then: runs each many times alone, six at a time, all on one core, and with random
# delays of the simulated device. Prints what failed, with the end of its log. Exit status 1 if anything did. Needs a
# build (scripts/test.sh makes one).
#
# usage: stress.sh [--build FOLDER] [--times N] [--way WAY]... [NAME...]
#   --build  (build)
#   --times  runs of each test in each way (50)
#   --way    alone, six, core or delays; may be repeated (all four)
#   NAME     of a test, as `meson test` takes it (those of suite mpi)
# e.g. stress.sh --times 200 --way delays threads
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

usage="usage: stress.sh [--build FOLDER] [--times N] [--way WAY]... [NAME...]"
times=50 ways=()
while [[ ${1:-} == --* ]]; do
  [ $# -ge 2 ] || die "$usage"
  case $1 in
    --build) build=$(cd "$2" && pwd) || die "no folder $2" ;;
    --times) times=$2 ;;
    --way) ways+=("$2") ;;
    *) die "$usage" ;;
  esac
  shift 2
done
[ ${#ways[@]} -gt 0 ] || ways=(alone six core delays)
[ $# -gt 0 ] || set -- --suite mpi

# Several jobs that share few cores take longer than the tests allow for.
run() { "$@" meson test -C "$build" --no-rebuild --quiet --repeat "$times" --timeout-multiplier 4 "${names[@]}"; }
names=("$@") failed=0
for way in "${ways[@]}"; do
  case $way in
    alone) prefix=(env MESON_TESTTHREADS=1) ;;
    six) prefix=(env MESON_TESTTHREADS=6) ;;
    core) prefix=(env MESON_TESTTHREADS=1 taskset -c "$(($(nproc) - 1))") ;;
    delays) prefix=(env MESON_TESTTHREADS=1 GPUDT_SIM_DELAY_US=0-500) ;;
    *) die "$usage" ;;
  esac
  say "$way, $times times"
  run "${prefix[@]}" >/dev/null 2>&1 || failed=1
  "$root/scripts/check/failures.py" "$build/meson-logs/testlog.json"
done
[ "$failed" -eq 0 ] && say "nothing failed"
exit "$failed"
