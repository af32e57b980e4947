#!/usr/bin/env bash
# mpi4py-fft, the transposition of 512^3 doubles between two pencils (MPI_Alltoallw of subarrays), in milliseconds: before,
# CuPy arrays copied to the host and back; after, CuPy arrays themselves. transpose.py checks each element.
#
# usage: mpi4py-fft.sh [SOURCES [RANKS]]
#   PYTHON  a Python with mpi4py for this MPI, NumPy and CuPy
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/mpi4py/mpi4py-fft.git
python=${PYTHON:-$(python_with_mpi4py)} || die "there is no Python with mpi4py"
quietly "$python" -c 'import mpi4py, numpy, cupy'
built

transpose() {
  mpi "$1" "$python" "$here/transpose.py" "$1" "$sources" 512 | awk '/^median:/ { time = $2 } END { print time ? time : "failed" }'
}

compare 'mpi4py-fft transposition 512^3' ms transpose
