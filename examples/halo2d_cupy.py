"""Two-dimensional halo exchange of CuPy arrays by mpi4py: rows as they are, columns as a vector datatype.
gpudt-run mpirun -n 4 python3 halo2d_cupy.py"""

import cupy
from mpi4py import MPI

N = 64  # inner cells in each direction
WIDTH = N + 2


def value(rank, row, column):
    return rank * 1e6 + row * 1e3 + column


def main():
    world = MPI.COMM_WORLD
    comm = world.Create_cart(MPI.Compute_dims(world.size, 2), periods=[True, True])
    up, down = comm.Shift(0, 1)
    left, right = comm.Shift(1, 1)
    cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()

    rows, columns = cupy.indices((WIDTH, WIDTH), dtype=cupy.float64)
    grid = value(comm.rank, rows, columns)
    cells = grid.ravel()  # a view: mpi4py takes contiguous arrays, and the datatype says which cells of them
    row = MPI.DOUBLE.Create_contiguous(N).Commit()
    column = MPI.DOUBLE.Create_vector(N, 1, WIDTH).Commit()
    cupy.cuda.get_current_stream().synchronize()  # MPI does not wait for the program's own work on the GPU

    def at(i, j):
        return cells[i * WIDTH + j:]

    requests = [comm.Irecv([at(0, 1), 1, row], up, 0), comm.Irecv([at(N + 1, 1), 1, row], down, 1),
                comm.Irecv([at(1, 0), 1, column], left, 2), comm.Irecv([at(1, N + 1), 1, column], right, 3),
                comm.Isend([at(N, 1), 1, row], down, 0), comm.Isend([at(1, 1), 1, row], up, 1),
                comm.Isend([at(1, N), 1, column], right, 2), comm.Isend([at(1, 1), 1, column], left, 3)]
    MPI.Request.Waitall(requests)

    inner = cupy.arange(1, N + 1)
    wrong = int((grid[0, 1:-1] != value(up, N, inner)).sum() + (grid[-1, 1:-1] != value(down, 1, inner)).sum() +
                (grid[1:-1, 0] != value(left, inner, N)).sum() + (grid[1:-1, -1] != value(right, inner, 1)).sum())
    wrong = comm.allreduce(wrong)
    row.Free()
    column.Free()
    if comm.rank == 0:
        print(f"halo2d_cupy: {comm.size} processes, {'all right' if wrong == 0 else f'{wrong} cells are WRONG'}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
