"""Small plots as SVG text: what a report needs, and no more. Pure: numbers in, markup out.

Colours and fonts are the page's (CSS classes), so a plot follows light and dark. Text in an SVG
shrinks with it, so each plot is drawn twice, for a wide and for a narrow screen, and the page shows
the one that fits. Every mark has a title, which browsers show and screen readers read. All text
that comes from outside is escaped here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10
from typing import Literal

WIDE, NARROW = 520, 340
FULL = 1080
HEIGHT = 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 30
TOP_MIN = 1e-9
"""What is smaller is drawn as nothing."""
_TEXT_PX = 7
"""About the width of a character of an axis label."""

Show = Callable[[float], str]
"""Says a number with its unit, for people."""

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_TIME_STEPS = (
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 30, 91, 182, 365, 730, 1_826, 3_652)),
)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot over time."""

    name: str
    values: Sequence[float | None]
    """One for each time; None leaves a gap."""
    tone: int = 1
    """Which of the page's colours."""
    shape: Literal["line", "area"] = "line"


@dataclass(frozen=True, slots=True)
class Bar:
    """One column of a plot."""

    label: str
    value: float
    hint: str
    """What its title says."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A dashed line through columns, such as a percentile."""

    name: str
    at: float
    """In columns from the left: 2.5 is in the middle of the third."""


def over_time(
    starts_ms: Sequence[int],
    step_ms: int,
    series: Sequence[Series],
    *,
    show: Show,
    label: str,
    full: bool = False,
) -> str:
    """Draw lines over spans of time that begin at these moments and are `step_ms` long."""
    return _both(
        lambda width: _over_time(width, starts_ms, step_ms, series, show, label), full=full
    )


def columns(
    bars: Sequence[Bar],
    *,
    show: Show,
    label: str,
    marks: Sequence[Mark] = (),
    tone: int = 1,
    full: bool = False,
) -> str:
    """Draw one column for each bar."""
    return _both(lambda width: _columns(width, bars, show, label, marks, tone), full=full)


def share_bar(share: float, tone: int = 1) -> str:
    """Draw a bar for a share of the whole, as wide as its place allows."""
    percent = 100 * min(max(share, 0.0), 1.0)
    fill = f'<i class="b{tone}" style="width:{percent:.2f}%"></i>'
    return f'<span class="share" aria-hidden="true">{fill}</span>'


def legend(series: Sequence[Series]) -> str:
    """Say which colour is which."""
    keys = "".join(f'<li><i class="b{each.tone}"></i>{escape(each.name)}</li>' for each in series)
    return f'<ul class="legend">{keys}</ul>'


# Scales


def nice_ticks(top: float, count: int = 4) -> list[float]:
    """Return about `count` round numbers from 0 to at least `top`."""
    if top < TOP_MIN:
        return [0.0, 1.0]
    raw = top / count
    size = 10.0 ** floor(log10(raw))
    step = next(n * size for n in (1, 2, 2.5, 5, 10) if n * size >= raw * (1 - 1e-9))
    if top > 3 and step < 1:
        step = 1.0
    return [step * i for i in range(ceil(top / step - 1e-9) + 1)]


def time_ticks(start_ms: int, end_ms: int, count: int) -> list[tuple[int, str]]:
    """Return about `count` round moments (UTC) and what to write there."""
    span = max(end_ms - start_ms, 1)
    step = next((each for each in _TIME_STEPS if span / each <= count), _TIME_STEPS[-1])
    first = -(-start_ms // step) * step
    found = []
    day = None
    for at in range(first, end_ms + 1, step):
        moment = datetime.fromtimestamp(at / 1_000, UTC)
        text = _moment_text(moment, step, is_new_day=moment.date() != day)
        day = moment.date()
        found.append((at, text))
    return found


def _moment_text(moment: datetime, step_ms: int, *, is_new_day: bool) -> str:
    if step_ms >= 28 * _DAY:
        return moment.strftime("%b %Y")
    if step_ms >= _DAY or (moment.hour == moment.minute == moment.second == 0 and is_new_day):
        return f"{moment.day} {moment:%b}"
    return moment.strftime("%H:%M" if step_ms >= _MINUTE else "%H:%M:%S")


# Drawing


def _both(draw: Callable[[int], str], *, full: bool) -> str:
    wide = draw(FULL if full else WIDE)
    return f'<div class="plot wide">{wide}</div><div class="plot narrow">{draw(NARROW)}</div>'


def _over_time(
    width: int,
    starts_ms: Sequence[int],
    step_ms: int,
    series: Sequence[Series],
    show: Show,
    label: str,
) -> str:
    top = max((v for each in series for v in each.values if v is not None), default=0.0)
    ticks = nice_ticks(top)
    frame = _Frame(width, ticks[-1])
    start, end = starts_ms[0], starts_ms[-1] + step_ms

    def x(at: float) -> float:
        return frame.left + frame.plot_width * (at - start) / (end - start)

    drawn = [frame.grid(ticks, show)]
    room = max(2, int(frame.plot_width // 80))
    for at, text in time_ticks(start, end, room):
        drawn.append(frame.below(x(at), text))
    centres = [x(at + step_ms / 2) for at in starts_ms]
    for each in series:
        drawn += [_path(frame, centres, run, each) for run in _gapless(each.values)]
    slot = frame.plot_width / len(starts_ms)
    for i, at in enumerate(starts_ms):
        lines = [
            f"{each.name}: {show(value)}"
            for each in series
            if (value := each.values[i]) is not None
        ]
        title = f"{span_text(at, step_ms)}\n" + "\n".join(lines)
        drawn.append(
            f'<rect class="hit" x="{frame.left + slot * i:.1f}" y="{_TOP}" width="{slot:.2f}" '
            f'height="{frame.plot_height}"><title>{escape(title)}</title></rect>'
        )
    return _svg(width, label, drawn)


def _path(
    frame: "_Frame", centres: Sequence[float], run: Sequence[tuple[int, float]], series: Series
) -> str:
    points = [(centres[i], frame.y(value)) for i, value in run]
    if len(points) == 1:
        x, y = points[0]
        return f'<circle class="dot t{series.tone}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    drawn = f'<path class="line t{series.tone}" d="M{line}"/>'
    if series.shape == "area":
        ground = frame.y(0)
        drawn = (
            f'<path class="area a{series.tone}" d="M{points[0][0]:.1f} {ground:.1f}L{line}'
            f'L{points[-1][0]:.1f} {ground:.1f}Z"/>{drawn}'
        )
    return drawn


def _columns(
    width: int,
    bars: Sequence[Bar],
    show: Show,
    label: str,
    marks: Sequence[Mark],
    tone: int,
) -> str:
    ticks = nice_ticks(max((bar.value for bar in bars), default=0.0))
    frame = _Frame(width, ticks[-1])
    slot = frame.plot_width / max(len(bars), 1)
    gap = min(slot * 0.18, 6)
    longest = max((len(bar.label) for bar in bars), default=1)
    every = max(1, ceil((longest * _TEXT_PX + 8) / slot))
    drawn = [frame.grid(ticks, show)]
    for i, bar in enumerate(bars):
        x = frame.left + slot * i
        y = frame.y(bar.value)
        if bar.value:
            y = min(y, frame.y(0) - 1.5)  # what is there is seen, however little it is
        drawn.append(
            f"<g><title>{escape(bar.hint)}</title>"
            f'<rect class="hit" x="{x:.1f}" y="{_TOP}" width="{slot:.2f}" '
            f'height="{frame.plot_height}"/>'
            f'<rect class="b{tone}" x="{x + gap / 2:.1f}" y="{y:.1f}" '
            f'width="{slot - gap:.2f}" height="{frame.y(0) - y:.1f}" rx="1.5"/></g>'
        )
        if i % every == 0:
            drawn.append(frame.below(x + slot / 2, bar.label))
    for number, mark in enumerate(marks):
        drawn.append(_mark(frame, frame.left + slot * mark.at, mark, number))
    return _svg(width, label, drawn)


def _mark(frame: "_Frame", x: float, mark: Mark, number: int) -> str:
    y = _TOP + 10 + 14 * number
    is_right = x > frame.left + frame.plot_width * 0.7
    anchor, shift = ("end", -5) if is_right else ("start", 5)
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{frame.y(0):.1f}"/>'
        f'<text class="marked" x="{x + shift:.1f}" y="{y}" text-anchor="{anchor}">'
        f"{escape(mark.name)}</text>"
    )


class _Frame:
    """The rectangle in which a plot is drawn, and its vertical scale from 0 to `top`."""

    def __init__(self, width: int, top: float) -> None:
        self.left = _LEFT
        self.plot_width = width - _LEFT - _RIGHT
        self.plot_height = HEIGHT - _TOP - _BOTTOM
        self._top = top or 1.0

    def y(self, value: float) -> float:
        return _TOP + self.plot_height * (1 - min(value / self._top, 1.0))

    def grid(self, ticks: Sequence[float], show: Show) -> str:
        right = self.left + self.plot_width
        lines = [
            f'<line class="{"grid" if tick else "ground"}" x1="{self.left}" x2="{right}" '
            f'y1="{self.y(tick):.1f}" y2="{self.y(tick):.1f}"/>'
            f'<text x="{self.left - 6}" y="{self.y(tick) + 4:.1f}" text-anchor="end">'
            f"{escape(show(tick))}</text>"
            for tick in ticks
        ]
        return "".join(lines)

    def below(self, x: float, text: str) -> str:
        half = len(text) * _TEXT_PX / 2
        right = self.left + self.plot_width + _RIGHT
        x = min(max(x, half), right - half)
        return f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(text)}</text>'


def span_text(at_ms: int, step_ms: int) -> str:
    """Say a span of time, in UTC."""
    start = datetime.fromtimestamp(at_ms / 1_000, UTC)
    if step_ms >= _DAY:
        return f"{start:%Y-%m-%d}"
    return f"{start:%Y-%m-%d %H:%M}" + (f":{start:%S}" if step_ms < _MINUTE else "")


def _gapless(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for i, value in enumerate(values):
        if value is not None:
            runs[-1].append((i, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _svg(width: int, label: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        + "".join(drawn)
        + "</svg>"
    )
