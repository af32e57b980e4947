#!/usr/bin/env bash
# PyFR: a step of a Taylor-Green vortex in 16^3 and 32^3 hexahedra, in milliseconds: before, it copies what it sends
# through pinned memory (mpi-type = standard); after, it passes device pointers (mpi-type = cuda-aware). A run with gpudt
# counts if its solution is that of the run before, but for rounding.
#
# usage: pyfr.sh [SOURCES [RANKS]]
#   PYTHON        a Python with mpi4py for this MPI, NumPy, h5py, Mako, gimmik, platformdirs, pytools and rtree
#   PYFR_BACKEND  for a trial without GPUs, another of PyFR's backends than cuda
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/PyFR/PyFR.git
python=${PYTHON:-$(python_with_mpi4py)} || die "there is no Python with mpi4py"
sources=$(cd "$sources" && pwd)
export PYTHONPATH=$sources${PYTHONPATH:+:$PYTHONPATH}
quietly "$python" -c 'import gimmik, h5py, mako, mpi4py, platformdirs, pyfr, pytools, rtree'
for cells in 16 32; do
  quietly "$python" "$here/pyfr_steps.py" mesh "$work/$cells.pyfrm" $cells "$ranks"
done
built

steps() {
  local way=$1 cells=$2 mpi_type=standard difference=0 time
  [ "$way" = before ] || mpi_type='cuda-aware'
  time=$(mpi "$way" "$python" "$here/pyfr_steps.py" run "$work/$cells.pyfrm" "${PYFR_BACKEND:-cuda}" $mpi_type 50 \
    "$work/$cells-$way.npz" | awk '/^step:/ { print $2 }')
  if [ "$way" = after ]; then
    "$python" "$here/pyfr_steps.py" compare "$work/$cells-before.npz" "$work/$cells-after.npz" >"$work/compared" 2>&1 || true
    cat "$work/compared" >>"$log"
    difference=$(awk '/^difference:/ { print $2 }' "$work/compared")
  fi
  awk -v time="$time" -v difference="$difference" \
    'BEGIN { print (time > 0 && difference != "" && difference < 1e-11) ? time : "failed" }'
}

for cells in 16 32; do
  compare "PyFR, Taylor-Green $cells^3" ms steps $cells
done
