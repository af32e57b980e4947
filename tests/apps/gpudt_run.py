#!/usr/bin/env python3
"""Tests of scripts/gpudt-run: which library it preloads, how it passes the variables on, what it says of commands that
cannot work.

usage: gpudt_run.py GPUDT-RUN LIBGPUDT-PMPI.SO BUILD MPIRUN PROGRAM LINKED-PROGRAM CC

PROGRAM and LINKED-PROGRAM are halo-2d and the same linked to the library, of the MPI of BUILD. It is copied to a prefix
of its own, with stubs for other builds; launchers that are not here are scripts that print what they are given.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

LAUNCHERS = {"mpirun": "mpirun (Open MPI) 4.1.4", "mpiexec": "mpiexec (Open MPI) 5.0.3", "mpiexec.hydra": "HYDRA build details:",
             "srun": "slurm 23.02", "mpirun-odd": "some other launcher"}
SCRIPTS = {"gpudt-run": "bin", "gpudt-doctor": "bin", "gpudt_programs.py": "share/gpudt", "gpudt_checks.py": "share/gpudt"}


class Installed(unittest.TestCase):
    """A prefix with gpudt's scripts and its build, and stubs for others."""

    script = library = build = mpirun = cc = ""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.prefix = cls.folder / "prefix"
        cls.install(cls.prefix)
        for build in ("openmpi4", "openmpi5", "mpich", "mpi-abi"):
            cls.make_build(build)
        cls.launchers = cls.folder / "launchers"
        cls.launchers.mkdir()
        # In the place of a script that looks for it (pyenv's), which takes longer than what is tested.
        (cls.launchers / "python3").symlink_to(os.path.realpath(sys.executable))
        for name, version in LAUNCHERS.items():
            text = f'#!/bin/sh\nif [ "$*" = --version ]; then echo "{version}"; else printf "%s\\n" {name} "$@"; fi\n'
            cls.write(cls.launchers / name, text)

    @classmethod
    def install(cls, prefix):
        """The script and what it imports, without any library."""
        for name, folder in SCRIPTS.items():
            (prefix / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(pathlib.Path(cls.script).parent / name, prefix / folder)
        return prefix / "bin" / "gpudt-run"

    @classmethod
    def make_build(cls, build):
        path = cls.path_of(build)
        path.parent.mkdir(parents=True)
        if build == cls.build:
            path.symlink_to(cls.library)
        else:
            path.write_bytes(b"\0gpudt-build-for:" + build.encode() + b"\0")

    @classmethod
    def path_of(cls, build):
        return cls.prefix / "lib" / "gpudt" / build / "libgpudt-pmpi.so"

    @staticmethod
    def write(path, text):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)

    def compile(self, name, *flags, text="int main(void) { return 0; }\n"):
        (self.work / f"{name}.c").write_text(text, encoding="utf-8")
        subprocess.run([self.cc, f"{name}.c", "-o", name, *flags], cwd=self.work, check=True)
        return self.work / name

    def program_over(self, mpi, soname=None, version=None):
        """A program linked to a library of that name, or to a link to it that is called `soname`. The library tells its
        version, if one is given."""
        answer = (f'int MPI_Get_library_version(char* text, int* length) {{ *length = {len(version or "")}; '
                  f'__builtin_strcpy(text, "{version}"); return 0; }}\n') if version else ""
        self.compile(mpi, "-shared", "-fPIC", f"-Wl,-soname,{soname or mpi}", text="int MPI_Init(void) { return 0; }\n" + answer)
        if soname:
            (self.work / soname).symlink_to(mpi)
        return self.compile("app", f"./{mpi}", f"-Wl,-rpath,{self.work}",
                            text="int MPI_Init(void); int main(void) { return MPI_Init(); }\n")


def cases_of(tests, build):
    """All of them over Open MPI; over other MPI libraries, for which the others do the same, those with the real one."""
    loader = unittest.defaultTestLoader
    if build.startswith("openmpi"):
        return loader.loadTestsFromTestCase(tests)
    return unittest.TestSuite(tests(name) for name in loader.getTestCaseNames(tests) if name in tests.with_real_mpi)


class GpudtRun(Installed):
    with_real_mpi = ("test_program_on_the_simulated_device", "test_dry_run", "test_program_linked_to_the_library",
                     "test_builds")
    program = linked = ""

    def run_it(self, *command, environment=(), script=None):
        everything = {**os.environ, "PATH": f"{self.launchers}:{os.environ['PATH']}", **dict(environment)}
        everything.pop("SLURM_EXPORT_ENV", None)
        return subprocess.run([script or self.prefix / "bin" / "gpudt-run", *command], env=everything, cwd=self.work,
                              capture_output=True, text=True, check=False, timeout=150)

    def started(self, *command, **others):
        """What a launcher of ours was started with."""
        done = self.run_it(*command, **others)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stdout.splitlines()

    def refused(self, *command, **others):
        done = self.run_it(*command, **others)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        (line,) = done.stderr.splitlines()
        self.assertTrue(line.startswith("gpudt-run: "), line)
        return line

    # --- what is started ---------------------------------------------------------------------------------------------

    def test_program_on_the_simulated_device(self):
        """Really, by the MPI's own mpirun."""
        oversubscribe = ["--oversubscribe"] if self.build.startswith("openmpi") else []
        done = self.run_it("--sim", "--report", self.mpirun, *oversubscribe, "-n", "2", self.program)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("0 wrong points", done.stdout)
        self.assertEqual(done.stderr.count("gpudt report: 2 of 2 ranks, device: sim"), 1, done.stderr)
        self.assertEqual(done.stderr.count("gpudt-run: "), 1, done.stderr)

    def test_two_programs_of_one_job(self):
        if not self.build.startswith("openmpi"):
            self.skipTest("the same with any launcher")
        done = self.run_it("--sim", "--report", self.mpirun, "--oversubscribe", "-n", "1", self.program, ":", "-n", "1",
                           self.program)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("gpudt report: 2 of 2 ranks", done.stderr)

    def test_dry_run(self):
        done = self.run_it("--dry-run", "mpirun", "-np", "4", self.program, "argument")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        (line,) = done.stdout.splitlines()
        self.assertIn(f"LD_PRELOAD={self.path_of(self.build)}", line)
        self.assertTrue(line.endswith(f" -np 4 {self.program} argument"), line)

    def test_launchers(self):
        over_mpich = self.program_over("libmpich.so.12").rename(self.work / "over_mpich")
        app = self.program_over("libmpi.so.40")
        library = f"LD_PRELOAD={self.path_of('openmpi4')}"
        mpich = str(self.path_of("mpich"))
        for command, wanted in (
            (["mpirun", "-np", "2", app, "-x"], ["mpirun", "-x", library, "-np", "2", str(app), "-x"]),
            (["mpirun", "--mca", "pml", "ob1", "-x", "ls", "env", "A=1", app],
             ["mpirun", "-x", library, "--mca", "pml", "ob1", "-x", "ls", "env", "A=1", str(app)]),
            (["mpiexec.hydra", "-n", "2", "-genv", "ls", "ls", over_mpich],
             ["mpiexec.hydra", "-genv", "LD_PRELOAD", mpich, "-n", "2", "-genv", "ls", "ls", str(over_mpich)]),
            (["srun", "-n", "2", "-J", "ls", app], ["srun", f"--export=ALL,{library}", "-n", "2", "-J", "ls", str(app)]),
            (["srun", "--export=A,B=1", app], ["srun", f"--export=A,B=1,{library}", str(app)]),
            (["srun", "--export", "NONE", app], ["srun", f"--export={library}", str(app)]),
        ):
            with self.subTest(command=command):
                self.assertEqual(self.started(*command), wanted)

    def test_without_a_launcher(self):
        app = self.program_over("libmpi.so.40")
        shown = self.write(self.work / "show", '#!/bin/sh\necho "$LD_PRELOAD $GPUDT_CHECK"\n')
        done = self.run_it("--check", shown, app)  # as nsys and gdb start programs
        self.assertTrue(done.stdout.endswith("libgpudt-pmpi.so 1\n"), done.stdout + done.stderr)

    def test_options_and_variables(self):
        app = self.program_over("libmpi.so.40")
        words = self.started("--report", "--trace", "--check", "--timeline", "t/points", "mpirun", app,
                             environment={"GPUDT_WAY": "kernel", "GPUDT_TRACE": "0"})
        exported = words[2:words.index(str(app)):2]
        self.assertEqual(sorted(exported)[:-1], ["GPUDT_CHECK=1", "GPUDT_REPORT=1", f"GPUDT_TIMELINE={self.work}/t/points",
                                                 "GPUDT_TRACE=1", "GPUDT_WAY=kernel"])

    def test_file_of_the_report(self):
        """Only what ends in .json is one: else the command follows."""
        app = self.program_over("libmpi.so.40")
        for words, value in ((("--report",), "1"), (("--report", "run.json"), f"{self.work}/run.json"),
                             (("--timeline", "points", "--report=/a/run.json"), "/a/run.json")):
            with self.subTest(words):
                self.assertIn(f"GPUDT_REPORT={value}", self.started(*words, "mpirun", app, "--report"))
        wrong = self.run_it("--report=run.txt", "mpirun", app)
        self.assertEqual(wrong.returncode, 2, wrong.stderr)

    def test_what_is_preloaded_already_comes_first(self):
        app = self.program_over("libmpi.so.40")
        words = self.started("mpirun", app, environment={"LD_PRELOAD": "libm.so.6"})
        self.assertEqual(words[2], f"LD_PRELOAD=libm.so.6:{self.path_of('openmpi4')}")

    def test_builds(self):
        """The library is that for the program's MPI."""
        for mpi, soname, version, build in (
            ("libmpi.so.40.30.4", "libmpi.so.40", None, "openmpi4"), ("libmpi.so.40.40.5", "libmpi.so.40", None, "openmpi5"),
            ("libmpi.so.40", None, "Open MPI v5.0.11, package: wheel", "openmpi5"),  # PyPI's: a file without a version
            ("libmpi.so.40", None, "Open MPI v4.1.6, package: wheel", "openmpi4"),
            ("libmpi.so.12", None, None, "mpich"), ("libmpi_abi.so.0", None, None, "mpi-abi"),
        ):
            with self.subTest(mpi=mpi, version=version):
                app = self.program_over(mpi, soname, version)
                self.assertIn(f"LD_PRELOAD={self.path_of(build)} ", self.run_it("--dry-run", "srun", app).stdout + " ")
                for file in self.work.iterdir():
                    file.unlink()

    def test_library_that_is_named(self):
        words = self.started("--library", self.library, "mpirun", "ls")
        self.assertEqual(words[1:3], ["-x", f"LD_PRELOAD={self.library}"])

    def test_program_linked_to_the_library(self):
        done = self.run_it("--dry-run", "mpirun", self.linked)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("LD_PRELOAD", done.stdout)

    def test_programs_of_the_source_tree(self):
        done = self.run_it("--help", script=self.script)
        self.assertIn("gpudt-run --sim --report mpirun -np 4 ./app", done.stdout)

    # --- Python ------------------------------------------------------------------------------------------------------

    def test_python_has_the_mpi_of_mpi4py(self):
        self.program_over("libmpi.so.12")
        (self.work / "mpi4py").mkdir()
        (self.work / "mpi4py" / "__init__.py").write_text("class rc: pass\n", encoding="utf-8")
        (self.work / "mpi4py" / "MPI.py").write_text(
            f"import ctypes, mpi4py\nassert not mpi4py.rc.initialize\nctypes.CDLL('{self.work}/libmpi.so.12')\n", encoding="utf-8")
        script = self.write(self.work / "script.py", "#!/usr/bin/env python3\n")
        for command in ((sys.executable, "script.py"), ("env", "A=1", sys.executable, script), (script,)):
            with self.subTest(command):
                words = self.started("srun", *command, environment={"PYTHONPATH": str(self.work)})
                self.assertEqual(words[1], f"--export=ALL,LD_PRELOAD={self.path_of('mpich')}")

    def test_python_without_mpi4py_has_that_of_the_launcher(self):
        python = self.write(self.work / "python3", "#!/bin/sh\nexit 1\n")
        for launcher, build in (("mpirun", "openmpi4"), ("mpiexec", "openmpi5")):
            self.assertEqual(self.started(launcher, python)[2], f"LD_PRELOAD={self.path_of(build)}")
        self.assertEqual(self.started("mpiexec.hydra", python)[3], str(self.path_of("mpich")))
        self.assertIn("does not show which MPI", self.refused("srun", python))

    # --- what cannot work --------------------------------------------------------------------------------------------

    def test_static_program(self):
        self.assertIn("linked statically", self.refused("mpirun", self.compile("app", "-static")))

    def test_mpi_linked_statically(self):
        app = self.compile("app", text="int MPI_Init(void) { return 0; } int main(void) { return MPI_Init(); }\n")
        self.assertIn("linked to MPI statically", self.refused("mpirun", app))

    def test_setuid_program(self):
        app = self.program_over("libmpi.so.40")
        app.chmod(0o4755)
        self.assertIn("setuid", self.refused("mpirun", app))

    def test_no_mpi_program(self):
        self.assertIn("is not an MPI program", self.refused("mpirun", "ls"))

    def test_files_that_are_no_programs(self):
        for text in ("", "#!", "#!\n"):
            self.assertIn("does not show which MPI", self.refused("srun", self.write(self.work / "odd", text)), text)
        self.assertIn("no program of 64 bits", self.refused("srun", self.write(self.work / "odd", "\x7fELF")))

    def test_no_program(self):
        for command in (["mpirun", "-np", "2", "./app"], ["./app"], ["mpirun"]):
            self.assertIn("no program to start", self.refused(*command))

    def test_unknown_mpi(self):
        self.assertIn("libmpi.so.1, an MPI that gpudt does not know", self.refused("mpirun", self.program_over("libmpi.so.1")))

    def test_missing_library_of_the_program(self):
        app = self.program_over("libmpi_abi.so.0")
        (self.work / "libmpi_abi.so.0").unlink()
        self.assertIn("libmpi_abi.so.0 not found", self.refused("mpirun", app))

    def test_no_build_for_that_mpi(self):
        app = self.program_over("libmpi.so.12")
        self.assertIn("runs over MPICH, for which no gpudt is installed (builds found: none)",
                      self.refused("srun", app, script=self.install(self.work / "prefix")))

    def test_static_cuda_runtime_on_the_simulated_device(self):
        self.compile("libmpi.so.40", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.40", text="int MPI_Init(void) { return 0; }\n")
        app = self.compile("app", "./libmpi.so.40", f"-Wl,-rpath,{self.work}",
                           text='int MPI_Init(void); const char* driver = "libcuda.so.1"; int main(void) { return MPI_Init(); }\n')
        options = ("--sim", "--library", self.library)
        self.assertIn("CUDA runtime linked statically", self.refused(*options, "mpirun", app))

    def test_other_launcher(self):
        app = self.program_over("libmpi.so.40")
        self.assertIn("does not know", self.refused("mpirun-odd", app))
        done = self.run_it("--dry-run", "mpiexec.hydra", app)
        self.assertIn("WARNING: mpiexec.hydra is that of MPICH", done.stdout)

    def test_preloading_in_the_command(self):
        app = self.program_over("libmpi.so.40")
        for command in (["mpirun", "-x", "LD_PRELOAD=x.so", app], ["srun", "--export=ALL,LD_PRELOAD=x.so", app]):
            self.assertIn("sets LD_PRELOAD itself", self.refused(*command))

    def test_library_with_a_space_in_its_path(self):
        spaced = self.work / "a folder" / "libgpudt-pmpi.so"
        spaced.parent.mkdir()
        spaced.symlink_to(self.library)
        self.assertIn("cannot be preloaded", self.refused("--library", spaced, "mpirun", "ls"))


def main():
    GpudtRun.build, GpudtRun.cc = sys.argv[3], sys.argv[7]
    files = (os.path.abspath(sys.argv[i]) for i in (1, 2, 4, 5, 6))
    GpudtRun.script, GpudtRun.library, GpudtRun.mpirun, GpudtRun.program, GpudtRun.linked = files
    os.environ.pop("LD_LIBRARY_PATH", None)  # Meson names the build folder there
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1",
                      OMPI_MCA_pml="ob1")
    result = unittest.TextTestRunner(verbosity=2).run(cases_of(GpudtRun, GpudtRun.build))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
