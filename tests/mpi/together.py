#!/usr/bin/env python3
"""Messages that are packed and unpacked together: runs `together` under mpirun, on the simulated device, and reads
what it says of the data and what the library's report says of launches.

usage: together.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO TOGETHER
"""

import re
import sys
import unittest

from environment import RANKS, Run, run_cases

PIECES = 26
STAGED = ("GPUDT_PROTOCOL=staging", "GPUDT_WAY=kernel")
BUSY = "GPUDT_SIM_DELAY_US=2000"  # so that all is started while the first transfer is under way


class Together(unittest.TestCase):
    """The data are right, whatever is launched together; and something is."""

    def launches(self, mode, *settings):
        """Transfers launched together, and launches, on all ranks."""
        run = Run(mode, *settings, "GPUDT_REPORT=1")
        self.assertEqual(run.code, 0, run.text)
        self.assertEqual(run.results, [f"rank {rank}: {mode}: right" for rank in range(RANKS)], run.text)
        found = re.search(r"(\d+) of the former in (\d+) launches of several", run.text)
        return (int(found.group(1)), int(found.group(2))) if found else (0, 0)

    def test_neighbourhood(self):
        """All blocks of a call by few launches each way: three blocking and three nonblocking calls. By one, unless the
        service thread comes while the call still adds blocks."""
        transfers, launches = self.launches("neighbour", *STAGED)
        self.assertEqual(transfers, RANKS * 6 * 2 * PIECES)
        self.assertLessEqual(launches, 2 * RANKS * 6 * 2)

    def test_startall(self):
        """At least all packs of each of three starts."""
        transfers, launches = self.launches("startall", *STAGED)
        self.assertGreaterEqual(transfers, RANKS * 3 * PIECES)
        self.assertLess(launches, transfers / 2)

    def test_isend(self):
        transfers, launches = self.launches("isend", *STAGED, BUSY)
        self.assertGreater(transfers, RANKS * PIECES)
        self.assertLess(launches, transfers / 2)

    def test_cancelled(self):
        transfers, _ = self.launches("cancel", *STAGED, BUSY)
        self.assertGreater(transfers, RANKS)

    def test_threads(self):
        self.launches("threads", *STAGED, BUSY)

    def test_as_they_are(self):
        """With offers to peers, copies where they are sooner, and little staging memory kept."""
        for mode in ("isend", "threads", "startall", "neighbour", "cancel"):
            with self.subTest(mode):
                self.launches(mode, "GPUDT_STAGING_CACHE=0")


def main():
    Run.launcher, Run.library, Run.sim, Run.program = sys.argv[1:5]
    run_cases(Together)


if __name__ == "__main__":
    main()
