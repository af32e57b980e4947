#!/usr/bin/env python3
"""Tests of jobs in which a rank runs without the library, or with the library off: runs `mixed_job` under mpirun and
reads what it and the library say.

usage: mixed_job.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO MIXED-JOB
"""

import os
import socket
import subprocess
import sys
import unittest

from environment import RANKS, Run, run_cases

# So that Open MPI 4.1 has windows of its own.
os.environ["OMPI_MCA_btl_vader_single_copy_mechanism"] = "emulated"

STEPS = (
    "host window",
    "device window",
    "own device window",
    "dynamic window",
    "device memory attached",
    "allocated window",
    "collectives",
)


def expected(refusing=(), attach="MPI_ERR_RMA_ATTACH"):
    """What all ranks say, if `refusing` cannot have windows with others over their device memory."""
    lines = {f"rank {rank}: {step}": "right" for rank in range(RANKS) for step in STEPS}
    for rank in refusing:
        lines[f"rank {rank}: device window"] = "MPI_ERR_OTHER"
        lines[f"rank {rank}: device memory attached"] = attach
    return sorted(f"{step}: {result}" for step, result in lines.items())


class MixedJob(unittest.TestCase):
    """Nobody waits for a rank that does not answer."""

    @staticmethod
    def openmpi():
        """Its version."""
        mpirun = os.environ.get("MPIRUN", "mpirun")
        told = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True).stdout
        return told.split(") ")[1]  # "mpirun (Open MPI) 4.1.4" or "(OpenRTE)"

    def test_all_have_it(self):
        run = Run("")
        self.assertEqual(run.code, 0, run.text)
        self.assertEqual(run.results, expected(), run.text)
        self.assertEqual(run.said, [], run.text)

    def test_a_rank_without(self):
        """The lowest rank that has the library tells who lacks it, in one line; device memory that the others cannot
        reach is refused, naming the rank and the remedy; all else is as without the library."""
        for without in range(RANKS):
            with self.subTest(without=without):
                run = Run("", without=without)
                other = 1 - without
                self.assertEqual(run.code, 0, run.text)
                self.assertEqual(run.results, expected(refusing=(other,)), run.text)
                complaint = f"rank {without} on host {socket.gethostname()} runs without gpudt. libgpudt-pmpi.so"
                self.assertEqual(len(run.lines(f"[gpudt {other}] warning: {complaint}")), 1, run.text)
                for call, why in (("MPI_Win_create", complaint), ("MPI_Win_attach", "not all ranks")):
                    refused = run.lines(f"{call}: argument base is device memory", why)
                    self.assertEqual(len(refused), 1, run.text)
                self.assertEqual(len(run.said), 3, run.text)

    def test_a_rank_that_is_off(self):
        """A rank whose GPU cannot be had answers all the same."""
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("a GPU that is there cannot be kept from one rank alone")
        run = Run("", "GPUDT_TEST_OFF=cuda")
        self.assertEqual(run.code, 0, run.text)
        self.assertEqual(run.results, expected(refusing=(1,)), run.text)
        self.assertEqual(len(run.lines("[gpudt 0]", "gpudt is off")), 1, run.text)
        self.assertEqual(len(run.lines("gpudt is off on some rank")), 1, run.text)

    def test_report(self):
        """Printed at once by the lowest rank that has the library, of its own counts."""
        for without in range(RANKS):
            with self.subTest(without=without):
                run = Run("", "GPUDT_REPORT=1", "GPUDT_TEST_REPORT_TIMEOUT=1000", without=without)
                self.assertEqual(run.code, 0, run.text)
                self.assertEqual(len(run.lines("gpudt report: 1 of 2 ranks")), 1, run.text)

    def on_two_nodes(self, *options, program):
        """A rank on each."""
        command = [Run.launcher, "-S", "-N", "-t", "40", "-l", Run.library, "-s", Run.sim, *options, *program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 77:
            self.skipTest("this machine does not allow nodes of their own")
        return done

    def test_another_node_without(self):
        """Windows do not know, and nothing is guessed at MPI_Init; a long wait is explained."""
        done = self.on_two_nodes("-t", "20", "-w", "1", "-e", "GPUDT_TEST_LONG_WAIT=1", program=[Run.program])
        lines = [line for line in done.stderr.splitlines() if "[gpudt" in line]
        self.assertEqual(len(lines), 1, done.stdout + done.stderr)
        self.assertIn("[gpudt 0] warning: MPI_Win_create still waits for other ranks", lines[0])

    def reduction_over_nodes(self, *options):
        """The processes that have taken part in one, of a job in which collectives are right."""
        done = self.on_two_nodes(*options, "-e", "GPUDT_TRACE=1", program=[Run.program, "collectives"])
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, text)
        for rank in range(RANKS):
            self.assertIn(f"rank {rank}: collectives: right", done.stdout, text)
        return sum("and over nodes" in line for line in done.stderr.splitlines())

    def test_collectives_with_another_node(self):
        """Which ranks of other nodes have the library comes with MPI's own addresses, over Open MPI 4."""
        known = RANKS if self.openmpi().startswith("4.") else 0
        self.assertEqual(self.reduction_over_nodes(), known)
        self.assertEqual(self.reduction_over_nodes("-e", "PMIX_MCA_gds=hash"), known)

    def test_collectives_with_another_node_without(self):
        for without in range(RANKS):
            with self.subTest(without=without):
                self.assertEqual(self.reduction_over_nodes("-w", str(without)), 0)

    def test_collectives_with_another_node_that_is_off(self):
        self.assertEqual(self.reduction_over_nodes("-e", "GPUDT_TEST_OFF=cuda"), 0)

    def test_collectives_when_addresses_are_not_collected(self):
        for variable in ("pmix_base_collect_data=0", "pmix_base_async_modex=1", "async_mpi_init=1"):
            with self.subTest(variable=variable):
                self.assertEqual(self.reduction_over_nodes("-e", f"OMPI_MCA_{variable}"), 0)


def main():
    Run.launcher, Run.library, Run.sim, Run.program = sys.argv[1:5]
    run_cases(MixedJob)


if __name__ == "__main__":
    main()
