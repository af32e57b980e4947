#!/usr/bin/env python3
"""Tests that gpudt and another tool of MPI's profiling interface work in one process: the tool counts the program's own
calls, all of them and no others, and the data are right.

usage: other_tools.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO TOOL PROGRAM [CHAINED [LINKED...]]

TOOL and CHAINED are tool.c or tool.f90 as libraries, CHAINED with the preprocessor's name CHAINED; LINKED are PROGRAM
linked with both libraries.
"""

import os
import subprocess
import sys
import unittest


class OtherTools(unittest.TestCase):
    launcher = library = sim = tool = program = chained = ""
    linked = []

    def run_program(self, preload, program=None):
        options = ["-l", preload] if preload else []
        done = subprocess.run(
            [self.launcher, "-t", "100", *options, "-s", self.sim, program or self.program],
            capture_output=True, text=True, check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def counts(self, done, who):
        """`RANK NAME NUMBER` of each line that `who` has written."""
        return sorted(line.split(": rank ")[1] for line in done.stdout.splitlines() if line.startswith(who))

    def assert_counted(self, done):
        self.assertGreater(len(self.counts(done, "program")), 0)
        self.assertEqual(self.counts(done, "tool"), self.counts(done, "program"))
        self.assertNotIn("gpudt", done.stderr)

    def test_gpudt_first(self):
        self.assert_counted(self.run_program(f"{self.library}:{self.tool}"))

    def test_tool_first(self):
        self.assert_counted(self.run_program(f"{self.tool}:{self.library}"))

    def test_linked(self):
        if not self.linked:
            self.skipTest("no program is linked with the tool")
        for program in self.linked:
            with self.subTest(os.path.basename(program)):
                self.assert_counted(self.run_program("", program))

    def test_tool_that_looks_names_up_first(self):
        if not self.chained:
            self.skipTest("no such tool")
        self.assert_counted(self.run_program(f"{self.chained}:{self.library}"))

    def test_tool_that_looks_names_up_is_passed_by(self):
        if not self.chained:
            self.skipTest("no such tool")
        done = self.run_program(f"{self.library}:{self.chained}")
        said = [line for line in done.stderr.splitlines() if "gpudt" in line]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertIn(f"{self.chained} does not see all MPI calls", said[0])


def main():
    test = OtherTools
    test.launcher, test.library, test.sim, test.tool, test.program = sys.argv[1:6]
    test.chained, test.linked = (sys.argv[6:7] or [""])[0], sys.argv[7:]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(test))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
