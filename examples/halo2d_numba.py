"""Two-dimensional halo exchange of Numba's device arrays by mpi4py: kernels fill the grid, MPI takes its rows and columns.
gpudt-run mpirun -n 4 python3 halo2d_numba.py"""

from mpi4py import MPI
from numba import cuda
import numpy

N = 64  # inner cells in each direction
WIDTH = N + 2


def value(rank, row, column):
    return rank * 1e6 + row * 1e3 + column


@cuda.jit
def fill(cells, rank):
    i, j = cuda.grid(2)
    if i < WIDTH and j < WIDTH:
        cells[i * WIDTH + j] = rank * 1e6 + i * 1e3 + j


def main():
    world = MPI.COMM_WORLD
    comm = world.Create_cart(MPI.Compute_dims(world.size, 2), periods=[True, True])
    up, down = comm.Shift(0, 1)
    left, right = comm.Shift(1, 1)
    cuda.select_device(comm.rank % len(cuda.gpus))

    cells = cuda.device_array(WIDTH * WIDTH, numpy.float64)  # one dimension: the datatype says which cells are sent
    fill[((WIDTH + 15) // 16, (WIDTH + 15) // 16), (16, 16)](cells, comm.rank)
    row = MPI.DOUBLE.Create_contiguous(N).Commit()
    column = MPI.DOUBLE.Create_vector(N, 1, WIDTH).Commit()
    cuda.synchronize()  # MPI does not wait for the program's own work on the GPU

    def at(i, j):
        return cells[i * WIDTH + j:]

    requests = [comm.Irecv([at(0, 1), 1, row], up, 0), comm.Irecv([at(N + 1, 1), 1, row], down, 1),
                comm.Irecv([at(1, 0), 1, column], left, 2), comm.Irecv([at(1, N + 1), 1, column], right, 3),
                comm.Isend([at(N, 1), 1, row], down, 0), comm.Isend([at(1, 1), 1, row], up, 1),
                comm.Isend([at(1, N), 1, column], right, 2), comm.Isend([at(1, 1), 1, column], left, 3)]
    MPI.Request.Waitall(requests)

    grid = cells.copy_to_host().reshape(WIDTH, WIDTH)
    inner = numpy.arange(1, N + 1)
    wrong = int((grid[0, 1:-1] != value(up, N, inner)).sum() + (grid[-1, 1:-1] != value(down, 1, inner)).sum() +
                (grid[1:-1, 0] != value(left, inner, N)).sum() + (grid[1:-1, -1] != value(right, inner, 1)).sum())
    wrong = comm.allreduce(wrong)
    row.Free()
    column.Free()
    if comm.rank == 0:
        print(f"halo2d_numba: {comm.size} processes, {'all right' if wrong == 0 else f'{wrong} cells are WRONG'}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
