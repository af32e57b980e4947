#!/usr/bin/env python3
"""A matrix of Heat on GPUs, from rows to columns: checks each element, and prints the median time.

usage: mpirun -np 2 resplit.py ROWS
"""

import statistics
import sys

import heat
import torch
from mpi4py import MPI

REPETITIONS = 11


def main():
    rows = int(sys.argv[1])
    world = MPI.COMM_WORLD
    heat.use_device("gpu")
    device = heat.get_device().torch_device
    first, shape, _ = heat.get_comm().chunk((rows, rows), 0)
    mine = torch.arange(first * rows, (first + shape[0]) * rows, dtype=torch.float64, device=device)
    matrix = heat.array(mine.reshape(shape), is_split=0, device="gpu")
    times = []
    for _ in range(REPETITIONS):
        torch.cuda.synchronize()
        world.Barrier()
        begin = MPI.Wtime()
        columns = heat.resplit(matrix, 1)
        torch.cuda.synchronize()
        times.append(world.allreduce(MPI.Wtime() - begin, MPI.MAX))
    first, shape, _ = heat.get_comm().chunk((rows, rows), 1)
    across = torch.arange(first, first + shape[1], dtype=torch.float64, device=device)
    down = torch.arange(rows, dtype=torch.float64, device=device) * rows
    right = world.allreduce(torch.equal(columns.larray, down[:, None] + across[None, :]), MPI.LAND)
    if world.rank == 0:
        print(f"median: {statistics.median(times[1:]) * 1e3:.4g} ms" if right else "wrong data")
    sys.exit(0 if right else 1)


main()
