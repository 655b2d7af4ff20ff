"""A bar chart as SVG, written by hand: no plotting library for one picture.

Bars lie, labels stand left of them, values right; a thin line spans least to greatest. It reads on
light and dark pages.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

ROW = 22
LABELS_WIDTH = 210
BARS_WIDTH = 420
VALUES_WIDTH = 150
TOP = 48


class Mark(NamedTuple):
    """One bar."""

    label: str
    value: float
    least: float
    greatest: float


def bar_chart(
    title: str, marks: Sequence[Mark], *, unit: str, shown: Callable[[float], str]
) -> str:
    """Draw the marks, the longest as wide as the chart."""
    longest = max(mark.greatest for mark in marks) or 1
    width = LABELS_WIDTH + BARS_WIDTH + VALUES_WIDTH
    height = TOP + ROW * len(marks) + 12
    body = [
        _bar(mark, TOP + ROW * row, BARS_WIDTH / longest, shown) for row, mark in enumerate(marks)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#888">',
            f'<text x="10" y="22" font-size="15">{escape(title)}</text>',
            f'<text x="10" y="38" font-size="11">{escape(unit)}, median; the line spans all rounds'
            "</text>",
            *body,
            "</svg>",
            "",
        ]
    )


def _bar(mark: Mark, top: float, per_unit: float, shown: Callable[[float], str]) -> str:
    middle = top + ROW / 2
    left = LABELS_WIDTH + mark.least * per_unit
    right = LABELS_WIDTH + mark.greatest * per_unit
    text = middle + 4
    return (
        f'<text x="{LABELS_WIDTH - 8}" y="{text}" text-anchor="end">{escape(mark.label)}</text>'
        f'<rect x="{LABELS_WIDTH}" y="{top + 3}" width="{mark.value * per_unit:.1f}" '
        f'height="{ROW - 6}" fill="#3b82c4"/>'
        f'<path d="M{left:.1f} {middle}H{right:.1f}" stroke="#d9822b" stroke-width="2"/>'
        f'<text x="{right + 8:.1f}" y="{text}">{escape(shown(mark.value))}</text>'
    )
