#!/bin/sh
# Runs a program under mpirun, with a time-out, on the GPUs if there are any and else on the simulated device.
#
# usage: run-mpi.sh [options] PROGRAM ARGUMENTS...
#   -n RANKS       number of ranks (2)
#   -t SECONDS     time-out (120)
#   -l LIBRARY     libgpudt-pmpi.so, to be preloaded; without -l none is
#   -s LIBRARY     libgpudt-sim.so, preloaded where there is no GPU
#   -S             the simulated device even where there is a GPU
#   -e NAME=VALUE  for the environment of the ranks; may be repeated
#   -N             each rank on a node of its own, as far as it can tell; status 77 if this machine does not allow that.
#                  NODE_NETWORK in the environment: the interface, or the addresses, by which they reach each other (lo)
#   -r RANKS       with -N: so many ranks on each node (1), on the last one those that are left
#   -w RANK        this rank of two, 0 or 1, runs without the library and on host memory alone
# GIVE_WAY in the environment: a library to be preloaded behind that of the simulated device (support/give_way.c)
# MPIRUN in the environment: the mpirun, of Open MPI or MPICH, that goes with the MPI library (mpirun).
# GPUDT_TEST_MPIRUN: another one, or srun
set -u

ranks=2 seconds=120 library='' sim='' simulate=no without='' environment='' nodes='' on_node=1
while getopts n:t:l:s:Se:w:Nr: option; do
  case $option in
    n) ranks=$OPTARG ;;
    t) seconds=$OPTARG ;;
    l) library=$OPTARG ;;
    s) sim=$OPTARG ;;
    S) simulate=yes ;;
    e) environment="$environment $OPTARG" ;;
    w) without=$OPTARG ;;
    N) nodes=yes ;;
    r) on_node=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))

# The driver's tool may be missing where the driver is not (containers): then the device node counts.
have_gpu() {
  if command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi -L 2>/dev/null | grep -q '^GPU'
  else
    [ -e /dev/nvidia0 ]
  fi
}

preload=$library
plain=GPUDT_TEST_HOST=1  # the environment of a rank without the library
if [ "$simulate" = yes ] || ! have_gpu; then
  preload=$library${library:+${sim:+:}}$sim
  environment="GPUDT_DEVICE=sim $environment"
  if [ -e "${GIVE_WAY:-}" ]; then
    preload=${preload:+$preload:}$GIVE_WAY
    plain="LD_PRELOAD=$GIVE_WAY $plain"
  fi
fi
# What somebody has measured on this machine decides nothing here.
environment="GPUDT_TUNING=none $environment"
if [ -n "$preload" ]; then
  environment="LD_PRELOAD=$preload $environment"
fi

# There may be more ranks than cores: a rank that waits gives way.
mpirun=${GPUDT_TEST_MPIRUN:-${MPIRUN:-mpirun}}
version=$("$mpirun" --version 2>&1)
is_openmpi4() { case $version in *"Open MPI) 4"* | *"OpenRTE) 4"*) true ;; *) false ;; esac }
case $version in
  *"Open MPI"* | *OpenRTE*)
    give_way='--oversubscribe --bind-to none --mca mpi_yield_when_idle 1'
    # On any machine: what Open MPI takes where there is no fast network, after looking for one for 0.2 s.
    export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
    # Open MPI 5's windows by UCX complain where there is none.
    is_openmpi4 || export OMPI_MCA_osc="${OMPI_MCA_osc:-^ucx}"
    if [ "$(id -u)" -eq 0 ]; then
      export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    ;;
  slurm*)
    give_way='--overlap --quiet --kill-on-bad-exit=1'
    export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}" OMPI_MCA_mpi_yield_when_idle=1 MPIR_CVAR_POLLS_BEFORE_YIELD=1
    ;;
  *)  # MPICH's, Hydra
    give_way='-bind-to none'
    export MPIR_CVAR_POLLS_BEFORE_YIELD=1
    ;;
esac
# A node has a name and shared memory of its own, and reaches the others by TCP alone. Of two programs, Open MPI 5 would
# start both on the first.
second=''
if [ -n "$nodes" ]; then
  node=$(cd "$(dirname "$0")" && pwd)/support/node.sh
  "$node" probe true 2>/dev/null || exit 77
  hosts=localhost:$on_node
  for i in $(seq 2 $(((ranks + on_node - 1) / on_node))); do hosts=$hosts,node$i:$on_node; done
  second='--host node2:1'
  links=tcp,self
  if is_openmpi4; then
    [ "$on_node" -eq 1 ] || links=$links,vader
    launch="--mca plm rsh --mca plm_rsh_agent $node --mca oob_tcp_if_include ${NODE_NETWORK:=lo}"
  else  # Open MPI 5 starts processes through another interface than lo
    [ "$on_node" -eq 1 ] || links=$links,sm
    launch="--prtemca plm ssh --prtemca plm_ssh_agent $node${NODE_NETWORK:+ --prtemca prte_if_include $NODE_NETWORK}"
  fi
  give_way="$give_way --host $hosts $launch --mca pml ob1 --mca btl $links --mca btl_tcp_if_include ${NODE_NETWORK:-lo}"
fi
mpi() {
  # shellcheck disable=SC2086  # several options
  timeout --kill-after=5 "$seconds" "$mpirun" $give_way "$@" </dev/null
}

# shellcheck disable=SC2086  # several settings
case $without in
  '') mpi -n "$ranks" env $environment "$@" ;;
  0) mpi -np 1 env $plain "$@" : $second -np 1 env $environment "$@" ;;
  *) mpi -np 1 env $environment "$@" : $second -np 1 env $plain "$@" ;;
esac
