#!/usr/bin/env python3
"""Draw figures 4, 5 and 6 of Jenkins et al. from the JSON that gpudt-packbench and gpudt-pingpong write.

  figure 4  time to pack into host memory over the packed size, by layout: the CUDA API's best way, gpudt, and gpudt
            relative to a kernel written by hand
  figure 5  packing a vector: gpudt against cudaMemcpy2D over the block length, for a fixed number of blocks
  figure 6  one-way time of a ping-pong with vectors of 8-, 32- and 128-byte blocks: gpudt against cudaMemcpy2D

Of what the programs that start communication in kernels write (scripts/measure/initiated.sh):

  initiated_pingpong  one-way time over the packed size, by layout: put by a kernel, and by MPI on device memory
  initiated_vectors   GPUrdma's multi-matrix-vector product: rate over the size of a batch, beside the paper's
  initiated_apps      dCUDA's case studies: time of a step on one and two GPUs

Of other programs, with the number of ranks in the file's name where that may differ:

  many_RANKS         time of many messages at once over their number, by way (gpudt-many)
  halo_RANKS         time of a halo exchange over the block's side, by way (gpudt-halo)
  collectives_RANKS  time over the size of a block: by MPI and by NCCL (gpudt-collectives, gpudt-reductions)
  programs           before and with gpudt, for each row that the scripts in scripts/programs print (a .md file)
  kinds              time from every kind of memory to every other, and relative to copies by hand (gpudt-kinds)

Each figure is drawn if a file given holds its rows:

  LD_PRELOAD=libgpudt-pmpi.so gpudt-packbench --targets host --json pack.json
  LD_PRELOAD=libgpudt-pmpi.so gpudt-packbench --targets host --calls pack --json lengths.json \\
      --layouts vector:4,vector:8,vector:16,... --sizes 4K,8K,16K,...
  mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-pingpong --json pingpong.json
  plot.py pack.json lengths.json pingpong.json --out figures
"""

import argparse
import collections
import json
import pathlib
import sys

from drawing import STYLE, rows_of, size_axis, time_axis  # matplotlib's backend comes first
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter
from patterns import figure_kinds, figure_programs, figures_by_ranks, program_rows

API_WAYS = ("memcpy2d", "blocks")
FIGURE_6_LAYOUTS = ("vector:8", "vector:32", "vector:128")
FEWEST_LENGTHS = 3  # block lengths that make a curve in figure 5
Row = collections.namedtuple("Row", "layout bytes blocks way median ratio")


def read(paths):
    """The documents in all files, by program, and the name of the machine."""
    documents, machine = collections.defaultdict(list), ""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        machine = document["machine"]["gpu"]
        documents[document["program"]].append(document)
    return documents, machine


def row_of(record):
    return Row(record["layout"], record["bytes"], record["blocks"], record["way"], record["median_us"],
               record.get("ratio_to_hand"))


def packs_to_host(documents):
    """Rows that pack into host memory; of several with one name, the last."""
    chosen = {}
    for record in (record for document in documents for record in document["rows"]):
        if record["target"] == "host" and record["call"] == "pack":
            chosen[record["layout"], record["bytes"], record["way"]] = row_of(record)
    return list(chosen.values())


def is_vector(layout):
    return layout.startswith("vector:")


def of_many_kinds(documents):
    """Without those that hold vectors alone, to sweep their block length for figure 5."""
    return [document for document in documents if not all(is_vector(row["layout"]) for row in document["rows"])]


def sends_from_device(documents):
    return [row_of(record) for document in documents for record in document["rows"]
            if record["send"] == record["receive"] == "device"]


def line(axes, rows, value, **style):
    """One curve over the packed size; nothing without rows."""
    points = sorted((row.bytes, value(row)) for row in rows)
    if points:
        axes.plot(*zip(*points), **style)


def by_layout(rows):
    groups = collections.OrderedDict()
    for row in rows:
        groups.setdefault(row.layout, []).append(row)
    return groups


def best_api(rows):
    """Of the CUDA API's ways, the fastest at each size."""
    best = {}
    for row in rows:
        if row.way in API_WAYS and (row.bytes not in best or row.median < best[row.bytes].median):
            best[row.bytes] = row
    return best.values()


def figure_4(rows, machine):
    if not rows:
        return None
    figure = plt.figure(figsize=(13, 4.2), layout="constrained")
    api, relative = figure.add_subplot(1, 3, 1), figure.add_subplot(1, 3, 3)
    gpudt = figure.add_subplot(1, 3, 2, sharey=api)
    for index, (layout, group) in enumerate(by_layout(rows).items()):
        style = {"color": f"C{index % 10}", "marker": "o^"[index // 10 % 2], "label": layout}
        ours = [row for row in group if row.way == "mpi"]
        line(api, best_api(group), lambda row: row.median, **style)
        line(gpudt, ours, lambda row: row.median, **style)
        line(relative, [row for row in ours if row.ratio], lambda row: row.ratio, **style)
    for axes, title in ((api, "CUDA API (2-D copies, or one per block)"), (gpudt, "gpudt (MPI_Pack)")):
        size_axis(axes, "packed size")
        axes.set_title(title)
    time_axis(api, "time to host memory (µs)")
    if relative.lines:
        size_axis(relative, "packed size")
        relative.axhline(1, color="black", linewidth=0.8)
        relative.set_ylim(0, max(1.2, 1.1 * relative.get_ylim()[1]))
        relative.set_ylabel("time relative to a kernel by hand")
        relative.set_title("gpudt / hand-written kernel")
    else:
        relative.set_axis_off()
        relative.text(0.5, 0.5, "no kernel by hand was measured", ha="center")
    handles, labels = gpudt.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=6)  # below all panels
    figure.suptitle(f"Packing into host memory, {machine}")
    return figure


def block_length(layout):
    return int(layout.split(":")[1])


def figure_5(rows, machine):
    """Block length on the x axis, for the number of blocks that most lengths were measured with."""
    vectors = [row for row in rows if is_vector(row.layout)]
    lengths = collections.defaultdict(set)
    for row in vectors:
        lengths[row.blocks].add(block_length(row.layout))
    if not lengths:
        return None
    blocks = max(lengths, key=lambda n: (len(lengths[n]), n))
    if len(lengths[blocks]) < FEWEST_LENGTHS:
        return None
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for way, label in (("mpi", "gpudt (MPI_Pack)"), ("kernel", "kernel by hand"), ("memcpy2d", "cudaMemcpy2D")):
        points = sorted((block_length(row.layout), row.median) for row in vectors
                        if row.blocks == blocks and row.way == way)
        if points:
            axes.plot(*zip(*points), marker="o", label=label)
    size_axis(axes, "block length")
    time_axis(axes, "time to host memory (µs)")
    axes.set_title(f"Packing a vector of {blocks} blocks at stride 512 B, {machine}")
    axes.legend()
    return figure


def figure_6(rows, machine):
    figure, axes = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
    drawn = False
    for index, layout in enumerate(FIGURE_6_LAYOUTS):
        for way, dash, label in (("mpi", "-", "gpudt"), ("memcpy2d", "--", "cudaMemcpy2D")):
            chosen = [row for row in rows if row.layout == layout and row.way == way]
            drawn = drawn or bool(chosen)
            line(axes, chosen, lambda row: row.median, color=f"C{index}", linestyle=dash, marker="o",
                 label=f"{label}, {block_length(layout)}-byte blocks")
    if not drawn:
        plt.close(figure)
        return None
    size_axis(axes, "message size (packed)")
    time_axis(axes, "one-way time (µs)")
    axes.set_title(f"Ping-pong of vectors between two ranks, {machine}")
    axes.legend()
    return figure


def figure_initiated_pingpong(rows, machine):
    """Of the kernel's ways, with any number of blocks, the fastest at each size."""
    best = {}
    for row in rows:
        kind = {"rank": "kernel", "ranks": "kernel", "grid": "kernel", "mpi": "mpi"}.get(row["way"])
        key = kind, row["layout"], row["bytes"]
        if kind and row["median_us"] < best.get(key, float("inf")):
            best[key] = row["median_us"]
    if not best:
        return None
    figure, both = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained", sharey=True)
    layouts = list(collections.OrderedDict.fromkeys(row["layout"] for row in rows))
    for axes, kind, title in zip(both, ("kernel", "mpi"), ("put_notify in a kernel", "MPI_Send and MPI_Recv")):
        for index, layout in enumerate(layouts):
            points = sorted((key[2], us) for key, us in best.items() if key[:2] == (kind, layout))
            if points:
                axes.plot(*zip(*points), color=f"C{index % 10}", marker="o^"[index // 10 % 2], label=layout)
        size_axis(axes, "packed size")
        axes.set_title(title)
    time_axis(both[0], "one-way time (µs)")
    figure.legend(*both[0].get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0), ncols=6)
    figure.suptitle(f"Messages between two GPUs, {machine}")
    return figure


GPURDMA_TABLE_3 = {"GPI-2, paper": {60: 4.9, 120: 9.2, 240: 1.1, 480: 26.5, 960: 37.9, 1920: 46.3},
                   "GPUrdma, paper": {60: 22.4, 120: 35.9, 240: 48.1, 480: 55.6, 960: 57.7, 1920: 60}}


def figure_initiated_vectors(rows, machine):
    rows = [row for row in rows if row["program"] == "vectors"]
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
    for way, label in (("kernel", "kernel that communicates"), ("mpi", "kernels and MPI (gpudt)")):
        points = sorted((row["batch_kb"], row["million_per_s"]) for row in rows if row["way"] == way)
        if points:
            axes.plot(*zip(*points), marker="o", label=label)
    for label, points in GPURDMA_TABLE_3.items():
        axes.plot(*zip(*points.items()), linestyle="--", color="gray", marker="s" if "GPI" in label else "^", label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("batch (KB)")
    time_axis(axes, "million vectors a second")
    axes.set_title(f"Multi-matrix-vector product, {machine}")
    axes.legend()
    return figure


def figure_initiated_apps(rows, machine):
    best = {}
    for row in rows:
        key = row["app"], row["gpus"], row["way"]
        best[key] = min(row["iteration_us"], best.get(key, float("inf")))
    if not best:
        return None
    apps = list(collections.OrderedDict.fromkeys(row["app"] for row in rows))
    figure, all_axes = plt.subplots(1, len(apps), figsize=(3 * len(apps), 3.5), layout="constrained", squeeze=False)
    for axes, app in zip(all_axes[0], apps):
        gpus = sorted({key[1] for key in best if key[0] == app})
        for offset, way in ((-0.2, "mpi"), (0.2, "kernel")):
            axes.bar([index + offset for index in range(len(gpus))], [best.get((app, n, way), 0) for n in gpus],
                     width=0.38, label="kernels and MPI" if way == "mpi" else "one kernel")
        axes.set_xticks(range(len(gpus)), [f"{n} GPU{'s' if n > 1 else ''}" for n in gpus])
        axes.set_title(app)
    all_axes[0][0].set_ylabel("a step (µs)")
    all_axes[0][0].legend()
    figure.suptitle(f"dCUDA's case studies, as much work for each GPU, {machine}")
    return figure


def save(figure, path):
    if figure is None:
        return False
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    print(path)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path,
                        help="files written with --json, and with what scripts/programs/all.sh prints (.md)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder for the pictures")
    arguments = parser.parse_args()
    documents, machine = read(file for file in arguments.files if file.suffix == ".json")
    tables = [file.read_text(encoding="utf-8") for file in arguments.files if file.suffix == ".md"]
    packbench, pingpong = documents["gpudt-packbench"], documents["gpudt-pingpong"]
    arguments.out.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update(STYLE)
    figures = [("figure4.png", figure_4(packs_to_host(of_many_kinds(packbench)), machine)),
               ("figure5.png", figure_5(packs_to_host(packbench), machine)),
               ("figure6.png", figure_6(sends_from_device(pingpong), machine)),
               ("initiated_pingpong.png",
                figure_initiated_pingpong(rows_of(documents, "gpudt-initiated-pingpong"), machine)),
               ("initiated_vectors.png",
                figure_initiated_vectors(rows_of(documents, "gpudt-initiated-gpurdma"), machine)),
               ("initiated_apps.png", figure_initiated_apps(rows_of(documents, "gpudt-initiated-apps"), machine)),
               ("kinds.png", figure_kinds(rows_of(documents, "gpudt-kinds"), machine)),
               ("programs.svg", figure_programs([row for table in tables for row in program_rows(table)])),
               *figures_by_ranks(documents, machine)]
    drawn = [save(figure, arguments.out / name) for name, figure in figures]
    if not any(drawn):
        sys.exit("plot.py: these files hold nothing that a figure is made of")


if __name__ == "__main__":
    main()
