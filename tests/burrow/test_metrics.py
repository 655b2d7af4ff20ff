"""What a pool tells of itself: the names of the seed, and the numbers behind them."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.burrow.memory_source import MemoryBroker, MemorySource
from tests.burrow.pool_runs import until
from waterclock.burrow.core.records import Record, TopicPartition
from waterclock.burrow.runtime.metrics import BOUNDS_S, Tally
from waterclock.burrow.runtime.pool import Pool

SEED = {
    "burrow_messages_processed_total", "burrow_processing_duration_seconds_bucket",
    "burrow_offsets_committed_total", "burrow_offset_lag", "burrow_inflight_messages",
    "burrow_worker_utilization", "burrow_errors_total",
}  # fmt: skip


async def test_a_pool_counts_under_the_names_of_the_seed(monkeypatch):
    monkeypatch.setattr("waterclock.burrow.runtime.pool.SAMPLE_S", 0.001)
    broker = MemoryBroker(1)
    broker.fill(100, keys=100)
    registry = CollectorRegistry()
    names: set[str] = set()

    def _value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"topic": "orders", "partition": "0", **labels})

    gate = asyncio.Event()

    async def process(record: Record) -> None:
        if record.offset == 90:
            await gate.wait()
        if record.offset == 50 and record.attempt == 1:
            raise ConnectionError("once")

    pool = Pool(MemorySource(broker), process, workers=4, commit_every=50, retry_delay_s=0.001)
    registry.register(pool.metrics)
    async with pool:
        await until(lambda: pool.metrics.totals() == (99, 1))
        await until(lambda: pool.metrics.views and pool.metrics.views[0].frontier == 90)
        health = pool.health()
        assert health.is_healthy
        assert health.offset_lag == {TopicPartition("orders", 0): 10}
        assert _value("burrow_inflight_messages") == 1
        assert _value("burrow_offset_lag") == 10
        assert _value("burrow_gap_runs") == 1
        names.update(each.name for family in registry.collect() for each in family.samples)
        gate.set()
    assert names >= SEED
    assert _value("burrow_messages_processed_total", status="success") == 100
    assert _value("burrow_errors_total", retriable="true") == 1
    assert _value("burrow_errors_total", retriable="false") == 0
    assert _value("burrow_processing_duration_seconds_count") == 100
    assert _value("burrow_processing_duration_seconds_bucket", le="+Inf") == 100
    assert _value("burrow_offsets_committed_total") == 100
    assert registry.get_sample_value("burrow_workers") == 4


@given(st.lists(st.sampled_from([*BOUNDS_S, 0.0, 0.0005, 0.02, 0.7, 61.0]), min_size=1))
def test_a_time_is_in_the_bucket_whose_upper_end_it_does_not_exceed(times):
    tally = Tally()
    first, second = [times[0], *times[::2]], times
    counted = [*first, *second]

    tally.add(first)
    tally.add(second)

    ends = (*BOUNDS_S, float("inf"))
    so_far = list(itertools.accumulate(tally.buckets))
    assert so_far == [sum(time <= end for time in counted) for end in ends]
    assert tally.succeeded == len(counted)
    assert tally.seconds == pytest.approx(sum(counted))
