"""The oracle of the crash matrix finds what it should, and excuses what it must.

The same detectors on a real node with planted bugs: `make plants`.
"""

import time

import pytest

from tests.integration.history import UNSAVED_MS_MAX, History, Published
from tests.integration.stint import Held, Stint, now_ms

LEASE_MS = 1_500
GROUP = "g"


class Steps:
    """A history with one message in it, told step by step."""

    def __init__(self) -> None:
        self.history = History((GROUP,))
        self.history.born(1.0)
        self.stint = self.joined()

    def joined(self) -> Stint:
        return Stint(GROUP, "m", self.history.run)

    def published(
        self, name: bytes = b"a", *, offset: int | None = 0, due_ms: int = 0, expires_ms: int = 0
    ) -> Published:
        message = Published(name, b"value", dues={due_ms}, expires_ms=expires_ms)
        self.history.asked(message)
        if offset is not None:
            self.history.stored(name, (0, offset), is_new=True)
        return message

    def received(
        self,
        name: bytes = b"a",
        *,
        offset: int = 0,
        attempt: int = 1,
        due_ms: int = 0,
        value: bytes = b"value",
        stint: Stint | None = None,
        deadline_ms: int | None = None,
    ) -> Held:
        stint = stint or self.stint
        deadline_ms = now_ms() + LEASE_MS if deadline_ms is None else deadline_ms
        held = Held(stint, 0, 1, attempt, deadline_ms)
        self.history.received(
            stint,
            (0, offset),
            held,
            message_id=name,
            value=value,
            due_ms=due_ms,
            lease_ms=LEASE_MS,
        )
        return held

    def answered(
        self, answer: str, *, ago_ms: int = 0, offset: int = 0, deadline_ms: int = 0
    ) -> None:
        self.history.answered(self.stint, (0, offset), answer, deadline_ms)
        self.history.sent(self.stint, (0, offset), answer)
        self.history.groups[GROUP].held[0, offset].answered_ms -= ago_ms

    def echoed(self) -> None:
        self.stint.asked += 1
        self.stint.echoed(self.stint.asked - 1)

    def killed(self) -> None:
        run = self.history.run
        run.is_killed, run.ended_ms = True, now_ms()
        self.history.born(1.0)
        self.stint = self.joined()

    def stopped(self, *, stop_ago_ms: int = 0) -> None:
        run = self.history.run
        run.stop_ms, run.ended_ms = now_ms() - stop_ago_ms, now_ms()
        self.history.born(1.0)
        self.stint = self.joined()

    @property
    def found(self) -> dict[str, int]:
        self.history.settle_suspects()
        return dict(self.history.findings)

    @property
    def excused(self) -> dict[str, int]:
        self.history.settle_suspects()
        assert not self.history.findings, str(self.history.findings)
        return dict(self.history.repeats)


@pytest.fixture
def steps() -> Steps:
    return Steps()


# What must not be


def test_a_message_received_before_its_due_time_is_early(steps):
    due_ms = now_ms() + 10_000
    steps.published(due_ms=due_ms)
    steps.received(due_ms=due_ms)
    assert steps.found == {"early": 1}


def test_a_message_that_came_as_due_at_a_time_nobody_gave_it_is_early(steps):
    message = steps.published(due_ms=now_ms() - 100)
    steps.history.moving(message, now_ms() - 10)
    steps.history.moved(message, due := max(message.dues), outcome=1)
    steps.received(due_ms=due - 50)
    assert steps.found == {"early": 1}


def test_a_reschedule_that_comes_too_late_changes_nothing_also_to_the_same_time(steps):
    due_ms = now_ms() - 100
    message = steps.published(due_ms=due_ms)
    for moved_ms in (due_ms + 50, due_ms):
        steps.history.moving(message, moved_ms)
        steps.history.moved(message, moved_ms, outcome=2)
    steps.received(due_ms=due_ms)
    assert steps.found == {}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_delivery_of_a_cancelled_message_is_found_whichever_is_heard_first(steps, is_first):
    message = steps.published()
    if is_first:
        steps.received()
    steps.history.cancelled(message, outcome=1)
    if not is_first:
        steps.received()
    assert steps.found == {"after cancel": 1}


def test_a_message_handed_out_after_its_expiry_is_found(steps):
    steps.published(expires_ms=now_ms() - 10)
    steps.received()
    assert steps.found == {"after expiry": 1}


def test_a_first_delivery_behind_a_later_one_is_out_of_order(steps):
    for offset in (0, 1):
        steps.published(b"%d" % offset, offset=offset)
    steps.received(b"1", offset=1)
    steps.received(b"0", offset=0)
    assert steps.found == {"out of order": 1}


def test_a_second_attempt_of_what_never_arrived_may_come_late(steps):
    for offset in (0, 1):
        steps.published(b"%d" % offset, offset=offset)
    steps.received(b"1", offset=1)
    steps.received(b"0", offset=0, attempt=2)
    assert steps.found == {}


def test_a_place_with_two_messages_is_found(steps):
    steps.published(b"a", offset=7)
    steps.published(b"b", offset=7)
    assert steps.found == {"offset reused": 1}


@pytest.mark.parametrize(("offset", "is_new"), [(8, False), (7, True), (8, True)])
def test_a_repeat_that_is_answered_as_new_or_elsewhere_is_found(steps, offset, is_new):
    steps.published(b"a", offset=7)
    steps.history.stored(b"a", (0, offset), is_new=is_new)
    assert steps.found == {"offset reused": 1}


def test_strange_and_changed_messages_are_found(steps):
    steps.published()
    steps.received(value=b"another")
    steps.received(b"nobody's", offset=5)
    assert steps.found == {"wrong content": 1, "unpublished": 1}


def test_an_acknowledged_message_that_a_cancel_does_not_know_is_lost(steps):
    steps.history.cancelled(steps.published(), outcome=0)
    assert steps.found == {"lost publish": 1}


# Repeats


def test_an_acked_message_that_comes_again_is_found(steps):
    steps.published()
    steps.received()
    steps.answered("ack")
    steps.echoed()
    steps.received(stint=steps.joined())
    steps.history.refused_all(steps.stint, 0, 1)
    steps.stint.broken_ms = now_ms()
    assert steps.found == {"unexplained repeat": 1}


def test_an_acked_message_that_comes_again_with_no_reason_to_is_found(steps):
    steps.published()
    steps.received()
    steps.answered("ack")
    steps.received()
    assert steps.found == {"unexplained repeat": 1}


def test_an_extension_that_was_heard_holds_a_message_longer(steps):
    steps.published()
    steps.received(deadline_ms=now_ms() + 30)
    steps.answered("extend", deadline_ms=now_ms() + LEASE_MS)
    steps.echoed()
    time.sleep(0.04)
    steps.received(attempt=2)
    assert steps.found == {"unexplained repeat": 1}


def test_a_held_message_that_comes_again_before_its_deadline_is_found(steps):
    steps.published()
    steps.received()
    steps.received(attempt=2)
    assert steps.found == {"unexplained repeat": 1}


def test_a_message_acked_long_before_a_kill_must_not_come_again(steps):
    steps.published()
    steps.received()
    steps.answered("ack", ago_ms=UNSAVED_MS_MAX + 100)
    steps.killed()
    steps.received()
    assert steps.found == {"unexplained repeat": 1}


def test_a_message_acked_before_a_stop_must_not_come_again(steps):
    steps.published()
    steps.received()
    steps.answered("ack", ago_ms=50)
    steps.stopped(stop_ago_ms=20)
    steps.received()
    assert steps.found == {"unexplained repeat": 1}


def test_a_message_acked_just_before_a_kill_may_come_again(steps):
    steps.published()
    steps.received()
    steps.answered("ack", ago_ms=UNSAVED_MS_MAX - 500)
    steps.killed()
    steps.received()
    assert steps.excused == {"crash, answer not saved yet": 1}


def test_a_message_acked_while_the_node_stops_may_come_again(steps):
    steps.published()
    steps.received()
    steps.answered("ack", ago_ms=10)
    steps.stopped(stop_ago_ms=500)
    steps.received()
    assert steps.excused == {"answered after the stop": 1}


@pytest.mark.parametrize(("answer", "cause"), [("nack", "nacked"), ("give back", "given back")])
def test_what_was_nacked_or_given_back_comes_again(steps, answer, cause):
    steps.published()
    steps.received()
    steps.answered(answer)
    steps.received(attempt=2)
    assert steps.excused == {cause: 1}


def test_what_timed_out_or_was_held_by_the_dead_comes_again(steps):
    steps.published()
    steps.received(deadline_ms=now_ms() - 1)
    steps.received(attempt=2)
    steps.stint.ended_ms = now_ms()
    steps.received(attempt=3, stint=steps.joined())
    assert steps.excused == {"timed out": 1, "member gone": 1}


def test_an_ack_that_is_refused_later_explains_a_repeat(steps):
    steps.published()
    steps.received()
    steps.answered("ack")
    steps.received(attempt=2, stint=steps.joined())
    steps.history.refused(steps.stint, (0, 0))
    assert steps.excused == {"answered too late": 1}


def test_an_ack_that_was_on_its_way_when_its_partition_was_lost_explains_a_repeat(steps):
    steps.published()
    steps.received()
    steps.answered("ack")
    steps.history.refused_all(steps.stint, 0, 1)
    time.sleep(0.002)
    steps.echoed()
    steps.received(attempt=2, stint=steps.joined())
    assert steps.excused == {"partition moved": 1}


def test_an_extension_that_nobody_heard_explains_a_repeat(steps):
    steps.published()
    steps.received(deadline_ms=now_ms() - 1)
    steps.answered("extend", deadline_ms=now_ms() + LEASE_MS)
    steps.echoed()
    steps.received(attempt=2)
    assert steps.excused == {"timed out": 1}


def test_an_ack_that_was_on_its_way_when_its_stream_broke_explains_a_repeat(steps):
    steps.published()
    steps.received()
    steps.answered("ack", ago_ms=50)
    steps.stint.cut_ms = steps.stint.ended_ms = now_ms()
    steps.received(attempt=2, stint=steps.joined())
    assert steps.excused == {"answer lost with its stream": 1}
