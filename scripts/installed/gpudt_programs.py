"""What gpudt-run and gpudt-doctor share: which MPI library a program runs over, which builds of gpudt there are, and how
launchers pass variables on. Python's standard library alone is needed.
"""

import functools
import glob
import json
import mmap
import os
import pathlib
import re
import shlex
import shutil
import stat
import struct
import subprocess
import sys

LIBRARY, SIMULATED_DEVICE = "libgpudt-pmpi.so", "libgpudt-sim.so"
NAMES = {"openmpi4": "Open MPI 4", "openmpi5": "Open MPI 5", "mpich": "MPICH", "mpi-abi": "the MPI-5 ABI"}
# What else a build serves: over Open MPI 5 a build for 4 stages all messages through the host.
ALSO_SERVES = {"openmpi5": ["openmpi4"]}
SECONDS = 60  # for what is started to be asked something
PT_INTERP = 3
HERE = pathlib.Path(__file__).resolve().parent
PREFIX = HERE.parent.parent  # this file is in share/gpudt, or in scripts/installed of the source tree
IN_SOURCE = (PREFIX / "meson.build").exists()


def is_library(name):
    """Whether a file name is that of gpudt's library, with or without the version that linked programs name."""
    return re.fullmatch(re.escape(LIBRARY) + r"(\.\d+)*", name) is not None


class Mistake(Exception):
    """The user's, or something that gpudt cannot do; and what helps, which may be part of the problem's sentence."""

    def __init__(self, problem, remedy=""):
        super().__init__(f"{problem}. {remedy}" if remedy else problem)
        self.problem, self.remedy = problem, remedy


def ask(program, *arguments):
    """What a Python program prints as JSON; None if it prints nothing, for whatever reason. It runs in a process of its
    own, since what it loads may crash or hang."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False,
                              timeout=SECONDS, env=environment)
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None


# --- MPI libraries ---------------------------------------------------------------------------------------------------

ASK_MPI = """
import ctypes, json, sys
mpi = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
text, length = ctypes.create_string_buffer(16384), ctypes.c_int()
mpi.MPI_Get_library_version(text, ctypes.byref(length))
aware = "Open MPI" in text.value.decode() and hasattr(mpi, "MPIX_Query_cuda_support") and mpi.MPIX_Query_cuda_support()
print(json.dumps({"version": text.value.decode().split(",")[0].split("\\n")[0].strip(), "aware": bool(aware)}))
"""


@functools.lru_cache(maxsize=None)
def ask_mpi(path):
    """The "version" and whether it is CUDA-"aware", of the MPI library in this file; None if it does not answer."""
    return ask(ASK_MPI, path) if os.path.isabs(path) else None


def openmpi_of_file(path):
    """Open MPI 4 and 5 share the name libmpi.so.40. Only where the library does not answer, the version of the file that
    a link of this name leads to decides; some installations have no such link."""
    version = re.search(r"Open MPI v?(\d+)", (ask_mpi(path) or {"version": ""})["version"])
    if version:
        return "openmpi5" if int(version[1]) >= 5 else "openmpi4"
    version = re.search(r"\.so\.40\.(\d+)", os.path.basename(os.path.realpath(path)))
    return "openmpi5" if version and int(version[1]) >= 40 else "openmpi4"


def mpi_of_file(path):
    """The build (a key of NAMES) that fits the MPI library in this file; None if it is none, or one unknown to gpudt."""
    name = os.path.basename(path)
    if re.match(r"libmpi_abi\.so", name):
        return "mpi-abi"
    if re.match(r"(libmpich|libmpi|libmpi_\w+)\.so\.12(\.|$)", name):  # MPICH and what shares its ABI: Intel, Cray
        return "mpich"
    if re.match(r"libmpi(_ibm)?\.so\.(40|3)(\.|$)", name):
        return openmpi_of_file(path)
    return None


def mpi_among(files):
    return next((build for build in map(mpi_of_file, files) if build), None)


# --- builds of gpudt -------------------------------------------------------------------------------------------------

def found_in(path, pattern):
    """The pattern's first group in the file, or None."""
    if os.path.getsize(path) == 0:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        match = re.search(pattern, content)
        return match and match[1]


BY_HANDLE = "takes MPI's functions from a library that it loads by its name, past what is preloaded"
NO_HANDLE = "Name libgpudt-pmpi.so as its MPI library: docs/troubleshooting.md"


def takes_functions_of_mpi(path, linked):
    """Whether an ELF file looks functions up by their names, and names an MPI library beside the one it is linked to."""
    name = rb"\0((?:[^\0]*/)?libmpi(?:ch)?\.so[.0-9]*)(?=\0)"
    named = rb"(?s)" + name + rb".*" + name if linked else name
    return all(found_in(path, pattern) for pattern in (rb"\0(dlsym)\0", named))


def build_of(library):
    """Which MPI a libgpudt-pmpi.so was built for; it says so in its data (interpose/calls/symbol_table.cpp)."""
    mark = found_in(library, rb"gpudt-build-for:([a-z0-9-]+)\0")
    return mark and mark.decode()


def installed_builds():
    """{build: path}: below the prefix as installed, or in the build folders of the source."""
    patterns = ("build/", "build*/") if IN_SOURCE else ("lib*/gpudt/*/", "lib*/*/gpudt/*/")
    builds = {}
    for pattern in patterns:
        for path in sorted(glob.glob(str(PREFIX / pattern / LIBRARY))):
            if os.path.isfile(path):  # no link to what has gone
                builds.setdefault(build_of(path), path)
    builds.pop(None, None)
    return builds


def library_for(program):
    builds = installed_builds()
    for build in [program.mpi, *ALSO_SERVES.get(program.mpi, [])]:
        if build in builds:
            return builds[build]
    there = ", ".join(f"{NAMES.get(build, build)} ({path})" for build, path in builds.items()) or "none"
    raise Mistake(f"{program.name} runs over {NAMES[program.mpi]}, for which no gpudt is installed (builds found: {there})",
                  "Build it with that MPI (meson setup -Dmpi=MPICC), or name one with --library")


def simulated_device(library):
    folder = pathlib.Path(library).resolve().parent
    for path in (folder / SIMULATED_DEVICE, folder.parent.parent / SIMULATED_DEVICE):
        if path.exists():
            return str(path)
    raise Mistake(f"{SIMULATED_DEVICE} is not where {library} is")


# --- programs --------------------------------------------------------------------------------------------------------

class Program:
    """A file that the command starts. `mpi` is the build that fits it (None: it has no MPI that ldd shows), `files` the
    shared libraries that it is linked to by name."""

    def __init__(self, name, path):
        self.name, self.path = name, path
        self.mpi, self.files, self.complaint = None, {}, None
        try:
            with open(path, "rb") as file:
                self.head = file.read(4096)
        except OSError as error:
            raise Mistake(f"{name} cannot be read ({error.strerror})", "It takes a program that may be read") from error
        self.python = re.match(r"python[0-9.]*$|pypy", os.path.basename(path)) is not None
        self.interpreter = self.interpreter_named()
        self.python = self.python or os.path.basename(self.interpreter).startswith("python")
        if self.python:
            self.ask_python()
        elif self.head.startswith(b"\x7fELF"):
            self.look_at_elf()

    def interpreter_named(self):
        """The last word of a script's first line; empty if it names none."""
        words = self.head[2:].split(b"\n")[0].decode(errors="replace").split() if self.head.startswith(b"#!") else []
        return words[-1] if words else ""

    def look_at_elf(self):
        if not self.has_interpreter():
            self.complaint = Mistake(f"{self.name} is linked statically, so that nothing can be preloaded",
                                     "Link it to the shared libraries")
            return
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        done = subprocess.run(["ldd", self.path], capture_output=True, text=True, check=False, env=environment)
        for line in done.stdout.splitlines():
            linked = re.match(r"\s*(\S+) => (.*?)( \(0x.*)?$", line)
            if linked:
                self.files[os.path.basename(linked[1])] = linked[2]
        self.mpi = mpi_among(path if os.path.isabs(path) else name for name, path in self.files.items())
        missing = [name for name, path in self.files.items() if path == "not found" and not name.startswith("libgpudt")]
        if missing:
            self.complaint = Mistake(f"{self.name} does not start: {', '.join(missing)} not found",
                                     "Name the folder in LD_LIBRARY_PATH, or load the module")
        elif self.mpi is None:
            other = next((name for name in self.files if re.match(r"libmpi(ch)?\.so", name)), None)
            if other:
                self.complaint = Mistake(f"{self.name} is linked to {other}, an MPI that gpudt does not know",
                                         "Link it to Open MPI 4 or 5, to MPICH, or to one of MPICH's ABI")
            elif os.path.basename(self.path) == "julia" or takes_functions_of_mpi(self.path, linked=False):
                self.complaint = Mistake(f"{self.name} {BY_HANDLE}", NO_HANDLE)
            elif found_in(self.path, rb"(MPI_Init)"):
                self.complaint = Mistake(f"{self.name} is linked to MPI statically", "Link it to the shared MPI library")
            else:
                self.complaint = Mistake(f"{self.name} is not an MPI program: it is linked to no MPI library",
                                         "If it starts one, name the library with --library")
        elif self.is_privileged():
            self.complaint = Mistake(f"{self.name} is setuid, setgid or has capabilities, so that nothing is preloaded",
                                     "Run a copy without these rights, or link gpudt before MPI")

    def has_interpreter(self):
        """Whether a dynamic linker loads this ELF file of 64 bits."""
        if len(self.head) < 64 or self.head[4] != 2:
            raise Mistake(f"{self.name} is no program of 64 bits, which alone gpudt serves")
        (offset,) = struct.unpack_from("<Q", self.head, 32)
        size, number = struct.unpack_from("<HH", self.head, 54)
        with open(self.path, "rb") as file:
            file.seek(offset)
            headers = file.read(size * number)
        return any(struct.unpack_from("<I", headers, size * i)[0] == PT_INTERP for i in range(number))

    def is_privileged(self):
        if os.stat(self.path).st_mode & (stat.S_ISUID | stat.S_ISGID):
            return True
        try:
            return bool(os.getxattr(self.path, "security.capability"))
        except OSError:
            return False

    def ask_python(self):
        """Python has the MPI that mpi4py loads, if it has mpi4py."""
        python = self.path
        if self.interpreter:
            python = shutil.which(self.interpreter) or self.interpreter
        asked = ("import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI\n"
                 "for line in open('/proc/self/maps'):\n"
                 "  if '/libmpi' in line: print(line.split(None, 5)[5].rstrip())\n")
        try:
            done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False, timeout=SECONDS)
            self.mpi = mpi_among(done.stdout.splitlines())
        except (OSError, subprocess.TimeoutExpired):
            pass

    def check_for_simulated_device(self):
        if not self.files or any(name.startswith(("libcudart.", SIMULATED_DEVICE)) for name in self.files):
            return
        if found_in(self.path, rb"(libcuda\.so\.1)"):
            raise Mistake(f"{self.name} has the CUDA runtime linked statically, where the simulated device cannot stand in",
                          "Link it with the shared one (nvcc --cudart shared)")


def find_program(words):
    """The first MPI program or Python among the words of a command: what comes before may be env, numactl and the like."""
    candidates = []
    for word in words:
        path = None if word.startswith("-") else shutil.which(word)
        if path is None:
            continue
        candidates.append(Program(word, path))
        if candidates[-1].mpi or candidates[-1].python:
            break
    if not candidates:
        raise Mistake(f"there is no program to start: {shlex.join(words) or 'the command ends'}")
    program = next((one for one in candidates if one.mpi or one.python), candidates[0])
    if program.complaint:
        raise program.complaint
    return program


# --- launchers -------------------------------------------------------------------------------------------------------

class Launcher:
    """Sets the variables for a program that is started without a launcher, or by an unknown one."""

    mpi = None  # the build for the MPI that it belongs to
    values = {}  # how many words follow an option

    def programs(self, arguments):
        """The words from the program on, for each program of the command."""
        parts = [[]]
        for word in arguments:
            if word == ":":
                parts.append([])
            else:
                parts[-1].append(word)
        return [self.without_options(part) for part in parts]

    def without_options(self, words):
        i = 0
        while i < len(words):
            if words[i] in self.values:
                i += 1 + self.values[words[i]]
            elif words[i].startswith("-") or shutil.which(words[i]) is None:
                i += 1
            else:
                break
        return words[i:] or words[-1:]

    def command(self, before, launcher, arguments, settings):
        return [*before, "env", *(f"{name}={value}" for name, value in settings.items()), launcher, *arguments]


def number_of_values(two, one):
    return {**dict.fromkeys(two.split(), 2), **dict.fromkeys(one.split(), 1)}


class OpenMpi(Launcher):
    def __init__(self, mpi):
        self.mpi = mpi

    values = number_of_values(
        "--mca -mca --gmca -gmca --omca --prtemca --pmixmca",
        "-n --n -np --np -c -x -H -host --host -hostfile --hostfile -machinefile --machinefile -rf --rankfile -wd --wd "
        "-wdir --wdir --path -path --prefix --output-filename -output-filename --map-by -map-by --bind-to -bind-to "
        "--rank-by -N -npernode --npernode --tune -tune -am --am --stdin -stdin --timeout --output --display --cpu-set")

    def command(self, before, launcher, arguments, settings):
        exported = [word for name, value in settings.items() for word in ("-x", f"{name}={value}")]
        words = [launcher, *exported]
        for word in arguments:
            words += [word, *exported] if word == ":" else [word]
        return [*before, *words]


class Hydra(Launcher):
    mpi = "mpich"
    values = number_of_values(
        "-env -genv",
        "-n -np -f -machinefile -hosts -host -wdir -ppn -genvlist -envlist -iface -bind-to -map-by -membind -launcher "
        "-launcher-exec -rmk -outfile-pattern -errfile-pattern -path -umask -prepend-pattern -usize")

    def command(self, before, launcher, arguments, settings):
        exported = [word for name, value in settings.items() for word in ("-genv", name, value)]
        return [*before, launcher, *exported, *arguments]


class Srun(Launcher):
    values = number_of_values("", "-A -B -C -D -G -J -L -M -N -T -W -c -d -e -i -m -n -o -p -q -r -t -w -x")

    def command(self, before, launcher, arguments, settings):
        for name, value in settings.items():
            if "," in value:
                raise Mistake(f"srun --export cannot pass {name}={value}, which contains a comma")
        exported = os.environ.get("SLURM_EXPORT_ENV") or "ALL"
        others = []
        words = iter(arguments)
        for word in words:
            if word == "--export":
                exported = next(words, "ALL")
            elif word.startswith("--export="):
                exported = word.partition("=")[2]
            else:
                others.append(word)
        listed = [] if exported in ("NONE", "NIL", "") else [exported]
        listed += [f"{name}={value}" for name, value in settings.items()]
        return [*before, launcher, "--export=" + ",".join(listed), *others]


def launcher_of(word):
    """None if the word names no launcher."""
    name = os.path.basename(word)
    if not re.match(r"((mpirun|mpiexec|orterun|prterun)([.-][\w.]+)?|srun)$", name):
        return None
    path = shutil.which(word)
    if path is None:
        raise Mistake(f"{word} is not in PATH", "Install it, or load the module of your MPI")
    if name == "srun":
        return Srun()
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=SECONDS)
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        said = ""
    if any(text in said for text in ("HYDRA", "Intel(R) MPI")):
        return Hydra()
    if any(text in said for text in ("Open MPI", "OpenRTE", "PRRTE")):
        return OpenMpi("openmpi5" if re.search(r"PRRTE|\(Open MPI\) [5-9]", said) else "openmpi4")
    raise Mistake(f"{word} is a launcher that gpudt-run does not know: set LD_PRELOAD by its own means")
