#!/usr/bin/env python3
"""Runs tool_variables: gpudt's counters are performance variables where they count, and nothing else differs.

usage: tool_variables.py PROGRAM RUN-MPI OPTIONS...   (the options give the libraries)
"""

import subprocess
import sys
import unittest

from environment import run_cases

SECONDS = 60
OWN = 13


class ToolVariables(unittest.TestCase):
    program, run_mpi, libraries = "", "", ()

    def run_program(self, mode, *settings, ranks=2, library=True):
        libraries = self.libraries if library else [*self.libraries[self.libraries.index("-s"):]]
        options = [word for setting in settings for word in ("-e", setting)]
        done = subprocess.run([self.run_mpi, *libraries, "-S", "-n", str(ranks), "-t", str(SECONDS), *options, self.program,
                               mode], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def test_counters(self):
        """In the words of a tool, before MPI_Init, after MPI_Finalize and from several threads."""
        for counting in ("GPUDT_REPORT=1", "GPUDT_REQUIRE=warn"):
            self.run_program("count", counting, "GPUDT_PROTOCOL=staging")  # where each message goes the same way

    def test_walk(self):
        """A tool that walks all variables and categories sees those of MPI as without gpudt."""
        alone = self.run_program("list", ranks=1, library=False)
        self.assertEqual(alone[-1], "own: 0")
        self.assertEqual(self.run_program("list", ranks=1), alone)
        self.assertEqual(self.run_program("list", "GPUDT_REQUIRE=none", "GPUDT_REPORT=0", ranks=1), alone)
        for setting in ("GPUDT_REPORT=1", "GPUDT_REQUIRE=warn"):
            self.assertEqual(self.run_program("list", setting, ranks=1), [*alone[:-1], f"own: {OWN}"])
        self.assertEqual(self.run_program("list", "GPUDT_REPORT=1", "GPUDT_DISABLE=1", ranks=1), alone)


def main():
    ToolVariables.program, ToolVariables.run_mpi, *ToolVariables.libraries = sys.argv[1:]
    run_cases(ToolVariables)


if __name__ == "__main__":
    main()
