"""One partition under one assignment: what was read, what is finished, what can be committed.

The frontier is the lowest offset that is not finished; a commit is the frontier and the runs beyond
it, taken together. Offsets that do not exist (compaction, transaction markers) count as finished
when the source has passed them. Finished offsets are collected and merged into runs in bulk. Each
run has an unfinished record before it, so there are at most as many as records held or given up.

An assignment ends by `close`. Whatever comes for its records afterwards changes nothing: they point
to this object and not to the one of the next assignment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from waterclock.burrow.core.offset_map import OffsetMaps
from waterclock.burrow.core.records import Assignment, Commit, Record, TopicPartition
from waterclock.burrow.core.work import Work
from waterclock.model.tracker import OffsetTracker

_MERGE_COUNT = 1_024
"""Finished offsets are merged when there are so many, or the engine asks."""
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What can be said of a partition, for metrics and health."""

    name: TopicPartition
    epoch: int
    committed: int | None
    """The offset the source last confirmed."""
    frontier: int | None
    """The lowest unfinished offset; None before anything is known."""
    polled_end: int | None
    """One above the last offset that was read."""
    in_flight: int
    waiting: int
    retrying: int
    given_up: int
    is_paused: bool
    run_count: int
    map_usage: float
    """How much of the room for it the offset map needs; above 1 some of it is left out."""
    stuck_since_ms: int | None
    """Since when the frontier has not moved although something is unfinished."""
    skipped: int
    """Records that the offset map knew as finished."""
    repeated: int
    """Records that were read twice, or for an earlier assignment."""


class PartitionState:
    """Progress in a partition from an assignment to its end."""

    __slots__ = (
        "_done", "_has_read", "_tracker", "committed", "epoch", "given_up", "is_dirty",
        "is_draining", "is_open", "is_paused", "is_pressed", "map_usage", "name", "polled_end",
        "repeated", "restored_end", "skipped", "stuck_at", "stuck_since_ms", "work",
    )  # fmt: skip

    def __init__(self, assignment: Assignment, work: Work, maps: OffsetMaps) -> None:
        self.name = assignment.name
        self.epoch = assignment.epoch
        self.work = work
        self.committed = assignment.committed
        self.polled_end = assignment.committed
        self._tracker = OffsetTracker(assignment.committed or 0, runs_max=_NO_LIMIT)
        self.restored_end = 0
        if assignment.committed is not None:
            for start, end in maps.decode(
                assignment.metadata, base=assignment.committed, log_end=assignment.log_end
            ):
                self._tracker.add(start, end)
                self.restored_end = end
        self._done: list[int] = []
        self._has_read = False
        self.given_up = 0
        self.is_open = True
        self.is_draining = False
        """Nothing more is handed out or retried; what is in flight may end."""
        self.is_paused = False
        self.is_pressed = False
        """The offset map is nearly full."""
        self.is_dirty = False
        """There is something that was not committed yet."""
        self.map_usage = 0.0
        self.skipped = 0
        self.repeated = 0
        self.stuck_at = -1
        self.stuck_since_ms: int | None = None

    def __repr__(self) -> str:
        return f"<PartitionState {self.name} epoch {self.epoch}, {self._tracker!r}>"

    @property
    def frontier(self) -> int | None:
        """The lowest offset that is not finished; None if there is no position yet."""
        self._merge()
        return None if self.polled_end is None else self._tracker.committed

    def admit(self, records: Sequence[Record]) -> list[Record]:
        """Take note of records that were read; return those that are to be worked on."""
        epoch, restored_end = self.epoch, self.restored_end
        count = len(records)
        # Epochs only grow, so the ends tell.
        if records[0].epoch != epoch or records[-1].epoch != epoch:
            records = [record for record in records if record.epoch == epoch]
            if not records:
                self.repeated += count
                return []
        expected = self._position(records[0].offset)
        fresh: list[Record] = []
        skipped = 0
        for record in records:
            offset = record.offset
            if offset != expected:
                if offset < expected:
                    continue
                self._pass_over(expected, offset)
            expected = offset + 1
            if offset < restored_end and offset in self._tracker:
                skipped += 1
                continue
            record.home = self
            record.size = len(record.value or b"") + len(record.key or b"")
            if record.headers:
                record.size += sum([len(name) + len(text or b"") for name, text in record.headers])
            fresh.append(record)
        self.skipped += skipped
        self.repeated += count - len(fresh) - skipped
        self.polled_end = expected
        return fresh

    def _position(self, first: int) -> int:
        """Return the offset that is expected next, given the first that came."""
        if self.polled_end is None:
            self._begin(first)
        elif not self._has_read and first < self.polled_end:
            # What comes lies below the committed offset: the log was reset, and all we know is
            # about another one.
            self._begin(first)
            self.committed, self.restored_end = None, 0
        self._has_read = True
        assert self.polled_end is not None
        return self.polled_end

    def _begin(self, offset: int) -> None:
        self._tracker = OffsetTracker(offset, runs_max=_NO_LIMIT)
        self.polled_end = offset

    def _pass_over(self, start: int, end: int) -> None:
        self._tracker.add(start, end)
        self.is_dirty = True

    def finish(self, records: Sequence[Record]) -> None:
        """Count records as finished that were in flight."""
        done = self._done
        done += [record.offset for record in records]
        self.is_dirty = True
        if len(done) >= _MERGE_COUNT:
            self._merge()

    def _merge(self) -> None:
        done = self._done
        if not done:
            return
        done.sort()
        start, add = done[0], self._tracker.add
        if done[-1] - start + 1 == len(done):
            add(start, done[-1] + 1)
        else:
            end = start
            for offset in done:
                if offset != end:
                    add(start, end)
                    start = offset
                end = offset + 1
            add(start, end)
        done.clear()

    def committable(self, maps: OffsetMaps) -> Commit | None:
        """Return what to commit now, as one value; None if nothing is known or new."""
        self._merge()
        if not self.is_dirty or self.polled_end is None:
            return None
        self.is_dirty = False
        base = self._tracker.committed
        encoded = maps.encode(base, list(self._tracker.runs()))
        self.map_usage = encoded.usage
        return Commit(base, encoded.text, encoded.runs, encoded.is_whole)

    def note(self, now_ms: int) -> None:
        """See whether the frontier moves."""
        frontier = self.frontier
        if frontier is None or frontier == self.polled_end:
            self.stuck_at, self.stuck_since_ms = -1, None
        elif frontier != self.stuck_at:
            self.stuck_at, self.stuck_since_ms = frontier, now_ms

    def drain(self) -> None:
        """Hand out nothing more."""
        self.is_draining = True
        self.work.clear()

    def close(self) -> None:
        """End this assignment."""
        self.drain()
        self.is_open = False

    def view(self) -> PartitionView:
        """Return what can be said."""
        work, frontier = self.work, self.frontier
        return PartitionView(
            name=self.name,
            epoch=self.epoch,
            committed=self.committed,
            frontier=frontier,
            polled_end=self.polled_end,
            in_flight=len(work.in_flight),
            waiting=work.held - len(work.in_flight) - work.retrying,
            retrying=work.retrying,
            given_up=self.given_up,
            is_paused=self.is_paused,
            run_count=self._tracker.run_count,
            map_usage=self.map_usage,
            stuck_since_ms=self.stuck_since_ms,
            skipped=self.skipped,
            repeated=self.repeated,
        )

    def check_invariants(self) -> None:
        """Fail if what is finished and what is held contradict each other."""
        self._merge()
        self._tracker.check_invariants()
        self.work.check_invariants()
        end = 0 if self.polled_end is None else max(self.polled_end, self.restored_end)
        assert self._tracker.end <= max(end, self._tracker.committed)
        for record in [*self.work.ready, *self.work.in_flight]:
            if record.home is self:
                assert record.offset not in self._tracker, f"{record} is held and finished"
        if self.is_open and not self.is_draining and self.polled_end is not None:
            missing = sum(high - low for low, high in self._tracker.missing(self.polled_end))
            late = sum(record.home is not self for record in self.work.in_flight)
            held = self.work.held - late
            assert missing == held + self.given_up, f"{missing} unfinished, {held} held"


def by_home(records: Iterable[Record]) -> Iterable[tuple[PartitionState, list[Record]]]:
    """Group records by the assignment they are held for; those that are not held are left out."""
    groups: dict[PartitionState, list[Record]] = {}
    last: PartitionState | None = None
    group: list[Record] = []
    for record in records:
        home = record.home
        if home is not last:
            if home is None:
                continue
            last = home
            group = groups.setdefault(home, [])
        elif home is None:
            continue
        group.append(record)
    return groups.items()
