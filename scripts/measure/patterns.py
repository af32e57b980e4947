"""Figures of what programs do: many messages, halos, collectives beside NCCL, kinds of memory, whole programs."""

import collections
import math

import matplotlib.pyplot as plt
from drawing import binary_size, rows_of, size_axis, time_axis
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter


def by_ranks(rows, ranks_of):
    groups = collections.defaultdict(list)
    for row in rows:
        groups[ranks_of(row)].append(row)
    return sorted(groups.items())


def ranks_on_grid(row):
    return math.prod(row["grid"])


def lines_by_way(axes, rows, key):
    """A curve for each way, over the number `key` of a row; nothing without rows."""
    for index, way in enumerate(collections.OrderedDict.fromkeys(row["way"] for row in rows)):
        points = sorted((row[key], row["median_us"]) for row in rows if row["way"] == way)
        axes.plot(*zip(*points), color=f"C{index}", marker="o", label=way)


def plain_axis(axes, label, values):
    values = sorted(set(values))
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set_xlabel(label)


def figure_many(rows, ranks, machine):
    sizes = sorted({row["bytes"] for row in rows})
    figure, (all_axes,) = plt.subplots(1, len(sizes), figsize=(4 * len(sizes), 4), layout="constrained", sharey=True,
                                       squeeze=False)
    for axes, size in zip(all_axes, sizes):
        lines_by_way(axes, [row for row in rows if row["bytes"] == size], "number")
        plain_axis(axes, "messages at once", (row["number"] for row in rows))
        axes.set_title(f"{binary_size(size)} each")
    time_axis(all_axes[0], "time (µs)")
    all_axes[0].legend()
    figure.suptitle(f"Messages of different vectors, {ranks} ranks, {machine}")
    return figure


def figure_halo(rows, ranks, machine):
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    lines_by_way(axes, rows, "side")
    plain_axis(axes, "side of the block, in points", (row["side"] for row in rows))
    time_axis(axes, "time (µs)")
    axes.set_title(f"Halo with 26 neighbours, {ranks} ranks, {machine}")
    axes.legend()
    return figure


def beside_nccl(documents):
    """Contiguous rows of the calls that NCCL was measured with, by the same number of ranks."""
    rows = [row for program in ("gpudt-collectives", "gpudt-reductions") for row in rows_of(documents, program)
            if row.get("layout", "contiguous") == "contiguous"]
    measured = {(row["call"], row["ranks"]) for row in rows if row["way"] == "nccl"}
    return [row for row in rows if (row["call"], row["ranks"]) in measured and row["way"] in ("mpi", "nccl")]


def figure_collectives(rows, ranks, machine):
    calls = list(collections.OrderedDict.fromkeys(row["call"] for row in rows))
    height = math.ceil(len(calls) / 4)
    figure, all_axes = plt.subplots(height, min(4, len(calls)), figsize=(13, 3.4 * height), layout="constrained",
                                    squeeze=False)
    for axes, call in zip(all_axes.flat, calls):
        chosen = [row for row in rows if row["call"] == call]
        lines_by_way(axes, chosen, "bytes")
        size_axis(axes, "bytes to each")
        time_axis(axes, "time (µs)")
        axes.set_title(call)
    for axes in list(all_axes.flat)[len(calls):]:
        axes.set_axis_off()
    all_axes[0][0].legend()
    figure.suptitle(f"Collectives, {ranks} ranks, {machine}")
    return figure


def figure_kinds(rows, machine):
    """A field for each pair of kinds: microseconds; its colour: the time divided by that of copies by hand."""
    rows = [row for row in rows if row["type"] == "char"]
    if not rows:
        return None
    kinds = list(collections.OrderedDict.fromkeys(row["from"] for row in rows))
    sizes = sorted({row["bytes"] for row in rows})
    times = {(row["bytes"], row["from"], row["to"], row["way"]): row["median_us"] for row in rows}
    figure, (all_axes,) = plt.subplots(1, len(sizes), figsize=(4.2 * len(sizes), 4.4), layout="constrained",
                                       squeeze=False)
    for axes, size in zip(all_axes, sizes):
        ratio = [[times.get((size, there, here, "mpi"), math.nan) / times.get((size, there, here, "hand"), math.nan)
                  for here in kinds] for there in kinds]
        shown = axes.imshow(ratio, cmap="RdYlGn_r", aspect="auto", norm=LogNorm(0.1, 10))
        for y, there in enumerate(kinds):
            for x, here in enumerate(kinds):
                if us := times.get((size, there, here, "mpi")):
                    axes.text(x, y, f"{us:.3g}", ha="center", va="center", fontsize=7)
        axes.set_xticks(range(len(kinds)), kinds, rotation=60)
        axes.set_yticks(range(len(kinds)), kinds if axes is all_axes[0] else [])
        axes.grid(False)
        axes.set_title(binary_size(size))
    all_axes[0].set_ylabel("from")
    figure.colorbar(shown, ax=all_axes, label="time / copies by hand", shrink=0.8)
    figure.suptitle(f"Messages between kinds of memory (µs), {machine}")
    return figure


ProgramRow = collections.namedtuple("ProgramRow", "program gpus before after times")


def program_rows(text):
    """Of the tables that scripts/programs print: how many times as fast each program is with gpudt."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 8 or not cells[4][:1].isdigit() or not cells[5][:1].isdigit():
            continue
        program, gpus, before, after = cells[0], cells[3], cells[4], cells[5]
        slower, faster = (float(value.split()[0]) for value in (before, after))
        if before.endswith("/s"):  # a rate
            slower, faster = faster, slower
        yield ProgramRow(program, gpus, before, after, slower / faster)


def rounded(value):
    number, unit = value.split()
    return f"{float(number):.3g} {unit}" if float(number) < 1000 else f"{float(number):.0f} {unit}"


def figure_programs(rows):
    """Bars from 1, where nothing changes, to how many times as fast it is."""
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: row.times)
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(rows) + 1), layout="constrained")
    axes.barh(range(len(rows)), [row.times - 1 for row in rows], left=1,
              color=["C0" if row.times >= 1 else "C3" for row in rows])
    for y, row in enumerate(rows):
        axes.text(max(row.times, 1) * 1.1, y, f"{rounded(row.before)} → {rounded(row.after)}", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(0.1, 20 * max(row.times for row in rows))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.set_axisbelow(True)
    axes.set_yticks(range(len(rows)), [row.program for row in rows])
    axes.set_xlabel("times as fast with gpudt")
    axes.set_title(f"Programs before and with gpudt, {', '.join(sorted({row.gpus for row in rows}))}")
    return figure


def figures_by_ranks(documents, machine):
    for name, rows, ranks_of, draw in (
            ("many", rows_of(documents, "gpudt-many"), lambda row: row["ranks"], figure_many),
            ("halo", rows_of(documents, "gpudt-halo"), ranks_on_grid, figure_halo),
            ("collectives", beside_nccl(documents), lambda row: row["ranks"], figure_collectives)):
        for ranks, of_these in by_ranks(rows, ranks_of):
            yield f"{name}_{ranks}.png", draw(of_these, ranks, machine)
