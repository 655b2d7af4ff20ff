"""What of one partition may be handed out next, in the order that was asked for.

Three orders. "none": whatever is there. "partition": one record at a time (or one list, for a
function of lists). "key": of each key one record at a time; the others of the key stand in a lane
behind it. A lane is no object: each record points to the one behind it, and `_tails` knows the last
of each key. A key is in `_tails` exactly as long as one of its records is held.

A record that failed and waits to be retried is not in flight and holds no worker, but it keeps its
lane: what stands behind it would overtake it otherwise.

A `Work` outlives assignments. If a partition goes and comes back while an old record still runs,
the old record keeps its lane until it ends, so a key never runs twice at once in one process.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from waterclock.burrow.core.config import Order
from waterclock.burrow.core.records import Record


class HeldBytes:
    """How many bytes of messages all the partitions of a pool hold."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def __repr__(self) -> str:
        return f"<HeldBytes {self.total}>"


class Work:
    """The records of one partition that are held: ready, in a lane, in flight or to be retried."""

    __slots__ = (
        "_all", "_is_keyed", "_is_serial", "_tails", "held", "held_bytes", "in_flight",
        "is_lined_up", "ready", "retrying",
    )  # fmt: skip

    def __init__(self, order: Order, held_by_all: HeldBytes | None = None) -> None:
        self._all = HeldBytes() if held_by_all is None else held_by_all
        self._is_keyed = order == "key"
        self._is_serial = order == "partition"
        self._tails: dict[bytes, Record] = {}
        self.ready: deque[Record] = deque()
        self.in_flight: set[Record] = set()
        self.retrying = 0
        """How many failed and wait for their time."""
        self.held = 0
        """How many are here in all."""
        self.held_bytes = 0
        """How many bytes these have."""
        self.is_lined_up = False
        """The engine's own: whether it stands in line for workers."""

    def __repr__(self) -> str:
        return f"<Work {self.held} held, {len(self.ready)} ready, {len(self.in_flight)} in flight>"

    @property
    def is_ready(self) -> bool:
        """Whether `take` would return something."""
        if self._is_serial and (self.in_flight or self.retrying):
            return False
        return bool(self.ready)

    def offer(self, records: Sequence[Record]) -> None:
        """Take in records, in offset order."""
        self.held += len(records)
        self._weigh(sum([record.size for record in records]))
        if not self._is_keyed:
            self.ready.extend(records)
            return
        tails, line_up = self._tails, self.ready.append
        for record in records:
            key = record.key
            if key is None:
                line_up(record)
                continue
            tail = tails.get(key)
            if tail is None:
                line_up(record)
            else:
                tail.next = record
            tails[key] = record

    def take(self, count: int) -> list[Record]:
        """Hand out up to so many; in the order "partition" they must go to one worker."""
        ready = self.ready
        if self._is_serial and (self.in_flight or self.retrying):
            return []
        if count >= len(ready):
            taken = list(ready)
            ready.clear()
        else:
            taken = [ready.popleft() for _ in range(count)]
        self.in_flight.update(taken)
        return taken

    def release(self, records: Iterable[Record]) -> list[Record]:
        """Let go of records that are in flight, and of their keys; return which of them were."""
        in_flight, before = self.in_flight, len(self.in_flight)
        gone = [record for record in records if record in in_flight]
        in_flight.difference_update(gone)
        if len(in_flight) != before - len(gone):  # one was named twice
            gone = list(dict.fromkeys(gone))
        for record in gone:
            record.home = None
        if self._is_keyed:
            self._go_on_with(gone)
        self.held -= len(gone)
        self._weigh(-sum([record.size for record in gone]))
        return gone

    def _go_on_with(self, gone: Sequence[Record]) -> None:
        """Free the keys of records, or make those ready that stand behind them."""
        tails = self._tails
        for record in gone:
            behind = record.next
            if behind is not None:
                record.next = None
                self.ready.append(behind)
            elif record.key is not None:
                del tails[record.key]

    def _weigh(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self._all.total += more_bytes

    def hold(self, records: Sequence[Record]) -> None:
        """Keep records that were in flight, and their keys, until they are tried again."""
        self.in_flight.difference_update(records)
        self.retrying += len(records)

    def again(self, records: Sequence[Record]) -> None:
        """Make records that were kept ready, before all others."""
        self.retrying -= len(records)
        self.ready.extendleft(reversed(records))
        if self._is_serial:
            # What failed together may come back apart; nothing is handed out before the last did.
            self.ready = deque(sorted(self.ready, key=_offset))

    def resume(self, records: Sequence[Record]) -> None:
        """Count records that were kept as in flight: they are being dead-lettered, not worked
        on."""
        self.retrying -= len(records)
        self.in_flight.update(records)

    def clear(self) -> None:
        """Forget all but what is in flight, which keeps its lanes."""
        self.ready.clear()
        self.retrying = 0
        self.held = len(self.in_flight)
        self._weigh(sum([record.size for record in self.in_flight]) - self.held_bytes)
        self._tails.clear()
        for record in self.in_flight:
            record.next = None
            if self._is_keyed and record.key is not None:
                self._tails[record.key] = record

    def check_invariants(self) -> None:
        """Fail if a record is lost, counted wrong, or out of its key's order."""
        heads = [*self.ready, *self.in_flight]
        behind = 0
        seen_bytes = 0
        for record in heads:
            seen_bytes += record.size
            while record.next is not None:
                assert self._is_keyed
                assert record.next.key == record.key
                assert record.next.offset > record.offset or record.epoch != record.next.epoch
                record = record.next
                behind += 1
                seen_bytes += record.size
        assert len(set(heads)) == len(heads)
        assert self.held >= len(heads) + behind + self.retrying
        assert self.held_bytes >= seen_bytes
        if not self.retrying:
            assert self.held == len(heads) + behind
            assert self.held_bytes == seen_bytes
            keys = {record.key for record in heads if record.key is not None}
            assert not self._is_keyed or keys == set(self._tails)
        if self._is_keyed:
            held = [record.key for record in heads if record.key is not None]
            assert len(held) == len(set(held)), "two records of a key could run at once"


def _offset(record: Record) -> int:
    return record.offset
