"""Writes to Redis streams: one script call for a batch, which refuses old epochs and repeats.

Each stream has a fence and its *seen* sets beside it, in the same slot. A set holds the uuids
written of messages born in one bucket of time, and is dropped when the bucket is older than the
window; so a message that comes later than that cannot be judged any more, and is not written
(`LATE`). Memory: about 67 bytes for each message of the window.

With several streams a message goes to the one its uuid says, so repeats meet in the same stream. On
a cluster each is in a slot of its own, and so are spread over the masters.
"""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from waterclock.dispatch.core.identity import known_until_ms, shard_of
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.keys import beside
from waterclock.dispatch.redis.link import RedisAway, RedisRefused, Word
from waterclock.dispatch.redis.scripts import RAISE_FENCE, WRITE, Stale
from waterclock.dispatch.sinks.sink import AWAY, LATE, STALE, Writing
from waterclock.dispatch.worker.handlers import PermanentError

log = logging.getLogger(__name__)

CALL_MESSAGES_MAX = 1_000
"""Lua passes a batch as arguments of one call, of which it has about 8,000."""
CALL_BYTES_MAX = 4 << 20
"""A call holds up Redis as long as it runs, and must be sent and answered before we lose patience
with a silent server: one that is too large would be sent again for ever."""
WORDS_MAX = 2_000
_STATUS = {ord("0"): 0, ord("1"): 1, ord("2"): 2}


def stream_names(output: str, streams: int) -> list[str]:
    """Return the keys of the output's streams."""
    return [output] if streams == 1 else [f"{output}:{shard}" for shard in range(streams)]


def fence_of(key: str, owner: str) -> str:
    """Return the key of the fence that guards another, for one group: epochs of different groups
    have nothing to do with each other, and two groups may write to one stream."""
    return beside(key, f"fence:{owner}")


async def raise_fences(redis: RedisClient, fences: Sequence[str], epoch: int) -> None:
    """Let every one of these fences refuse lower epochs from now on. Raises `Stale` if one of them
    knows a higher one."""
    await asyncio.gather(*(RAISE_FENCE.answer(redis, [fence], epoch) for fence in fences))


class RedisSink:
    """Streams in one Redis or a cluster. See `sinks.Sink`."""

    def __init__(
        self,
        redis: RedisClient,
        *,
        output: str,
        prefix: str = "waterclock",
        streams: int = 1,
        bucket_ms: int = 60_000,
        window_ms: int = 300_000,
        length_max: int = 0,
        wait_replicas: int = 0,
        wait_ms: int = 1_000,
    ) -> None:
        self._redis = redis
        self._prefix = prefix
        self._streams = stream_names(output, streams)
        self._bucket_ms = bucket_ms
        self._window_ms = window_ms
        self._length_max = length_max
        self._then = [("WAIT", wait_replicas, wait_ms)] if wait_replicas else []
        self._wait_replicas = wait_replicas

    def __repr__(self) -> str:
        return f"<RedisSink to {', '.join(self._streams)}>"

    def prepare(self, value: object) -> list[Word]:
        """Return the words of an entry, their number first."""
        if isinstance(value, bytes | str):
            return [2, b"data", _as_bytes(value)]
        if not isinstance(value, Mapping) or not value:
            raise PermanentError(f"a handler returns a mapping, bytes or None, not {value!r:.80}")
        args: list[Word] = [0]
        try:
            for name, part in value.items():
                args.append(name.encode() if type(name) is str else _as_name(name))
                args.append(part.encode() if type(part) is str else _as_bytes(part))
        except UnicodeEncodeError as error:
            raise PermanentError(f"a field cannot be written: {error}") from None
        # Counted behind the words: what the script reads must be what is there, even if another
        # thread of the handler's goes on filling the mapping that it returned.
        count = args[0] = len(args) - 1
        if count > WORDS_MAX:
            raise PermanentError(f"an entry has at most {WORDS_MAX // 2} fields")
        return args

    async def write(self, writing: Writing) -> list[int]:
        """Write a batch: one call for each stream and bucket, usually one in all."""
        groups = self._grouped(writing)
        if len(groups) == 1:
            return await self._write(*groups[0][0], writing)
        statuses = [AWAY] * len(writing.uuids)
        parts = await asyncio.gather(
            *(self._write(*place, _part(writing, rows)) for place, rows in groups)
        )
        for (_, rows), part in zip(groups, parts, strict=True):
            for row, status in zip(rows, part, strict=True):
                statuses[row] = status
        return statuses

    async def close(self) -> None:
        self._redis.close()

    def _grouped(self, writing: Writing) -> list[tuple[tuple[int, int], Sequence[int]]]:
        """Return the rows of each stream and bucket, in pieces that fit into a call."""
        shards, bucket_ms = len(self._streams), self._bucket_ms
        births, count = writing.births_ms, len(writing.uuids)
        first = min(births) // bucket_ms
        sizes = [_size(value) for value in writing.values]
        is_small = count <= CALL_MESSAGES_MAX and sum(sizes) <= CALL_BYTES_MAX
        if shards == 1 and max(births) // bucket_ms == first and is_small:
            return [((0, first), range(count))]
        groups: dict[tuple[int, int], list[int]] = {}
        for row, (uuid, birth_ms) in enumerate(zip(writing.uuids, births, strict=True)):
            place = (shard_of(uuid, shards), birth_ms // bucket_ms)
            groups.setdefault(place, []).append(row)
        return [(place, piece) for place, rows in groups.items() for piece in _pieces(rows, sizes)]

    async def _write(self, shard: int, bucket: int, writing: Writing) -> list[int]:
        stream, count = self._streams[shard], len(writing.uuids)
        keys = [fence_of(stream, self._prefix), stream, beside(stream, f"seen:{bucket}")]
        bucket_ms = self._bucket_ms
        ends_ms = known_until_ms(bucket * bucket_ms, bucket_ms=bucket_ms, window_ms=self._window_ms)
        args = [word for value in writing.values for word in value]
        head = (writing.epoch, ends_ms, self._length_max, count)
        try:
            digits, *replicas = await WRITE.run(
                self._redis, keys, *head, *writing.uuids, *args, then=self._then
            )
        except Stale:
            return [STALE] * count
        except (RedisAway, RedisRefused) as error:
            log.warning("write_failed stream=%s messages=%d error=%s", stream, count, error)
            return [AWAY] * count
        if replicas and replicas[0] < self._wait_replicas:
            log.warning("replicas_missing stream=%s has=%d", stream, replicas[0])
            # It is written, and may be lost with this master: only a second look can tell.
            return [LATE if digit == "2" else AWAY for digit in digits.decode()]
        return [_STATUS[digit] for digit in digits]


def _size(args: Sequence[Word]) -> int:
    """Return about how many bytes an entry has, its number of words not counted."""
    return sum(map(len, cast(Sequence[bytes], args[1:])))


def _pieces(rows: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Part rows into such that fit into a call; one that is too large alone goes alone."""
    piece: list[int] = []
    total = 0
    for row in rows:
        if piece and (len(piece) == CALL_MESSAGES_MAX or total + sizes[row] > CALL_BYTES_MAX):
            yield piece
            piece, total = [], 0
        piece.append(row)
        total += sizes[row]
    if piece:
        yield piece


def _part(writing: Writing, rows: Sequence[int]) -> Writing:
    return Writing(
        writing.epoch,
        [writing.uuids[row] for row in rows],
        [writing.births_ms[row] for row in rows],
        [writing.values[row] for row in rows],
    )


def _as_name(name: object) -> bytes:
    return name if isinstance(name, bytes) else str(name).encode()


def _as_bytes(part: object) -> bytes:
    """Return a word as it is sent. What cannot be sent is refused here, for its message alone:
    further on it would be the fault of a whole batch."""
    if isinstance(part, bytes):
        return part
    try:
        if isinstance(part, str):
            return part.encode()
        if isinstance(part, bool):
            return b"true" if part else b"false"
        if isinstance(part, int):
            return b"%d" % part
        return (repr(part) if isinstance(part, float) else json.dumps(part)).encode()
    except (TypeError, ValueError) as error:
        raise PermanentError(f"a field cannot be written: {error}") from None
