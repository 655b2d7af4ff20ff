"""Retries: later each time, never beyond the limit, and gone with their partition."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.offset_map import OffsetMaps
from waterclock.burrow.core.partition import PartitionState
from waterclock.burrow.core.records import Assignment, Record, TopicPartition
from waterclock.burrow.core.retries import Retries, retry_delay_ms
from waterclock.burrow.core.work import Work

NO_JITTER = EngineConfig(retry_jitter_percent=0)


def home(partition=0):
    maps = OffsetMaps(units_max=0, text="base64")
    return PartitionState(Assignment(TopicPartition("t", partition), 1), Work("key"), maps)


def record(offset):
    return Record("t", 0, offset, None, None)


def test_delays_double_up_to_a_minute():
    delays = [retry_delay_ms(NO_JITTER, failures, Random(1)) for failures in range(1, 13)]

    assert delays[:5] == [100, 200, 400, 800, 1_600]
    assert delays[8:] == [25_600, 51_200, 60_000, 60_000]
    assert retry_delay_ms(NO_JITTER, 10**9, Random(1)) == 60_000


@given(st.integers(1, 10**6), st.integers(0, 200), st.randoms(use_true_random=False))
def test_jitter_only_adds_and_stays_in_bounds(failures, percent, rng):
    least = retry_delay_ms(NO_JITTER, failures, rng)
    delay = retry_delay_ms(EngineConfig(retry_jitter_percent=percent), failures, rng)

    assert least <= delay <= least + least * percent // 100


def test_retries_come_when_they_are_due_in_the_order_of_their_time():
    retries, at_home = Retries(), home()
    retries.add(300, at_home, [record(3)])
    retries.add(100, at_home, [record(1)])
    retries.add(100, at_home, [record(2)])

    assert retries.next_due_ms == 100
    assert retries.pop_due(99) == []
    assert [retry.records[0].offset for retry in retries.pop_due(100)] == [1, 2]
    assert [retry.records[0].offset for retry in retries.pop_due(999)] == [3]
    assert retries.next_due_ms is None


def test_those_of_a_partition_that_goes_are_gone_at_once():
    retries, going, staying = Retries(), home(0), home(1)
    for at in range(10):
        retries.add(at, going if at % 2 else staying, [record(at)])

    retries.drop(going)

    assert [retry.records[0].offset for retry in retries.pop_due(99)] == [0, 2, 4, 6, 8]
