"""What all handles on one simulated disk share: its names, their journal, its faults and counts.

Names change at once for readers and are journalled for the disk: a crash keeps a prefix of the
changes, in order, as journalling file systems do, and a sync of the folder keeps them all.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.kit.platter import Choose, Platter


class Created(NamedTuple):
    """A name came to be."""

    name: str
    platter: Platter


class Renamed(NamedTuple):
    """A name moved, replacing what was there."""

    old: str
    new: str


class Removed(NamedTuple):
    """A name went."""

    name: str


NameChange = Created | Renamed | Removed
Names = dict[str, Platter]


@dataclass(slots=True)
class DiskCounters:
    """What the disk was asked to do, for reports and for tests of thrift."""

    writes: int = 0
    bytes_written: int = 0
    syncs: int = 0
    bytes_synced: int = 0
    folder_syncs: int = 0


@dataclass(slots=True)
class Faults:
    """What will go wrong, set through the folder; a next-time fault is spent when it strikes."""

    lie_on_sync: bool = False
    sync_fails: bool = False
    sync_drops: bool = False
    folder_sync_fails: bool = False
    write_fails_after: int | None = None


@dataclass(slots=True)
class Medium:
    """One disk; whoever touches it holds `mutex`, for syncs come from other threads."""

    sector_bytes: int
    capacity_bytes: int | None
    names: Names = field(default_factory=dict)
    owner: object | None = None
    on_sync: Callable[[str], None] | None = None
    faults: Faults = field(default_factory=Faults)
    counters: DiskCounters = field(default_factory=DiskCounters)
    mutex: threading.RLock = field(default_factory=threading.RLock)
    _names_durable: Names = field(default_factory=dict)
    _pending: list[NameChange] = field(default_factory=list)
    _settled: int = 0

    def __repr__(self) -> str:
        return f"<Medium {len(self.names)} names, {len(self._pending)} changes pending>"

    def free_bytes(self) -> int | None:
        """Return the room left, or None if there is no end to it."""
        if self.capacity_bytes is None:
            return None
        return max(0, self.capacity_bytes - sum(file.size for file in self.names.values()))

    def blank(self) -> Platter:
        """Return the bytes of a new file."""
        return Platter(sector_bytes=self.sector_bytes)

    def change(self, change: NameChange) -> None:
        """Carry a change of names out for readers and journal it."""
        _apply(self.names, change)
        self._pending.append(change)

    def engrave(self, name: str, platter: Platter) -> None:
        """Put a name on readers' and durable list at once."""
        self.names[name] = self._names_durable[name] = platter

    def mark(self) -> int:
        """Return the number of changes ever made: the point a sync that starts now covers."""
        return self._settled + len(self._pending)

    def settle(self, mark: int) -> None:
        """Make the changes of names before `mark` durable."""
        count = max(0, mark - self._settled)
        for change in self._pending[:count]:
            _apply(self._names_durable, change)
        del self._pending[:count]
        self._settled += count

    def durable_bytes(self, name: str) -> bytes | None:
        """Return what of `name` no crash can take, or None if the name itself may go."""
        platter = self._names_durable.get(name)
        return None if platter is None else platter.durable_bytes()

    def survivor(self, choose: Choose) -> "Medium":
        """Return a disk with what a power cut now could leave, all of it durable."""
        names = dict(self._names_durable)
        if self._pending:
            for change in self._pending[: choose(len(self._pending) + 1)]:
                _apply(names, change)
        survivor = Medium(self.sector_bytes, self.capacity_bytes)
        for name in sorted(names):
            content = names[name].survivor(choose)
            survivor.engrave(name, Platter(content, sector_bytes=self.sector_bytes))
        return survivor


def _apply(names: Names, change: NameChange) -> None:
    match change:
        case Created(name, platter):
            names[name] = platter
        case Renamed(old, new):
            names[new] = names.pop(old)
        case Removed(name):
            del names[name]
