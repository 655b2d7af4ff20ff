"""Which numbers are remembered: a fixed set of the whole node, and a few of the busiest topics.

How the samples of a minute become one depends on what a number is: of a rate the mean, of a level
the last, of a worst case the worst.
"""

from typing import Literal, NamedTuple

Fold = Literal["mean", "last", "max"]


class Series(NamedTuple):
    """One number, sampled again and again."""

    name: str
    fold: Fold


NODE = (
    Series("in", "mean"),
    Series("out", "mean"),
    Series("acked", "mean"),
    Series("fired", "mean"),
    Series("deadLettered", "mean"),
    Series("redelivered", "mean"),
    Series("streamIn", "mean"),
    Series("streamOut", "mean"),
    Series("latenessP99Ms", "max"),
    Series("latenessMaxMs", "max"),
    Series("pending", "last"),
    Series("lag", "last"),
    Series("unacked", "last"),
    Series("logBytes", "last"),
    Series("diskFreeBytes", "last"),
    Series("memoryBytes", "last"),
    Series("cpu", "mean"),
)
"""Rates are of a second. `cpu` is of one core; the lateness is that of messages fired meanwhile, by
the bounds of the node's histogram, and unknown if none was."""
TOPIC = (
    Series("in", "mean"),
    Series("out", "mean"),
    Series("lag", "last"),
    Series("pending", "last"),
    Series("fired", "mean"),
    Series("latenessMaxMs", "max"),
)
TOPICS_MAX = 32
"""Topics with numbers of their own: the busiest."""

WIDTH = len(NODE) + TOPICS_MAX * len(TOPIC)


def topic_columns(place: int) -> slice:
    """Return where the numbers of one of the topics stand."""
    start = len(NODE) + place * len(TOPIC)
    return slice(start, start + len(TOPIC))


def columns_folded(fold: Fold) -> list[int]:
    """Return the columns that are folded so."""
    every = (*NODE, *TOPIC * TOPICS_MAX)
    return [column for column, series in enumerate(every) if series.fold == fold]
