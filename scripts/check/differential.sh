#!/usr/bin/env bash
# Random MPI calls, with the library and without it: the program tests/random/differential does the same for the same
# seed, checks what it receives, and writes it down. Each seed is run without the library on host memory and with it,
# on the GPUs if there are any, else on the simulated device; what both wrote must be the same. Every seed has settings
# of its own: protocol, persistent kernel, what moves the data, ranks, threads, GPUs, and whether all memory is the
# host's. Exit status 1 if any seed failed, or if the MPI library itself fails with more than a quarter of them.
#
# usage: differential.sh [--build FOLDER] [--seconds N] [--runs N] [--seed S] [--jobs N] [--simulated] [SETTING=VALUE...]
#   --build      of the program and the libraries (build)
#   --seconds    after which no seed is begun (60)
#   --runs       at most so many seeds
#   --seed       the first seed (at random); the others follow it
#   --jobs       seeds that run at the same time (1)
#   --simulated  the simulated device even where there is a GPU
#   SETTING      for all seeds: protocol, resident, way, order (as GPUDT_PROTOCOL and so on); ranks; threads;
#                gpus (1: all ranks use the first one); memory (host or device); rts (ordinary: no compact ones, see
#                transport/peer/short_rts.hpp); rounds (of the program, such as 3-5); only (collectives)
# e.g. differential.sh --seconds 600 --simulated protocol=peer ranks=3
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

seconds=60 runs=1000000 seed=$((RANDOM * 32768 + RANDOM)) jobs=1 simulate=()
declare -A fixed=()
while [ $# -gt 0 ]; do
  case $1 in
    --simulated) simulate=(-S) && shift && continue ;;
    protocol=* | resident=* | way=* | order=* | ranks=* | threads=* | gpus=* | memory=* | rts=* | rounds=* | only=*)
      fixed[${1%%=*}]=${1#*=} && shift && continue ;;
  esac
  [ $# -ge 2 ] || die "what is $1? see the head of this script"
  case $1 in
    --build) build=$(cd "$2" && pwd) || die "no folder $2" ;;
    --seconds) seconds=$2 ;;
    --runs) runs=$2 ;;
    --seed) seed=$2 ;;
    --jobs) jobs=$2 ;;
    *) die "what is $1? see the head of this script" ;;
  esac
  shift 2
done
program=$build/tests/random/differential
[ -x "$program" ] || die "nothing is built in $build: run scripts/test.sh first"

protocols=(auto staging peer shared pipelined) residents=(auto never always) ways=(auto kernel copy)
orders=(none default-stream) kinds_of_rts=("" ordinary)
numbers_of_ranks=(2 2 2 2 3 4) numbers_of_threads=(1 1 1 3) numbers_of_gpus=(2 1)
memories=(device device device device device host)

# settings_of SEED: sets `settings`. 45 seeds that follow each other have all combinations of the first three.
declare -A settings
settings_of() {
  local name combination=$(($1 * 17 % 45)) other=$(($1 * 40503 % 65536 / 8))
  settings=([protocol]=${protocols[combination % 5]} [resident]=${residents[combination / 5 % 3]}
    [way]=${ways[combination / 15]}
    [ranks]=${numbers_of_ranks[other % 6]} [threads]=${numbers_of_threads[other / 6 % 4]}
    [gpus]=${numbers_of_gpus[other / 24 % 2]} [memory]=${memories[other / 48 % 6]}
    [order]=${orders[other / 288 % 2]} [rts]=${kinds_of_rts[other / 576 % 2]} [rounds]=0-19 [only]="")
  for name in "${!fixed[@]}"; do settings[$name]=${fixed[$name]}; done
}

# run OPTIONS...: the program with this seed and these settings; it writes to $folder/$seed.
run() {
  local name=$1
  shift
  timeout 300 "$root/tests/run-mpi.sh" -n "${settings[ranks]}" -t 280 "$@" "$program" --seed "$seed" \
    --rounds "${settings[rounds]}" --threads "${settings[threads]}" ${settings[only]:+--only "${settings[only]}"} --log "$folder/$seed.$name" \
    >"$folder/$seed.$name.output" 2>&1
}

# Whether all ranks have written the same without the library and with it.
same_logs() {
  local rank code=0
  for ((rank = 0; rank < settings[ranks]; ++rank)); do
    diff "$folder/$seed.without.$rank" "$folder/$seed.with.$rank" >>"$folder/$seed.with.output" || code=1
  done
  return "$code"
}

# Open MPI 4.1 has no windows over host memory where it may not copy between processes in any way.
host_windows=()
if [ "${OMPI_MCA_btl_vader_single_copy_mechanism:-}" = none ]; then
  host_windows=(-e OMPI_MCA_btl_vader_single_copy_mechanism=emulated)
fi

# One seed, without the library and with it.
compare() {
  local name text='' options
  settings_of "$seed"
  for name in protocol resident way ranks threads gpus memory order rts rounds only; do
    [ -z "${settings[$name]}" ] || text="$text $name=${settings[$name]}"
  done
  options=("${simulate[@]}" -l "$build/libgpudt-pmpi.so" -s "$build/libgpudt-sim.so"
    -e "GPUDT_PROTOCOL=${settings[protocol]}" -e "GPUDT_RESIDENT=${settings[resident]}" -e "GPUDT_WAY=${settings[way]}" -e "GPUDT_ORDER=${settings[order]}"
    -e "GPUDT_SIM_DEVICES=${settings[gpus]}")
  if [ "${settings[rts]}" = ordinary ]; then options+=(-e GPUDT_TEST_ORDINARY_RTS=1); fi
  if [ "${settings[gpus]}" = 1 ]; then options+=(-e CUDA_VISIBLE_DEVICES=0); fi
  if [ "${settings[memory]}" = host ]; then options+=(-e GPUDT_TEST_HOST=1 "${host_windows[@]}"); fi
  if ! run without -e GPUDT_TEST_HOST=1 -e GPUDT_TEST_TIMEOUT=30 "${host_windows[@]}"; then
    # Open MPI 4.1 goes on wrongly in some datatypes where a fragment of a message has ended.
    echo "seed $seed: nothing to compare, MPI itself fails:$text" | tee -a "$folder/unfit"
    grep -v -e '^--' -e Signal "$folder/$seed.without.output" | head -n 2
  elif ! run with "${options[@]}" || ! same_logs; then
    echo "seed $seed FAILED:$text
$(head -n 25 "$folder/$seed.with.output")
== again: scripts/check/differential.sh ${build_option[*]} --runs 1 --seed $seed$text" | tee -a "$folder/failures"
  else
    sed -n 's/^seed .*, \([0-9]*\) messages, \([0-9]*\) collectives$/\1 \2/p' "$folder/$seed.with.output" >>"$folder/done"
    echo "seed $seed:$text"
  fi
  rm -f "$folder/$seed".*
}

build_option=()
if [ "$build" != "$root/build" ]; then build_option=(--build "$build"); fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
touch "$folder/failures" "$folder/unfit" "$folder/done"
say "seeds from $seed, for $seconds s"
count=0
for (( ; SECONDS < seconds && count < runs; ++count, ++seed)); do
  if [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; then wait -n; fi
  compare &
done
wait
# lines_in FILE PATTERN
lines_in() { grep -cs "$2" "$folder/$1" || true; }
failed=$(lines_in failures '^seed .* FAILED') unfit=$(lines_in unfit '^seed')
say "$count seeds, $failed failed, $unfit with nothing to compare;" \
  "$(awk '{ m += $1; c += $2 } END { printf "%d messages, %d collectives", m, c }' "$folder/done") without a difference"
[ "$failed" -eq 0 ] && [ "$count" -gt 0 ] && [ $((4 * unfit)) -le "$count" ]
