"""Replay over real sockets, against a real node."""

from contextlib import suppress

import pytest
from grpc import StatusCode
from grpc.aio import EOF, AioRpcError

from tests.server.served import running_server
from waterclock.log.schema import MESSAGES, _read
from waterclock.v1 import admin_pb2 as admin
from waterclock.v1 import broker_pb2 as pb


class Reader:
    """One reading of a replay."""

    def __init__(self, it, **begin) -> None:
        self.call = it.broker.Replay()
        self._begin = pb.ReplayRequest.Begin(**begin)

    async def begin(self) -> "Reader":
        await self.call.write(pb.ReplayRequest(begin=self._begin))
        return self

    async def done(self, partition: int, offset: int) -> None:
        position = pb.Position(partition=partition, offset=offset)
        await self.call.write(pb.ReplayRequest(done=[position]))

    async def next(self) -> pb.ReplayResponse:
        event = await self.call.read()
        assert isinstance(event, pb.ReplayResponse)
        return event

    async def values(self) -> list[bytes]:
        """Return the values of all batches up to `finished`."""
        values: list[bytes] = []
        while (event := await self.next()).HasField("batch"):
            values += values_of(event.batch)
        assert event.finished.messages == len(values)
        return values

    async def ended(self):
        with suppress(AioRpcError):
            while await self.call.read() is not EOF:
                pass
        return await self.call.code(), await self.call.details()


def values_of(batch: pb.ReplayResponse.Batch) -> list[bytes]:
    if batch.messages.rows:
        return [message.value for message in batch.messages.rows]
    rows = _read(batch.messages.arrow, MESSAGES)
    return list(rows.column("value").to_pylist())


async def published(it, count: int) -> list[bytes]:
    values = [b"%d" % i for i in range(count)]
    for value in values:
        await it.publish(value)
    return values


@pytest.mark.parametrize("format_", [pb.FORMAT_ARROW, pb.FORMAT_MESSAGES])
async def test_everything_there_is_comes_once_in_order(tmp_path, format_):
    async with running_server(tmp_path) as it:
        values = await published(it, 20)
        reader = await Reader(it, topic="orders", format=format_).begin()

        assert await reader.values() == values
        assert await reader.ended() == (StatusCode.OK, "")


async def test_a_stretch_is_named_by_offsets_or_by_time(tmp_path):
    async with running_server(tmp_path) as it:
        await published(it, 20)
        offsets = pb.ReplayRequest.OffsetRange(start=5, count=3)
        some = await Reader(it, topic="orders", offsets=offsets).begin()
        times = pb.ReplayRequest.TimeRange(start_ms=1, end_ms=2)
        none = await Reader(it, topic="orders", times=times).begin()

        assert await some.values() == [b"5", b"6", b"7"]
        assert await none.values() == []


async def test_a_named_replay_goes_on_behind_what_was_reported(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"0", b"1", b"2")
        await it.publish(b"3")
        offsets = pb.ReplayRequest.OffsetRange(start=0)
        first = await Reader(it, topic="orders", name="audit", offsets=offsets).begin()
        batch = (await first.next()).batch
        await first.done(0, 2)
        await first.call.done_writing()
        await first.ended()
        infos = (await it.admin.ListReplays(admin.ListReplaysRequest())).replays
        second = await Reader(it, name="audit").begin()

        assert batch.next_offset in (3, 4)
        assert [(info.name, info.topic) for info in infos] == [("audit", "orders")]
        assert list(infos[0].done) == [pb.Position(partition=0, offset=2)]
        assert list(infos[0].ends) == [pb.Position(partition=0, offset=4)]
        assert await second.values() == [b"2", b"3"]


async def test_the_last_reports_are_heard_after_the_end(tmp_path):
    async with running_server(tmp_path) as it:
        values = await published(it, 4)
        reader = await Reader(it, topic="orders", name="audit").begin()
        assert await reader.values() == values
        await reader.done(0, 4)
        await reader.call.done_writing()

        assert await reader.ended() == (StatusCode.OK, "")
        again = await Reader(it, name="audit").begin()
        assert await again.values() == []
        deleted = await it.admin.DeleteReplay(admin.DeleteReplayRequest(name="audit"))
        gone = await it.admin.DeleteReplay(admin.DeleteReplayRequest(name="audit"))
        assert (deleted.existed, gone.existed) == (True, False)


async def test_who_begins_again_tells_what_is_done_in_the_same_request(tmp_path):
    async with running_server(tmp_path) as it:
        values = await published(it, 4)
        reader = await Reader(it, topic="orders", name="audit").begin()
        assert await reader.values() == values
        reader.call.cancel()

        call = it.broker.Replay()
        begin = pb.ReplayRequest.Begin(name="audit")
        await call.write(pb.ReplayRequest(begin=begin, done=[pb.Position(offset=4)]))
        assert (await call.read()).finished.messages == 0
        infos = (await it.admin.ListReplays(admin.ListReplaysRequest())).replays
        await call.done_writing()
        assert await call.read() is EOF

        assert list(infos[0].done) == list(infos[0].ends)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (pb.ReplayRequest(), StatusCode.INVALID_ARGUMENT),
        (pb.ReplayRequest(begin=pb.ReplayRequest.Begin()), StatusCode.NOT_FOUND),
        (pb.ReplayRequest(begin=pb.ReplayRequest.Begin(topic="no")), StatusCode.NOT_FOUND),
        (pb.ReplayRequest(begin=pb.ReplayRequest.Begin(name="no")), StatusCode.NOT_FOUND),
        (
            pb.ReplayRequest(begin=pb.ReplayRequest.Begin(topic="orders", name="a b")),
            StatusCode.INVALID_ARGUMENT,
        ),
        (
            pb.ReplayRequest(begin=pb.ReplayRequest.Begin(topic="orders", partitions=[4])),
            StatusCode.NOT_FOUND,
        ),
        (
            pb.ReplayRequest(
                begin=pb.ReplayRequest.Begin(
                    topic="orders", offsets=pb.ReplayRequest.OffsetRange(start=9)
                )
            ),
            StatusCode.OUT_OF_RANGE,
        ),
        (
            pb.ReplayRequest(
                begin=pb.ReplayRequest.Begin(
                    topic="orders",
                    offsets=pb.ReplayRequest.OffsetRange(start=0),
                    times=pb.ReplayRequest.TimeRange(start_ms=1),
                )
            ),
            StatusCode.INVALID_ARGUMENT,
        ),
        (
            pb.ReplayRequest(
                begin=pb.ReplayRequest.Begin(
                    topic="orders", times=pb.ReplayRequest.TimeRange(start_ms=-1)
                )
            ),
            StatusCode.INVALID_ARGUMENT,
        ),
        (
            pb.ReplayRequest(begin=pb.ReplayRequest.Begin(topic="orders", checkpoint_every=-1)),
            StatusCode.INVALID_ARGUMENT,
        ),
        (
            pb.ReplayRequest(
                begin=pb.ReplayRequest.Begin(topic="orders"), done=[pb.Position(offset=5)]
            ),
            StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
async def test_a_bad_beginning_is_refused(tmp_path, first, code):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        reader = Reader(it)
        await reader.call.write(first)
        got, details = await reader.ended()

        assert got == code, details


async def test_a_second_beginning_is_refused(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        reader = await Reader(it, topic="orders", name="audit").begin()
        await reader.values()
        await reader.begin()

        assert await reader.ended() == (
            StatusCode.INVALID_ARGUMENT,
            "begin: only the first request may have it",
        )
