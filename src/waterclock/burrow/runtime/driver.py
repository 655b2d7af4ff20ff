"""Runs the engine on an event loop: asks the source, feeds the workers, performs what is decided.

Everything here happens on one thread and nothing waits between reading a state and changing it. A
turn takes in all results since the last one, in bulk, and hands out as much as there are hands for,
and as much again, so that a worker who is done finds the next without waiting for a turn.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.effects import (
    CommitOffsets,
    Effect,
    Halt,
    Pause,
    Resume,
    WriteDeadLetters,
)
from waterclock.burrow.core.engine import Engine
from waterclock.burrow.core.failures import Failed
from waterclock.burrow.core.records import Assignment, Record, TopicPartition
from waterclock.burrow.runtime.dead_letters import DeadLetters
from waterclock.burrow.runtime.metrics import PoolMetrics
from waterclock.burrow.runtime.source import RETRY_CODES, Outlet, Output, Source
from waterclock.burrow.runtime.workers import Item, Results, parted
from waterclock.runtime.worker_pool import WorkerPool

POLL_S = 0.1
"""How long a poll waits for records: commits wait for it, and so does a stop."""
FINAL_COMMIT_S = 10.0
"""How long a last commit is tried, if a short wait may mend it."""
FINAL_RETRY_S = 0.1

Codes = Mapping[TopicPartition, int]
_log = logging.getLogger("waterclock.burrow")


class Driver:
    """One engine with its source and its workers. It owns partitions on behalf of a pool."""

    def __init__(
        self,
        engine: Engine,
        source: Source,
        *,
        config: EngineConfig,
        metrics: PoolMetrics,
        dead_letters: DeadLetters | None,
        batch_size: int,
        poll_max: int,
        grace_s: float,
        on_halt: Callable[[Halt], None],
    ) -> None:
        self._engine = engine
        self._source = source
        self._outlet = source if isinstance(source, Outlet) else None
        self._poll_max = max(1, min(config.queue_max // 2, poll_max))
        """All of a poll may be of one partition, and it should not be full after each."""
        self._metrics = metrics
        self._dead_letters = dead_letters
        self._batch_size = batch_size
        self._grace_s = grace_s
        self._on_halt = on_halt
        self._loop = asyncio.get_running_loop()
        self._is_turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """When it rings; uvloop's handles do not always tell."""
        self._paused: set[TopicPartition] = set()
        self._committed: dict[TopicPartition, int] = {}
        self._out = 0
        """Records with the workers, queued or begun."""
        self._revoking = asyncio.Lock()
        self._has_room = asyncio.Event()
        self._settled = asyncio.Event()
        """Set at the end of each turn."""
        self._commits: asyncio.Queue[tuple[CommitOffsets, Awaitable[Codes]]] = asyncio.Queue()
        self._given_up: asyncio.Queue[WriteDeadLetters] = asyncio.Queue()
        self._crash: asyncio.Future[None] = self._loop.create_future()
        self.results = Results()
        if self._outlet is not None:
            self.results.check = self._outlet.check
        self.workers: WorkerPool[Item]
        self.is_stopping = False
        self.is_over = False

    def now_ms(self) -> int:
        """Return the time of the engine."""
        return int(self._loop.time() * 1_000)

    # Turns

    def turn_soon(self) -> None:
        """Have a turn after what runs now."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._guarded, self.turn)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Make a step the loop calls: nobody else would notice that it failed."""
        try:
            step()
        except Exception as error:
            if not self._crash.done():
                self._crash.set_exception(error)

    async def see_crash(self) -> None:
        """Raise if a step failed that nobody waits for: the pool cannot go on then."""
        await self._crash

    def has_ready(self) -> bool:
        """Say whether there is something to hand out."""
        return self._engine.has_ready

    def turn(self) -> None:
        """Take in what was done, and hand out more."""
        self._is_turn_due = False
        results = self.results
        if results.failed:
            failed, results.failed = results.failed, []
            for records, error in failed:
                self._fail(records, error)
        # Once it is over, a late result must not begin a transaction that nobody would end.
        is_sealed = self._outlet is not None and (self.is_over or self._outlet.is_sealed)
        if results.done and not is_sealed:
            self._finish()
        self._hand_out()
        self._settled.set()

    def _finish(self) -> None:
        results = self.results
        # Workers hold on to the lists, so they are emptied and not replaced.
        done, seconds = results.done[:], results.seconds[:]
        results.done.clear()
        results.seconds.clear()
        self._out -= len(done)
        self._metrics.finished(done, seconds)
        self._metrics.failures.succeeded()
        if self._outlet is not None:
            self._emit(self._outlet, done)
        self._perform(self._engine.finished(done, self.now_ms()))

    def _emit(self, outlet: Outlet, done: Sequence[Record]) -> None:
        """Produce what was returned for records that still count."""
        outputs = self.results.outputs[:]
        self.results.outputs.clear()
        found: list[Output] = []
        for record, output in zip(done, outputs, strict=True):
            if output and record.home is not None and record.home.is_open:
                found += output
        if found:
            outlet.emit(found)

    def _fail(self, records: list[Record], error: BaseException) -> None:
        self._out -= len(records)
        failures = self._engine.failures
        report = self._metrics.failures.failed(error, self._loop.time())
        if report is not None:
            # What the function means for the dead letters is no bug of it.
            is_meant = failures.is_permanent(error) and self._dead_letters is not None
            level = logging.INFO if is_meant else logging.WARNING
            trace = error if report.is_first else None
            text = "process_failed record=%r error=%s"
            _log.log(level, text, records[0], report.text, exc_info=trace)
        for record in records:
            tally = self._metrics.tally(record.topic, record.partition)
            if failures.is_final(record, error):
                tally.final += 1
                # One that goes to the dead letters is seen to; one that stays may go unnoticed.
                level = logging.WARNING if self._dead_letters is None else logging.INFO
                _log.log(level, "record_failed record=%r error=%r", record, error)
            else:
                tally.failed += 1
        self._perform(self._engine.failed(records, error, self.now_ms()))

    def _hand_out(self) -> None:
        engine = self._engine
        free = self.workers.count * 2 - -(-self._out // self._batch_size)
        if free > 0 and engine.has_ready:
            if self._batch_size == 1:
                taken = engine.take(free)
                self._out += len(taken)
                self.workers.give(taken)
            else:
                batches = engine.take_batches(free, size=self._batch_size)
                self._out += sum(map(len, batches))
                self.workers.give(batches)
        if not self._has_room.is_set() and engine.room:
            self._has_room.set()
        self._arm()

    def _arm(self) -> None:
        """Wake up when the engine wants to."""
        deadline_ms = self._engine.next_deadline()
        if deadline_ms is None:
            return
        when = deadline_ms / 1_000
        if self._timer is not None:
            if self._timer_at <= when + 0.001:
                return
            self._timer.cancel()
        self._timer_at = when + 0.001
        self._timer = self._loop.call_at(self._timer_at, self._guarded, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self.is_over:
            self._perform(self._engine.tick(self.now_ms()))
            self._hand_out()

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Pause(names):
                    self._paused.update(names)
                    self._source.pause(names)
                    self._has_room.set()  # if all are paused now, polling goes on
                case Resume(names):
                    self._paused.difference_update(names)
                    self._source.resume(names)
                case CommitOffsets(_, commits):
                    self._commits.put_nowait((effect, self._source.commit(commits)))
                case WriteDeadLetters():
                    self._given_up.put_nowait(effect)
                case Halt():
                    self._on_halt(effect)

    # What a source tells its owner

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Begin with partitions."""
        self._metrics.rebalances += 1
        names = [each.name for each in assignments]
        self._paused.difference_update(names)
        for each in assignments:
            if each.committed is not None:
                self._committed[each.name] = each.committed
        self._perform(self._engine.assigned(assignments, self.now_ms()))
        if self.is_stopping:
            self._engine.revoking(names, self.now_ms())
        self._hand_out()

    async def revoke(self, names: Sequence[TopicPartition]) -> None:
        """End with partitions: let what is begun end, then commit for the last time."""
        self._metrics.rebalances += 1
        await self._revoke(names)

    async def _revoke(self, names: Sequence[TopicPartition]) -> None:
        self._perform(self._engine.revoking(names, self.now_ms()))
        self._take_back(names)
        # A rebalance in the midst of a stop must not take away what the stop has yet to commit.
        async with self._revoking:
            await self._end_with(names)

    async def _end_with(self, names: Sequence[TopicPartition]) -> None:
        try:
            async with asyncio.timeout(self._grace_s):
                while self._engine.in_flight(names):
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            left = self._engine.in_flight(names)
            _log.warning("grace_over in_flight=%d grace_s=%s", left, self._grace_s)
        for effect in self._engine.revoked(names, self.now_ms()):
            assert isinstance(effect, CommitOffsets)
            await self._commit_finally(effect)
        self._paused.difference_update(names)

    def lost(self, names: Sequence[TopicPartition]) -> None:
        """End with partitions that are gone."""
        self._metrics.rebalances += 1
        self._perform(self._engine.lost(names, self.now_ms()))
        self._take_back(names)
        self._paused.difference_update(names)
        self._has_room.set()

    def _take_back(self, names: Sequence[TopicPartition]) -> None:
        """Let go of what no worker has begun with: it is void, and its key is free."""
        gone = set(names)
        queued = self.workers.take_back()
        back, kept = parted(queued, lambda record: (record.topic, record.partition) in gone)
        self.workers.give(kept)
        self._out -= len(back)
        self._perform(self._engine.failed(back, RuntimeError("not begun"), self.now_ms()))
        self._hand_out()

    # What goes on beside

    async def poll(self) -> None:
        """Read as long as there is room, until the driver is over."""
        engine = self._engine
        while not self.is_over:
            room = engine.room
            if not room and not self.is_stopping and not self._paused.issuperset(engine.names()):
                self._has_room.clear()
                await self._has_room.wait()
                continue
            records = await self._source.poll(min(max(room, 1), self._poll_max), POLL_S)
            if len(self._committed) < len(engine.names()):
                # Nothing was committed for some: they count from where they begin.
                for record in records:
                    name = TopicPartition(record.topic, record.partition)
                    self._committed.setdefault(name, record.offset)
            self._perform(engine.polled(records, self.now_ms()))
            self._hand_out()

    async def make_commits(self) -> None:
        """Wait for the answers to commits, in their order."""
        while True:
            effect, answer = await self._commits.get()
            self._answered(effect, await answer)
            self.turn()

    async def _commit_finally(self, effect: CommitOffsets) -> None:
        deadline = self._loop.time() + min(FINAL_COMMIT_S, max(self._grace_s, 1.0))
        codes: dict[TopicPartition, int] = {}
        left = dict(effect.commits)
        while True:
            codes.update(await self._source.commit(left))
            left = {name: each for name, each in left.items() if codes[name] in RETRY_CODES}
            if not left or self._loop.time() >= deadline:
                break
            await asyncio.sleep(FINAL_RETRY_S)
        for more in self._answered(effect, codes):
            await self._commit_finally(more)

    def _answered(self, effect: CommitOffsets, codes: Codes) -> list[CommitOffsets]:
        """Tell the engine; return final commits that are to follow."""
        self._metrics.commits += 1
        for name, commit in effect.commits.items():
            if codes[name]:
                self._metrics.commit_failures += 1
                _log.warning("commit_failed partition=%s code=%d", name, codes[name])
            else:
                moved = commit.offset - self._committed.get(name, commit.offset)
                self._committed[name] = commit.offset
                self._metrics.tally(*name).committed += max(moved, 0)
        effects = self._engine.committed(effect.number, self.now_ms(), by_partition=codes)
        finals = [each for each in effects if isinstance(each, CommitOffsets) and each.is_final]
        self._perform(each for each in effects if each not in finals)
        return finals

    async def write_dead_letters(self) -> None:
        """Write what was given up to the dead letters."""
        while True:
            effect = await self._given_up.get()
            not_written = await self._not_written(effect)
            dead_lettered = [record for record in effect.records if record not in not_written]
            for record in dead_lettered:
                self._metrics.tally(record.topic, record.partition).dead_lettered += 1
            self._perform(self._engine.dead_lettered(dead_lettered, self.now_ms()))
            self._perform(
                self._engine.dead_letters_failed(not_written, effect.error, self.now_ms())
            )
            self.turn()

    async def _not_written(self, effect: WriteDeadLetters) -> Sequence[Record]:
        """Write dead letters; return the records that could not be written."""
        assert self._dead_letters is not None
        try:
            await self._dead_letters.write_dead_letters(effect.records, effect.error)
        except Failed as error:
            _log.warning("dead_letters_failed records=%d error=%r", len(error.records), error.error)
            return error.records if {*error.records} <= {*effect.records} else effect.records
        except Exception as error:
            _log.warning("dead_letters_failed records=%d error=%r", len(effect.records), error)
            return effect.records
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return effect.records  # cancelled in there, and not us
        return ()

    async def drain(self) -> None:
        """End with everything that is ours; polling goes on, so that we stay a good member."""
        self.is_stopping = True
        self._has_room.set()
        names = self._engine.names()
        self._source.pause(names)
        await self._revoke(names)

    def end(self) -> None:
        """Let `poll` end."""
        self.is_over = True
        self._has_room.set()
        if self._timer is not None:
            self._timer.cancel()
