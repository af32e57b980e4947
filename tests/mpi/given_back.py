#!/usr/bin/env python3
"""Memory that was freed is given back, and all data go by the GPUs: runs `given-back` under mpirun, on the simulated
device, whose cudaMalloc takes freed addresses again at once, and reads the report; then on two GPUs, if there are any.

usage: given_back.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO GIVEN-BACK

GPUDT_TEST_ROUNDS: the rounds of messages (10000); the other ways take a tenth, and beside work of the GPU a hundredth.
GPUDT_TEST_GPU_ROUNDS: those on GPUs (100000), of 0.1 ms or, if more memory is needed late, 0.2 ms each.
"""

import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

from environment import RANKS, SECONDS, Run, run_cases

ROUNDS = int(os.environ.get("GPUDT_TEST_ROUNDS", "10000"))
GPU_ROUNDS = int(os.environ.get("GPUDT_TEST_GPU_ROUNDS", "100000"))
BY_GPUS = {"peer", "kernels"}


class GivenBack(unittest.TestCase):
    """One way to communicate after the other."""

    def report_of(self, way, rounds, *settings, ranks=RANKS):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "run.json"
            run = Run((way, str(rounds)), "GPUDT_SIM_REUSE=1", f"GPUDT_REPORT={file}", *settings, ranks=ranks,
                      seconds=SECONDS + rounds // 100)
            self.assertEqual(run.code, 0, run.text)
            self.assertEqual(len(run.results), ranks, run.text)
            return json.loads(file.read_text(encoding="utf-8"))

    def run_way(self, way, rounds, *settings):
        """Returns the rows of the report whose data did not go by GPUs."""
        rows = self.report_of(way, rounds, *settings)["rows"]
        return [row for row in rows if row["protocol"] not in BY_GPUS]

    def test_messages(self):
        self.assertEqual(self.run_way("messages", ROUNDS), [])

    def test_ways(self):
        for way in ("persistent", "reductions", "exchanges", "windows"):
            with self.subTest(way):
                self.assertEqual(self.run_way(way, ROUNDS // 10), [])

    def test_while_the_gpu_works(self):
        """What cannot be unmapped yet does not keep new data from going by the GPUs."""
        for way in ("messages-busy", "persistent-busy", "reductions-busy", "exchanges-busy"):
            with self.subTest(way):
                self.assertEqual(self.run_way(way, ROUNDS // 100), [])

    def test_other_ways_meanwhile(self):
        """Targets serve accesses to windows then; of processes on one GPU one writes for both, if it may map by now."""
        self.run_way("windows-busy", ROUNDS // 100)
        self.run_way("messages", ROUNDS // 10, "GPUDT_SIM_DEVICES=1", "GPUDT_PROTOCOL=peer")

    def test_laggard(self):
        """Memory that one process keeps mapped, because it calls MPI no more, is not packed for the others."""
        rounds = ROUNDS // 50
        report = self.report_of("laggard", rounds, "GPUDT_SIM_DEVICES=3", ranks=3)
        self.assertEqual([row for row in report["rows"] if row["protocol"] not in BY_GPUS], [])
        self.assertLess(report["messages"]["packed"], rounds // 2)

    def test_pieces(self):
        """Memory of cuMemCreate with file descriptors is mapped as it is: nothing is packed."""
        for way in ("messages", "persistent", "reductions", "exchanges", "windows"):
            with self.subTest(way):
                report = self.report_of(way, ROUNDS // 50, "GPUDT_TEST_PIECES=1")
                self.assertEqual([row for row in report["rows"] if row["protocol"] not in BY_GPUS], [])
                self.assertEqual(report["messages"]["packed"], 0)

    def test_switched_off(self):
        """Mappings are closed only for new ones."""
        run = Run(("messages", "200"), "GPUDT_SIM_REUSE=1", "GPUDT_UNMAP_FREED=0")
        self.assertIn(" 0 wrong", run.text)
        self.assertRegex(run.text, r" [1-9]\d* kept")

    @unittest.skipUnless(pathlib.Path("/dev/nvidia1").exists(), "there are no two GPUs")
    def test_on_gpus(self):
        run = Run(("messages", str(GPU_ROUNDS)), simulated=False, seconds=60 + GPU_ROUNDS // 2000)
        self.assertEqual(run.code, 0, run.text)
        for line in run.results:
            self.assertRegex(line, r", 0 wrong, -?\d+ bytes more, 0 kept, 0 files more,")
            # Other tests may use the GPUs. A page of 2 MiB that is lost in each hundredth round would be more.
            self.assertLess(int(re.search(r"(-?\d+) bytes more", line)[1]), GPU_ROUNDS // 100 << 20)


def main():
    Run.launcher, Run.library, Run.sim, Run.program = sys.argv[1:5]
    run_cases(GivenBack)


if __name__ == "__main__":
    main()
