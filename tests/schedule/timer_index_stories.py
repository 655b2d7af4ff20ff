"""Short stories of an agenda, each about one thing that can go wrong."""

from collections.abc import Callable

import numpy as np

from waterclock.schedule.cold_timers import Far, Int64s, Words
from waterclock.schedule.timer_index import TimerIndex

NOW = 1_700_000_000_000
NEAR_MS = 10_000
FAR_MS = NOW + 3_600_000


def array(*values: int) -> Int64s:
    return np.array(values, np.int64)


def words(
    opened: dict[int, int] | None = None,
    *,
    retired: tuple[int, ...] = (),
    moved: dict[int, int] | None = None,
) -> Words:
    opened, moved = opened or {}, moved or {}
    return Words(
        array(*opened), array(*opened.values()), array(*retired),
        array(*moved), array(*moved.values()),
    )  # fmt: skip


def agenda_of(*segments: Words, now_ms: int = NOW) -> TimerIndex:
    """Return an agenda over sealed segments, the bases of which are 0, 100, 200 ..."""
    far = Far()
    for number, segment in enumerate(segments):
        list(far.fold(100 * number, segment))
    far.begin()
    agenda = TimerIndex(far, now_ms=now_ms, near_ms=NEAR_MS, tick_ms=100)
    list(agenda.load(now_ms))
    return agenda


def pending(agenda: TimerIndex) -> dict[int, int]:
    agenda.check_invariants()
    offsets, due = agenda.open_from(0, 1_000)
    return dict(zip(offsets.tolist(), due.tolist(), strict=True))


def fired(agenda: TimerIndex, now_ms: int, limit: int = 100) -> list[int]:
    """Fire all that is due, so many at once; return the order."""
    order: list[int] = []
    list(agenda.load(now_ms))
    while agenda.is_due(now_ms):
        offsets = agenda.tick(now_ms, limit)
        assert agenda.retire(offsets).all()
        order += offsets.tolist()
    return order


def moved_between_the_seal_and_the_fold() -> None:
    agenda = agenda_of()
    agenda.open(array(1, 2), array(FAR_MS, FAR_MS))
    sealed = words({1: FAR_MS, 2: FAR_MS})

    assert agenda.move(array(1), array(FAR_MS + 5)).all()
    list(agenda.far.fold(0, sealed))

    assert pending(agenda) == {1: FAR_MS + 5, 2: FAR_MS}


def ended_in_a_later_segment() -> None:
    agenda = agenda_of(words({1: FAR_MS, 2: FAR_MS}), words(retired=(1,)))

    assert pending(agenda) == {2: FAR_MS}


def moved_in_two_later_segments() -> None:
    agenda = agenda_of(
        words({1: FAR_MS, 2: FAR_MS}), words(moved={1: FAR_MS + 1}), words(moved={1: FAR_MS + 2})
    )

    assert pending(agenda) == {1: FAR_MS + 2, 2: FAR_MS}


def loaded_once() -> None:
    agenda = agenda_of(words({1: NOW + 5_000, 2: FAR_MS}))

    list(agenda.load(NOW))

    assert pending(agenda) == {1: NOW + 5_000, 2: FAR_MS}
    assert fired(agenda, FAR_MS) == [1, 2]
    assert pending(agenda) == {}


def near_when_it_was_saved() -> None:
    sealed = words({1: NOW + 5_000, 2: FAR_MS, 3: FAR_MS})
    before = agenda_of(sealed)
    assert before.retire(array(3)).all()
    again = Far()

    again.restore(0, sealed, *before.far.open_flags(0))
    again.begin()
    agenda = TimerIndex(again, now_ms=NOW, near_ms=NEAR_MS, tick_ms=100)
    list(agenda.load(NOW))
    agenda.retire(array(3))  # the active segment says so

    assert pending(agenda) == {1: NOW + 5_000, 2: FAR_MS}


def thinned_by_a_rewrite() -> None:
    agenda = agenda_of(words({1: FAR_MS, 2: FAR_MS + 1, 3: FAR_MS + 2}))
    agenda.retire(array(1))

    agenda.far.refit(0, words({2: FAR_MS + 1, 3: FAR_MS + 2}))

    assert pending(agenda) == {2: FAR_MS + 1, 3: FAR_MS + 2}


def in_wings() -> TimerIndex:
    """Return an agenda in which 1 to 6 came out of order and fire in order."""
    agenda = agenda_of(words({n: FAR_MS + n for n in range(1, 7)}))
    for offset in (5, 3, 6, 1, 4, 2):
        assert agenda.move(array(offset), array(NOW + 1_000 + offset)).all()
    return agenda


def out_of_order_arrivals_fire_in_order() -> None:
    assert fired(in_wings(), NOW + 2_000) == [1, 2, 3, 4, 5, 6]


def one_at_a_time() -> None:
    assert fired(in_wings(), NOW + 2_000, limit=1) == [1, 2, 3, 4, 5, 6]


def joined_wings() -> None:
    agenda = agenda_of(words(dict.fromkeys(range(40), FAR_MS)))
    for offset in range(39, -1, -1):
        assert agenda.move(array(offset), array(NOW + 1_000)).all()

    assert pending(agenda) == dict.fromkeys(range(40), NOW + 1000)
    assert fired(agenda, NOW + 2_000, limit=7) == list(range(40))


STORIES: list[Callable[[], None]] = [
    moved_between_the_seal_and_the_fold,
    ended_in_a_later_segment,
    moved_in_two_later_segments,
    loaded_once,
    near_when_it_was_saved,
    thinned_by_a_rewrite,
    out_of_order_arrivals_fire_in_order,
    one_at_a_time,
    joined_wings,
]
