#!/bin/sh
# What Open MPI's mpirun uses instead of ssh (plm_rsh_agent), to start processes that take themselves for another node's.
#
# usage: node.sh NAME COMMAND...
# NODE_NETNS in the environment: the network namespace that the node is in (that of mpirun)
name=$1
shift
# shellcheck disable=SC2016,SC2086  # for the inner shell; several words
exec ${NODE_NETNS:+ip netns exec $NODE_NETNS} unshare --mount --uts \
  sh -c 'mount -t tmpfs tmpfs /dev/shm && hostname "$0" && eval "$*"' "$name" "$@"
