"""Folding what each segment did to the scheduled messages gives what replaying the whole log
gives."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.sidecars import opened as opened_module
from waterclock.log.sidecars.due import DueDelta, Int64s, NetDelta, endings_of, open_scheduled
from waterclock.log.sidecars.endings import Ending

OPEN, RETIRE, MOVE, CUT, SAVE = "open", "retire", "move", "cut", "save"

Event = tuple[str, list[int]]
"""What happened, and numbers that say how many scheduled messages, or which of those ever made."""

OFFSETS = st.lists(st.integers(90, 129), max_size=5, unique=True)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([OPEN, OPEN, RETIRE, MOVE, CUT, SAVE]),
        st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True),
    ),
    max_size=30,
)


def array(values: list[int]) -> Int64s:
    return np.array(values, dtype=np.int64)


class Replay:
    """Events told both to a plain dict and to the delta of the segment they fall into."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.deltas: list[NetDelta] = []
        self._delta = DueDelta(0)
        self._base = self._end = 0
        self._made: list[int] = []
        self._time = 1_000

    def run(self, events: list[Event]) -> None:
        for kind, numbers in events:
            known = [self._made[n] for n in numbers if n < len(self._made)]
            # Times that rise and fall, so that "the latest" is not also "the greatest".
            self._time += 7 if numbers[0] % 2 else -3
            due = [self._time + number for number in numbers]
            if kind == OPEN:
                self._opened(due)
            elif kind == RETIRE and known:
                self._delta.retire(array(known))
                self.open = {offset: at for offset, at in self.open.items() if offset not in known}
            elif kind == MOVE and known:
                self._delta.move(array(known), array(due[: len(known)]))
                moved = zip(known, due, strict=False)
                self.open |= {offset: at for offset, at in moved if offset in self.open}
            elif kind == SAVE:
                self._delta = DueDelta.resume(self._base, self._delta.net())
            elif kind == CUT:
                self._cut()
            self._end += 1
        self._cut()

    def _opened(self, due: list[int]) -> None:
        offsets = list(range(self._end, self._end + len(due)))
        self._delta.open(array(offsets), array(due))
        self.open |= dict(zip(offsets, due, strict=True))
        self._made += offsets
        self._end += len(due)

    def _cut(self) -> None:
        self.deltas.append(self._delta.net())
        self._base = self._end
        self._delta = DueDelta(self._base)


def columns(delta: NetDelta) -> list[list[int]]:
    parts = (delta.opened, delta.opened_due, delta.retired, delta.moved, delta.moved_due)
    return [part.tolist() for part in (*parts, delta.cancelled, delta.expired)]


@given(EVENTS)
def test_folded_deltas_are_the_scheduled_messages_a_replay_leaves_open(events):
    replay = Replay()

    replay.run(events)

    offsets, due = open_scheduled(replay.deltas)
    assert dict(zip(offsets.tolist(), due.tolist(), strict=True)) == replay.open
    assert offsets.tolist() == sorted(offsets.tolist())


@given(EVENTS)
def test_folding_changes_no_delta_and_side_cars_fold_alike(events):
    replay = Replay()
    replay.run(events)
    before = [columns(delta) for delta in replay.deltas]
    loaded = [NetDelta.decode(memoryview(b"".join(delta.encode()))) for delta in replay.deltas]

    folded = open_scheduled(replay.deltas)
    folded_from_disk = open_scheduled([delta for delta in loaded if delta is not None])

    assert [columns(delta) for delta in replay.deltas] == before
    assert [None if delta is None else columns(delta) for delta in loaded] == before
    assert np.array_equal(folded, folded_from_disk)


def test_a_net_delta_speaks_of_earlier_segments_only_where_it_must():
    delta = DueDelta(100)
    delta.open(array([100, 101, 102]), array([7, 8, 9]))
    delta.move(array([101, 3, 4, 3]), array([80, 30, 40, 31]))
    delta.retire(array([100, 4, 5, 5]))

    assert columns(delta.net()) == [[101, 102], [80, 9], [4, 5], [3], [31], [], []]


def test_nothing_folds_to_nothing():
    offsets, due = open_scheduled([])

    assert (offsets.tolist(), due.tolist()) == ([], [])
    assert columns(DueDelta(5).net()) == [[]] * 7


def test_a_side_car_is_five_counts_and_seven_columns():
    moved = array([4]), array([40])
    delta = NetDelta(array([1, 2]), array([10, 20]), array([3]), *moved, array([7, 8]), array([9]))

    counts = 2, 1, 1, 2, 1
    assert b"".join(delta.encode()) == struct.pack("<15q", *counts, 1, 2, 10, 20, 4, 40, 3, 7, 8, 9)


@given(st.lists(st.tuples(st.sampled_from(["cancel", "expire", "fire", "save"]), OFFSETS)))
def test_how_a_scheduled_message_ended_is_told_while_it_is_written_and_afterwards(events):
    delta, truth = DueDelta(100), dict.fromkeys(range(90, 130), Ending.DELIVERED)
    for kind, offsets in events:
        if kind == "save":
            delta = DueDelta.resume(100, delta.net())
            continue
        offsets = [o for o in offsets if truth[o] is Ending.DELIVERED]
        if kind == "fire":
            delta.retire(array(offsets))
        else:
            delta.cancel(array(offsets), has_expired=kind == "expire")
            ending = Ending.EXPIRED if kind == "expire" else Ending.CANCELLED
            truth |= dict.fromkeys(offsets, ending)

    asked = array(list(truth))
    for each in (delta, delta.net(), delta.frozen()):
        assert endings_of([DueDelta(0), each], asked).tolist() == list(truth.values())


def test_no_call_copies_more_than_a_piece_however_much_there_is(monkeypatch):
    monkeypatch.setattr(opened_module, "PIECE_ROWS_MAX", 64)
    copied: list[int] = []
    concatenate = np.concatenate

    def copying(arrays: list[Int64s]) -> Int64s:
        joined = concatenate(arrays)
        copied.append(len(joined))
        return joined

    monkeypatch.setattr(np, "concatenate", copying)
    delta = DueDelta(0)
    for start in range(0, 10_000, 10):
        delta.open(np.arange(start, start + 10), np.arange(start, start + 10) * 2)

    assert max(copied) <= 64
    assert sum(copied) < 10_000 * 2 * 7  # two columns; a row is copied once for each doubling
    net = delta.net()
    assert net.opened.tolist() == list(range(10_000))
    assert net.opened_due.tolist() == list(range(0, 20_000, 2))


@given(EVENTS, st.integers(1, 200))
def test_a_body_of_another_length_is_refused(events, change):
    replay = Replay()
    replay.run(events)
    body = b"".join(replay.deltas[-1].encode())

    assert NetDelta.decode(memoryview(body + bytes(change))) is None
    assert NetDelta.decode(memoryview(body[: max(0, len(body) - change)])) is None


@pytest.mark.parametrize(
    "counts",
    [
        (2**64 - 1, 0, 0, 0, 0),
        (2**61, 2**61, 0, 0, 0),
        (2**63, 0, 2**63, 0, 0),
        (0, 0, 0, 0, 2**61),
    ],
)
def test_counts_that_would_overflow_are_refused(counts):
    body = struct.pack("<QQQQQ", *counts) + bytes(64)

    assert NetDelta.decode(memoryview(body)) is None


@given(st.binary(max_size=120))
def test_random_bytes_are_a_delta_or_refused(data):
    delta = NetDelta.decode(memoryview(data))

    if delta is not None:
        assert b"".join(delta.encode()) == data


def test_a_frozen_delta_is_not_changed_by_what_follows():
    delta = DueDelta(10)
    delta.open(np.array([10, 11]), np.array([5, 6]))
    frozen = delta.frozen()
    net = delta.net()
    assert delta.net() is net

    delta.cancel(np.array([3, 10]))
    delta.move(np.array([11]), np.array([9]))

    assert frozen.net().encode() == net.encode()
    assert delta.net().encode() != net.encode()


def test_a_delta_resumed_from_a_side_car_is_the_side_car_until_something_happens():
    loaded = NetDelta(*(np.array(column) for column in ([10, 11], [5, 6], [3], [4], [8])))
    delta = DueDelta.resume(10, loaded)
    assert delta.net() is loaded

    delta.retire(np.array([10]))

    assert delta.net().opened.tolist() == [11]
    assert delta.net().retired.tolist() == [3]
    assert loaded.opened.tolist() == [10, 11]
