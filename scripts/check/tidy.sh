#!/usr/bin/env bash
# Static analysis (clang-tidy, with .clang-tidy) of the sources of the library and the programs that a build compiles,
# and of the project's headers that they include. Any finding fails. It takes some eight seconds a file on one core, so
# CI has the latest files analysed alone, and whoever changes much, or a header, all.
#
# usage: tidy.sh [--latest COUNT] [FILE...]     BUILD_DIR: of Meson's, whose generated sources have been made
#   --latest COUNT  the COUNT files that were changed last; says how many others the latest 50 commits have changed. A
#                   header that was changed stands for the source beside it of the same name
#   FILE...         these alone (default: all)
# e.g. tidy.sh interpose/transport/protocol.cpp
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"
cd "$root"

commands=$(mktemp -d)
trap 'rm -rf "$commands"' EXIT
# Without what is for GCC alone, its memory and precompiled headers: each file includes what it uses.
"$root/scripts/check/commands.py" "$build" | sed -E 's/ -include [^ ]*precompiled\.hpp//; s/ -fpch-preprocess//; s/ -Winvalid-pch//; s/ --param=[^ ]*//' \
  >"$commands/compile_commands.json"

folders=(datatype device initiated interpose pingpong)
commits=50
latest=
files=()
while [ $# -gt 0 ]; do
  case $1 in
    --latest) latest=$2 && shift ;;
    -*) die "unknown option '$1'; usage: tidy.sh [--latest COUNT] [FILE...]" ;;
    *) files+=("$1") ;;
  esac
  shift
done

# Of the names on standard input, without repetition, those of files that the build compiles.
compiled() {
  local name
  awk '!seen[$0]++' | while read -r name; do
    if [ -f "$name" ] && grep -q "\"file\": \".*/$name\"" "$commands/compile_commands.json"; then
      echo "$name"
    fi
  done
}

# The sources that the latest commits have changed, the last one first, and what is not committed yet before all.
changed() {
  local patterns=("${folders[@]/%//*pp}")
  { git diff --name-only HEAD -- "${patterns[@]}"
    git log --max-count="$commits" --format= --name-only -- "${patterns[@]}"; } | sed 's/\.hpp$/.cpp/' | compiled
}

if [ -n "$latest" ]; then
  mapfile -t all < <(changed)
  files=("${all[@]:0:latest}")
  say "clang-tidy: ${#files[@]} files; $((${#all[@]} - ${#files[@]})) that were changed before them are left to scripts/check/tidy.sh"
elif [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(git ls-files -- "${folders[@]/%//*.cpp}" | compiled)
  say "clang-tidy: all ${#files[@]} files"
fi
[ ${#files[@]} -gt 0 ] || exit 0

# One file per processor at a time. What clang-tidy writes to standard error is its count of suppressed warnings.
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p "$commands" --quiet \
  --extra-arg=-Wno-unknown-warning-option 2>/dev/null
