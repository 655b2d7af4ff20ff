"""The picture beside lease.md: lines over the lease, written by hand as the other plots are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log, log10
from xml.sax.saxutils import escape

PANEL_WIDTH = 380
PANEL_HEIGHT = 240
LEFT, TOP, GAP, LEGEND = 56, 56, 70, 22
COLOURS = ("#3b82c4", "#d9822b", "#4f9d69", "#a05195")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes: lines by their names."""

    title: str
    lines: Mapping[str, Points]
    shown: Callable[[float], str] = "{:g}".format


def line_chart(title: str, panels: Sequence[Panel], *, ticks: Sequence[float]) -> str:
    """Draw panels side by side; the lease is on a logarithmic axis below each."""
    width = LEFT + len(panels) * (PANEL_WIDTH + GAP)
    most = max(len(panel.lines) for panel in panels)
    height = TOP + PANEL_HEIGHT + 40 + LEGEND * most
    drawn = [
        _panel(panel, LEFT + at * (PANEL_WIDTH + GAP), ticks) for at, panel in enumerate(panels)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#888">',
            f'<text x="10" y="22" font-size="15">{escape(title)}</text>',
            *drawn,
            "</svg>",
            "",
        ]
    )


def _round_up(greatest: float) -> float:
    """Return the next number whose quarters read well."""
    power = 10 ** floor(log10(greatest)) if greatest > 0 else 1
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= greatest)


def _panel(panel: Panel, left: float, ticks: Sequence[float]) -> str:
    first, last = log(ticks[0]), log(ticks[-1])
    greatest = _round_up(max((y for points in panel.lines.values() for _, y in points), default=0))
    bottom = TOP + PANEL_HEIGHT

    def at_x(x: float) -> float:
        return left + (log(x) - first) / (last - first) * PANEL_WIDTH

    def at_y(y: float) -> float:
        return bottom - y / greatest * PANEL_HEIGHT

    parts = [f'<text x="{left}" y="{TOP - 12}">{escape(panel.title)}</text>']
    for part in (0, 0.25, 0.5, 0.75, 1):
        y = at_y(part * greatest)
        parts.append(
            f'<path d="M{left} {y:.1f}h{PANEL_WIDTH}" stroke="#8884" fill="none"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="11">'
            f"{escape(panel.shown(part * greatest))}</text>"
        )
    under = f'y="{bottom + 18}" text-anchor="middle" font-size="11"'
    parts += [f'<text x="{at_x(x):.1f}" {under}>{x:g} s</text>' for x in ticks]
    for row, (name, points) in enumerate(panel.lines.items()):
        colour = COLOURS[row % len(COLOURS)]
        path = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        parts += [
            f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{colour}"/>'
            for x, y in points
        ]
        top = bottom + 40 + LEGEND * row
        parts.append(
            f'<path d="M{left} {top - 4}h24" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{left + 32}" y="{top}">{escape(name)}</text>'
        )
    return "\n".join(parts)
