"""Writes a contiguous and a chunked dataset with all processes together, and reads them again."""
import numpy as np
from mpi4py import MPI
import h5py

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
columns = np.arange(64 * 37.0).reshape(64, 37)
rows = np.arange(100 * 50, dtype="i4").reshape(100, 50)

with h5py.File("data.h5", "w", driver="mpio", comm=comm) as file:
    contiguous = file.create_dataset("contiguous", (64, ranks * 37), dtype="f8")
    chunked = file.create_dataset("chunked", (ranks * 100, 50), dtype="i4", chunks=(10, 50))
    with contiguous.collective:
        contiguous[:, rank * 37:(rank + 1) * 37] = columns + rank * 1e6
    with chunked.collective:
        chunked[rank::ranks, :] = rows + rank * 7

with h5py.File("data.h5", "r", driver="mpio", comm=comm) as file:
    everything = np.empty((64, ranks * 37))
    with file["contiguous"].collective:
        file["contiguous"].read_direct(everything)
    mine = np.empty((100, 50), dtype="i4")
    with file["chunked"].collective:
        mine[:] = file["chunked"][rank::ranks, :]
    line = np.empty(ranks * 37)
    file["contiguous"].read_direct(line, np.s_[5, :])

right = (mine == rows + rank * 7).all() and (line == everything[5]).all()
right = right and all((everything[:, i * 37:(i + 1) * 37] == columns + i * 1e6).all() for i in range(ranks))
if comm.allreduce(bool(right), MPI.LAND) and rank == 0:
    print("all right")
