#!/usr/bin/env python3
"""Runs an example in Python, on GPUs; exits with 77 where there are none, or not its modules.

usage: python_example.py MODULES EXAMPLE RUN-MPI.SH ARGUMENTS...
"""

import os
import subprocess
import sys

from python_calls import python_with, skip


def main():
    modules, example, *command = sys.argv[1:]
    python = python_with(modules)
    if python is None:
        skip(f"no Python with {modules} here")
    asked = subprocess.run([python, "-c", "import ctypes; d = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); "
                            "assert d.cuInit(0) == 0 and d.cuDeviceGetCount(ctypes.byref(n)) == 0 and n.value > 0"],
                           capture_output=True, check=False)
    if asked.returncode != 0:
        skip("no GPU here")
    os.execv(command[0], [*command, python, example])


if __name__ == "__main__":
    main()
