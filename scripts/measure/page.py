#!/usr/bin/env python3
"""Write FOLDER/results.md from what measure.sh has left in FOLDER: each figure and table of Jenkins et al. ("Processing
MPI Derived Datatypes on Noncontiguous GPU-Resident Data") with the paper's figures beside ours, then what the paper does
not have. What was not measured is named as missing.

  page.py FOLDER
"""

import argparse
import json
import pathlib
import sys

import scale

# --- the paper's figures (an NVIDIA C2050 with PCIe 2 and an AMD Opteron, QDR InfiniBand) --------------------------------

FIGURE_4 = {
    "speed-up": "up to 20 (vector of 8-byte blocks)",
    "wide": "below 1 at every size; about 1 for large ones (128-byte blocks)",
    "generic, small": "1.2 to 1.3; struct 1.2 to 1.8",
    "generic, large": "about 1",
}
FIGURE_5 = "cudaMemcpy2D does best where blocks are multiples of 32 bytes, and falls far behind everywhere else."
FIGURE_6 = ("Up to 700 % faster than by cudaMemcpy2D with 8-byte blocks and large messages; the same with 128-byte blocks;"
            " the network's 2.0 GB/s bound what is large.")
# Milliseconds: (load, order) -> (pack kernel, cudaMemcpy2D) of the packing or copy, or of the user's work that follows.
TABLE_2_ALONE = {"add": 1.00, "up": 3.34, "down": 2.56}
TABLE_2_PACK_ALONE = (2.55, 2.97)
TABLE_2 = {
    ("add", "user first"): (3.52, 3.00), ("add", "pack first"): (3.53, 1.03),
    ("up", "user first"): (3.65, 3.66), ("up", "pack first"): (4.08, 4.05),
    ("down", "user first"): (3.18, 5.53), ("down", "pack first"): (5.08, 5.53),
}
LOADS = {"add": "multiprocessors (vector add)", "up": "PCIe, host to GPU", "down": "PCIe, GPU to host"}
# GFLOPS a node, four nodes: side -> ((double: CUDA, pack), (single: CUDA, pack)).
TABLE_3 = {
    128: ((3.76, 3.84), (3.80, 3.87)), 256: ((13.79, 13.81), (15.12, 15.14)), 512: ((40.05, 40.82), (46.87, 47.80)),
    1024: ((88.34, 87.35), (125.82, 124.88)), 2048: ((130.63, 130.97), (213.73, 214.72)),
}
# Milliseconds, by rank: (CPU reference, CUDA copies, pack kernel).
TABLE_4 = [(0.96, 0.43, 0.35), (0.40, 0.25, 0.16), (1.68, 0.65, 0.57), (1.53, 0.61, 0.53), (0.92, 0.42, 0.34),
           (0.26, 0.19, 0.11), (0.83, 0.39, 0.31), (0.55, 0.29, 0.20)]
TABLE_4_SAVED = "13 to 43 % (median 20.8 %)"

MIB = 1 << 20
BY_HAND = ("memcpy2d", "blocks")  # the CUDA API's ways


class Folder:
    """What was measured, by file name without .json; rows are empty for what was not."""

    def __init__(self, path):
        self.path = path
        self.documents = {}
        for file in sorted(path.glob("*.json")):
            self.documents[file.stem] = json.loads(file.read_text(encoding="utf-8"))

    def rows(self, name):
        return self.documents.get(name, {}).get("rows", [])

    def where(self, name, **wanted):
        return [row for row in self.rows(name) if all(row.get(key) == value for key, value in wanted.items())]

    def has(self, file):
        return (self.path / file).is_file()


def number(value):
    if value is None:
        return "-"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def size(value):
    for unit in ("B", "KiB", "MiB"):
        if value < 1024 or unit == "MiB":
            return f"{value:.4g} {unit}"
        value /= 1024


def table(head, rows):
    """Lines of a Markdown table; one line that says so if there are no rows."""
    if not rows:
        return ["*not measured*", ""]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell if isinstance(cell, str) else number(cell) for cell in row) + " |" for row in rows]
    return lines + [""]


def picture(folder, file):
    return [f"![{file}]({file})", ""] if folder.has(file) else []


def span(values):
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    return number(values[0]) if min(values) == max(values) else f"{number(min(values))} to {number(max(values))}"


def medians(rows, *keys):
    """{(values of the keys): median}."""
    return {tuple(row[key] for key in keys): row["median_us"] for row in rows}


def ratios(times, slow, quick):
    """[(key without the way, time by `slow` / time by `quick`)]: the way is the last of each key."""
    return [(key[:-1], time / times[key[:-1] + (quick,)]) for key, time in times.items()
            if key[-1] == slow and times.get(key[:-1] + (quick,))]


def figure_4(folder):
    rows = folder.where("packbench", target="host", call="pack")
    times = medians(rows, "layout", "bytes", "way")
    versus_copy = ratios(times, "memcpy2d", "mpi")
    versus_hand = ratios(times, "mpi", "kernel")

    def of(layout):
        return [ratio for key, ratio in versus_copy if key[0] == layout]

    small = [ratio for key, ratio in versus_hand if key[1] < MIB]
    large = [ratio for key, ratio in versus_hand if key[1] >= MIB]
    narrow = of("vector:8")
    lines = ["## Figure 4: packing into host memory", ""] + picture(folder, "figure4.png")
    lines += table(["", "paper", "here"], [] if not rows else [
        ["cudaMemcpy2D / packing, 8-byte blocks, at most", FIGURE_4["speed-up"], max(narrow) if narrow else "-"],
        ["cudaMemcpy2D / packing, 128-byte blocks", FIGURE_4["wide"], span(of("vector:128"))],
        ["packing by any datatype / kernel by hand, below 1 MiB", FIGURE_4["generic, small"], span(small)],
        ["the same, from 1 MiB on", FIGURE_4["generic, large"], span(large)]])
    if not rows:
        return lines
    sizes = sorted({row["bytes"] for row in rows if row["layout"] == "contiguous"} or {rows[0]["bytes"]})
    chosen = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    lines += ["Microseconds to host memory: gpudt; the CUDA API's best way; a kernel by hand.", ""]
    body = []
    for layout in dict.fromkeys(row["layout"] for row in rows):
        cells = [layout]
        for wanted in chosen:
            near = min((row["bytes"] for row in rows if row["layout"] == layout), key=lambda b: abs(b - wanted))
            api = [times[layout, near, way] for way in BY_HAND if (layout, near, way) in times]
            cells.append("; ".join(number(value) for value in (times.get((layout, near, "mpi")), min(api, default=None),
                                                               times.get((layout, near, "kernel")))))
        body.append(cells)
    return lines + table(["layout"] + [size(wanted) for wanted in chosen], body)


def figure_5(folder):
    rows = folder.rows("block-lengths")
    times = medians(rows, "blocks", "layout", "way")
    layouts_of = {}  # each length was measured with many numbers of blocks: the one that most lengths have in common
    for row in rows:
        layouts_of.setdefault(row["blocks"], {})[row["layout"]] = None
    blocks = max(layouts_of, key=lambda n: (len(layouts_of[n]), n), default=0)
    body = [[layout.split(":")[1] + " B"] + [times.get((blocks, layout, way)) for way in ("mpi", "kernel", "memcpy2d")]
            for layout in layouts_of.get(blocks, ())]
    title = "## Figure 5: packing a vector, by block length" + (f" ({blocks} blocks)" if blocks else "")
    return [title, "", "Paper: " + FIGURE_5 + " Here, us:", ""] + \
        picture(folder, "figure5.png") + table(["blocks of", "gpudt", "kernel by hand", "cudaMemcpy2D"], body)


def figure_6(folder):
    rows = [row for row in folder.rows("pingpong") if row["send"] == row["receive"] == "device"]
    times = medians(rows, "layout", "bytes", "way")
    body = []
    for layout in ("vector:8", "vector:32", "vector:128"):
        for bytes_ in sorted({key[1] for key in times if key[0] == layout}):
            ours, copy = times.get((layout, bytes_, "mpi")), times.get((layout, bytes_, "memcpy2d"))
            body.append([layout.split(":")[1] + " B", size(bytes_), ours, copy, copy / ours if ours and copy else None])
    return ["## Figure 6: ping-pong between two GPUs, one way", "", "Paper: " + FIGURE_6 + " Here, us:", ""] + \
        picture(folder, "figure6.png") + \
        table(["blocks of", "message", "gpudt", "cudaMemcpy2D", "cudaMemcpy2D / gpudt"], body)


def table_2(folder):
    """In milliseconds, and relative to the same without the other."""
    lines = ["## Table 2: packing beside the application's own work, 16 MiB", "",
             "Milliseconds (and relative to being alone) of what began second: the packing in \"user first\", the user's"
             " work in \"pack first\". Paper: pack kernel, then cudaMemcpy2D. Here: gpudt, kernel by hand, cudaMemcpy2D.",
             ""]
    rows = folder.rows("contention")
    largest = max((row["bytes"] for row in rows), default=0)
    ours = {(row["load"], row["order"], row["way"]): row for row in rows if row["bytes"] == largest}

    def here(load, order, way):
        row = ours.get((load, order, way))
        if row is None:
            return "-"
        what, alone = ("pack", row["pack_alone_us"]) if order == "user first" else ("user", row["user_alone_us"])
        time = row[what]["median_us"]
        return number(time / 1e3) + (f" ({time / alone:.2f})" if alone else "")

    body = []
    for (load, order), theirs in TABLE_2.items() if rows else ():
        alone = TABLE_2_PACK_ALONE if order == "user first" else (TABLE_2_ALONE[load],) * 2
        paper = [f"{time:.2f} ({time / base:.2f})" for time, base in zip(theirs, alone)]
        body.append([LOADS[load], order] + paper + [here(load, order, way) for way in ("mpi", "kernel", "memcpy2d")])
    return lines + table(["load", "order", "paper, pack", "paper, CUDA", "gpudt", "kernel by hand", "cudaMemcpy2D"], body)


def table_3(folder):
    rates = {(row["precision"], row["side"], row["way"]): row["GF_per_s"]
             for row in folder.where("stencil", call="iteration")}
    sides = sorted({side for _, side, _ in rates})
    body = []
    for side in sides:
        cells = [f"{side} x {side}"]
        for index, precision in enumerate(("double", "single")):
            theirs = TABLE_3.get(side)
            cells += ["-" if theirs is None else f"{theirs[index][0]}; {theirs[index][1]}",
                      "; ".join(number(rates.get((precision, side, way))) for way in ("memcpy2d", "mpi"))]
        body.append(cells)
    return ["## Table 3: nine-point stencil, GFLOPS a GPU", "",
            "Each time: halo by CUDA copies; by packing (here: MPI with device pointers). Paper: four nodes; here two GPUs.",
            ""] + table(["per GPU", "double, paper", "double, here", "single, paper", "single, here"], body)


def table_4(folder):
    times = medians(folder.where("mesh", call="pack"), "particles", "bytes", "way")
    body = [[str(particles), size(bytes_), time / 1e3, times.get((particles, bytes_, "mpi"), 0) / 1e3,
             f"{100 * (1 - times.get((particles, bytes_, 'mpi'), 0) / time):.0f} %"]
            for (particles, bytes_, way), time in times.items() if way == "copies"]
    lines = ["## Table 4: packing a Voronoi block of nine allocations", "",
             f"Paper, 8 ranks of about 4096 particles: {min(row[1] for row in TABLE_4)} to {max(row[1] for row in TABLE_4)}"
             f" ms by one copy a field, {min(row[2] for row in TABLE_4)} to {max(row[2] for row in TABLE_4)} ms by one"
             f" kernel, {TABLE_4_SAVED} less. Here, ms:", ""]
    return lines + table(["particles", "bytes", "a copy for each field", "one datatype (gpudt)", "less"], body)


def collectives(folder):
    """By number of processes: as messages between GPUs where that is possible, through the host, and by hand."""
    body = []
    runs = [name.removesuffix("-auto") for name in folder.documents
            if name.startswith("collectives-") and name.endswith("-auto")]
    for run in runs:
        ranks = run.removeprefix("collectives-")
        ours = medians(folder.rows(f"{run}-auto"), "call", "layout", "bytes", "way")
        staged = medians(folder.rows(f"{run}-staging"), "call", "layout", "bytes", "way")
        body += [[ranks, call, layout, size(bytes_), time, staged.get((call, layout, bytes_, "mpi")),
                  ours.get((call, layout, bytes_, "memcpy2d"))]
                 for (call, layout, bytes_, way), time in ours.items() if way == "mpi"]
    return ["### Collectives on blocks in GPU memory, us", ""] + table(
        ["processes", "call", "layout", "to each", "gpudt", "through the host", "by hand (memcpy2d)"], body)


def by_way(folder, name, head, cells_of):
    """A table with a column for each way, of the files NAME-2 and NAME-4, and their pictures. `cells_of` a row: the
    first ones, after the number of processes."""
    times, pictures = {}, []
    for ranks in (2, 4):
        for row in folder.rows(f"{name}-{ranks}"):
            times.setdefault((str(ranks), *cells_of(row)), {})[row["way"]] = row["median_us"]
        pictures += picture(folder, f"{name}_{ranks}.png")
    ways = list(dict.fromkeys(way for by_ways in times.values() for way in by_ways))
    return pictures + table(["processes", *head, *ways],
                            [[*cells, *(by_ways.get(way) for way in ways)] for cells, by_ways in times.items()])


def one_gpu(folder):
    """Two ranks that share one."""
    by_hand = medians(folder.rows("one-gpu-by-hand"), "layout", "bytes", "way")
    body = [[layout, size(bytes_), time] + [by_hand.get((layout, bytes_, way)) for way in ("zerocopy", "memcpy2d")]
            for (layout, bytes_), time in medians(folder.rows("one-gpu"), "layout", "bytes").items()]
    return ["### Two ranks on one GPU, one way, us", ""] + table(
        ["layout", "bytes", "gpudt", "by hand (kernels)", "by hand (memcpy2d)"], body)


def beyond(folder):
    """What the paper does not have."""
    lines = ["## Beyond the paper", ""]
    lines += ["### Many messages at once, of different vectors, us", ""]
    lines += by_way(folder, "many", ["messages", "bytes of each"], lambda row: (str(row["number"]), size(row["bytes"])))
    lines += ["### Halo of a 3-D block, 26 neighbours, us", ""]
    lines += by_way(folder, "halo", ["block"], lambda row: (f"{row['side']}^3",))
    lines += collectives(folder)
    lines += picture(folder, "collectives_2.png") + picture(folder, "collectives_4.png") + picture(folder, "kinds.png") + \
        picture(folder, "programs.svg")
    lines += one_gpu(folder)
    lines += ["### What the library adds to a call on host memory, ns", ""]
    body = []
    for name in [name for name in folder.documents if name.startswith("overhead-")]:
        body += [[name, row["operation"], row["added_ns"], row["added_ns_per_call"]] for row in folder.rows(name)]
    lines += table(["run", "operation", "added", "for each call"], body)
    lines += ["### Cost against scale", ""]
    series, machine = scale.read([folder.path / f"{name}.json" for name in folder.documents if name.startswith("scale-")])
    found = list(scale.fits(series))
    if not found:
        return lines + ["*not measured*", ""]
    try:
        scale.draw(found, series, machine, folder.path / "scale.png")
    except ImportError:
        pass
    lines += picture(folder, "scale.png") + list(scale.table(found)) + [""]
    return lines


def costs(folder):
    tuning = folder.documents.get("tuning")
    body = sorted(tuning["costs"].items()) if tuning else []
    return ["## Costs measured by gpudt-tune", ""] + table(["constant", "measured"], body)


def unverified(folder):
    """[(file, row)] of rows whose data were wrong."""
    return [(name, row) for name in folder.documents for row in folder.rows(name) if row.get("verified") is False]


def page(folder):
    machine = next((document["machine"] for document in folder.documents.values() if "machine" in document), {})
    lines = ["# Figures and tables of Jenkins et al., on this machine", ""]
    if machine:
        lines += [f"{machine['gpu_count']} x {machine['gpu']}; {machine['cpu']}; {machine['mpi_library']}; "
                  f"gpudt {machine['gpudt_version'] or 'not loaded'}. Medians.", ""]
    if machine.get("simulated"):
        lines += ["**On the SIMULATED device: these figures mean nothing.**", ""]
    for name, row in unverified(folder):
        lines += [f"**WRONG DATA** in {name}: {row.get('layout', row.get('call'))}, {row.get('way')}", ""]
    for part in (figure_4, figure_5, figure_6, table_2, table_3, table_4, beyond, costs):
        lines += part(folder)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = Folder(arguments.folder)
    if not folder.documents:
        sys.exit(f"page.py: {arguments.folder} holds nothing that was measured")
    file = arguments.folder / "results.md"
    file.write_text(page(folder), encoding="utf-8")
    print(file)


if __name__ == "__main__":
    main()
