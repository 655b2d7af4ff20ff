"""A pool when something goes wrong: records, commits, partitions, sources."""

import asyncio

import pytest

from tests.burrow.memory_source import MemoryBroker, MemorySource
from tests.burrow.pool_runs import CallLog, done_of, until
from waterclock.burrow.core.failures import Failed, PermanentError
from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.pool import Pool
from waterclock.burrow.runtime.source import PoolHalted
from waterclock.model.errors import Busy


async def test_a_failed_record_is_tried_again_in_its_place():
    broker = MemoryBroker(1)
    broker.fill(20, keys=1)
    attempts: list[tuple[int, int]] = []

    async def process(record: Record) -> None:
        attempts.append((record.offset, record.attempt))
        if record.offset == 5 and record.attempt < 3:
            raise ValueError("not yet")
        if record.offset == 19:
            pool.stop()

    pool = Pool(MemorySource(broker), process, retry_delay_s=0.001)
    await pool.run()
    assert pool.metrics.tally("orders", 0).failed == 2
    assert attempts == [
        *((offset, 1) for offset in range(5)), (5, 1), (5, 2), (5, 3),
        *((offset, 1) for offset in range(6, 20)),
    ]  # fmt: skip
    assert done_of(broker) == 20


async def test_a_call_that_takes_too_long_fails():
    broker = MemoryBroker(1)
    broker.fill(2, keys=2)
    cancelled = []

    async def process(record: Record) -> None:
        if record.offset == 0 and record.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(record.offset)
                raise
        elif record.offset == 0:
            pool.stop()

    pool = Pool(MemorySource(broker), process, timeout_s=0.01, retry_delay_s=0.001)
    await pool.run()
    assert cancelled == [0]
    assert done_of(broker) == 2


async def test_too_many_failures_in_a_row_halt_the_pool_and_commit_what_is_done():
    broker = MemoryBroker(1)
    broker.fill(50, keys=50)

    async def process(record: Record) -> None:
        if record.offset >= 10:
            raise PermanentError("bad")

    pool = Pool(MemorySource(broker), process, workers=1, errors_max=4)
    with pytest.raises(PoolHalted, match="4 records failed in a row") as caught:
        await pool.run()
    assert isinstance(caught.value.__cause__, PermanentError)
    assert pool.state == "halted"
    assert not pool.health().is_healthy
    assert broker.committed[broker.names[0]].offset == 10


class DeadLetterList:
    """Dead letters in memory, which fail as often as they are told."""

    def __init__(self, failures: int = 0) -> None:
        self.dead_letters: list[tuple[int, str]] = []
        self.failures = failures

    async def write_dead_letters(self, records, error):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no broker")
        self.dead_letters += [(record.offset, str(error)) for record in records]


async def test_records_that_are_given_up_go_to_the_dead_letters_and_count_as_done():
    broker = MemoryBroker(1)
    broker.fill(30, keys=3)
    dead_letters = DeadLetterList()
    seen = []

    async def process(record: Record) -> None:
        if record.offset % 10 == 4:
            raise PermanentError(f"bad {record.offset}")
        seen.append(record.offset)
        if len(seen) == 27:
            pool.stop()

    pool = Pool(MemorySource(broker), process, on_failure="dlq", dead_letters=dead_letters)
    await pool.run()
    assert pool.metrics.tally("orders", 0).dead_lettered == 3
    assert sorted(dead_letters.dead_letters) == [(4, "bad 4"), (14, "bad 14"), (24, "bad 24")]
    assert broker.committed[broker.names[0]].offset == 30


async def test_a_dead_letter_that_failed_is_written_again_before_the_record_counts_as_done():
    broker = MemoryBroker(1)
    broker.fill(3, keys=3)
    dead_letters = DeadLetterList(failures=1)

    async def process(record: Record) -> None:
        if record.offset == 0:
            raise PermanentError("bad")

    async with Pool(
        MemorySource(broker), process, on_failure="dlq", dead_letters=dead_letters, commit_every=1
    ):
        await until(lambda: not dead_letters.failures and done_of(broker) == 0 and broker.committed)
        assert dead_letters.dead_letters == []
        await until(lambda: done_of(broker) == 3)
    assert dead_letters.dead_letters == [(0, "bad")]


async def test_a_function_of_lists_is_handed_lists_and_may_fail_in_part():
    broker = MemoryBroker(1)
    broker.fill(100, keys=100)
    sizes: list[int] = []
    seen: list[int] = []

    async def process(records: list[Record]) -> Failed | None:
        sizes.append(len(records))
        bad = [each for each in records if each.offset % 7 == 0 and each.attempt == 1]
        seen.extend(each.offset for each in records if each not in bad)
        if len(seen) == 100:
            pool.stop()
        if bad and bad[0].offset % 2:
            raise Failed(bad, "odd")
        return Failed(bad, "even") if bad else None

    pool = Pool(MemorySource(broker), process, batch_size=10, workers=3, retry_delay_s=0.001)
    await pool.run()
    assert sorted(seen) == list(range(100))
    assert max(sizes) == 10
    assert done_of(broker) == 100


async def test_a_partition_that_is_revoked_is_committed_before_it_goes():
    broker = MemoryBroker(2)
    broker.fill(40, keys=40)
    first = broker.names[0]

    source = MemorySource(broker)
    seen: list[Record] = []

    gate = asyncio.Event()

    async def process(record: Record) -> None:
        if len(seen) >= 10:
            await gate.wait()
        seen.append(record)

    pool = Pool(source, process, workers=4, order="partition")
    async with pool:
        await until(lambda: len(seen) >= 10)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(source.revoke([first]))
            await asyncio.sleep(0)
            gate.set()
        done = sum(record.partition == 0 for record in seen)
        assert broker.committed[first].offset == done < 20
        await until(lambda: len(seen) == done + 20)
        source.assign([first])
        await until(lambda: len(seen) == 40)
    assert done_of(broker) == 40


async def test_late_results_of_a_lost_partition_change_nothing():
    broker = MemoryBroker(1)
    broker.fill(10, keys=10)

    source, gate, seen = MemorySource(broker), asyncio.Event(), []

    async def process(record: Record) -> None:
        seen.append(record)
        await gate.wait()

    async with Pool(source, process, workers=3):
        await until(lambda: len(seen) == 3)
        source.lose(broker.names)
        gate.set()
        for _ in range(10):
            await asyncio.sleep(0)
    assert broker.committed == {}


@pytest.mark.parametrize("code", [27, 22])
async def test_a_commit_that_fails_is_tried_again_at_a_stop(code):
    broker = MemoryBroker(1)
    broker.fill(10)
    broker.codes = [code, code]
    calls = CallLog(stop_at=10)

    calls.pool = Pool(MemorySource(broker), calls.process)
    await calls.pool.run()
    assert broker.committed[broker.names[0]].offset == 10


async def test_a_rebalance_in_the_midst_of_a_stop_waits_for_its_last_commit():
    broker = MemoryBroker(1)
    broker.fill(10)
    broker.codes = [27, 27]
    calls = CallLog(stop_at=10)

    source = MemorySource(broker)
    pool = calls.pool = Pool(source, calls.process)
    running = asyncio.create_task(pool.run())
    await until(lambda: len(broker.codes) < 2)  # the first try has failed
    await source.revoke(broker.names)
    await running
    assert broker.committed[broker.names[0]].offset == 10


async def test_a_source_that_fails_ends_the_pool_with_its_error():
    source = MemorySource(MemoryBroker())
    source.failure = ConnectionError("gone")

    async def process(record: Record) -> None: ...

    pool = Pool(source, process)
    with pytest.raises(ConnectionError, match="gone"):
        await pool.run()
    assert source.is_closed
    assert pool.state == "failed"
    with pytest.raises(Busy):
        await pool.run()


async def test_a_pool_that_fails_beside_a_block_ends_the_block():
    source = MemorySource(MemoryBroker())

    async def process(record: Record) -> None: ...

    async def block() -> None:
        async with Pool(source, process):
            source.failure = ConnectionError("gone")
            await asyncio.Event().wait()

    with pytest.raises(ConnectionError, match="gone"):
        await block()
    assert source.is_closed


async def test_a_typo_in_the_function_is_told_at_once_and_once(caplog):
    broker = MemoryBroker(1)
    broker.fill(20, keys=20)

    async def process(record: Record) -> None:
        undefined  # type: ignore[name-defined] # noqa: B018, F821

    pool = Pool(MemorySource(broker), process, workers=4, retry_delay_s=0.001, max_retries=None)
    async with pool:
        await until(lambda: pool.metrics.failures.count >= 100)
        health = pool.health()

    assert health.attempts == health.failures >= 100
    assert "NameError: name 'undefined' is not defined, test_pool_failures.py:" in (
        health.last_error
    )
    assert not health.is_healthy
    assert health.problems[0].startswith("the last ")
    assert health.problems[0].endswith(f" attempts failed: {health.last_error}")
    said = [each for each in caplog.records if each.message.startswith("process_failed")]
    assert len(said) == 1
    assert said[0].levelname == "WARNING"
    assert "NameError: name 'undefined' is not defined, test_pool_failures.py:" in said[0].message
    assert said[0].exc_info is not None
    assert said[0].exc_info[0] is NameError


async def test_a_function_of_threads_and_lists_that_fails_is_told_too(caplog):
    broker = MemoryBroker(1)
    broker.fill(20, keys=20)

    def process(records: list[Record]) -> None:
        raise ValueError("bad")

    source = MemorySource(broker)
    pool = Pool(source, process, batch_size=5, retry_delay_s=0.001, max_retries=None)
    async with pool:
        await until(lambda: pool.health().last_error)
    assert [each.exc_info[0] for each in caplog.records if each.exc_info] == [ValueError]
