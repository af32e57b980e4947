#!/usr/bin/env python3
"""Tests that libgpudt-pmpi.so is a good guest in any process.

usage: library.py LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO
"""

import os
import re
import subprocess
import sys
import unittest

NEEDED = re.compile(r"(libmpi|libmpich|libmpi_mpifh|libmpi_usempif08|libopen-rte|libopen-pal|libc|libm|libdl|librt|libpthread|"
                    r"ld-linux-x86-64)\.so(\.\d+)*$")
EXPORTED = re.compile(r"(P?MPIX?_|p?mpix?_|gpudt|ucp_worker_progress$|PMIx_Commit$)")


class Library(unittest.TestCase):
    library = sim = ""

    def run_in(self, preload, *command):
        environment = dict(os.environ, LC_ALL="C")
        environment.pop("LD_PRELOAD", None)
        if preload:
            environment["LD_PRELOAD"] = preload
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def test_programs_without_mpi_are_left_alone(self):
        for preload in (self.library, self.library + ":" + self.sim):
            for command in (("/bin/ls", "-l", "/bin"), ("/bin/sh", "-c", "exit 3"), ("/bin/cat", "/no/such/file")):
                with self.subTest(preload=preload, command=command):
                    plain, preloaded = self.run_in("", *command), self.run_in(preload, *command)
                    self.assertEqual(preloaded.stdout, plain.stdout)
                    self.assertEqual(preloaded.stderr, plain.stderr)
                    self.assertEqual(preloaded.returncode, plain.returncode)

    def test_needs_nothing_but_mpi_and_libc(self):
        dynamic = subprocess.run(["readelf", "-d", self.library], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        self.assertTrue(needed)
        self.assertEqual([name for name in needed if not NEEDED.match(name)], [])
        self.assertNotIn("not found", subprocess.run(["ldd", self.library], capture_output=True, text=True,
                                                     check=True).stdout)

    def test_exports_nothing_but_the_names_of_mpi(self):
        symbols = subprocess.run(["nm", "-D", "--defined-only", self.library], capture_output=True, text=True,
                                 check=True).stdout
        names = [line.split()[-1].split("@")[0] for line in symbols.splitlines()]
        self.assertIn("MPI_Send", names)
        self.assertIn("MPI_Init", names)
        self.assertEqual([name for name in names if not EXPORTED.match(name)], [])


def main():
    Library.library, Library.sim = sys.argv[1:3]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Library))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
