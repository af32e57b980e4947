#!/usr/bin/env python3
"""Say what the programs that start communication in kernels have found, from the JSON files in a folder.

  scripts/measure/initiated.sh results && initiated_results.py results

First the limits that are to be kept, each with what was measured; then the papers' tables beside ours. Exits with 1 if
data were wrong or a limit is not kept.
"""

import argparse
import json
import pathlib
import sys

GPURDMA_VECTORS = {60: (4.9, 22.4), 120: (9.2, 35.9), 240: (1.1, 48.1), 480: (26.5, 55.6), 960: (37.9, 57.7),
                   1920: (46.3, 60.0)}
GPURDMA_PINGPONG = {"mpi": 38, "all blocks": 40.5, "each block": 52}
DCUDA_LATENCY = {("put_notify 4 B", "same GPU"): 2.4, ("put_notify 4 B", "other GPU"): 6.7,
                 ("notify", "same GPU"): 1.9, ("notify", "other GPU"): 3.4}
DCUDA_SPEEDUP = {"particles": 1.7, "horizontal diffusion": 1.2, "sparse matrix-vector": 1.4, "power iteration": 1.33}
KERNEL_WAYS = ("rank", "ranks", "grid")


def read(folder):
    """The rows of all files, by file name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8"))["rows"] for path in sorted(folder.glob("*.json"))}


def least(rows, value, **wanted):
    found = [row[value] for row in rows if all(row.get(name) == of for name, of in wanted.items())]
    return min(found, default=None)


class Limits:
    def __init__(self):
        self.failed = 0

    def keep(self, what, value, limit, at_least=False):
        if value is None:
            print(f"  not measured  {what}")
            self.failed += 1
            return
        kept = value >= limit if at_least else value <= limit
        self.failed += not kept
        print(f"  {'kept    ' if kept else 'NOT KEPT'}  {what}: {value:.2f} (at {'least' if at_least else 'most'} {limit:g})")


def best_one_way(rows, layout, size, ways=KERNEL_WAYS):
    """The fastest of some ways; sizes are the nearest from below in whole blocks."""
    found = [row["median_us"] for row in rows
             if row["layout"] == layout and 0.9 * size <= row["bytes"] <= size and row["way"] in ways]
    return min(found, default=None)


def one_way(rows, limits):
    layouts = list(dict.fromkeys(row["layout"] for row in rows))
    slowest = [(best_one_way(rows, layout, 1024), layout) for layout in layouts]
    slowest = max((pair for pair in slowest if pair[0] is not None), default=(None, "?"))
    def keep(what, layout, size, value, limit):
        bare = best_one_way(rows, layout, size, ("bare",))
        limits.keep(f"{what}, us (stores and a flag alone: {f'{bare:.2f}' if bare else '-'})", value, limit)

    keep(f"1 KiB of any layout (slowest: {slowest[1]})", "vector:8", 1024, slowest[0], 3.0)
    for layout, size, text, limit in (("vector:8", 65536, "64 KiB in blocks of 8 bytes", 4.0),
                                      ("vector:8", 1 << 20, "1 MiB in blocks of 8 bytes", 14.5),
                                      ("contiguous", 65536, "64 KiB contiguous", 3.7),
                                      ("contiguous", 1 << 20, "1 MiB contiguous", 6.8)):
        keep(text, layout, size, best_one_way(rows, layout, size), limit)
    iput, ours = best_one_way(rows, "vector:8", 65536, ("iput",)), best_one_way(rows, "vector:8", 65536)
    limits.keep("64 KiB in blocks of 8 bytes: times as fast as NVSHMEM's iput", iput / ours if iput and ours else None,
                4, at_least=True)


def matching(rows, limits):
    for call in ("notify", "put_notify 4 B"):
        exact, any_of = (least(rows, "median_us", call=call, where="other GPU", wildcards=wild) for wild in (False, True))
        limits.keep(f"wildcards add to {call}, us", any_of - exact if exact and any_of else None, 0.3)


def partitions(rows, limits):
    """Of 1 KiB, from pready to wait, by one block for each."""
    rows = [row for row in rows if row["call"] == "pready"]
    slowest = max((row for row in rows if row["blocks"] == 1), key=lambda row: row["median_us"], default=None)
    limits.keep(f"a partition of 1 KiB of any layout, us (slowest: {slowest['layout'] if slowest else '-'})",
                slowest["median_us"] if slowest else None, 4.0)
    print("\npartitions of 1 KiB, us: layout, blocks")
    for row in rows:
        print(f"  {row['layout']:18} {row['blocks']:4} {row['median_us']:7.2f}")


def ways_table(rows):
    print("\none way, us: one block; blocks with a notification each; one notification for all; packed and put; MPI;"
          " stores and flags alone")
    for layout in dict.fromkeys(row["layout"] for row in rows):
        for size in dict.fromkeys(row["bytes"] for row in rows if row["layout"] == layout):
            cells = []
            for way in (*KERNEL_WAYS, "packed", "mpi", "bare"):
                value = least(rows, "median_us", layout=layout, bytes=size, way=way)
                cells.append(f"{value:9.2f}" if value else "        -")
            print(f"  {layout:18} {size:9} {' '.join(cells)}")


def latency_table(rows):
    print("\nnotified access, us (dCUDA's thesis, table 5.1, InfiniBand)")
    for row in rows:
        if "wildcards" in row:
            theirs = DCUDA_LATENCY.get((row["call"], row["where"]))
            print(f"  {row['call']:15} {row['where']:10} {'wildcards' if row['wildcards'] else 'exact':10}"
                  f" {row['median_us']:7.2f} {f'({theirs})' if theirs else ''}")


def gpurdma_tables(rows):
    print("\nping-pong by 30 blocks, Gbit/s (GPUrdma, section 7)")
    for row in rows:
        if row["program"] == "pingpong":
            print(f"  {row['way']:11} {row['gbit_per_s']:9.1f} ({GPURDMA_PINGPONG[row['way']]})")
    print("\nmulti-matrix-vector product, million a second: kernels and MPI, one kernel, ratio (GPUrdma, table 3)")
    for size, (host, gpu) in GPURDMA_VECTORS.items():
        mpi, kernel = (least(rows, "million_per_s", program="vectors", batch_kb=size, way=way) for way in ("mpi", "kernel"))
        if mpi and kernel:
            print(f"  {size:5} KB {mpi:9.1f} {kernel:9.1f} {kernel / mpi:6.2f} ({host} {gpu} {gpu / host:.2f})")


def apps_table(rows):
    print("\ncase studies, us a step, as much work for each GPU: kernels and MPI, one kernel, ratio (dCUDA's best);"
          "\ncommunication is what two GPUs take more than one")
    for app in dict.fromkeys(row["app"] for row in rows):
        best = {(way, gpus): least(rows, "iteration_us", app=app, gpus=gpus, way=way)
                for way in ("mpi", "kernel") for gpus in (1, 2)}
        for gpus in (1, 2):
            mpi, kernel = best["mpi", gpus], best["kernel", gpus]
            if mpi and kernel:
                print(f"  {app:22} {gpus} GPU {mpi:9.1f} {kernel:9.1f} {mpi / kernel:6.2f} ({DCUDA_SPEEDUP.get(app)})")
        if all(best.values()):
            added = [best[way, 2] - best[way, 1] for way in ("mpi", "kernel")]
            print(f"  {'':22} communication {added[0]:6.1f} {added[1]:9.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="in which scripts/measure/initiated.sh has measured")
    files = read(parser.parse_args().folder)
    every = [row for rows in files.values() for row in rows]
    wrong = [row for row in every if not row.get("verified", True)]
    limits = Limits()
    print(f"{len(every)} rows, {len(wrong)} with wrong data")
    for row in wrong:
        print(f"  WRONG: {row}")
    pingpong, latency, gpurdma = (files.get(name, []) for name in ("pingpong", "latency", "gpurdma"))
    one_way(pingpong, limits)
    matching(latency, limits)
    partitions(latency, limits)
    ways_table(pingpong)
    latency_table(latency)
    gpurdma_tables(gpurdma)
    apps_table(files.get("apps", []) + files.get("apps-1", []))
    return 1 if wrong or limits.failed else 0


if __name__ == "__main__":
    sys.exit(main())
