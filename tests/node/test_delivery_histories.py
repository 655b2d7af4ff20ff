"""No history loses, repeats or misdirects a message, and planted bugs are found (else the histories
prove nothing)."""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kit.examples import examples
from tests.node.delivery_history import CountingHistory, DeliveryHistory
from waterclock.delivery.cursor import Cursor
from waterclock.delivery.leases import Leases
from waterclock.delivery.spans import SpanMap
from waterclock.model.clock import RunningClock
from waterclock.model.ids import Millis
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.groups import cleaner, outbound
from waterclock.node.groups.delivery import GroupDelivery
from waterclock.node.groups.host import GroupHost
from waterclock.node.groups.saver import GroupSaver
from waterclock.node.groups.session import QueuedDelivery, Session

HISTORIES = int(os.environ.get("WATERCLOCK_DELIVERY_HISTORIES") or examples(40))
HUNTS = 27
HUNT = settings(
    max_examples=15,
    stateful_step_count=40,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    """Have what is handed out fall into several pieces, though messages are few."""
    monkeypatch.setattr(outbound, "MERGED_ROWS_MAX", 4)


@pytest.mark.parametrize("kind", [DeliveryHistory, CountingHistory])
def test_no_history_breaks_a_guarantee(kind):
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=HISTORIES // 2,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def count_what_was_queued(original):
    def withdraw(self, partition):
        original(self, partition)
        return []

    return withdraw


def let_the_queue_time_out(original):
    return lambda self, queued, now_ms: None


def count_a_clean_leave(original):
    return lambda self, session, *, is_clean: original(self, session, is_clean=False)


def forgive_a_broken_connection(original):
    return lambda self, session, *, is_clean: original(self, session, is_clean=True)


def hand_out_what_is_too_late(original):
    return lambda frame, rows, now_ms: original(frame, rows, 0)


def forget_a_bit_of_each_delivery(original):
    return lambda self, offset: original(self, offset + 1)


def save_nothing_of_progress(original):
    async def save(self, metadata, hosts):
        for host in hosts:
            for partition in host.partitions:
                partition.is_changed = False

    return save


def write_under_a_fresh_id(original):
    async def write_dead_letters(self, partition, group, effect):
        await original(self, partition, group, effect)
        partition.run_id += "x"
        await original(self, partition, group, effect)

    return write_dead_letters


def write_nothing(original):
    async def write_dead_letters(self, partition, group, effect):
        pass

    return write_dead_letters


def believe_what_was_never_seen(original):
    return lambda self, ranges: ([], list(ranges))


def go_by_the_wall(original):
    return lambda self: self._clock.now_ms()


def count_the_time_away(original):
    return lambda self: Millis(self._clock.monotonic_ms() + self._ahead_ms)


def count_every_lost_owner(original):
    def lose(self, pieces, *, now_ms, is_counted):
        self.config = replace(self.config, count_lost_owners=True)
        return original(self, pieces, now_ms=now_ms, is_counted=is_counted)

    return lose


def take_what_is_held_too(original):
    return lambda self, start: (
        self._drop(0, min(start, self._read_queue.read_end)) or original(self, start)
    )


def count_what_was_never_to_be_delivered(original):
    return lambda segment: ((h.base_offset, h.end_offset) for h in segment.headers())


def never_tick(original):
    return lambda self, partition, now_ms: None


BUGS = [
    (Session, "withdraw", count_what_was_queued, 1),
    (GroupDelivery, "_renew", let_the_queue_time_out, 2),
    (GroupHost, "member_gone", count_a_clean_leave, 1),
    (GroupHost, "member_gone", forgive_a_broken_connection, 1),
    (outbound, "in_use_at", hand_out_what_is_too_late, 1),
    (QueuedDelivery, "drop_below", forget_a_bit_of_each_delivery, 1),
    (GroupSaver, "_write_progress", save_nothing_of_progress, 1),
    (DeadLetters, "write_dead_letters", write_under_a_fresh_id, 6),
    (DeadLetters, "write_dead_letters", write_nothing, 6),
    (SpanMap, "part", believe_what_was_never_seen, 1),
    (RunningClock, "now_ms", go_by_the_wall, 2),
    (RunningClock, "now_ms", count_the_time_away, 2),
    (Leases, "lose", count_every_lost_owner, 1),
    (GroupDelivery, "tick", never_tick, 1),
    (Cursor, "_trim", take_what_is_held_too, 4),
    (cleaner, "_messages", count_what_was_never_to_be_delivered, 2),
]
"""Where a bug is planted, the bug, and the seed of a hunt that found it once."""

OF_COUNTING = {count_what_was_queued, forgive_a_broken_connection, count_a_clean_leave}
"""Bugs that show only where lost owners are counted."""


def hunt(history: type[DeliveryHistory], first: int) -> None:
    """Hunt shortly and often, beginning with a seed that found the bug once."""
    for each in range(first, first + HUNTS):
        seeded = seed(each)(type("SeededHistory", (history,), {}))
        run_state_machine_as_test(seeded, settings=HUNT)


@pytest.mark.parametrize(
    ("kind", "name", "bug", "first"), BUGS, ids=[bug[2].__name__ for bug in BUGS]
)
def test_a_planted_bug_is_found(monkeypatch, kind, name, bug, first):
    monkeypatch.setattr(kind, name, bug(getattr(kind, name)))

    with pytest.raises((AssertionError, KeyError)):
        hunt(CountingHistory if bug in OF_COUNTING else DeliveryHistory, first)
