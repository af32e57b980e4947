#!/usr/bin/env python3
"""Steps of PyFR: a Taylor-Green vortex in a periodic cube of hexahedra (Navier-Stokes, order 3, doubles, Runge-Kutta of
order 4). Prints the time of a step, and compares the solutions of two runs.

usage: pyfr_steps.py mesh FILE.pyfrm CELLS RANKS
       mpirun -np 2 pyfr_steps.py run FILE.pyfrm BACKEND standard|cuda-aware STEPS SOLUTION.npz
       pyfr_steps.py compare SOLUTION.npz SOLUTION.npz

`mesh` makes CELLS^3 elements, and a slab of them for each rank: PyFR has no way of its own to divide a mesh, and the
libraries that it calls may be missing. `run` takes a few steps, then STEPS that count. `compare` prints the greatest
difference, as a share of the greatest value of that quantity if that is beyond 1.
"""

import ctypes
import glob
import importlib.util
import itertools
import math
import os
import sys
import tempfile

import numpy

WARM_UP = 5
STEP = 2**-11  # stable with 32^3 elements; as a sum of it is exact, no step is divided

CONFIGURATION = """
[backend]
precision = double
[backend-cuda]
mpi-type = {mpi_type}
device-id = local-rank
[constants]
gamma = 1.4
mu = 6.25e-4
Pr = 0.71
Ps = 111.607
[solver]
system = navier-stokes
order = 3
[solver-time-integrator]
scheme = rk4
controller = none
tstart = 0
tend = {end}
dt = {step}
[solver-interfaces]
riemann-solver = rusanov
ldg-beta = 0.5
ldg-tau = 0.1
[solver-interfaces-quad]
flux-pts = gauss-legendre
[solver-elements-hex]
soln-pts = gauss-legendre
[soln-ics]
rho = 1 + (1.0/(16.0*Ps))*(cos(2*x) + cos(2*y))*(cos(2*z) + 2)
u = sin(x)*cos(y)*cos(z)
v = -cos(x)*sin(y)*cos(z)
w = 0
p = Ps + (1.0/16.0)*(cos(2*x) + cos(2*y))*(cos(2*z) + 2)
"""


# --- the mesh --------------------------------------------------------------------------------------------------------

SQUARE = ((0, 0), (1, 0), (1, 1), (0, 1))


def write_gmsh(file, cells):
    """A cube of side 2 pi in Gmsh's format 2.2, its opposite faces periodic."""
    points = cells + 1

    def node(i, j, k):
        return 1 + i + points * (j + points * k)

    names = ['3 1 "fluid"']
    for side, axis in itertools.product((0, 1), range(3)):
        names.append(f'2 {2 + 3 * side + axis} "periodic_{axis}_{"lr"[side]}"')
    place = [2 * math.pi * i / cells for i in range(points)]
    nodes = [f"{node(i, j, k)} {place[i]!r} {place[j]!r} {place[k]!r}"
             for k, j, i in itertools.product(range(points), repeat=3)]
    elements = []

    def element(kind, region, corners):
        elements.append(f"{len(elements) + 1} {kind} 2 {region} 1 {' '.join(str(node(*corner)) for corner in corners)}")

    for k, j, i in itertools.product(range(cells), repeat=3):
        element(5, 1, [(i + a, j + b, k + c) for c in (0, 1) for a, b in SQUARE])
    for axis, side in itertools.product(range(3), (0, 1)):
        for i, j in itertools.product(range(cells), repeat=2):
            corners = [[i + a, j + b] for a, b in SQUARE]
            for corner in corners:
                corner.insert(axis, side * cells)
            element(3, 2 + 3 * side + axis, corners)
    file.write("$MeshFormat\n2.2 0 8\n$EndMeshFormat\n")
    for section, lines in (("PhysicalNames", names), ("Nodes", nodes), ("Elements", elements)):
        file.write(f"${section}\n{len(lines)}\n" + "\n".join(lines) + f"\n$End{section}\n")


def make_mesh(path, cells, ranks):
    import h5py
    from pyfr.partitioners.base import BasePartitioner, write_partitioning
    from pyfr.readers import get_reader_by_name
    from pyfr.progress import NullProgressSequence
    with tempfile.TemporaryFile("w+") as file:
        write_gmsh(file, cells)
        file.seek(0)
        get_reader_by_name("gmsh", file, NullProgressSequence()).write(path, 1e-5)
    with h5py.File(path, "r+") as mesh:
        connected, curved, kinds, _ = BasePartitioner.construct_global_con(mesh)
        height = mesh["nodes"]["location"][mesh["eles/hex"]["nodes"][:, 0], 2]
        layer = numpy.unique(height, return_inverse=True)[1]
        # The first rank has the lowest and the highest layers: PyFR wants periodic neighbours on one rank.
        parts = (layer * ranks + cells // 2) // cells % ranks
        if ranks > 1:
            write_partitioning(mesh, str(ranks),
                               BasePartitioner.construct_partitioning(mesh, curved, kinds, connected, parts))


# --- a run -----------------------------------------------------------------------------------------------------------

def find_libraries():
    """PyFR looks for names without a version, which only the packages for developers have; Python's have them, too."""
    folders = [os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64")]
    nvidia = importlib.util.find_spec("nvidia")
    for folder in nvidia.submodule_search_locations if nvidia else []:
        folders += glob.glob(f"{folder}/*/lib")
    for name in ("cuda", "nvrtc", "cublasLt"):
        variable = f"PYFR_{name.upper()}_LIBRARY_PATH"
        found = [f"lib{name}.so", f"lib{name}.so.1"]
        for folder in folders:
            found += sorted(glob.glob(f"{folder}/lib{name}.so*"))
        for path in found:
            try:
                ctypes.CDLL(path)
            except OSError:
                continue
            os.environ.setdefault(variable, path)
            break


def run(path, backend_name, mpi_type, steps, solution):
    import mpi4py.rc
    mpi4py.rc.initialize = False
    from pyfr.backends import get_backend
    from pyfr.inifile import Inifile
    from pyfr.mpiutil import init_mpi
    from pyfr.readers.native import NativeReader
    from pyfr.solvers import get_solver
    find_libraries()
    init_mpi()
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    configuration = Inifile(CONFIGURATION.format(mpi_type=mpi_type, step=STEP, end=(WARM_UP + steps) * STEP))
    backend = get_backend(backend_name, configuration)
    solver = get_solver(backend, NativeReader(path).mesh, None, configuration)

    def advance(step):
        solver.advance_to(step * STEP)
        backend.wait()
        world.Barrier()

    advance(WARM_UP)
    begin = MPI.Wtime()
    advance(WARM_UP + steps)
    took = world.allreduce(MPI.Wtime() - begin, MPI.MAX)
    everything = world.gather(numpy.stack(solver.soln), root=0)
    if world.rank == 0:
        numpy.savez(solution, *everything, steps=solver.nsteps)
        print(f"{world.size} ranks, {sum(one.size for one in everything)} values, {solver.nsteps} steps, "
              f"{MPI.Get_library_version().splitlines()[0].split(',')[0]}")
        print(f"step: {1e3 * took / steps:.4f} ms", flush=True)


def compare(one, other):
    one, other = numpy.load(one), numpy.load(other)
    assert one.files == other.files and one["steps"] == other["steps"]
    worst = 0
    for name in one.files:
        a, b = one[name], other[name]
        assert a.shape == b.shape and numpy.isfinite(a).all() and numpy.isfinite(b).all()
        if name != "steps":
            all_but_quantities = (0, 1, 3)  # kinds of elements, points, quantities, elements
            largest = numpy.maximum(numpy.abs(a).max(axis=all_but_quantities), 1)
            worst = max(worst, (numpy.abs(a - b).max(axis=all_but_quantities) / largest).max())
    return worst


def main():
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "mesh":
        make_mesh(arguments[0], int(arguments[1]), int(arguments[2]))
    elif command == "run":
        run(*arguments[:3], int(arguments[3]), arguments[4])
    elif command == "compare":
        print(f"difference: {compare(*arguments):.3g}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
