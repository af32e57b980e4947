#!/usr/bin/env python3
"""MPI_Finalize waits for operations that are enqueued in streams, and says which do not complete: runs `stream-finalize`
under mpirun.

usage: stream_finalize.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO STREAM-FINALIZE
"""

import sys
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


def main():
    Run.launcher, Run.library, Run.sim, Run.program = sys.argv[1:5]
    run_cases(Finalize)


if __name__ == "__main__":
    main()
