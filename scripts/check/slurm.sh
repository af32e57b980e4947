#!/usr/bin/env bash
# Runs a command where Slurm is: a cluster of one node, this machine, with daemons of its own that end with the command.
# Within it SLURM_CONF is set, and `srun` starts programs; tests/run-mpi.sh does so with GPUDT_TEST_MPIRUN=srun. Needs root, and
# the packages slurm-wlm, munge, and libpmix2 (Debian).
#
# usage: slurm.sh COMMAND ARGUMENTS...
# e.g. slurm.sh env GPUDT_TEST_MPIRUN=srun meson test -C build --no-rebuild peer
#      (by PMIx, for Open MPI; with SLURM_MPI_TYPE=pmi2 for MPICH)
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

[ $# -ge 1 ] || die "usage: slurm.sh COMMAND ARGUMENTS..."
for tool in munged slurmctld slurmd srun; do
  command -v "$tool" >/dev/null || die "$tool is missing (packages slurm-wlm, munge, libpmix2)"
done

folder=$(mktemp -d)
chmod 755 "$folder"  # munged asks for that
stop() {
  local name pid
  for name in slurmd slurmctld munged; do
    pid=$(cat "$folder/$name.pid" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null || true
    timeout 10 tail -f /dev/null --pid "$pid" || true  # it still writes
  done
  rm -rf "$folder"
}
trap stop EXIT

mkdir "$folder/state" "$folder/spool"
(umask 077 && head -c 32 /dev/urandom >"$folder/munge.key")
munged --force --key-file "$folder/munge.key" --socket "$folder/munge.socket" --pid-file "$folder/munged.pid" \
  --log-file "$folder/munged.log" --seed-file "$folder/munge.seed" 2>/dev/null

# More processors than there are: ranks share them.
host=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=gpudt
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$((20000 + $$ % 10000))
SlurmdPort=$((30000 + $$ % 10000))
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=pmix
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=64 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
END
slurmctld
slurmd
for _ in $(seq 50); do
  if sinfo --noheader --states=idle 2>/dev/null | grep -q idle; then break; fi
  sleep 0.2
done
sinfo --noheader --states=idle | grep -q idle || die "Slurm does not start: $(tail -n 3 "$folder"/slurm*.log)"
"$@"
