#!/usr/bin/env python3
"""Tests what scripts/measure/reproduce.sh makes of measurements: the page, and the fits of scale.py, from short runs on the
simulated device; and what it says where it cannot measure.

usage: results.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO PACKBENCH SCALE SCRIPTS-FOLDER
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SECONDS = 90


class Results(unittest.TestCase):
    launcher = library = sim = packbench = scale = scripts = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def measure(self, name, program, *arguments):
        done = subprocess.run([self.launcher, "-S", "-n", "1", "-t", str(SECONDS), "-l", self.library, "-s", self.sim,
                               program, "--iterations", "2", "--json", str(self.folder / name), *arguments],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def script(self, name, *arguments, **environment):
        return subprocess.run([f"{self.scripts}/{name}", *map(str, arguments)], capture_output=True, text=True,
                              check=False, env={**os.environ, **environment})

    def page(self):
        done = self.script("page.py", self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return (self.folder / "results.md").read_text()

    def test_page(self):
        self.measure("packbench.json", self.packbench, "--layouts", "contiguous,vector:8,vector:128", "--sizes", "1K,4K",
                     "--targets", "host")
        self.measure("block-lengths.json", self.packbench, "--layouts", "vector:4,vector:8,vector:16", "--sizes",
                     "256,512,1K", "--targets", "host", "--calls", "pack", "--ways", "mpi,memcpy2d")
        text = self.page()
        self.assertIn("SIMULATED", text)
        self.assertIn("| up to 20 (vector of 8-byte blocks) |", text)
        self.assertRegex(text, r"\| vector:8 \| [\d.]+; [\d.]+; - \|")
        self.assertIn("by block length (64 blocks)", text)
        for length in (4, 8, 16):
            self.assertRegex(text, rf"\| {length} B \| [\d.]+ \| - \| [\d.]+ \|")
        # Ping-pong, tables 2 to 4, many messages, halo, collectives, one GPU, calls, scale, costs.
        self.assertEqual(text.count("*not measured*"), 11, text)
        self.assertNotIn("WRONG DATA", text)

    def test_collectives(self):
        """What went as messages stands beside what went through the host."""
        for protocol, us in (("auto", 12.5), ("staging", 43.5)):
            rows = [{"call": "bcast", "layout": "vector:32", "bytes": 65536, "way": way, "median_us": us + by}
                    for way, by in (("mpi", 0), ("memcpy2d", 20))]
            (self.folder / f"collectives-2-{protocol}.json").write_text(json.dumps({"rows": rows}))
        self.assertIn("| 2 | bcast | vector:32 | 64 KiB | 12.5 | 43.5 | 32.5 |", self.page())

    def test_ways_side_by_side(self):
        for ranks, us in ((2, 12.5), (4, 25.5)):
            rows = [{"number": 64, "bytes": 1024, "way": way, "median_us": us * by} for way, by in (("mpi", 1), ("joined", 2))]
            (self.folder / f"many-{ranks}.json").write_text(json.dumps({"rows": rows}))
        text = self.page()
        self.assertIn("| processes | messages | bytes of each | mpi | joined |", text)
        self.assertIn("| 2 | 64 | 1 KiB | 12.5 | 25 |", text)
        self.assertIn("| 4 | 64 | 1 KiB | 25.5 | 51 |", text)

    def test_one_gpu(self):
        for name, times in (("one-gpu", {"mpi": 12.5}), ("one-gpu-by-hand", {"zerocopy": 165.5, "memcpy2d": 17.5})):
            rows = [{"layout": "vector:8", "bytes": 1024, "way": way, "median_us": us} for way, us in times.items()]
            (self.folder / f"{name}.json").write_text(json.dumps({"rows": rows}))
        self.assertIn("| vector:8 | 1 KiB | 12.5 | 166 | 17.5 |", self.page())

    def test_wrong_data_is_shown(self):
        self.measure("packbench.json", self.packbench, "--layouts", "vector:8", "--sizes", "1K", "--targets", "host")
        file = self.folder / "packbench.json"
        document = json.loads(file.read_text())
        document["rows"][0]["verified"] = False
        file.write_text(json.dumps(document))
        self.assertIn("**WRONG DATA** in packbench: vector:8", self.page())

    def test_scale(self):
        self.measure("scale-1.json", self.scale, "--quantities", "blocks", "--sizes", "64,256,1K")
        done = self.script("scale.py", self.folder / "scale-1.json")
        self.assertRegex(done.stdout, r"\| blocks of a vector \| 64 \| 1024 \|")
        self.assertRegex(self.page(), r"\| blocks of a vector \| 64 \| 1024 \|")

    def test_exponents(self):
        """Powers of n below whose larger half a constant is hidden, and what is made of them."""
        def rows(call, way, power):
            return [{"call": call, "way": way, "n": n, "median_us": 50 + n ** power} for n in (1, 4, 64, 1024, 4096, 16384)]
        for host, code, verdict in ((1, 1, "FASTER"), (2, 0, "as on host memory")):
            file = self.folder / "scale.json"
            file.write_text(json.dumps({"machine": {"gpu": "none"}, "rows": rows("lists", "device", 2) +
                                        rows("lists", "host", host) + rows("blocks", "device", 1)}))
            done = self.script("scale.py", file)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertRegex(done.stdout, r"index list .*\| 2\.00 \|.*" + verdict)
            self.assertRegex(done.stdout, r"blocks of a vector .*linear or better")

    def test_refusals(self):
        done = self.script("reproduce.sh", "--simulated", self.folder, "everything", BUILD_DIR=self.build())
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("there is no part 'everything'", done.stderr)
        if not pathlib.Path("/dev/nvidia0").exists():
            done = self.script("reproduce.sh", self.folder / "new", BUILD_DIR=self.build())
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("no GPU here", done.stderr)
        self.assertNotEqual(self.script("page.py", self.folder).returncode, 0)

    def build(self):
        return str(pathlib.Path(self.library).resolve().parent)


if __name__ == "__main__":
    (Results.launcher, Results.library, Results.sim, Results.packbench, Results.scale, Results.scripts) = sys.argv[1:7]
    unittest.main(argv=sys.argv[:1])
