#!/usr/bin/env python3
"""What GPUDT_REPORT says: runs `messages` and `together` under mpirun, on the simulated device, and reads the report as
text, as JSON, and as scripts/gpudt-report shows it.

usage: report.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO MESSAGES TOGETHER GPUDT-REPORT
"""

import html.parser
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

from environment import ALL_RIGHT, RANKS, Run, run_cases

PIECES = 26  # of which together sends one to each neighbour
ROW = re.compile(r"^  (MPI_\w+) +([a-z ]+?) +(\w+) +(\d+) +(\d+) +[\d.]+ [KMG]?i?B +([\d.]+) +[\d.]+$", re.M)


class Page(html.parser.HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open.pop() == tag, tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.words += data


class Report(unittest.TestCase):
    """What was counted is what has happened, in each of the forms."""

    messages = together = viewer = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "run.json"

    def run_program(self, program, mode, *settings):
        Run.program = program
        run = Run(mode, *settings)
        self.assertEqual(run.code, 0, run.text)
        return run

    def report_of(self, program, mode, *settings):
        """As JSON; all that is said else is where it is."""
        run = self.run_program(program, mode, f"GPUDT_REPORT={self.file}", *settings)
        self.assertEqual(len(run.lines("gpudt report: ", str(self.file))), 1, run.text)
        report = json.loads(self.file.read_text(encoding="utf-8"))
        self.assertEqual((report["gpudt_report"], report["ranks"], report["device"]), (1, RANKS, "sim"))
        return report

    @staticmethod
    def buffers(report, **wanted):
        return sum(row["buffers"] for row in report["rows"] if all(row[key] == value for key, value in wanted.items()))

    def view(self, *arguments):
        return subprocess.run([sys.executable, self.viewer, *map(str, arguments)], capture_output=True, text=True, check=False)

    def test_time_of_nonblocking_operations(self):
        for settings in ((), ("GPUDT_PROTOCOL=staging",)):
            with self.subTest(settings):
                report = self.report_of(self.together, "isend", *settings)
                for call in ("MPI_Isend", "MPI_Irecv"):
                    rows = [row for row in report["rows"] if row["call"] == call]
                    self.assertEqual(sum(row["buffers"] for row in rows), 3 * RANKS * PIECES, rows)
                    self.assertTrue(rows and all(row["seconds"] > 0 for row in rows), rows)
                (wait,) = report["completions"]
                self.assertEqual((wait["call"], wait["calls"]), ("MPI_Waitall", 3 * RANKS))
                seconds = report["seconds"]
                self.assertGreater(seconds["completing_requests"], 0)
                self.assertAlmostEqual(seconds["completing_requests"], wait["seconds"])
                self.assertLessEqual(seconds["in_calls_of_busiest"], seconds["run"])

    def test_starts_of_persistent_requests(self):
        report = self.report_of(self.together, "startall")
        for call in ("MPI_Send_init", "MPI_Recv_init"):
            self.assertEqual(self.buffers(report, call=call), 3 * RANKS * PIECES, report["rows"])

    def test_protocols(self):
        """What was offered and fetched is listed as such, by its sender and its receiver; and so are the others."""
        for protocol, listed in (("auto", "peer"), ("peer", "peer"), ("shared", "shared"), ("pipelined", "pipelined"),
                                 ("staging", "mapped staging")):
            with self.subTest(protocol):
                report = self.report_of(self.messages, "again", f"GPUDT_PROTOCOL={protocol}")
                messages = report["messages"]
                offered = sum(self.buffers(report, protocol=way) for way in ("peer", "shared", "pipelined"))
                self.assertEqual(offered, 2 * messages["offered"], report)
                long_ones = self.buffers(report, call="MPI_Sendrecv", protocol=listed)
                # On a busy machine many receivers answer too late for their messages to be pipelined.
                self.assertGreater(long_ones, 2 * RANKS, report["rows"])
                if protocol == "shared":
                    self.assertEqual(self.buffers(report, protocol="peer"), 0, report["rows"])

    def test_cuda_aware(self):
        """Messages of a node go by peer transfer whatever the MPI library takes."""
        report = self.report_of(self.messages, "again", "GPUDT_MPI_CUDA_AWARE=1", "GPUDT_SIM_HOST_ACCESS=1")
        self.assertGreater(self.buffers(report, call="MPI_Sendrecv", protocol="peer"), 2 * RANKS, report["rows"])
        self.assertEqual(self.buffers(report, protocol="direct"), 0, report["rows"])
        report = self.report_of(self.messages, "gather", "GPUDT_MPI_CUDA_AWARE=1", "GPUDT_SIM_HOST_ACCESS=1")
        self.assertGreater(self.buffers(report, call="MPI_Allgather", protocol="kernels"), 0, report["rows"])

    def test_memory_that_is_not_exported(self):
        """It is packed for GPUs to fetch it; for receives into host memory only until it is known that they are."""
        report = self.report_of(self.messages, "managed")
        self.assertNotIn("wrong", self.run_program(self.messages, "managed").text)
        messages = report["messages"]
        self.assertGreaterEqual(messages["through_shared_memory"], 19 * RANKS, report)
        self.assertLessEqual(messages["packed"], 12 * RANKS, report)
        self.assertGreaterEqual(messages["packed"], 9 * RANKS, report)

    def test_kernels_of_collectives(self):
        report = self.report_of(self.messages, "gather", "GPUDT_PROTOCOL=peer")
        self.assertGreater(self.buffers(report, call="MPI_Allgather", protocol="kernels"), 0, report["rows"])
        self.assertEqual(report["completions"], [])  # those that the program has called

    def test_collectives_while_a_rank_is_in_init(self):
        report = self.report_of(self.messages, "late")
        self.assertEqual(self.buffers(report, call="MPI_Allreduce", protocol="kernels"), 2 * RANKS * 10, report["rows"])

    def test_forms_agree(self):
        """The rows of the text, of the file, and of what gpudt-report prints."""
        settings = ("GPUDT_PROTOCOL=staging",)
        report = self.report_of(self.together, "isend", *settings)
        rows = sorted((row["call"], row["protocol"], row["layout"], str(row["buffers"]), str(row["bytes"]))
                      for row in report["rows"])
        text = self.run_program(self.together, "isend", *settings, "GPUDT_REPORT=1").text
        shown = self.view("--text", self.file)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertTrue(rows)
        for form in (text, shown.stdout):
            found = ROW.findall(form)
            self.assertEqual(sorted(row[:5] for row in found), rows, form)
            self.assertTrue(all(float(row[5]) > 0 for row in found), form)
        self.assertLess(len(text.splitlines()), 25, text)

    def test_hosts_and_gpus(self):
        host = socket.gethostname()
        run = self.run_program(self.messages, "device", "GPUDT_REPORT=1")
        self.assertEqual(len(run.lines(f"host {host}: {RANKS} ranks", "gpudt simulated device (0)")), 1, run.text)
        (entry,) = self.report_of(self.messages, "device")["hosts"]
        self.assertEqual((entry["name"], entry["ranks"]), (host, list(range(RANKS))))
        self.assertEqual(entry["gpus"], [{"name": "gpudt simulated device", "ordinal": 0, "ranks": list(range(RANKS))}])

    def test_hints(self):
        """Of what is slow, with the remedy; not of what is not."""
        hints = [hint["what"] for hint in self.report_of(self.messages, "device", *self.root(mps=True))["hints"]]
        self.assertEqual([hint for hint in hints if "began late" not in hint], [])  # as on one GPU it can
        run = self.run_program(self.messages, "slow", "GPUDT_REPORT=1", "GPUDT_WAY=copy")
        for words in (("received into host memory", "Receive into GPU memory"), ("GPUDT_WAY=copy is set", "Without it"),
                      (f"hint: {RANKS} reductions", "went through the host", "Use a predefined operator")):
            self.assertEqual(len(run.lines("hint: ", *words)), 1, run.text)
        self.assertEqual(run.lines("could not be fetched"), [], run.text)
        run = self.run_program(self.messages, "apart", "GPUDT_REPORT=1", "GPUDT_SIM_PEERS=0")
        self.assertEqual(len(run.lines("hint: ", "could not be fetched", "cannot access memory of GPU")), 1, run.text)

    def root(self, mps=False, gpu_node=None, scope=None):
        """Settings for one GPU, and a folder for the root of the file system: with MPS, with the GPU at this NUMA node, of
        which node 0 has all CPUs, and with this scope of Yama."""
        root = self.folder / f"root-{mps}-{gpu_node}-{scope}"
        files = {"tmp/nvidia-mps/control": "" if mps else None,
                 "sys/devices/system/node/node0/cpulist": "0-8191",
                 "sys/devices/system/node/node1/cpulist": "8192-9000",
                 "sys/bus/pci/devices/0000:10:00.0/numa_node": gpu_node,
                 "proc/sys/kernel/yama/ptrace_scope": scope}
        for name, text in files.items():
            if text is not None:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(f"{text}\n", encoding="utf-8")
        return f"GPUDT_TEST_ROOT={root}", "GPUDT_SIM_DEVICES=1", "CUDA_MPS_PIPE_DIRECTORY="

    def test_mistakes_in_placement(self):
        """Each is named, and nothing else; tests/unit/placement.cpp has more of them."""
        staged = ("GPUDT_PROTOCOL=staging",)
        for settings, wanted in ((self.root(mps=True), []),
                                 (self.root(), ["MPS"]),
                                 ((*self.root(mps=True), "GPUDT_SIM_DEVICES=2"), ["idle GPUs"]),
                                 (self.root(mps=True, gpu_node=0), []),
                                 (self.root(mps=True, gpu_node=1), ["binding"]),
                                 (self.root(mps=True, scope=2), []),
                                 ((*self.root(mps=True, scope=1), *staged), []),
                                 ((*self.root(mps=True, scope=2), *staged), ["yama"])):
            with self.subTest(settings):
                report = self.report_of(self.messages, "device", *settings)
                hints = report["hints"]
                if self.root(mps=True, scope=2)[0] in settings and self.buffers(report, protocol="mapped staging"):
                    wanted = ["yama"]  # the first message is staged if its receiver is still in MPI_Init
                found = [hint for hint in hints if hint["about"]]
                self.assertEqual([hint["about"] for hint in found], wanted, hints)
                self.assertTrue(all(hint["remedy"] for hint in found), hints)
        run = self.run_program(self.messages, "device", "GPUDT_REPORT=1", *self.root())
        self.assertEqual(len(run.lines("hint: ranks 0-1 of", "share GPU 0000:10:00.0 without CUDA MPS", "nvidia-cuda-mps")),
                         1, run.text)

    def test_placement_of_host_program(self):
        """It is not the report's concern."""
        settings = self.root(gpu_node=1, scope=3)
        self.assertEqual(self.report_of(self.messages, "host", *settings)["hints"], [])

    def test_file_that_cannot_be_written(self):
        """The report is not lost."""
        run = self.run_program(self.messages, "device", f"GPUDT_REPORT={self.folder}/not/there.json")
        self.assertEqual(run.results, ALL_RIGHT)
        self.assertEqual(len(run.lines("not/there.json cannot be written")), 1, run.text)
        self.assertEqual(len(run.lines("gpudt report: 2 of 2 ranks")), 1, run.text)

    def test_host_program(self):
        report = self.report_of(self.messages, "host")
        self.assertEqual((report["rows"], report["completions"], report["hints"]), ([], [], []))

    def test_page(self):
        self.report_of(self.messages, "slow")
        made = self.view(self.file)
        self.assertEqual((made.returncode, made.stdout), (0, f"{self.folder}/run.html\n"), made.stderr)
        text = (self.folder / "run.html").read_text(encoding="utf-8")
        page = Page(text)
        self.assertEqual(page.open, [])
        self.assertGreaterEqual(page.tags.count("svg"), 3)
        for words in ("2 of 2 ranks", "MPI_Allreduce", "Receive into GPU memory", "gpudt simulated device"):
            self.assertIn(words, page.words)
        self.assertNotRegex(text, "https?://|src=|<script")
        elsewhere = self.folder / "page.html"
        self.assertEqual(self.view(self.file, "-o", elsewhere).returncode, 0)
        self.assertEqual(elsewhere.read_text(encoding="utf-8"), text)

    def test_files_that_are_no_reports(self):
        for content in (None, "nonsense", "[]", '{"gpudt_report": 1}'):
            with self.subTest(content):
                if content is not None:
                    self.file.write_text(content, encoding="utf-8")
                done = self.view(self.file)
                self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (1, "", 1), done.stderr)
        self.assertIn("example:", self.view("--help").stdout)


def main():
    Run.launcher, Run.library, Run.sim, Report.messages, Report.together, Report.viewer = sys.argv[1:7]
    run_cases(Report)


if __name__ == "__main__":
    main()
