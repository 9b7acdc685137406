"""A line plot as SVG text, for machines without a plotting library.

Comes in: numbers. Goes out: one self-contained SVG. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 110, 50, 50
TICKS = 6
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


@dataclass(frozen=True)
class Series:
    """One line: its name and its values, one for each x."""

    name: str
    values: Sequence[float]


def line_plot(title: str, x: Sequence[float], series: Sequence[Series], *, x_label: str, y_label: str) -> str:
    """All series over the same x, from zero up."""
    x_max = max(x, default=1.0) or 1.0
    y_max = nice_ceiling(max((value for one in series for value in one.values), default=1.0))

    def at(x_value: float, y_value: float) -> str:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x_value / x_max
        down = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y_value / y_max
        return f"{across:.1f},{down:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="28" text-anchor="middle" font-size="16">{escape(title)}</text>',
        f'<text x="{(WIDTH - RIGHT + LEFT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="16" y="{TOP - 12}">{escape(y_label)}</text>',
    ]
    for tick in range(TICKS + 1):
        share = tick / TICKS
        (left, down), (right, _) = (at(value, y_max * share).split(",") for value in (0.0, x_max))
        across, bottom = at(x_max * share, 0.0).split(",")
        parts.append(f'<path d="M{left},{down}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down}" text-anchor="end" font-size="11">{y_max * share:,.0f}</text>')
        parts.append(
            f'<text x="{across}" y="{float(bottom) + 18}" text-anchor="middle" font-size="11">{x_max * share:.1f}'
            "</text>"
        )
    for one, colour in zip(series, COLOURS):
        points = " ".join(at(x_value, y_value) for x_value, y_value in zip(x, one.values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if one.values:
            across, down = at(x_max, one.values[-1]).split(",")
            parts.append(f'<text x="{float(across) + 6}" y="{down}" fill="{colour}">{escape(one.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def nice_ceiling(value: float) -> float:
    """
    >>> nice_ceiling(870.0), nice_ceiling(1300.0), nice_ceiling(0.0)
    (900.0, 1500.0, 1.0)
    """
    if value <= 0:
        return 1.0
    step: float = 10 ** math.floor(math.log10(value)) / 2
    return math.ceil(value / step) * step
