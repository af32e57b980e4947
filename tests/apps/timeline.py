#!/usr/bin/env python3
"""Tests GPUDT_TIMELINE from end to end on the simulated device: what the ranks of a ping-pong write, and what
scripts/measure/timeline.py makes of it.

usage: timeline.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO PINGPONG SCRIPTS-FOLDER
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SECONDS = 90
ENTERED, FOUND_OUT = ["send entered"], ["buffer classified", "layout found"]
MOVED = ["transfer described", "way chosen", "kernel planned", "kernel launched", "flag seen"]
SENT = ["given to MPI", "MPI send complete"]
RECEIVED = ["receive entered", *FOUND_OUT, "staging taken", "receive posted", "message arrived"]
# What a rank does in each call, in this order and perhaps with other points between, by protocol.
SENDS = {
    "peer": [*ENTERED, *FOUND_OUT, "offer made", *SENT, "acknowledgement seen", "send returned"],
    "staging": [*ENTERED, *FOUND_OUT, "staging taken", "pack started", *MOVED, *SENT, "send returned"],
    "shared": [*ENTERED, *FOUND_OUT, "offer made", *SENT, "request for data seen", "part pack started", *MOVED,
               "part packed", "part handed over", "acknowledgement seen", "send returned"],
    "pipelined": [*ENTERED, *FOUND_OUT, "part pack started", "offer made", *SENT, "part packed", "part given to MPI",
                  "part sent", "send returned"],
}
RECEIVES = {
    "peer": [*RECEIVED, "RTS recognised", "sender's memory mapped", "transfer started", *MOVED, "released",
             "receive returned"],
    "staging": [*RECEIVED, "unpack started", *MOVED, "receive returned"],
    "shared": [*RECEIVED, "RTS recognised", "data asked for", "part arrived", "part unpack started", *MOVED,
               "part unpacked", "released", "receive returned"],
    "pipelined": [*RECEIVED, "RTS recognised", "data asked for", "part posted", "part arrived",
                  "part unpack started", *MOVED, "part unpacked", "released", "receive returned"],
}


def subsequence(wanted, points):
    """Whether the points have all that is wanted, in this order."""
    rest = iter(points)
    return all(point in rest for point in wanted)


def between(names, first, last):
    """The names from each `first` to the next `last`."""
    found, current = [], None
    for name in names:
        if name == first:
            current = []
        if current is not None:
            current.append(name)
            if name == last:
                found.append(current)
                current = None
    return found


class Files(unittest.TestCase):
    """What other tests of this file need: a folder, and the script."""

    launcher = library = sim = pingpong = scripts = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, *arguments):
        return subprocess.run([f"{self.scripts}/timeline.py", *map(str, arguments)], capture_output=True, text=True,
                              check=False)


class Points(unittest.TestCase):
    """The lists of points in the source."""

    LISTS = "device/transfer/points.hpp", "interpose/support/points.hpp"

    def test_each_has_a_name_of_its_own(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        names = [name for path in self.LISTS
                 for name in re.findall(r'Point \w+\{"([^"]*)"\};', (root / path).read_text(encoding="utf-8"))]
        self.assertGreater(len(names), 40)
        self.assertEqual(sorted(names), sorted(set(names)))
        self.assertNotIn("", names)
        wanted = {point for calls in (SENDS, RECEIVES) for points in calls.values() for point in points}
        self.assertEqual(wanted - set(names), set())


class Runs(Files):
    """Ping-pongs, by each protocol."""

    def run_pingpong(self, protocol, size, *settings, iterations=4):
        settings += (f"GPUDT_PROTOCOL={protocol}", f"GPUDT_TIMELINE={self.folder / protocol}", "GPUDT_WAY=kernel")
        done = subprocess.run([self.launcher, "-S", "-n", "2", "-t", str(SECONDS), "-l", self.library, "-s", self.sim,
                               *(word for setting in settings for word in ("-e", setting)), self.pingpong, "--ways",
                               "mpi", "--layouts", "vector:8", "--sizes", size, "--iterations", str(iterations),
                               "--warmup", "1", "--verify", "1"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [self.folder / f"{protocol}.{rank}.json" for rank in (0, 1)]

    def names(self, file, rank):
        """Checks the format on the way."""
        document = json.loads(file.read_text())
        self.assertEqual(document["otherData"], {"rank": rank, "lost": 0})
        points = [event for event in document["traceEvents"] if event["ph"] == "i"]
        self.assertEqual({point["pid"] for point in points}, {rank})
        self.assertEqual(len({point["tid"] for point in points}), 1)
        times = [point["ts"] for point in points]
        self.assertEqual(times, sorted(times))
        return [point["name"] for point in points]

    def check(self, protocol, size):
        # The first messages may go another way, as the processes do not know each other yet.
        files = self.run_pingpong(protocol, size, "GPUDT_RESIDENT=never", iterations=40)
        for rank, file in enumerate(files):
            names = self.names(file, rank)
            sends = between(names, "send entered", "send returned")
            receives = between(names, "receive entered", "receive returned")
            self.assertGreaterEqual(len(sends), 5)
            self.assertEqual(len(receives), len(sends))
            self.assertTrue(subsequence(SENDS[protocol], sends[-1]), sends[-1])
            self.assertTrue(subsequence(RECEIVES[protocol], receives[-1]), receives[-1])
        done = self.script(*files, "--skip", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("r: flag seen", done.stdout)
        for part in done.stdout.split("\n\n")[1:]:
            self.assertRegex(part, r"^(critical path|sender|receiver)")
            self.assertRegex(part, r"sum of the medians +[\d.]+\n  the whole +\d+( +[\d.]+){3}")

    def test_peer(self):
        self.check("peer", "1K")

    def test_staging(self):
        self.check("staging", "1K")

    def test_shared(self):
        self.check("shared", "64K")

    def test_pipelined(self):
        self.check("pipelined", "64K")

    def test_resident(self):
        wanted = {"resident kernel planned", "resident kernel launched", "handed over"}
        for _ in range(10):  # on a busy machine, the kernel may have ended before each message comes
            files = self.run_pingpong("peer", "1K", "GPUDT_RESIDENT=always", iterations=100)
            lacking = [wanted - set(self.names(file, rank)) for rank, file in enumerate(files)]
            if not any(lacking):
                return
        self.fail(f"never: {lacking}")

    def test_off(self):
        self.run_pingpong("staging", "1K", "GPUDT_DISABLE=1", "GPUDT_SIM_HOST_ACCESS=1")
        self.assertEqual(list(self.folder.iterdir()), [])


class Script(Files):
    """The tables, of messages that have been made up."""

    def write(self, rank, points, lost=0):
        events = [{"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}]
        events += [{"name": name, "ph": "i", "s": "t", "ts": us, "pid": rank, "tid": 1} for name, us in points]
        file = self.folder / f"{rank}.json"
        file.write_text(json.dumps({"otherData": {"rank": rank, "lost": lost}, "traceEvents": events}))
        return file

    def tables(self, sender, receiver, *options, **settings):
        done = self.script(self.write(0, sender, **settings), self.write(1, receiver), *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(zip(("head", "path", "sender", "receiver"), done.stdout.split("\n\n")))

    def steps(self, text):
        """[(from, to, count, median)]"""
        rows = re.findall(r"^  ([sr]: .*?) {2,}([sr]: .*?) {2,}(\d+) +[\d.]+ +([\d.]+) +[\d.]+$", text, re.MULTILINE)
        return [(first, second, int(count), float(median)) for first, second, count, median in rows]

    @staticmethod
    def message(start, given=2):
        """Offered and fetched; the acknowledgement is seen while the receiver goes on."""
        sender = [("send entered", 0), ("given to MPI", given), ("MPI send complete", 3), ("acknowledgement seen", 13),
                  ("send returned", 20)]
        receiver = [("receive entered", -5), ("receive posted", -4), ("message arrived", 5), ("flag seen", 11),
                    ("released", 12), ("receive returned", 14)]
        return ([(name, start + us) for name, us in points] for points in (sender, receiver))

    def test_critical_path(self):
        """Through the RTS to the receiver, and past what the sender does meanwhile."""
        tables = self.tables(*self.message(1000))
        self.assertEqual(self.steps(tables["path"]), [
            ("s: send entered", "s: given to MPI", 1, 2), ("s: given to MPI", "r: message arrived", 1, 3),
            ("r: message arrived", "r: flag seen", 1, 6), ("r: flag seen", "r: released", 1, 1),
            ("r: released", "r: receive returned", 1, 2)])
        self.assertRegex(tables["path"], r"sum of the medians +14\.00\n  the whole +1 +14\.00 +14\.00 +14\.00")
        self.assertIn(("s: MPI send complete", "s: acknowledgement seen", 1, 10), self.steps(tables["sender"]))
        self.assertIn(("r: receive posted", "r: message arrived", 1, 9), self.steps(tables["receiver"]))

    def test_late_receiver(self):
        """What waits for its receive: the time until that is posted counts, not what the sender did before."""
        sender, _ = self.message(1000)
        receiver = [("receive entered", 1007), ("message arrived", 1008), ("receive returned", 1010)]
        self.assertEqual(self.steps(self.tables(sender, receiver)["path"]), [
            ("s: send entered", "r: receive entered", 1, 7), ("r: receive entered", "r: message arrived", 1, 1),
            ("r: message arrived", "r: receive returned", 1, 2)])

    def test_parts(self):
        """Each part comes from the one with its number, and the data are not sent before they are asked for."""
        sender = [("send entered", 0), ("given to MPI", 1), ("request for data seen", 5), ("part handed over", 6),
                  ("part handed over", 8), ("acknowledgement seen", 13), ("send returned", 14)]
        receiver = [("receive entered", -2), ("message arrived", 2), ("data asked for", 3), ("part arrived", 9),
                    ("part arrived", 9.5), ("released", 10), ("receive returned", 11)]
        self.assertEqual([step[:2] for step in self.steps(self.tables(sender, receiver)["path"])], [
            ("s: send entered", "s: given to MPI"), ("s: given to MPI", "r: message arrived"),
            ("r: message arrived", "r: data asked for"), ("r: data asked for", "s: request for data seen"),
            ("s: request for data seen", "s: part handed over"), ("s: part handed over", "r: part arrived"),
            ("r: part arrived", "r: part arrived"), ("r: part arrived", "r: released"),
            ("r: released", "r: receive returned")])

    def test_percentiles_and_skip(self):
        sender, receiver = [], []
        for number, given in enumerate([4.9, *(0.5 + i / 10 for i in range(11))]):
            for points, more in zip((sender, receiver), self.message(100 * number, given)):
                points += more
        tables = self.tables(sender, receiver, "--skip", "1")
        self.assertIn("11 messages", tables["head"])
        self.assertRegex(tables["path"], r"s: send entered +s: given to MPI +11 +0\.60 +1\.00 +1\.40\n")

    def test_both_directions(self):
        there, back = [list(self.message(start)) for start in (0, 100)]
        tables = self.tables(there[0] + back[1], there[1] + back[0])
        self.assertEqual(self.steps(tables["path"])[0], ("s: send entered", "s: given to MPI", 2, 2))

    def test_lost_points(self):
        """The latest are lacking: the messages before them still tell."""
        one, other = [list(self.message(start)) for start in (0, 100)]
        tables = self.tables(one[0], one[1] + other[1], lost=5)
        self.assertIn("rank 0 lacks its latest 5 points", tables["head"])
        self.assertIn("1 messages", tables["head"])

    def refused(self, *arguments):
        done = self.script(*arguments)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr

    def test_refusals(self):
        sender, receiver = self.message(1000)
        good, none = self.write(0, sender), self.write(1, [])
        self.assertIn("sent 1 messages", self.refused(good, none))
        self.assertIn("no messages", self.refused(none, none))
        self.assertIn("share a clock", self.refused(good, self.write(1, [(name, us - 900) for name, us in receiver])))
        (self.folder / "other.json").write_text('{"rows": []}')
        self.assertIn("is no timeline", self.refused(good, self.folder / "other.json"))
        self.assertIn("is no timeline", self.refused(good, self.folder / "missing.json"))


if __name__ == "__main__":
    Files.launcher, Files.library, Files.sim, Files.pingpong, Files.scripts = sys.argv[1:6]
    unittest.main(argv=sys.argv[:1])
