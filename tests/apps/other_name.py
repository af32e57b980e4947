#!/usr/bin/env python3
"""Tests that libgpudt-pmpi.so built for MPICH serves programs whose MPI library has another name than the one that it
was built with, as those of other MPICHs and of Intel MPI have: libmpi.so.12, here a copy of the one that there is.

usage: other_name.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO SOURCE COMPILER FLAGS...
"""

import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

NAME, OTHER = b"libmpich.so.12\0", b"libmpi.so.12\0"


def library_of(compiler):
    """The file of the name, of those that the compiler finds; None if there is none."""
    path = subprocess.run([compiler, "-print-file-name=" + NAME[:-1].decode()], capture_output=True, text=True,
                          check=True).stdout.strip()
    return pathlib.Path(path) if os.path.isabs(path) else None


class OtherName(unittest.TestCase):
    run_mpi = library = sim = source = compiler = ""
    flags = []

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        mpi = library_of(self.compiler).read_bytes()
        self.assertIn(NAME, mpi)
        self.mpi = self.work / OTHER[:-1].decode()
        self.mpi.write_bytes(mpi.replace(NAME, OTHER.ljust(len(NAME), b"\0")))

    def build(self):
        program = self.work / "program"
        subprocess.run([self.compiler, *self.flags, self.source, "-o", program, self.mpi, self.sim, "-lm",
                        f"-Wl,-rpath,{self.work}:{pathlib.Path(self.sim).parent}"], check=True)
        return program

    def test_the_one_of_the_program_alone_is_loaded(self):
        program = self.build()
        done = subprocess.run([self.run_mpi, "-S", "-n", "2", "-t", "60", "-l", self.library, "-s", self.sim,
                               "-e", f"LD_DEBUG_OUTPUT={self.work}/loaded", "-e", "LD_DEBUG=files", program],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("gpudt", done.stderr)
        loaded = "".join(file.read_text(encoding="utf-8", errors="replace") for file in self.work.glob("loaded.*"))
        self.assertIn(f"calling init: {self.mpi}", loaded)
        self.assertNotIn(NAME[:-1].decode(), loaded)


def main():
    (OtherName.run_mpi, OtherName.library, OtherName.sim, OtherName.source, OtherName.compiler,
     *OtherName.flags) = sys.argv[1:]
    if library_of(OtherName.compiler) is None:
        print(f"there is no {NAME[:-1].decode()}, which Debian's MPICH has")
        sys.exit(77)
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(OtherName))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
