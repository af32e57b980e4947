#!/usr/bin/env bash
# The OSU micro-benchmarks with GPU buffers, in microseconds: latency of 8 B and 1 MiB and an allreduce of 8 B and 16 MiB,
# and the bandwidth of 4 MiB in MB/s: before, those for NCCL, where that is found; after, those for MPI, which check the
# data (-c).
#
# usage: osu.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
#   NCCL_HOME  a folder with include/nccl.h and lib/libnccl.so; else that of Python's package nvidia-nccl is looked for
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

release=7.4
if [ ! -d "$sources" ]; then
  say "fetching version $release"
  mkdir -p "$sources"
  quietly curl -fsSL -o "$work/osu.tar.gz" \
    "https://mvapich.cse.ohio-state.edu/download/mvapich/osu-micro-benchmarks-$release.tar.gz"
  quietly tar -xzf "$work/osu.tar.gz" -C "$sources" --strip-components 1
  echo "v$release" >"$sources/.git-describe"
fi
copy=$(copy_of_sources)
nccl=$(nccl_home) || nccl=''
options=(--enable-cuda=basic "--with-cuda=$cuda" "CC=$(command -v mpicc)" "CXX=$(command -v mpicxx)")
if [ -n "$nccl" ]; then
  export LD_LIBRARY_PATH=$nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  options+=(--enable-ncclomb "--with-nccl=$nccl")
fi
# Git sets the times of generated files anew, and the build would make them again with the tools of its author.
find "$copy" -name aclocal.m4 -exec touch {} +
find "$copy" \( -name configure -o -name 'Makefile.in' \) -exec touch {} +
chmod +x "$copy/configure" "$copy/install-sh"
(cd "$copy" && quietly ./configure "${options[@]}")
quietly make -C "$copy/c" -j "$jobs"
built

# bench before|after BENCHMARK SIZE: the second column of the line of that size.
bench() {
  local way=$1 name=$2 size=$3 path np=2 options=(-c)
  if [ "$way" = before ] && [ -z "$nccl" ]; then
    echo -
    return
  fi
  [ "$name" != osu_allreduce ] || options+=(-M 1000000000) np=$ranks
  path=$(find "$copy/c/mpi" -type f -name "$name" -perm -u+x | sed -n 1p)
  if [ "$way" = before ]; then
    path=$(find "$copy/c/xccl" -type f -name "osu_xccl_${name#osu_}" -perm -u+x | sed -n 1p)
    [ "$name" != osu_allreduce ] || options=(-M 1000000000)  # it does not check
  fi
  [ "$name" = osu_allreduce ] || options+=(D D)
  np=$np mpi "$way" "$path" -m "$size:$size" -d cuda "${options[@]}" |
    awk -v size="$size" '$1 == size { value = $2; if (/Fail/) bad = 1 } END { print value && !bad ? value : "failed" }'
}

for size in 8 1048576; do
  compare "osu_latency $size B" us bench osu_latency $size
done
compare 'osu_bw 4194304 B' MB/s bench osu_bw 4194304
for size in 8 16777216; do
  compare "osu_allreduce $size B" us bench osu_allreduce $size
done
