"""The oracle of the crash matrix finds what it should, and excuses what it must.

The same detectors on a real node with planted bugs: `make crash-plants`.
"""

import pytest

from tests.integration.history import (
    LATE_MS,
    UNSAVED_MS_MAX,
    Held,
    History,
    Published,
    Stint,
    now_ms,
)

LEASE_MS = 1_500
GROUP = "g"


class Scene:
    """A history with one message in it, told step by step."""

    def __init__(self) -> None:
        self.history = History((GROUP,))
        self.history.born(1.0)
        self.stint = self.joined()

    def joined(self) -> Stint:
        return Stint(GROUP, "m", self.history.life)

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

    def answered(self, answer: str, *, ago_ms: int = 0, offset: int = 0) -> None:
        self.history.answered(self.stint, (0, offset), answer)
        self.history.groups[GROUP].held[0, offset].answered_ms -= ago_ms

    def killed(self) -> None:
        life = self.history.life
        life.is_killed, life.ended_ms = True, now_ms()
        self.history.born(1.0)
        self.stint = self.joined()

    def stopped(self, *, told_ago_ms: int = 0) -> None:
        life = self.history.life
        life.told_ms, life.ended_ms = now_ms() - told_ago_ms, now_ms()
        self.history.born(1.0)
        self.stint = self.joined()

    @property
    def found(self) -> dict[str, int]:
        self.history.settle_suspects()
        return dict(self.history.findings.counts)

    @property
    def excused(self) -> dict[str, int]:
        self.history.settle_suspects()
        assert not self.history.findings.counts, str(self.history.findings)
        return dict(self.history.repeats)


@pytest.fixture
def scene() -> Scene:
    return Scene()


# What must not be


def test_a_message_received_before_its_due_time_is_early(scene):
    due_ms = now_ms() + 10_000
    scene.published(due_ms=due_ms)
    scene.received(due_ms=due_ms)
    assert scene.found == {"early": 1}


def test_a_message_that_came_as_due_at_a_time_nobody_gave_it_is_early(scene):
    message = scene.published(due_ms=now_ms() - 100)
    scene.history.moving(message, now_ms() - 10)
    scene.history.moved(message, due := max(message.dues), outcome=1)
    scene.received(due_ms=due - 50)
    assert scene.found == {"early": 1}


def test_a_reschedule_that_comes_too_late_changes_nothing_also_to_the_same_time(scene):
    due_ms = now_ms() - 100
    message = scene.published(due_ms=due_ms)
    for moved_ms in (due_ms + 50, due_ms):
        scene.history.moving(message, moved_ms)
        scene.history.moved(message, moved_ms, outcome=2)
    scene.received(due_ms=due_ms)
    assert scene.found == {}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_delivery_of_a_cancelled_message_is_found_whichever_is_heard_first(scene, is_first):
    message = scene.published()
    if is_first:
        scene.received()
    scene.history.cancelled(message, outcome=1)
    if not is_first:
        scene.received()
    assert scene.found == {"after cancel": 1}


def test_a_message_handed_out_after_its_expiry_is_found(scene):
    scene.published(expires_ms=now_ms() - 10)
    scene.received()
    assert scene.found == {"after expiry": 1}


def test_a_first_delivery_behind_a_later_one_is_out_of_order(scene):
    for offset in (0, 1):
        scene.published(b"%d" % offset, offset=offset)
    scene.received(b"1", offset=1)
    scene.received(b"0", offset=0)
    assert scene.found == {"out of order": 1}


def test_a_second_attempt_of_what_never_arrived_may_come_late(scene):
    for offset in (0, 1):
        scene.published(b"%d" % offset, offset=offset)
    scene.received(b"1", offset=1)
    scene.received(b"0", offset=0, attempt=2)
    assert scene.found == {}


def test_a_place_with_two_messages_is_found(scene):
    scene.published(b"a", offset=7)
    scene.published(b"b", offset=7)
    assert scene.found == {"offset reused": 1}


@pytest.mark.parametrize(("offset", "is_new"), [(8, False), (7, True), (8, True)])
def test_a_repeat_that_is_answered_as_new_or_elsewhere_is_found(scene, offset, is_new):
    scene.published(b"a", offset=7)
    scene.history.stored(b"a", (0, offset), is_new=is_new)
    assert scene.found == {"offset reused": 1}


def test_strange_and_changed_messages_are_found(scene):
    scene.published()
    scene.received(value=b"another")
    scene.received(b"nobody's", offset=5)
    assert scene.found == {"wrong content": 1, "unpublished": 1}


def test_an_acknowledged_message_that_a_cancel_does_not_know_is_lost(scene):
    scene.history.cancelled(scene.published(), outcome=0)
    assert scene.found == {"lost publish": 1}


# Repeats


def test_an_acked_message_that_comes_again_is_found(scene):
    scene.published()
    scene.received()
    scene.answered("ack", ago_ms=LATE_MS * 2)
    scene.received()
    assert scene.found == {"unexplained repeat": 1}


def test_a_held_message_that_comes_again_before_its_deadline_is_found(scene):
    scene.published()
    scene.received()
    scene.received(attempt=2)
    assert scene.found == {"unexplained repeat": 1}


def test_a_message_acked_long_before_a_kill_must_not_come_again(scene):
    scene.published()
    scene.received()
    scene.answered("ack", ago_ms=UNSAVED_MS_MAX + 100)
    scene.killed()
    scene.received()
    assert scene.found == {"unexplained repeat": 1}


def test_a_message_acked_before_a_stop_must_not_come_again(scene):
    scene.published()
    scene.received()
    scene.answered("ack", ago_ms=50)
    scene.stopped(told_ago_ms=20)
    scene.received()
    assert scene.found == {"unexplained repeat": 1}


def test_a_message_acked_just_before_a_kill_may_come_again(scene):
    scene.published()
    scene.received()
    scene.answered("ack", ago_ms=UNSAVED_MS_MAX - 500)
    scene.killed()
    scene.received()
    assert scene.excused == {"crash, answer not saved yet": 1}


def test_a_message_acked_while_the_node_stops_may_come_again(scene):
    scene.published()
    scene.received()
    scene.answered("ack", ago_ms=10)
    scene.stopped(told_ago_ms=500)
    scene.received()
    assert scene.excused == {"answered after the stop": 1}


@pytest.mark.parametrize(("answer", "cause"), [("nack", "nacked"), ("give back", "given back")])
def test_what_was_nacked_or_given_back_comes_again(scene, answer, cause):
    scene.published()
    scene.received()
    scene.answered(answer)
    scene.received(attempt=2)
    assert scene.excused == {cause: 1}


def test_what_timed_out_or_was_held_by_the_dead_comes_again(scene):
    scene.published()
    scene.received(deadline_ms=now_ms() - 1)
    scene.received(attempt=2)
    scene.stint.ended_ms = now_ms()
    scene.received(attempt=3, stint=scene.joined())
    assert scene.excused == {"timed out": 1, "member gone": 1}


def test_an_ack_that_is_refused_later_explains_a_repeat(scene):
    scene.published()
    scene.received()
    scene.answered("ack", ago_ms=LATE_MS * 2)
    scene.received(attempt=2, stint=scene.joined())
    scene.history.refused(scene.stint, (0, 0))
    assert scene.excused == {"answered too late": 1}


def test_an_ack_that_was_on_its_way_when_its_stream_broke_explains_a_repeat(scene):
    scene.published()
    scene.received()
    scene.answered("ack", ago_ms=50)
    scene.stint.cut_ms = scene.stint.ended_ms = now_ms()
    scene.received(attempt=2, stint=scene.joined())
    assert scene.excused == {"answer lost with its stream": 1}
