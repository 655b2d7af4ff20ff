"""The parallel consumer: many workers on the partitions of a source, and commits that are never
ahead of them.

    async def process(record: Record) -> None: ...

    await Pool(KafkaSource(settings, ["orders"]), process, workers=100).run()

`run` returns after `stop`, SIGTERM or SIGINT: what was begun ends, what is done is committed, and
nothing is done twice because of it. It raises if the pool cannot go on.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from random import Random
from types import TracebackType

from waterclock.burrow.core.config import EngineConfig, OnFailure, Order
from waterclock.burrow.core.effects import Halt
from waterclock.burrow.core.engine import Engine
from waterclock.burrow.core.records import Record
from waterclock.burrow.core.scaling import Scaling
from waterclock.burrow.runtime.dead_letters import DeadLetters
from waterclock.burrow.runtime.driver import Driver
from waterclock.burrow.runtime.metrics import Health, PoolMetrics, State
from waterclock.burrow.runtime.source import LagTeller, Outlet, PoolHalted, Source
from waterclock.burrow.runtime.tracing import traced
from waterclock.burrow.runtime.workers import Item, coroutine_workers, thread_workers
from waterclock.model.errors import BadConfig, Busy, WaterclockError
from waterclock.runtime.garbage import collecting_rarely
from waterclock.runtime.lifecycle import raise_single, stopping_on_signals
from waterclock.runtime.worker_pool import WorkerPool

SAMPLE_S = 1.0
STUCK_S = 300.0
"""A partition that cannot commit for so long is a problem."""
FAILURES_MIN = 10
"""So many attempts in a row that failed are a problem, though each is tried again."""
PREFETCH, PREFETCH_MIN = 4, 2_000
"""Records read ahead for each worker, and in all: while a commit is made, nothing is read."""
POLL, POLL_MIN, POLL_MAX = 2, 250, 2_000
"""Records of one poll for each worker, and in all. Workers stand still while they are taken in, so
for few of them it should be few; but a loop that is always busy lets the thread of the source run
some two hundred times a second only, and what it brings must last."""
QUEUE, QUEUE_MIN = 4, 4_000
"""How much more than that one partition may hold. A poll may bring records of one partition only,
and pausing one that is merely busy is dear: the client throws away what it has fetched."""

_log = logging.getLogger("waterclock.burrow")

Function = (
    Callable[[Record], Awaitable[object]]
    | Callable[[Record], object]
    | Callable[[list[Record]], Awaitable[object]]
    | Callable[[list[Record]], object]
)
"""Async or not; of a record, or of a list of them if `batch_size` is above 1."""


class Pool:
    """Works on everything a source has. Nothing happens before `run`, and one pool runs once.

    `workers` calls run at once: coroutines, or threads if the function is not async. With `scale`
    their number follows the lag between two bounds. `order` is what must not overlap. `timeout_s`
    fails a call that takes longer; a thread cannot be stopped, so it is for async functions.
    `on_failure` is what becomes of a record after `max_retries`, or an error that is `permanent`:
    "leave", "park" or "dlq", which needs `dead_letters`. `queue_max` bounds the records held for
    each partition, and is 4,000 or sixteen for each worker unless given; `queue_bytes_max` bounds
    the bytes of keys, values and headers held for all of them. `grace_s` is how long a stop or a
    rebalance waits for calls that run.
    """

    def __init__(
        self,
        source: Source,
        process: Function,
        *,
        workers: int = 100,
        order: Order = "key",
        batch_size: int = 1,
        timeout_s: float | None = None,
        max_retries: int | None = 10,
        retry_delay_s: float = 0.1,
        retry_delay_s_max: float = 60.0,
        permanent: Sequence[type[BaseException]] = (),
        on_failure: OnFailure = "leave",
        dead_letters: DeadLetters | None = None,
        errors_max: int = 10,
        commit_every_s: float = 5.0,
        commit_every: int = 1_000,
        queue_max: int | None = None,
        queue_bytes_max: int = 128 << 20,
        grace_s: float = 30.0,
        scale: tuple[int, int] | None = None,
        handle_signals: bool = True,
        random_seed: int | None = None,
    ) -> None:
        most = workers if scale is None else scale[1]
        prefetch = PREFETCH * most * batch_size
        self._poll_max = min(max(POLL_MIN, POLL * most * batch_size), POLL_MAX)
        self._scaling = None if scale is None else Scaling(*scale)
        self._config = EngineConfig(
            order=order,
            queue_max=max(QUEUE_MIN, QUEUE * prefetch) if queue_max is None else queue_max,
            queue_bytes_max=queue_bytes_max,
            prefetch_max=max(PREFETCH_MIN, prefetch),
            retry_delay_ms=int(retry_delay_s * 1_000),
            retry_delay_ms_max=int(retry_delay_s_max * 1_000),
            max_retries=max_retries,
            permanent=tuple(permanent),
            on_failure=on_failure,
            errors_max=errors_max,
            commit_ms=int(commit_every_s * 1_000),
            commit_count=commit_every,
            map_units_max=source.map_units_max,
            map_text=source.map_text,
        )
        self._source = source
        self._process = process
        self._is_async = _is_async(process)
        self._workers = workers if self._scaling is None else self._scaling.workers
        self._batch_size = batch_size
        self._timeout_s = timeout_s
        self._dead_letters = dead_letters
        self._grace_s = grace_s
        self._handles_signals = handle_signals
        self._check()
        self._prepare(random_seed)

    def _prepare(self, random_seed: int | None) -> None:
        self._engine = Engine(self._config, Random(random_seed))
        self._stop_asked = asyncio.Event()
        self._halt: Halt | None = None
        self._is_source_ours = True
        self._block: asyncio.Task[object] | None = None
        self._is_block_ended = False
        self._running_group: asyncio.TaskGroup | None = None
        self._driver: Driver | None = None
        self._error_rate = self._busy_s = self._sampled_at = 0.0
        self._counted = (0, 0)
        self.state: State = "new"
        self.metrics = PoolMetrics()

    def __repr__(self) -> str:
        return f"<Pool {self.state}, {self._workers} workers, {self._engine!r}>"

    def _check(self) -> None:
        for field, value, least in (
            ("workers", self._workers, 1),
            ("batch_size", self._batch_size, 1),
            ("grace_s", self._grace_s, 0),
        ):
            if value < least:
                raise BadConfig(field, f"must be at least {least}, not {value}")
        if isinstance(self._source, Outlet):
            limit_s = self._source.commit_s_max
            if self._config.commit_ms >= limit_s * 1_000:
                text = (
                    f"must be below {limit_s:g}: a transaction that is open for so long is aborted"
                )
                raise BadConfig("commit_every_s", text)
        if inspect.isgeneratorfunction(self._process) or inspect.isasyncgenfunction(self._process):
            raise BadConfig("process", "is a generator, which nobody would run: return, not yield")
        if self._timeout_s is not None and not self._is_async:
            raise BadConfig("timeout_s", "needs an async function: a thread cannot be stopped")
        if self._timeout_s is not None and self._timeout_s <= 0:
            raise BadConfig("timeout_s", f"must be above 0, not {self._timeout_s}")
        if (self._config.on_failure == "dlq") != (self._dead_letters is not None):
            raise BadConfig("dead_letters", 'goes with on_failure="dlq", each needs the other')

    async def run(self) -> None:
        """Work until `stop` or a signal, then leave in good order."""
        if self.state != "new":
            raise Busy(f"the pool is {self.state}: a pool runs once, make another")
        self.state = "running"
        signals = (
            stopping_on_signals(self._asked_to_end) if self._handles_signals else nullcontext()
        )
        try:
            with signals, collecting_rarely():
                try:
                    await self._run()
                finally:
                    if self._is_source_ours:
                        await self._source.close()
        except BaseException as error:
            self.state = "failed"
            if isinstance(error, BaseExceptionGroup):
                raise_single(error)
            raise
        if self._halt is not None:
            self.state = "halted"
            raise PoolHalted(self._halt.reason) from self._halt.error
        self.state = "stopped"

    def stop(self) -> None:
        """Ask the pool to end. Call it on its loop; `run` returns when that is done."""
        self._stop_asked.set()

    def _asked_to_end(self) -> None:
        self.stop()
        if self._block is not None:
            self._is_block_ended = True
            self._block.cancel()

    async def __aenter__(self) -> "Pool":
        """Run beside what the block does; the pool is stopped at its end. A signal ends the block
        where it waits, and the program goes on behind it."""
        self._block = asyncio.current_task()
        self._running_group = asyncio.TaskGroup()
        await self._running_group.__aenter__()
        self._running_group.create_task(self.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        block, self._block = self._block, None
        self.stop()
        assert self._running_group is not None
        try:
            # What failed in the block is not the pool's affair: it still leaves in good order.
            await self._running_group.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            raise_single(group)
        if block is None or not self._is_block_ended:
            return False
        # We cancelled it; another who did so still has a word in it.
        return block.uncancel() == 0 and kind is asyncio.CancelledError

    async def _run(self) -> None:
        driver = self._driver = Driver(
            self._engine,
            self._source,
            config=self._config,
            metrics=self.metrics,
            dead_letters=self._dead_letters,
            batch_size=self._batch_size,
            poll_max=self._poll_max,
            grace_s=self._grace_s,
            on_halt=self._halted,
        )
        async with asyncio.TaskGroup() as tasks:
            driver.workers = self._worker_pool(driver, tasks)
            driver.workers.start(self._workers)
            self.metrics.workers = self._workers
            try:
                await self._open(driver)
                polling = tasks.create_task(driver.poll())
                beside = [
                    tasks.create_task(each)
                    for each in (
                        driver.make_commits(),
                        driver.write_dead_letters(),
                        driver.see_crash(),
                        self._watch(driver),
                    )
                ]
                await self._stop_asked.wait()
                self.state = "stopping"
                await driver.drain()
                driver.end()
                await polling
                for task in beside:
                    task.cancel()
            finally:
                driver.end()
                driver.workers.stop()
                self.metrics.views = ()  # nothing is ours any more

    async def _open(self, driver: Driver) -> None:
        try:
            await self._source.open(driver)
        except Busy:  # another pool has it, and closes it
            self._is_source_ours = False
            raise

    def _worker_pool(self, driver: Driver, tasks: asyncio.TaskGroup) -> WorkerPool[Item]:
        wants_outputs = isinstance(self._source, Outlet)
        process = traced(self._process, is_async=self._is_async)
        if not self._is_async:
            return thread_workers(
                process,
                tasks=tasks,
                results=driver.results,
                report_soon=driver.turn_soon,
                wants_outputs=wants_outputs,
            )
        return coroutine_workers(
            process,
            tasks=tasks,
            results=driver.results,
            report=driver.turn,
            report_soon=driver.turn_soon,
            has_more=driver.has_ready,
            timeout_s=self._timeout_s,
            wants_outputs=wants_outputs,
        )

    def _halted(self, halt: Halt) -> None:
        if self._halt is None:
            self._halt = halt
        self.stop()

    # Looking

    async def _watch(self, driver: Driver) -> None:
        """Take stock now and then, and have as many workers as the lag asks for."""
        self._sampled_at = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self._look_at_lags()
            self._sample(driver)
            if self._scaling is not None:
                busy, lag = int(self.metrics.utilization * 100), sum(self.metrics.lags().values())
                self._workers = self._scaling.measured(busy_percent=busy, lag=lag)
                if self._workers != driver.workers.count:
                    driver.workers.start(self._workers)
                    self.metrics.workers = self._workers
                    driver.turn_soon()

    async def _look_at_lags(self) -> None:
        self.metrics.log_ends.update(await self._source.log_ends())
        if isinstance(self._source, LagTeller):
            try:
                self.metrics.source_lags = await self._source.lags()
            except WaterclockError as error:  # of no use for the work itself: so it goes on
                _log.info("lag_unknown error=%s", error)

    def _sample(self, driver: Driver) -> None:
        metrics, now = self.metrics, asyncio.get_running_loop().time()
        metrics.now_ms = driver.now_ms()
        metrics.views = self._engine.views(metrics.now_ms)
        busy_s = driver.workers.busy_seconds()
        hands_s = max(driver.workers.count * (now - self._sampled_at), 1e-9)
        metrics.utilization = min(1.0, (busy_s - self._busy_s) / hands_s)
        self._busy_s, self._sampled_at = busy_s, now
        good, bad = metrics.totals()
        new_good, new_bad = good - self._counted[0], bad - self._counted[1]
        self._error_rate = new_bad / (new_good + new_bad) if new_good + new_bad else 0.0
        self._counted = (good, bad)

    def health(self) -> Health:
        """Return how the pool is. Call it on its loop."""
        metrics = self.metrics
        if self._driver is not None and self.state == "running":
            metrics.now_ms = self._driver.now_ms()
            metrics.views = self._engine.views(metrics.now_ms)
        stuck = [view for view in metrics.views if view.stuck_since_ms is not None]
        stuck_s = max(
            ((metrics.now_ms - (view.stuck_since_ms or 0)) / 1_000 for view in stuck), default=0.0
        )
        problems = []
        if self._halt is not None:
            problems.append(self._halt.reason)
        if stuck_s >= STUCK_S:
            problems.append(f"a commit has not moved on for {stuck_s:.0f} s")
        if self._engine.errors_in_a_row:
            problems.append(f"{self._engine.errors_in_a_row} records failed in a row")
        failures, (good, bad) = metrics.failures, metrics.totals()
        if failures.in_a_row >= FAILURES_MIN:
            problems.append(f"the last {failures.in_a_row} attempts failed: {failures.last_error}")
        return Health(
            state=self.state,
            workers=self._workers,
            workers_busy=metrics.utilization * self._workers,
            partitions=len(metrics.views),
            offset_lag=metrics.lags(),
            error_rate=self._error_rate,
            errors_in_a_row=self._engine.errors_in_a_row,
            attempts=good + bad,
            failures=bad,
            last_error=failures.last_error,
            stuck_seconds=stuck_s,
            problems=tuple(problems),
        )


def _is_async(function: Function) -> bool:
    """Say whether calling a function gives something to await; objects may be functions too."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )
