"""The sinks on real servers: each message once, whichever way it comes."""

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.nodes import running
from tests.dispatch.redis_servers import single
from waterclock.client.client import connect
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.scripts import Stale
from waterclock.dispatch.sinks.redis import RedisSink, fence_of, raise_fences, stream_names
from waterclock.dispatch.sinks.sink import AWAY, KNOWN, LATE, STALE, WRITTEN, Writing
from waterclock.dispatch.sinks.waterclock import WaterclockSink
from waterclock.dispatch.worker.handlers import PermanentError


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def writing(
    sink: Any, numbers: Any, *, epoch: int = 1, births_ms: list[int] | None = None
) -> Writing:
    numbers = list(numbers)
    return Writing(
        epoch,
        [n.to_bytes(16, "big") for n in numbers],
        births_ms or [now_ms()] * len(numbers),
        [sink.prepare({"n": n}) for n in numbers],
    )


async def test_what_is_written_twice_is_known_the_second_time(server, name, look):
    redis = RedisClient([server.address])
    sink = RedisSink(redis, output=name)
    batch = writing(sink, range(10))
    assert await sink.write(batch) == [WRITTEN] * 10
    assert await sink.write(batch) == [KNOWN] * 10
    assert await sink.write(writing(sink, range(5, 15))) == [KNOWN] * 5 + [WRITTEN] * 5
    redis.close()
    assert [int(f[b"n"]) for _, f in look.xrange(name)] == list(range(15))


async def test_batches_over_several_streams_and_buckets_keep_their_statuses_in_order(
    server, name, look
):
    redis = RedisClient([server.address])
    sink = RedisSink(redis, output=name, streams=4, bucket_ms=1_000, window_ms=60_000)
    births_ms = [now_ms() - 5_000 * (n % 7) if n % 10 else 1_000 for n in range(100)]
    expected = [WRITTEN if n % 10 else LATE for n in range(100)]
    assert await sink.write(writing(sink, range(100), births_ms=births_ms)) == expected
    again = [KNOWN if n % 10 else LATE for n in range(100)]
    assert await sink.write(writing(sink, range(100), births_ms=births_ms)) == again
    redis.close()
    found = [int(f[b"n"]) for stream in stream_names(name, 4) for _, f in look.xrange(stream)]
    assert sorted(found) == [n for n in range(100) if n % 10]
    assert all(look.xlen(stream) for stream in stream_names(name, 4))


async def test_a_batch_larger_than_one_call_is_written_whole(server, name, look):
    redis = RedisClient([server.address])
    sink = RedisSink(redis, output=name)
    assert await sink.write(writing(sink, range(9_000))) == [WRITTEN] * 9_000
    redis.close()
    assert look.xlen(name) == 9_000


async def test_an_epoch_that_is_over_writes_nothing(server, name, look):
    redis = RedisClient([server.address])
    sink = RedisSink(redis, output=name, streams=2)
    fences = [fence_of(each, "waterclock") for each in stream_names(name, 2)]
    await raise_fences(redis, fences, 10)
    assert await sink.write(writing(sink, range(10), epoch=9)) == [STALE] * 10
    with pytest.raises(Stale):
        await raise_fences(redis, fences, 9)
    assert await sink.write(writing(sink, range(10), epoch=10)) == [WRITTEN] * 10
    redis.close()


async def test_a_server_that_is_away_is_a_status_and_no_error(tmp_path):
    with single(tmp_path) as server:
        redis = RedisClient([server.address])
        sink = RedisSink(redis, output="out")
        batch = writing(sink, range(3))
        assert await sink.write(batch) == [WRITTEN] * 3
        server.kill()
        assert await sink.write(writing(sink, range(6))) == [AWAY] * 6
        server.start()
        assert await sink.write(writing(sink, range(3, 6))) == [WRITTEN] * 3
        redis.close()


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
        | st.binary(max_size=5) | st.lists(st.integers(), max_size=3),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_any_mapping_becomes_words_redis_takes(value):
    args = RedisSink(None, output="x").prepare(value)  # type: ignore[arg-type]

    assert args[0] == len(args) - 1 == 2 * len(value)
    assert all(type(word) in (bytes, str, int) for word in args)


@pytest.mark.parametrize("value", [{}, 7, [1], {"a": object()}, {str(n): n for n in range(2_000)}])
def test_what_cannot_be_written_is_refused_for_good(value):
    with pytest.raises(PermanentError):
        RedisSink(None, output="x").prepare(value)  # type: ignore[arg-type]


def test_a_topic_stores_each_message_once_however_often_it_is_sent(tmp_path):
    async def story(address: str) -> list[bytes | None]:
        sink = await WaterclockSink.open(address, topic="processed")
        assert await sink.write(writing(sink, range(20))) == [WRITTEN] * 20
        assert await sink.write(writing(sink, range(10, 30))) == [WRITTEN] * 20
        old = writing(sink, [99, 30], births_ms=[1_000, now_ms()])
        assert await sink.write(old) == [LATE, WRITTEN]
        await sink.close()
        async with connect(address) as client:
            return [message.value async for message in client.replay("processed")]

    with running(tmp_path) as node:
        values = asyncio.run(story(node.address))

    assert len(values) == 31
    assert set(values) == {b'{"n": %d}' % n for n in range(31)}
