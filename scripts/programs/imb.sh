#!/usr/bin/env bash
# The Intel MPI Benchmarks for GPUs (IMB-MPI1-GPU, IMB-RMA-GPU), in microseconds: before, with buffers in pinned host
# memory; after, in device memory. Own tests: all benchmarks with IMB's check of the data; sizes without an error count. (Its
# column of defects stays 0 whatever it finds.)
#
# usage: imb.sh [--build-only | --run-only] [SOURCES [RANKS]]
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

from_git https://github.com/intel/mpi-benchmarks.git
copy=$(copy_of_sources)
if [ "$run_only" = no ]; then
  # Its check reads, and its buffers off the cache are filled, by the host; what it sets of a buffer lacks the last byte.
  sed -i '1i #include "IMB_gpu_common.h"
/^#else .*not *MPIIO/a\
    void *received = RECEIVED;\
    size_t bytes = max((size_t)Locsize, Totalsize);\
    RECEIVED = malloc(bytes + asize);\
    gpu_memcpy(RECEIVED, received, bytes);
s/^\( *\)IMB_ass_buf(RECEIVED, \(c_info->rank, buf_pos, Locsize - 1, 0);\)/\1IMB_gpu_backend.IMB_gpu_ass_buf(received, \2\
    free(RECEIVED);/' "$copy/src_c/IMB_chk_diff.c"
  sed -i -e 's/if (pos2 <= pos1)/if (pos2 < pos1)/' -e 's/malloc(pos2 + 1 - pos1)/malloc(pos2 - pos1 + 1 + 16)/' \
    -e '/cuda_memcpy(tmp_buf, buf + pos1, /d' \
    -e 's/cuda_memcpy(buf + pos1, tmp_buf, pos2 - pos1)/cuda_memcpy(buf, tmp_buf, pos2 - pos1 + 1)/' "$copy/src_c/IMB_cuda.c"
  sed -i 's/^\( *\)memcpy((void\*)/\1gpu_memcpy((void*)/' "$copy/src_c/IMB_mem_manager.c"
  # Warnings are errors there.
  sed -i 's/ -Werror//' "$copy/src_cpp/Makefile"
  rm -rf "${work:?}/check"
  cp -r "$copy" "$work/check"
fi
for folder in "$copy" "$work/check"; do
  macros=-DOMPI_SKIP_MPICXX
  [ "$folder" = "$copy" ] || macros+=' -DCHECK'
  for suite in MPI1 RMA; do
    quietly make -C "$folder/src_cpp" -j "$jobs" TARGET=$suite GPU_ENABLE=1 \
      "CC=$(command -v mpicc)" "CXX=$(command -v mpicxx)" "CUDA_INCLUDE_DIR=$cuda/include" "CPPFLAGS=$macros"
  done
done
built
export LD_LIBRARY_PATH=$cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# imb before|after FOLDER SUITE ARGUMENTS...
imb() {
  local way=$1 memory=device
  [ "$way" = after ] || memory=host
  mpi "$way" "$here/own_gpu.sh" "$2/src_cpp/IMB-$3" "${@:4}" -mem_alloc_type $memory -npmin "$ranks"
}

say 'IMB: own tests'
tests=$(for suite in MPI1 RMA; do imb after "$work/check" $suite -msglog 0:20 -iter 5; done |
  awk '/#repetitions/ { checked = /defects/ }
    checked && /^ *[0-9]+ / { all++ }
    /: Error .*size = / { sub(/.*: Error /, ""); sub(/,sample.*/, ""); wrong += !known[$0]++ }
    /^# All processes entering MPI_Finalize/ { ended++ }
    END { print ended == 2 ? all - wrong "/" all : "failed" }') || tests=failed

# bench before|after SUITE BENCHMARK SIZE: of the slowest rank, where several measure.
bench() {
  local way=$1 suite=$2 name=$3 size=$4 lengths
  lengths=$work/lengths.$size
  echo "$size" >"$lengths"
  imb "$way" "$copy" "$suite" "$name" -msglen "$lengths" -iter 200 -iter_policy off |
    awk -v size="$size" '/#bytes/ { column = /t_max/ ? 4 : 3 }
      $1 == size && !time { time = $column }
      END { print time ? time : "failed" }'
}

for size in 8 1048576; do
  compare "IMB PingPong $size B" us bench MPI1 PingPong $size
done
for name in Exchange Alltoall Allreduce; do
  compare "IMB $name 1048576 B" us bench MPI1 $name 1048576
done
for name in Unidir_put Unidir_get; do
  compare "IMB $name 1048576 B" us bench RMA $name 1048576
done
