#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. The last line is "N passed, N failed".
#
# usage: test.sh [arguments for meson test]
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

"$root/scripts/setup.sh" --tests || die "set-up failed"
build_all || die "the build failed"

if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
meson test -C "$build" --no-rebuild --print-errorlogs "$@" 2>&1 | tee "$log"
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
