#!/usr/bin/env python3
"""Tests that libgpudt-pmpi.so notices a program that runs over another MPI library than it was built for: it says so,
once, and every call passes through.

usage: other_mpi.py RUN-MPI.SH LIBGPUDT-PMPI.SO SOURCE COMPILER MPIRUN

The compiler wrapper and the mpirun are those of the other MPI library.
"""

import os
import subprocess
import sys
import tempfile
import unittest


class OtherMpi(unittest.TestCase):
    launcher = library = source = compiler = mpirun = ""

    def run_program(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program")
            subprocess.run([self.compiler, self.source, "-o", program], check=True)
            return subprocess.run(
                [self.launcher, "-S", "-n", "3", "-t", "60", *options, program],
                env=dict(os.environ, MPIRUN=self.mpirun), capture_output=True, text=True, check=False,
            )

    def test_without_the_library(self):
        done = self.run_program()
        self.assertEqual((done.returncode, done.stdout), (0, "right\n"), done.stderr)
        self.assertNotIn("gpudt", done.stderr)

    def test_it_says_so_and_passes_every_call_through(self):
        done = self.run_program("-l", self.library)
        self.assertEqual((done.returncode, done.stdout), (0, "right\n"), done.stderr)
        said = [line for line in done.stderr.splitlines() if "gpudt" in line]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertIn("gpudt is off: it was built for", said[0])


def main():
    OtherMpi.launcher, OtherMpi.library, OtherMpi.source, OtherMpi.compiler, OtherMpi.mpirun = sys.argv[1:6]
    if OtherMpi().run_program().stdout == "right\n" * 3:
        print(f"{OtherMpi.mpirun} starts processes that do not find each other, as Ubuntu 24.04's MPICH does")
        sys.exit(77)
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(OtherMpi))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
