"""What clients do in a round: publishers, who cancels and puts off, readers, groups. Those of
stored streams are in `stored_streams.py`.

Each request goes to a node by chance, also to one that is dying, and any node must answer it. What
may have been done, or not, is asked again with the same id until somebody says what became of it.
"""

import asyncio
import itertools
import time
from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from tests.cluster.chaos.load import Node
from tests.cluster.chaos.requests import Answer, Broken, NotAsked, ask, ask_bytes
from tests.cluster.chaos.topics.frames import FramesRead, read_frames
from tests.cluster.chaos.topics.grpc_clients import GrpcClients
from tests.cluster.chaos.topics.record import Delivered, Refusal, RoundRecord, RunClock
from tests.cluster.chaos.topics.stored_streams import StoredStreams
from tests.cluster.history.events import Changed, Copied, Outcome, Polled, Published, Row
from waterclock.model.message import Acks

AGAIN_S = 0.05
ASK_S = 12.0
READ_WAIT_MS = 300
POLL_WAIT = "500ms"
SCHEDULED_SHARE = 0.3
CHANGED_SHARE = 0.4
"""Of the scheduled ones."""
BY_POSITION_SHARE = 0.5
"""Of changes; the others name the message by its id."""
DUE_MS = (300, 5_000)
DRAWN_ACKS: tuple[Acks, ...] = ("quorum", "quorum", "quorum", "quorum", "leader", "all")
"""Of all publishers, at most one `all` of each at a time."""
NOT_YET = (404, 409, 416, 424, 429)
"""What a node says that has not heard of the topic, or is behind; what is asked again."""
LEASE_IS_OVER = 409
FRAMES_BYTES = 1 << 20


class Load:
    """The clients of a round."""

    def __init__(self, record: RoundRecord, clock: RunClock, nodes: Sequence[Node]) -> None:
        plan = record.plan
        self._record = record
        self._clock = clock
        self._nodes = nodes
        self._rng = Random(f"{plan.seed}:{plan.number}:load")
        self._numbers = itertools.count(1)
        self._spark_reads = itertools.count(1)
        self._is_publishing = True
        self._over = asyncio.Event()
        self.topic = f"t{plan.seed}-{plan.number}-{time.time_ns() // 1_000_000}"
        self._streams = StoredStreams(record, clock, self.topic, self._asked, self._until_known)

    # The whole

    async def make_topic(self) -> None:
        """Make the topic of the round, whatever it takes."""
        words = {"topic": self.topic, "partitions": self._record.plan.partitions}
        while True:
            answer = await self._asked("POST", "/topics", words)
            if answer is not None and answer.status in (200, 201, 409):
                return
            await asyncio.sleep(AGAIN_S)

    async def publish(self, clients: GrpcClients) -> None:
        """Publish, cancel and put off until `stop_publishing`; every second publisher by gRPC."""
        plan = self._record.plan
        async with asyncio.TaskGroup() as tasks:
            for partition in range(plan.partitions):
                for number in range(plan.publishers):
                    by = clients if number % 2 else None
                    tasks.create_task(self._publish_all(partition, tasks, by))
            for stream in self._streams.names:
                tasks.create_task(self._streams.store(stream, lambda: self._is_publishing))

    async def read(self, clients: GrpcClients) -> None:
        """Read every partition on, and every group, until `stop`; the last group by gRPC."""
        plan = self._record.plan
        async with asyncio.TaskGroup() as tasks:
            for partition in range(plan.partitions):
                tasks.create_task(self._read_on(partition))
            for stream in self._streams.names:
                tasks.create_task(self._streams.read_on(stream, lambda: self.is_over))
            *groups, last = plan.group_names
            for group, number in itertools.product(groups, range(plan.consumers)):
                tasks.create_task(self._consume(group, f"c{number}"))
            members = [f"c{number}" for number in range(plan.consumers)]
            by_grpc = [tasks.create_task(clients.consume(last, each)) for each in members]
            await self._over.wait()
            for task in by_grpc:
                task.cancel()

    async def watch_lag(self) -> None:
        """Measure how late this side itself is, until cancelled."""
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.1)
            late_ms = round((time.monotonic() - begun - 0.1) * 1_000)
            self._record.lag_ms = max(self._record.lag_ms, late_ms)
            self._record.stepped_ms = max(self._record.stepped_ms, self._clock.stepped_ms())

    def stop_publishing(self) -> None:
        """Let publishers end once they know what became of their last message."""
        self._is_publishing = False

    def stop(self) -> None:
        """Give up on whatever has no answer, and stop to read."""
        self._over.set()

    @property
    def is_over(self) -> bool:
        """Nothing more is waited for."""
        return self._over.is_set()

    def read_by_spark(self, partition: int, rows: Sequence[Row]) -> None:
        """Note what Spark has read of a partition, from its beginning on."""
        now_ms, place = self._clock.now_ms(), self._place(partition)
        end = rows[-1].offset + 1 if rows else 0
        reader = f"spark {next(self._spark_reads)}"
        self._record.events.append(Polled(reader, "spark", place, now_ms, 0, end, tuple(rows)))

    # Publishers

    async def _publish_all(
        self, partition: int, tasks: asyncio.TaskGroup, clients: GrpcClients | None
    ) -> None:
        by_all: asyncio.Task[None] | None = None
        while self._is_publishing:
            message, at_ms = f"m{next(self._numbers)}", self._clock.now_ms()
            due_ms = None
            if self._rng.random() < SCHEDULED_SHARE:
                due_ms = at_ms + self._rng.randrange(*DUE_MS)
            acks = self._rng.choice(DRAWN_ACKS)
            if acks == "all" and by_all is not None and not by_all.done():
                acks = "quorum"
            place = self._place(partition)
            asked = Published(message, place, at_ms, None, "unknown", None, due_ms, acks)
            publishing = self._publish_one(asked, partition, tasks, clients)
            if acks == "all":
                # It waits for whoever is away, and nobody else shall wait for it.
                by_all = tasks.create_task(publishing)
            else:
                await publishing
            await asyncio.sleep(self._pause_s())

    async def _publish_one(
        self,
        asked: Published,
        partition: int,
        tasks: asyncio.TaskGroup,
        clients: GrpcClients | None,
    ) -> None:
        offset = await self._sent(asked, partition, clients)
        if offset is None:
            self._record.events.append(asked)
            return
        until_ms = self._clock.now_ms()
        self._record.counts[f"acked for {asked.acks}"] += 1
        self._record.events.append(
            replace(asked, until_ms=until_ms, outcome="acked", offset=offset)
        )
        if asked.due_ms is not None and self._rng.random() < CHANGED_SHARE:
            tasks.create_task(self._change(asked, partition, offset))

    async def _sent(
        self, asked: Published, partition: int, clients: GrpcClients | None
    ) -> int | None:
        """Send a message until it is stored, and return where; None: the round ended before."""
        message, due_ms, acks = asked.message, asked.due_ms, asked.acks
        if clients is not None:
            while not self.is_over:
                offset = await clients.publish(message, partition, due_ms, acks)
                if offset is not None:
                    return offset
                await asyncio.sleep(AGAIN_S)
            return None
        words: dict[str, object] = {"value": message, "messageId": message, "partition": partition}
        words["acks"] = acks
        if due_ms is not None:
            words["dueMs"] = self._clock.wall_ms(due_ms)
        answer = await self._until_known("POST", f"/topics/{self.topic}/messages", words)
        return None if answer is None else int(answer.value["offset"])

    async def _change(self, sent: Published, partition: int, offset: int) -> None:
        """Cancel a message, or put it off; perhaps it has fired by then."""
        await asyncio.sleep(self._rng.uniform(0.0, 1.5))
        message, at_ms = sent.message, self._clock.now_ms()
        named: dict[str, object] = {"messageId": message}
        # What only the leader had may be lost, and another message be at its offset.
        if sent.acks != "leader" and self._rng.random() < BY_POSITION_SHARE:
            named = {"partition": partition, "offset": offset}
        words: dict[str, object] = {"messages": [named]}
        due_ms = None
        verb = "cancel"
        if self._rng.random() < 0.3:
            due_ms, verb = at_ms + self._rng.randrange(*DUE_MS), "reschedule"
            words["dueMs"] = self._clock.wall_ms(due_ms)
        answer = await self._until_known("POST", f"/topics/{self.topic}/{verb}", words)
        outcome: Outcome = "unknown"
        until_ms = None
        if answer is not None:
            until_ms = self._clock.now_ms()
            (said,) = answer.value["outcomes"]
            self._record.counts[f"{verb} {said}"] += 1
            # A second request after a lost answer finds it cancelled, by the first.
            is_done = said == "done" or (verb == "cancel" and said == "cancelled")
            outcome = "acked" if is_done else "refused"
            if said == "unknown" and sent.acks != "leader":
                self._record.forgotten.append(f"{verb} {named} at {at_ms}: {sent}")
        self._record.events.append(Changed(message, at_ms, until_ms, outcome, due_ms))

    def _pause_s(self) -> float:
        return self._record.plan.pause_ms / 1_000 * self._rng.uniform(0.2, 1.8)

    # Readers

    async def _read_on(self, partition: int) -> None:
        """Read a partition from whichever node, and go on where the last answer ended."""
        offset = 0
        while not self.is_over:
            node = self._node()
            found = await self._frames(node, partition, offset, wait_ms=READ_WAIT_MS)
            if found is None:
                await asyncio.sleep(AGAIN_S)
                continue
            at_ms = self._clock.now_ms()
            next_offset, data = found
            # A frame is sent whole, also if the reader had asked for its second half.
            read = read_frames(data)
            rows = tuple(row for row in read.rows if row.offset >= offset)
            self._note_times(partition, read)
            if next_offset != offset:
                self._record.events.append(
                    Polled("reader", node.name, self._place(partition), at_ms, offset,
                           next_offset, rows)
                )  # fmt: skip
            offset = max(offset, next_offset)

    async def read_copies(self) -> None:
        """Read all of every partition from each node, as its copy has it, and all streams."""
        await self._streams.read_all()
        for node in self._nodes:
            for partition in range(self._record.plan.partitions):
                await self._read_copy(node, partition)

    async def _read_copy(self, node: Node, partition: int) -> None:
        offset, place = 0, self._place(partition)
        digests: list[tuple[int, str]] = []
        tries = 0
        while True:
            found = await self._frames(node, partition, offset, wait_ms=0)
            tries = tries + 1 if found is None else 0
            if found is None and tries < 20:
                await asyncio.sleep(AGAIN_S * 4)
                continue
            if found is None or found[0] == offset:
                break
            read = read_frames(found[1])
            rows = tuple(row for row in read.rows if row.offset >= offset)
            self._note_times(partition, read)
            event = Polled(f"copy of {node.name}", node.name, place, self._clock.now_ms(), offset,
                           found[0], rows)  # fmt: skip
            self._record.events.append(event)
            digests += [each for each in read.digests if each[0] >= offset]
            offset = found[0]
        self._record.events.append(Copied(node.name, place, tuple(digests)))

    def _note_times(self, partition: int, read: FramesRead) -> None:
        place = self._place(partition)
        for offset, wall_ms in read.written_ms.items():
            self._record.written_ms[place, offset] = self._clock.run_ms(wall_ms)

    async def _frames(
        self, node: Node, partition: int, offset: int, *, wait_ms: int
    ) -> tuple[int, bytes] | None:
        """Return where to go on, and frames; None if there was no good answer."""
        path = f"/topics/{self.topic}/partitions/{partition}/frames?offset={offset}"
        path += f"&waitMs={wait_ms}&bytesMax={FRAMES_BYTES}"
        try:
            status, headers, body = await ask_bytes(node.host, path, within_s=ASK_S)
        except (NotAsked, Broken):
            return None
        if status != 200:
            self._count("frames", status)
            return None
        return int(headers["waterclock-next-offset"]), body

    # Groups

    async def _consume(self, group: str, consumer: str) -> None:
        while not self.is_over:
            query = f"group={group}&consumer={consumer}&limit=50&wait={POLL_WAIT}"
            answer = await self._asked("GET", f"/topics/{self.topic}/messages?{query}")
            if answer is None or answer.status != 200:
                await asyncio.sleep(AGAIN_S)
                continue
            found = answer.value["messages"]
            at_ms = self._clock.now_ms()
            self._record.delivered += [
                Delivered(group, self._place(each["partition"]), each["offset"],
                          each["messageId"], at_ms)
                for each in found
            ]  # fmt: skip
            if found:
                words = {"group": group, "consumer": consumer}
                acks = {**words, "ack": [each["lease"] for each in found]}
                path = f"/topics/{self.topic}/acks"
                await self._until_known("POST", path, acks, done=(200, LEASE_IS_OVER))

    # Requests

    def _node(self) -> Node:
        return self._rng.choice(self._nodes)

    def _place(self, partition: int) -> str:
        return f"{self.topic}/{partition}"

    async def _until_known(
        self, method: str, path: str, words: object, *, done: Sequence[int] = (200, 201)
    ) -> Answer | None:
        """Ask until it is done; None: the round ended before."""
        while not self.is_over:
            answer = await self._asked(method, path, words)
            if answer is not None and answer.status in done:
                return answer
            await asyncio.sleep(AGAIN_S)
        return None

    async def _asked(self, method: str, path: str, words: object = None) -> Answer | None:
        """Ask some node once; None if there was no answer. Mistakes of ours are raised."""
        node = self._node()
        try:
            answer = await ask(node.host, method, path, words, within_s=ASK_S)
        except NotAsked:
            self._record.counts["not asked"] += 1
            self._refused(node, method, path, words, "nobody there")
            return None
        except Broken as error:
            self._record.counts["broken"] += 1
            self._refused(node, method, path, words, str(error))
            return None
        self._count(method, answer.status)
        if answer.status >= 300:
            self._refused(node, method, path, words, f"{answer.status} {answer.value}")
        is_ours = 400 <= answer.status < 500 and answer.status not in NOT_YET
        assert not is_ours, f"{method} {path} {words}: {answer}"
        return answer

    def _refused(self, node: Node, method: str, path: str, words: object, said: str) -> None:
        asked = f"{node.name}: {method} {path} {words or ''}"
        self._record.refusals.append(Refusal(self._clock.now_ms(), asked, said))

    def _count(self, what: str, status: int) -> None:
        self._record.counts[f"{what} {status}"] += 1
