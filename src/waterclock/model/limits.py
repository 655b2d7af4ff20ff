"""Every limit on what a client may send, and the one place that enforces a limit.

Everything has a limit, the limit has a name, and the error says which. Without one, a single
request decides how much memory the node needs; with an unnamed one, a user learns of it from a
stack trace. Units and `_max` come last in each name.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, ClassVar

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.model.settings import Section, count, duration, size
from waterclock.model.units import DAY_MS, GIB, KIB, MIB

RUNS_MAX = 100_000
"""Most runs of done offsets beyond the first hole of a partition, unless a setting says else."""

END_MS = 253_402_300_799_999
"""The end of the year 9999, the last that is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Section):
    """What one request may ask of a node."""

    section: ClassVar[str] = "limits"

    message_bytes_max: Annotated[int, size(1, 1 * GIB)] = 10 * MIB
    """Largest message, its key, id and headers included. Higher carries bigger documents; each
    consumer must be able to hold one."""

    batch_bytes_max: Annotated[int, size(1, 1 * GIB)] = 64 * MIB
    """Largest batch. Higher costs fewer round trips and more memory for each publish in flight.
    Arrow counts the bytes of a column in 31 bits, hence the ceiling."""

    batch_messages_max: Annotated[int, count(1, 10_000_000)] = 100_000
    """Most messages of a batch. Higher spreads fixed costs over more messages; a batch is decided
    in one go, so it also delays all others for longer."""

    message_id_bytes_max: Annotated[int, size(1, 64 * KIB)] = 255
    """Longest message id. Higher admits ids made of whole URLs; every id is stored and hashed."""

    key_bytes_max: Annotated[int, size(1, 16 * MIB)] = 64 * KIB
    """Longest key. Higher admits composite keys; compaction holds every living key in memory."""

    headers_max: Annotated[int, count(0, 10_000)] = 64
    """Most headers of a message. Higher leaves room for tracing baggage; each costs decoding."""

    header_bytes_max: Annotated[int, size(0, 16 * MIB)] = 64 * KIB
    """Most bytes of all headers of a message, names and values. Higher tempts people to move the
    value into headers, which every reader has to decode."""

    due_horizon_ms_max: Annotated[int, duration(0, 1_000 * 365 * DAY_MS)] = 36_525 * DAY_MS
    """How far ahead a message may be due; 36525 days are 100 years. That catches microseconds sent
    as milliseconds, lower catches smaller slips, and whoever plans farther ahead must raise it."""

    def check_due(self, due_ms: Millis, *, now_ms: Millis, field: str = "due_ms") -> None:
        """Raise if a due time is before 1970 or past the horizon; it is never wrapped or clamped.

        For a batch, check the least and the greatest due time.
        """
        if due_ms < 0:
            raise BadInput(f"{field} must not be negative (got {due_ms})")
        limit = now_ms + self.due_horizon_ms_max
        if due_ms > limit:
            latest = datetime.fromtimestamp(min(limit, END_MS) // 1_000, UTC)
            meaning = f"{latest:%Y-%m-%dT%H:%M:%SZ}, which is limits.due_horizon_ms_max from now"
            raise LimitExceeded(field, limit, got=due_ms, meaning=meaning)


def check(field: str, got: int, limit: int) -> None:
    """Raise LimitExceeded if `got` is over `limit`; `field` is what the client calls it."""
    if got > limit:
        raise LimitExceeded(field, limit, got=got)
