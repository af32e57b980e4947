#!/usr/bin/env python3
"""MPI_Finalize waits for operations that are enqueued in streams, and says which do not complete; CUDA has connections
for streams, fewer where MPS has few: runs `stream-finalize` under mpirun.

usage: stream_finalize.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO STREAM-FINALIZE
"""

import pathlib
import sys
import tempfile
import unittest

from environment import RANKS, Run, run_cases


class Finalize(unittest.TestCase):
    def results(self, mode, *settings):
        """What the ranks say, beside that their streams go on."""
        run = Run(mode, *settings)
        self.assertEqual(run.code, 0, run.text)
        went_on = [f"rank {rank}: the stream goes on" for rank in range(RANKS)]
        self.assertEqual([line for line in run.results if line in went_on], went_on, run.text)
        return [line for line in run.results if line not in went_on], run.text

    def test_pending(self):
        for settings in ((), ("GPUDT_PROTOCOL=staging",)):
            results, text = self.results("pending", *settings)
            self.assertEqual(results, [f"rank {rank}: right" for rank in range(RANKS)], text)

    def test_sent_late(self):
        results, text = self.results("long")
        self.assertEqual(results, [f"rank {rank}: right" for rank in range(RANKS)], text)

    def test_never_sent(self):
        results, text = self.results("never")
        self.assertEqual(results, ["rank 1: pending"], text)
        self.assertIn("MPIX_Recv_enqueue", text)

    def test_failed_late(self):
        results, text = self.results("late")
        self.assertEqual(results, ["rank 1: truncated"], text)

    def test_connections(self):
        with tempfile.TemporaryDirectory() as folder:
            no_mps = f"CUDA_MPS_PIPE_DIRECTORY={folder}/none"
            mps = f"CUDA_MPS_PIPE_DIRECTORY={folder}"
            (pathlib.Path(folder) / "control").touch()
            for expected, settings in (("32", [no_mps]), ("8", [mps]), ("5", [mps, "CUDA_DEVICE_MAX_CONNECTIONS=5"])):
                with self.subTest(expected):
                    run = Run("connections", *settings)
                    self.assertEqual(run.results, [f"rank {rank}: {expected}" for rank in range(RANKS)], run.text)


def main():
    Run.launcher, Run.library, Run.sim, Run.program = sys.argv[1:5]
    run_cases(Finalize)


if __name__ == "__main__":
    main()
