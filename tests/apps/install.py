#!/usr/bin/env python3
"""Tests of gpudt as it is installed: a program is built against it by the README's line, by pkg-config, by CMake
and by Meson, and run on the simulated device; so is what a wheel of it installs. And of what `meson setup` reads from the
MPI's compiler wrapper.

usage: install.py MESON BUILD-FOLDER MPICC RUN-MPI.SH SOURCE VERSION EXAMPLES WHEEL.PY CUDA-FLAGS...

CUDA-FLAGS: what the compiler needs for the CUDA runtime, or for the simulated device in its place.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

class Install(unittest.TestCase):
    meson = build = mpicc = run_mpi = source = version = examples = wheel = ""
    cuda = []

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        root = pathlib.Path(cls.folder.name)
        subprocess.run([cls.meson, "install", "-C", cls.build, "--no-rebuild", "--quiet", "--destdir", root / "there"],
                       check=True)
        (pc,) = (root / "there").rglob("gpudt-pmpi.pc")
        cls.libraries = pc.parent.parent
        (header,) = (root / "there").rglob("gpudt.h")
        cls.prefix = header.parent.parent
        # The file names the prefix; here it lies below another folder.
        cls.environment = dict(os.environ, PKG_CONFIG_PATH=str(root / "pkgconfig"))
        (root / "pkgconfig").mkdir()
        for file in pc.parent.iterdir():
            lines = file.read_text(encoding="utf-8").splitlines()
            lines = [f"prefix={cls.prefix}" if line.startswith("prefix=") else line for line in lines]
            (root / "pkgconfig" / file.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        cls.cuda_flags = [flag.replace("LIBDIR", str(cls.libraries)) for flag in cls.cuda]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)

    def run_right(self, program, *options):
        """It finds the library by itself."""
        sim = self.libraries / "libgpudt-sim.so"
        done = subprocess.run([self.run_mpi, "-S", "-n", "2", "-t", "60", "-s", sim, *options, program],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, f"gpudt {self.version}, active 1, 0 wrong\n"), done.stderr)
        self.assertEqual(done.stderr, "")

    def build_app(self, *flags):
        program = self.work / "app"
        done = subprocess.run([self.mpicc, self.source, "-o", program, *flags], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return program

    def linked_to(self, program, library="libgpudt-pmpi"):
        text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        (line,) = [line for line in text.splitlines() if library in line]
        return line.split("=>")[1].split()[0]

    def test_line_of_the_readme(self):
        program = self.build_app(f"-I{self.prefix}/include", f"-L{self.libraries}", f"-Wl,-rpath,{self.libraries}",
                                 "-lgpudt-pmpi", *self.cuda_flags)
        self.assertEqual(self.linked_to(program), f"{self.libraries}/libgpudt-pmpi.so.0")
        self.run_right(program)

    def pkg_config(self, *packages):
        if shutil.which("pkg-config") is None:
            self.skipTest("no pkg-config")
        return subprocess.run(["pkg-config", "--cflags", "--libs", *packages], text=True, capture_output=True, check=True,
                              env=self.environment).stdout.split()

    def test_pkg_config(self):
        program = self.build_app(*self.pkg_config("gpudt-pmpi"), *self.cuda_flags)
        self.assertTrue(self.linked_to(program).startswith(f"{self.libraries}/gpudt/"), self.linked_to(program))
        self.run_right(program)

    def test_without_the_toolkit(self):
        """The simulated device has the CUDA runtime's headers and names."""
        program = self.build_app(*self.pkg_config("gpudt-pmpi", "gpudt-sim"))
        self.assertEqual(self.linked_to(program, "libgpudt-sim"), f"{self.libraries}/libgpudt-sim.so")
        self.run_right(program)

    def build_example(self, project, *commands, **environment):
        """The project's program, with the library linked, and run."""
        shutil.copytree(self.examples, self.work / "examples")
        for command in commands:
            done = subprocess.run(command, cwd=self.work / "examples" / project, env={**self.environment, **environment},
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        program = self.work / "examples" / project / "build" / "halo2d"
        self.assertTrue(self.linked_to(program).startswith(f"{self.libraries}/"), self.linked_to(program))
        done = subprocess.run([self.run_mpi, "-S", "-n", "2", "-t", "60", "-s", self.libraries / "libgpudt-sim.so", program],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "halo2d: 2 x 1 processes, all right\n"), done.stderr)

    def test_cmake(self):
        if shutil.which("cmake") is None:
            self.skipTest("no CMake")
        self.build_example("cmake", ["cmake", "-B", "build", *self.cmake_settings()], ["cmake", "--build", "build"])

    def cmake_settings(self):
        return [f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCUDA_FLAGS={';'.join(self.cuda_flags)}",
                f"-DMPI_C_COMPILER={self.mpicc}"]

    def test_cmake_without_the_toolkit(self):
        if shutil.which("cmake") is None:
            self.skipTest("no CMake")
        self.build_example("cmake", ["cmake", "-B", "build", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                                     f"-DMPI_C_COMPILER={self.mpicc}", "-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON"],
                           ["cmake", "--build", "build"])
        self.assertEqual(self.linked_to(self.work / "examples" / "cmake" / "build" / "halo2d", "libgpudt-sim"),
                         f"{self.libraries}/libgpudt-sim.so")

    def test_cmake_among_several_builds(self):
        """That of the MPI which was found; one that is not there is refused by name."""
        if shutil.which("cmake") is None:
            self.skipTest("no CMake")
        (build,) = (self.libraries / "gpudt").iterdir()
        other = self.libraries / "gpudt" / "another"
        shutil.copytree(build, other, symlinks=True)
        self.addCleanup(shutil.rmtree, other)
        self.build_example("cmake", ["cmake", "-B", "build", *self.cmake_settings()], ["cmake", "--build", "build"])
        self.assertIn(f"/gpudt/{build.name}/", self.linked_to(self.work / "examples" / "cmake" / "build" / "halo2d"))
        example = self.work / "examples" / "cmake" / "CMakeLists.txt"
        text = example.read_text(encoding="utf-8")
        for version, right in (("0.1", True), ("1.0", False)):
            example.write_text(text.replace("find_package(gpudt REQUIRED)", f"find_package(gpudt {version} REQUIRED)"), encoding="utf-8")
            done = subprocess.run(["cmake", "-B", f"version-{version}", *self.cmake_settings()], check=False,
                                  cwd=example.parent, capture_output=True, text=True)
            self.assertEqual(done.returncode == 0, right, done.stderr)
        example.write_text(text, encoding="utf-8")
        done = subprocess.run(["cmake", "-B", "refused", "-Dgpudt_BUILD=mpich9", *self.cmake_settings()], check=False,
                              cwd=self.work / "examples" / "cmake", capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("gpudt is not installed for mpich9", done.stderr)

    def test_module_file(self):
        """The folders that it names are there."""
        (file,) = (self.prefix / "share" / "gpudt" / "modulefiles" / "gpudt").iterdir()
        self.assertEqual(file.name, self.version)
        text = file.read_text(encoding="utf-8")
        (prefix,) = re.findall(r"(?m)^set prefix (.*)$", text)
        self.assertTrue(str(self.prefix).endswith(prefix), prefix)
        folders = re.findall(r"(?m)^prepend-path \w+ \$prefix(.*)$", text)
        self.assertEqual(len(folders), 4)
        self.assertEqual([folder for folder in folders if not (self.prefix / folder.strip("/")).is_dir()], [])
        if shutil.which("modulecmd"):
            without = {name: value for name, value in os.environ.items() if name != "MANPATH"}
            done = subprocess.run(["modulecmd", "bash", "load", file], env=without, capture_output=True, text=True, check=False)
            self.assertRegex(done.stdout, r"(?m)^(export )?MANPATH='?[^:]*/man'?::?'?;", done.stderr)

    def test_manual_pages(self):
        """Each program has one, which man shows without a complaint."""
        programs = {path.name for path in (self.prefix / "bin").iterdir()}
        pages = {path.stem: path for path in (self.prefix / "share" / "man").rglob("*.[17]")}
        self.assertEqual(programs | {"gpudt"}, set(pages))
        for name, page in pages.items():
            with self.subTest(name):
                self.assertRegex(page.read_text(encoding="utf-8"), r"(?s)\.SH NAME\n.+\\- .+\.SH .+")
                if shutil.which("groff"):
                    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", page], capture_output=True, text=True,
                                          check=False)
                    self.assertEqual(done.stderr, "")

    def test_wheel(self):
        """What pip installs from it runs a program on the simulated device."""
        pip = [sys.executable, "-m", "pip"]
        if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no pip")
        made = subprocess.run([sys.executable, self.wheel, self.prefix, self.version, self.work], capture_output=True,
                              text=True, check=True).stdout.strip()
        subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", "--root-user-action", "ignore",
                        "--disable-pip-version-check", "--prefix", self.work / "installed", made], check=True)
        (script,) = (self.work / "installed").rglob("gpudt-run")
        program = self.work / "halo2d"
        subprocess.run([self.mpicc, pathlib.Path(self.examples) / "halo2d.c", "-o", program, *self.cuda_flags], check=True)
        done = subprocess.run([script, "--sim", "--dry-run", program], capture_output=True, text=True, check=True)
        (library,) = (self.work / "installed").rglob("libgpudt-pmpi.so")
        self.assertIn(f"LD_PRELOAD={library}:", done.stdout)
        done = subprocess.run([self.run_mpi, "-S", "-n", "2", "-t", "60", "-l", library, "-s",
                               library.parent.parent.parent / "libgpudt-sim.so", program], capture_output=True, text=True,
                              check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "halo2d: 2 x 1 processes, all right\n"), done.stderr)

    def test_meson(self):
        if shutil.which("pkg-config") is None:
            self.skipTest("no pkg-config")
        settings = [f"-Druntime_flags={self.cuda_flags}"]
        self.build_example("meson", [self.meson, "setup", "build", *settings], ["ninja", "-C", "build"], CC=self.mpicc)

    def setup_with(self, words):
        """`meson setup` of gpudt itself, with a wrapper that shows this command."""
        wrapper = self.work / "mpicc"
        wrapper.write_text(f"#!/bin/sh\ncat <<'END'\n{words}\nEND\n", encoding="utf-8")
        wrapper.chmod(0o755)
        options = ["tests=false", "programs=false", "cuda=disabled", "initiated=disabled", f"mpi={wrapper}"]
        source = pathlib.Path(self.examples).parent
        return subprocess.run([self.meson, "setup", self.work / "build", source, *(f"-D{option}" for option in options)],
                              capture_output=True, text=True, check=False)

    def test_wrapper_that_quotes_paths(self):
        """Intel's does. The folders of the headers get a name that needs it."""
        shown = subprocess.run([self.mpicc, "-show"], capture_output=True, text=True, check=True).stdout
        for folder in re.findall(r"-I(\S+)", shown):
            linked = self.work / f"headers in {folder.replace('/', '_')}"
            linked.symlink_to(folder)
            shown = re.sub(rf"-I{folder}(?=\s)", f'-I"{linked}"', shown)
        done = self.setup_with(shown)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        (build,) = (self.libraries / "gpudt").iterdir()
        installed = (self.work / "build" / "meson-info" / "intro-installed.json").read_text(encoding="utf-8")
        self.assertIn(f"/gpudt/{build.name}/libgpudt-pmpi.so", installed)

    def test_wrapper_without_headers(self):
        done = self.setup_with(f'gcc -I"{self.work}/none" -lmpi')
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn("mpi.h is not found", done.stdout)

    def test_gpudt_doctor(self):
        """Likewise."""
        done = subprocess.run([self.prefix / "bin" / "gpudt-doctor", "--sim", "--no-messages", "--launcher", "srun"],
                              capture_output=True, text=True, check=False)
        (library,) = (self.libraries / "gpudt").rglob("libgpudt-pmpi.so")
        self.assertRegex(done.stdout, f"(?m)^ok       gpudt: for .*: {library}$", done.stderr)

    def test_gpudt_run(self):
        """It finds the library below the prefix."""
        (self.work / "plain.c").write_text("#include <mpi.h>\nint main(void) { return MPI_Init(0, 0); }\n", encoding="utf-8")
        subprocess.run([self.mpicc, "plain.c", "-o", "plain"], cwd=self.work, check=True)
        done = subprocess.run([self.prefix / "bin" / "gpudt-run", "--sim", "--dry-run", self.work / "plain"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        (library,) = (self.libraries / "gpudt").rglob("libgpudt-pmpi.so")
        self.assertIn(f"LD_PRELOAD={library}:{self.libraries}/libgpudt-sim.so ", done.stdout)


def main():
    os.environ.pop("LD_LIBRARY_PATH", None)  # Meson names the build folder there
    (Install.meson, Install.build, Install.mpicc, Install.run_mpi, Install.source, Install.version, Install.examples,
     Install.wheel, *Install.cuda) = sys.argv[1:]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Install))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
