"""Where records go that cannot be worked on: to a topic, with a note of why and from where.

A record counts as done once it stands there, so nothing is lost between the two; after a crash in
between it may stand there twice.
"""

from collections.abc import Mapping, Sequence
from time import time
from typing import Protocol

from waterclock.burrow.core.records import Header, Record

REASON_CHARS_MAX = 1_000
SUFFIX = ".dlq"


class DeadLetters(Protocol):
    """Takes records that are given up."""

    async def write_dead_letters(self, records: Sequence[Record], error: BaseException) -> None:
        """Keep records; when this returns they are safe. If it raises, it is tried again: with all
        of them, or those that a `Failed` names."""
        ...


def headers_of(record: Record, error: BaseException, *, now_ms: int) -> list[Header]:
    """Return the headers of a dead letter: the record's own, and what became of it."""
    facts: Mapping[str, str] = {
        "dlq-reason": f"{type(error).__name__}: {_text_of(error)}"[:REASON_CHARS_MAX],
        "dlq-attempts": str(record.attempt),
        "dlq-topic": record.topic,
        "dlq-partition": str(record.partition),
        "dlq-offset": str(getattr(record, "log_offset", record.offset)),
        "dlq-message-ms": str(record.timestamp_ms),
        "dlq-failed-ms": str(now_ms),
    }
    # A dead letter that was sent again and failed again tells of its last failure only.
    own = [header for header in record.headers if header[0] not in facts]
    # Half a surrogate is no letter, but errors quote what they were given.
    return [
        *own,
        *((name, value.encode(errors="backslashreplace")) for name, value in facts.items()),
    ]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # one without a reason is better than none
        return "(it cannot tell)"


def wall_ms() -> int:
    """Return the time of day."""
    return int(time() * 1_000)
