"""Plots as SVG text, for machines without a plotting library.

Comes in: numbers. Goes out: one self-contained SVG. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class Panel:
    """Bars beside each other: by name, a value for each group. Where there is no number, there is no bar."""

    title: str
    values: Mapping[str, Sequence[float]]
    is_log: bool = False


PANEL_WIDTH, PANEL_LEFT, BAR_WIDTH = 400, 20, 26


def bar_plots(title: str, groups: Sequence[str], panels: Sequence[Panel]) -> str:
    """Panels in a row, each from zero up, or by its logarithm; every bar says its value."""
    width = PANEL_WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{width / 2}" y="24" text-anchor="middle" font-size="16">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _bars(panel, groups, left=number * PANEL_WIDTH + PANEL_LEFT)
    names = list(panels[0].values) if panels else []
    for number, (name, colour) in enumerate(zip(names, COLOURS)):
        across = PANEL_LEFT + 140 * number
        parts.append(f'<rect x="{across}" y="{HEIGHT - 18}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{across + 18}" y="{HEIGHT - 8}" font-size="12">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(panel: Panel, groups: Sequence[str], *, left: float) -> list[str]:
    top, bottom = TOP + 30, HEIGHT - BOTTOM - 10
    known = [value for values in panel.values.values() for value in values if not math.isnan(value)]
    most = max(known, default=1.0) or 1.0

    def height(value: float) -> float:
        share = math.log1p(value) / math.log1p(most) if panel.is_log else value / most
        return (bottom - top) * share

    parts = [f'<text x="{left}" y="{TOP}" font-size="13">{escape(panel.title)}</text>']
    room = (PANEL_WIDTH - 2 * PANEL_LEFT) / max(1, len(groups))
    for number, group in enumerate(groups):
        middle = left + room * (number + 0.5)
        parts.append(f'<text x="{middle}" y="{bottom + 16}" text-anchor="middle" font-size="11">{escape(group)}</text>')
        for place, (values, colour) in enumerate(zip(panel.values.values(), COLOURS)):
            value = values[number]
            if math.isnan(value):
                continue
            across, high = middle + BAR_WIDTH * (place - len(panel.values) / 2), height(value)
            parts.append(
                f'<rect x="{across:.1f}" y="{bottom - high:.1f}" width="{BAR_WIDTH - 4}" height="{high:.1f}"'
                f' fill="{colour}"/>'
            )
            parts.append(
                f'<text x="{across + BAR_WIDTH / 2 - 2:.1f}" y="{bottom - high - 4:.1f}" text-anchor="middle"'
                f' font-size="9">{short(value)}</text>'
            )
    parts.append(f'<path d="M{left},{bottom}h{PANEL_WIDTH - 2 * PANEL_LEFT}" stroke="#999"/>')
    return parts


def short(value: float) -> str:
    """
    >>> short(0.934), short(12.34), short(4321.0)
    ('0.93', '12', '4,321')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def nice_ceiling(value: float) -> float:
    """
    >>> nice_ceiling(870.0), nice_ceiling(1300.0), nice_ceiling(0.0)
    (900.0, 1500.0, 1.0)
    """
    if value <= 0:
        return 1.0
    step: float = 10 ** math.floor(math.log10(value)) / 2
    return math.ceil(value / step) * step
