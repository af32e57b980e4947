#!/usr/bin/env python3
"""Python modules that take MPI's functions from the handle of a library, which must be gpudt's (docs/languages.md): a
message from device memory to device memory, on two ranks. gpudt is preloaded.

usage: python_handle.py numba-mpi|ctypes
"""

import ctypes
import ctypes.util
import os
import sys

COUNT = 1000


class DeviceArray:
    """Doubles in memory of the CUDA runtime or the simulated device."""

    def __init__(self):
        self.runtime = ctypes.CDLL(None)
        self.address = ctypes.c_void_p()
        assert self.runtime.cudaMalloc(ctypes.byref(self.address), self.size()) == 0

    @staticmethod
    def size():
        return ctypes.c_size_t(8 * COUNT)

    def write(self, host):
        assert self.runtime.cudaMemcpy(self.address, host, self.size(), 4) == 0  # cudaMemcpyDefault

    def read(self):
        host = (ctypes.c_double * COUNT)()
        assert self.runtime.cudaMemcpy(host, self.address, self.size(), 4) == 0
        return list(host)


def by_numba_mpi(device):
    import psutil

    # Before the import of numba_mpi, which looks for an MPI library among those of the process, or by its name.
    gpudt = next(path for path in os.environ["LD_PRELOAD"].split(":") if "libgpudt-pmpi" in path)
    del psutil.Process.memory_maps
    ctypes.util.find_library = lambda name: gpudt
    import numba
    import numba_mpi
    import numpy

    @numba.njit
    def exchange(data):
        return numba_mpi.send(data, 1, 3) if numba_mpi.rank() == 0 else numba_mpi.recv(data, 0, 3)

    data = numpy.ctypeslib.as_array(ctypes.cast(device.address, ctypes.POINTER(ctypes.c_double)), (COUNT,))
    return exchange(data)


def by_ctypes(device):
    from mpi4py import MPI

    mpi = ctypes.CDLL(None)  # what is preloaded comes first
    handle = ctypes.c_int if MPI._sizeof(MPI.Comm) == 4 else ctypes.c_void_p
    comm, double = (handle.from_address(MPI._addressof(one)) for one in (MPI.COMM_WORLD, MPI.DOUBLE))
    if MPI.COMM_WORLD.rank == 0:
        return mpi.MPI_Send(device.address, COUNT, double, 1, 3, comm)
    status = (ctypes.c_int * 16)()
    return mpi.MPI_Recv(device.address, COUNT, double, 0, 3, comm, status)


def main():
    from mpi4py import MPI

    device = DeviceArray()
    numbers = [float(i) for i in range(COUNT)]
    if MPI.COMM_WORLD.rank == 0:
        device.write((ctypes.c_double * COUNT)(*numbers))
    code = {"numba-mpi": by_numba_mpi, "ctypes": by_ctypes}[sys.argv[1]](device)
    if code == 0 and device.read() == numbers:
        if MPI.COMM_WORLD.rank == 1:
            print(f"{sys.argv[1]}: right")
    else:
        sys.exit(f"{sys.argv[1]}: wrong, code {code}")


if __name__ == "__main__":
    main()
