#!/usr/bin/env bash
# Starts a program that uses the first GPU it sees: each rank sees all of them (or those of CUDA_VISIBLE_DEVICES), its own
# first.
#
# usage: mpirun -np 2 own_gpu.sh PROGRAM ARGUMENTS...
set -euo pipefail

rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${SLURM_LOCALID:-0}}}
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
  IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
else
  mapfile -t gpus < <(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)
fi
order=''
for ((i = 0; i < ${#gpus[@]}; i++)); do
  order+=${order:+,}${gpus[(rank + i) % ${#gpus[@]}]}
done
[ -z "$order" ] || export CUDA_VISIBLE_DEVICES=$order
exec "$@"
