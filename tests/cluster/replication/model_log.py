"""A replica's log in memory: what is written, how much of it would outlive a power failure."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from waterclock.cluster.replication.lineage import EpochEnd, EpochStart, Lineage
from waterclock.model.ids import Epoch, Offset


class Entry(NamedTuple):
    """One frame: it spans one offset. The first of an epoch has no value."""

    epoch: int
    value: str = ""


class ModelLog:
    """A `LogView`, and what a shell does with the log behind it."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.entries = list(entries)
        self.flushed = len(self.entries)
        self.stream_start = Offset(0)
        self.is_faulty = False

    def __repr__(self) -> str:
        shown = " ".join(f"{each.epoch}{each.value or '*'}" for each in self.entries)
        return f"<ModelLog [{shown}] flushed {self.flushed}>"

    @property
    def end(self) -> Offset:
        return Offset(len(self.entries))

    @property
    def flushed_end(self) -> Offset:
        return Offset(self.flushed)

    @property
    def lineage(self) -> Lineage:
        return _lineage(self.entries)

    @property
    def flushed_last(self) -> EpochEnd:
        return _lineage(self.entries[: self.flushed]).last

    def append(self, entries: Sequence[Entry]) -> None:
        last = self.entries[-1].epoch if self.entries else 0
        assert [each.epoch for each in entries] == sorted(each.epoch for each in entries)
        assert not entries or entries[0].epoch >= last, (self, entries)
        self.entries += entries

    def flush(self) -> None:
        self.flushed = len(self.entries)

    def crash(self) -> None:
        """Lose what was not flushed."""
        del self.entries[self.flushed :]

    def truncate(self, end: int) -> None:
        assert 0 <= end < len(self.entries), (self, end)
        del self.entries[end:]
        self.flushed = min(self.flushed, end)

    def encoded(self, start: int, count: int) -> tuple[bytes, int]:
        """Return some entries as they are sent, and where they end."""
        entries = self.entries[start : start + count]
        return json.dumps(entries).encode(), start + len(entries)


def decoded(data: bytes | bytearray | memoryview) -> list[Entry]:
    return [Entry(*each) for each in json.loads(bytes(data))]


def _lineage(entries: Sequence[Entry]) -> Lineage:
    starts: list[EpochStart] = []
    for offset, (epoch, _) in enumerate(entries):
        if epoch > (starts[-1].epoch if starts else 0):
            starts.append(EpochStart(Epoch(epoch), Offset(offset)))
    return Lineage(tuple(starts), Offset(len(entries)))
