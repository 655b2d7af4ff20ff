"""Bugs planted in the core: the histories find each of them."""

import pytest

from tests.streams.history import History
from waterclock.streams import stream
from waterclock.streams.ring import Ring
from waterclock.streams.stream import Stream
from waterclock.streams.waiters import Deadlines, WaitQueue

HISTORIES = 200


def the_last_to_come_is_served_first(monkeypatch):
    def first(self):
        waiting = self.all()
        return waiting[-1] if waiting else None

    def serve(self):
        waiter = first(self)
        self.leave(waiter)
        return waiter

    monkeypatch.setattr(WaitQueue, "first", first)
    monkeypatch.setattr(WaitQueue, "serve", serve)


def who_has_left_is_matched(monkeypatch):
    monkeypatch.setattr(WaitQueue, "leave", lambda self, waiter: None)


def what_is_given_back_is_lost(monkeypatch):
    monkeypatch.setattr(Stream, "give_back", lambda self, given, now_ms: [])


def a_deadline_is_overlooked(monkeypatch):
    over = Deadlines.over

    def all_but_one(self, now_ms):
        found = over(self, now_ms)
        if len(found) > 1:
            self.add(found.pop())
        return found

    monkeypatch.setattr(Deadlines, "over", all_but_one)


def a_message_goes_to_two_who_compete(monkeypatch):
    take = Stream._take

    def again(self, receiver, now_ms):
        before = self.taken
        found = take(self, receiver, now_ms)
        if found is not None and len(found.positions) > 2:
            self.taken = before
        return found

    monkeypatch.setattr(Stream, "_take", again)


def the_newest_is_overwritten(monkeypatch):
    put = Ring.put

    def at_the_wrong_end(self, item):
        if self.size > 1 and len(self) == self.size:
            self._head = (self._head - 1) % self.size
        return put(self, item)

    monkeypatch.setattr(Ring, "put", at_the_wrong_end)


def what_was_missed_is_not_said(monkeypatch):
    monkeypatch.setattr(Stream, "_missed", lambda self, receiver, position: 0)


def all_who_wait_under_one_name_get_the_same(monkeypatch):
    monkeypatch.setattr(stream, "first_of_each_name", lambda queue, position: queue.clear())


def patience_is_not_rewarded(monkeypatch):
    monkeypatch.setattr(Stream, "is_full", lambda self: False)


@pytest.mark.parametrize(
    "plant",
    [
        the_last_to_come_is_served_first,
        who_has_left_is_matched,
        what_is_given_back_is_lost,
        a_deadline_is_overlooked,
        a_message_goes_to_two_who_compete,
        the_newest_is_overwritten,
        what_was_missed_is_not_said,
        all_who_wait_under_one_name_get_the_same,
        patience_is_not_rewarded,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)

    def look() -> None:
        for seed in range(HISTORIES):
            History(seed).run(60)

    with pytest.raises((AssertionError, IndexError, ValueError, KeyError)):
        look()
