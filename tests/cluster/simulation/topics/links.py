"""Connections between simulated nodes: they delay, keep order, and break.

One connection for each pair of processes, as TCP gives them. What is sent over it arrives in order,
as long as it lasts; when it breaks, all that was under way is lost, and both ends are told, each
when it finds out. A direction that lets nothing through holds what is sent: if it opens soon, it
arrives late; if not, the end that hears nothing gives the connection up. So it is for a process
that is stopped.

A process that is not there refuses to be dialled, and that is told; a machine that is off, and one
that cannot be reached, say nothing.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import combinations
from random import Random
from typing import Protocol

from tests.cluster.simulation.topics.timeline import Timeline

SILENCE_MS = 2_000
"""An end that hears nothing for so long gives a connection up."""
LOOK_MS = 250
"""How often ends look whether the other is still there, and dial whom they miss."""


class End(Protocol):
    """A process, as its connections see it."""

    @property
    def name(self) -> str: ...

    @property
    def is_running(self) -> bool:
        """It is there, and is not stopped."""
        ...

    @property
    def is_gone(self) -> bool:
        """It is no more."""
        ...

    def link_up(self, peer: "End") -> None: ...

    def link_down(self, peer: "End", silent_ms: int) -> None: ...

    def refused(self, peer: str) -> None: ...

    def arrived(self, peer: "End", message: object) -> None: ...


class _Way:
    """One direction of a connection."""

    def __init__(self, source: End, target: End) -> None:
        self.source = source
        self.target = target
        self.is_up = False
        """The source takes the connection for whole."""
        self.coming: deque[tuple[int, object]] = deque()
        self.heard_ms = 0
        """When something of this direction, if only a heartbeat, last came through."""


class Connection:
    """One connection between two processes, until both of them have given it up."""

    def __init__(self, a: End, b: End) -> None:
        self.ways = {a.name: _Way(a, b), b.name: _Way(b, a)}
        self.is_broken = False

    @property
    def is_over(self) -> bool:
        """Nobody takes it for whole any more."""
        return not any(way.is_up for way in self.ways.values())


class Network:
    """All connections, and which directions let something through."""

    def __init__(self, timeline: Timeline, rng: Random, names: Iterable[str]) -> None:
        self.delay_ms = (0, 4)
        self.ends: dict[str, End | None] = {}
        """The process of each node; None if there is none, and the machine is on."""
        self.off: set[str] = set()
        """Machines without power."""
        self.breaks = 0
        self.holds: Callable[[str, str, object], bool] = lambda source, target, message: False
        """Says whether a message, and all that comes after it, is on its way for now."""
        self._timeline = timeline
        self._rng = rng
        self._names = list(names)
        self._blocked: dict[tuple[str, str], int] = {}
        self._connections: dict[tuple[str, str], Connection] = {}
        timeline.after(0, self._look)

    # What processes do

    def send(self, source: End, target: str, message: object) -> bool:
        """Send, if there is a connection; whether it arrives, nobody knows."""
        connection = self._connections.get(_pair(source.name, target))
        if connection is None:
            return False
        way = connection.ways[source.name]
        if way.source is not source or not way.is_up:
            return False
        if not connection.is_broken:
            ready_ms = self._timeline.now_ms + self._rng.randint(*self.delay_ms)
            if way.coming:
                ready_ms = max(ready_ms, way.coming[-1][0])
            way.coming.append((ready_ms, message))
            self._later(ready_ms - self._timeline.now_ms, connection, way)
        return True

    def ended(self, process: End) -> None:
        """Break all connections of a process that is no more; the other ends hear of it, unless
        its machine went with it."""
        for connection in self._connections.values():
            way = connection.ways.get(process.name)
            if way is not None and way.source is process:
                way.is_up = False
                self._break(connection)

    def resumed(self, process: End) -> None:
        """Hand a process what came while it was stopped."""
        for connection in self._connections.values():
            for way in connection.ways.values():
                if way.target is process:
                    self._pump(connection, way)

    # What is done to them

    def block(self, source: str, target: str) -> None:
        """Let nothing through in this direction."""
        self._blocked[source, target] = self._blocked.get((source, target), 0) + 1

    def unblock(self, source: str, target: str) -> None:
        """Take one `block` back."""
        self._blocked[source, target] -= 1
        connection = self._connections.get(_pair(source, target))
        if connection is not None and self._is_open(source, target):
            self._pump(connection, connection.ways[source])

    def hold(self, holds: Callable[[str, str, object], bool]) -> None:
        """Hold other messages than before, or none."""
        self.holds = holds
        for connection in list(self._connections.values()):
            for way in connection.ways.values():
                self._pump(connection, way)

    def cut(self, a: str, b: str) -> None:
        """Break a connection in the middle, as a reset does."""
        connection = self._connections.get(_pair(a, b))
        if connection is not None:
            self._break(connection)

    def _is_open(self, source: str, target: str) -> bool:
        return not self._blocked.get((source, target))

    def _later(self, delay_ms: int, connection: Connection, way: _Way) -> None:
        self._timeline.after(delay_ms, lambda: self._pump(connection, way))

    def _pump(self, connection: Connection, way: _Way) -> None:
        """Hand over what has come through."""
        while (
            way.coming
            and not connection.is_broken
            and way.target.is_running
            and self._is_open(way.source.name, way.target.name)
            and way.coming[0][0] <= self._timeline.now_ms
            and not self.holds(way.source.name, way.target.name, way.coming[0][1])
        ):
            way.heard_ms = self._timeline.now_ms
            way.target.arrived(way.source, way.coming.popleft()[1])

    def _break(self, connection: Connection) -> None:
        """Lose what is under way; each end hears of it as soon as it can."""
        if not connection.is_broken:
            self.breaks += 1
        connection.is_broken = True
        for way in connection.ways.values():
            way.coming.clear()
            delay_ms = self._rng.randint(*self.delay_ms)
            self._timeline.after(delay_ms, lambda way=way: self._tell_end(way))  # type: ignore[misc]

    def _tell_end(self, way: _Way) -> None:
        """Tell an end of a broken connection, if anybody can tell it."""
        reaches = self._is_open(way.target.name, way.source.name)
        if way.is_up and reaches and way.source.is_running and way.target.name not in self.off:
            self._give_up(way, silent_ms=0)

    def _give_up(self, way: _Way, *, silent_ms: int) -> None:
        way.is_up = False
        way.source.link_down(way.target, silent_ms)

    # Time

    def _look(self) -> None:
        self._timeline.after(self._rng.randint(LOOK_MS // 2, LOOK_MS), self._look)
        for a, b in combinations(self._names, 2):
            connection = self._connections.get((a, b))
            if connection is None:
                self._dial(a, b)
            else:
                self._look_at(connection)
                if connection.is_over:
                    del self._connections[a, b]

    def _look_at(self, connection: Connection) -> None:
        now_ms = self._timeline.now_ms
        for way in connection.ways.values():
            if way.source.is_gone:
                way.is_up = False
            is_open = self._is_open(way.source.name, way.target.name)
            if way.source.is_running and is_open and not connection.is_broken:
                way.heard_ms = now_ms
        for way in connection.ways.values():
            back = connection.ways[way.target.name]
            if connection.is_broken:
                self._tell_end(way)
            if way.is_up and way.source.is_running and now_ms - back.heard_ms > SILENCE_MS:
                self._give_up(way, silent_ms=now_ms - back.heard_ms)
                self._break(connection)

    def _dial(self, a: str, b: str) -> None:
        one, other = self.ends.get(a), self.ends.get(b)
        if not (self._is_open(a, b) and self._is_open(b, a)):
            return
        if one is None or other is None:
            alive, missing = (one, b) if other is None else (other, a)
            if alive is not None and alive.is_running and missing not in self.off:
                alive.refused(missing)
            return
        if one.is_running and other.is_running:
            self._connect(one, other)

    def _connect(self, one: End, other: End) -> None:
        connection = Connection(one, other)
        self._connections[_pair(one.name, other.name)] = connection
        for way in connection.ways.values():
            way.heard_ms = self._timeline.now_ms
            # Each end has its own channel, and opens it when it is ready to.
            delay_ms = self._rng.randint(*self.delay_ms)
            self._timeline.after(delay_ms, self._opening(connection, way))

    def _opening(self, connection: Connection, way: _Way) -> Callable[[], None]:
        def opened() -> None:
            if connection.is_broken:
                return
            if not way.source.is_running:
                self._break(connection)
                return
            way.is_up = True
            way.source.link_up(way.target)

        return opened


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
