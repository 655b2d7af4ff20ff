"""How much of a log's beginning has had its time. Pure: facts in, one offset out.

By time: segments whose last message is older than `age_ms`. By size: the oldest ones, until the
rest fits into `bytes`. By offset: everything below one that an operator names. Whole closed
segments only, and where groups are waited for, none that one has yet to read.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Bounds(Protocol):
    """What is kept: that of a node's configuration, or of a topic."""

    @property
    def age_ms(self) -> int | None: ...

    @property
    def bytes(self) -> int | None: ...


class SegmentFacts(NamedTuple):
    """What retention needs to know of a closed segment."""

    end_offset: int
    size_bytes: int
    last_append_ms: int


def expired_end(
    closed: Sequence[SegmentFacts],
    config: Bounds,
    *,
    start: int,
    active_bytes: int,
    now_ms: int,
    consumed_end: int | None,
    below: int = 0,
) -> int:
    """Return the offset below which messages need not be kept; `start` if all must be.

    `consumed_end` is what every group has read; None if none is to be waited for.
    """
    excess = 0
    if config.bytes is not None:
        excess = sum(facts.size_bytes for facts in closed) + active_bytes - config.bytes
    end = start
    for facts in closed:
        is_old = config.age_ms is not None and facts.last_append_ms < now_ms - config.age_ms
        is_over = excess > 0
        is_named = facts.end_offset <= below
        is_read = consumed_end is None or facts.end_offset <= consumed_end
        if not is_read or not (is_old or is_over or is_named):
            break
        end = facts.end_offset
        excess -= facts.size_bytes
    return end
