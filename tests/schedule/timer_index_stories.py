"""Short stories of an index, each about one thing that can go wrong."""

from collections.abc import Callable

import numpy as np

from waterclock.schedule.cold_timers import ColdTimers, Int64s, SegmentChanges
from waterclock.schedule.timer_index import TimerIndex

NOW = 1_700_000_000_000
HOT_WINDOW_MS = 10_000
COLD_MS = NOW + 3_600_000


def array(*values: int) -> Int64s:
    return np.array(values, np.int64)


def changes(
    opened: dict[int, int] | None = None,
    *,
    retired: tuple[int, ...] = (),
    moved: dict[int, int] | None = None,
) -> SegmentChanges:
    opened, moved = opened or {}, moved or {}
    return SegmentChanges(
        array(*opened), array(*opened.values()), array(*retired),
        array(*moved), array(*moved.values()),
    )  # fmt: skip


def index_of(*segments: SegmentChanges, now_ms: int = NOW) -> TimerIndex:
    """Return an index over sealed segments, the bases of which are 0, 100, 200 ..."""
    cold = ColdTimers()
    for number, segment in enumerate(segments):
        list(cold.fold(100 * number, segment))
    cold.begin()
    index = TimerIndex(cold, now_ms=now_ms, hot_window_ms=HOT_WINDOW_MS, tick_ms=100)
    list(index.load(now_ms))
    return index


def pending(index: TimerIndex) -> dict[int, int]:
    index.check_invariants()
    offsets, due = index.open_from(0, 1_000)
    return dict(zip(offsets.tolist(), due.tolist(), strict=True))


def fired(index: TimerIndex, now_ms: int, limit: int = 100) -> list[int]:
    """Fire all that is due, so many at once; return the order."""
    order: list[int] = []
    list(index.load(now_ms))
    while index.is_due(now_ms):
        offsets = index.tick(now_ms, limit)
        assert index.retire(offsets).all()
        order += offsets.tolist()
    return order


def moved_between_the_seal_and_the_fold() -> None:
    index = index_of()
    index.open(array(1, 2), array(COLD_MS, COLD_MS))
    sealed = changes({1: COLD_MS, 2: COLD_MS})

    assert index.move(array(1), array(COLD_MS + 5)).all()
    list(index.cold.fold(0, sealed))

    assert pending(index) == {1: COLD_MS + 5, 2: COLD_MS}


def ended_in_a_later_segment() -> None:
    index = index_of(changes({1: COLD_MS, 2: COLD_MS}), changes(retired=(1,)))

    assert pending(index) == {2: COLD_MS}


def moved_in_two_later_segments() -> None:
    index = index_of(
        changes({1: COLD_MS, 2: COLD_MS}),
        changes(moved={1: COLD_MS + 1}),
        changes(moved={1: COLD_MS + 2}),
    )

    assert pending(index) == {1: COLD_MS + 2, 2: COLD_MS}


def loaded_once() -> None:
    index = index_of(changes({1: NOW + 5_000, 2: COLD_MS}))

    list(index.load(NOW))

    assert pending(index) == {1: NOW + 5_000, 2: COLD_MS}
    assert fired(index, COLD_MS) == [1, 2]
    assert pending(index) == {}


def near_when_it_was_saved() -> None:
    sealed = changes({1: NOW + 5_000, 2: COLD_MS, 3: COLD_MS})
    before = index_of(sealed)
    assert before.retire(array(3)).all()
    again = ColdTimers()

    again.restore(0, sealed, *before.cold.open_flags(0))
    again.begin()
    index = TimerIndex(again, now_ms=NOW, hot_window_ms=HOT_WINDOW_MS, tick_ms=100)
    list(index.load(NOW))
    index.retire(array(3))  # the active segment says so

    assert pending(index) == {1: NOW + 5_000, 2: COLD_MS}


def thinned_by_a_rewrite() -> None:
    index = index_of(changes({1: COLD_MS, 2: COLD_MS + 1, 3: COLD_MS + 2}))
    index.retire(array(1))

    index.cold.refit(0, changes({2: COLD_MS + 1, 3: COLD_MS + 2}))

    assert pending(index) == {2: COLD_MS + 1, 3: COLD_MS + 2}


def in_shards() -> TimerIndex:
    """Return an index in which 1 to 6 came out of order and fire in order."""
    index = index_of(changes({n: COLD_MS + n for n in range(1, 7)}))
    for offset in (5, 3, 6, 1, 4, 2):
        assert index.move(array(offset), array(NOW + 1_000 + offset)).all()
    return index


def out_of_order_arrivals_fire_in_order() -> None:
    assert fired(in_shards(), NOW + 2_000) == [1, 2, 3, 4, 5, 6]


def one_at_a_time() -> None:
    assert fired(in_shards(), NOW + 2_000, limit=1) == [1, 2, 3, 4, 5, 6]


def joined_shards() -> None:
    index = index_of(changes(dict.fromkeys(range(40), COLD_MS)))
    for offset in range(39, -1, -1):
        assert index.move(array(offset), array(NOW + 1_000)).all()

    assert pending(index) == dict.fromkeys(range(40), NOW + 1000)
    assert fired(index, NOW + 2_000, limit=7) == list(range(40))


STORIES: list[Callable[[], None]] = [
    moved_between_the_seal_and_the_fold,
    ended_in_a_later_segment,
    moved_in_two_later_segments,
    loaded_once,
    near_when_it_was_saved,
    thinned_by_a_rewrite,
    out_of_order_arrivals_fire_in_order,
    one_at_a_time,
    joined_shards,
]
