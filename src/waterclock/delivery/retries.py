"""When a message that failed is tried again, and the settings of delivery.

Exponential backoff with jitter: the k-th failure waits `retry_delay * 2^(k-1)`, at most
`retry_delay_max`, and up to `retry_jitter` percent more, so that messages which failed together do
not come back together. The jitter is a hash of (offset, failures): no dice are needed, and a run
can be repeated. A range that failed as one keeps one delay and stays a range.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from waterclock.model.errors import BadConfig
from waterclock.model.settings import Section, count, duration, size
from waterclock.model.tracker import RUNS_MAX
from waterclock.model.units import DAY_MS, GIB, HOUR_MS, MIB, MINUTE_MS, SECOND_MS

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig(Section):
    """How a group is served."""

    section: ClassVar[str] = "delivery"

    ack_timeout_ms: Annotated[int, duration(100, 12 * HOUR_MS)] = 30 * SECOND_MS
    """How long a member may keep a message before it is taken to have failed. Lower finds a stuck
    member sooner; a member that is merely slow gets everything twice, unless it extends."""

    lease_ms_max: Annotated[int, duration(100, 7 * DAY_MS)] = 12 * HOUR_MS
    """How far ahead a member may extend. Higher allows longer work; a lease pins progress."""

    max_retries: Annotated[int, count(1, 10)] = 3
    """Failures that are followed by another attempt; the next one leads to the dead letter topic.
    Higher rides out longer outages; a message that can never succeed is in the way for longer."""

    retry_delay_ms: Annotated[int, duration(100, 10 * SECOND_MS)] = 1 * SECOND_MS
    """The wait after the first failure; doubles with each. Lower recovers sooner from a hiccup and
    beats harder on whatever is down."""

    retry_delay_ms_max: Annotated[int, duration(100, DAY_MS)] = 5 * MINUTE_MS
    """The longest wait between attempts, jitter aside."""

    retry_jitter_percent: Annotated[int, count(0, 100)] = 20
    """How much longer than that a wait may be. Higher spreads a burst of failures farther."""

    retry_ahead_ms_max: Annotated[int, duration(100, 366 * DAY_MS)] = 7 * DAY_MS
    """How far ahead a consumer may name a retry; later is made this. Higher keeps a hole in the
    group's progress open for longer, and the segment below it on disk."""

    credit_messages: Annotated[int, count(1, 10_000_000)] = 1_000
    """What a member can hold until it says otherwise. Higher hides more of the round trip and
    gives more back when the member dies."""

    credit_bytes: Annotated[int, size(1, 16 * GIB)] = 64 * MIB
    """The same in bytes."""

    unacked_max: Annotated[int, count(1, 10_000_000)] = 10_000
    """Messages of a partition handed out and not acked, whatever the credit: the server's own
    brake. Higher lets a fast member run farther; it is what a crash delivers again."""

    runs_max: Annotated[int, count(1, 10_000_000)] = RUNS_MAX
    """Messages of a partition handed out and not done, those waiting for a retry or for the dead
    letter topic included. Progress has at most as many runs. At the limit nothing new is handed
    out until something is done. Higher skips past more failing messages and persists more."""

    def __post_init__(self) -> None:
        # `super()` without arguments does not survive slots=True (the class is made twice).
        Section.__post_init__(self)
        if self.retry_delay_ms_max < self.retry_delay_ms:
            raise BadConfig("delivery.retry_delay_max", "is below delivery.retry_delay")


def retry_delay_ms(config: DeliveryConfig, *, offset: int, failed: int) -> int:
    """Return how long to wait after so many failures."""
    assert failed >= 0
    doublings = min(max(failed - 1, 0), 32)
    delay_ms = min(config.retry_delay_ms << doublings, config.retry_delay_ms_max)
    spread_ms = delay_ms * config.retry_jitter_percent // 100
    return delay_ms + _mixed(offset << 8 | failed) % (spread_ms + 1)


def _mixed(number: int) -> int:
    """Return 64 well-mixed bits (SplitMix64; Steele, Lea, Flood 2014)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _MASK
    return number ^ number >> 31
