#!/usr/bin/env bash
# PETSc's benchmark of its solvers, bench_kspsolve: conjugate gradients with Jacobi for a 27-point Laplacian of 64^3 and
# 128^3 points, in milliseconds for the solution: before, PETSc stages what it sends, without gpudt (-use_gpu_aware_mpi
# 0); after, it passes device pointers (-use_gpu_aware_mpi 1). A run counts if its error is small and its number of
# iterations that of the first run, give or take one. Own tests: those that use CUDA of PetscSF, which sends all halos,
# and of the benchmark; each is a run of a program or the comparison of its output.
#
# usage: petsc.sh [--gpu-arch N] [--build-only | --run-only] [SOURCES [RANKS]]
# Needs make, Python, and BLAS and LAPACK (Debian: libblas-dev liblapack-dev). It builds in an own folder of the sources.
set -euo pipefail
# shellcheck source=scripts/programs/common.sh
. "$(dirname "$0")/common.sh"

if [ "$(id -u)" -eq 0 ]; then
  # PETSc's configuration and its tests start MPI's launcher themselves.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
from_git https://gitlab.com/petsc/petsc.git
sources=$(cd "$sources" && pwd)
arch=gpudt-sm_$gpu_arch
bench=$arch/tests/ksp/ksp/tutorials/bench_kspsolve
sf_tests=$arch/tests/vec/is/sf/tests
petsc_make=(make -C "$sources" -f gmakefile "PETSC_DIR=$sources" "PETSC_ARCH=$arch")
if [ ! -f "$sources/$arch/lib/petsc/conf/petscvariables" ]; then
  # --with-cuda-arch has to be one number, or PETSc asks the GPU of the machine that it is built on.
  quietly env -C "$sources" ./configure "PETSC_ARCH=$arch" --with-cc=mpicc --with-cxx=mpicxx --with-fc=0 --with-debugging=0 \
    --with-cuda "--with-cuda-arch=$gpu_arch" --with-x=0 COPTFLAGS=-O2 CXXOPTFLAGS=-O2 CUDAOPTFLAGS=-O2
fi
quietly "${petsc_make[@]}" -j "$jobs" libs
# The programs, and a script for each test.
quietly "${petsc_make[@]}" -j "$jobs" "$arch/tests/testfiles" "$bench" "$sf_tests/ex8" "$sf_tests/ex9" "$sf_tests/ex22"
built

say 'PETSc: own tests'
own=("$sf_tests/runex8_1_cuda" "$sf_tests/runex8_2_cuda" "$sf_tests/runex8_2_cuda_onetoall" "$sf_tests/runex22_cuda")
if [ "${PROGRAMS_SHORT:-0}" = 0 ]; then
  own+=("$sf_tests"/runex9_{4,5,6} "${bench%/*}"/runbench_kspsolve_cuda_{matmult,ksp})
fi
# The scripts split the launcher into words; -E adds to the arguments, -t is a time limit in seconds. They print a line
# for each run of a program, and one for its output.
launcher="$root/scripts/gpudt-run --library $library mpirun --oversubscribe --bind-to none"
tests=$(for name in "${own[@]}"; do
  PETSCMPIEXEC=$launcher "$sources/$name.sh" -t 120 -E '-use_gpu_aware_mpi 1' 2>&1 || true
done </dev/null | tee -a "$log" |
  awk '/^ *(not )?ok / { all++ } /^ *ok / && !/# SKIP/ { passed++ } END { print all ? passed + 0 "/" all : "no result" }')

# solve before|after N: the time that the benchmark prints for its solver, not for setting it up.
solve() {
  local way=$1 n=$2 aware=0 result time iterations first
  [ "$way" = before ] || aware=1
  result=$(mpi "$way" "$sources/$bench" -n "$n" -mat_type aijcusparse -ksp_type cg -pc_type jacobi -ksp_rtol 1e-8 -split_ksp \
    -use_gpu_aware_mpi $aware |
    awk '/^Error norm:/ { error = $3 } /^KSP iters:/ { iterations = $3 } /^KSPSolve:/ { time = $2 * 1e3 }
      END { print (time > 0 && error != "" && error < 1e-3) ? time " " iterations : "failed 0" }')
  read -r time iterations <<<"$result"
  first=$(cat "$work/iterations.$n" 2>/dev/null) || first=$iterations
  [ "$time" = failed ] || echo "$first" >"$work/iterations.$n"
  if [ $((iterations - first)) -gt 1 ] || [ $((first - iterations)) -gt 1 ]; then
    time=failed
  fi
  echo "$time"
}

rm -f "$work"/iterations.*
for n in 64 128; do
  compare "PETSc bench_kspsolve $n^3" ms solve $n
done
