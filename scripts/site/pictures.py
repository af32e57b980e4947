"""Draws a table of a page: a line for each row over the columns, on a logarithmic scale. Figures in brackets are a second,
dashed line. The table stands below its mark, <!-- picture: what the figures are -->."""

import html
import math
import re

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 60, 250, 16, 40
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf",
           "#7f7f7f", "#bcbd22"]
MARK = re.compile(r"<!-- picture: (.*?) -->\n+((?:\|.*\n)+)")
FIGURE = re.compile(r"^(\d+(?:\.\d+)?)(?: to \d+(?:\.\d+)?|(?:, \d+)+)?(?: \((\d+(?:\.\d+)?)(?! B).*\)| \(\d+ B\))?$")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def series_of(rows):
    """(name, dashed, figures), where a figure may be None."""
    for row in rows:
        found = [FIGURE.match(cell) for cell in row[1:]]
        for group, name, dashed in ((1, row[0], False), (2, row[0] + ", in brackets", True)):
            figures = [float(match[group]) if match and match[group] else None for match in found]
            if sum(figure is not None for figure in figures) > 1:
                yield name, dashed, figures


class Picture:
    def __init__(self, label, columns, series):
        self.label, self.columns, self.series = label, columns, series
        figures = [figure for _, _, line in series for figure in line if figure is not None]
        steps = [step * 10.0 ** power for power in range(-3, 9) for step in (1, 2, 5)]
        low = max(step for step in steps if step <= min(figures))
        high = min(step for step in steps if step >= max(figures))
        self.ticks = [step for step in steps if low <= step <= high]

    def x(self, column):
        return LEFT + (WIDTH - LEFT - RIGHT) * (column + 0.5) / len(self.columns)

    def y(self, figure):
        share = math.log(figure / self.ticks[0]) / math.log(self.ticks[-1] / self.ticks[0])
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def text(self, x, y, what, anchor="middle", colour="currentColor"):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(what)}</text>'

    def scale(self):
        for tick in self.ticks:
            y = self.y(tick)
            yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#8884"/>'
            yield self.text(LEFT - 6, y + 4, f"{tick:g}", "end")
        for column, name in enumerate(self.columns):
            yield self.text(self.x(column), HEIGHT - BOTTOM + 18, name)
        yield self.text(LEFT, HEIGHT - 4, self.label, "start")

    def lines(self):
        names = list(dict.fromkeys(name.removesuffix(", in brackets") for name, _, _ in self.series))
        for place, (name, dashed, figures) in enumerate(self.series):
            colour = COLOURS[names.index(name.removesuffix(", in brackets")) % len(COLOURS)]
            points = [(self.x(column), self.y(figure)) for column, figure in enumerate(figures) if figure is not None]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
            y = TOP + 10 + 18 * place
            yield f'<line x1="{WIDTH - RIGHT + 10}" y1="{y}" x2="{WIDTH - RIGHT + 34}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>'
            yield self.text(WIDTH - RIGHT + 40, y + 4, name, "start")

    def svg(self):
        return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(self.label)}" font-size="12" '
                f'style="max-width:100%;color:inherit">{"".join([*self.scale(), *self.lines()])}</svg>')


def drawn(match):
    header, _, *rows = [cells(line) for line in match[2].strip().splitlines()]
    series = list(series_of(rows))
    if not series:
        raise ValueError(f"there is nothing to draw in the table below {match[0].splitlines()[0]}")
    return f"{Picture(match[1], header[1:], series).svg()}\n\n{match[2]}"


def with_pictures(markdown):
    return MARK.sub(drawn, markdown)
