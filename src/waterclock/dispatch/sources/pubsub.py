"""The pub/sub source: a channel that all dispatchers hear, kept as batches by the leader.

All dispatchers listen, on one connection each, to the user's channel and to that of the markers,
and so agree where in the channel each message stands (`core/ring.py`). The leader stores what it
heard, and how far that is, by one fenced script, before it hands anything out. A new leader goes
on behind the place that is stored, from its own ring: nothing is lost, nothing stored twice.

What Redis itself does not deliver nobody can mend: while it restarts, or after a connection broke,
there is a gap. It is counted.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from waterclock.dispatch.core.batches import DeadLetter, Load
from waterclock.dispatch.core.identity import (
    NONCE_BYTES,
    BadMarker,
    MarkerName,
    Position,
    SequenceMarker,
    known_until_ms,
    parse_marker,
    parse_position,
)
from waterclock.dispatch.core.lease import HANDICAP_MS
from waterclock.dispatch.core.ring import Drained, Ring
from waterclock.dispatch.core.stored_batches import (
    Backlog,
    BadStoredBatch,
    StoredBatch,
    parse_stored_batch,
)
from waterclock.dispatch.metrics import DispatcherCounts
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.keys import Keys
from waterclock.dispatch.redis.link import RedisAway, RedisLink, RedisRefused, Reply, Word
from waterclock.dispatch.redis.scripts import (
    BATCHES_DEAD_LETTER,
    BATCHES_REMOVE,
    BATCHES_STORE,
    PUBLISH_MARKER,
)
from waterclock.dispatch.sources.source import AGAIN_S, Intake, dead_letter_args, until_answered
from waterclock.model.waiting import Waiting

log = logging.getLogger(__name__)

PAGE_BATCHES = 20
CHECK_S = 1.0
IDLE_STORE_S = 1.0
"""How often the place is stored while nothing comes, so that the rings of standbys stay short."""


class PubSubSource:
    """Messages of one channel. See `sources.Source`."""

    def __init__(
        self,
        redis: RedisClient,
        *,
        channel: str,
        keys: Keys,
        ring: Ring,
        backlog_messages_max: int,
        marker_ms: int,
        deadline_ms: int,
        window_ms: int,
        bucket_ms: int,
        counts: DispatcherCounts,
    ) -> None:
        self._redis = redis
        self._channel = channel
        self._keys = keys
        self._ring = ring
        self._backlog_messages_max = backlog_messages_max
        self._backlog = Backlog(backlog_messages_max)
        self._marker_s = marker_ms / 1_000
        self._deadline_ms = deadline_ms
        self._window_ms, self._bucket_ms = window_ms, bucket_ms
        self._server_ms_offset = 0
        """From our clock to the server's, never ahead of it."""
        self._counts = counts
        self._has_heard = asyncio.Event()
        self._subscribed = asyncio.Event()
        self._waiting = Waiting(f"the subscription to {channel}")
        self._stored: Position | None = None
        """The last place that Redis confirmed, by us."""
        self._is_leading = False
        self._is_due = True
        """Whether the place is to be stored though nothing came."""
        self._untouched: set[bytes] = set()
        """Stored batches of the backlog that we stored, and nobody was ever handed."""
        self._subscriptions = 0

    def __repr__(self) -> str:
        return f"<PubSubSource {self._channel}, {self._ring!r}>"

    @property
    def fences(self) -> Sequence[str]:
        """None: the fence of what is pending is the epoch itself."""
        return []

    # Listening, always

    @property
    def handicap_ms(self) -> int:
        """Some, unless we have heard everything that is not stored: such a leader loses nothing."""
        return 0 if self._ring.reaches_back else HANDICAP_MS

    async def _wait(self, error: RedisAway | RedisRefused) -> None:
        said = self._waiting.away(str(error), asyncio.get_running_loop().time())
        if said is not None:
            log.warning("%s", said)
        await asyncio.sleep(AGAIN_S)

    async def listen(self) -> None:
        """Keep a subscription, and fill the ring from it."""
        while True:
            try:
                link = await self._redis.separate_link(self._keys.markers)
            except (RedisAway, RedisRefused) as error:
                await self._wait(error)
                continue
            self._begin()
            try:
                await link.subscribe(self._channel, self._keys.markers, on_replies=self._heard)
                await self._publish_own_marker()
                self._subscribed.set()
                if (said := self._waiting.here(asyncio.get_running_loop().time())) is not None:
                    log.warning("%s", said)
                await self._stay(link)
            except (RedisAway, RedisRefused) as error:
                await self._wait(error)
            finally:
                link.close()
                self._subscribed.clear()

    async def _stay(self, link: RedisLink) -> None:
        """Return when the connection is gone, or leads to a server that is not the right one any
        more: only those at one server hear everything in the same order."""
        while not link.closed.done():
            await asyncio.wait([link.closed], timeout=CHECK_S)
            try:
                right = (await self._redis.link_for(self._keys.markers)).address
            except RedisAway:
                continue  # nobody knows, so stay
            if right != link.address:
                log.warning("subscription_moved to=%s", right)
                return

    def _begin(self) -> None:
        self._subscriptions += 1
        if self._subscriptions > 1:
            self._counts.gaps += 1
            log.warning("subscription_broke messages_may_be_missing=true")
        self._ring.subscribed(secrets.token_bytes(NONCE_BYTES), time.time_ns() // 1_000_000)

    async def _publish_own_marker(self) -> None:
        """Publish a marker of our own. From it on all dispatchers count as we do, so that we could
        take over at once; the next of the leader's may be long in coming, if it is about to die."""
        seconds, micros = await self._redis.call(self._keys.epoch, "TIME")
        now_ms = int(seconds) * 1_000 + int(micros) // 1_000
        name = MarkerName(0, self._subscriptions, secrets.token_bytes(NONCE_BYTES))
        args = ("PUBLISH", self._keys.markers, SequenceMarker(name, now_ms).to_bytes())
        await self._redis.call(self._keys.markers, *args)

    def _heard(self, replies: list[Reply]) -> None:
        """Sort what came into messages and markers, keeping their order."""
        markers, channel = self._keys.markers.encode(), self._channel.encode()
        bodies: list[bytes] = []
        for reply in replies:
            if reply[0] != b"message":
                continue  # the answers to SUBSCRIBE, and to PING
            if reply[1] == channel:
                bodies.append(reply[2])
            elif reply[1] == markers:
                if bodies:
                    self._ring.heard(bodies)
                    bodies = []
                self._marker_heard(reply[2])
        if bodies:
            self._ring.heard(bodies)
        if self._is_leading:
            self._has_heard.set()

    def _marker_heard(self, raw: bytes) -> None:
        try:
            marker = parse_marker(raw)
        except BadMarker as bad:
            log.warning("marker_ignored reason=%s", bad)
            return
        self._ring.marker_heard(marker)

    # Leading

    async def lead(self, intake: Intake) -> None:
        """Load what is stored, go on where the last leader stopped, and store what comes."""
        self._backlog = Backlog(self._backlog_messages_max)
        self._untouched = set()
        self._is_leading = True
        try:
            await self._subscribed.wait()
            await until_answered(lambda: self._load_all(intake))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._publish_markers(intake))
                tasks.create_task(self._store(intake))
                tasks.create_task(self._bring_back(intake))
        finally:
            self._is_leading = False

    async def _load_all(self, intake: Intake) -> None:
        """Take over all stored batches, and the place behind them."""
        pending = self._keys.pending
        raw, ids = await self._redis.run(
            pending, ("GET", self._keys.position), ("ZRANGE", pending, 0, -1)
        )
        for start in range(0, len(ids), PAGE_BATCHES):
            await self._load(intake, ids[start : start + PAGE_BATCHES])
        try:
            self._stored = None if raw is None else parse_position(raw)
        except BadMarker as bad:
            # Go on with all that we heard: what is stored under the same uuids is known as such.
            log.error("position_damaged reason=%s", bad)
            self._stored = None
            self._counts.gaps += 1
        log.info("loaded batches=%d", len(ids))

    async def _resume(self, intake: Intake) -> None:
        """Go on behind what the last leader stored, once a marker of ours has come back: by then we
        have heard all that it can have heard, and so know the place it stored last."""
        while self._ring.epoch_heard != intake.epoch:
            self._has_heard.clear()
            await self._has_heard.wait()
        resumed = self._ring.resume(self._stored)
        self._counts.lost += resumed.missed
        self._counts.gaps += resumed.has_gap
        log.info(
            "resumed missed=%d has_gap=%s held=%d", resumed.missed, resumed.has_gap, resumed.held
        )

    async def _load(self, intake: Intake, ids: Sequence[bytes]) -> None:
        """Bring stored batches to the leader, or note them for when there is room."""
        stored_batches, done = await self._redis.run(
            self._keys.pending,
            ("HMGET", self._keys.batches, *ids),
            ("HMGET", self._keys.done, *ids),
        )
        for stored_id, raw, dead_lettered in zip(ids, stored_batches, done, strict=True):
            if raw is None:
                continue
            try:
                batch = parse_stored_batch(raw)
            except BadStoredBatch as bad:
                log.error("stored_batch_damaged id=%s reason=%s", stored_id.hex(), bad)
                continue
            if intake.room > 0:
                intake.add(self._born_again(_load_without(batch, dead_lettered or b"")))
            else:
                self._backlog.hold(stored_id, len(batch.bodies))

    def _born_again(self, load: Load) -> Load:
        """Give messages that waited here until their bucket of the dedup window was over a birth in
        this one: they cannot have been written, and would be taken for too late to know."""
        assert load.stored_id is not None
        if load.stored_id not in self._untouched or not load.births_ms:
            return load
        self._untouched.discard(load.stored_id)
        now_ms = self._server_ms_offset + time.monotonic_ns() // 1_000_000
        ends_ms = known_until_ms(
            load.births_ms[0], bucket_ms=self._bucket_ms, window_ms=self._window_ms
        )
        return load if now_ms < ends_ms else replace(load, births_ms=[now_ms] * len(load.uuids))

    async def _publish_markers(self, intake: Intake) -> None:
        """Publish a marker now and then, as long as we lead."""
        nonce, number = secrets.token_bytes(NONCE_BYTES), 0
        seconds, micros = await until_answered(lambda: self._redis.call(self._keys.epoch, "TIME"))
        offset_ms = int(seconds) * 1_000 + int(micros) // 1_000 - time.monotonic_ns() // 1_000_000
        while True:
            number += 1
            now_ms = offset_ms + time.monotonic_ns() // 1_000_000
            marker = SequenceMarker(MarkerName(intake.epoch, number, nonce), now_ms, self._stored)
            args = (intake.epoch, self._keys.markers, marker.to_bytes())
            publish = partial(PUBLISH_MARKER.answer, self._redis, [self._keys.epoch], *args)
            server_ms = await until_answered(publish)
            # Births are the server's time: a leader whose clock is wrong must not age messages.
            offset_ms = server_ms - time.monotonic_ns() // 1_000_000
            self._server_ms_offset = offset_ms
            await asyncio.sleep(self._marker_s)

    async def _store(self, intake: Intake) -> None:
        """Store what is heard, all that came together at once, then hand it on."""
        await self._resume(intake)
        while True:
            drained = self._ring.drain()
            self._counts.lost += drained.missed
            if not self._is_store_due(drained):
                await self._wait_for_more()
                continue
            assert drained.position is not None
            kept = self._with_room(drained.stored_batches, intake)
            args: list[Word] = []
            deadline_ms = time.time_ns() // 1_000_000 + self._deadline_ms
            for batch in kept:
                args += [batch.stored_id, deadline_ms, batch.to_bytes()]
            keys = self._keys
            store = partial(
                BATCHES_STORE.answer, self._redis,
                [keys.epoch, keys.batches, keys.pending, keys.position],
                intake.epoch, drained.position.to_bytes(), *args,
            )  # fmt: skip
            await until_answered(store)
            self._ring.stored(drained.position)
            self._stored, self._is_due = drained.position, False
            dropped = sum(len(batch.bodies) for batch in drained.stored_batches[len(kept) :])
            self._counts.lost += dropped
            self._hand_on(kept, intake)

    def _is_store_due(self, drained: Drained) -> bool:
        if drained.position is None or drained.stored_batches:
            return bool(drained.stored_batches)
        return self._is_due and drained.position != self._stored

    def _hand_on(self, stored_batches: Sequence[StoredBatch], intake: Intake) -> None:
        for batch in stored_batches:
            self._counts.received += len(batch.bodies)
            if intake.room > 0 and not self._backlog:
                intake.add(Load.of_stored_batch(batch))
            else:
                self._backlog.hold(batch.stored_id, len(batch.bodies))
                self._untouched.add(batch.stored_id)

    def _with_room(
        self, stored_batches: Sequence[StoredBatch], intake: Intake
    ) -> list[StoredBatch]:
        """Return what fits into the plan or into the backlog; the rest is lost."""
        free = intake.room + self._backlog.room
        kept = []
        for batch in stored_batches:
            if free > 0:
                free -= len(batch.bodies)
                kept.append(batch)
        if len(kept) < len(stored_batches):
            log.warning("overflow batches_dropped=%d", len(stored_batches) - len(kept))
        return kept

    async def _wait_for_more(self) -> None:
        self._has_heard.clear()
        try:
            async with asyncio.timeout(IDLE_STORE_S):
                await self._has_heard.wait()
        except TimeoutError:
            self._is_due = True

    async def _bring_back(self, intake: Intake) -> None:
        """Bring stored batches that had no room, when there is some."""
        while True:
            await intake.until_room()
            ids = self._backlog.take(intake.room)
            if ids:
                await until_answered(partial(self._load, intake, ids))
            else:
                await asyncio.sleep(AGAIN_S)

    async def settle(
        self, epoch: int, *, stored_batches: Sequence[bytes], entries: Sequence[bytes]
    ) -> None:
        """Remove stored batches."""
        assert not entries
        keys = [self._keys.epoch, self._keys.batches, self._keys.pending, self._keys.done]
        await BATCHES_REMOVE.answer(self._redis, keys, epoch, *stored_batches)

    async def write_dead_letters(self, epoch: int, dead_letters: Sequence[DeadLetter]) -> None:
        """Write dead letters to the dead stream, each once."""
        args: list[Word] = []
        for dead_letter in dead_letters:
            assert dead_letter.stored_id is not None
            args += [dead_letter.stored_id, dead_letter.uuid, *dead_letter_args(dead_letter)]
        keys = [self._keys.epoch, self._keys.done, self._keys.dead]
        await BATCHES_DEAD_LETTER.answer(self._redis, keys, epoch, *args)


def _load_without(batch: StoredBatch, dead_lettered: bytes) -> Load:
    """Return a stored batch's load without the messages that are in the dead stream."""
    load = Load.of_stored_batch(batch)
    if not dead_lettered:
        return load
    gone = {dead_lettered[at : at + 16] for at in range(0, len(dead_lettered), 16)}
    rows = [row for row, uuid in enumerate(load.uuids) if uuid not in gone]
    return Load(
        [load.uuids[row] for row in rows],
        [load.births_ms[row] for row in rows],
        [load.bodies[row] for row in rows],
        stored_id=load.stored_id,
    )
