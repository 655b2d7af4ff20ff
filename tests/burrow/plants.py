"""Bugs planted in the core, most of them once real in somebody's consumer; each must be found.

A plant is a context: inside it the core has the bug. `PLANTS` names them all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from waterclock.burrow.core import commits
from waterclock.burrow.core import offset_map as offset_map
from waterclock.burrow.core.backpressure import Backpressure
from waterclock.burrow.core.effects import Effect
from waterclock.burrow.core.engine import Engine
from waterclock.burrow.core.partition import PartitionState
from waterclock.burrow.core.records import Assignment, Commit, Record, Run, TopicPartition
from waterclock.burrow.core.retries import Retries
from waterclock.burrow.core.work import Work

Plant = Callable[[], AbstractContextManager[Any]]


def commits_highest_seen() -> AbstractContextManager[Any]:
    """Parallel Consumer #826: what was read is committed, and not what was finished."""

    def committable(self: PartitionState, maps: offset_map.OffsetMaps) -> Commit | None:
        is_dirty, self.is_dirty = self.is_dirty, False
        return Commit(self.polled_end) if is_dirty and self.polled_end is not None else None

    return patch.object(PartitionState, "committable", committable)


def keeps_stale_state() -> AbstractContextManager[Any]:
    """Parallel Consumer #875: a partition that comes back finds what was known of it before."""
    assigned = Engine.assigned
    known: dict[tuple[Engine, TopicPartition], PartitionState] = {}

    def remembered(self: Engine, assignments: Sequence[Assignment], now_ms: int) -> list[Effect]:
        effects = assigned(self, assignments, now_ms)
        for each in assignments:
            state = known.setdefault((self, each.name), self._states[each.name])
            state.is_open, state.is_draining, state.epoch = True, False, each.epoch
            state.work = self._states[each.name].work
            self._states[each.name] = state
        return effects

    @contextmanager
    def planted() -> Iterator[None]:
        with (
            patch.object(Engine, "assigned", remembered),
            patch.object(Engine, "check_invariants", lambda self: None),
        ):
            yield

    return planted()


def waits_for_less_than_nothing() -> AbstractContextManager[Any]:
    """A partition whose share is smaller than a message waits until it holds less than nothing."""

    def is_heavy(self: Backpressure, state: PartitionState, part: int) -> bool:
        is_much = self._held.total >= self._bytes_max // part
        return is_much and state.work.held_bytes >= self._share_bytes // part

    return patch.object(Backpressure, "_is_heavy", is_heavy)


def takes_stale_records() -> AbstractContextManager[Any]:
    """Records that were read for an earlier assignment are taken for the present one's."""
    admit = PartitionState.admit

    def admit_all(self: PartitionState, records: Sequence[Record]) -> list[Record]:
        for record in records:
            record.epoch = self.epoch
        return admit(self, records)

    return patch.object(PartitionState, "admit", admit_all)


def forgets_to_wake() -> AbstractContextManager[Any]:
    """Parallel Consumer #857: after a rebalance a partition stands still, and nobody notices."""
    released = Engine._released

    def released_if_open(self: Engine, state: PartitionState, effects: list[Effect]) -> None:
        if state.is_open:
            released(self, state, effects)

    @contextmanager
    def planted() -> Iterator[None]:
        # The engine's own check would see it at once; the simulator must see it without.
        with (
            patch.object(Engine, "_released", released_if_open),
            patch.object(Engine, "check_invariants", lambda self: None),
        ):
            yield

    return planted()


def stays_paused() -> AbstractContextManager[Any]:
    """A partition that was paused for its full queue is never resumed."""
    wanted = Backpressure._is_pause_wanted

    def for_ever(self: Backpressure, state: PartitionState) -> bool:
        return state.is_paused or wanted(self, state)

    return patch.object(Backpressure, "_is_pause_wanted", for_ever)


def retry_frees_its_key() -> AbstractContextManager[Any]:
    """A record that failed lets those behind it overtake while it waits."""
    hold = Work.hold

    def free(self: Work, records: Sequence[Record]) -> None:
        hold(self, records)
        for record in records:
            if record.next is not None:
                self.ready.append(record.next)
                record.next = None

    @contextmanager
    def planted() -> Iterator[None]:
        with (
            patch.object(Work, "hold", free),
            patch.object(Engine, "check_invariants", lambda self: None),
        ):
            yield

    return planted()


def forgets_running_keys() -> AbstractContextManager[Any]:
    """A partition that goes and comes back knows nothing of what still runs of it."""
    close = PartitionState.close

    def close_all(self: PartitionState) -> None:
        close(self)
        self.work.in_flight.clear()
        self.work.clear()

    return patch.object(PartitionState, "close", close_all)


def map_of_another_base() -> AbstractContextManager[Any]:
    """Parallel Consumer #894: the map was made for another offset than the one it goes with."""
    encode = offset_map.OffsetMaps.encode

    def encode_shifted(
        self: offset_map.OffsetMaps, base: int, runs: Sequence[Run]
    ) -> offset_map.EncodedMap:
        return encode(self, base, [(start - 1, end - 1) for start, end in runs if start > base + 1])

    return patch.object(offset_map.OffsetMaps, "encode", encode_shifted)


def retries_of_the_gone_stay() -> AbstractContextManager[Any]:
    """Parallel Consumer #832: the retry queue grows with each rebalance."""
    return patch.object(Retries, "drop", lambda self, home: None)


def ignores_the_map() -> AbstractContextManager[Any]:
    """What is finished beyond the committed offset is done again after a restart."""
    return patch.object(offset_map.OffsetMaps, "decode", lambda self, text, *, base, log_end: [])


def believes_failed_commits() -> AbstractContextManager[Any]:
    """A commit that was refused counts as made."""
    return patch.object(commits, "meaning", lambda code: commits.Meaning.DONE)


def no_last_commit() -> AbstractContextManager[Any]:
    """Partitions are given back without a commit."""
    return patch.object(Engine, "revoked", Engine.lost)


def waits_for_holes() -> AbstractContextManager[Any]:
    """Offsets that do not exist are waited for."""
    return patch.object(PartitionState, "_pass_over", lambda self, start, end: None)


PLANTS: Mapping[str, Plant] = {
    plant.__name__: plant
    for plant in (
        commits_highest_seen,
        keeps_stale_state,
        takes_stale_records,
        forgets_to_wake,
        stays_paused,
        waits_for_less_than_nothing,
        retry_frees_its_key,
        forgets_running_keys,
        map_of_another_base,
        retries_of_the_gone_stay,
        ignores_the_map,
        believes_failed_commits,
        no_last_commit,
        waits_for_holes,
    )
}
