#!/usr/bin/env bash
# Regenerates every figure and table of Jenkins et al. on this machine, and what else gpudt is held against: measures
# (scripts/measure.sh), draws, and writes FOLDER/results.md with the paper's own figures beside ours.
#
# usage: reproduce.sh [--simulated] FOLDER [PART...]
#   PART   a part of measure.sh (its --help lists them), to be measured now, for where a command may not last long enough
#          for all of them; or `page`: only from what FOLDER holds already. The page is made from all that FOLDER holds,
#          whichever parts are named. Without any: all.
# e.g. reproduce.sh results; reproduce.sh results page
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

options=()
if [ "${1:-}" = --simulated ]; then
  options=(--simulated)
  shift
fi
[ $# -ge 1 ] || die "usage: reproduce.sh [--simulated] FOLDER [PART...]"
out=$1
shift

code=0
if [ "$*" != page ]; then
  "$root/scripts/measure.sh" "${options[@]}" "$out" "$@" || code=$?
fi
if ! ls "$out"/*.json >/dev/null 2>&1; then
  exit "$((code == 0 ? 1 : code))"
fi

# The first Python with matplotlib draws; without one there are tables alone.
python=python3
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import matplotlib' 2>/dev/null; then
    python=$candidate
    break
  fi
done
files=()
for name in packbench block-lengths pingpong kinds {many,halo,reductions,collectives-nccl}-{2,4}; do
  if [ -f "$out/$name.json" ]; then
    files+=("$out/$name.json")
  fi
done
# What scripts/programs/all.sh has printed, if that is there.
if [ -f "$out/programs.md" ]; then
  files+=("$out/programs.md")
fi
if ! "$python" -c 'import matplotlib' 2>/dev/null; then
  say "no matplotlib here: tables alone (scripts/setup.sh --plot installs it; then: reproduce.sh $out page)"
elif [ ${#files[@]} -gt 0 ]; then
  "$python" "$root/scripts/measure/plot.py" "${files[@]}" --out "$out" || code=1
fi
"$python" "$root/scripts/measure/page.py" "$out" || code=1
exit "$code"
