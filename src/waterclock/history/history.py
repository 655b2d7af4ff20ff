"""The last hour by five seconds and the last day by minutes, in memory that never grows.

A sample is what was counted in one slot of five seconds. The minute it is of is folded from those
of its slots that are there, each time anew: so the minute under way is as good as its seconds, and
a restart needs no state but the two rings.

Of topics the busiest have numbers of their own. One that is busier now than one of these has been
of late takes its place, and begins without a past.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from waterclock.history.rings import Floats, Ring
from waterclock.history.series import NODE, TOPIC, TOPICS_MAX, WIDTH, columns_folded, topic_columns

STEP_MS = 5_000
MINUTE_MS = 60_000
HOUR_SLOTS = 720
DAY_SLOTS = 1_440
DECAY = 0.99
"""Of what a topic was busy with, what still counts after a sample: half of it after six minutes."""

_MEAN, _LAST, _MAX = (columns_folded(fold) for fold in ("mean", "last", "max"))


class Sample(NamedTuple):
    """What was counted in one slot, in the order of `NODE`, and of topics in that of `TOPIC`."""

    node: Sequence[float]
    topics: Mapping[str, Sequence[float]]


class Stretch(NamedTuple):
    """Part of the past: one value for each step, the last of which ends at `end_ms`."""

    step_ms: int
    end_ms: int
    series: dict[str, list[float | None]]


class History:
    """What a node was busy with."""

    def __init__(self) -> None:
        self.hour = Ring(STEP_MS, HOUR_SLOTS, WIDTH)
        self.day = Ring(MINUTE_MS, DAY_SLOTS, WIDTH)
        self.topics: list[str] = [""] * TOPICS_MAX
        """Those with numbers of their own, by place; empty: nobody's."""
        self._busy = np.zeros(TOPICS_MAX)

    def __repr__(self) -> str:
        return f"<History of {sum(map(bool, self.topics))} topics>"

    def take(self, sample: Sample, now_ms: int) -> None:
        """Note what was counted in the slot that is now."""
        self._seat(sample.topics)
        row: Floats = np.full(WIDTH, np.nan, np.float32)
        row[: len(NODE)] = sample.node
        for place, topic in enumerate(self.topics):
            if topic in sample.topics:
                row[topic_columns(place)] = sample.topics[topic]
        self.hour.put(self.hour.slot_of(now_ms), row)
        minute = self.day.slot_of(now_ms)
        first = minute * MINUTE_MS // STEP_MS
        self.day.put(minute, folded(self.hour.rows(first, first + MINUTE_MS // STEP_MS)))

    def _seat(self, topics: Mapping[str, Sequence[float]]) -> None:
        """Give the busiest topics a place."""
        known = {topic: place for place, topic in enumerate(self.topics) if topic}
        self._busy *= DECAY
        for topic, place in known.items():
            if topic not in topics:  # deleted
                self._give(place, "", 0.0)
            else:
                self._busy[place] += _business(topics[topic])
        for topic in heapq.nlargest(TOPICS_MAX, topics, key=lambda each: _business(topics[each])):
            business = _business(topics[topic])
            place = int(self._busy.argmin())
            is_free = not self.topics[place]
            if topic not in known and business and (is_free or self._busy[place] < business):
                self._give(place, topic, business)

    def _give(self, place: int, topic: str, business: float) -> None:
        self.topics[place] = topic
        self._busy[place] = business
        for ring in (self.hour, self.day):
            ring.values[:, topic_columns(place)] = np.nan

    # What was

    def of_node(self, *, is_day: bool) -> Stretch:
        """Return the numbers of the node over an hour, or a day."""
        return self._stretch([series.name for series in NODE], slice(0, len(NODE)), is_day)

    def of_topic(self, topic: str, *, is_day: bool) -> Stretch:
        """Return the numbers of a topic; none of one that is not among the busiest."""
        names = [series.name for series in TOPIC]
        if not topic or topic not in self.topics:
            return self._stretch([], slice(0, 0), is_day)
        return self._stretch(names, topic_columns(self.topics.index(topic)), is_day)

    def _stretch(self, names: list[str], columns: slice, is_day: bool) -> Stretch:
        ring = self.day if is_day else self.hour
        found = ring.whole()[:, columns].T
        series = {name: _known(row) for name, row in zip(names, found, strict=True)}
        return Stretch(ring.step_ms, (ring.newest + 1) * ring.step_ms, series)


def folded(rows: Floats) -> Floats:
    """Return one row for several; NaN where none is known."""
    made: Floats = np.full(rows.shape[1], np.nan, np.float32)
    is_known = ~np.isnan(rows)
    counts = is_known.sum(axis=0)
    has = counts > 0
    filled = np.where(is_known, rows, np.float32(0))
    sums = filled.sum(axis=0)
    last = np.where(is_known, np.arange(len(rows))[:, None], -1).max(axis=0)
    greatest = np.where(is_known, rows, -np.inf).max(axis=0)
    every = np.arange(rows.shape[1])
    for columns, values in (
        (_MEAN, sums / np.maximum(counts, 1)),
        (_LAST, rows[last, every]),
        (_MAX, greatest),
    ):
        made[columns] = values[columns]
    made[~has] = np.nan
    return made


def _business(values: Sequence[float]) -> float:
    """Return how busy a topic is: what comes in, what goes out, and what fires there."""
    return values[0] + values[1] + values[4]


def _known(row: Floats) -> list[float | None]:
    # Six digits say all that a float of 32 bits knows.
    return [None if value != value else float(f"{value:.6g}") for value in row.tolist()]


assert [TOPIC[place].name for place in (0, 1, 4)] == ["in", "out", "fired"]
