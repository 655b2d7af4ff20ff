"""An id published again within the window changes nothing: to the millisecond, through anything."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.storage.stores import (
    DEDUP,
    FIRST,
    WINDOW_MS,
    Partition,
    disk_of,
    message,
    offsets,
    places,
)
from waterclock.log.append import Appended
from waterclock.log.frame import HEADER_BYTES
from waterclock.log.id_index import index as ids
from waterclock.log.id_index.fingerprint import FINGERPRINT_BITS
from waterclock.log.sidecars import derived
from waterclock.model.errors import FrameDamaged

Again = Callable[[Partition], object]


def nothing(partition: Partition) -> None:
    """The message is where it was written."""


def roll(partition: Partition) -> None:
    partition.roll()


def restart(partition: Partition) -> None:
    partition.restart()


def cut_power(partition: Partition) -> None:
    partition.cut_power()
    partition.open()


def lose_sidecars(partition: Partition) -> None:
    partition.close()
    for name in partition.folder.names():
        if name.endswith((".ids", ".index", ".due")):
            partition.folder.remove(name)
    partition.open()


def retain(partition: Partition) -> None:
    partition.roll()
    partition.rewrite(keep_from=partition.store.end)
    assert 0 not in partition.rows()


def retain_twice_and_restart(partition: Partition) -> None:
    retain(partition)
    partition.publish(message(70), message(71))
    retain(partition)
    partition.restart()


STATES: list[Again] = [
    nothing,
    roll,
    restart,
    cut_power,
    lose_sidecars,
    retain,
    retain_twice_and_restart,
]


def news(answer: Appended) -> list[bool]:
    count = len(answer.offsets)
    return [True] * count if answer.is_new is None else list(map(bool, answer.is_new.tolist()))


@pytest.mark.parametrize("is_batch", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("state", STATES)
def test_an_id_is_known_for_exactly_the_window(state: Again, is_batch: bool) -> None:
    partition = Partition()
    partition.publish(message(0, value=b"v" * 900), message(1, value=b"v" * 900))
    state(partition)
    end = partition.store.end
    again = [message(0), message(1)] if is_batch else [message(1)]

    partition.clock.advance(WINDOW_MS)
    at_the_edge = partition.publish(*again)
    partition.clock.advance(1)
    beyond = partition.publish(*again)

    assert news(at_the_edge) == [False] * len(again)
    assert list(at_the_edge.offsets) == ([0, 1] if is_batch else [1])
    assert news(beyond) == [True] * len(again)
    assert list(beyond.offsets) == list(range(end, end + len(again)))


def test_published_again_after_the_window_it_is_known_from_then_on():
    partition = Partition()
    partition.publish(message(0))
    partition.clock.advance(WINDOW_MS + 1)
    partition.publish(message(0))
    partition.clock.advance(WINDOW_MS)

    assert list(partition.publish(message(0)).offsets) == [1]
    partition.roll()
    partition.restart()
    assert list(partition.publish(message(0)).offsets) == [1]


def test_a_clock_that_steps_back_does_not_shorten_the_window():
    partition = Partition()
    partition.publish(message(0))
    partition.clock.advance(WINDOW_MS)
    partition.fill([1], roll=True)
    partition.clock.step(-WINDOW_MS // 2)
    partition.fill([2], roll=True)

    assert list(partition.publish(message(0)).offsets) == [0]


def test_an_id_whose_message_a_crash_took_is_new():
    partition = Partition()
    partition.publish(message(0))
    partition.append(message(1))
    cut_power(partition)

    assert news(partition.publish(message(0), message(1))) == [False, True]


# What is read for it


def test_opening_and_new_ids_need_no_message_body_of_closed_segments():
    partition = Partition()
    for start in range(0, 40, 10):
        partition.fill(range(start, start + 10), roll=True)
    partition.fill([90])
    partition.close()
    files = partition.files()
    for name in [name for name in files if name.endswith(".seg")][:-1]:
        data = bytearray(files[name])
        for position, header in places(files[name]):
            start = position + HEADER_BYTES
            data[start : start + header.body_len] = b"\xee" * header.body_len
        files[name] = bytes(data)
    partition.folder = disk_of(files)

    partition.open()
    for number in range(100, 200):
        partition.publish(message(number))
    partition.publish(*map(message, range(200, 300)), message(90))

    assert (partition.store.end, partition.store.faults) == (241, [])
    with pytest.raises(FrameDamaged):
        partition.append(message(15))


# The cap


def test_beyond_the_cap_the_oldest_segments_ids_are_forgotten_and_no_others():
    partition = Partition(dedup=replace(DEDUP, ids_max=10))
    for start in (0, 5, 10):
        partition.fill(range(start, start + 5), roll=True)

    for open_again in (lambda: None, partition.restart):
        open_again()
        assert news(partition.append(message(5), message(14))) == [False, False]
        assert partition.store.ids is not None
        assert len(partition.store.ids) <= 10
    assert news(partition.append(message(0), message(4))) == [True, True]


def test_the_active_segment_may_exceed_the_cap():
    partition = Partition(dedup=replace(DEDUP, ids_max=3))
    partition.fill(range(8))

    assert news(partition.append(message(0), message(7))) == [False, False]


# Batches


def test_repeats_within_a_batch_are_written_once():
    partition = Partition()
    partition.publish(message(0))

    answer = partition.publish(*map(message, [1, 1, 0, 2, 0, 1, 2]))

    assert news(answer) == [True, False, False, True, False, False, False]
    assert list(answer.offsets) == [1, 1, 0, 2, 0, 1, 2]
    assert partition.values() == [b"value 0", b"value 1", b"value 2"]


def test_repeats_within_a_mixed_batch_find_their_first_whichever_frame_it_went_to():
    partition = Partition()
    later = partition.clock.now_ms() + 50

    answer = partition.publish(
        message(0, due_ms=later), message(1), message(0), message(1, due_ms=later)
    )

    assert news(answer) == [True, True, False, False]
    assert list(answer.offsets) == [1, 0, 1, 0]


def test_a_repeat_is_safe_only_when_its_original_is():
    partition = Partition()
    partition.publish(message(0))
    partition.append(message(1), message(2))

    old = partition.append(message(0))
    unflushed = [partition.append(message(2)), partition.append(message(0), message(1))]

    assert old.durable_at <= partition.store.acknowledged_end
    assert [answer.durable_at for answer in unflushed] == [3, 2]
    assert all(a.durable_at > partition.store.acknowledged_end for a in unflushed)
    partition.flush()
    assert partition.store.acknowledged_end == 3


# Messages that take no part


def test_allow_duplicate_is_neither_checked_nor_remembered():
    partition = Partition()
    partition.publish(message(0))
    for state in STATES:
        answer = partition.publish(message(0), message(1), message(1), allow_duplicate=True)
        assert news(answer) == [True, True, True]
        state(partition)

    assert list(partition.publish(message(0)).offsets) == [0]
    assert news(partition.publish(message(1))) == [True]


def test_a_fired_message_does_not_count_as_a_second_publish():
    partition = Partition()
    partition.publish(message(0, due_ms=partition.clock.now_ms() + 5))
    partition.store.fire(offsets(0), now_ms=partition.clock.now_ms())
    partition.flush()
    restart(partition)

    assert list(partition.publish(message(0)).offsets) == [0]


def test_switched_off_nothing_is_a_repeat_and_switched_on_again_nothing_was_missed():
    partition = Partition()
    partition.fill(range(3), roll=True)
    partition.close()
    partition.dedup = replace(DEDUP, enabled=False)
    partition.open()
    assert news(partition.publish(message(0), message(0), message(5))) == [True] * 3
    partition.roll()
    partition.close()
    partition.dedup = DEDUP
    partition.open()

    assert list(partition.publish(message(0), message(2), message(5)).offsets) == [0, 2, 5]


# Collisions


@pytest.fixture
def one_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every id has the same fingerprint, so the stored ids alone decide."""
    same = (1 << FINGERPRINT_BITS) // 3

    def fingerprints(column: object, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.full(len(column), same, np.uint64)  # type: ignore[arg-type]

    monkeypatch.setattr(ids, "fingerprint", lambda message_id, seed: same)
    monkeypatch.setattr(ids, "fingerprints", fingerprints)
    monkeypatch.setattr(derived, "fingerprints", fingerprints)


@pytest.mark.usefixtures("one_fingerprint")
@pytest.mark.parametrize("state", STATES)
def test_ids_that_share_a_fingerprint_are_told_apart(state: Again) -> None:
    partition = Partition()
    partition.publish(*map(message, range(6)))
    partition.publish(message(6))
    state(partition)
    end = partition.store.end

    batch = partition.publish(*map(message, [3, 40, 6, 41, 40]))
    one = [partition.publish(message(number)) for number in (5, 42, 41)]

    assert list(batch.offsets) == [3, end, 6, end + 1, end]
    assert news(batch) == [False, True, False, True, False]
    assert [int(answer.offsets[0]) for answer in one] == [5, end + 2, end + 1]


# Retention


def test_ids_outlive_many_rewrites_and_go_with_the_window():
    partition = Partition()
    published: dict[int, int] = {}
    for round_ in range(12):
        for number in range(round_ * 5, round_ * 5 + 5):
            answer = partition.publish(message(number, value=b"v" * 500))
            published[number] = int(answer.offsets[0])
        partition.roll()
        partition.rewrite(keep_from=partition.store.end)
        partition.clock.advance(WINDOW_MS // 4)

    since = partition.store.log_time_ms - WINDOW_MS
    known = partition.append(*map(message, range(60)))
    assert published[59] + 1 == partition.store.end - sum(news(known))
    first_known = (12 - 4) * 5  # a quarter of the window has passed since the last
    assert news(known) == [True] * first_known + [False] * (60 - first_known)
    assert list(known.offsets)[first_known:] == [published[n] for n in range(first_known, 60)]
    assert partition.store.segments[0].last is not None
    assert partition.store.segments[0].last.append_ms >= since
    assert partition.store.start > 0
    assert FIRST not in partition.files()
