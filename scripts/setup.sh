#!/usr/bin/env bash
# Installs what gpudt needs to be built and run, and is not there yet, with apt: Debian 12, Ubuntu 24.04 and later.
# Things are looked for where the compiler and Meson would, so whatever was installed in another way counts, and where
# nothing is missing neither the network nor root is needed.
#
# usage: setup.sh [--demo | --tests] [--checks] [--plot] [--initiated]
#   --demo    without what the tests alone need to be built: Catch2
#   --tests   also what some tests need and are skipped without, so that failing to install it is no error: a Fortran
#             compiler, mpi4py, MPICH beside Open MPI
#   --checks  also what .ci/run needs: clang, clang-format, clang-tidy, Python's venv for the site
#   --plot    also what plot.py needs: matplotlib
#   --initiated  also NVSHMEM for initiated/ (docs/initiated.md), by pip, into the folder .nvshmem, unless there is one;
#             failing to install it is no error
# e.g. setup.sh --tests
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

usage='usage: setup.sh [--demo | --tests] [--checks] [--plot] [--initiated]'
nvshmem=nvidia-nvshmem-cu13==3.4.5
initiated=no demo=no
missing=()
wanted=()  # missing, but not needed

# need PACKAGE COMMAND...: the package is missing unless the command succeeds.
need() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}

# want PACKAGE COMMAND...: the same for what can be done without.
want() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || wanted+=("$package")
}

on_path() { command -v "$1"; }
has_header() { echo "#include <$1>" | g++ -std=c++20 -E -x c++ -; }
has_module() { pkg-config --exists "$1"; }
has_library() { has_module "$1" || has_header "$2"; }
has_mpi() { has_module ompi-c || has_module ompi || has_module mpich || mpicc --showme:version; }
has_catch2() { has_header catch2/catch_all.hpp || has_header catch2/catch.hpp; }
has_meson() {
  local version
  version=$(meson --version) && [ "$(printf '1.0\n%s\n' "$version" | sort -V | head -n 1)" = 1.0 ]
}

look_around() {
  need python3 on_path python3
  need g++ on_path g++
  need pkg-config on_path pkg-config
  need ninja-build on_path ninja
  need meson has_meson
  need libopenmpi-dev has_mpi
  need openmpi-bin on_path mpirun
  need libcli11-dev has_library CLI11 CLI/CLI.hpp
  need nlohmann-json3-dev has_library nlohmann_json nlohmann/json.hpp
  need libfmt-dev has_library fmt fmt/format.h
  need libspdlog-dev has_library spdlog spdlog/spdlog.h
}

look_around
for option in "$@"; do
  case $option in
    --demo) demo=yes ;;
    --tests)
      want gfortran fortran_compiler
      want python3-mpi4py python_with_mpi4py
      want libmpich-dev has_module mpich
      want mpich on_path mpirun.mpich
      ;;
    --checks)
      need clang on_path clang++
      need clang-format on_path clang-format
      need clang-tidy on_path clang-tidy
      need python3-venv python3 -c 'import ensurepip, venv'
      ;;
    --plot) need python3-matplotlib python3 -c 'import matplotlib' ;;
    --initiated) initiated=yes ;;
    *) die "unknown option '$option'; $usage" ;;
  esac
done
[ "$demo" = yes ] || need catch2 has_catch2

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo)
fi
install() {
  "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

if [ ${#missing[@]} -gt 0 ]; then
  say "set-up: missing: ${missing[*]}"
  command -v apt-get >/dev/null 2>&1 || die "no apt-get here; install by other means: ${missing[*]}"
  if [ ${#as_root[@]} -gt 0 ] && ! on_path sudo >/dev/null; then
    die "neither root nor sudo; as root: apt-get install ${missing[*]}"
  fi
  install "${missing[@]}"
  has_meson || die "Meson 1.0 or later is needed; the distribution has $(meson --version) (try: pip install meson)"
fi
if [ ${#wanted[@]} -gt 0 ]; then
  say "set-up: missing, for some tests: ${wanted[*]}"
  if ! install "${wanted[@]}"; then
    say "set-up: could not install ${wanted[*]}: the tests that need them will be SKIPPED"
  fi
fi
if [ "$initiated" = yes ] && [ -z "$("$root/scripts/find_nvshmem.py")" ]; then
  say "set-up: $nvshmem, into $root/.nvshmem"
  python3 -m pip install --quiet --no-deps --root-user-action ignore --target "$root/.nvshmem" "$nvshmem" ||
    say "set-up: could not install $nvshmem: what initiated/ holds is not built"
fi
if [ ${#missing[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ]; then
  say "set-up: everything is there"
fi

if have_gpu && ! have_nvcc; then
  say "set-up: there is a GPU but no nvcc: without the CUDA toolkit (nvcc on PATH, or CUDA_HOME set) gpudt is built for" \
    "the simulated device alone"
fi
