#!/usr/bin/env bash
# Runs a program on two nodes that are made of this machine, with the library on the simulated device:
# two network namespaces with a link between them, and shared memory of their own. For Open MPI. Needs root.
#
# usage: nodes.sh [-n RANKS] [-p] [-e NAME=VALUE]... RATE PROGRAM ARGUMENTS...
#   -n    ranks on each node (1)
#   -p    without the library
#   -e    for the environment of all ranks
#   RATE  of the link, as tc has it: 2gbit
# e.g. nodes.sh 2gbit build/pingpong/gpudt-pingpong --ways mpi,host --layouts contiguous,vector:128 --sizes 1M:16M
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

environment=() ranks=1
libraries=(-l "$build/libgpudt-pmpi.so" -s "$build/libgpudt-sim.so")
while getopts n:pe: option; do
  case $option in
    n) ranks=$OPTARG ;;
    p) libraries=() ;;
    e) environment+=(-e "$OPTARG") ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || die "usage: nodes.sh [-n RANKS] [-p] [-e NAME=VALUE]... RATE PROGRAM ARGUMENTS..."
rate=$1
shift
for tool in ip tc; do
  command -v $tool >/dev/null || die "$tool is missing (package iproute2)"
done

here=gpudt-$$-1 there=gpudt-$$-2 network=10.77.0
remove() {
  ip netns del "$here" 2>/dev/null || true
  ip netns del "$there" 2>/dev/null || true
}
trap remove EXIT
ip netns add "$here" || die "this machine does not let us make network namespaces"
ip netns add "$there"
ip link add link1 netns "$here" type veth peer name link2 netns "$there"
number=0
for node in "$here" "$there"; do
  number=$((number + 1))
  ip -n "$node" addr add "$network.$number/24" dev "link$number"
  ip -n "$node" link set "link$number" mtu 9000 up
  ip -n "$node" link set lo up
  ip netns exec "$node" tc qdisc add dev "link$number" root tbf rate "$rate" burst 1m latency 50ms
done

export NODE_NETNS=$there NODE_NETWORK=$network.0/24
ip netns exec "$here" "$root/tests/run-mpi.sh" -N -S -t 600 -n $((2 * ranks)) -r "$ranks" \
  "${libraries[@]}" "${environment[@]}" "$@"
