"""What a node lists, as tables: the messages that wait for their time, and dead letters.

Both change as they are read: each page is what was there at that moment, so such a table is no
snapshot, and a task that is tried again may find other rows. Pages are asked for one after the
other, and each becomes one record batch. Only these tasks need gRPC: those that read the log do
without.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

import grpc
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from waterclock.client.channel import blocking_channel_of
from waterclock.client.errors import error_of
from waterclock.client.retry import is_transient
from waterclock.client.target import Target
from waterclock.security.credential import Credential
from waterclock.spark.options import ReadOptions
from waterclock.spark.read.http_node import PATIENCE_S, PAUSE_S
from waterclock.spark.read.ranges import Extent, chosen
from waterclock.spark.schemas import TIMESTAMP
from waterclock.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    broker_pb2,
    scheduler_pb2,
    scheduler_pb2_grpc,
)

US_PER_MS = 1_000


class Listing(InputPartition):
    """What one task lists, and where."""

    def __init__(self, servers: list[str], partitions: tuple[int, ...]) -> None:
        super().__init__(partitions)
        self.servers = servers
        """The first is asked, and the next if it fails."""
        self.partitions = partitions
        """Empty: all."""


class ListingReader(DataSourceReader):
    """Reads the views `scheduled` and `dlq`."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return a task for each partition that has messages waiting; one for all dead letters."""
        from waterclock.spark.read.planning import first_answer

        options = self._options
        servers, topic = first_answer(
            options.servers,
            options.credential,
            lambda client: client.topics.get(options.topic),
        )
        extents = {each.partition: Extent(0, each.scheduled) for each in topic.partitions}
        wanted = chosen(extents, options.partitions)
        if options.view == "dlq":
            return [Listing(servers, tuple(wanted) if options.partitions else ())]
        return [Listing(servers, (each,)) for each, waiting in wanted.items() if waiting.end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what the node lists, page by page."""
        if not isinstance(partition, Listing):
            return
        options = self._options
        pages = scheduled_pages if options.view == "scheduled" else dead_letter_pages
        for rows in pages(partition.servers, partition.partitions, options):
            if rows:
                yield self._batch(rows)

    def _batch(self, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        columns = [_column(field, [row[field.name] for row in rows]) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _column(field: pa.Field, cells: list[Any]) -> pa.Array:
    if field.type == TIMESTAMP:
        times = [None if ms is None else ms * US_PER_MS for ms in cells]
        return pa.array(times, pa.int64()).view(TIMESTAMP)
    return pa.array(cells, field.type)


PAGE_ROWS = 1_000
CALL_S_MAX = 60.0

Rows = list[dict[str, Any]]


def scheduled_pages(
    servers: list[str], partitions: Sequence[int], options: ReadOptions
) -> Iterator[Rows]:
    """Yield the messages that wait, by due time; ranges of time are of that."""
    start, end = options.starting, options.ending
    request = scheduler_pb2.ListScheduledRequest(
        topic=options.topic,
        filter=scheduler_pb2.Filter(
            key_prefix=options.key_prefix,
            start_ms=start if isinstance(start, int) else 0,
            end_ms=end if isinstance(end, int) else 0,
            partitions=partitions,
        ),
        limit=PAGE_ROWS,
        with_values=True,
    )
    if end == 0:  # which would be no end
        return
    list_scheduled = scheduler_pb2_grpc.SchedulerStub, "ListScheduled"
    for answer in _answers(list_scheduled, request, servers, options.credential):
        yield [
            {
                "partition": listed.partition,
                "offset": listed.offset,
                "due_time": listed.message.due_ms,
                "append_time": listed.appended_ms or None,
                **_message(listed.message),
            }
            for listed in answer.scheduled
        ]


def dead_letter_pages(
    servers: list[str], partitions: Sequence[int], options: ReadOptions
) -> Iterator[Rows]:
    """Yield the dead letters of a topic; ranges of time are of when they died."""
    request = admin_pb2.ListDeadLettersRequest(topic=options.topic, limit=PAGE_ROWS)
    list_dead_letters = admin_pb2_grpc.AdminStub, "ListDeadLetters"
    for answer in _answers(list_dead_letters, request, servers, options.credential):
        yield [
            {
                "partition": listed.position.partition,
                "offset": listed.position.offset,
                "group": listed.group,
                "reason": listed.reason,
                "attempts": listed.attempts,
                "origin_partition": listed.origin.partition,
                "origin_offset": listed.origin.offset,
                "dead_lettered_time": listed.dead_lettered_ms,
                **_message(listed.message),
            }
            for listed in answer.dead_letters
            if _is_wanted(listed, partitions, options)
        ]


def _is_wanted(
    listed: admin_pb2.DeadLetter, partitions: Sequence[int], options: ReadOptions
) -> bool:
    start, end, prefix = options.starting, options.ending, options.key_prefix
    return not (
        (partitions and listed.position.partition not in partitions)
        or (isinstance(start, int) and listed.dead_lettered_ms < start)
        or (isinstance(end, int) and listed.dead_lettered_ms >= end)
        or (prefix is not None and not listed.message.key.startswith(prefix))
    )


def _message(message: broker_pb2.Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "key": message.key if message.HasField("key") else None,
        "value": message.value if message.HasField("value") else None,
        "headers": sorted(message.headers.items()) or None,
    }


def _answers(
    method: tuple[Any, str],
    request: Any,  # noqa: ANN401  of two services
    servers: list[str],
    credential: Credential | None,
) -> Iterator[Any]:
    """Yield page after page; the one that a node fails at is asked of the next."""
    stub, name = method
    gives_up_s: float | None = None
    for number in count():
        server = servers[number % len(servers)]
        with _channel(server, credential) as channel:
            ask = getattr(stub(channel), name)
            try:
                while True:
                    answer = ask(request, timeout=CALL_S_MAX, wait_for_ready=len(servers) == 1)
                    gives_up_s = None
                    yield answer
                    if not answer.next_page:
                        return
                    request.page = answer.next_page
            except grpc.RpcError as rpc:
                # One of a call that waits tells the same as one of a call that does not.
                error = error_of(cast(grpc.aio.AioRpcError, rpc), server)
                now_s = time.monotonic()
                gives_up_s = now_s + PATIENCE_S if gives_up_s is None else gives_up_s
                if len(servers) == 1 or not is_transient(error) or now_s > gives_up_s:
                    raise error from rpc
        time.sleep(PAUSE_S)


@contextmanager
def _channel(server: str, credential: Credential | None) -> Iterator[grpc.Channel]:
    # Values come with the page: as much as the node lets it hold.
    options = [("grpc.max_receive_message_length", -1)]
    with blocking_channel_of(Target(server, credential), options) as channel:
        yield channel
