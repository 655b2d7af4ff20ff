"""The pages a node lists, one call each, as rows by column name."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import grpc

from waterclock.client.errors import error_of
from waterclock.spark.options import ReadOptions
from waterclock.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    broker_pb2,
    scheduler_pb2,
    scheduler_pb2_grpc,
)

PAGE_ROWS = 1_000
CALL_S_MAX = 60.0

Rows = list[dict[str, Any]]


def scheduled_pages(server: str, partitions: Sequence[int], options: ReadOptions) -> Iterator[Rows]:
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
    with _channel(server) as channel:
        ask = scheduler_pb2_grpc.SchedulerStub(channel).ListScheduled
        for answer in _answers(ask, request, server):
            yield [
                {
                    "partition": told.partition,
                    "offset": told.offset,
                    "due_time": told.message.due_ms,
                    **_message(told.message),
                }
                for told in answer.scheduled
            ]


def dead_letter_pages(
    server: str, partitions: Sequence[int], options: ReadOptions
) -> Iterator[Rows]:
    """Yield the dead letters of a topic; ranges of time are of when they died."""
    request = admin_pb2.ListDeadLettersRequest(topic=options.topic, limit=PAGE_ROWS)
    with _channel(server) as channel:
        ask = admin_pb2_grpc.AdminStub(channel).ListDeadLetters
        for answer in _answers(ask, request, server):
            yield [
                {
                    "partition": told.position.partition,
                    "offset": told.position.offset,
                    "group": told.group,
                    "reason": told.reason,
                    "attempts": told.attempts,
                    "origin_partition": told.origin.partition,
                    "origin_offset": told.origin.offset,
                    "dead_lettered_time": told.dead_lettered_ms,
                    **_message(told.message),
                }
                for told in answer.dead_letters
                if _is_wanted(told, partitions, options)
            ]


def _is_wanted(told: admin_pb2.DeadLetter, partitions: Sequence[int], options: ReadOptions) -> bool:
    start, end, prefix = options.starting, options.ending, options.key_prefix
    return not (
        (partitions and told.position.partition not in partitions)
        or (isinstance(start, int) and told.dead_lettered_ms < start)
        or (isinstance(end, int) and told.dead_lettered_ms >= end)
        or (prefix is not None and not told.message.key.startswith(prefix))
    )


def _message(message: broker_pb2.Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "key": message.key if message.HasField("key") else None,
        "value": message.value if message.HasField("value") else None,
        "headers": sorted(message.headers.items()) or None,
    }


@contextmanager
def _channel(server: str) -> Iterator[grpc.Channel]:
    # Values come with the page: as much as the node lets it hold.
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server, options=options) as channel:
        yield channel


def _answers(ask: Any, request: Any, server: str) -> Iterator[Any]:  # noqa: ANN401  of two services
    while True:
        try:
            answer = ask(request, timeout=CALL_S_MAX, wait_for_ready=True)
        except grpc.RpcError as error:
            # One of a call that waits tells the same as one of a call that does not.
            raise error_of(cast(grpc.aio.AioRpcError, error), server) from error
        yield answer
        if not answer.next_page:
            return
        request.page = answer.next_page
