#!/usr/bin/env python3
"""Print where NVSHMEM is, a path a line: its headers, its device archive, its host library; nothing where there is none.

In this order: $NVSHMEM_HOME; its CMake configuration ($NVSHMEM_DIR, $CMAKE_PREFIX_PATH, the usual places); PyPI's package
(nvidia-nvshmem-cu13, -cu12) in what python3 imports from, or in $GPUDT_NVSHMEM, where scripts/setup.sh puts it.
"""

import glob
import os
import pathlib
import sys

CONFIG = "NVSHMEMConfig.cmake"


def prefixes():
    """Folders that hold include/ and lib/."""
    if home := os.environ.get("NVSHMEM_HOME"):
        yield home
    if folder := os.environ.get("NVSHMEM_DIR"):
        yield folder
        yield str(pathlib.Path(folder).parents[2]) if len(pathlib.Path(folder).parents) > 2 else folder
    for prefix in [*os.environ.get("CMAKE_PREFIX_PATH", "").split(os.pathsep), "/usr", "/usr/local", "/opt/nvshmem"]:
        for pattern in prefix and ("lib*/cmake/nvshmem", "lib*/*/cmake/nvshmem") or ():
            if glob.glob(f"{prefix}/{pattern}/{CONFIG}"):
                yield prefix
    root = pathlib.Path(__file__).resolve().parent.parent
    for path in [os.environ.get("GPUDT_NVSHMEM", ""), str(root / ".nvshmem"), *sys.path]:
        if path:
            yield f"{path}/nvidia/nvshmem"


def first(*patterns):
    for pattern in patterns:
        if found := sorted(glob.glob(pattern)):
            return found[0]
    return None


def main():
    for prefix in prefixes():
        header = first(f"{prefix}/include/nvshmem.h", f"{prefix}/include/nvshmem_*/nvshmem.h")
        archive = first(f"{prefix}/lib*/libnvshmem_device.a", f"{prefix}/lib*/nvshmem/*/libnvshmem_device.a")
        library = first(f"{prefix}/lib*/libnvshmem_host.so*", f"{prefix}/lib*/nvshmem/*/libnvshmem_host.so*")
        if header and archive and library:
            print(os.path.dirname(header), archive, library, sep="\n")
            return


if __name__ == "__main__":
    main()
