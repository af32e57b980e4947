#!/bin/sh
# What Open MPI's mpirun uses instead of ssh (plm_rsh_agent), to start processes that take themselves for another node's.
#
# usage: node.sh NAME COMMAND...
name=$1
shift
# shellcheck disable=SC2016  # for the inner shell
exec unshare --mount --uts sh -c 'mount -t tmpfs tmpfs /dev/shm && hostname "$0" && eval "$*"' "$name" "$@"
