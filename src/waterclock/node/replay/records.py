"""What a replay is to hand out, and how far its reader has come: the record of one with a name.

Bounds are offsets, fixed when it begins. What was handed out is not written down with every batch,
so after a restart nobody knows it: a reader is believed up to the end of the replay.
"""

from collections.abc import Sequence

import msgspec

from waterclock.model.errors import BadInput

CHECKPOINT_EVERY = 10_000

PartitionOffset = tuple[int, int]


class TimeRange(msgspec.Struct, frozen=True):
    """Messages appended, or due, in [start_ms, end_ms); an end of 0 is now."""

    start_ms: int
    end_ms: int = 0
    by_due: bool = False


class OffsetRange(msgspec.Struct, frozen=True):
    """So many messages from an offset on; a count of 0 is all there are."""

    start: int
    count: int = 0


class Request(msgspec.Struct, frozen=True):
    """What is to be replayed; neither range is everything there is."""

    topic: str
    partitions: tuple[int, ...] = ()
    """None of them stands for all."""
    times: TimeRange | None = None
    offsets: OffsetRange | None = None
    compacted: bool = False
    """From the newest snapshots on; neither range can be given then."""


class SnapshotBase(msgspec.Struct, frozen=True):
    """The snapshot a stretch begins with, and what it covers of the log."""

    snapshot: str
    start: int
    end: int


class Stretch(msgspec.Struct):
    """What is to be replayed of one partition, and how far it is done."""

    partition: int
    end: int
    done: int
    base: SnapshotBase | None = None
    last: int | None = None
    """From here to the end there is nothing to hand out; None until it was read so far."""
    skip: tuple[int, int] | None = None
    """Offsets within that are not part of it."""
    undated: int | None = None
    """From here on nobody knows when messages were appended: the clock had been set back."""

    def check(self, offset: int) -> None:
        """Raise BadInput unless a reader can have come so far."""
        if offset > self.end:
            raise BadInput(
                f"offset: {offset} is beyond the end of the replay in partition "
                f"{self.partition}, report {self.end} at most"
            )

    def report(self, offset: int) -> int:
        """Take note that everything below an offset is done; return how many offsets more."""
        before = self.done
        self.done = max(self.done, offset)
        if self.last is not None and self.done >= self.last:
            self.done = self.end
        return self.done - before


class ReplayRecord(msgspec.Struct, kw_only=True):
    request: Request
    stretches: list[Stretch]
    due_ms: tuple[int, int] | None = None
    """Only messages due within."""
    checkpoint_every: int = CHECKPOINT_EVERY

    def index_of(self, partition: int) -> int:
        """Return which stretch is of a partition; raises BadInput if none is."""
        for index, stretch in enumerate(self.stretches):
            if stretch.partition == partition:
                return index
        raise BadInput(f"partition {partition} is not part of the replay")

    def report(self, positions: Sequence[PartitionOffset]) -> int:
        """Take note of how far a reader has come, or of nothing; return how many offsets more."""
        found = [(self.stretches[self.index_of(number)], offset) for number, offset in positions]
        for stretch, offset in found:
            stretch.check(offset)
        return sum(stretch.report(offset) for stretch, offset in found)
