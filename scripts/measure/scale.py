#!/usr/bin/env python3
"""Fit how time grows with n in what gpudt-scale measured: the slope in a log-log plot, by least squares over the larger
half of the n (below them, constant costs hide it). A slope of at most 1.1 counts as linear or better.

  mpirun -np 1 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-scale --json one.json
  mpirun -np 2 ...                                        --json two.json     and 4, 8, 16, 32
  scale.py one.json two.json ... --out FOLDER

Prints a Markdown table; draws FOLDER/scale.png where matplotlib is. Exits 1 if something grows faster on device memory
than linearly and than the same calls on host memory, which show what the machine's caches and MPI itself add.
"""

import argparse
import collections
import json
import math
import pathlib
import sys

LINEAR = 1.1  # what noise makes of 1
FEWEST_POINTS = 3
TITLES = {
    "blocks": "blocks of a vector", "lists": "blocks of an index list", "first-use": "blocks, first use of the datatype",
    "depth": "depth of the tree", "messages": "messages under way", "ring": "ranks, Sendrecv in a ring",
    "bcast": "ranks, broadcast",
}


def read(paths):
    """{call: {way: {n: median in microseconds}}}, and the name of the machine. Of several measurements, the best: what
    else happened on the machine only adds."""
    series, machine = collections.OrderedDict(), ""
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        machine = document["machine"]["gpu"]
        for row in document["rows"]:
            points = series.setdefault(row["call"], collections.OrderedDict()).setdefault(row["way"], {})
            points[row["n"]] = min(row["median_us"], points.get(row["n"], math.inf))
    return series, machine


def slope(points):
    """Of log(time) over log(n), by least squares over the larger half of the points; None of too few."""
    half = sorted(points.items())[-max(FEWEST_POINTS, (len(points) + 1) // 2):]
    if len(half) < FEWEST_POINTS:
        return None
    xs, ys = [math.log(n) for n, _ in half], [math.log(us) for _, us in half]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / sum((x - mean_x) ** 2 for x in xs)


Fit = collections.namedtuple("Fit", "call points exponent host verdict good")


def fits(series):
    for call, ways in series.items():
        points = ways.get("device", {})
        exponent, host = slope(points), slope(ways.get("host", {}))
        if exponent is None:
            continue
        if exponent <= LINEAR:
            verdict = "linear or better"
        elif host is not None and exponent <= host + LINEAR - 1:
            verdict = "as on host memory"
        else:
            verdict = "FASTER THAN LINEAR"
        yield Fit(call, points, exponent, host, verdict, not verdict.isupper())


def table(found):
    """The rows of a Markdown table."""
    yield "| time against the number of | from | to | time, us | exponent | on host memory | |"
    yield "|---|---|---|---|---|---|---|"
    for fit in found:
        first, last = min(fit.points), max(fit.points)
        host = "-" if fit.host is None else f"{fit.host:.2f}"
        yield (f"| {TITLES.get(fit.call, fit.call)} | {first} | {last} | {fit.points[first]:.4g} to {fit.points[last]:.4g} |"
               f" {fit.exponent:.2f} | {host} | {fit.verdict} |")


def draw(found, series, machine, path):
    import matplotlib  # pylint: disable=import-outside-toplevel  (the table needs none)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # pylint: disable=import-outside-toplevel

    columns = 4
    figure, grid = plt.subplots(-(-len(found) // columns), columns, figsize=(14, 3.4 * -(-len(found) // columns)),
                                squeeze=False, layout="constrained")
    for axes in grid.flat[len(found):]:
        axes.set_axis_off()
    for axes, fit in zip(grid.flat, found):
        for way, style in (("device", "o-"), ("host", "s:")):
            points = sorted(series[fit.call].get(way, {}).items())
            if points:
                axes.plot(*zip(*points), style, markersize=3.5, label=f"{way} memory")
        last, time = max(fit.points.items())
        axes.plot([min(fit.points), last], [time * min(fit.points) / last, time], color="grey", linewidth=0.8,
                  label="linear")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(f"{TITLES.get(fit.call, fit.call)}: exponent {fit.exponent:.2f}", fontsize=9)
        axes.set_ylabel("time (µs)")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"Cost against scale, {machine}")
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", nargs="+", type=pathlib.Path, help="files written by gpudt-scale --json")
    parser.add_argument("--out", type=pathlib.Path, help="folder for scale.png")
    arguments = parser.parse_args()
    series, machine = read(arguments.json)
    found = list(fits(series))
    if not found:
        sys.exit(f"scale.py: {FEWEST_POINTS} values of n are needed to fit anything")
    print("\n".join(table(found)))
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        try:
            draw(found, series, machine, arguments.out / "scale.png")
        except ImportError:
            print("scale.py: no matplotlib here, so no figure", file=sys.stderr)
    sys.exit(0 if all(fit.good for fit in found) else 1)


if __name__ == "__main__":
    main()
