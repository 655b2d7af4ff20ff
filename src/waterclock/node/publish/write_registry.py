"""The write registry: it lets a job that may be run again, in whole or in part, write once.

A writer writes batches, each in tasks. When a task begins, the registry notes where the topic's
logs end at that moment, and gives these offsets to an attempt that begins it again: what the first
attempt stored lies behind them. The registry notes a task that is done too, and when all are, the
writer commits the batch: one number then stands for it and everything before.

    writer/<topic>/<writer>                   the last batch committed
    write/<topic>/<writer>/<batch>/<task>     a task of a batch that is not

All of it is in memory and, as records, in the metadata. Notes of tasks that a commit has made
needless are taken away a slice at a time; until then, and after a crash between, they are known to
be old by the commit itself. Each writer has a `run_id`, a name no other ever had, which its tasks
bear: notes of one that was abandoned, or whose topic was deleted, speak for no other.

No answer goes out before what it says is durable, also if it is another call's note.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from waterclock.model.clock import Clock
from waterclock.model.errors import BadInput, CapacityReached, NotFound
from waterclock.model.names import check_name
from waterclock.model.units import DAY_MS
from waterclock.model.views import WriteBegun, WriterInfo, WriteState
from waterclock.node.metadata import Metadata, Records, Ticket
from waterclock.node.partition.remote_log import RemoteLog, logs_elsewhere
from waterclock.node.topics import Topic, Topics

WRITER = "writer/"
WRITE = "write/"
WRITERS_MAX = 10_000
"""Of a topic."""
TASKS_MAX = 100_000
"""Of a writer, in batches that are not committed."""
NODE_TASKS_MAX = 1_000_000
"""Of all writers: each is held in memory."""
FORGET_MS = 30 * DAY_MS
"""A writer that did nothing for so long may be forgotten to make room for another."""
SLICE = 1_000
"""Records taken away in one go; the loop turns in between."""
BATCH_MAX = (1 << 63) - 1


class _WriterRecord(msgspec.Struct, frozen=True):
    run_id: str
    folder: str
    """Of its topic: one made anew under the same name has another."""
    committed: int
    """-1: none yet."""
    changed_ms: int


class _TaskRecord(msgspec.Struct, frozen=True):
    run_id: str
    begun_ms: int
    ends: dict[int, int]
    rows: int = -1
    """-1: it is not done."""

    @property
    def is_done(self) -> bool:
        return self.rows >= 0


@dataclass(slots=True)
class _Task:
    record: _TaskRecord
    written: Ticket | None
    """What must be durable before a call is answered; None: it is."""


@dataclass(slots=True)
class _Writer:
    record: _WriterRecord
    written: Ticket | None
    changed_ms: int
    tasks: dict[tuple[int, int], _Task] = field(default_factory=dict)
    """By batch and number."""


class WriteRegistry:
    """All writers of a node. `open` it once the topics are."""

    def __init__(self, topics: Topics, metadata: Metadata, clock: Clock) -> None:
        self._topics = topics
        self._metadata = metadata
        self._clock = clock
        self._writers: dict[str, dict[str, _Writer]] = {}
        """By topic, then by name."""
        self._tasks = 0
        self._needless: dict[str, None] = {}
        """Names of records that say nothing any more, to be taken away."""
        topics.records_of.append(self._records_of)
        topics.on_deleted.append(self._topic_deleted)
        # At once: a writer that is not known would begin anew, one that was taken back be believed.
        metadata.on_leading.append(lambda is_leading: self._load())

    def __repr__(self) -> str:
        return (
            f"<WriteRegistry {sum(map(len, self._writers.values()))} writers, {self._tasks} tasks>"
        )

    async def open(self) -> None:
        """Take up every writer where it was."""
        self._load()
        await self.tidy()

    def _load(self) -> None:
        self._writers.clear()
        self._needless.clear()
        self._tasks = 0
        for key, value in self._metadata.items(WRITER):
            topic_name, name = key.removeprefix(WRITER).split("/")
            record = msgspec.json.decode(value, type=_WriterRecord)
            topic = self._topics.find(topic_name)
            if topic is None or topic.folder != record.folder:
                self._needless[key] = None
                continue
            writers = self._writers.setdefault(topic_name, {})
            writers[name] = _Writer(record, None, record.changed_ms)
        for key, value in self._metadata.items(WRITE):
            topic_name, name, batch, number = key.removeprefix(WRITE).split("/")
            task = msgspec.json.decode(value, type=_TaskRecord)
            writer = self._writers.get(topic_name, {}).get(name)
            is_mine = writer is not None and writer.record.run_id == task.run_id
            if writer is None or not is_mine or int(batch) <= writer.record.committed:
                self._needless[key] = None
                continue
            writer.tasks[int(batch), int(number)] = _Task(task, None)
            writer.changed_ms = max(writer.changed_ms, task.begun_ms)
            self._tasks += 1

    async def begin(self, topic_name: str, name: str, batch: int, number: int) -> WriteBegun:
        """Note that a task begins, or return how far it came when it began before."""
        topic = self._topics.get(topic_name)
        _check(name, batch, number)
        elsewhere = await logs_elsewhere(topic.partitions)
        writer = self._writers.get(topic_name, {}).get(name)
        if writer is not None and batch <= writer.record.committed:
            await self._wait_flushed(writer.written)
            return WriteBegun(WriteState.COMMITTED, {}, 0)
        task = None if writer is None else writer.tasks.get((batch, number))
        if task is not None:
            # As it is now: what is noted while this waits may become durable later.
            known = task.record
            await self._wait_flushed(task.written)
            if known.is_done:
                return WriteBegun(WriteState.DONE, {}, known.rows)
            return WriteBegun(WriteState.BEGUN, _readable(topic, known.ends, elsewhere), 0)
        task = self._note(topic, name, batch, number, elsewhere)
        await self._wait_flushed(task.written)
        return WriteBegun(WriteState.NEW, _readable(topic, task.record.ends, elsewhere), 0)

    async def finish(
        self, topic_name: str, name: str, batch: int, number: int, *, rows: int
    ) -> WriteState:
        """Note that a task has stored all its rows. It must have begun."""
        self._topics.get(topic_name)
        _check(name, batch, number)
        if rows < 0:
            raise BadInput(f"rows must not be negative (got {rows})")
        writer = self._writers.get(topic_name, {}).get(name)
        if writer is not None and batch <= writer.record.committed:
            await self._wait_flushed(writer.written)
            return WriteState.COMMITTED
        task = None if writer is None else writer.tasks.get((batch, number))
        if writer is None or task is None:
            raise NotFound("begun write", f"{topic_name}/{name}/{batch}/{number}")
        if not task.record.is_done:
            record = msgspec.structs.replace(task.record, rows=rows)
            key = _task_key(topic_name, name, batch, number)
            task.written = self._metadata.write({key: msgspec.json.encode(record)})
            task.record = record
            writer.changed_ms = self._clock.now_ms()
        await self._wait_flushed(task.written)
        return WriteState.DONE

    async def commit(self, topic_name: str, name: str, batch: int) -> tuple[bool, int]:
        """Note that a batch is whole; return whether that was known, and the last such batch."""
        topic = self._topics.get(topic_name)
        _check(name, batch, 0)
        writer = self._writers.get(topic_name, {}).get(name)
        if writer is not None and batch <= writer.record.committed:
            committed = writer.record.committed
            await self._wait_flushed(writer.written)
            return True, committed
        if writer is None:
            self._make_room(topic_name)
            run_id = os.urandom(8).hex()
        else:
            run_id = writer.record.run_id
        now_ms = self._clock.now_ms()
        record = _WriterRecord(run_id, topic.folder, batch, now_ms)
        key = _writer_key(topic_name, name)
        written = self._metadata.write({key: msgspec.json.encode(record)})
        self._needless.pop(key, None)
        if writer is None:
            writer = _Writer(record, written, now_ms)
            self._writers.setdefault(topic_name, {})[name] = writer
        writer.record, writer.written, writer.changed_ms = record, written, now_ms
        self._drop_tasks(topic_name, name, writer, up_to=batch)
        await self._metadata.wait_flushed(written)
        await self.tidy()
        return False, batch

    async def abandon(self, topic_name: str, name: str) -> bool:
        """Forget a writer; False if there is none."""
        self._topics.get(topic_name)
        check_name("writer", name)
        if name not in self._writers.get(topic_name, {}):
            return False
        await self._metadata.put_many(self._forget(topic_name, name))
        await self.tidy()
        return True

    def list(self, topic_name: str) -> list[WriterInfo]:
        self._topics.get(topic_name)
        return [
            WriterInfo(
                name,
                None if writer.record.committed < 0 else writer.record.committed,
                len(writer.tasks),
                writer.changed_ms,
            )
            for name, writer in sorted(self._writers.get(topic_name, {}).items())
        ]

    async def _wait_flushed(self, written: Ticket | None) -> None:
        if written is not None:
            await self._metadata.wait_flushed(written)

    # Notes

    def _note(
        self,
        topic: Topic,
        name: str,
        batch: int,
        number: int,
        elsewhere: Mapping[int, RemoteLog],
    ) -> _Task:
        """Write down a task that begins, and its writer if it is new."""
        now_ms = self._clock.now_ms()
        records: dict[str, bytes | None] = {}
        writer = self._writers.get(topic.name, {}).get(name)
        if writer is None:
            self._make_room(topic.name)
            record = _WriterRecord(os.urandom(8).hex(), topic.folder, -1, now_ms)
            writer = _Writer(record, None, now_ms)
            records[_writer_key(topic.name, name)] = msgspec.json.encode(record)
        if len(writer.tasks) >= TASKS_MAX:
            raise CapacityReached("tasks of a writer", TASKS_MAX)
        if self._tasks >= NODE_TASKS_MAX:
            raise CapacityReached("tasks of writers", NODE_TASKS_MAX)
        note = _TaskRecord(writer.record.run_id, now_ms, _ends(topic, elsewhere))
        records[_task_key(topic.name, name, batch, number)] = msgspec.json.encode(note)
        task = _Task(note, self._metadata.write(records))
        if writer.record.committed < 0 and writer.written is None:
            writer.written = task.written
        for key in records:
            self._needless.pop(key, None)
        self._writers.setdefault(topic.name, {})[name] = writer
        writer.tasks[batch, number] = task
        writer.changed_ms = now_ms
        self._tasks += 1
        return task

    def _make_room(self, topic_name: str) -> None:
        """Raise CapacityReached unless the topic can have one writer more."""
        writers = self._writers.get(topic_name, {})
        if len(writers) < WRITERS_MAX:
            return
        limit_ms = self._clock.now_ms() - FORGET_MS
        old = [name for name, writer in writers.items() if writer.changed_ms < limit_ms]
        if not old:
            raise CapacityReached("writers of a topic", WRITERS_MAX)
        records: dict[str, None] = {}
        for name in old:
            records |= self._forget(topic_name, name)
        self._metadata.write(records)

    def _forget(self, topic_name: str, name: str) -> dict[str, None]:
        """Know a writer no more; return the record to be taken away, its tasks' go later."""
        writer = self._writers[topic_name].pop(name)
        self._drop_tasks(topic_name, name, writer, up_to=BATCH_MAX)
        return {_writer_key(topic_name, name): None}

    def _drop_tasks(self, topic_name: str, name: str, writer: _Writer, *, up_to: int) -> None:
        done = [place for place in writer.tasks if place[0] <= up_to]
        for place in done:
            del writer.tasks[place]
            self._needless[_task_key(topic_name, name, *place)] = None
        self._tasks -= len(done)

    async def tidy(self) -> None:
        """Take needless records away. Where this ends half-way, the next call goes on."""
        while self._needless:
            names = [name for name, _ in zip(self._needless, range(SLICE), strict=False)]
            self._metadata.write(dict.fromkeys(names))
            for name in names:
                del self._needless[name]
            await asyncio.sleep(0)

    def _records_of(self, topic: Topic) -> Records:
        return {_writer_key(topic.name, name): None for name in self._writers.get(topic.name, {})}

    def _topic_deleted(self, topic: Topic) -> None:
        for name in list(self._writers.get(topic.name, {})):
            self._forget(topic.name, name)
        self._writers.pop(topic.name, None)


def _check(name: str, batch: int, number: int) -> None:
    check_name("writer", name)
    if not 0 <= batch <= BATCH_MAX:
        raise BadInput(f"batch must be within 0 and {BATCH_MAX} (got {batch})")
    if number < 0:
        raise BadInput(f"task must not be negative (got {number})")


def _ends(topic: Topic, elsewhere: Mapping[int, RemoteLog]) -> dict[int, int]:
    """Return where nothing of a task can lie before. What is not flushed yet may be lost in a
    crash, and its offsets be used again: so it does not count."""
    ends = {number: log.end for number, log in elsewhere.items()}
    return ends | {
        host.partition: min(host.store.acknowledged_end, host.store.flushed_end)
        for host in topic.partitions
        if host.is_open
    }


def _readable(
    topic: Topic, ends: dict[int, int], elsewhere: Mapping[int, RemoteLog]
) -> dict[int, int]:
    """Return places a task can be read from: what retention has taken since is gone for all."""
    starts = {number: log.start for number, log in elsewhere.items()}
    starts |= {host.partition: host.store.start for host in topic.partitions if host.is_open}
    return {number: max(ends.get(number, 0), start) for number, start in sorted(starts.items())}


def _writer_key(topic: str, writer: str) -> str:
    return f"{WRITER}{topic}/{writer}"


def _task_key(topic: str, writer: str, batch: int, number: int) -> str:
    return f"{WRITE}{topic}/{writer}/{batch}/{number}"
