#!/usr/bin/env python3
"""Tests of the GPUDT_ variables and of whole runs: runs `messages` under mpirun and reads what it and the library say.

usage: environment.py RUN-MPI.SH LIBGPUDT-PMPI.SO LIBGPUDT-SIM.SO MESSAGES MCA_PMIX_LATE.SO COLLECTIVE-TESTS

Everything runs on the simulated device, so that the same is said with and without a GPU.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

RANKS = 2
STAGED = ("GPUDT_PROTOCOL=staging",)  # so that there is something to pack
SECONDS = 90


def host_cpu():
    """As device/choice/host_cpu.hpp has it."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(": ", 1)[1].rstrip("\n")
    return "unknown CPU"


class Run:
    """One run of `messages`: its exit code, its own lines in order of rank, and what else was written."""

    launcher = library = sim = program = ""

    def __init__(self, mode, *settings, library=True, without=None, through=(), ranks=RANKS, program=None,
                 seconds=SECONDS, simulated=True):
        command = [*through, self.launcher, "-n", str(ranks), "-t", str(seconds), "-s", self.sim]
        if simulated:
            command += ["-S"]
        if library:
            command += ["-l", self.library]
        if without is not None:
            command += ["-w", str(without)]
        for setting in settings:
            command += ["-e", setting]
        arguments = (mode,) if isinstance(mode, str) else mode
        done = subprocess.run([*command, program or self.program, *arguments], capture_output=True, text=True, check=False)
        self.code = done.returncode
        self.results = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
        self.said = [line for line in done.stderr.splitlines() if line.strip()]
        self.text = done.stdout + done.stderr

    def lines(self, *words):
        return [line for line in self.said if all(word in line for word in words)]


ALL_RIGHT = [f"rank {rank}: {what}: right" for rank in range(RANKS) for what in ("contiguous", "strided")]
LARGE_TOO = sorted(ALL_RIGHT + [f"rank {rank}: large: right" for rank in range(RANKS)])


class Environment(unittest.TestCase):
    """The variables, and what only a whole run of a program shows."""

    late_events = collective_tests = ""

    def assert_right(self, run):
        self.assertEqual(run.code, 0, run.text)
        self.assertEqual(run.results, ALL_RIGHT, run.text)

    def test_silence(self):
        """Nothing is said that was not asked for."""
        run = Run("device")
        self.assert_right(run)
        self.assertEqual(run.said, [], run.text)

    def test_host_program(self):
        """A program without device pointers: the same results, and no choice is made for it."""
        plain, traced = Run("host", library=False), Run("host", "GPUDT_TRACE=1")
        self.assert_right(plain)
        self.assert_right(traced)
        self.assertEqual(traced.lines("staging"), [], traced.text)
        self.assertEqual(traced.lines("Sendrecv"), [], traced.text)

    def test_trace(self):
        """One line per choice: two buffers in each of two calls on each rank."""
        run = Run("device", "GPUDT_TRACE=1")
        self.assert_right(run)
        self.assertEqual(len(run.lines("Sendrecv", "staging")), 2 * 2 * RANKS, run.text)

    def test_way(self):
        """What moves the data is chosen by variable, and seen in the trace and the report."""
        for way, by, other in (("kernel", "a kernel", "the copy engine"), ("copy", "the copy engine", "a kernel")):
            run = Run("device", f"GPUDT_WAY={way}", *STAGED, "GPUDT_TRACE=1", "GPUDT_REPORT=1")
            self.assert_right(run)
            self.assertEqual(len(run.lines("pack of", "by " + by)), 2 * 2 * RANKS, run.text)
            self.assertEqual(run.lines("pack of", "by " + other), [], run.text)
            kernels, copies = re.search(r"copies: (\d+) by kernels, (\d+) by the copy engine", run.text).groups()
            self.assertEqual(int(copies if way == "kernel" else kernels), 0, run.text)
            self.assertGreaterEqual(int(kernels if way == "kernel" else copies), 2 * 2 * RANKS, run.text)

    def test_protocol(self):
        """Messages for processes of the node are offered to them, or are not, and the report tells."""
        for protocol, offers in (("peer", True), ("shared", True), ("auto", True), ("staging", False)):
            run = Run("device", f"GPUDT_PROTOCOL={protocol}", "GPUDT_REPORT=1")
            self.assert_right(run)
            told = run.lines("peer transfer:", "messages offered")
            self.assertEqual(bool(told), offers, run.text)
            if protocol == "shared":
                self.assertNotIn(" 0 through shared memory", told[0], run.text)

    def test_lengths(self):
        """No message is offered while others are under way that are as long as each token would be; later some are."""
        everywhere = sorted(ALL_RIGHT + [f"rank {rank}: lengths: right" for rank in range(RANKS)])
        for protocol in ("peer", "pipelined"):
            with self.subTest(protocol):
                run = Run("lengths", f"GPUDT_PROTOCOL={protocol}", "GPUDT_TRACE=1")
                self.assertEqual(run.code, 0, run.text)
                self.assertEqual(run.results, everywhere, run.text)
                self.assertEqual(len(run.lines("as long as RTS messages would be")), 1, run.text)
                self.assertEqual(len(run.lines("message of 200000 B offered")), 1, run.text)
                # The comparison of all protocols, once for each process.
                self.assertEqual(len(run.lines("to process", f"{protocol}: taken")), RANKS, run.text)

    def test_collectives(self):
        """Long collectives go as messages where all processes agree; one with host memory puts it off for two calls."""
        everywhere = sorted(ALL_RIGHT + [f"rank {rank}: gather: right" for rank in range(RANKS)])
        for protocol, calls in (("auto", 3), ("peer", 5), ("staging", 0)):
            with self.subTest(protocol):
                run = Run("gather", f"GPUDT_PROTOCOL={protocol}", "GPUDT_REPORT=1")
                self.assertEqual(run.code, 0, run.text)
                self.assertEqual(run.results, everywhere, run.text)
                told = run.lines("collectives by GPUs")
                self.assertEqual(told, [f"  collectives by GPUs: {calls * RANKS} calls"] if calls else [], run.text)

    def test_collectives_in_turns(self):
        """Calls that may go as messages are found among others that may not."""
        run = Run("turns", "GPUDT_REPORT=1")
        self.assertEqual(run.code, 0, run.text)
        (told,) = run.lines("collectives by GPUs")
        self.assertGreaterEqual(int(re.search(r"GPUs: (\d+) calls", told).group(1)), 4 * RANKS, run.text)

    def test_collectives_without(self):
        """Nobody waits for an answer of a process without the library."""
        run = Run("gather", "GPUDT_REPORT=1", "GPUDT_TEST_REPORT_TIMEOUT=1", without=1)
        self.assertEqual(run.code, 0, run.text)
        self.assertEqual(run.lines("collectives by GPUs"), [], run.text)

    def test_parts(self):
        """What goes to other nodes goes in fragments, and so does everything that is long if that is wanted."""
        run = Run("again", "GPUDT_PROTOCOL=pipelined", "GPUDT_REPORT=1")
        self.assertEqual(run.code, 0, run.text)
        self.assertEqual(run.results, LARGE_TOO, run.text)
        (told,) = run.lines("peer transfer:", "messages offered")
        self.assertGreater(int(re.search(r"(\d+) in fragments by messages", told).group(1)), 2 * RANKS, run.text)

    def test_probes(self):
        """A probe tells a message's size from the first one on, whichever way it goes."""
        for protocol in ("auto", "pipelined"):
            with self.subTest(protocol):
                run = Run("probe", f"GPUDT_PROTOCOL={protocol}")
                self.assertEqual(run.code, 0, run.text)
                probed = [f"rank {rank}: probe: right" for rank in range(RANKS)]
                self.assertEqual(run.results, sorted(ALL_RIGHT + probed), run.text)

    def test_reasons(self):
        """Each transfer's line tells what the ways would cost, and the report where that is from."""
        run = Run("device", *STAGED, "GPUDT_TRACE=1", "GPUDT_REPORT=1")
        self.assert_right(run)
        lines = run.lines("pack of")
        self.assertEqual(len(lines), 2 * 2 * RANKS, run.text)
        for line in lines:
            self.assertRegex(line, r"expected: kernel [\d.]+ us.*, copy engine [\d.]+ us \(\d+ rows, \d+ calls\)")
        self.assertEqual(len(run.lines("costs of kernels and copies, rank 0, GPU", "built in")), 1, run.text)

    def test_tuning(self):
        """A file of measured costs steers the choice; one that cannot be used is complained of once."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "costs.json"
            run = Run("device", f"GPUDT_TUNING={file}")
            self.assert_right(run)
            self.assertEqual(len(run.lines(str(file), "cannot be read")), 1, run.text)
            self.assertEqual(len(run.said), 1, run.text)
            costs = {"gpudt_tuning": 1, "gpu": "gpudt simulated device", "cpu": host_cpu()}
            for way, by in (("copy", "a kernel"), ("kernel", "the copy engine")):
                slow = {f"{way}_{rest}.base_us": 1e6 for rest in ("pack_to_host", "unpack_from_host")}
                if way == "copy":
                    slow["copy_rows_unpack_from_host.base_us"] = 1e6
                file.write_text(json.dumps({**costs, "costs": slow}))
                run = Run("device", f"GPUDT_TUNING={file}", *STAGED, "GPUDT_TRACE=1", "GPUDT_REPORT=1")
                self.assert_right(run)
                self.assertEqual(len(run.lines("pack of", "by " + by)), 2 * 2 * RANKS, run.text)
                self.assertEqual(len(run.lines("costs of kernels and copies", str(file))), 1, run.text)
            # A host program is not bothered with it.
            file.write_text("nonsense")
            run = Run("host", f"GPUDT_TUNING={file}")
            self.assert_right(run)
            self.assertEqual(run.said, [], run.text)

    def test_timeline(self):
        """A file from each rank, with the points of device buffers alone; nothing is said."""
        with tempfile.TemporaryDirectory() as folder:
            for mode, settings, points in (("device", (), True), ("host", (), False), ("device", STAGED, True)):
                run = Run(mode, f"GPUDT_TIMELINE={folder}/points", *settings)
                self.assert_right(run)
                self.assertEqual(run.said, [], run.text)
                files = sorted(pathlib.Path(folder).iterdir())
                self.assertEqual([file.name for file in files], [f"points.{rank}.json" for rank in range(RANKS)])
                for file in files:
                    names = [event["name"] for event in json.loads(file.read_text())["traceEvents"]]
                    self.assertEqual("layout found" in names, points, names)
                    self.assertEqual(len(names) > 1, points, names)

    def test_timeline_that_cannot_be_written(self):
        """One line from each rank, since each has a file of its own; MPI_Finalize succeeds."""
        run = Run("device", "GPUDT_TIMELINE=/nowhere/at/all")
        self.assert_right(run)
        self.assertEqual(len(run.said), RANKS, run.text)
        for rank in range(RANKS):
            said = run.lines("GPUDT_TIMELINE", f"/nowhere/at/all.{rank}.json cannot be written")
            self.assertEqual(len(said), 1, run.text)

    def test_disable(self):
        """Pure pass-through: device pointers reach an MPI that can read them, and nothing is counted."""
        run = Run("device", "GPUDT_DISABLE=1", "GPUDT_SIM_HOST_ACCESS=1", "GPUDT_REPORT=1", "GPUDT_TRACE=1")
        self.assert_right(run)
        self.assertEqual(run.said, [], run.text)

    def test_late_events(self):
        """Events that Open MPI 4 answers later than MPI_Finalize, where it then crashes, are answered at once."""
        # Without the library it may wait for a thread for ever.
        alone = Run("host", f"LD_PRELOAD={self.late_events}", library=False, seconds=10)
        if not alone.lines("an event is answered late"):
            self.skipTest("this MPI library has no such events")
        for settings in ((), ("GPUDT_DISABLE=1",)):
            run = Run("host", f"LD_PRELOAD={self.late_events}:{Run.library}:{Run.sim}", *settings)
            self.assert_right(run)
            self.assertEqual(run.said, [], run.text)

    def test_without_the_library_device_pointers_crash(self):
        """What the other tests rely on: MPI cannot touch the simulated device's memory."""
        run = Run("device", library=False)
        self.assertNotEqual(run.code, 0, run.text)

    def test_report(self):
        run = Run("device", "GPUDT_REPORT=1")
        self.assert_right(run)
        self.assertEqual(len(run.lines("gpudt report")), 1, run.text)
        self.assertTrue(run.lines("2 of 2 ranks"), run.text)
        for kind in ("contiguous", "strided"):
            # A buffer sent and one received on each rank, of 1000 ints, whichever way they went.
            numbers = [re.search(kind + r" +(\d+) +(\d+)", row).groups() for row in run.lines("MPI_Sendrecv", kind)]
            sums = [sum(map(int, column)) for column in zip(*numbers)]
            self.assertEqual(sums, [2 * RANKS, 2 * RANKS * 4000], run.text)

    def test_report_of_a_host_program(self):
        run = Run("host", "GPUDT_REPORT=1")
        self.assert_right(run)
        self.assertEqual(len(run.lines("gpudt report")), 1, run.text)
        self.assertEqual(run.lines("staging", "contiguous"), [], run.text)

    def test_unknown_variable(self):
        run = Run("device", "GPUDT_REPROT=1")
        self.assert_right(run)
        self.assertEqual(len(run.lines("GPUDT_REPROT")), 1, run.text)

    def test_malformed_values(self):
        for name, value in (("GPUDT_REPORT", "perhaps"), ("GPUDT_REPORT", "run.txt"), ("GPUDT_REPORT", ".json"), ("GPUDT_WAY", "swim"), ("GPUDT_STAGING_LIMIT", "lots"), ("GPUDT_STAGING_LIMIT", "-1"),
                            ("GPUDT_STAGING_LIMIT", "12Q"), ("GPUDT_MPI_CUDA_AWARE", "2")):
            with self.subTest(f"{name}={value}"):
                run = Run("device", f"{name}={value}")
                self.assert_right(run)
                self.assertEqual(len(run.lines(name, value)), 1, run.text)
                self.assertEqual(len(run.said), 1, run.text)

    def test_malformed_device(self):
        run = Run("host", "GPUDT_DEVICE=toaster")
        self.assert_right(run)
        self.assertEqual(len(run.lines("GPUDT_DEVICE", "toaster")), 1, run.text)

    def test_device_that_is_not_there(self):
        """A host program goes on; the reason is given."""
        loaded = subprocess.run(["ldd", Run.program], capture_output=True, text=True, check=True).stdout
        # A build without CUDA links its programs with the simulated device; a build with CUDA can be without it.
        missing = "cuda" if "libgpudt-sim" in loaded else "sim"
        run = Run("host", "GPUDT_DEVICE=" + missing, "LD_PRELOAD=" + Run.library)
        self.assert_right(run)
        self.assertTrue(run.lines(missing), run.text)

    def test_no_device(self):
        run = Run("host", "GPUDT_DEVICE=none")
        self.assert_right(run)
        self.assertEqual(run.said, [], run.text)

    def test_staging_limit(self):
        """Staging memory that may not be had is MPI_ERR_NO_MEM, and the library goes on."""
        run = Run("limit", "GPUDT_STAGING_LIMIT=1M", "GPUDT_PROTOCOL=staging")
        self.assertEqual(run.code, 0, run.text)
        no_mem = [f"rank {rank}: large: MPI_ERR_NO_MEM" for rank in range(RANKS)]
        self.assertEqual(run.results, sorted(ALL_RIGHT + no_mem), run.text)

    def test_staging_limit_that_suffices(self):
        for settings in (("GPUDT_STAGING_LIMIT=64M", "GPUDT_PROTOCOL=staging"),
                         ("GPUDT_STAGING_LIMIT=1M",)):  # the receivers' GPUs fetch the messages
            run = Run("limit", *settings)
            self.assertEqual(run.code, 0, run.text)
            self.assertEqual(run.results, LARGE_TOO, run.text)

    def test_check(self):
        """What a program does wrong with its memory is said once for each call, and only when that is wanted."""
        found = (
            ("[gpudt 0]", "MPI_Send,", "was not ready: it has changed"),
            ("[gpudt 1]", "MPI_Irecv,", "overlaps that of a pending MPI_Irecv"),
            ("[gpudt 0]", "MPI_Isend,", "was changed while it was being sent"),
            ("[gpudt 0]", "MPI_Irecv,", "was freed before the operation was over"),
            ("[gpudt 1]", "MPI_Irecv,", "neither GPU memory nor the host's"),
        )
        run = Run("mistakes", "GPUDT_CHECK=1", "GPUDT_ORDER=none")
        self.assert_right(run)
        for words in found:
            self.assertEqual(len(run.lines(*words, "called at", "messages+0x")), 1, run.text)
        self.assertEqual(len(run.said), len(found), run.text)
        self.assertEqual(Run("mistakes").said, [])
        ordered = Run("mistakes", "GPUDT_CHECK=1")
        self.assertEqual(len(ordered.said), len(found) - 1, ordered.text)
        self.assertEqual(ordered.lines("was not ready"), [], ordered.text)

    def test_check_of_a_right_program(self):
        for mode in ("device", "host"):
            run = Run(mode, "GPUDT_CHECK=1")
            self.assert_right(run)
            self.assertEqual(run.said, [], run.text)

    def test_fatal_errors_end_the_program(self):
        run = Run("fatal")
        self.assertNotEqual(run.code, 0, run.text)
        self.assertEqual(run.results, [], run.text)

    def test_what_is_under_way_at_finalize_arrives(self):
        for settings in ((), ("GPUDT_SIM_DELAY_US=2000",), ("GPUDT_REPORT=1",), ("GPUDT_PROTOCOL=pipelined",)):
            with self.subTest(settings):
                run = Run("leave", *settings)
                self.assertEqual(run.code, 0, run.text)
                left = [f"rank {rank}: left {tag}: right" for rank in range(RANKS) for tag in (2, 3)]
                self.assertEqual(run.results, sorted(ALL_RIGHT + left), run.text)

    def test_receive_that_nothing_comes_to(self):
        """Of host buffers MPI_Finalize says nothing, whatever is still pending."""
        run = Run("unmatched")
        self.assert_right(run)
        self.assertEqual(run.said, [], run.text)

    def test_shared_broadcasts(self):
        """A long broadcast is divided among the GPUs that receive it, from the second call of its kind on."""
        case = "long broadcasts repeated with the same buffers and with others"
        run = Run(case, "GPUDT_SIM_DEVICES=3", "GPUDT_TRACE=1", ranks=3, program=self.collective_tests)
        self.assertEqual(run.code, 0, run.text)
        # By two of three processes in 14 calls: of six times three calls with aligned addresses, four are the first.
        self.assertEqual(len(run.lines("Bcast", "a part of the block")), 2 * 14, run.text)

    def test_abnormal_ends_leave_nothing(self):
        """Shared memory is gone, however a job has ended."""
        for mode in ("abort", "exit", "killed"):
            with self.subTest(mode):
                run = Run(mode)
                self.assertNotEqual(run.code, 0, run.text)
                names = set(re.findall(r"shared: (/dev/shm/\S+)", run.text))
                self.assertTrue(names, run.text)
                self.assertEqual([name for name in names if pathlib.Path(name).exists()], [])

    def test_forward(self):
        """A CUDA-aware MPI has contiguous device buffers as they are, and others packed into device memory, where there
        can be no peer transfers."""
        run = Run("device", "GPUDT_MPI_CUDA_AWARE=1", "GPUDT_SIM_HOST_ACCESS=1", "GPUDT_REPORT=1", without=1)
        self.assert_right(run)
        self.assertTrue(run.lines("direct", "contiguous"), run.text)
        self.assertTrue(run.lines("device staging", "strided"), run.text)
        self.assertEqual(run.lines("mapped staging"), [], run.text)

    def test_forward_refused(self):
        run = Run("device", "GPUDT_MPI_CUDA_AWARE=0", "GPUDT_SIM_HOST_ACCESS=1", "GPUDT_REPORT=1")
        self.assert_right(run)
        self.assertEqual(run.lines("direct", "contiguous"), [], run.text)


def run_cases(case):
    """Runs all tests of a class, says how many passed, and ends the program."""
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


def main():
    Run.launcher, Run.library, Run.sim, Run.program, Environment.late_events, Environment.collective_tests = sys.argv[1:7]
    run_cases(Environment)


if __name__ == "__main__":
    main()
