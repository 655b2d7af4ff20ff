"""A worker: finds the leader, handles what it is given, writes, then acknowledges.

    leader --PROCESS_BATCH--> pool (parse, handler) --> sink (one call a batch) --> ACK_BATCH

The leader is found in the value of its lock (`leader_search.py`), and whoever welcomes us is
believed only if the lock has its epoch. The highest that was welcomed is the only one obeyed; what
a leader of a lower one still sends is refused, counted, and answered with CLOSE, from which it
learns.

Nothing is acknowledged before it is written. What is in flight when a connection breaks is
forgotten if it is not written yet: its leader, or the next one, hands it to another worker.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from waterclock.dispatch.access import access_of_worker, tls_options
from waterclock.dispatch.config import WorkerConfig
from waterclock.dispatch.core.lease import Fence, LockValue
from waterclock.dispatch.frames import (
    UUIDS_MAX,
    Close,
    Contexts,
    Frame,
    ProcessBatch,
    ProcessMessage,
    Welcome,
    encode_ack_batch,
    encode_close,
    encode_credit,
    encode_heartbeat,
    encode_hello,
    encode_nack,
    encode_progress,
)
from waterclock.dispatch.links import LeaderLink, printable
from waterclock.dispatch.metrics import WorkerCounts
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.keys import Keys
from waterclock.dispatch.sinks.sink import AWAY, KNOWN, LATE, STALE, WRITTEN, Sink, Writing
from waterclock.dispatch.tracing import handler_spans
from waterclock.dispatch.worker.handler_pool import Item, Result, handler_pool
from waterclock.dispatch.worker.handlers import Handler, PermanentError, parse_json, reason_of
from waterclock.dispatch.worker.in_flight import InFlight
from waterclock.dispatch.worker.leader_search import LeaderSearch
from waterclock.model.errors import BadInput
from waterclock.model.failure_kinds import FailureKinds
from waterclock.runtime.worker_pool import WorkerPool

log = logging.getLogger(__name__)

WRITERS = 2
"""Writes under way at once: while one is answered the next is put together."""
WRITE_MESSAGES_MAX = 1_000
RETRY_S = 0.2
"""How long a write that found nobody waits."""
TICK_S = 0.1


class Worker:
    """Works until it is stopped. The caller that made the sink and the client closes them."""

    def __init__(
        self, config: WorkerConfig, handler: Handler, sink: Sink, redis: RedisClient
    ) -> None:
        self._config = config
        self._handler = handler
        self._sink = sink
        self._redis = redis
        self._access = access_of_worker(config)
        self._search = LeaderSearch(
            redis, Keys(config.prefix).lock,
            follow=self._follow, is_connected=lambda: self.is_connected,
        )  # fmt: skip
        self._links: set[LeaderLink] = set()
        self._in_flight = InFlight(
            credit_max=config.credit,
            workers=config.concurrency,
            handler_s_max=config.handler_ms_max / 1_000,
        )
        self._pool: WorkerPool[Item] | None = None
        self._results: deque[Result] = deque()
        self._has_results = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._later: list[Result] = []
        self._fence = Fence()
        self._lock_epoch: int | None = None
        """What the lock said when we last looked."""
        self._dialled: LeaderLink | None = None
        self.counts = WorkerCounts()
        self.failures = FailureKinds()
        self.is_welcomed = asyncio.Event()
        """Set once a leader has taken us in for the first time."""
        self.abandoned = 0  # messages in flight when the patience of `stop` was over

    def __repr__(self) -> str:
        return f"<Worker {self._config.name}, epoch {self.epoch}, {self._in_flight!r}>"

    def stop(self) -> None:
        """Take nothing new, finish what is in flight, then let `run` return."""
        self._is_stopping.set()

    @property
    def epoch(self) -> int:
        """The highest that has welcomed us."""
        return self._fence.epoch

    @property
    def is_connected(self) -> bool:
        """Whether a leader has welcomed us and is still there."""
        return any(link.welcome and not link.is_stale for link in self._links)

    @property
    def held(self) -> int:
        """Messages in flight."""
        return len(self._in_flight)

    async def run(self) -> None:
        """Work until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            self._pool = pool = handler_pool(
                self._handler,
                count=self._config.concurrency,
                parse=parse_json if self._config.parse == "json" else bytes,
                prepare=self._sink.prepare,
                settle=self._handled,
                spans=handler_spans(self._handler),
                tasks=tasks,
            )
            loops = [tasks.create_task(self._write()) for _ in range(WRITERS)]
            loops += [tasks.create_task(self._tick())]
            seeking = [tasks.create_task(self._search.run())]
            if self._config.listen:
                seeking.append(tasks.create_task(self._listen()))
            try:
                await self._is_stopping.wait()
                for task in seeking:
                    task.cancel()
                await self._drain()
            finally:  # also when one of us failed: the pool ends only when told to
                pool.stop()
            for link in [*self._links]:
                link.close("the worker stops", epoch=link.epoch)
            for task in loops:
                task.cancel()

    def _handled(self, item: Item, result: object, seconds: float) -> None:
        self._results.append((item, result))
        self._has_results.set()

    async def _drain(self) -> None:
        """Wait until everything in flight is answered, but not for ever."""
        for link in self._links:
            link.send(encode_credit(epoch=link.epoch, credit=0))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_ms_max / 1_000):
                # Twice: the leader may have sent more before it heard of the credit.
                for _ in range(2):
                    await self._in_flight.until_empty()
                    await asyncio.sleep(0.05 if self.is_connected else 0)
        self.abandoned = self.held

    # Leaders

    def _believe(self, epoch: int) -> None:
        """Take in a leader that welcomed us, now that the lock has its epoch, and leave others. Not
        at once: this look may have been under way when the leader was elected."""
        self._lock_epoch = epoch
        for link in [*self._links]:
            claim = link.claim
            if claim is None:
                continue
            if claim.epoch == epoch:
                self._handle(link, [claim, *link.release()])
            elif link.doubts:
                log.warning("leader_refused epoch=%d lock=%d", claim.epoch, epoch)
                link.close(f"epoch {claim.epoch} is not that of the lock", epoch=self.epoch)
            else:
                link.doubts += 1

    async def _follow(self, leader: LockValue) -> None:
        self._believe(leader.epoch)
        link = self._dialled
        is_ours = link is not None and link.is_open and link.epoch in (0, leader.epoch)
        # A leader that dials its workers is connected already, if it knows of us.
        is_known = any(each.epoch == leader.epoch for each in self._links)
        if leader.epoch < self.epoch or is_ours or is_known:
            return
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(1.0):
            await loop.create_connection(
                self._new_link, leader.host, leader.port, ssl=self._access.dials
            )

    def _new_link(self) -> LeaderLink:
        self._dialled = self._accepted_link()
        return self._dialled

    def _accepted_link(self) -> LeaderLink:
        return LeaderLink(
            self._access.handshake(), on_made=self._links.add, on_admitted=self._greet,
            on_frames=self._handle, on_lost=self._lost, on_bad=self._bad,
        )  # fmt: skip

    async def _listen(self) -> None:
        """Let leaders dial us that have us in their list."""
        host, _, port = self._config.listen.rpartition(":")
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            self._accepted_link, host, int(port), **tls_options(self._access)
        )
        try:
            await server.serve_forever()
        finally:
            server.close()

    def _greet(self, link: LeaderLink) -> None:
        link.credit = self._in_flight.credit
        link.send(encode_hello(epoch=self.epoch, credit=link.credit, name=self._config.name))

    def _lost(self, link: LeaderLink) -> None:
        self._links.discard(link)
        self._in_flight.drop(link)
        if self._pool is not None:
            self._pool.give([item for item in self._pool.take_back() if item[4] is not link])
        log.info("leader_lost epoch=%d", link.epoch)

    def _bad(self, link: LeaderLink, reason: str) -> None:
        self._search.refusal = reason
        link.close(reason)

    # Frames

    def _handle(self, link: LeaderLink, frames: Sequence[Frame]) -> None:
        if link.claim is not None:
            link.held += frames
            return
        for at, frame in enumerate(frames):
            match frame:
                case ProcessBatch(epoch, deliveries, uuids, births_ms, bodies):
                    if self._is_refused(link, epoch, len(uuids)):
                        return
                    self._take(link, deliveries, uuids, births_ms, bodies)
                case Contexts(epoch, contexts):
                    if self._is_refused(link, epoch, 0):
                        return
                    link.contexts |= contexts
                case Welcome():
                    is_new = frame.epoch > self.epoch or not self.epoch
                    if is_new and frame.epoch != self._lock_epoch:
                        link.hold(frame, [*frames[at + 1 :]])
                        return
                    self._welcomed(link, frame)
                case Close(epoch, reason):
                    log.info("leader_closes epoch=%d reason=%s", epoch, printable(reason))
                    self._search.refusal = reason
                    link.close()
                case ProcessMessage():  # for workers that say no hello
                    link.close("a worker that says hello takes batches", epoch=self.epoch)
                case _:
                    pass

    def _welcomed(self, link: LeaderLink, welcome: Welcome) -> None:
        before = self.epoch
        if not self._fence.lets(welcome.epoch):
            self._is_refused(link, welcome.epoch, 0)
            return
        link.welcome = welcome
        self.is_welcomed.set()
        if welcome.epoch > before:
            log.info("leader_found epoch=%d", welcome.epoch)
            for other in [*self._links]:
                # Kept open until it speaks again: then it is told that it leads no more.
                if other.epoch < welcome.epoch and other.welcome is not None:
                    other.is_stale = True
                    self._in_flight.drop(other)
        self._retire_dialled()

    def _retire_dialled(self) -> None:
        """Let go of the connection that we dialled, if its leader has dialled us too: it would take
        us for two. Not of the other one, which it would dial again and again."""
        dialled = self._dialled
        if dialled is None or dialled.welcome is None or dialled.retires_at is not None:
            return
        others = (each for each in self._links if each is not dialled and not each.is_stale)
        if any(each.is_open and each.epoch == dialled.epoch for each in others):
            # A little later: more may be on its way, sent before the leader hears of this.
            dialled.retires_at = asyncio.get_running_loop().time() + TICK_S
            dialled.credit = 0
            dialled.send(encode_credit(epoch=dialled.epoch, credit=0))

    def _is_refused(self, link: LeaderLink, epoch: int, messages: int) -> bool:
        if epoch == self.epoch and not link.is_stale and link.welcome is not None:
            return False
        self.counts.refused_frames += 1
        self.counts.refused_messages += messages
        log.warning("frame_refused epoch=%d highest=%d messages=%d", epoch, self.epoch, messages)
        link.send(encode_close(epoch=self.epoch, reason=f"epoch {epoch} is over"))
        link.close()
        return True

    def _take(
        self,
        link: LeaderLink,
        deliveries: int,
        uuids: list[bytes],
        births_ms: list[int],
        bodies: Sequence[bytes],
    ) -> None:
        assert self._pool is not None
        rows = self._in_flight.take(uuids, link, asyncio.get_running_loop().time())
        self.counts.received += len(uuids)
        items: list[Item] = [(uuids[r], births_ms[r], bodies[r], deliveries, link) for r in rows]
        self._pool.give(items)

    # Results

    async def _write(self) -> None:
        """Write and answer what the pool has done, in as large batches as came together."""
        results = self._results
        while True:
            if not results:
                self._has_results.clear()
                await self._has_results.wait()
            batch = [results.popleft() for _ in range(min(len(results), WRITE_MESSAGES_MAX))]
            by_link: dict[LeaderLink, list[Result]] = {}
            for result in batch:
                link = result[0][4]
                assert isinstance(link, LeaderLink)
                by_link.setdefault(link, []).append(result)
            for link, theirs in by_link.items():
                if link.is_open and not link.is_stale:
                    await self._settle(link, theirs)

    async def _settle(self, link: LeaderLink, results: list[Result]) -> None:
        done: list[bytes] = []
        failed: dict[tuple[str, bool], list[bytes]] = {}
        to_write: list[Result] = []
        if link.contexts:
            for (uuid, *_), _ in results:
                link.contexts.pop(uuid, None)
        for result in results:
            (uuid, *_), value = result
            if value is None:
                done.append(uuid)
            elif isinstance(value, BaseException):
                self._tell_failure(uuid, value)
                failed.setdefault(reason_of(value), []).append(uuid)
            else:
                to_write.append(result)
        if len(done) + len(to_write):
            self.failures.succeeded()
        self.counts.skipped += len(done)
        if to_write:
            await self._write_out(link, to_write, done, failed)
        for start in range(0, len(done), UUIDS_MAX):
            link.send(encode_ack_batch(epoch=link.epoch, uuids=done[start : start + UUIDS_MAX]))
        self._in_flight.done(done)
        for (reason, is_permanent), uuids in failed.items():
            self.counts.failed += len(uuids)
            link.send(
                encode_nack(epoch=link.epoch, uuids=uuids, reason=reason, is_permanent=is_permanent)
            )
            self._in_flight.done(uuids)

    def _tell_failure(self, uuid: bytes, error: BaseException) -> None:
        report = self.failures.failed(error, asyncio.get_running_loop().time())
        if report is not None:
            trace = error if report.is_first else None
            text = printable(report.text)
            log.warning("handler_failed uuid=%s error=%s", uuid.hex(), text, exc_info=trace)

    async def _write_out(
        self,
        link: LeaderLink,
        results: list[Result],
        done: list[bytes],
        failed: dict[tuple[str, bool], list[bytes]],
    ) -> None:
        uuids = [item[0] for item, _ in results]
        births_ms = [item[1] for item, _ in results]
        values = [value for _, value in results]
        try:
            statuses = await self._sink.write(Writing(link.epoch, uuids, births_ms, values))
        except BadInput as error:  # the sink can tell that no retry mends it
            if len(results) == 1:
                failed.setdefault(reason_of(PermanentError(str(error))), []).extend(uuids)
                return
            # One of them spoils it for all: find out which.
            middle = len(results) // 2
            await self._write_out(link, results[:middle], done, failed)
            await self._write_out(link, results[middle:], done, failed)
            return
        counts = self.counts
        fresh, known = statuses.count(WRITTEN), statuses.count(KNOWN)
        counts.written += fresh
        counts.repeats += known
        if fresh + known == len(statuses):
            done += uuids
            return
        for result, uuid, status in zip(results, uuids, statuses, strict=True):
            if status in (WRITTEN, KNOWN):
                done.append(uuid)
            elif status == LATE:
                failed.setdefault(("older than the dedup window", True), []).append(uuid)
            elif status == AWAY:
                self._later.append(result)
        counts.retried += statuses.count(AWAY)
        if stale := statuses.count(STALE):
            counts.refused_writes += stale
            link.is_stale = True
            self._in_flight.drop(link)
            link.close(f"epoch {link.epoch} is over", epoch=self.epoch)

    # Time

    async def _tick(self) -> None:
        """Extend what takes long, say that we live, and try again what found no server."""
        assert self._pool is not None
        loop = asyncio.get_running_loop()
        retry_at = 0.0
        while True:
            slept_at = loop.time()
            await asyncio.sleep(TICK_S)
            now = loop.time()
            if now - slept_at > 3 * TICK_S:
                continue  # we were held up; what leaders said meanwhile is about to be read
            if self._later and now >= retry_at:
                retry_at = now + RETRY_S
                self._results.extend(self._later)
                self._later = []
                self._has_results.set()
            for link in [*self._links]:
                self._care_for(link, now)

    def _care_for(self, link: LeaderLink, now: float) -> None:
        assert self._pool is not None
        welcome = link.welcome
        if welcome is None:
            if now - link.heard_at > 3.0:
                link.abort()
            return
        deadline_s = welcome.deadline_ms / 1_000
        if (now - link.heard_at) * 1_000 > welcome.silence_ms_max:
            link.abort()
            return
        if link.is_stale:
            return
        if link.retires_at is not None:
            if now >= link.retires_at and not self._in_flight.holds_of(link):
                link.close("its leader has dialled this worker too", epoch=link.epoch)
                return
        elif not self._is_stopping.is_set():
            credit = self._in_flight.adapt(deadline_s=deadline_s, now=now)
            if credit != link.credit:
                link.credit = credit
                link.send(encode_credit(epoch=link.epoch, credit=credit))
        if now - link.extended_at >= deadline_s / 4:
            link.extended_at = now
            uuids = self._in_flight.to_extend(
                link, self._pool.at_work(), older_s=deadline_s / 4, now=now
            )
            if uuids:
                self.counts.extended += len(uuids)
                link.send(encode_progress(epoch=link.epoch, uuids=uuids[:UUIDS_MAX]))
        if (now - link.said_at) * 1_000 >= welcome.heartbeat_ms / 2:
            link.send(encode_heartbeat(epoch=link.epoch))
