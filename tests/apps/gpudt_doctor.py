#!/usr/bin/env python3
"""Tests of scripts/gpudt-doctor: things are broken on purpose, and it names each with the remedy.

usage: gpudt_doctor.py GPUDT-DOCTOR LIBGPUDT-PMPI.SO BUILD MPIRUN PINGPONG|none CC

The scripts are installed to a prefix of their own, with stubs for builds, launchers, MPI libraries and the CUDA driver; a
folder stands for the root of the file system. Messages are sent with the real library and program, too.
"""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import unittest

from gpudt_run import Installed, cases_of

DRIVER = """#include <string.h>
int cuInit(unsigned flags) { return flags + ERROR; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGetName(char* name, int length, int gpu) { strncpy(name, "Stub GPU", length); return gpu < 0; }
int cuDeviceGetAttribute(int* value, int which, int gpu) { *value = MODE; return which != 20 || gpu < 0; }
int cuDeviceCanAccessPeer(int* yes, int gpu, int peer) { *yes = PEERS; return gpu == peer; }
"""
MPI = """#include <string.h>
int MPI_Init(void) { return 0; }
int MPIX_Query_cuda_support(void) { return AWARE; }
int MPI_Get_library_version(char* text, int* length) { strcpy(text, VERSION ", package"); *length = strlen(text); return 0; }
"""
# What gpudt-pingpong writes to the file that --json names.
ROWS = '{"rows": [{"layout": "contiguous", "bytes": 1024, "median_us": 5.0, "verified": VERIFIED}]}'


class GpudtDoctor(Installed):
    real_build = pingpong = sim = ""
    with_real_mpi = ("test_all_variables", "test_healthy", "test_messages", "test_messages_that_cannot_be_fetched",
                     "test_placement")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()  # all builds are stubs
        cls.sim = os.path.join(os.path.dirname(os.path.realpath(cls.library)), "libgpudt-sim.so")
        os.symlink(cls.sim, cls.prefix / "lib" / "libgpudt-sim.so")
        with cls.path_of("mpich").open("ab") as file:
            file.write(b"GPUDT_DISABLE\0cuPointerGetAttributes\0")  # as a build with CUDA has
        nvcc = '#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4"\n'
        cls.write(cls.launchers / "nvcc", nvcc)

    def setUp(self):
        super().setUp()
        self.root = self.work / "root"
        (self.root / "dev" / "shm").mkdir(parents=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPUDT_", "LD_"))}
        self.environment.update(PATH=f"{self.launchers}:{os.environ['PATH']}", HOME=str(self.work))

    def doctor(self, *options, prefix=None, **others):
        command = [(prefix or self.prefix) / "bin" / "gpudt-doctor", "--json", "--root", self.root, *options]
        done = subprocess.run(command, env=self.environment, cwd=self.work, capture_output=True, text=True, check=False,
                              timeout=200, **others)
        said = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1 if said["state"] == "wrong" else 0, done.stderr)
        for finding in said["findings"]:
            self.assertTrue(finding["state"] == "ok" or finding["remedy"], finding)
        return said

    def named(self, state, name, text, remedy, *options, **others):
        """It says just this of `name`, and nothing else is wrong."""
        said = self.doctor("--no-messages", *options, **others)
        found = [one for one in said["findings"] if one["name"] == name and one["state"] != "ok"]
        self.assertEqual([one["state"] for one in found], [state], said)
        self.assertIn(text, found[0]["text"])
        self.assertIn(remedy, found[0]["remedy"])
        others = [one for one in said["findings"] if one["state"] == "wrong" and one != found[0]]
        self.assertEqual(others, [])
        return said

    def file(self, name):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def driver(self, error=0, version=12080, mode=0, peers=1):
        """Programs over MPICH, whose build is one with CUDA here, find this driver."""
        self.compile("libcuda.so.1", "-shared", "-fPIC", f"-DERROR={error}", f"-DVERSION={version}", f"-DMODE={mode}",
                     f"-DPEERS={peers}", text=DRIVER)
        self.environment["LD_LIBRARY_PATH"] = str(self.work)
        return ("--launcher", "mpiexec.hydra")

    # --- nothing is wrong --------------------------------------------------------------------------------------------

    def test_healthy(self):
        said = self.doctor("--no-messages", "--sim", "--launcher", "srun")
        self.assertEqual([one for one in said["findings"] if one["state"] == "wrong"], [])
        self.assertEqual(said["messages"], [])

    def test_healthy_gpus(self):
        said = self.doctor("--no-messages", *self.driver())
        by_name = {one["name"]: one for one in said["findings"]}
        self.assertEqual([by_name[name]["state"] for name in ("driver", "peer access")], ["ok", "ok"], said)
        self.assertIn("for CUDA 12.8, 2 x Stub GPU", by_name["driver"]["text"])

    def test_text(self):
        """Without --json: a line for each finding, the remedy below it, and a line at the end."""
        shutil.rmtree(self.root / "dev" / "shm")
        command = [self.prefix / "bin" / "gpudt-doctor", "--no-messages", "--sim", "--root", self.root]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
        self.assertRegex(done.stdout, r"(?m)^wrong    /dev/shm: it is not there.*\n +-> mount -t tmpfs")
        self.assertRegex(done.stdout, r"\n\d+ ok, \d+ warnings, 1 wrong\n$")

    # --- the installation and MPI ------------------------------------------------------------------------------------

    def test_no_library(self):
        alone = self.work / "alone"
        self.install(alone)
        said = self.doctor("--no-messages", "--sim", prefix=alone)
        wrong = {one["name"]: one for one in said["findings"] if one["state"] == "wrong"}
        self.assertIn("there is no libgpudt-pmpi.so", wrong["gpudt"]["text"])
        self.assertIn("meson setup", wrong["gpudt"]["remedy"])

    def test_library_that_is_none(self):
        path = self.write(self.work / "libgpudt-pmpi.so", "something else")
        said = self.doctor("--no-messages", "--sim", "--library", path)
        self.assertIn("is no libgpudt-pmpi.so", said["findings"][0]["text"])

    def test_library_whose_mpi_has_gone(self):
        self.compile("libgone.so", "-shared", "-fPIC", text="int gone(void) { return 0; }\n")
        self.compile("libgpudt-pmpi.so", "-shared", "-fPIC", "./libgone.so", "-Wl,--no-as-needed",
                     text='int gone(void); const char* build(void) { return "gpudt-build-for:mpich" + gone(); }\n')
        (self.work / "libgone.so").unlink()
        said = self.doctor("--no-messages", "--sim", "--launcher", "srun", "--library", self.work / "libgpudt-pmpi.so")
        self.assertIn("libgone.so not found", said["findings"][0]["text"])
        self.assertIn("LD_LIBRARY_PATH", said["findings"][0]["remedy"])

    def test_no_simulated_device(self):
        library = self.work / "lib" / "gpudt" / "openmpi4" / "libgpudt-pmpi.so"
        library.parent.mkdir(parents=True)
        shutil.copy(self.path_of("openmpi5"), library)
        self.named("wrong", "simulated device", "libgpudt-sim.so is not where", "Install or build", "--sim",
                   "--library", library,
                   "--launcher", "mpiexec")

    def test_launchers(self):
        self.named("wrong", "launcher", "no-mpirun is no launcher", "mpirun", "--sim", "--launcher", "no-mpirun")
        self.named("wrong", "launcher", "mpirun-odd is a launcher that", "--launcher", "--sim", "--launcher", "mpirun-odd")
        self.named("wrong", "launcher", "mpirun.gone is not in PATH", "Install it", "--sim", "--launcher", "mpirun.gone")

    def test_no_build_for_the_mpi(self):
        self.named("wrong", "MPI", "no gpudt is built for MPICH", "-Dmpi=MPICC", "--launcher", "mpiexec.hydra", "--library",
                   self.path_of("openmpi5"))

    def test_root(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        self.environment.pop("OMPI_ALLOW_RUN_AS_ROOT", None)
        self.named("warning", "user", "refuses", "OMPI_ALLOW_RUN_AS_ROOT=1", "--sim")

    # --- the program -------------------------------------------------------------------------------------------------

    def test_programs(self):
        static = self.compile("static", "-static")
        self.named("wrong", "program", "linked statically", "Link it to the shared libraries", "--sim", static)
        self.named("wrong", "program", "is not an MPI program", "--library", "--sim", "ls")
        self.named("wrong", "program", "there is no program", "Name a program", "--sim", "./gone")
        setuid = self.program_over("libmpi.so.40")
        setuid.chmod(0o4755)
        self.named("wrong", "program", "setuid", "Run a copy", "--sim", setuid)

    def test_functions_by_handle(self):
        """Of an MPI library that the program, or a script, loads by itself."""
        load = ("void* dlopen(const char*, int); void* dlsym(void*, const char*); int MPI_Init(void);\n"
                'int main(void) { return dlsym(dlopen("libmpi.so.40", 1), "MPI_Init") == 0 || MPI_Init(); }\n')
        self.over_mpi("Open MPI v4.1.4")
        app = self.compile("loads", "./libmpi.so.40", f"-Wl,-rpath,{self.work}", "-ldl", text=load)
        self.named("warning", "dlsym", "loads takes MPI's functions", "troubleshooting.md", "--sim", app)
        script = self.write(self.work / "script.py", "import numba_mpi\n")
        self.named("warning", "dlsym", "script.py takes", "troubleshooting.md", "--sim", "python3", script)
        julia = self.compile("julia", "-ldl", text="int main(void) { return 0; }\n")
        self.named("wrong", "program", "julia takes MPI's functions", "troubleshooting.md", "--sim", julia)

    def test_launcher_of_another_mpi(self):
        app = self.program_over("libmpich.so.12")
        said = self.doctor("--no-messages", "--sim", "--launcher", "mpirun", app)
        (found,) = [one for one in said["findings"] if one["name"] == "launcher" and one["state"] == "wrong"]
        self.assertIn("each process may be alone", found["text"])

    def over_mpi(self, version, aware=0):
        self.compile("libmpi.so.40", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.40", f'-DVERSION="{version}"',
                     f"-DAWARE={aware}",
                     text=MPI)
        return self.compile("app", "./libmpi.so.40", f"-Wl,-rpath,{self.work}",
                            text="int MPI_Init(void); int main(void) { return MPI_Init(); }\n")

    def test_cuda_aware_mpi(self):
        said = self.doctor("--no-messages", "--sim", self.over_mpi("Open MPI v4.1.4", aware=1))
        (found,) = [one for one in said["findings"] if one["name"] == "CUDA-aware MPI"]
        self.assertEqual((found["state"], "takes GPU pointers: " in found["text"]), ("ok", True), found)

    def test_old_mpi(self):
        self.named("warning", "MPI", "Open MPI v3.1.4 is older", "4.1", "--sim", self.over_mpi("Open MPI v3.1.4"))

    # --- the environment ---------------------------------------------------------------------------------------------

    def test_preloaded(self):
        sim, options = str(self.prefix / "lib" / "libgpudt-sim.so"), ("--sim", "--launcher", "srun")
        for value, text, remedy in ((sim, "without libgpudt-pmpi.so", "gpudt-run --sim"), ("/gone.so", "is not there", "unset"),
                                    (str(self.path_of("mpi-abi")), "is for the MPI-5 ABI, not", "gpudt-run")):
            self.environment["LD_PRELOAD"] = value
            self.named("wrong", "LD_PRELOAD", text, remedy, *options, self.over_mpi("Open MPI v4.1.4"))

    def test_tool_behind_gpudt(self):
        tool = self.compile("libtool.so", "-shared", "-fPIC", text="void* dlsym(void*, const char*); "
                            'void* MPI_Init(void) { return dlsym((void*)-1, "MPI_Init"); }\n')
        self.environment["LD_PRELOAD"] = f"/gone/libgpudt-pmpi.so:{tool}"
        said = self.doctor("--no-messages", "--sim")
        found = [one for one in said["findings"] if one["name"] == "LD_PRELOAD" and "libtool.so" in one["text"]]
        self.assertEqual([one["state"] for one in found], ["warning"], said)
        self.environment["LD_PRELOAD"] = str(tool)
        said = self.doctor("--no-messages", "--sim")
        self.assertEqual([one["state"] for one in said["findings"] if one["name"] == "LD_PRELOAD"], ["ok"], said)

    def test_variables(self):
        self.environment["GPUDT_DISABLE"] = "1"
        self.named("warning", "GPUDT_DISABLE", "go straight to MPI", "Unset", "--launcher", "mpiexec.hydra")
        self.environment = {**self.environment, "GPUDT_DISABLE": "0", "GPUDT_ODER": "none"}
        self.named("warning", "GPUDT_ODER", "no variable of gpudt", "Correct", "--launcher", "mpiexec.hydra")

    def test_all_variables(self):
        """It knows those that the page of variables names."""
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs/variables.md").read_text(encoding="utf-8")
        names = set(re.findall("`(GPUDT_[A-Z_]+)`", page))
        self.assertGreater(len(names), 15)
        self.environment.update(dict.fromkeys(names, "0"))
        said = self.doctor("--no-messages", "--sim", "--library", self.library, "--launcher", self.mpirun)
        self.assertEqual([one for one in said["findings"] if "no variable of gpudt" in one["text"]], [])

    # --- GPUs --------------------------------------------------------------------------------------------------------

    def test_driver(self):
        self.named("wrong", "driver", "CUDA error 803", "Restart", *self.driver(error=803))
        self.named("wrong", "driver", "CUDA error 100", "CUDA_VISIBLE_DEVICES", *self.driver(error=100))
        self.named("wrong", "driver", "for CUDA 11.4", "Update", *self.driver(version=11040))

    def test_driver_that_cannot_be_loaded(self):
        self.file("dev/nvidiactl")
        self.write(self.work / "libcuda.so.1", "no library")
        self.environment["LD_LIBRARY_PATH"] = str(self.work)
        self.named("wrong", "driver", "libcuda.so.1 cannot be used", "container", "--launcher", "srun")

    def test_built_without_cuda(self):
        self.driver()
        self.named("wrong", "toolkit", "built without CUDA", "nvcc", "--launcher", "mpiexec", "--library",
                   self.path_of("openmpi5"))

    def test_newer_toolkit(self):
        nvcc = self.write(self.work / "nvcc", '#!/bin/sh\necho "Cuda compilation tools, release 13.0"\n')
        self.environment["PATH"] = f"{nvcc.parent}:{self.environment['PATH']}"
        self.named("warning", "toolkit", "CUDA 13, newer than the driver", "Update the driver", *self.driver())

    def test_gpus(self):
        for mode, state, remedy in ((3, "warning", "-c DEFAULT"), (2, "wrong", "-c DEFAULT")):
            said = self.doctor("--no-messages", *self.driver(mode=mode))
            found = [one for one in said["findings"] if one["name"] in ("GPU 0", "GPU 1")]
            self.assertEqual([one["state"] for one in found], [state, state], said)
            self.assertIn(remedy, found[0]["remedy"])
        self.named("warning", "peer access", "not between GPUs 0 and 1", "topo -m", *self.driver(peers=0))

    def test_tuning(self):
        self.named("warning", "tuning", "stand in", "gpudt-tune", *self.driver())
        path = self.work / ".cache" / "gpudt" / "gpu--cpu.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"gpudt_tuning": ', encoding="utf-8")
        self.environment.pop("XDG_CACHE_HOME", None)
        self.named("warning", "tuning", "gpu--cpu.json cannot be read", "gpudt-tune", "--sim")
        self.environment["GPUDT_TUNING"] = "/gone.json"
        self.named("warning", "tuning", "/gone.json cannot be read", "gpudt-tune", "--sim")

    # --- the system --------------------------------------------------------------------------------------------------

    def test_infiniband(self):
        self.file("sys/class/infiniband/mlx5_0")
        self.named("warning", "GPUDirect RDMA", "nvidia_peermem is not loaded", "modprobe", *self.driver())
        self.named("warning", "locked memory", "limited to 64 KiB", "ulimit -l unlimited", "--sim",
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)))

    def test_shared_memory(self):
        shutil.rmtree(self.root / "dev" / "shm")
        self.named("wrong", "/dev/shm", "is not there", "mount", "--sim")

    def write_root(self, name, text):
        self.file(name)
        (self.root / name).write_text(text, encoding="utf-8")

    def test_yama(self):
        for scope, state in (("0", "ok"), ("1", "ok"), ("2", "warning"), ("3", "warning")):
            self.write_root("proc/sys/kernel/yama/ptrace_scope", f"{scope}\n")
            said = self.doctor("--no-messages", "--sim")
            self.assertEqual([one["state"] for one in said["findings"] if one["name"] == "yama"], [state], scope)
        self.named("warning", "yama", "ptrace_scope is 3", "reboot", "--sim")

    # --- messages ----------------------------------------------------------------------------------------------------

    def prefix_with(self, build, library):
        """One of its own, with this build alone."""
        prefix = self.work / "prefix"
        self.install(prefix)
        folder = prefix / "lib" / "gpudt" / build
        folder.mkdir(parents=True)
        os.symlink(library, folder / "libgpudt-pmpi.so")
        os.symlink(self.sim, prefix / "lib" / "libgpudt-sim.so")
        return prefix

    def with_pingpong(self, text, options=()):
        """What is said of messages, with this for mpirun and gpudt-pingpong."""
        prefix = self.prefix_with("mpich", self.path_of("mpich"))
        script = "#!/bin/sh\nif [ \"$*\" = --version ]; then echo HYDRA; exit; fi\nfor file; do :; done\n" + text
        self.write(self.work / "mpirun", script)
        self.write(prefix / "bin" / "gpudt-pingpong", "#!/bin/sh\n")
        self.environment["PATH"] = f"{self.work}:{self.environment['PATH']}"
        said = self.doctor("--sim", *options, prefix=prefix)
        found = [one for one in said["findings"] if one["name"].startswith(("host", "device", "CUDA IPC", "binding"))]
        self.assertGreaterEqual(len(found), 4, said)
        return found

    def test_messages_that_arrive(self):
        rows = ROWS.replace("VERIFIED", "true")
        for one in self.with_pingpong(f"echo '{rows}' > $file\n"):
            self.assertEqual((one["state"], one["text"]), ("ok", "verified: 1 KiB 5.0 us"))

    def test_report_of_messages(self):
        """What the report says of the ways of messages, and of how the ranks were started: once, whatever runs say it."""
        hints = [{"about": "binding", "what": "rank 1 is far", "remedy": "Bind it"}, {"about": "", "what": "late", "remedy": "-"}]
        for offered, shared, remote, state in ((8, 0, 0, "ok"), (8, 3, 0, "warning"), (8, 0, 8, None)):
            messages = {"offered": offered, "through_shared_memory": shared, "in_fragments": remote}
            report = json.dumps({"messages": messages, "hints": hints})
            said = self.with_pingpong(f"echo '{ROWS.replace('VERIFIED', 'true')}' > $file\n"
                                      f"case $GPUDT_REPORT in *.json) echo '{report}' > $GPUDT_REPORT ;; esac\n")
            states = [one["state"] for one in said if one["name"] == "CUDA IPC"]
            self.assertEqual(states, [] if state is None else [state], said)
            (found,) = [one for one in said if one["name"] == "binding"]
            self.assertEqual((found["state"], found["text"], found["remedy"]), ("warning", "rank 1 is far", "Bind it"))
            shutil.rmtree(self.work / "prefix")

    def test_wrong_data(self):
        rows = ROWS.replace("VERIFIED", "false")
        for one in self.with_pingpong(f"echo '{rows}' > $file\nexit 1\n"):
            self.assertEqual((one["state"], one["text"]), ("wrong", "data did not arrive intact"))
            self.assertIn("GPUDT_PROTOCOL=staging", one["remedy"])

    def test_messages_without_end(self):
        for one in self.with_pingpong("exec sleep 30\n", ("--seconds", "0.5")):
            self.assertEqual(one["state"], "wrong")
            self.assertIn("no end after 0.5 s", one["text"])
            self.assertIn("GPUDT_TRACE=1", one["remedy"])

    def test_messages_that_cannot_be_sent(self):
        for one in self.with_pingpong("echo 'no network' >&2\nexit 3\n"):
            self.assertEqual((one["state"], one["text"]), ("wrong", "status 3: no network"))

    def test_warnings_of_the_library(self):
        rows = ROWS.replace("VERIFIED", "true")
        said = self.with_pingpong(f"echo '{rows}' > $file\necho '[gpudt 1] warning: something' >&2\n")
        self.assertEqual({one["text"] for one in said if one["state"] == "warning"}, {"gpudt says: something"})

    def test_no_pingpong(self):
        said = self.doctor("--sim", "--launcher", "mpiexec.hydra")
        (found,) = [one for one in said["findings"] if one["name"] == "messages"]
        self.assertEqual(found["state"], "warning")
        self.assertIn("-Dprograms=true", found["remedy"])

    def real(self):
        """Messages over the MPI of this build, on the simulated device."""
        if self.pingpong == "none":
            self.skipTest("the build has no gpudt-pingpong")
        prefix = self.prefix_with(self.real_build, self.library)
        os.symlink(self.pingpong, prefix / "bin" / "gpudt-pingpong")
        self.environment["OMPI_MCA_pml"] = "ob1"
        said = self.doctor("--sim", "--launcher", self.mpirun, prefix=prefix)
        return said, {one["name"]: one for one in said["findings"]}

    def test_messages(self):
        said, by_name = self.real()
        self.assertTrue(all(row["verified"] for row in said["messages"]), said)
        self.assertNotEqual(said["state"], "wrong", said)
        self.assertEqual(by_name["CUDA IPC"]["state"], "ok", said)
        runs = 6 if self.real_build.startswith("openmpi") else 5  # without fragments
        self.assertEqual(len(said["messages"]), runs * 4, said)

    def test_placement(self):
        """What the report finds in how ranks are started is said once; without that, nothing is."""
        self.environment.update(GPUDT_TEST_ROOT=str(self.root), GPUDT_SIM_DEVICES="1")
        self.environment.pop("CUDA_MPS_PIPE_DIRECTORY", None)
        self.write_root("sys/devices/system/node/node0/cpulist", "0-8191\n")
        for node, mps, wanted in ((1, False, ["MPS", "binding"]), (0, True, [])):
            self.write_root("sys/bus/pci/devices/0000:10:00.0/numa_node", f"{node}\n")
            if mps:
                self.file("tmp/nvidia-mps/control")
            said, _ = self.real()
            found = [one for one in said["findings"] if one["name"] in ("MPS", "binding", "idle GPUs", "containers")]
            self.assertEqual([one["name"] for one in found], wanted, said)
            self.assertEqual({one["state"] for one in found}, {"warning"} if wanted else set())
            shutil.rmtree(self.work / "prefix")

    def test_messages_that_cannot_be_fetched(self):
        """Where GPUs do not reach each other they go through shared memory, and are right."""
        self.environment["GPUDT_SIM_PEERS"] = "0"
        said, by_name = self.real()
        self.assertEqual(by_name["CUDA IPC"]["state"], "warning", said)
        self.assertTrue(all(row["verified"] for row in said["messages"]), said)


def main():
    GpudtDoctor.real_build, GpudtDoctor.cc = sys.argv[3], sys.argv[6]
    GpudtDoctor.pingpong = "none" if sys.argv[5] == "none" else os.path.abspath(sys.argv[5])
    GpudtDoctor.script, GpudtDoctor.library, GpudtDoctor.mpirun = (os.path.abspath(sys.argv[i]) for i in (1, 2, 4))
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    result = unittest.TextTestRunner(verbosity=2).run(cases_of(GpudtDoctor, GpudtDoctor.real_build))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
