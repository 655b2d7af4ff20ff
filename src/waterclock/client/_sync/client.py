"""The client for programs without an event loop: the same names, and calls that wait.

    with waterclock.connect_blocking() as client:
        client.publish("orders", b"...", at="+5s")
        with client.subscribe("orders", group="billing") as messages:
            for message in messages:
                message.ack()

It is safe to use from several threads, and their publishes share batches. A batch of messages is
handed over at a time, so iterating costs no hand-over for each. Heartbeats go on however long a
message is worked on.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, overload

import pyarrow as pa

from waterclock.client._sync.admin import DeadLetters, Groups, Replays, Topics, each
from waterclock.client._sync.schedule import BlockingSchedulerCalls
from waterclock.client._sync.snapshots import Snapshots
from waterclock.client._sync.streams import Streams
from waterclock.client._sync.write_registry import WriteRegistry
from waterclock.client.admin import StartAt
from waterclock.client.client import Client
from waterclock.client.consumer.delivery import ReceivedBatch, ReceivedMessage
from waterclock.client.consumer.fetch import Fetched
from waterclock.client.consumer.rows import LoggedMessage
from waterclock.client.consumer.subscription import Subscription
from waterclock.client.due import Cron, Every, When
from waterclock.client.loop_thread import LoopThread
from waterclock.client.producer.arrow import ArrowReceipt
from waterclock.client.results import NodeInfo, Receipt, Recurrence
from waterclock.client.settings import ClientSettings
from waterclock.model.message import Message


def connect_blocking(
    address: str | None = None,
    settings: ClientSettings | None = None,
    *,
    http_address: str | None = None,
) -> "BlockingClient":
    """Return a blocking client for the node at `host:port`; use it with `with`.

    Without an address it takes the one in WATERCLOCK_ADDRESS, or else localhost:9000. Streams go
    over HTTP, to `http_address` or where the node says.
    """
    return BlockingClient(address, settings, http_address=http_address)


class BlockingClient(BlockingSchedulerCalls):
    """A connection to a node; `connect_blocking` makes one, `with` opens and closes it."""

    _client: Client

    def __init__(
        self,
        address: str | None = None,
        settings: ClientSettings | None = None,
        *,
        http_address: str | None = None,
    ) -> None:
        client = self._client = Client(address, settings, http_address=http_address)
        self._background = LoopThread(client)
        self.topics = Topics(self._background, client.topics)
        self.groups = Groups(self._background, client.groups)
        self.dead_letters = DeadLetters(self._background, client.dead_letters)
        self.replays = Replays(self._background, client.replays)
        self.write_registry = WriteRegistry(self._background, client.write_registry)
        self.snapshots = Snapshots(self._background, client.snapshots)
        self.streams = Streams(self._background, client.streams)

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._client)[1:]}"

    def __enter__(self) -> "BlockingClient":
        self._background.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send what waits and hang up. Again is harmless."""
        self._background.stop()

    @overload
    def publish(
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
    def publish(
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
    ) -> Receipt: ...

    def publish(
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
    ) -> Receipt:
        """Publish a message, now or for later; it is durable on return. See `Client.publish`."""
        return self._background.run(
            self._client.publish(
                topic,
                value,
                key=key,
                headers=headers,
                at=at,
                message_id=message_id,
                expires=expires,
                partition=partition,
                allow_duplicate=allow_duplicate,
            )
        )

    def publish_many(
        self,
        topic: str,
        messages: Iterable[Message],
        *,
        partition: int | None = None,
        allow_duplicate: bool = False,
    ) -> list[Receipt]:
        """Publish messages in order, in as few batches as they fit; all are durable on return."""
        return self._background.run(
            self._client.publish_many(
                topic, messages, partition=partition, allow_duplicate=allow_duplicate
            )
        )

    def publish_arrow(
        self,
        topic: str,
        batch: pa.RecordBatch,
        *,
        partition: int | None = None,
        allow_duplicate: bool = False,
    ) -> ArrowReceipt:
        """Publish an Arrow record batch. See `Client.publish_arrow`."""
        return self._background.run(
            self._client.publish_arrow(
                topic, batch, partition=partition, allow_duplicate=allow_duplicate
            )
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
    ) -> "BlockingSubscription":
        """Return a subscription; iterate over it, best inside `with`. See `Client.subscribe`."""

        async def open_one() -> Subscription:
            subscription = self._client.subscribe(
                topic,
                group=group,
                member=member,
                start=start,
                prefetch=prefetch,
                prefetch_bytes=prefetch_bytes,
                keep_alive=keep_alive,
            )
            await subscription.__aenter__()
            return subscription

        return BlockingSubscription(self._background, open_one)

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
    ) -> Iterator[LoggedMessage]:
        """Yield a stretch of the past. See `Client.replay`."""
        replay = self._client.replay(
            topic,
            name=name,
            since=since,
            until=until,
            by_due=by_due,
            offset=offset,
            count=count,
            partitions=partitions,
            checkpoint_every=checkpoint_every,
            compacted=compacted,
        )
        for batch in each(self._background, replay.batches()):
            for row in range(batch.count):
                yield LoggedMessage(batch, row)

    def fetch(
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
        """Read raw frames from an offset on. See `Client.fetch`."""
        return self._background.run(
            self._client.fetch(
                topic,
                partition,
                offset,
                end_offset=end_offset,
                bytes_max=bytes_max,
                wait_ms=wait_ms,
                deliverable_only=deliverable_only,
            )
        )

    def node(self) -> NodeInfo:
        """Return what the node says of itself."""
        return self._background.run(self._client.node())


class BlockingSubscription:
    """Messages as they come. Iterating opens it; `with` also leaves in good order."""

    def __init__(
        self, background: LoopThread, open_one: Callable[[], Coroutine[Any, Any, Subscription]]
    ) -> None:
        self._background = background
        self._open_one = open_one
        self._opened: Subscription | None = None

    def __repr__(self) -> str:
        return f"<BlockingSubscription {self._opened or 'not open'}>"

    def __enter__(self) -> "BlockingSubscription":
        self._subscription()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Send the last answers, give back the rest, and end the iteration."""
        if self._opened is not None:
            self._background.run(self._opened.leave())

    @property
    def member(self) -> str:
        """The name of this member."""
        return self._subscription().member

    @property
    def partitions(self) -> list[int]:
        """The partitions this member has at the moment."""
        return self._subscription().partitions

    def __iter__(self) -> Iterator[ReceivedMessage]:
        subscription = self._subscription()
        while (delivery := self._background.run(subscription.next_delivery())) is not None:
            yield from delivery.messages()

    def batches(self) -> Iterator[ReceivedBatch]:
        """Yield what comes as Arrow batches, each to be acked as a whole."""
        subscription = self._subscription()
        while (delivery := self._background.run(subscription.next_delivery())) is not None:
            yield ReceivedBatch(delivery, delivery.take_rest())

    def _subscription(self) -> Subscription:
        if self._opened is None:
            self._opened = self._background.run(self._open_one())
        return self._opened
