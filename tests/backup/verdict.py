"""What a restored node must have: all that was acknowledged before its backup began.

lost publish      a message is not where the node said that it is
lost cancel       a message that was cancelled is pending
lost schedule     a message for later is neither pending nor ended, or has another due time
lost topic        a topic is not there; or is there, though it was deleted before
broken topic      a partition cannot be opened
lost progress     a group is behind where the node said that it is
lost delivery     a message was neither acked nor is it delivered, nor a dead letter
lost redrive      a dead letter counts as redriven, and was not
lost recurrence   a recurrence is not there; or is there, though it was deleted before
lost token        a message is not at its position in its stream
damaged log       `log check` finds something
torn log, twice in the log, fired early, out of order    as in tests/integration/verdict.py
"""

import asyncio
from pathlib import Path

from tests.backup.traffic import GROUP, PARTITIONS, STREAM, TOPIC, Journal, Named, Sent
from tests.integration.history import History
from tests.integration.verdict import LogView, frames_of
from tests.integration.verdict import Verdict as LogVerdict
from tests.kit.verdict import Verdict
from waterclock.cli.commands.logs.log import logs_in
from waterclock.client.client import Client
from waterclock.log.schema import decode, row_offsets
from waterclock.model.errors import NotFound
from waterclock.node.dead_letters.rows import short_id
from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
from waterclock.storage.survey import check

QUIET_S_MAX = 20.0
PAGE = 1_000


def check_logs(data: Path, verdict: Verdict) -> None:
    """Read every log of a restored node that does not run yet."""
    for path in logs_in(data):
        with ReadOnlyFolder(path) as folder:
            survey = check(folder, advance=lambda count: None)
            verdict.counts["logs"] += 1
            for _, damage in survey.damage:
                verdict.findings.add("damaged log", f"{path}: {damage}")
            if survey.torn is not None:
                verdict.findings.add("damaged log", f"{path} is torn at {survey.torn}")


class Judge:
    """Judges a restored node that runs, by what was answered before `by`."""

    def __init__(self, client: Client, journal: Journal, by: float, verdict: Verdict) -> None:
        self._client = client
        self._journal = journal
        self._by = by
        self._counts = verdict.counts
        self._add = verdict.findings.add

    async def judge(self, committed: dict[int, int]) -> None:
        """Compare everything; `committed` is where the group stood before the backup began."""
        await self._check_topics()
        if not await self._is_topic_open():
            return
        await self._check_progress(committed)
        await self._check_recurrences()
        await self._check_stream()
        logs = await self._logs()
        self._check_messages(logs)
        await self._check_deliveries()

    # Topics and recurrences

    async def _check_topics(self) -> None:
        there = {topic.topic for topic in await self._client.topics.list()}
        self._check_named("topic", self._journal.topics, there)

    async def _check_recurrences(self) -> None:
        there = {each.name for each in await self._client.recurrences()}
        self._check_named("recurrence", self._journal.recurrences, there)

    def _check_named(self, kind: str, asked: dict[str, Named], there: set[str]) -> None:
        for name, named in asked.items():
            ending = named.ending
            if ending is not None and ending.is_sure(self._by):
                if name in there:
                    self._add(f"lost {kind}", f"{name} was deleted, and is there")
            elif named.is_sure(self._by) and ending is None:
                self._counts[f"{kind}s"] += 1
                if name not in there:
                    self._add(f"lost {kind}", f"{name} is not there")

    async def _is_topic_open(self) -> bool:
        """Note partitions that cannot be opened; tell whether the rest can be judged."""
        broken = set()
        for topic in await self._client.topics.list():
            for partition in topic.partitions:
                if partition.problem:
                    where = f"{topic.topic}/{partition.partition}"
                    self._add("broken topic", f"{where}: {partition.problem}")
                    broken.add(topic.topic)
        return not broken & {TOPIC, f"{TOPIC}.dlq"}

    # Messages

    async def _logs(self) -> list[LogView]:
        history = History((GROUP,))
        reader = LogVerdict(history, retries_max=0)
        broker = self._client._connection.broker
        logs = [await reader._read(broker, TOPIC, number) for number in range(PARTITIONS)]
        for kind, examples in history.findings.examples.items():
            for example in examples:
                self._add(kind, example)
        return logs

    def _check_messages(self, logs: list[LogView]) -> None:
        for sent in self._journal.sent:
            if not sent.is_sure(self._by):
                continue
            assert sent.receipt is not None
            partition, offset = sent.receipt.partition, sent.receipt.offset
            self._counts["messages"] += 1
            if logs[partition].ids.get(offset) != sent.message_id:
                self._add("lost publish", f"{sent.message_id!r} is not at {partition}/{offset}")
            elif sent.dues:
                self._check_pending(sent, logs[partition], offset)

    def _check_pending(self, sent: Sent, log: LogView, offset: int) -> None:
        is_cancelled = offset in log.cancelled
        if sent.cancel is not None and sent.cancel.is_sure(self._by):
            self._counts["cancels"] += 1
            if not is_cancelled:
                self._add("lost cancel", f"{sent.message_id!r} is pending")
            return
        if is_cancelled:
            if sent.cancel is None:
                self._add("lost schedule", f"{sent.message_id!r} was cancelled by nobody")
            return
        sure = [n for n, (fact, _) in enumerate(sent.dues) if fact.is_sure(self._by)]
        allowed = {round(at.timestamp() * 1_000) for _, at in sent.dues[sure[-1] :]}
        self._counts["pending"] += 1
        if log.scheduled.get(offset) not in allowed or offset in log.fired:
            found = log.scheduled.get(offset)
            self._add("lost schedule", f"{sent.message_id!r}: due {found}, not one of {allowed}")

    # The group

    async def _check_progress(self, committed: dict[int, int]) -> None:
        try:
            group = await self._client.groups.get(TOPIC, GROUP)
        except NotFound:
            if any(committed.values()):
                self._add("lost progress", f"there is no group; it was at {committed}")
            return
        for place in group.partitions:
            self._counts["progress"] += committed.get(place.partition, 0)
            if place.committed < committed.get(place.partition, 0):
                was = committed[place.partition]
                self._add("lost progress", f"{place.partition}: {place.committed}, was {was}")

    async def _check_deliveries(self) -> None:
        """Let the group finish, and see that nothing was passed over."""
        done = set(self._journal.acked)
        async with asyncio.timeout(QUIET_S_MAX), asyncio.TaskGroup() as tasks:
            consuming = tasks.create_task(self._consume(done))
            while await self._lag():  # noqa: ASYNC110  nobody tells us
                await asyncio.sleep(0.05)
            consuming.cancel()
        logs = await self._logs()
        dead = await self._dead_letters(logs)
        for partition, log in enumerate(logs):
            for offset, message_id in log.deliverable.items():
                if (partition, offset) not in done | dead:
                    self._add("lost delivery", f"{message_id!r} at {partition}/{offset}")

    async def _consume(self, done: set[tuple[int, int]]) -> None:
        async with self._client.subscribe(TOPIC, group=GROUP) as messages:
            async for message in messages:
                done.add((message.partition, message.offset))
                message.ack()

    async def _lag(self) -> int:
        try:
            return (await self._client.groups.get(TOPIC, GROUP)).lag
        except NotFound:
            return 1  # its member is on the way

    async def _dead_letters(self, logs: list[LogView]) -> set[tuple[int, int]]:
        """Return what the dead letter topic has; each must be open, or redriven."""
        topic = f"{TOPIC}.dlq"
        if topic not in {each.topic for each in await self._client.topics.list()}:
            return set()
        listed = [each async for each in self._client.dead_letters.list(TOPIC)]
        still_open = {(each.position.partition, each.position.offset) for each in listed}
        ids = {message_id for log in logs for message_id in log.ids.values()}
        found = set()
        for number in range(PARTITIONS):
            async for frame in frames_of(self._client._connection.broker, topic, number):
                if not frame.header.is_deliverable:
                    continue
                rows = decode(frame.header, frame.body)
                offsets = row_offsets(frame.header, rows).tolist()
                for offset, row in zip(offsets, rows.to_pylist(), strict=True):
                    facts = {name: bytes(value).decode() for name, value in row["headers"]}
                    found.add((int(facts["wc-dlq-partition"]), int(facts["wc-dlq-offset"])))
                    again = short_id(row["message_id"] + b"#%d" % offset)
                    self._counts["dead letters"] += 1
                    if (number, offset) not in still_open and again not in ids:
                        self._add("lost redrive", f"{row['message_id']!r} at {number}/{offset}")
        return found

    # The stream

    async def _check_stream(self) -> None:
        found: dict[int, object] = {}
        token = "earliest"
        while page := await self._client.streams.receive(
            STREAM, timeout="1ms", resume=token, limit=PAGE
        ):
            found |= {each.position: each.value for each in page}
            token = page[-1].resume_token
        for message, (fact, position) in self._journal.stored.items():
            if fact.is_sure(self._by):
                self._counts["tokens"] += 1
                if found.get(position) != message:
                    self._add("lost token", f"{message} is not at {position}")
