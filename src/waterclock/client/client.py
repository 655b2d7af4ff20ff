"""The client: one connection and all that can be done with it.

    async with waterclock.connect() as client:
        await client.publish("orders", b"...", at="+5s")

Leaving the block sends what waits, gives back what subscriptions hold, and hangs up.
"""

import asyncio
import contextlib
import weakref
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import overload

import pyarrow as pa

from waterclock.client.admin import (
    DeadLetters,
    Groups,
    JobRuns,
    Replays,
    Snapshots,
    StartAt,
    Topics,
    start_of,
)
from waterclock.client.cluster import Cluster
from waterclock.client.connection import Connection
from waterclock.client.consumer.fetch import Fetched
from waterclock.client.consumer.replay import Replay
from waterclock.client.consumer.search import FoundMessages, found_messages
from waterclock.client.consumer.subscription import Subscription, credit_of
from waterclock.client.due import Cron, Every, Rule, When, due_of, instant_ms, past_ms
from waterclock.client.encryption import Keys
from waterclock.client.producer.arrow import ArrowReceipt
from waterclock.client.producer.checks import HeaderPairs, as_bytes, checked_headers
from waterclock.client.producer.producer import Destination, Producer
from waterclock.client.producer.tracing import TracedProducer
from waterclock.client.results import History, Receipt
from waterclock.client.schedule import SchedulerCalls, recurrence_name
from waterclock.client.settings import ClientSettings
from waterclock.client.streams.calls import StreamCalls
from waterclock.client.streams.streams import Streams
from waterclock.client.target import Given
from waterclock.client.write_registry import WriteRegistry
from waterclock.log.expiry import HEADER as EXPIRES_HEADER
from waterclock.model.errors import BadInput
from waterclock.model.message import Acks, Message
from waterclock.model.protobuf import from_proto
from waterclock.model.views import NodeInfo, Recurrence
from waterclock.security.credential import Credential
from waterclock.v1 import admin_pb2, broker_pb2


def connect(
    address: Given | None = None,
    settings: ClientSettings | None = None,
    *,
    credential: Credential | str | None = None,
    http_address: str | None = None,
    keys: Keys | str | Path | None = None,
) -> "Client":
    """Return a client for the node at `host:port`; use it with `async with`.

    Of a cluster, several nodes may be named: "host1:9000,host2:9000", or a list. One of them is
    asked, which names the others; if it fails, the client goes on at another.

    A secured node wants a `credential`, as `waterclock secure add` prints it, or `@file`; it may be
    given in place of the address, or in WATERCLOCK_CREDENTIAL, and says where the node is. Without
    one, the address is that in WATERCLOCK_ADDRESS, or else localhost:9000. Streams go over HTTP, to
    `http_address` or where the node says. With `keys`, or a file of them, values are encrypted and
    decrypted here.
    """
    return Client(address, settings, credential=credential, http_address=http_address, keys=keys)


class Client(SchedulerCalls):
    """A connection to a node; `connect` makes one, `async with` opens and closes it."""

    def __init__(
        self,
        address: Given | None = None,
        settings: ClientSettings | None = None,
        *,
        credential: Credential | str | None = None,
        http_address: str | None = None,
        keys: Keys | str | Path | None = None,
    ) -> None:
        self._connection: Connection = Connection(
            address, settings or ClientSettings(), credential=credential, keys=keys
        )
        self._following: asyncio.Task[None] | None = None
        # A running one is held by its task; one that is over need not be left.
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self.topics = Topics(self._connection)
        self.groups = Groups(self._connection)
        self.dead_letters = DeadLetters(self._connection)
        self.replays = Replays(self._connection)
        self.write_registry = WriteRegistry(self._connection)
        self.snapshots = Snapshots(self._connection)
        self.job_runs = JobRuns(self._connection)
        calls = StreamCalls(self._connection, http_address)
        self.streams = Streams(calls)
        self.cluster = Cluster(calls)

    def __repr__(self) -> str:
        state = "" if self._connection.is_open else ", not open"
        return f"<Client of {self._connection.address}{state}>"

    async def __aenter__(self) -> "Client":
        connection = self._connection
        found = await connection.open()
        node = from_proto(found, NodeInfo)
        self.streams.meet(node)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        connection.link_in(self._tasks, found)
        kind = Producer if connection.tracer is None else TracedProducer
        self._producer = kind(connection, node, self._tasks)
        if node.nodes or not connection.nodes.is_alone:
            self._following = self._tasks.create_task(connection.follow(self.streams.meet))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._connection.settings.close_timeout_ms / 1_000):
                    for subscription in [*self._subscriptions]:
                        await subscription.leave()
                    await self._producer.close()
        finally:
            if self._following is not None:
                self._following.cancel()
            self._connection.close_links()
            self._producer.abandon()
            for subscription in self._subscriptions:
                subscription.abandon()
            # The body's error is not the tasks': they are ended as if there were none, so that it
            # comes out as it went in.
            await self._tasks.__aexit__(None, None, None)
            self.streams.close()
            await self._connection.close()

    @overload
    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        at: Cron | Every,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        expires: When | None = None,
    ) -> Recurrence: ...

    @overload
    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        at: When | None = None,
        message_id: bytes | None = None,
        expires: When | None = None,
        partition: int | None = None,
        allow_duplicate: bool = False,
        acks: Acks | None = None,
    ) -> Receipt: ...

    @overload
    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        at: When | Cron | Every | None = None,
        message_id: bytes | None = None,
        expires: When | None = None,
        partition: int | None = None,
        allow_duplicate: bool = False,
        acks: Acks | None = None,
    ) -> Receipt | Recurrence: ...

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        at: When | Cron | Every | None = None,
        message_id: bytes | None = None,
        expires: When | None = None,
        partition: int | None = None,
        allow_duplicate: bool = False,
        acks: Acks | None = None,
    ) -> Receipt | Recurrence:
        """Publish a message, now or for later; it is durable on return.

        Calls that run at the same time share batches. `at` is a time, a delay such as "+5s", or a
        rule (see `due.py`): then a recurrence is made and returned, also where the rule is a text,
        which types cannot tell. A text is in UTC unless it names a zone.
        `expires` is the time from which on it is of no use, a delay counting from when it is due.
        Publishing a `message_id` again changes nothing, which makes it safe to try again after an
        error. `acks` says when it counts as durable in a cluster, else `ClientSettings.acks` does.
        """
        self._connection.check_open()
        pairs = None if headers is None else checked_headers(headers)
        due_ms = None
        if at is not None:
            due = due_of(at, self._connection.now_ms())
            if isinstance(due, Cron | Every):
                if allow_duplicate or (message_id, partition, acks) != (None, None, None):
                    raise BadInput("at: what repeats has no message_id, partition or acks")
                return await self._repeat(topic, value, due, key, headers, expires)
            due_ms = due
        if expires is not None:
            pairs = self._expiring(pairs or [], expires, due_ms)
        if message_id is not None:
            message_id = as_bytes("message_id", message_id)
            if not message_id:
                raise BadInput("message_id must not be empty")
        return await self._producer.publish(
            self._destination(topic, partition, allow_duplicate, acks),
            value,
            key=key,
            headers=pairs,
            due_ms=due_ms,
            message_id=message_id,
        )

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[Message],
        *,
        partition: int | None = None,
        allow_duplicate: bool = False,
        acks: Acks | None = None,
    ) -> list[Receipt]:
        """Publish messages in order, in as few batches as they fit; all are durable on return.

        If one is wrong by itself, none is published. If the node refuses some, SomeFailed has a
        result for each.
        """
        self._connection.check_open()
        return await self._producer.publish_many(
            self._destination(topic, partition, allow_duplicate, acks), list(messages)
        )

    async def publish_arrow(
        self,
        topic: str,
        batch: pa.RecordBatch,
        *,
        partition: int | None = None,
        allow_duplicate: bool = False,
        acks: Acks | None = None,
    ) -> ArrowReceipt:
        """Publish an Arrow record batch: a column `value`, and perhaps `key`, `headers`, `due_ms`
        and `message_id`."""
        self._connection.check_open()
        return await self._producer.publish_arrow(
            self._destination(topic, partition, allow_duplicate, acks), batch
        )

    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        member: str = "",
        start: StartAt = "earliest",
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        keep_alive: bool = False,
    ) -> Subscription:
        """Return a subscription: iterate over it with `async for`, best inside `async with`.

        `start` is where a group that is new begins. `prefetch` and `prefetch_bytes` are what this
        member holds at a time: more hides more of the round trip, less leaves more to others.
        `keep_alive` extends the leases of messages the program works on, however long it takes.
        """
        self._connection.check_open()
        where, start_ms = start_of(start, self._connection.now_ms())
        opening = broker_pb2.SubscribeRequest(
            open=broker_pb2.SubscribeRequest.Open(
                topic=topic,
                group=group,
                member=member,
                format=broker_pb2.FORMAT_ARROW,
                start=where,
                start_ms=start_ms,
            ),
            credit=credit_of(prefetch, prefetch_bytes),
        )
        subscription = Subscription(
            self._connection,
            self._tasks,
            opening,
            keep_alive=keep_alive,
        )
        self._subscriptions.add(subscription)
        return subscription

    def replay(
        self,
        topic: str,
        *,
        name: str = "",
        since: When | None = None,
        until: When | None = None,
        by_due: bool = False,
        offset: int | None = None,
        count: int = 0,
        partitions: Iterable[int] = (),
        checkpoint_every: int = 0,
        compacted: bool = False,
    ) -> Replay:
        """Return an async iterator over a stretch of the past: of time (delays count backwards) or
        of offsets; everything there is now, if neither is given.

        With a name it can be broken off and goes on there: what the loop has gone past is done.
        `compacted` begins with the newest snapshot: the last message of each key, then the rest.
        """
        self._connection.check_open()
        begin = broker_pb2.ReplayRequest.Begin(
            topic=topic,
            name=name,
            partitions=partitions,
            format=broker_pb2.FORMAT_ARROW,
            checkpoint_every=checkpoint_every,
            compacted=compacted,
        )
        now_ms = self._connection.now_ms()
        if offset is not None:
            if since is not None or until is not None:
                raise BadInput("replay: give either times or offsets")
            begin.offsets.start, begin.offsets.count = offset, count
        elif since is not None or until is not None:
            begin.times.start_ms = 0 if since is None else past_ms(since, now_ms, field="since")
            begin.times.end_ms = 0 if until is None else past_ms(until, now_ms, field="until")
            begin.times.by_due = by_due
        return Replay(self._connection, begin)

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        end_offset: int | None = None,
        bytes_max: int = 0,
        wait_ms: int = 0,
        deliverable_only: bool = True,
    ) -> Fetched:
        """Read raw frames from an offset on, without a group; `.table()` makes them Arrow."""
        request = broker_pb2.FetchRequest(
            topic=topic,
            partition=partition,
            offset=offset,
            end_offset=end_offset,
            bytes_max=bytes_max,
            wait_ms=wait_ms,
            deliverable_only=deliverable_only,
        )
        connection = self._connection
        connection.want_link(connection.native)
        answer = await connection.call(connection.broker.Fetch, request, wait_ms=wait_ms)
        return Fetched(answer.frames, answer.next_offset, answer.start_offset, answer.end_offset)

    async def find_messages(
        self,
        topic: str,
        partition: int,
        key: bytes,
        *,
        offset: int = 0,
        end_offset: int = 0,
        count: int = 0,
    ) -> FoundMessages:
        """Return the messages of a key in a partition, from an offset on, or the first of them.

        There is no index of keys: one call looks at 100,000 messages or 64 MiB, and its answer says
        where another goes on.
        """
        request = broker_pb2.FindMessagesRequest(
            topic=topic,
            partition=partition,
            key=as_bytes("key", key),
            offset=offset,
            end_offset=end_offset,
            count=count,
            format=broker_pb2.FORMAT_ARROW,
        )
        return await found_messages(self._connection, request)

    async def node(self) -> NodeInfo:
        """Return what the node says of itself."""
        request = admin_pb2.GetNodeRequest()
        response = await self._connection.call(self._connection.admin.GetNode, request)
        return from_proto(response, NodeInfo)

    async def history(self, topic: str = "", *, is_day: bool = False, node: str = "") -> History:
        """Return what the nodes together, or one of them, did over the last hour, by 5 s, or over
        the last day, by minutes; of a topic, if it was among the busiest."""
        wanted = "day" if is_day else "hour"
        request = admin_pb2.GetHistoryRequest(range=wanted, topic=topic, node=node)
        found = await self._connection.call(self._connection.admin.GetHistory, request)
        series = {
            name: [None if value != value else value for value in each.values]
            for name, each in found.series.items()
        }
        return History(found.step_ms, found.end_ms, series, list(found.unreachable))

    def _destination(
        self, topic: str, partition: int | None, allow_duplicate: bool, acks: Acks | None
    ) -> Destination:
        settings = self._connection.settings
        return topic, partition, allow_duplicate, settings.acks if acks is None else acks

    def _expiring(self, pairs: HeaderPairs, expires: When, due_ms: int | None) -> HeaderPairs:
        now_ms = self._connection.now_ms()
        until_ms = instant_ms(expires, max(now_ms, due_ms or 0), field="expires")
        return [*pairs, (EXPIRES_HEADER, b"%d" % until_ms)]

    async def _repeat(
        self,
        topic: str,
        value: bytes | None,
        rule: Rule,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        expires: When | None,
    ) -> Recurrence:
        is_text = isinstance(expires, str) and not expires.startswith("+")
        if is_text or isinstance(expires, datetime):
            raise BadInput("expires: each occurrence expires after a delay, such as '+1h'")
        return await self.repeat(
            recurrence_name(topic, rule, value, key, self._connection.keys),
            topic,
            value,
            cron=rule if isinstance(rule, Cron) else None,
            every=rule if isinstance(rule, Every) else None,
            key=key,
            headers=headers,
            expires_after=expires,
        )
