"""Kills in the middle of what the crash matrix does not do: redrives, replays, recurrences, topics.

The seed fixes the moments; what they hit depends on the computer, and must not matter.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from grpc import StatusCode
from grpc.aio import EOF, AioRpcError

from tests.integration.consumer import Consumer
from tests.integration.link import Gone, Link, hearing
from tests.integration.members import offsets_of
from tests.integration.node_process import NodeProcess
from tests.integration.stint import now_ms
from tests.integration.verdict import frames_of
from tests.kit.verdict import Findings
from waterclock.log.frame import FrameType
from waterclock.log.schema import decode, encode, from_messages
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import scheduler_pb2 as sp

TOPIC = "work"
SETTINGS: dict[str, dict[str, Any]] = {
    "log": {"segment_bytes": 64 << 10, "preallocate_bytes": 16 << 10},
    "schedule": {"tick_ms": 50, "checkpoint_ms": 1_000},
    "delivery": {"ack_timeout_ms": 2_000, "retry_delay_ms": 100, "max_retries": 1},
}


class Victim:
    """A node that is killed while it works."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.data = folder / "data"
        self.rng = Random(seed)
        self.node = NodeProcess(folder, SETTINGS)
        self.link = Link(Findings())

    @property
    def broker(self) -> Any:
        return self.link.broker

    @property
    def admin(self) -> Any:
        return self.link.admin

    @property
    def scheduler(self) -> Any:
        return self.link.scheduler

    async def start(self) -> None:
        await self.node.start()
        await self.link.open(self.node.address)

    async def restart(self) -> None:
        """Kill it and start it again."""
        await self.node.kill()
        await self.link.close()
        await self.start()

    async def killed_amid(self, work: Callable[[], Awaitable[object]], most_s: float) -> bool:
        """Have something done and kill the node meanwhile; tell whether it was done before."""
        is_done = False

        async def do() -> None:
            nonlocal is_done
            with suppress(AioRpcError, Gone), hearing():
                await work()
                is_done = True

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(do())
            await asyncio.sleep(self.rng.uniform(0, most_s))
            await self.restart()
        return is_done

    def folders(self) -> set[str]:
        """Return the topics that have a folder."""
        return {path.name.rpartition("-")[0] for path in (self.data / "topics").iterdir()}

    async def publish(self, *names: str, topic: str = TOPIC, due_ms: int | None = None) -> None:
        due = None if due_ms is None else Millis(due_ms)
        made = [Message(b"v" * 50, message_id=name.encode(), due_ms=due) for name in names]
        arrow = bytes(encode(from_messages(made)))
        await self.broker.PublishBatch(pb.PublishBatchRequest(topic=topic, arrow=arrow))

    async def logged(self, *kinds: FrameType) -> list[bytes]:
        """Return the ids of all rows in the log of frames of these kinds."""
        return [
            id_
            async for frame in frames_of(self.broker, TOPIC, 0)
            if frame.header.type in kinds
            for id_ in decode(frame.header, frame.body).column("message_id").to_pylist()
        ]


@asynccontextmanager
async def victim(folder: Path, seed: int) -> AsyncIterator[Victim]:
    it = Victim(folder, seed)
    try:
        await it.start()
        async with asyncio.timeout(60):
            yield it
        assert it.node.bugs() == [], it.node.last_words(40)
    finally:
        await it.link.close()
        await it.node.kill()


async def reject(it: Victim, count: int) -> None:
    """Have as many dead letters."""
    await it.publish(*(f"m-{n}" for n in range(count)))
    call = it.broker.Subscribe()
    opening = pb.SubscribeRequest.Open(topic=TOPIC, group="g")
    await call.write(pb.SubscribeRequest(open=opening))
    rejected = 0
    while rejected < count:
        event = await call.read()
        assert event is not EOF
        if event.HasField("delivery"):
            delivery = event.delivery
            rejected += len(list(offsets_of(delivery.bounds)))
            answer = pb.Answer(
                partition=delivery.partition,
                generation=delivery.generation,
                bounds=delivery.bounds,
                kind=pb.Answer.REJECT,
            )
            await call.write(pb.SubscribeRequest(answers=[answer]))
    while await dead(it) < count:  # noqa: ASYNC110  nobody tells us
        await asyncio.sleep(0.02)
    await call.write(pb.SubscribeRequest(leave=True))


async def dead(it: Victim) -> int:
    try:
        listed = await it.admin.ListDeadLetters(ap.ListDeadLettersRequest(topic=TOPIC, limit=1))
    except AioRpcError as error:
        if error.code() is not StatusCode.NOT_FOUND:
            raise
        return 0
    return int(listed.total)


async def test_a_redrive_that_is_killed_and_repeated_publishes_each_dead_letter_once(tmp_path):
    async with victim(tmp_path, 1) as it:
        await reject(it, 700)
        redrive = ap.RedriveRequest(topic=TOPIC)
        for _ in range(4):
            await it.killed_amid(lambda: it.admin.Redrive(redrive), 0.06)
        await it.admin.Redrive(redrive)
        assert await dead(it) == 0
        copies = [id_ for id_ in await it.logged(FrameType.DATA) if not id_.startswith(b"m-")]
        assert len(copies) == 700
        assert max(Counter(copies).values()) == 1


async def test_a_named_replay_that_is_killed_goes_on_without_a_gap(tmp_path):
    async with victim(tmp_path, 2) as it:
        for part in range(20):
            await it.publish(*(f"m-{part}-{n}" for n in range(100)))
        seen: list[int] = []
        reported = 0

        async def read(**begin: Any) -> None:
            nonlocal reported
            call = it.broker.Replay()
            opening = pb.ReplayRequest.Begin(name="again", **begin)
            await call.write(pb.ReplayRequest(begin=opening))
            first = True
            while (event := await call.read()) is not EOF:
                if event.HasField("finished"):
                    await call.done_writing()
                    continue
                offsets = list(offsets_of(event.batch.bounds))
                if first:
                    assert offsets[0] <= reported, "it passed something over"
                    first = False
                seen.extend(offsets)
                reported = event.batch.next_offset
                await call.write(pb.ReplayRequest(done=[pb.Position(partition=0, offset=reported)]))

        begin: dict[str, Any] = {"topic": TOPIC, "checkpoint_every": 50}
        for _ in range(4):
            if await it.killed_amid(partial(read, **begin), 0.05):
                break
            info = await it.admin.ListReplays(ap.ListReplaysRequest())
            begin = {} if info.replays else begin
        else:
            await read(**begin)
        assert set(seen) == set(range(2_000))


async def test_a_recurrence_comes_once_each_time_over_kills_and_never_after_its_end(tmp_path):
    async with victim(tmp_path, 3) as it:
        every_ms = 1_000
        recurrence = sp.Recurrence(name="tick", topic=TOPIC, every_ms=every_ms)
        put = await it.scheduler.PutRecurrence(sp.PutRecurrenceRequest(recurrence=recurrence))
        for _ in range(5):
            await asyncio.sleep(it.rng.uniform(0, 1.2))
            await it.restart()
        await it.scheduler.DeleteRecurrence(sp.DeleteRecurrenceRequest(name="tick"))
        ended_ms = now_ms()
        await it.restart()
        await it.publish("last", due_ms=now_ms() + every_ms + 100)
        while b"last" not in (fired := await it.logged(FrameType.FIRED)):  # noqa: ASYNC110  nobody tells us
            await asyncio.sleep(0.02)

        fired.remove(b"last")
        assert len(fired) >= 2
        assert max(Counter(fired).values()) == 1
        dues = [int(id_.rpartition(b"@")[2]) for id_ in fired]
        assert dues == sorted(dues)
        assert {due % every_ms for due in dues} == {put.next_ms % every_ms}
        assert max(dues) <= ended_ms


async def test_topics_are_there_or_gone_as_was_said_over_kills(tmp_path):
    async with victim(tmp_path, 4) as it:
        there: set[str] = set()
        gone: set[str] = set()
        numbers = iter(range(1_000))

        async def work() -> None:
            while True:
                name = f"topic-{next(numbers)}"
                settings = ap.TopicSettings(partitions=2)
                await it.admin.CreateTopic(ap.CreateTopicRequest(topic=name, settings=settings))
                await it.publish("m", topic=name)
                there.add(name)
                if it.rng.random() < 0.6:
                    name = it.rng.choice(sorted(there))
                    there.remove(name)
                    await it.admin.DeleteTopic(ap.DeleteTopicRequest(topic=name))
                    gone.add(name)

        for _ in range(5):
            await it.killed_amid(work, 0.5)
        listed = await it.admin.ListTopics(ap.ListTopicsRequest())
        names = {topic.topic for topic in listed.topics}
        assert there <= names
        assert not gone & names
        assert not any(p.problem for topic in listed.topics for p in topic.partitions)
        for name in there:
            ends = [len((await _fetched(it, name, number)).frames) > 0 for number in (0, 1)]
            assert any(ends), name
        assert it.folders() == names


async def _fetched(it: Victim, topic: str, partition: int) -> pb.FetchResponse:
    answer: pb.FetchResponse = await it.broker.Fetch(
        pb.FetchRequest(topic=topic, partition=partition)
    )
    return answer


async def test_where_a_group_was_put_it_stays_over_a_kill(tmp_path):
    async with victim(tmp_path, 5) as it:
        await it.publish(*(f"m-{n}" for n in range(100)))
        async with asyncio.TaskGroup() as tasks:
            consumer = Consumer(it.broker, TOPIC)
            await consumer.open(tasks)
            await consumer.until({b"m-%d" % n for n in range(100)})
            await consumer.close()
        seek = ap.SeekGroupRequest(
            topic=TOPIC, group="g", positions=[pb.Position(partition=0, offset=90)]
        )
        for _ in range(50):
            try:
                await it.admin.SeekGroup(seek)
                break
            except AioRpcError as error:
                if error.code() is not StatusCode.FAILED_PRECONDITION:
                    raise
                await asyncio.sleep(0.02)  # the member is not yet known to be gone
        await it.restart()
        async with asyncio.TaskGroup() as tasks:
            consumer = Consumer(it.broker, TOPIC)
            await consumer.open(tasks)
            await consumer.until({b"m-%d" % n for n in range(90, 100)})
            assert consumer.ids == [b"m-%d" % n for n in range(90, 100)]
            await consumer.close()


async def test_a_node_killed_while_it_starts_for_the_first_time_starts_the_next_time(tmp_path):
    it = Victim(tmp_path, 6)
    await it.start()
    await it.node.kill()
    ready_s = 0.8
    for number in range(5):
        fresh = tmp_path / str(number)
        fresh.mkdir()
        it = Victim(fresh, number)
        it.node.spawn()
        await asyncio.sleep(it.rng.uniform(0.6, 1.1) * ready_s)
        await it.node.kill()
        ready_s = await it.node.start()
        await it.link.open(it.node.address)
        await it.publish("m")
        await it.link.close()
        await it.node.kill()
