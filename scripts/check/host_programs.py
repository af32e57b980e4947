#!/usr/bin/env python3
"""Runs programs for host memory that Debian has, over Open MPI: without gpudt, with gpudt preloaded, and with gpudt and
all that they allocate in memory of the simulated device. Names those whose results are not the same each time.

usage: host_programs.py [--only PATTERN] [--seconds S] BUILD

BUILD is a build folder of gpudt with its tests. Programs that are not installed are left out and named:
apt-get install --no-install-recommends hpcc lammps lammps-examples nwchem-openmpi cp2k scalapack-mpi-test mumps-test
python3-h5py-mpi
  --only     a regular expression that names must match
  --seconds  for each run (300)
Ends with 1 if a result differs, or no program has been found.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import mpich_suite

ROOT = pathlib.Path(__file__).resolve().parents[2]
INPUTS = ROOT / "scripts/check/host_programs"
SCALAPACK = "/usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests"
# Not xdllt: it reads memory that it has not written, and without gpudt, too, may wait forever.
SCALAPACK_TESTS = ("xdlu", "xzlu", "xdqr", "xcinv", "xdsep", "xdbrd", "xdhrd", "xdls", "xdpbllt", "xdgblu",
                   "PBLAS/dpb1tst", "PBLAS/dpb2tst", "PBLAS/dpb3tst")
ENVIRONMENT = mpich_suite.ENVIRONMENT | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                                         "CP2K_DATA_DIR": "/usr/share/cp2k"}


class Program:
    def __init__(self, name, command, result, files=(), standard_input=None, libraries="", least=64, digits=None):
        """`result`: what is compared, a regular expression for lines, or for parts of them. `files`: paths, or pairs of
        a path and a name, copied into the working directory. `libraries`, `least`: of tests/apps/device_malloc.c. `digits`: of the numbers that are
        compared, where the order of sums may change; None: all of them."""
        self.name, self.command, self.result = name, command, re.compile(result, re.MULTILINE)
        self.files = [file if isinstance(file, tuple) else (file, pathlib.Path(file).name) for file in files]
        self.standard_input, self.libraries = standard_input, libraries
        self.least, self.digits = least, digits

    def is_installed(self):
        needed = [self.standard_input or os.devnull, *(path for path, _ in self.files)]
        return shutil.which(self.command[0]) is not None and all(os.path.exists(path) for path in needed)

    def run(self, build, mode, seconds):
        """The result, or what went wrong, and whether it is a result."""
        preloaded = {"without": [], "host": ["libgpudt-pmpi.so"],
                     "device": ["tests/apps/libdevice-malloc.so", "libgpudt-pmpi.so", "libgpudt-sim.so"]}[mode]
        variables = {"LD_PRELOAD": ":".join(str(build / library) for library in preloaded)}
        if mode == "device":
            variables |= {"GPUDT_DEVICE": "sim", "GPUDT_SIM_HOST_ACCESS": "1", "DEVICE_MALLOC_OF": self.libraries,
                          "DEVICE_MALLOC_LEAST": str(self.least)}
        exported = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
        with tempfile.TemporaryDirectory() as folder:
            for path, name in self.files:
                shutil.copy(path, pathlib.Path(folder, name))
            with open(self.standard_input or os.devnull, encoding="utf-8") as read:
                # By timeout(1), upon which mpirun ends its processes.
                done = subprocess.run(["timeout", str(seconds), "mpirun", "-n", "4", *exported, *self.command],
                                      cwd=folder, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, errors="replace", env=os.environ | ENVIRONMENT, check=False)
            written = pathlib.Path(folder, "hpccoutf.txt")
            output = done.stdout + (written.read_text(encoding="utf-8") if written.exists() else "")
        if done.returncode == 124:
            return f"not ended after {seconds} s", False
        if done.returncode != 0:
            return f"exit status {done.returncode}:\n" + "\n".join(output.strip().splitlines()[-8:]), False
        results = [self.rounded(found.group()) for found in self.result.finditer(output)]
        return "\n".join(results), bool(results)

    def rounded(self, line):
        if self.digits is None:
            return line
        return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number.group()):.{self.digits}f}", line)


def programs():
    yield Program("hpcc", ["hpcc"], r"PASSED|FAILED|Found \d+ errors|Success=.*",
                  [("/usr/share/doc/hpcc/examples/_hpccinf.txt", "hpccinf.txt")])
    for name, script in (("melt", "melt/in.melt"), ("rigid bodies", "rigid/in.rigid"), ("peptide", "peptide/in.peptide")):
        path = pathlib.Path("/usr/share/lammps/examples", script)
        beside = [path, *path.parent.glob("data.*")] if path.exists() else [path]
        yield Program(f"lammps: {name}", ["lmp", "-in", path.name, "-log", "none"], r"^ *\d+( +-?\d\S*){3,}",
                      beside, libraries="liblammps:libstdc++")
    # Its processes share the work as they are free, which changes the last digits of sums.
    yield Program("nwchem", ["nwchem.openmpi", "water.nw"], r"Total .*energy.*", [INPUTS / "water.nw"],
                  libraries="libarmci:libga", digits=8)
    yield Program("cp2k", ["cp2k.psmp", "water.inp"], r"ENERGY\| Total.*", [INPUTS / "water.inp"], least=2000)
    yield Program("hdf5", ["/usr/bin/python3", "hdf5.py"], r"all right", [INPUTS / "hdf5.py"], libraries="numpy")
    for letter, kind in (("d", "real"), ("z", "cmplx")):
        yield Program(f"mumps: {letter}", [f"/usr/lib/mumps/{letter}simpletest"], r"Solution is[^E]*", libraries="mumps",
                      standard_input=f"/usr/lib/mumps/input_simpletest_{kind}", digits=9)
    data = [*pathlib.Path(SCALAPACK).glob("*.dat"), *pathlib.Path(SCALAPACK, "PBLAS").glob("*.dat")]
    for test in SCALAPACK_TESTS:
        yield Program(f"scalapack: {test}", [f"{SCALAPACK}/{test}"], r"\d+ tests.*|PASSED|FAILED|PASS", data,
                      libraries="libscalapack")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--only", type=re.compile, default=re.compile(""))
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("build", type=lambda path: pathlib.Path(path).resolve())
    options = parser.parse_args()
    compared = differing = 0
    for program in programs():
        if not options.only.search(program.name):
            continue
        if not program.is_installed():
            print(f"{program.name}: not installed")
            continue
        compared += 1
        right, made = program.run(options.build, "without", options.seconds)
        results = {mode: program.run(options.build, mode, options.seconds)[0] for mode in ("host", "device") if made}
        same = made and all(result == right for result in results.values())
        differing += not same
        print(f"{program.name}: " + (f"the same, {len(right.splitlines())} results" if same else "DIFFERS"))
        if not same:
            print("\n".join(f"  {mode}: {text}" for mode, text in {"without": right, **results}.items()))
        sys.stdout.flush()
    print(f"{compared} programs compared, {differing} differ")
    sys.exit(1 if differing or not compared else 0)


if __name__ == "__main__":
    main()
