"""A canvas for the pictures of docs/time.md: shapes and texts in, an SVG out."""

from __future__ import annotations

from collections.abc import Sequence

INK, SOFT, GRID = "#1f2933", "#616e7c", "#e4e7eb"
BLUE, ORANGE, RED, GREEN = "#2b6cb0", "#c05621", "#c53030", "#2f855a"
BANDS = ("#ebf4ff", "#f7fafc")


class Canvas:
    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="13" role="img">',
            f"<title>{title}</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str, line: str = "none", round_: int = 0
    ) -> None:
        self._add(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" '
            f'stroke="{line}" rx="{round_}"/>'
        )

    def line(self, points: Sequence[tuple[float, float]], color: str, *, width: float = 1, dashes: str = "") -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._add(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"{dashed}/>')

    def dot(self, x: float, y: float, color: str, *, hollow: bool = False) -> None:
        fill = "white" if hollow else color
        self._add(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{color}" stroke-width="2"/>')

    def text(
        self, x: float, y: float, words: str, *, color: str = INK, at: str = "start", size: int = 13, bold: bool = False
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self._add(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{at}" font-size="{size}"{weight}>{words}</text>'
        )

    def done(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])

    def _add(self, part: str) -> None:
        self._parts.append(part)
