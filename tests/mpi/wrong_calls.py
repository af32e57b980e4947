#!/usr/bin/env python3
"""Runs wrong_calls in all its ways: wrong calls return the right error with MPI_ERRORS_RETURN, and messages go on
afterwards; with the handlers that MPI starts with, each ends the program, at once and with its reason.

usage: wrong_calls.py PROGRAM RUN-MPI OPTIONS...   (the options give the libraries)
"""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

SECONDS = 60
AT_ONCE = 2
TIMED_OUT = (124, 137)
# Open MPI 4.1's mpirun now and then loses the messages of ranks that abort, or crashes on them, and says so by the name
# of its own source file or plug-in: then the ranks are started again.
LOST = ("show_help.c", "mca_rml_oob.so")
MOST_STARTS = 12


def run(command, *arguments):
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def run_fatal(command, name):
    for _ in range(MOST_STARTS):
        done = run(command, "fatal", name)
        # MPICH's mpirun may end before it has passed on what a process said as it aborted.
        silent = not (done.stdout + done.stderr).strip()
        if not (silent or any(name in done.stderr for name in LOST)) or done.returncode in (0, *TIMED_OUT):
            break
    return done


def complaint(done, function, reason):
    """What is wrong with the end of a program after a fatal error; empty if nothing is."""
    text = (done.stdout + done.stderr).lower()  # MPICH writes MPI_FILE_READ
    if done.returncode in TIMED_OUT:
        return "it hung"
    if "segmentation" in text or "came back" in text:
        return "it crashed or went on"
    if done.returncode == 0:
        return "its exit code is 0"
    missing = [wanted for wanted in (function, reason) if wanted.lower() not in text]
    return f"it does not say {' or '.join(missing)}" if missing else ""


def main():
    # Ranks that abort leave their file behind.
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if run_all(*sys.argv[1:], folder=folder) == 0 else 1)


def run_all(program, *run_mpi, folder):
    """How many ways failed. The ranks' file lies in the folder."""
    command = [*run_mpi, "-n", "2", "-t", str(SECONDS), "-e", f"TMPDIR={folder}", program]
    listed = subprocess.run([*run_mpi, "-n", "1", "-t", str(SECONDS), program, "list"], capture_output=True, text=True,
                            check=True)
    cases = [line.split("\t") for line in listed.stdout.splitlines() if line.count("\t") == 2]
    failed = 0
    returned = run(command, "return")
    print(returned.stdout, end="")
    if returned.returncode != 0 or not cases:
        print(returned.stderr)
        failed += 1
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = list(pool.map(lambda case: run_fatal(command, case[0]), cases))
    for (name, function, reason), done in zip(cases, ends):
        wrong = complaint(done, function, reason)
        print(f"{name}: {wrong or 'right: ' + reason}")
        if wrong:
            print(done.stdout, done.stderr)
            failed += 1
    print(f"{len(cases) + 1 - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    main()
