"""Memory is bounded by bytes too: large messages hold back reading, and nothing stands still."""

import asyncio
from random import Random

from tests.burrow.memory_source import MemoryBroker, MemorySource
from tests.burrow.pool_runs import done_of, until
from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.effects import Pause, Resume
from waterclock.burrow.core.engine import Engine
from waterclock.burrow.core.records import Assignment, Record, TopicPartition
from waterclock.burrow.runtime.pool import Pool

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
MIB = 1 << 20


def engine_with(*names: TopicPartition, queue_bytes_max: int) -> Engine:
    config = EngineConfig(queue_bytes_max=queue_bytes_max, commit_count=10_000)
    engine = Engine(config, Random(1))
    engine.assigned([Assignment(name, 1, 0, "", 1 << 40) for name in names], 0)
    return engine


def records(
    count: int, size: int, *, start: int = 0, name: TopicPartition = P0, **more: object
) -> list[Record]:
    numbers = range(start, start + count)
    return [Record(*name, each, None, bytes(size), epoch=1, **more) for each in numbers]  # type: ignore[arg-type]


def test_a_partition_is_paused_at_half_the_bytes_and_resumed_at_a_quarter() -> None:
    engine = engine_with(P0, queue_bytes_max=800)
    assert engine.polled(records(3, 100), 0) == []
    assert engine.polled(records(1, 100, start=3), 0) == [Pause((P0,))]

    taken = engine.take(4)
    assert engine.finished(taken[:2], 0) == []
    assert engine.finished(taken[2:3], 0) == [Resume((P0,))]
    engine.check_invariants()


def test_one_partition_may_hold_more_than_its_share_while_there_is_room() -> None:
    engine = engine_with(P0, P1, queue_bytes_max=1_000)

    assert engine.polled(records(4, 100), 0) == []


def test_one_that_is_stuck_leaves_the_others_their_shares() -> None:
    engine = engine_with(P0, P1, queue_bytes_max=1_000)
    assert engine.polled(records(20, 100), 0) == [Pause((P0,))]
    engine.take(20)

    assert engine.room > 0, "the other may still hold a quarter of the bound"
    assert engine.polled(records(2, 100, name=P1), 0) == []
    assert engine.polled(records(1, 100, start=2, name=P1), 0) == [Pause((P1,))]
    mine = engine.take(3)
    assert engine.finished(mine, 0) == [Resume((P1,))]


def test_keys_and_headers_count_and_what_the_user_puts_in_the_place_of_a_value_does_not() -> None:
    engine = engine_with(P0, queue_bytes_max=200)
    [record] = records(1, 50, headers=[("name", b"1234"), ("none", None)])
    record.key = bytes(38)
    assert engine.polled([record], 0) == [Pause((P0,))]

    engine.take(1)
    record.value = None
    assert engine.finished([record], 0) == [Resume((P0,))]
    engine.check_invariants()


def test_polls_ask_for_as_many_records_as_fit() -> None:
    engine = engine_with(P0, queue_bytes_max=20 * MIB)
    assert engine.room == 20, "as long as nobody knows better, each may be large"
    engine.polled(records(2, 100), 0)
    assert engine.room == 39
    for start in range(2, 40, 2):
        engine.polled(records(2, 100, start=start), 0)
    assert engine.room == 1_000 - 40
    engine.polled(records(1, 5 * MIB, start=40), 0)
    assert engine.room == 2


def test_a_partition_that_was_taken_away_gives_its_bytes_back() -> None:
    engine = engine_with(P0, P1, queue_bytes_max=1_000)
    engine.polled(records(20, 100), 0)
    running = engine.take(1)
    engine.lost([P0], 0)
    engine.check_invariants()
    assert engine.polled(records(3, 100, name=P1), 0) == []

    engine.finished(running, 0)
    engine.check_invariants()


async def test_large_messages_pause_the_source_and_all_are_worked_on() -> None:
    broker = MemoryBroker(2)
    for number in range(300):
        broker.publish(bytes(MIB // 4), key=b"%d" % number, partition=number % 2)
    source, gate = MemorySource(broker), asyncio.Event()
    held = most = done = 0

    async def process(record: Record) -> None:
        nonlocal held, most, done
        assert record.value is not None
        held += len(record.value)
        most = max(most, held)
        await gate.wait()
        await asyncio.sleep(0)
        held -= len(record.value)
        done += 1

    pool = Pool(source, process, workers=1_000, queue_bytes_max=8 * MIB, commit_every=10)
    async with pool:
        await until(lambda: len(source.paused) == 2)
        gate.set()
        await until(lambda: done == 300)
    assert done_of(broker) == 300
    assert most <= 10 * MIB, "the bound, and a poll"


async def test_a_message_larger_than_the_bound_comes_through() -> None:
    broker = MemoryBroker(1)
    sizes = [10, 5_000, 10, 7_000, 10]
    for size in sizes:
        broker.publish(bytes(size))
    seen: list[int] = []

    async def process(record: Record) -> None:
        assert record.value is not None
        seen.append(len(record.value))

    async with Pool(MemorySource(broker), process, workers=2, queue_bytes_max=1_000):
        await until(lambda: len(seen) == len(sizes))
    assert sorted(seen) == sorted(sizes)
    assert done_of(broker) == len(sizes)
