"""How a stream is split, as its root decides it and all others hear of it.

Partitions are at the successors of the stream on the ring, the root first, which is the owner.
`write` of them take sends, `read` take polls, and `nodes` have one: write <= read <= nodes. A
stream grows in one step. It shrinks in three, each partition from the last on: no more sends go to
it; when it is empty, no more polls; when nobody waits there, it lets go. So nothing is lost or left
behind when a stream shrinks, and a node that has not heard of it yet does no harm: what it sends to
an old partition is taken from there, and a partition that has let go says that it is none.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

KEEP_MS: Final = 1_000
"""The root asks its partitions so often how they are."""
SPREAD_MS: Final = 5_000
"""The root tells everybody else so often."""
LEASE_MS: Final = 15_000
"""What a node was told and does not hear again for so long is not true any more."""
PARTITION_LEASE_MS: Final = 5_000
"""The same for a partition, which is told more often: its root may have begun anew, and look for no
messages there."""

BACKLOG_REPORTS: Final = 3
"""Messages wait if there were some in so many reports, one a second."""


class Keep(NamedTuple):
    """How a stream is split: the root's word to all nodes."""

    stream: str
    ring_version: int
    """Of the ring in which the root is the owner: a node that has another one takes no part."""
    version: int
    write: int
    read: int
    size: int
    """Messages that each partition keeps."""
    nodes: tuple[str, ...]
    loads: tuple[int, ...]
    """Requests that each had in the last second."""
    backlogs: tuple[int, ...]
    """Messages that have waited at each for some seconds, at least."""


class Report(NamedTuple):
    """How a partition is: its answer to a Keep."""

    version: int
    requests: int
    """Since the last report."""
    backlog: int
    is_released: bool = False
    """It was empty, and is no partition any more."""


class Split:
    """How one stream is split, at its root."""

    __slots__ = (
        "_backlogs",
        "_heard_ms",
        "_loads",
        "_ring_version",
        "_seen",
        "nodes",
        "read",
        "stream",
        "version",
        "write",
    )

    def __init__(self, stream: str, root: str, *, ring_version: int, version: int) -> None:
        """A later one of the same stream must have a greater version."""
        self.stream = stream
        self.version = version
        self.nodes: tuple[str, ...] = (root,)
        self.write = self.read = 1
        self._ring_version = ring_version
        self._seen: dict[str, Report] = {}
        """The reports of this version."""
        self._loads: dict[str, int] = {}
        self._backlogs: dict[str, tuple[int, ...]] = {}
        """What each said last, and before."""
        self._heard_ms: dict[str, int] = {}

    def __repr__(self) -> str:
        counts = f"{self.write} write, {self.read} read, {len(self.nodes)} held"
        return f"<Split {self.stream!r} {counts}>"

    @property
    def closing(self) -> tuple[str, ...]:
        """Partitions that take no more sends."""
        return self.nodes[self.write :]

    @property
    def is_over(self) -> bool:
        """The root alone is left."""
        return len(self.nodes) == 1

    def resize(self, count: int, successors: Sequence[str], now_ms: int) -> bool:
        """Take sends at so many of the successors; return whether that is a change."""
        assert 1 <= count <= len(successors)
        for node in successors[len(self.nodes) :]:
            self._heard_ms[node] = now_ms
        if count == self.write:
            return False
        self.write = count
        self.read = max(self.read, count)
        if count > len(self.nodes):
            self.nodes = tuple(successors[:count])
        self._change()
        return True

    def reported(self, node: str, report: Report, now_ms: int) -> bool:
        """Take how a partition is; return whether a step of shrinking was made."""
        self._loads[node] = report.requests
        self._note_backlog(node, report.backlog)
        self._heard_ms[node] = now_ms
        if report.version != self.version:
            return False
        self._seen[node] = report
        if report.is_released and self.read < len(self.nodes) and node == self.nodes[-1]:
            self.nodes = self.nodes[:-1]
            self._loads.pop(node, None)
        elif self.read > self.write and self._is_empty(self.nodes[self.read - 1]):
            self.read -= 1
        else:
            return False
        self._change()
        return True

    def expire(self, now_ms: int) -> bool:
        """Wait no more for a closing partition that says nothing: it has let go by itself."""
        if self.write == len(self.nodes) or now_ms - self._heard_ms[self.nodes[-1]] < 2 * LEASE_MS:
            return False
        self.nodes = self.nodes[:-1]
        self.read = min(self.read, len(self.nodes))
        self._change()
        return True

    def keep(self, size: int, requests: int, backlog: int) -> Keep:
        """Return what all are to know; the root itself has had so many requests, and messages."""
        self._loads[self.nodes[0]] = requests
        self._note_backlog(self.nodes[0], backlog)
        loads = tuple(self._loads.get(node, 0) for node in self.nodes)
        seen = [self._backlogs.get(node, ()) for node in self.nodes]
        backlogs = tuple(min(each) if len(each) == BACKLOG_REPORTS else 0 for each in seen)
        versions, counts = (self._ring_version, self.version), (self.write, self.read)
        return Keep(self.stream, *versions, *counts, size, self.nodes, loads, backlogs)

    def _note_backlog(self, node: str, backlog: int) -> None:
        self._backlogs[node] = (*self._backlogs.get(node, ()), backlog)[-BACKLOG_REPORTS:]

    def _is_empty(self, node: str) -> bool:
        report = self._seen.get(node)
        return report is not None and not report.backlog

    def _change(self) -> None:
        self.version += 1
        self._seen.clear()


class Route:
    """Where a node sends what its clients ask of a split stream. Made from a Keep.

    A node that has a partition asks that: a match at home costs least, and the partitions see to it
    that messages come to where polls wait. All others take turns, and of two the one that has had
    fewer requests. But if polls always find messages at home, those elsewhere may wait for ever:
    then every second poll goes to the partition with most, if it has far more than that of here.
    """

    __slots__ = ("_fullest", "_loads", "_next", "_polls", "heard_ms", "index", "keep")

    def __init__(self, keep: Keep, me: str, now_ms: int) -> None:
        self.keep = keep
        self.index = keep.nodes.index(me) if me in keep.nodes else len(keep.nodes)
        """Of the partition at this node; beyond them all: there is none."""
        self.heard_ms = now_ms
        self._loads = list(keep.loads)
        self._next = now_ms % len(keep.nodes)
        self._polls = 0
        self._fullest = self._find_fullest()

    def __repr__(self) -> str:
        return f"<Route {self.keep.stream!r} over {self.keep.write} of {self.keep.nodes}>"

    def is_over(self, now_ms: int) -> bool:
        """The root has not been heard for too long."""
        has_part = self.index < len(self.keep.nodes)
        return now_ms - self.heard_ms >= (PARTITION_LEASE_MS if has_part else LEASE_MS)

    def send(self) -> str | None:
        """Return the node that a message goes to; None: this one."""
        return None if self.index < self.keep.write else self._choose(self.keep.write)

    def poll(self) -> str | None:
        """Return the node that a poll goes to; None: this one."""
        if self._fullest is not None:
            self._polls += 1
            if self._polls % 2:
                return self._fullest
        return None if self.index < self.keep.read else self._choose(self.keep.read)

    def _find_fullest(self) -> str | None:
        keep = self.keep
        if self.index >= keep.read or not keep.backlogs[self.index]:
            return None  # polls that wait here have messages fetched
        most = max(range(keep.read), key=keep.backlogs.__getitem__)
        is_full = keep.backlogs[most] > 2 * keep.backlogs[self.index]
        return keep.nodes[most] if is_full else None

    def _choose(self, count: int) -> str:
        self._next += 1
        one, other = self._next % count, (self._next + 1) % count
        chosen = one if self._loads[one] <= self._loads[other] else other
        self._loads[chosen] += 1
        return self.keep.nodes[chosen]
