#!/usr/bin/env python3
"""Tests that frequent mistakes of users are answered in one clear line, with the remedy: runs `messages` under mpirun and
reads what it and the library say.

usage: mistakes.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO MESSAGES CC BUILD
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

from environment import ALL_RIGHT, RANKS, Run, run_cases


class Mistakes(unittest.TestCase):
    compiler = family = ""

    def assert_said_once(self, run, *words):
        self.assertEqual(len(run.lines(*words)), 1, run.text)

    def assert_off_alone(self, run, *words):
        """Said by one rank for all of the node, where processes of a job know each other before MPI does; a program that
        uses no GPU goes on, and nothing else is said."""
        times = 1 if self.family.startswith("openmpi") else RANKS
        self.assertEqual((run.code, run.results, len(run.said)), (0, ALL_RIGHT, times), run.text)
        self.assertEqual(len(run.lines("gpudt is off: ", *words)), times, run.text)

    def assert_said_by_who_crashes(self, run, *words):
        """One line of each, before what MPI says of the crash."""
        self.assertNotEqual(run.code, 0, run.text)
        said = run.lines("gpudt-sim: the host accessed device memory")
        self.assertIn(len(said), (1, 2), run.text)
        self.assertEqual(run.lines(*words), said, run.text)

    def without_sim(self, mode, *settings):
        """(A build without CUDA links its programs with the simulated device.)"""
        return Run(mode, "LD_PRELOAD=" + Run.library, *settings)

    def test_no_gpu(self):
        if pathlib.Path("/dev/nvidia0").exists():
            self.skipTest("there is a GPU")
        run = self.without_sim("host", "GPUDT_DEVICE=cuda")
        self.assert_off_alone(run, "GPUDT_DEVICE=cuda: ", "GPU pointers go to MPI as they are")

    def test_no_gpu_and_device_pointers(self):
        """The crash that follows is explained."""
        if pathlib.Path("/dev/nvidia0").exists():
            self.skipTest("there is a GPU")
        self.assert_said_by_who_crashes(Run("device", "GPUDT_DEVICE=cuda"), "gpudt is off in this process")

    def test_init_of_the_mpi_librarys_handle(self):
        """Over Open MPI 4 it is noticed when MPI begins, and said once."""
        run = Run("handle")
        self.assert_said_by_who_crashes(run, "gpudt is off in this process: MPI_Init has not come through it", "dlsym()")
        if self.family == "openmpi4":
            self.assert_said_once(run, "gpudt is off: MPI_Init has not come through it", "dlsym()")
        self.assertEqual(Run("handle", "GPUDT_DISABLE=1").lines("gpudt is off: "), [])

    def test_send_of_the_mpi_librarys_handle(self):
        self.assert_said_by_who_crashes(Run("handle-send"), "only kernels, copies and MPI calls can use it", "dlsym()")

    def test_simulated_device_alone(self):
        run = Run("device", library=False)
        self.assert_said_by_who_crashes(run, "libgpudt-pmpi.so is not loaded", "gpudt-run --sim")

    def test_freed_memory(self):
        self.assert_said_by_who_crashes(Run("freed"), "it is not allocated, or has been freed")

    def test_freed_memory_checked(self):
        """GPUDT_CHECK=1 names the call before MPI crashes."""
        run = Run("freed", "GPUDT_CHECK=1")
        self.assert_said_once(run, "GPUDT_CHECK: MPI_Send, called at", "neither GPU memory nor the host's")

    def test_buffer_beyond_its_memory(self):
        """The call fails, and GPUDT_CHECK=1 names it."""
        for settings in ((), ("GPUDT_CHECK=1",)):
            run = Run("beyond", *settings)
            self.assertNotEqual(run.code, 0, run.text)
            self.assertEqual(len(run.lines("error: MPI_Send", "illegal memory access")), 1, run.text)
            self.assertEqual(len(run.lines("GPUDT_CHECK: MPI_Send, called at", "reaches beyond its memory")), len(settings),
                             run.text)

    def test_no_simulated_device(self):
        linked = subprocess.run(["ldd", Run.program], capture_output=True, text=True, check=True).stdout
        if "libgpudt-sim" in linked:
            self.skipTest("a build without CUDA links its programs with the simulated device")
        run = self.without_sim("host", "GPUDT_DEVICE=sim")
        self.assert_off_alone(run, "GPUDT_DEVICE=sim: libgpudt-sim.so is not loaded", "gpudt-run --sim")

    def test_no_devices_of_the_simulated_device(self):
        run = Run("host", "GPUDT_SIM_DEVICES=0")
        self.assert_off_alone(run, "GPUDT_DEVICE=sim", "GPUDT_SIM_DEVICES is 0")

    def test_built_without_cuda(self):
        """Noticed where the process uses the driver."""
        if b"cuLaunchKernel" in pathlib.Path(Run.library).read_bytes():
            self.skipTest("built with CUDA")
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "driver.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
            subprocess.run([self.compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "driver.c", "-o", "libcuda.so.1"],
                           cwd=folder, check=True)
            linked_to_sim = "GPUDT_SIM_DEVICES=0"  # as these programs are
            run = self.without_sim("host", "GPUDT_DEVICE=auto", linked_to_sim,
                                   f"LD_PRELOAD={Run.library}:{folder}/libcuda.so.1")
        self.assert_off_alone(run, "this gpudt was built without CUDA", "nvcc")

    def test_values_of_the_simulated_device(self):
        wrong = {"DEVICES": "17", "DELAY_US": "5-", "HOST_ACCESS": "yes", "PEERS": "-1"}
        run = Run("host", *(f"GPUDT_SIM_{name}={value}" for name, value in wrong.items()))
        self.assertEqual((run.code, run.results, len(run.said)), (0, ALL_RIGHT, len(wrong)), run.text)
        for name, value in wrong.items():
            self.assert_said_once(run, f"GPUDT_SIM_{name}={value} is not understood")

    def test_little_shared_memory(self):
        """Each rank says what to do, and so does the report; the messages are staged."""
        if not self.family.startswith("openmpi"):
            self.skipTest("no peer transfers over this MPI")
        small = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh"]
        if subprocess.run([*small, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("nothing may be mounted here")
        # Without shared memory of Open MPI's own, whose complaint now and then crashes its mpirun.
        run = Run("device", "GPUDT_REPORT=1", "OMPI_MCA_btl=self,tcp", through=small)
        self.assertEqual((run.code, run.results), (0, ALL_RIGHT), run.text)
        self.assertEqual(len(run.lines("no peer transfers: /dev/shm has no room", "--shm-size=1g")), RANKS, run.text)
        self.assert_said_once(run, "hint: ", "no peer transfers, /dev/shm has no room", "--shm-size=1g")
        self.assertTrue(run.lines("mapped staging", "strided"), run.text)

    def test_unknown_variable_of_the_simulated_device(self):
        run = Run("host", "GPUDT_SIM_DEVICE=1")
        self.assertEqual((run.code, len(run.said)), (0, 1), run.text)
        self.assert_said_once(run, "GPUDT_SIM_DEVICE is not a variable", "GPUDT_SIM_DEVICES")


def main():
    Run.launcher, Run.library, Run.sim, Run.program, Mistakes.compiler, Mistakes.family = sys.argv[1:7]
    run_cases(Mistakes)


if __name__ == "__main__":
    main()
