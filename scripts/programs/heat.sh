#!/usr/bin/env bash
# Heat (helmholtz-analytics): a matrix of 8192^2 doubles on GPUs from rows to columns (resplit), in milliseconds: before,
# by Heat's own copies through the host; after, with device pointers. resplit.py checks each element. Own tests: those of
# its communication on GPUs, with device pointers and gpudt.
#
# usage: heat.sh [SOURCES [RANKS]]
#   PYTHON  a Python with mpi4py for this MPI, PyTorch, torchvision, SciPy and pytest
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/helmholtz-analytics/heat.git
python=${PYTHON:-$(python_with_mpi4py)} || die "there is no Python with mpi4py"
quietly "$python" -c 'import mpi4py, scipy, torch, torchvision, pytest'
# Heat says no for any Open MPI, whatever it finds.
copy=$(copy_of_sources)
sed -i '/# return cuda, rocm/{n;s/False, False/True, False/}' "$copy/heat/core/_config.py"
built

# Heat does not wait for PyTorch's stream before it calls MPI.
export GPUDT_ORDER=default-stream
resplit() {
  local from=$sources
  [ "$1" = before ] || from=$copy
  PYTHONPATH=$from mpi "$1" "$python" "$here/resplit.py" 8192 |
    awk '/^median:/ { time = $2 } END { print time ? time : "failed" }'
}

say 'Heat: own tests'
output=$(cd "$copy" && HEAT_TEST_USE_DEVICE=gpu PYTHONPATH=$copy mpi after "$python" -m pytest -q --color=no -p no:cacheprovider \
  tests/core/test_communication.py) || true
# Each rank says: N passed, or: N failed, M passed. What passes on all of them counts.
tests=$(awk '/ passed/ { passed = failed = 0
    for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) passed = $(i - 1); if ($i ~ /^failed/) failed = $(i - 1) }
    if (!n++ || passed < least) least = passed
    all = passed + failed }
  END { print n ? least "/" all : "no result" }' <<<"$output")
compare 'Heat, resplit 8192^2' ms resplit
