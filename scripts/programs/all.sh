#!/usr/bin/env bash
# Builds and measures all programs whose sources are in the folder, each by its script, and prints one table. A program
# that fails has a row that says so.
#
# usage: all.sh FOLDER [RANKS] [NAME...]
#   FOLDER  has the sources: FOLDER/heffte for heffte.sh and so on
#   NAME    only these
# e.g. all.sh ~/sources 2 heffte jacobi
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

[ $# -ge 1 ] || die "usage: all.sh FOLDER [RANKS] [NAME...]"
folder=$1 ranks=${2:-2} failed=0
wanted=("${@:3}")
here=$root/scripts/programs
if [ ${#wanted[@]} -eq 0 ]; then
  for sources in "$folder"/*/; do
    name=$(basename "$sources")
    [ ! -f "$here/$name.sh" ] || wanted+=("$name")
  done
fi
rows=''
for name in "${wanted[@]}"; do
  [ -f "$here/$name.sh" ] || die "there is no $here/$name.sh"
  started=$SECONDS
  if ! output=$("$here/$name.sh" "$folder/$name" "$ranks"); then
    failed=$((failed + 1))
    output+=$'\n'"| $name | | $ranks | | failed | failed | | |"
  fi
  say "$name took $((SECONDS - started)) s"
  rows+=$(grep '^|' <<<"$output")$'\n'
done
printf '| program | version | ranks | GPUs | before | after | ratio | own tests |\n|---|---|---|---|---|---|---|---|\n%s' "$rows"
[ $failed -eq 0 ]
