#!/usr/bin/env python3
"""Tests the ranges that GPUDT_NVTX=1 makes, with a tool that listens as Nsight Systems does.

usage: nvtx.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO LISTENER PROGRAM MPI-FAMILY
"""

import re
import subprocess
import sys
import unittest

RANGES = re.compile(r"^nvtx ([^\n]+): (\d+) ranges, (\d+) bytes$", re.MULTILINE)


class Nvtx(unittest.TestCase):
    launcher = library = sim = listener = program = family = ""

    def run_program(self, *environment):
        options = [part for each in (f"NVTX_INJECTION64_PATH={self.listener}", *environment) for part in ("-e", each)]
        done = subprocess.run(
            [self.launcher, "-t", "100", "-l", self.library, "-s", self.sim, *options, self.program],
            capture_output=True, text=True, check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stderr

    def test_calls_and_messages(self):
        heard = self.run_program("GPUDT_NVTX=1")
        ranges = {}
        for name, number, size in RANGES.findall(heard):
            ranges.setdefault(name, []).append((int(number), int(size)))
        for name in ("MPI_Send", "MPI_Recv", "MPI_Allreduce", "pack", "unpack"):
            self.assertIn(name, ranges, heard)
        if self.family == "openmpi":  # which alone has peer transfers
            sent, received = (sum(size for _, size in ranges[f"rendezvous: {way}"]) for way in ("send", "receive"))
            self.assertEqual(sent, received)
            self.assertGreater(sent, 0)
        self.assertEqual(heard.count("nvtx: 0 ranges have not ended"), 2, heard)

    def test_silence_unless_wanted(self):
        self.assertEqual(RANGES.findall(self.run_program()), [])


if __name__ == "__main__":
    Nvtx.launcher, Nvtx.library, Nvtx.sim, Nvtx.listener, Nvtx.program, Nvtx.family = sys.argv[1:7]
    unittest.main(argv=[sys.argv[0], "-v"])
