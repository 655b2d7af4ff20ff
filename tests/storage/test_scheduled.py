"""Scheduled messages on disk: opened, fired, cancelled and moved, over restarts, crashes and
rewrites."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.storage.stores import Partition, message, offsets, stored
from waterclock.log.schema import decode
from waterclock.model.errors import BadInput, OffsetOutOfRange
from waterclock.model.ids import Epoch

Again = Callable[[Partition], object]


def restart(partition: Partition) -> None:
    partition.restart()


def kill(partition: Partition) -> None:
    partition.kill()
    partition.open()


def cut_power(partition: Partition) -> None:
    partition.cut_power()
    partition.open()


def compact(partition: Partition) -> None:
    partition.roll()
    partition.rewrite(keep_from=partition.store.end)
    partition.restart()


AGAIN: list[Again] = [restart, kill, cut_power, compact]


@pytest.fixture
def partition() -> Partition:
    """Eight scheduled messages, due 100 ms apart, in two segments; offset 4 is a message for
    now."""
    partition = Partition()
    now = partition.clock.now_ms()
    body = b"large enough for a rewrite to be worth it" * 20
    partition.publish(*[message(n, value=body, due_ms=now + 100 * (n + 1)) for n in range(4)])
    partition.publish(message(4))
    partition.roll()
    partition.publish(*[message(n, value=body, due_ms=now + 100 * n) for n in range(5, 9)])
    return partition


def due(partition: Partition) -> dict[int, int]:
    """Return the open scheduled messages, their due times counted from now."""
    now = partition.clock.now_ms()
    return {offset: due_ms - now for offset, due_ms in partition.scheduled().items()}


ALL = {0: 100, 1: 200, 2: 300, 3: 400, 5: 500, 6: 600, 7: 700, 8: 800}


@pytest.mark.parametrize("again", AGAIN)
def test_scheduled_messages_stay_open_until_something_is_said(partition, again):
    again(partition)

    assert due(partition) == ALL


@pytest.mark.parametrize("again", AGAIN)
def test_fired_scheduled_messages_are_closed_and_become_messages_in_the_order_given(
    partition, again
):
    now = partition.clock.now_ms()
    answer = partition.store.fire(offsets(7, 0, 2, 5), now_ms=now)
    partition.flush()

    fired = next(iter(partition.store.frames(9)))
    before = stored(fired)
    again(partition)

    assert list(answer.offsets) == [9, 10, 11, 12]
    assert answer.durable_at == 13
    assert [row.message_id for row in before.values()] == [b"id-7", b"id-0", b"id-2", b"id-5"]
    assert [row.due_ms for row in before.values()] == [now + d for d in (700, 100, 300, 500)]
    scheduled = decode(fired.header, fired.body).column("scheduled_offset").to_pylist()
    assert scheduled == [7, 0, 2, 5]
    assert due(partition) == {o: d for o, d in ALL.items() if o not in (7, 0, 2, 5)}
    kept = {o: row for o, row in partition.rows().items() if row.kind == "FIRED"}
    assert kept == ({} if again is compact else before)


@pytest.mark.parametrize("again", AGAIN)
def test_cancelled_scheduled_messages_never_come_back(partition, again):
    end = partition.store.cancel(offsets(1, 8), now_ms=partition.clock.now_ms())
    partition.flush()

    for _ in range(2):
        again(partition)
        assert due(partition) == {o: d for o, d in ALL.items() if o not in (1, 8)}
    assert end == 10


@pytest.mark.parametrize("again", AGAIN)
def test_rescheduled_messages_keep_their_latest_time(partition, again):
    now = partition.clock.now_ms()
    partition.store.reschedule(offsets(2, 6), offsets(now + 9, now + 8), now_ms=now)
    partition.roll()
    partition.store.reschedule(offsets(6), offsets(now + 7), now_ms=now)
    partition.flush()

    for _ in range(2):
        again(partition)
        assert due(partition) == ALL | {2: 9, 6: 7}


@pytest.mark.parametrize("again", AGAIN)
def test_what_ended_a_scheduled_message_is_kept_for_as_long_as_the_scheduled_message_is_on_disk(
    partition, again
):
    now = partition.clock.now_ms()
    partition.store.cancel(offsets(0, 5), now_ms=now)
    partition.store.fire(offsets(1, 6), now_ms=now)
    partition.store.reschedule(offsets(2), offsets(now + 9), now_ms=now)
    partition.roll()
    partition.rewrite(keep_from=0, by_key=True)

    again(partition)

    assert due(partition) == {2: 9, 3: 400, 7: 700, 8: 800}


def test_a_scheduled_message_is_rewritten_away_only_after_what_ended_it_is_durable(partition):
    partition.roll()
    partition.store.cancel(offsets(0, 1, 2, 3), now_ms=partition.clock.now_ms())

    partition.rewrite(keep_from=9)
    partition.cut_power()
    partition.open()

    assert partition.store.end == 10
    assert sorted(due(partition)) == [5, 6, 7, 8]


def test_retention_never_takes_an_open_scheduled_message(partition):
    partition.roll()
    partition.clock.advance(10 * partition.dedup.window_ms)
    partition.fill([50], roll=True)

    for _ in range(3):
        partition.rewrite(keep_from=partition.store.end)
        partition.restart()

    assert sorted(partition.scheduled()) == sorted(ALL)
    assert {o for o, row in partition.rows().items() if row.kind == "SCHEDULED"} == set(ALL)
    answer = partition.store.fire(offsets(*ALL), now_ms=partition.clock.now_ms())
    partition.flush()
    assert len(partition.values()) == len(answer.offsets) == 8
    assert partition.scheduled() == {}


def test_a_scheduled_message_that_was_never_flushed_is_lost_with_its_word(partition):
    partition.append(message(20, due_ms=partition.clock.now_ms() + 5))
    assert 9 in partition.scheduled()

    cut_power(partition)

    assert due(partition) == ALL


def test_scheduled_messages_are_the_same_with_and_without_side_cars(partition):
    now = partition.clock.now_ms()
    partition.store.cancel(offsets(1), now_ms=now)
    partition.store.reschedule(offsets(5, 2), offsets(now + 1, now + 2), now_ms=now)
    partition.close()
    for name in partition.folder.names():
        if name.endswith(".due"):
            partition.folder.remove(name)
    partition.open()

    assert due(partition) == {o: d for o, d in ALL.items() if o != 1} | {5: 1, 2: 2}


# What is not a scheduled message


def test_firing_what_is_not_a_scheduled_message_is_refused_and_changes_nothing(partition):
    now = partition.clock.now_ms()
    partition.store.cancel(offsets(0), now_ms=now)
    partition.store.begin_epoch(Epoch(1), now_ms=now)
    partition.store.fire(offsets(1), now_ms=now)
    partition.flush()
    end, opened = partition.store.end, partition.scheduled()

    for offset, kind in ((4, "DATA"), (9, "CANCEL"), (11, "FIRED")):
        with pytest.raises(BadInput, match=f"offset {offset} is a {kind}, not a scheduled message"):
            partition.store.fire(offsets(2, offset), now_ms=now)
    with pytest.raises(OffsetOutOfRange):  # the epoch, which has no row
        partition.store.fire(offsets(2, 10), now_ms=now)

    assert (partition.store.end, partition.scheduled()) == (end, opened)


@pytest.mark.parametrize("offset", [-1, 9, 1 << 40])
def test_firing_an_offset_outside_the_log_is_refused(partition, offset):
    with pytest.raises(OffsetOutOfRange):
        partition.store.fire(offsets(2, offset), now_ms=partition.clock.now_ms())

    assert due(partition) == ALL


def test_firing_a_scheduled_message_that_is_gone_is_refused(partition):
    partition.store.cancel(offsets(1), now_ms=partition.clock.now_ms())
    compact(partition)

    with pytest.raises(OffsetOutOfRange):
        partition.store.fire(offsets(1), now_ms=partition.clock.now_ms())

    assert 1 not in due(partition)


# With the clock and the batch


def test_a_batch_is_split_by_what_the_clock_says_even_if_it_has_stepped_back():
    partition = Partition()
    partition.publish(message(0))
    log_time = partition.store.log_time_ms
    partition.clock.step(-5_000)

    answer = partition.publish(
        message(1, due_ms=log_time - 1), message(2, due_ms=log_time - 5_000), message(3)
    )

    rows = partition.rows()
    kinds = [rows[int(offset)].kind for offset in answer.offsets]
    assert kinds == ["SCHEDULED", "DATA", "DATA"]
    assert partition.scheduled() == {3: log_time - 1}


def test_a_large_number_of_scheduled_messages_is_fired_at_once():
    partition = Partition()
    now = partition.clock.now_ms()
    partition.publish(*[message(n, due_ms=now + 1 + n % 7) for n in range(2_000)])
    chosen, due_ms = partition.store.open_scheduled()
    order = np.lexsort((chosen, due_ms))

    partition.store.fire(chosen[order], now_ms=now + 10)
    partition.flush()

    assert partition.scheduled() == {}
    fired = [row for _, row in sorted(partition.rows().items()) if row.kind == "FIRED"]
    assert [row.due_ms for row in fired] == sorted(now + 1 + n % 7 for n in range(2_000))
