#!/usr/bin/env python3
"""One transposition of mpi4py-fft between pencils, of CuPy arrays: checks each element, and prints the median time.

usage: mpirun -np 2 transpose.py before|after SOURCES CELLS

`before` copies the array to the host, transposes it there and copies the result back. SOURCES is a folder of mpi4py-fft,
of which only pencil.py is used: it needs no FFTW.
"""

import importlib.util
import statistics
import sys

import cupy
import numpy
from mpi4py import MPI

REPETITIONS = 21


def module_pencil(sources):
    spec = importlib.util.spec_from_file_location("pencil", f"{sources}/mpi4py_fft/pencil.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def indices(one):
    """The element's place in the whole array, as its value."""
    axes = [cupy.arange(start, start + count, dtype=float) for start, count in zip(one.substart, one.subshape)]
    x, y, z = cupy.meshgrid(*axes, indexing="ij")
    return cupy.ascontiguousarray((x * one.shape[1] + y) * one.shape[2] + z)


def main():
    way, sources, cells = sys.argv[1], sys.argv[2], int(sys.argv[3])
    world = MPI.COMM_WORLD
    cupy.cuda.Device(world.rank % cupy.cuda.runtime.getDeviceCount()).use()
    pencil = module_pencil(sources)
    rows = pencil.Pencil(pencil.Subcomm(world, [0, 0, 1]), (cells, cells, cells), 2)
    columns = rows.pencil(0)
    transfer = rows.transfer(columns, numpy.dtype(float))
    source, target = indices(rows), cupy.zeros(columns.subshape)
    if way == "before":
        host_source, host_target = numpy.empty(rows.subshape), numpy.empty(columns.subshape)
    times = []
    for _ in range(REPETITIONS):
        target.fill(-1)
        cupy.cuda.get_current_stream().synchronize()
        world.Barrier()
        begin = MPI.Wtime()
        if way == "before":
            source.get(out=host_source)
            transfer.forward(host_source, host_target)
            target.set(host_target)
            cupy.cuda.get_current_stream().synchronize()
        else:
            transfer.forward(source, target)
        times.append(world.allreduce(MPI.Wtime() - begin, MPI.MAX))
    right = world.allreduce(bool((target == indices(columns)).all()), MPI.LAND)
    if world.rank == 0:
        print(f"median: {statistics.median(times[1:]) * 1e3:.4g} ms" if right else "wrong data")
    sys.exit(0 if right else 1)


main()
