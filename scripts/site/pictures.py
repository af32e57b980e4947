"""Draws a table of a page: a line for each row over the columns, on a logarithmic scale. Figures in brackets are a second,
dashed line. The table stands below its mark, <!-- picture: what the figures are -->. Below <!-- bars: what they are -->
the last two columns are times (or rates) before and after, and each row has a bar for how many times as fast it became.
"""

import html
import math
import re

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 60, 250, 16, 40
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf",
           "#7f7f7f", "#bcbd22"]
MARK = re.compile(r"<!-- picture: (.*?) -->\n+((?:\|.*\n)+)")
FIGURE = re.compile(r"^(\d+(?:\.\d+)?)(?: to \d+(?:\.\d+)?|(?:, \d+)+)?(?: \((\d+(?:\.\d+)?)(?! B).*\)| \(\d+ B\))?$")

BARS = re.compile(r"<!-- bars: (.*?) -->\n+((?:\|.*\n)+)")
AMOUNT = re.compile(r"^(\d+(?:\.\d+)?) (s|ms|us|GB/s)(?: |$)")
UNITS = {"s": 1, "ms": 1e-3, "us": 1e-6}  # in others more is better


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def series_of(rows):
    """(name, dashed, figures), where a figure may be None."""
    for row in rows:
        found = [FIGURE.match(cell) for cell in row[1:]]
        for group, dashed in ((1, False), (2, True)):
            figures = [float(match[group]) if match and match[group] else None for match in found]
            if sum(figure is not None for figure in figures) > 1:
                yield row[0].replace("`", ""), dashed, figures


def text_at(x, y, what, anchor="middle"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{html.escape(what)}</text>'


def svg_of(label, height, parts):
    return (f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}" font-size="12" '
            f'style="max-width:100%;color:inherit">{"".join(parts)}</svg>')


class Picture:
    def __init__(self, label, columns, series):
        self.label, self.columns, self.series = label, columns, series
        figures = [figure for _, _, line in series for figure in line if figure is not None]
        steps = [step * 10.0 ** power for power in range(-4, 9) for step in (1, 2, 5)]
        low = max(step for step in steps if step <= min(figures))
        high = min(step for step in steps if step >= max(figures))
        self.ticks = [step for step in steps if low <= step <= high]

    def x(self, column):
        return LEFT + (WIDTH - LEFT - RIGHT) * (column + 0.5) / len(self.columns)

    def y(self, figure):
        share = math.log(figure / self.ticks[0]) / math.log(self.ticks[-1] / self.ticks[0])
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def scale(self):
        for tick in self.ticks:
            y = self.y(tick)
            yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#8884"/>'
            yield text_at(LEFT - 6, y + 4, f"{tick:g}", "end")
        for column, name in enumerate(self.columns):
            yield text_at(self.x(column), HEIGHT - BOTTOM + 18, name)
        yield text_at(LEFT, HEIGHT - 4, self.label, "start")

    def lines(self):
        names = list(dict.fromkeys(name for name, _, _ in self.series))
        for place, (name, dashed, figures) in enumerate(self.series):
            colour = COLOURS[names.index(name) % len(COLOURS)]
            points = [(self.x(column), self.y(figure)) for column, figure in enumerate(figures) if figure is not None]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
            y = TOP + 10 + 18 * place
            yield f'<line x1="{WIDTH - RIGHT + 10}" y1="{y}" x2="{WIDTH - RIGHT + 34}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>'
            yield text_at(WIDTH - RIGHT + 40, y + 4, f"({name})" if dashed else name, "start")

    def svg(self):
        return svg_of(self.label, HEIGHT, [*self.scale(), *self.lines()])


def gain_of(before, after):
    """How many times as fast; None if one of them is no amount."""
    found = [AMOUNT.match(text) for text in (before, after)]
    if None in found:
        return None
    (one, unit), (two, other) = [match.groups() for match in found]
    if unit in UNITS:
        return float(one) * UNITS[unit] / (float(two) * UNITS[other])
    return float(two) / float(one)


class Bars:
    LEFT, STEP, LEAST, MOST = 300, 17, 0.03, 1000

    def __init__(self, label, gains):
        self.label, self.gains = label, gains
        self.height = TOP + self.STEP * len(gains) + BOTTOM

    def x(self, gain):
        share = math.log(gain / self.LEAST) / math.log(self.MOST / self.LEAST)
        return self.LEFT + (WIDTH - self.LEFT - 20) * share

    def scale(self):
        for tick in (0.1, 1, 10, 100, 1000):
            x, width = self.x(tick), 2 if tick == 1 else 1
            yield (f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{self.height - BOTTOM}" '
                   f'stroke="#8888" stroke-width="{width}"/>')
            yield text_at(x, self.height - BOTTOM + 16, f"{tick:g}")
        yield text_at(self.LEFT, self.height - 4, self.label, "start")

    def bars(self):
        for place, (name, gain) in enumerate(self.gains):
            y = TOP + self.STEP * place
            low, high = sorted((self.x(1), self.x(gain)))
            yield (f'<rect x="{low:.1f}" y="{y + 3}" width="{high - low:.1f}" height="{self.STEP - 6}" '
                   f'fill="{COLOURS[gain < 1]}"/>')
            yield text_at(self.LEFT - 8, y + 13, name, "end")

    def svg(self):
        return svg_of(self.label, self.height, [*self.scale(), *self.bars()])


def whole_names(rows):
    """The first cells, with the beginning of the row above where a row goes on with it: its second cell is empty."""
    begins = ""
    for row in rows:
        name = row[0].replace("`", "")
        if row[1]:
            begins = name.partition(",")[0]
        yield name if row[1] else f"{begins}, {name}"


def drawn_as_bars(match):
    rows = [cells(line) for line in match[2].strip().splitlines()[2:]]
    gains = [(name, gain_of(*row[-2:])) for name, row in zip(whole_names(rows), rows)]
    gains = [(name, gain) for name, gain in gains if gain]
    if not gains:
        raise ValueError(f"there is nothing to draw in the table below {match[0].splitlines()[0]}")
    return f"{Bars(match[1], gains).svg()}\n\n{match[2]}"


def drawn(match):
    header, _, *rows = [cells(line) for line in match[2].strip().splitlines()]
    series = list(series_of(rows))
    if not series:
        raise ValueError(f"there is nothing to draw in the table below {match[0].splitlines()[0]}")
    return f"{Picture(match[1], header[1:], series).svg()}\n\n{match[2]}"


def with_pictures(markdown):
    return BARS.sub(drawn_as_bars, MARK.sub(drawn, markdown))
