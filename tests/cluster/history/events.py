"""What happened to replicated topics in a run: the events that the checkers read.

A simulated cluster and a harness with real processes write the same. Times are milliseconds since
the run began, of one clock: that of whoever sends and reads, not of the nodes. A due time is on
that clock as well. A run is a list of events in no particular order; `dump` and `load` keep it as
lines of JSON.

    Published   a message and its final answer, however often it was sent with its id
    Changed     a cancel, or a new due time, and its answer
    Polled      what one read by offset returned, of whatever node
    Led         a replica began to take publishes under an epoch
    Copied      frames that one replica holds as committed
    Dropped     retention may have taken messages
    Healed      all faults are over
    Ended       the run is over, and nothing more was waited for

Outcomes: `acked`, it was done; `refused`, nothing was done and nothing will be; `unknown`, nobody
can say. An event whose `until_ms` is None had no answer when the run ended.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from waterclock.model.message import Acks

Outcome = Literal["acked", "refused", "unknown"]
RowKind = Literal["data", "scheduled", "fired"]


class Published(msgspec.Struct, frozen=True, tag=True):
    """A message that was sent, perhaps several times under its one id."""

    message: str
    """Unlike that of all other messages of the run."""
    partition: str
    at_ms: int
    until_ms: int | None
    outcome: Outcome
    offset: int | None = None
    """What the answer said; None if there was none."""
    due_ms: int | None = None
    acks: Acks = "quorum"
    """What the answer waited for. One that waited for the leader alone promises nothing."""


class Changed(msgspec.Struct, frozen=True, tag=True):
    """A scheduled message was to be cancelled or put off. Nobody else changes it meanwhile."""

    message: str
    at_ms: int
    until_ms: int | None
    outcome: Outcome
    due_ms: int | None = None
    """The new due time; None: cancel it."""


class Row(NamedTuple):
    """A message as it was read."""

    offset: int
    kind: RowKind
    message: str


class Polled(msgspec.Struct, frozen=True, tag=True):
    """One read by offset, from `offset` up to `next_offset`, which the reader asks for next."""

    reader: str
    """One that reads on from where it was; whoever begins anew has another name."""
    node: str
    partition: str
    at_ms: int
    offset: int
    next_offset: int
    rows: tuple[Row, ...]


class Led(msgspec.Struct, frozen=True, tag=True):
    """A replica took the lead."""

    replica: str
    partition: str
    epoch: int
    at_ms: int


class Copied(msgspec.Struct, frozen=True, tag=True):
    """Frames of one replica: offset and digest of all that must be the same in every copy."""

    replica: str
    partition: str
    frames: tuple[tuple[int, str], ...]


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """Messages below an offset may be gone, or be read on some replicas only."""

    partition: str
    end: int


class Healed(msgspec.Struct, frozen=True, tag=True):
    """From here on nothing was done to the cluster."""

    at_ms: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The last event. What has no answer now is stuck; readers have read what there is."""

    at_ms: int


Event = Published | Changed | Polled | Led | Copied | Dropped | Healed | Ended


def dump(events: Iterable[Event]) -> bytes:
    """Return events as lines of JSON."""
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


def load(lines: bytes) -> list[Event]:
    """Return the events of lines of JSON."""
    decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
    return [decoder.decode(line) for line in lines.splitlines()]
