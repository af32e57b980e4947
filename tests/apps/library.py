#!/usr/bin/env python3
"""Tests that libgpudt-pmpi.so is a good guest in any process.

usage: library.py LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO openmpi|mpich
"""

import itertools
import os
import re
import subprocess
import sys
import unittest

NEEDED = {"mpich": re.compile(r"(libc|libgcc_s|libm|libdl|librt|libpthread|ld-linux-x86-64)\.so(\.\d+)*$"),
          "openmpi": re.compile(r"(libmpi|libmpi_mpifh|libmpi_usempif08|libopen-rte|libopen-pal|libc|libgcc_s|libm|libdl|librt|"
                                r"libpthread|ld-linux-x86-64)\.so(\.\d+)*$")}
# What programs, which know this name alone as that of MPI libraries, are to be linked to.
UNDEFINED = ["PMPI_Get_library_version"]
EXPORTED = re.compile(r"(P?MPIX?_|p?mpix?_|gpudt|ucp_worker_progress$|PMIx_(Commit|Register_event_handler)$)")


class Library(unittest.TestCase):
    library = sim = family = ""

    def run_in(self, preload, *command, **variables):
        environment = dict(os.environ, LC_ALL="C", **variables)
        environment.pop("LD_PRELOAD", None)
        if preload:
            environment["LD_PRELOAD"] = preload
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def test_programs_without_mpi_are_left_alone(self):
        preloads = (self.library, self.library + ":" + self.sim)
        commands = (("/bin/ls", "-l", "/bin"), ("/bin/sh", "-c", "exit 3"), ("/bin/cat", "/no/such/file"))
        for preload, command, variables in itertools.product(preloads, commands, ({}, {"LD_BIND_NOW": "1"})):
            with self.subTest(preload=preload, command=command, variables=variables):
                plain, preloaded = self.run_in("", *command), self.run_in(preload, *command, **variables)
                self.assertEqual(preloaded.stdout, plain.stdout)
                self.assertEqual(preloaded.stderr, plain.stderr)
                self.assertEqual(preloaded.returncode, plain.returncode)

    def test_needs_nothing_but_mpi_and_libc(self):
        dynamic = subprocess.run(["readelf", "-d", self.library], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        self.assertEqual([name for name in needed if not NEEDED[self.family].match(name)], [])
        self.assertNotIn("not found", subprocess.run(["ldd", self.library], capture_output=True, text=True,
                                                     check=True).stdout)

    def test_names_of_mpi_are_found_in_whatever_library_the_program_has(self):
        """No relocation has a name of MPI's in it, so that ld.so wants none."""
        if self.family != "mpich":
            self.skipTest("it needs the MPI library that it was built with")
        symbols = subprocess.run(["nm", "-D", "--undefined-only", self.library], capture_output=True, text=True,
                                 check=True).stdout
        names = [line.split()[-1] for line in symbols.splitlines() if line.split()[-2] == "U"]
        self.assertEqual([name for name in names if "@" not in name], UNDEFINED)
        relocations = subprocess.run(["readelf", "-rW", self.library], capture_output=True, text=True, check=True).stdout
        self.assertNotIn(UNDEFINED[0], relocations)

    def test_takes_little_of_the_stacks_of_threads(self):
        """In a preloaded library, thread-local memory and its alignment are at the expense of every thread's stack."""
        segments = subprocess.run(["readelf", "-lW", self.library], capture_output=True, text=True, check=True).stdout
        for memory in re.findall(r"^ *TLS +(?:0x\w+ +){4}(0x\w+) +\w+ +(0x\w+)", segments, re.MULTILINE):
            self.assertLess(sum(int(number, 16) for number in memory), 5 << 10)

    def test_exports_nothing_but_the_names_of_mpi(self):
        symbols = subprocess.run(["nm", "-D", "--defined-only", self.library], capture_output=True, text=True,
                                 check=True).stdout
        names = [line.split()[-1].split("@")[0] for line in symbols.splitlines()]
        self.assertIn("MPI_Send", names)
        self.assertIn("MPI_Init", names)
        self.assertEqual([name for name in names if not EXPORTED.match(name)], [])


def main():
    Library.library, Library.sim, Library.family = sys.argv[1:4]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Library))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
