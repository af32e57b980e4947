"""What gpudt-doctor looks at before it sends messages: the installation, MPI, the program, the GPUs, the system. Python's
standard library alone is needed.
"""

import dataclasses
import glob
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys

from gpudt_programs import (ALSO_SERVES, BY_HANDLE, LIBRARY, NAMES, NO_HANDLE, PREFIX, SIMULATED_DEVICE, Mistake, OpenMpi, ask, ask_mpi, build_of,
                            find_program, found_in, installed_builds, is_library, launcher_of, mpi_of_file, simulated_device,
                            takes_functions_of_mpi)

OK, WARNING, WRONG = "ok", "warning", "wrong"
LEAST_SHARED_MEMORY = 256 << 20  # half of what is left may be taken for layouts (interpose/transport/peer)
OLDEST_OPENMPI, OLDEST_DRIVER = (4, 1), 12
COMPUTE_MODE, SHARED, PROHIBITED = 20, 0, 2  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE and CUcomputemode

# What shows that a script in Python takes MPI's functions from the handle of its library.
SCRIPT_BY_HANDLE = rb"(\bnumba_mpi\b|(?:CDLL|LoadLibrary)\([^)\n]*libmpi|find_library\(\s*[\"']mpi[\"'])"

# Asked in a process of its own, which may crash or hang instead.
ASK_DRIVER = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
version, count, error = ctypes.c_int(), ctypes.c_int(), cuda.cuInit(0)
cuda.cuDriverGetVersion(ctypes.byref(version))
error = error or cuda.cuDeviceGetCount(ctypes.byref(count))
gpus = []
for i in range(0 if error else count.value):
    name, mode, reached = ctypes.create_string_buffer(256), ctypes.c_int(), []
    cuda.cuDeviceGetName(name, 256, i)
    cuda.cuDeviceGetAttribute(ctypes.byref(mode), %d, i)
    for other in range(count.value):
        yes = ctypes.c_int()
        if other != i and cuda.cuDeviceCanAccessPeer(ctypes.byref(yes), i, other) == 0 and yes.value:
            reached.append(other)
    gpus.append({"name": name.value.decode(), "mode": mode.value, "peers": reached})
print(json.dumps({"error": error, "version": version.value, "gpus": gpus}))
""" % COMPUTE_MODE


@dataclasses.dataclass
class Finding:
    name: str
    state: str
    text: str
    remedy: str = ""

    def __post_init__(self):
        assert self.state == OK or self.remedy, self.text


class Machine:
    """What the checks share. `root` stands before the names of the system's files."""

    def __init__(self, options):
        self.options, self.root = options, options.root
        self.builds = installed_builds()
        if options.library:
            self.builds = {build_of(options.library): os.path.abspath(options.library)}
        self.launcher = self.program = self.mpi = self.library = None
        self.driver = ask(ASK_DRIVER)
        self.gpus = self.driver["gpus"] if self.driver else []

    def path(self, name):
        return pathlib.Path(f"{self.root}/{name.lstrip('/')}")

    def has_gpu_hardware(self):
        return bool(self.gpus) or self.path("/proc/driver/nvidia/version").exists() or self.path("/dev/nvidiactl").exists()

    def has_infiniband(self):
        return bool(glob.glob(f"{self.root}/sys/class/infiniband/*"))


# --- gpudt and MPI ---------------------------------------------------------------------------------------------------

def check_library(machine):
    if not machine.builds or None in machine.builds:
        named = machine.options.library
        yield Finding("gpudt", WRONG, f"{named} is no {LIBRARY}" if named else f"there is no {LIBRARY} below {PREFIX}",
                      "Build it (meson setup build && ninja -C build), or install it and use the gpudt-doctor beside it")
        machine.builds = {}
    for build, path in machine.builds.items():
        missing = not_found(path)
        if missing:
            yield Finding("gpudt", WRONG, f"{path} cannot be loaded: {', '.join(missing)} not found",
                          f"Load the module of {NAMES[build]} or name its folder in LD_LIBRARY_PATH; else build gpudt anew")
            continue
        yield Finding("gpudt", OK, f"for {NAMES[build]}: {path}")
        try:
            simulated_device(path)
        except Mistake as mistake:
            yield Finding("simulated device", WRONG if machine.options.sim else WARNING, str(mistake),
                          "Install or build all of gpudt; a GPU is needed without it")


def ldd(path):
    """{name: path} of the libraries that a file is linked to."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False, env=environment)
    return dict(re.findall(r"^\s*(\S+) => (.*?)(?: \(0x.*)?$", done.stdout, re.M))


def not_found(path):
    return [name for name, place in ldd(path).items() if place == "not found"]


def check_launcher(machine):
    word = machine.options.launcher[0]
    try:
        machine.launcher = launcher_of(word)
    except Mistake as mistake:
        yield Finding("launcher", WRONG, mistake.problem, mistake.remedy or "Name another with --launcher")
        return
    if machine.launcher is None:
        yield Finding("launcher", WRONG, f"{word} is no launcher", "Name mpirun, mpiexec or srun with --launcher")
        return
    mpi = machine.launcher.mpi
    yield Finding("launcher", OK, f"{shutil.which(word)}" + (f", of {NAMES[mpi]}" if mpi else ""))
    is_root = os.geteuid() == 0 and not os.environ.get("OMPI_ALLOW_RUN_AS_ROOT")
    if isinstance(machine.launcher, OpenMpi) and is_root:
        yield Finding("user", WARNING, "Open MPI's mpirun refuses to start programs for root (here it is told to)",
                      "Set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or use another account")


def check_program(machine):
    """The program that the user names, if any; and the build that serves it, or else the launcher's programs."""
    if machine.options.program:
        try:
            machine.program = find_program(machine.options.program)
            if machine.options.sim:
                machine.program.check_for_simulated_device()
            yield Finding("program", OK, f"{machine.program.name} takes preloaded libraries")
        except Mistake as mistake:
            machine.program = None
            yield Finding("program", WRONG, mistake.problem, mistake.remedy or "Name a program that is there")
    machine.mpi = (machine.program and machine.program.mpi) or (machine.launcher and machine.launcher.mpi)
    if machine.mpi is None and machine.builds:
        machine.mpi = next(iter(machine.builds))
    if machine.mpi is None:
        return
    serving = [build for build in (machine.mpi, *ALSO_SERVES.get(machine.mpi, [])) if build in machine.builds]
    machine.library = machine.builds[serving[0]] if serving else None
    remedy = "meson setup build-other -Dmpi=MPICC, with the mpicc of that MPI; installed to the same prefix it joins the others"
    if not serving:
        yield Finding("MPI", WRONG, f"no gpudt is built for {NAMES[machine.mpi]}", remedy)
    elif serving[0] != machine.mpi:
        yield Finding("MPI", WARNING, f"over {NAMES[machine.mpi]} the build for {NAMES[serving[0]]} stages all messages",
                      remedy)
    launcher = machine.launcher and machine.launcher.mpi
    if machine.program and launcher and machine.program.mpi and launcher != machine.program.mpi:
        yield Finding("launcher", WRONG, f"it is that of {NAMES[launcher]}, and {machine.program.name} runs over "
                      f"{NAMES[machine.mpi]}: each process may be alone",
                      "Start it with the mpirun of its own MPI (--launcher)")


def check_functions(machine):
    """Whether the program calls MPI past gpudt, as far as it shows: its own file, or the script that Python runs."""
    program = machine.program
    if program is None:
        return
    scripts = [word for word in machine.options.program if word.endswith(".py") and os.path.isfile(word)]
    if program.python and any(found_in(script, SCRIPT_BY_HANDLE) for script in scripts):
        yield Finding("dlsym", WARNING, f"{scripts[0]} {BY_HANDLE} (ctypes, numba_mpi)", NO_HANDLE)
    elif program.mpi and not program.python and takes_functions_of_mpi(program.path, linked=True):
        yield Finding("dlsym", WARNING, f"{program.name} {BY_HANDLE}", NO_HANDLE)


def check_mpi(machine):
    # Python shows no MPI by itself: then it is that of the library.
    files = (machine.program and machine.program.files) or (ldd(machine.library) if machine.library else {})
    path = next((path for name, path in files.items() if mpi_of_file(path if os.path.isabs(path) else name)), None)
    said = ask_mpi(path) if path else None
    if said is None:
        if path:
            yield Finding("MPI", WRONG, f"{path} does not answer MPI_Get_library_version",
                          "Install MPI anew, with its libraries")
        return
    version = re.search(r"Open MPI v?(\d+)\.(\d+)", said["version"])
    if version and (int(version[1]), int(version[2])) < OLDEST_OPENMPI:
        yield Finding("MPI", WARNING, f"{said['version']} is older than what gpudt is tested with", "Use Open MPI 4.1 or 5.0")
    else:
        yield Finding("MPI", OK, f"{said['version']} ({path})")
    if said["aware"]:
        yield Finding("CUDA-aware MPI", OK, "the MPI takes GPU pointers: gpudt gives it those of messages to other nodes")
    else:
        yield Finding("CUDA-aware MPI", OK, "the MPI takes no GPU pointers; gpudt does")


def check_preload(machine):
    """What the environment has preloaded already."""
    files = [name for name in re.split(r"[:\s]+", os.environ.get("LD_PRELOAD", "")) if name]
    names = [LIBRARY if is_library(os.path.basename(name)) else os.path.basename(name) for name in files]
    if SIMULATED_DEVICE in names and LIBRARY not in names:
        yield Finding("LD_PRELOAD", WRONG, f"it names {SIMULATED_DEVICE} without {LIBRARY}",
                      "Start with gpudt-run --sim instead")
    for file, name in zip(files, names):
        found = os.path.exists(file) if "/" in file else True
        build = build_of(file) if found and "/" in file and name == LIBRARY else None
        if not found:
            yield Finding("LD_PRELOAD", WRONG, f"{file} is not there", "Correct it or unset it; gpudt-run finds the library")
        elif build and machine.mpi and build not in (machine.mpi, *ALSO_SERVES.get(machine.mpi, [])):
            yield Finding("LD_PRELOAD", WRONG, f"{file} is for {NAMES[build]}, not {NAMES[machine.mpi]}",
                          "Unset it, and start with gpudt-run, which finds the right one")
        elif "/" in file and name not in (LIBRARY, SIMULATED_DEVICE) and found_in(file, rb"\0(MPI_Init)\0"):
            behind = LIBRARY in names and names.index(LIBRARY) < names.index(name)
            text = f"{file} is another tool of MPI's profiling interface"
            if behind and found_in(file, rb"\0(dlsym)\0"):
                yield Finding("LD_PRELOAD", WARNING, f"{text}, behind gpudt", "Name it before gpudt: it may not see all calls")
            else:
                yield Finding("LD_PRELOAD", OK, f"{text}, which works beside gpudt")


def check_variables(machine):
    if os.environ.get("GPUDT_DISABLE", "0") not in ("", "0", "no", "off", "false"):
        yield Finding("GPUDT_DISABLE", WARNING, "it is set: all calls go straight to MPI", "Unset it")
    if not machine.library:
        return
    known = set(re.findall(rb"GPUDT_[A-Z_]+", pathlib.Path(machine.library).read_bytes()))
    for name in sorted(os.environ):
        if name.startswith("GPUDT_") and not name.startswith("GPUDT_TEST_") and name.encode() not in known:
            yield Finding(name, WARNING, "it is set, and no variable of gpudt",
                          "Correct or unset it; docs/variables.md has all variables")


# --- GPUs ------------------------------------------------------------------------------------------------------------

def check_driver(machine):
    if machine.options.sim:
        return
    driver, name = machine.driver, "driver"
    if driver is None:
        if machine.has_gpu_hardware():
            yield Finding(name, WRONG, "there is a GPU's kernel module, and libcuda.so.1 cannot be used",
                          "Install the driver's libraries of the same version (in a container: start it with its GPUs)")
        else:
            yield Finding(name, WARNING, "there is no NVIDIA GPU here",
                          "Install the driver if there should be one; else use --sim")
        return
    version = f"{driver['version'] // 1000}.{driver['version'] % 1000 // 10}"
    if driver["error"]:
        remedy = {100: "Check CUDA_VISIBLE_DEVICES and nvidia-smi -L; in a container start it with its GPUs",
                  803: "Restart, so that the kernel module is of the version of the driver's libraries"}
        yield Finding(name, WRONG, f"the driver does not start (CUDA error {driver['error']})",
                      remedy.get(driver["error"], "See nvidia-smi and dmesg; restart or reinstall the driver"))
    elif driver["version"] // 1000 < OLDEST_DRIVER:
        yield Finding(name, WRONG, f"it is for CUDA {version}",
                      f"Update it: gpudt needs a driver for CUDA {OLDEST_DRIVER} or later")
    else:
        yield Finding(name, OK,
                      f"for CUDA {version}, {len(machine.gpus)} x {machine.gpus[0]['name'] if machine.gpus else 'GPU'}")
    if machine.library and not found_in(machine.library, rb"(cuPointerGetAttributes)"):
        yield Finding("toolkit", WRONG, "this gpudt was built without CUDA", "Build it where nvcc is in PATH (-Dcuda=enabled)")
    toolkit = toolkit_version()
    if toolkit and toolkit > driver["version"] // 1000:
        yield Finding("toolkit", WARNING, f"nvcc is of CUDA {toolkit}, newer than the driver",
                      "Update the driver, or use an older toolkit")


def toolkit_version():
    nvcc = shutil.which("nvcc")
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout if nvcc else ""
    found = re.search(r"release (\d+)", said)
    return int(found[1]) if found else None


def check_gpus(machine):
    if machine.options.sim or not machine.gpus:
        return
    for i, gpu in enumerate(machine.gpus):
        if gpu["mode"] == PROHIBITED:
            yield Finding(f"GPU {i}", WRONG, "its compute mode prohibits all use", f"nvidia-smi -i {i} -c DEFAULT, as root")
        elif gpu["mode"] != SHARED:
            yield Finding(f"GPU {i}", WARNING, "it takes one process at a time",
                          f"nvidia-smi -i {i} -c DEFAULT, or one rank for each GPU")
    pairs = [(i, j) for i, gpu in enumerate(machine.gpus) for j in range(len(machine.gpus)) if i != j and j not in gpu["peers"]]
    if pairs:
        yield Finding("peer access", WARNING, "not between GPUs " + ", ".join(f"{i} and {j}" for i, j in pairs if i < j) +
                      ": their messages go through the host", "See nvidia-smi topo -m; switch PCIe ACS and the IOMMU off")
    elif len(machine.gpus) > 1:
        yield Finding("peer access", OK, "all GPUs reach each other")


def check_network(machine):
    """What gpudt itself does without, and a fast network takes."""
    loaded = machine.path("/sys/module/nvidia_peermem").exists()
    if machine.has_infiniband() and machine.gpus and not loaded:
        yield Finding("GPUDirect RDMA", WARNING,
                      "nvidia_peermem is not loaded: a CUDA-aware MPI stages messages to other nodes",
                      "modprobe nvidia_peermem (gpudt over an MPI without CUDA does not need it)")
    else:
        yield Finding("GPUDirect RDMA", OK, "nvidia_peermem is loaded" if loaded else "not used here")
    there = machine.path("/dev/gdrdrv").exists()
    yield Finding("gdrcopy", OK, ("installed" if there else "not installed") + "; gpudt does not need it")


# --- the system ------------------------------------------------------------------------------------------------------

def check_shared_memory(machine):
    path = machine.path("/dev/shm")
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        yield Finding("/dev/shm", WRONG, "it is not there, or not writable: processes of a node cannot exchange GPU memory",
                      "mount -t tmpfs tmpfs /dev/shm (mode 1777)")
        return
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if free < LEAST_SHARED_MEMORY:
        yield Finding("/dev/shm", WARNING, f"{free >> 20} MiB are free",
                      "Give it 1 GiB (docker run --shm-size=1g, or --ipc=host)")
    else:
        yield Finding("/dev/shm", OK, f"{free >> 20} MiB are free")


def check_locked_memory(machine):
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "unlimited" if limit == resource.RLIM_INFINITY else f"limited to {limit >> 10} KiB"
    if limit != resource.RLIM_INFINITY and machine.has_infiniband():
        yield Finding("locked memory", WARNING, f"{text}, which InfiniBand does not get along with",
                      "ulimit -l unlimited (memlock in /etc/security/limits.conf; LimitMEMLOCK of slurmd)")
    else:
        yield Finding("locked memory", OK, text)


def check_yama(machine):
    """Whether processes may read each other's memory, as MPI does for staged messages of a node."""
    try:
        scope = int(machine.path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        scope = 0  # without Yama
    if scope > 1:
        yield Finding("yama", WARNING, f"kernel.yama.ptrace_scope is {scope}: MPI copies staged messages between processes twice",
                      "sysctl kernel.yama.ptrace_scope=1, as root" if scope == 2
                      else "kernel.yama.ptrace_scope=1 in /etc/sysctl.d, which takes a reboot")
    else:
        yield Finding("yama", OK, "processes may read each other's memory")


def check_tuning(machine):
    chosen = os.environ.get("GPUDT_TUNING", "auto")
    if chosen == "none":
        return
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    files = [chosen] if chosen not in ("", "auto") else sorted(glob.glob(f"{cache}/gpudt/*.json"))
    for file in files:
        try:
            right = "gpudt_tuning" in json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            right = False
        if right:
            yield Finding("tuning", OK, file)
        else:
            yield Finding("tuning", WARNING, f"{file} cannot be read as a tuning file",
                          "Write it anew with gpudt-tune, or remove it")
    if not files and machine.gpus and not machine.options.sim:
        yield Finding("tuning", WARNING, "costs measured on an H200 stand in for this GPU's",
                      "Run gpudt-tune once for each GPU model")


CHECKS = (check_library, check_launcher, check_program, check_functions, check_mpi, check_preload, check_variables, check_driver, check_gpus,
          check_network, check_shared_memory, check_locked_memory, check_yama, check_tuning)
