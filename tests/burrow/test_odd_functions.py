"""Functions that do what nobody expects: nothing is lost by it, and nothing stands still."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence

import pytest

from tests.burrow.memory_source import MemoryBroker, MemorySource
from tests.burrow.pool_runs import done_of, until
from waterclock.burrow.core.engine import Engine
from waterclock.burrow.core.failures import Failed, PermanentError
from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.pool import Function, Pool
from waterclock.burrow.runtime.source import Output
from waterclock.model.errors import BadConfig, BadInput


class OutletSource(MemorySource):
    """A source that keeps what functions return."""

    commit_s_max = 60.0
    is_sealed = False
    outputs: list[Output]

    def check(self, outputs: Sequence[Output]) -> None:
        if any(output.value == b"huge" for output in outputs):
            raise BadInput("too large")

    def emit(self, outputs: Sequence[Output]) -> None:
        self.outputs = [*getattr(self, "outputs", []), *outputs]


@pytest.mark.parametrize("wrap", [lambda f: lambda record: f(record), lambda f: f], ids=["λ", "f"])
async def test_what_a_plain_function_returns_to_be_awaited_is_awaited(wrap):
    broker = MemoryBroker(1)
    broker.fill(30)
    seen: list[int] = []

    async def process(record: Record) -> None:
        await asyncio.sleep(0.001)
        if record.offset == 3 and record.attempt == 1:
            raise ValueError("once")
        seen.append(record.offset)
        if len(seen) == 30:
            pool.stop()

    pool = Pool(MemorySource(broker), wrap(process), workers=4, retry_delay_s=0.001)
    await pool.run()
    assert sorted(seen) == list(range(30))
    assert done_of(broker) == 30


def test_generators_are_refused():
    def lazily(record: Record) -> object:
        yield record

    async def lazily_too(record: Record) -> object:
        yield record

    functions: tuple[Callable[..., object], ...] = (lazily, lazily_too)
    for function in functions:
        with pytest.raises(BadConfig, match="generator"):
            Pool(MemorySource(MemoryBroker()), function)


def test_a_transaction_must_be_committed_before_it_is_too_old():
    source = OutletSource(MemoryBroker())
    with pytest.raises(BadConfig, match="below 60"):
        Pool(source, lambda record: None, commit_every_s=60)


async def test_a_function_that_cancels_its_own_task_costs_no_worker():
    broker = MemoryBroker(1)
    broker.fill(40, keys=40)
    done: list[int] = []

    async def process(record: Record) -> None:
        task = asyncio.current_task()
        assert task is not None
        if record.attempt == 1:
            task.cancel()
            if record.offset % 2:  # else it strikes when the worker waits for the next
                await asyncio.sleep(0)
        done.append(record.offset)
        if set(done) == set(range(40)):
            pool.stop()

    pool = Pool(MemorySource(broker), process, workers=2, retry_delay_s=0.001, grace_s=1)
    await pool.run()
    assert done_of(broker) == 40


@pytest.mark.parametrize("is_async", [True, False])
async def test_who_names_strangers_as_failed_has_failed_with_all(is_async):
    broker = MemoryBroker(1)
    broker.fill(4, keys=4)
    attempts: list[int] = []
    pools: list[Pool] = []
    loops: list[asyncio.AbstractEventLoop] = []

    def work(records: list[Record]) -> None:
        attempts.append(len(records))
        if records[0].attempt == 1:
            raise Failed([{"unhashable": records[0].value}], "by value")  # type: ignore[list-item]
        loops[0].call_soon_threadsafe(pools[0].stop)

    async def work_async(records: list[Record]) -> None:
        work(records)

    function: Function = work_async if is_async else work
    pool = Pool(MemorySource(broker), function, workers=1, batch_size=4, retry_delay_s=0.001)
    pools.append(pool)
    loops.append(asyncio.get_running_loop())
    await pool.run()
    assert attempts == [4, 4]
    assert done_of(broker) == 4


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "returned", [7, "text", [Output("copy", b"1"), 7], Output("copy", b"huge")]
)
async def test_a_function_that_returns_what_cannot_be_produced_has_failed(is_async, returned):
    broker = MemoryBroker(1)
    broker.fill(10, keys=10)
    source = OutletSource(broker)

    def work(record: Record) -> object:
        if record.offset == 4 and record.attempt == 1:
            return returned
        return Output("copy", record.value)

    async def work_async(record: Record) -> object:
        return work(record)

    function: Function = work_async if is_async else work
    async with Pool(source, function, workers=2, retry_delay_s=0.001, commit_every_s=0.01):
        await until(lambda: done_of(broker) == 10)
    assert sorted(output.value or b"" for output in source.outputs) == [
        b"%d" % n for n in range(10)
    ]


async def test_what_is_done_of_a_list_is_produced_though_others_failed():
    broker = MemoryBroker(1)
    broker.fill(4, keys=4)
    source = OutletSource(broker)

    async def work(records: list[Record]) -> list[Output]:
        bad = [record for record in records if record.offset == 2 and record.attempt == 1]
        outputs = [Output("copy", record.value) for record in records if record not in bad]
        if bad:
            raise Failed(bad, "not yet", outputs=outputs)
        return outputs

    pool = Pool(source, work, workers=1, batch_size=4, retry_delay_s=0.001, commit_every_s=0.01)
    async with pool:
        await until(lambda: done_of(broker) == 4)
    assert sorted(output.value or b"" for output in source.outputs) == [b"0", b"1", b"2", b"3"]


async def test_a_bug_of_ours_ends_the_pool_and_is_not_just_logged(monkeypatch):
    broker = MemoryBroker(1)
    broker.fill(10)

    def failed(*_: object) -> list[object]:
        raise ZeroDivisionError("planted")

    async def work(record: Record) -> None:
        raise ValueError("as planned")

    monkeypatch.setattr(Engine, "failed", failed)

    with pytest.raises(ZeroDivisionError, match="planted"):
        await Pool(MemorySource(broker), work, grace_s=0.1).run()


async def test_a_timeout_says_whose_it_is():
    broker = MemoryBroker(1)
    broker.fill(1)
    reasons: list[str] = []
    pools: list[Pool] = []

    class DeadLetterList:
        async def write_dead_letters(self, records: Sequence[Record], error: BaseException) -> None:
            reasons.append(str(error))
            pools[0].stop()

    async def work(record: Record) -> None:
        await asyncio.Event().wait()

    pool = Pool(
        MemorySource(broker), work, timeout_s=0.01, max_retries=0, on_failure="dlq",
        dead_letters=DeadLetterList(),
    )  # fmt: skip
    pools.append(pool)
    await pool.run()
    assert reasons == ["it took longer than timeout_s = 0.01"]


async def test_dead_letters_that_were_written_are_not_written_again():
    broker = MemoryBroker(1)
    broker.fill(6, keys=6)
    written: list[int] = []
    tries: list[int] = []

    class DeadLetterList:
        async def write_dead_letters(self, records: Sequence[Record], error: BaseException) -> None:
            tries.append(len(records))
            bad = [record for record in records if record.offset == 3 and len(tries) == 1]
            written.extend(record.offset for record in records if record not in bad)
            if len(tries) == 2:
                raise asyncio.CancelledError  # in there, somewhere: not for us
            if bad:
                raise Failed(bad, "too large")

    async def work(records: list[Record]) -> None:
        raise PermanentError("bad")

    pool = Pool(
        MemorySource(broker), work, workers=1, batch_size=6, on_failure="dlq",
        dead_letters=DeadLetterList(), commit_every_s=0.01,
    )  # fmt: skip
    async with pool:
        await until(lambda: done_of(broker) == 6)
    assert tries == [6, 1, 1]
    assert sorted(set(written)) == list(range(6))


async def test_threads_are_busy_while_their_calls_run():
    broker = MemoryBroker(1)
    broker.fill(3, keys=3)
    release = threading.Event()
    begun = threading.Semaphore(0)

    def work(record: Record) -> None:
        begun.release()
        release.wait()

    async with Pool(MemorySource(broker), work, workers=3) as pool:
        for _ in range(3):
            await asyncio.to_thread(begun.acquire)
        assert pool._driver is not None
        assert pool._driver.workers.busy_seconds() > 0
        release.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_block_beside_the_pool_too(number):
    broker = MemoryBroker(1)
    broker.fill(10)
    ends: list[str] = []

    async def work(record: Record) -> None:
        if record.offset == 9:
            os.kill(os.getpid(), number)

    try:
        async with Pool(MemorySource(broker), work):
            await asyncio.Event().wait()
    finally:
        ends.append("after")
    await asyncio.sleep(0)
    ends.append("on")
    assert ends == ["after", "on"]
    assert done_of(broker) == 10
