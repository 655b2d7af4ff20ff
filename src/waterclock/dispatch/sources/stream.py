"""The stream source: a consumer group is the store of what is not done, so nothing is ever lost.

All dispatchers are one consumer of the group. The leader reads by a fenced script, so that one who
leads no more takes nothing; a new one claims all that was read and not acknowledged. Scripts cannot
wait, so when there is nothing to read a plain XREAD waits on a connection of its own for the first
entry behind the last.

The body of a message is the value of an entry's only field, or else a JSON object of all fields;
`traceparent` and `tracestate` beside others are none of them, but its context (`tracing.py`).
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from functools import partial

from waterclock.dispatch.core.batches import DeadLetter, Load
from waterclock.dispatch.core.identity import entry_uuids, known_until_ms
from waterclock.dispatch.metrics import DispatcherCounts
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.keys import beside
from waterclock.dispatch.redis.link import RedisAway, RedisLink, RedisRefused, Word
from waterclock.dispatch.redis.scripts import (
    STREAM_ACK,
    STREAM_CLAIM,
    STREAM_DEAD_LETTER,
    STREAM_READ,
)
from waterclock.dispatch.sinks.redis import fence_of
from waterclock.dispatch.sources.source import AGAIN_S, Intake, dead_letter_args, until_answered
from waterclock.dispatch.tracing import split_fields

log = logging.getLogger(__name__)

CONSUMER = "dispatcher"


class StreamSource:
    """Entries of one stream. See `sources.Source`."""

    def __init__(
        self,
        redis: RedisClient,
        *,
        source: str,
        group: str,
        read_count: int,
        is_trimmed: bool,
        window_ms: int,
        bucket_ms: int,
        counts: DispatcherCounts,
    ) -> None:
        self._redis = redis
        self._source, self._group = source, group
        self._read_count = read_count
        self._trim = 1 if is_trimmed else 0
        self._counts = counts
        self._window_ms, self._bucket_ms = window_ms, bucket_ms
        self._fence = fence_of(source, group)
        self._dead = beside(source, "dead")
        self._last = b"0-0"
        self._waiter: RedisLink | None = None

    def __repr__(self) -> str:
        return f"<StreamSource {self._source}, behind {self._last.decode()}>"

    @property
    def fences(self) -> Sequence[str]:
        """That of the stream, for this consumer group."""
        return [self._fence]

    @property
    def handicap_ms(self) -> int:
        """0: every dispatcher can go on from the stream."""
        return 0

    async def listen(self) -> None:
        """Do nothing: what nobody reads stays in the stream."""

    async def lead(self, intake: Intake) -> None:
        """Claim what was not done, then read on."""
        try:
            await self._claim_all(intake)
            while True:
                await intake.until_room()
                try:
                    if not await self._read(intake):
                        await self._wait()
                except RedisAway as away:
                    # It may have been read, and the answer lost: then it is pending, and only a
                    # claim finds it. What the leader has already it takes no second time.
                    log.warning("source_away error=%s", away)
                    await asyncio.sleep(AGAIN_S)
                    await self._claim_all(intake)
                except RedisRefused as refused:
                    if refused.kind != "NOGROUP":
                        raise
                    await until_answered(self._make_group)
        finally:
            if self._waiter is not None:
                self._waiter.close()

    async def settle(
        self, epoch: int, *, stored_batches: Sequence[bytes], entries: Sequence[bytes]
    ) -> None:
        """Acknowledge entries."""
        assert not stored_batches
        keys = [self._fence, self._source]
        await STREAM_ACK.answer(self._redis, keys, epoch, self._group, self._trim, *entries)

    async def write_dead_letters(self, epoch: int, dead_letters: Sequence[DeadLetter]) -> None:
        """Move entries to the dead stream."""
        args: list[Word] = []
        for dead_letter in dead_letters:
            assert dead_letter.entry is not None
            args += [dead_letter.entry, *dead_letter_args(dead_letter)]
        keys = [self._fence, self._source, self._dead]
        await STREAM_DEAD_LETTER.answer(self._redis, keys, epoch, self._group, self._trim, *args)

    async def _claim_all(self, intake: Intake) -> None:
        """Claim everything that is pending, page by page."""
        start: bytes | None = b"0-0"
        while start is not None:
            try:
                start = await until_answered(partial(self._claim, intake, start))
            except RedisRefused as refused:
                if refused.kind != "NOGROUP":
                    raise
                await until_answered(self._make_group)

    async def _make_group(self) -> None:
        """Make the group if there is none: at the first start, or after a server forgot it. It
        begins with the oldest entry; what was written before is found by the sink's dedup."""
        create = ("XGROUP", "CREATE", self._source, self._group, "0", "MKSTREAM")
        try:
            await self._redis.call(self._source, *create)
        except RedisRefused as refused:
            if refused.kind != "BUSYGROUP":
                raise
        else:
            log.info("group_made stream=%s group=%s", self._source, self._group)

    async def _claim(self, intake: Intake, start: bytes) -> bytes | None:
        await intake.until_room()
        keys, count = [self._fence, self._source], min(intake.appetite, self._read_count)
        go_on, entries, gone = await STREAM_CLAIM.answer(
            self._redis, keys, intake.epoch, self._group, CONSUMER, start, count
        )
        if gone:
            self._counts.lost += len(gone)
            log.warning("entries_trimmed_unread count=%d", len(gone))
        self._add(intake, [entry for entry in entries if entry[1] is not None])
        return None if go_on == b"0-0" else go_on

    async def _read(self, intake: Intake) -> bool:
        keys, count = [self._fence, self._source], min(intake.appetite, self._read_count)
        now_ms, entries = await STREAM_READ.answer(
            self._redis, keys, intake.epoch, self._group, CONSUMER, count
        )
        if entries:
            self._last = entries[-1][0]
            self._add(intake, entries, first_read_ms=now_ms)
        return bool(entries)

    def _add(
        self,
        intake: Intake,
        entries: Sequence[tuple[bytes, list[bytes]]],
        *,
        first_read_ms: int | None = None,
    ) -> None:
        if not entries:
            return
        ids = [entry_id for entry_id, _ in entries]
        uuids, births_ms = entry_uuids(self._source, ids)
        if first_read_ms is not None:
            births_ms = self._born_again(births_ms, first_read_ms)
        contexts: dict[bytes, bytes] = {}
        bodies = [
            fields[1] if len(fields) == 2 else _body(fields, uuid, contexts)
            for uuid, (_, fields) in zip(uuids, entries, strict=True)
        ]
        self._counts.received += len(ids)
        intake.add(Load(uuids, births_ms, bodies, entries=ids, contexts=contexts))

    def _born_again(self, births_ms: list[int], now_ms: int) -> list[int]:
        """Let messages that waited in the stream for longer than dedup looks back be born now: they
        were never handed out, so nobody has written them. A leader that claims one of these later
        files it under the birth of its id, for which it is too late for ever: it is written once at
        most."""
        bucket_ms, window_ms = self._bucket_ms, self._window_ms
        return [
            now_ms
            if now_ms >= known_until_ms(birth_ms, bucket_ms=bucket_ms, window_ms=window_ms)
            else birth_ms
            for birth_ms in births_ms
        ]

    async def _wait(self) -> None:
        """Return when there is an entry behind the last that was read, or after a while."""
        if self._waiter is not None and not self._waiter.is_open:
            self._waiter = None
            raise RedisAway("the link that waits broke, and others may have")
        if self._waiter is None:
            self._waiter = await self._redis.separate_link(self._source)
            self._last = await self._last_delivered()
        block_ms = int(self._waiter.silence_s_max * 1_000 / 2)  # or it would count as gone
        args = ("COUNT", 1, "BLOCK", block_ms, "STREAMS", self._source, self._last)
        try:
            reply = await self._waiter.call("XREAD", *args)
            if reply:  # if it is gone at the next look, another consumer has read it
                self._last = reply[0][1][0][0]
        except RedisRefused as refused:
            # Nothing depends on this but when we look again; the look itself says what is wrong.
            log.warning("waiting_failed error=%s", refused)
            self._waiter.close()
            await asyncio.sleep(AGAIN_S)

    async def _last_delivered(self) -> bytes:
        for group in await self._redis.call(self._source, "XINFO", "GROUPS", self._source):
            facts = dict(zip(group[::2], group[1::2], strict=True))
            if facts[b"name"] == self._group.encode():
                last: bytes = facts[b"last-delivered-id"]
                return last
        return b"0-0"


def _body(fields: list[bytes], uuid: bytes, contexts: dict[bytes, bytes]) -> bytes:
    """Return the body of an entry of several fields; note the context that some of them are."""
    fields, context = split_fields(fields)
    if context:
        contexts[uuid] = context
        if len(fields) == 2:
            return fields[1]
    texts = [field.decode(errors="replace") for field in fields]
    return json.dumps(dict(zip(texts[::2], texts[1::2], strict=True))).encode()
