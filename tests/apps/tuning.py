#!/usr/bin/env python3
"""Tests gpudt-tune from end to end on the simulated device: what it measures is written where the library looks, as a
whole or not at all, and the library chooses by it.

usage: tuning.py GPUDT-TUNE PACKBENCH RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SECONDS = 90


class Tuning(unittest.TestCase):
    tune = packbench = launcher = library = sim = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name)

    def run_tune(self, *arguments):
        environment = {**os.environ, "LD_PRELOAD": self.sim, "XDG_CACHE_HOME": str(self.cache)}
        return subprocess.run([self.tune, "--seconds", "0.01", *arguments], env=environment, capture_output=True,
                              text=True, timeout=SECONDS, check=False)

    def run_packbench(self, *settings):
        command = [self.launcher, "-S", "-n", "1", "-t", str(SECONDS), "-l", self.library, "-s", self.sim]
        for setting in settings:
            command += ["-e", setting]
        return subprocess.run(command + [self.packbench, "--check", "--layouts", "vector:32", "--sizes", "1K", "--ways",
                                         "mpi"], capture_output=True, text=True, check=False)

    def files(self):
        return [path for path in self.cache.rglob("*") if path.is_file()]

    def test_written_and_used(self):
        done = self.run_tune()
        self.assertEqual(done.returncode, 0, done.stderr)
        [file] = self.files()
        self.assertEqual(file.parent, self.cache / "gpudt")
        self.assertIn(str(file), done.stdout)
        document = json.loads(file.read_text())
        self.assertTrue(document["simulated"])
        self.assertIn("mean nothing", document["note"])
        for way in ("kernel_pack_to_host", "copy_pack_to_host", "copy_rows_unpack_from_host", "copy_on_device",
                    "kernel_to_peer", "copy_to_peer"):
            self.assertGreater(document["costs"][way + ".base_us"], 0)
            self.assertGreater(document["costs"][way + ".bytes_per_us"], 0)
        for several in ("batch_job_us", "extra_copy_us", "per_run_us", "copy_runs_unpack_from_host.row_ns",
                        "host_pack.row_ns", "host_pack.bytes_per_us"):
            self.assertIn(several, document["costs"])
        self.assertNotIn("lateness.belief", document["costs"])
        used = self.run_packbench("GPUDT_TUNING=auto", f"XDG_CACHE_HOME={self.cache}", "GPUDT_REPORT=1")
        self.assertEqual(used.returncode, 0, used.stderr)
        self.assertIn(f"GPU 0: {file}", used.stderr)

    def test_not_for_another_gpu(self):
        file = self.cache / "mine.json"
        self.assertEqual(self.run_tune("--out", str(file)).returncode, 0)
        self.assertEqual(self.files(), [file])
        document = json.loads(file.read_text())
        document["gpu"] = "NVIDIA H200"
        file.write_text(json.dumps(document))
        used = self.run_packbench(f"GPUDT_TUNING={file}", "GPUDT_REPORT=1")
        self.assertEqual(used.returncode, 0, used.stderr)
        self.assertIn("for another GPU", used.stderr)
        self.assertIn("GPU 0: built in", used.stderr)

    def test_dry_run(self):
        done = self.run_tune("--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"gpudt_tuning": 1', done.stdout)
        self.assertEqual(self.files(), [])

    def test_what_cannot_be_written(self):
        (self.cache / "gpudt").write_text("a file where the folder should be")
        done = self.run_tune()
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("gpudt-tune:", done.stderr)
        self.assertEqual(self.files(), [self.cache / "gpudt"])

    def test_no_such_gpu(self):
        done = self.run_tune("--gpu", "40")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertEqual(self.files(), [])


if __name__ == "__main__":
    Tuning.tune, Tuning.packbench, Tuning.launcher, Tuning.library, Tuning.sim = sys.argv[1:6]
    unittest.main(argv=sys.argv[:1])
