#!/usr/bin/env python3
"""Runs MPICH's own tests over any MPI with gpudt preloaded on the simulated device, with all that the tests allocate in
device memory, or with their memory as it is. A test that fails is run without gpudt too: only those are named that pass
there.

usage: mpich_suite.py [--memory device|host|own] [--mpi SUFFIX] [--jobs N] [--seconds S] [--only PATTERN] BUILD DIR...

BUILD is a build folder of gpudt, with its tests, for that MPI, DIR a folder of the suite: pt2pt, coll, rma,
threads/pt2pt ... The suite is built into BUILD/mpich-suite, which takes some minutes, from the checkout of
https://github.com/pmodels/mpich that MPICH_SOURCES names, or from a clone if it is not set; autoconf, automake and
libtool are needed.
  --memory   device (default): tests/apps/device_malloc.c takes the place of malloc(); host: as the tests are; own: the
             tests that allocate device memory themselves (testlist.gpu), if configure has found CUDA's runtime library
  --mpi      of mpicc and mpirun: openmpi for mpicc.openmpi, as Debian calls them; without it those of BUILD-venv/bin,
             where test.sh --mpi installs the MPI library, if there is that folder, else mpicc and mpirun
  --jobs     tests at a time (2)
  --seconds  for each test (60): those with 100,000 small messages or allocations need more
  --only     a regular expression that names and arguments of tests must match
e.g. mpich_suite.py build pt2pt coll rma; mpich_suite.py --memory host --mpi mpich build-mpich rma;
mpich_suite.py build-mpich5 part session
Ends with 1 if a test is named, or none has passed.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/pmodels/mpich"
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_plm_rsh_agent": "sh",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_plm_ssh_agent": "sh", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
}

Test = collections.namedtuple("Test", "folder name ranks arguments environment result")


def build_suite(options):
    """Makes the tests of the folders; those that this MPI lacks functions for are left out."""
    suite, sources = options.suite, options.sources
    if "MPICH_SOURCES" not in os.environ and not sources.is_dir():
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", REPOSITORY, sources], check=True)
    tests = sources / "test" / "mpi"
    with open(suite.parent / "mpich-suite.log", "a", encoding="utf-8") as log:
        def run(*command, cwd, check=True):
            environment = dict(os.environ, MPICH_CONFDB=str(sources / "confdb"))
            subprocess.run(command, cwd=cwd, check=check, stdout=log, stderr=log, env=environment)

        if not (tests / "configure").exists():
            run("sh", "autogen.sh", cwd=tests)
        if not (suite / "Makefile").exists():
            suite.mkdir(exist_ok=True)
            run(tests / "configure", "--disable-fortran", "--disable-cxx", "--enable-strictmpi", "CC=cc",
                f"MPICC={options.mpicc}", cwd=suite)
        for folder in ("dtpools", "util", *options.folders):
            run("make", "--keep-going", f"--jobs={os.cpu_count()}", "check", "TESTS=", cwd=suite / folder, check=False)


def tests_of(options, folder):
    """What the folder's list says, as far as it was built. Some lists are made by configure."""
    name = "testlist.gpu" if options.memory == "own" else "testlist"
    made, kept = (tests / folder / name for tests in (options.suite, options.sources / "test" / "mpi"))
    found = made if made.exists() else kept
    for line in found.read_text(encoding="utf-8").splitlines() if found.exists() else []:
        words = line.split("#")[0].split()
        if len(words) < 2 or not words[1].isdigit() or not (options.suite / folder / words[0]).exists():
            continue
        more = [word.partition("=")[::2] for word in words[2:]]
        yield Test(folder, words[0], int(words[1]), [value for key, value in more if key == "arg"],
                   [value for key, value in more if key == "env"], dict(more).get("resultTest", ""))


def passes(test, status, output):
    """As the suite's own runtests judges."""
    says_so = re.search("No [Ee]rrors|Test Skipped", output) is not None
    if test.result in ("TestStatus", "TestErrFatal"):
        return status != 0
    if test.result == "TestStatusNoErrors":
        return status != 0 and says_so
    return status == 0 and says_so


def run(test, options, preloaded):
    """What came of it: "passed", "failed" or "took too long"; and its output."""
    variables = dict(variable.partition("=")[::2] for variable in test.environment)
    variables |= {"LD_PRELOAD": ":".join(map(str, preloaded + options.beside)), "GPUDT_DEVICE": "sim"}
    if options.memory == "device":
        variables["GPUDT_SIM_HOST_ACCESS"] = "1"
    command = [options.mpirun, "-n", str(test.ranks)]
    for name, value in variables.items():
        command += ["-x", f"{name}={value}"] if options.is_openmpi else ["-genv", name, value]
    process = subprocess.Popen([*command, f"./{test.name}", *test.arguments], cwd=options.suite / test.folder,
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                               env={**os.environ, **ENVIRONMENT}, errors="replace")
    try:
        output, _ = process.communicate(timeout=options.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            return "took too long", process.communicate(timeout=5)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "took too long", process.communicate()[0]
    return "passed" if passes(test, process.returncode, output) else "failed", output


def tool(options, name):
    """The command of that name of the MPI library."""
    installed = options.build.with_name(options.build.name + "-venv") / "bin" / name
    if options.mpi or not installed.exists():
        return f"{name}.{options.mpi}" if options.mpi else name
    return str(installed)


def judge(test, options):
    """Of one test: what to count, and what to say. One that fails once and then passes is only counted."""
    outcome, _ = run(test, options, options.preloaded)
    if outcome == "passed":
        return outcome, ""
    # What allocates device memory never passes there.
    if options.memory != "own" and run(test, options, [])[0] != "passed":
        return f"{outcome} without gpudt too", ""
    outcome, output = run(test, options, options.preloaded)
    if outcome == "passed":
        return "passed when repeated", ""
    lines = [f"{test.folder}/{test.name} {' '.join(test.arguments)}, {test.ranks} ranks: {outcome}"]
    return outcome, "\n    ".join(lines + output.strip().splitlines()[-8:])


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--memory", choices=("device", "host", "own"), default="device")
    parser.add_argument("--mpi", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--only", type=re.compile, default=re.compile(""))
    parser.add_argument("build", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args()
    options.mpicc, options.mpirun = (tool(options, name) for name in ("mpicc", "mpirun"))
    options.suite = options.build / "mpich-suite"
    options.sources = pathlib.Path(os.environ.get("MPICH_SOURCES", options.build / "mpich"))
    device_malloc = options.build / "tests/apps/libdevice-malloc.so"
    version = subprocess.run([options.mpirun, "--version"], capture_output=True, text=True, check=True).stdout
    options.is_openmpi = "Open MPI" in version or "OpenRTE" in version or "PRTE" in version
    options.preloaded = [device_malloc] if options.memory == "device" else []
    options.preloaded.append(options.build / "libgpudt-pmpi.so")
    # Without gpudt too, since tests built with CUDA count the GPUs. With the other, ranks that wait let others work;
    # builds with a sanitizer have none.
    sim, give_way = options.build / "libgpudt-sim.so", options.build / "libgive-way.so"
    options.beside = [sim, give_way] if give_way.exists() else [sim]
    for library in [*options.preloaded, sim]:
        if not library.exists():
            sys.exit(f"mpich_suite.py: there is no {library}: build it first")
    build_suite(options)
    tests = [test for folder in options.folders for test in tests_of(options, folder)
             if options.only.search(" ".join([test.name, *test.arguments]))]
    counts = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for outcome, text in pool.map(lambda test: judge(test, options), tests):
            counts[outcome] += 1
            if text:
                print(text, flush=True)
    print(f"{len(tests)} tests: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    sys.exit(1 if counts["failed"] or counts["took too long"] or not counts["passed"] else 0)


if __name__ == "__main__":
    main()
