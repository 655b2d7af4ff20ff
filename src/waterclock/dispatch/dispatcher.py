"""A dispatcher: one of several, of which one leads.

It asks for the lease; while it has it, a `Leader` runs under the epoch that came with it, and ends
the moment the lease does, by our own clock. All dispatchers accept connections, so that the one who
leads next needs no new port; one that does not lead closes them with a reason. A pub/sub source
listens all the time: a standby that did not hear a message could not go on with it.
"""

import asyncio
import logging
import secrets
import socket
from random import Random

from waterclock.dispatch.access import access_of_dispatcher, tls_options
from waterclock.dispatch.config import DispatcherConfig
from waterclock.dispatch.core.lease import Ask, Call, Lease, LeaseEffect
from waterclock.dispatch.core.ring import Ring
from waterclock.dispatch.credentials import LOOK_S, KnownWorkers
from waterclock.dispatch.leader import Leader, now_ms
from waterclock.dispatch.links import WorkerLink
from waterclock.dispatch.metrics import DispatcherCounts
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.keys import Keys
from waterclock.dispatch.redis.link import RedisAway, RedisRefused
from waterclock.dispatch.redis.scripts import LEASE_ACQUIRE, LEASE_RELEASE, LEASE_RENEW, Stale
from waterclock.dispatch.sinks.redis import fence_of, raise_fences, stream_names
from waterclock.dispatch.sources.pubsub import PubSubSource
from waterclock.dispatch.sources.source import Source, until_answered
from waterclock.dispatch.sources.stream import StreamSource
from waterclock.model.waiting import Waiting

log = logging.getLogger(__name__)

WILDCARDS = frozenset({"0.0.0.0", "::", ""})
NO_KEY = -2
"""What PTTL says of a key that is not there."""
FAILED_S = 1.0
"""How long a leader that Redis refused something waits before it tries to lead again."""


class Dispatcher:
    """Runs until it is stopped. The caller that made the client closes it."""

    def __init__(self, config: DispatcherConfig, redis: RedisClient) -> None:
        self._config = config
        self._redis = redis
        self._access = access_of_dispatcher(config)
        self._keys = Keys(config.prefix)
        self._token = secrets.token_hex(16)
        self._lease = Lease(config.lease(), Random(self._token))
        self.counts = DispatcherCounts()
        self._source = self._source_of(config)
        self._leader: Leader | None = None
        self._leading: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()
        self._is_changed = asyncio.Event()
        """Something came about that the lease must hear of, before its next deadline."""
        self._is_newer_known = False
        self._is_doubted = False
        self._has_failed = False
        self._waiting = Waiting("the lease in Redis")
        self.has_redis = asyncio.Event()
        """Set once Redis has said whether we lead."""
        self.is_listening = asyncio.Event()
        self.address: tuple[str, int] = ("", 0)
        """Where workers find us; known once it runs."""

    def __repr__(self) -> str:
        return f"<Dispatcher at {self.address[0]}:{self.address[1]}, epoch {self.epoch}>"

    def _source_of(self, config: DispatcherConfig) -> Source:
        if config.source_kind == "stream":
            return StreamSource(
                self._redis, source=config.source, group=config.group,
                read_count=config.read_count, is_trimmed=config.is_source_trimmed,
                window_ms=config.window_ms, bucket_ms=config.bucket_ms, counts=self.counts,
            )  # fmt: skip
        ring = Ring(
            config.source,
            messages_max=config.ring_messages_max,
            bytes_max=config.ring_bytes_max,
        )
        return PubSubSource(
            self._redis, channel=config.source, keys=self._keys, ring=ring,
            backlog_messages_max=config.backlog_messages_max, marker_ms=config.marker_ms,
            deadline_ms=config.deadline_ms, window_ms=config.window_ms,
            bucket_ms=config.bucket_ms, counts=self.counts,
        )  # fmt: skip

    # Figures

    @property
    def is_leading(self) -> bool:
        """Whether we hold the lease now."""
        return self._leader is not None and self._lease.is_held(now_ms())

    @property
    def epoch(self) -> int:
        """Ours while we lead, else 0."""
        return self._leader.epoch if self._leader is not None and self.is_leading else 0

    @property
    def pending(self) -> int:
        """Messages that workers have."""
        return self._leader.in_flight if self._leader is not None else 0

    @property
    def queued(self) -> int:
        """Messages in memory that wait for a worker."""
        return self._leader.queued if self._leader is not None else 0

    @property
    def workers(self) -> int:
        """Workers that have joined us."""
        return len(self._leader.workers) if self._leader is not None else 0

    def stop(self) -> None:
        """Give the lease back at once, and let `run` return."""
        self._is_stopping.set()
        self._is_changed.set()

    async def run(self) -> None:
        """Run until `stop`: lead if nobody else does, else wait for the lease."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            self._accept, self._config.host, self._config.port, **tls_options(self._access)
        )
        port = server.sockets[0].getsockname()[1]
        self.address = (self._advertised(), port)
        self.is_listening.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(self._source.listen())]
                if self._access.known is not None:
                    beside.append(tasks.create_task(self._keep_looking(self._access.known)))
                await self._hold_lease(tasks)
                for task in beside:
                    task.cancel()
        finally:
            server.close()

    async def _keep_looking(self, known: KnownWorkers) -> None:
        """Look who may work, and hang up on others, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await known.look()
            if self._leader is not None:
                self._leader.recheck()

    def _advertised(self) -> str:
        host = self._config.host
        return self._config.advertise_host or (socket.gethostname() if host in WILDCARDS else host)

    def _accept(self) -> asyncio.Protocol:
        if self._leader is not None and self.is_leading:
            return self._leader.new_link()
        return WorkerLink(
            0, on_made=lambda link: link.close("this dispatcher does not lead"),
            on_frames=lambda *_: None, on_lost=lambda _: None, on_bad=lambda *_: None,
        )  # fmt: skip

    # The lease

    async def _hold_lease(self, tasks: asyncio.TaskGroup) -> None:
        lease = self._lease
        while not self._is_stopping.is_set():
            if self._is_newer_known:
                self._is_newer_known = False
                self.counts.stale += 1
                await self._perform(lease.lost(now_ms()), tasks)
            if self._is_doubted:
                self._is_doubted = False
                lease.doubted(now_ms())
            if self._has_failed:
                self._has_failed = False
                await self._perform(lease.lost(now_ms(), "it could not lead"), tasks)
                await self._release()
            lease.handicap_ms = self._source.handicap_ms
            await self._perform(lease.tick(now_ms()), tasks)
            deadline_ms = lease.next_deadline()
            wait_s = 0.1 if deadline_ms is None else max(0, deadline_ms - now_ms()) / 1_000
            try:
                async with asyncio.timeout(wait_s):
                    await self._is_changed.wait()
                self._is_changed.clear()
            except TimeoutError:
                continue
        await self._give_back()

    async def _perform(self, effects: list[LeaseEffect], tasks: asyncio.TaskGroup) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                await self._ask(effect, tasks)
            else:
                log.warning("stepped_down epoch=%d reason=%s", effect.epoch, effect.reason)
                await self._end_leading()

    async def _ask(self, ask: Ask, tasks: asyncio.TaskGroup) -> None:
        """Ask Redis for the lease, or for more of it; no longer than may be waited for."""
        keys, lease_ms = [self._keys.lock, self._keys.epoch], self._config.lease_ms
        try:
            async with asyncio.timeout(lease_ms / 1_000 / 4):
                if ask.call is Call.RENEW:
                    is_ours = await LEASE_RENEW.answer(self._redis, keys[:1], self._token, lease_ms)
                    self._answered()
                    await self._perform(self._renewed(ask, is_ours=is_ours == 1), tasks)
                    return
                if ask.call is Call.LOOK:
                    self._looked(await self._redis.call(keys[0], "PTTL", keys[0]))
                    return
                args = (*self.address, self._token, lease_ms)
                is_ours, given, rest = await LEASE_ACQUIRE.answer(self._redis, keys, *args)
        except (RedisAway, RedisRefused, TimeoutError) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            if (said := self._waiting.away(reason, now_ms() / 1_000)) is not None:
                log.warning("%s", said)
            self._lease.failed(now_ms())
            return
        self._answered()
        if not is_ours:
            self._lease.refused(ttl_ms=rest, now_ms=now_ms())
        elif self._lease.acquired(given, asked_ms=ask.asked_ms, now_ms=now_ms()):
            await self._begin_leading(given, tasks)
        else:
            await self._release()

    def _answered(self) -> None:
        self.has_redis.set()
        if (said := self._waiting.here(now_ms() / 1_000)) is not None:
            log.warning("%s", said)

    def _looked(self, ttl_ms: int) -> None:
        self._answered()
        if ttl_ms == NO_KEY:
            self._lease.seen_free(now_ms())
        else:
            self._lease.refused(ttl_ms=ttl_ms, now_ms=now_ms())

    def _renewed(self, ask: Ask, *, is_ours: bool) -> list[LeaseEffect]:
        if is_ours:
            return self._lease.renewed(asked_ms=ask.asked_ms, now_ms=now_ms())
        return self._lease.lost(now_ms())

    async def _begin_leading(self, epoch: int, tasks: asyncio.TaskGroup) -> None:
        log.info("elected epoch=%d", epoch)
        await self._end_leading()
        self.counts.elections += 1
        self._leader = Leader(
            self._config, self._source, self._access, epoch=epoch, is_held=self._lease.is_held,
            on_doubt=self._doubted, counts=self.counts,
        )  # fmt: skip
        self._leading = tasks.create_task(self._lead(self._leader))

    async def _lead(self, leader: Leader) -> None:
        """Lead until cancelled; if that fails, another dispatcher may try."""
        outputs = stream_names(self._config.output, self._config.streams)
        fences = [fence_of(each, self._config.prefix) for each in outputs]
        fences += self._source.fences
        try:
            await until_answered(lambda: raise_fences(self._redis, fences, leader.epoch))
            await leader.lead()
        except* Stale as stale:
            log.warning("stale epoch=%d error=%s", leader.epoch, stale.exceptions[0])
            self._newer()
        except* RedisRefused as refused:
            log.error("leading_failed epoch=%d error=%s", leader.epoch, refused.exceptions[0])
            await asyncio.sleep(FAILED_S)
            self._has_failed = True
            self._is_changed.set()

    def _doubted(self) -> None:
        self._is_doubted = True
        self._is_changed.set()

    def _newer(self) -> None:
        self._is_newer_known = True
        self._is_changed.set()

    async def _end_leading(self) -> None:
        task, self._leading, self._leader = self._leading, None, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _give_back(self) -> None:
        """End in order: nothing is handed out any more, what is done is noted, others may lead."""
        leader = self._leader
        self._lease.stop()
        await self._end_leading()
        if leader is None:
            return
        try:
            async with asyncio.timeout(self._config.lease_ms / 1_000):
                await leader.flush()
        except (RedisAway, RedisRefused, Stale, TimeoutError) as error:
            log.warning("not_flushed error=%r", error)
        await self._release()

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(1.0):
                await LEASE_RELEASE.answer(self._redis, [self._keys.lock], self._token)
        except (RedisAway, RedisRefused, TimeoutError) as error:
            log.warning("lease_not_released error=%r", error)
