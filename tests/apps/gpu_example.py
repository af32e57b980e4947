#!/usr/bin/env python3
"""Runs an example on GPUs; exits with 77 where there are too few, or not the Python modules that it needs.

usage: gpu_example.py [--gpus NUMBER] [--modules MODULES] [--simulated-by NAME=VALUE] [--needs CODE]
                      EXAMPLE RUN-MPI.SH ARGUMENTS...

--simulated-by: what to set in the environment, instead of skipping, for the modules' own simulation of a GPU.
--needs: Python code that uses the modules without MPI; skips if it fails, as with versions that do not fit each other.
"""

import argparse
import ctypes
import os
import subprocess

from python_calls import python_with, skip


def gpus():
    """How many the driver has; 0 without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def check(python, code):
    ran = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    if ran.returncode != 0:
        skip(f"without MPI, too: {(ran.stderr.strip().splitlines() or ['no message'])[-1]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--modules")
    parser.add_argument("--simulated-by")
    parser.add_argument("--needs")
    parser.add_argument("example")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    program = [arguments.example]
    if arguments.modules:
        python = python_with(arguments.modules)
        if python is None:
            skip(f"no Python with {arguments.modules} here")
        program.insert(0, python)
    if gpus() < arguments.gpus and arguments.simulated_by:
        name, _, value = arguments.simulated_by.partition("=")
        os.environ[name] = value
    elif gpus() < arguments.gpus:
        skip(f"{gpus()} GPUs here; {arguments.gpus} needed")
    if arguments.needs:
        check(program[0], arguments.needs)
    os.execv(arguments.command[0], [*arguments.command, *program])


if __name__ == "__main__":
    main()
