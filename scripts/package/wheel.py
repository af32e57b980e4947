#!/usr/bin/env python3
"""Makes a wheel of an installation: the library for each MPI that it has a build for, the simulated device, the scripts
and the header. What pip installs has the same folders, so that gpudt-run finds all of it.

usage: wheel.py PREFIX VERSION FOLDER    (prints the wheel's path)
"""

import base64
import hashlib
import pathlib
import platform
import sys
import zipfile

SUMMARY = "Lets MPI programs pass GPU pointers with any datatype, over an MPI that knows nothing of GPUs"
DESCRIPTION = """Preloaded libraries for Open MPI 4, Open MPI 5 and MPICH, as far as this wheel has them. No Python
package: start programs with `gpudt-run mpirun -np 2 ./app`, and try the machine with `gpudt-doctor`.
"""


def only(paths):
    """The shortest of the paths that are the same file."""
    return min(paths, key=lambda path: len(str(path)))


def contents(prefix):
    """(path in the wheel, below its data; file; whether it is a program)"""
    for library in sorted(prefix.glob("lib*/**/gpudt/*/libgpudt-pmpi.so")):
        yield f"data/lib/gpudt/{library.parent.name}/{library.name}", library, False
    yield "data/lib/libgpudt-sim.so", only(prefix.glob("lib*/**/libgpudt-sim.so")), False
    for header in sorted((prefix / "include").glob("gpudt*.*")) + sorted((prefix / "include" / "gpudt-sim").glob("*.h")):
        yield f"data/include/{header.relative_to(prefix / 'include')}", header, False
    for module in sorted((prefix / "share" / "gpudt").glob("*.py")):
        yield f"data/share/gpudt/{module.name}", module, False
    for page in sorted((prefix / "share" / "man").rglob("*.[17]")):
        if page.stem in ("gpudt", "gpudt-run", "gpudt-doctor", "gpudt-report"):
            yield f"data/share/man/{page.parent.name}/{page.name}", page, False
    for name in ("gpudt-run", "gpudt-doctor", "gpudt-report"):
        if (prefix / "bin" / name).exists():
            yield f"scripts/{name}", prefix / "bin" / name, True


def tag():
    libc, version = platform.libc_ver()
    if libc != "glibc":
        raise SystemExit(f"wheel.py: built for glibc alone, not {libc or 'another C library'}")
    return f"py3-none-manylinux_{version.replace('.', '_')}_{platform.machine()}"


class Wheel:
    """A wheel that is being written. RECORD, which comes last, has the digest of each file."""

    def __init__(self, path):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, program=False):
        info = zipfile.ZipInfo(name)
        info.external_attr = (0o100755 if program else 0o100644) << 16  # of a regular file
        info.compress_type = zipfile.ZIP_DEFLATED
        self.archive.writestr(info, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, folder):
        self.record.append(f"{folder}/RECORD,,")
        self.archive.writestr(f"{folder}/RECORD", "\n".join(self.record) + "\n")
        self.archive.close()


def main():
    prefix, version, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    name = f"gpudt-{version}"
    path = folder / f"{name}-{tag()}.whl"
    wheel = Wheel(path)
    for where, file, program in contents(prefix):
        wheel.add(f"{name}.data/{where}", file.read_bytes(), program)
    wheel.add(f"{name}.dist-info/METADATA", (f"Metadata-Version: 2.1\nName: gpudt\nVersion: {version}\nSummary: {SUMMARY}\n"
                                             f"License: BSD-3-Clause\nRequires-Python: >=3.9\n\n{DESCRIPTION}").encode())
    wheel.add(f"{name}.dist-info/WHEEL", f"Wheel-Version: 1.0\nGenerator: gpudt\nRoot-Is-Purelib: false\nTag: {tag()}\n".encode())
    wheel.close(f"{name}.dist-info")
    print(path)


if __name__ == "__main__":
    main()
