"""What the figures of plot.py and patterns.py have in common."""

import sys

try:
    import matplotlib
except ModuleNotFoundError:
    sys.exit("plot.py: no matplotlib here: scripts/setup.sh --plot installs it")

matplotlib.use("Agg")
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator  # noqa: E402  (the backend comes first)

STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 150,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "gpudt",  # the same file from the same data
}


def rows_of(documents, program):
    return [row for document in documents[program] for row in document["rows"]]


def binary_size(value, _position=None):
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:g} {unit}"
        value /= 1024
    return f"{value:g} GiB"


def size_axis(axes, label):
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(binary_size))
    axes.tick_params(axis="x", rotation=35)
    axes.set_xlabel(label)


def time_axis(axes, label):
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(plain if high < 10 * low else NullFormatter())
    axes.set_ylabel(label)
