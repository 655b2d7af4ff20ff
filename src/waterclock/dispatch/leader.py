"""What a dispatcher does while it leads: the plan, driven. One of these for each epoch.

    source --Load--> plan --HandOut--> links --frames--> plan --Settle, WriteDeadLetters--> source

Everything is done in bulk, and as soon as it comes: what arrives while Redis answers is the next
batch, so batches grow with the load and nothing ever lingers. Nothing is handed out once the lease
is over by our own clock; what is on its way then bears our epoch, and is refused.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from itertools import count
from random import Random
from typing import assert_never

from waterclock.dispatch.access import Access
from waterclock.dispatch.config import DispatcherConfig
from waterclock.dispatch.core.batches import (
    DeadLetter,
    Effect,
    Load,
    Settle,
    WriteDeadLetters,
)
from waterclock.dispatch.core.plan import Plan
from waterclock.dispatch.frames import (
    AckBatch,
    AckMessage,
    Auth,
    Close,
    Contexts,
    Credit,
    Frame,
    Heartbeat,
    Hello,
    Nack,
    ProcessBatch,
    ProcessMessage,
    Progress,
    Token,
    Welcome,
    encode_contexts,
    encode_heartbeat,
    encode_welcome,
)
from waterclock.dispatch.links import WorkerLink, printable
from waterclock.dispatch.metrics import DispatcherCounts
from waterclock.dispatch.sources.source import Source, until_answered
from waterclock.dispatch.tracing import dispatch_spans
from waterclock.model.errors import NotAuthenticated

log = logging.getLogger(__name__)

TICK_S = 0.025
HELLO_S = 1.0
"""A connection that says nothing for so long is a worker of the simple kind."""
SETTLE_MAX = 10_000
UNSENT_BATCHES_MAX = 4
DIAL_S = 0.2

_numbers = count(1)


def now_ms() -> int:
    """Return the time of the plan's clock, which never jumps."""
    return time.monotonic_ns() // 1_000_000


class Leader:
    """Leads under one epoch. It is also its source's `Intake`."""

    def __init__(
        self,
        config: DispatcherConfig,
        source: Source,
        access: Access,
        *,
        epoch: int,
        is_held: Callable[[int], bool],
        on_doubt: Callable[[], None],
        counts: DispatcherCounts,
    ) -> None:
        self.epoch = epoch
        self._config = config
        self._source = source
        self._access = access
        self._is_held = is_held
        self._on_doubt = on_doubt
        """Called when a worker says that there is a later leader than us. Anybody can say so: only
        Redis is believed."""
        self._counts = counts
        self._plan = Plan(config.plan(), Random(epoch))
        self._seen = {field.name: 0 for field in fields(self._plan.counts)}
        self._links: dict[int, WorkerLink] = {}
        self._has_room = asyncio.Event()
        self._room_low = max(1, config.queue_messages_max // 20)
        self._credit = 0
        self._stored_batches: list[bytes] = []
        self._entries: list[bytes] = []
        self._dead_letters: list[DeadLetter] = []
        self._has_settled = asyncio.Event()
        self._has_dead_letters = asyncio.Event()
        self._spans = dispatch_spans(config.source)

    def __repr__(self) -> str:
        return f"<Leader epoch {self.epoch}, {self._plan!r}>"

    # Figures

    @property
    def queued(self) -> int:
        """Messages that wait for a worker."""
        return self._plan.waiting

    @property
    def in_flight(self) -> int:
        """Messages that workers have."""
        return self._plan.in_flight

    @property
    def workers(self) -> list[tuple[int, str, int, int]]:
        """Number, name, credit and messages held of each worker."""
        return self._plan.workers()

    # Intake

    @property
    def room(self) -> int:
        """How many messages the plan would take."""
        return self._plan.room

    @property
    def appetite(self) -> int:
        """How many more make sense: twice what all workers may hold, and a page to begin with."""
        wanted = max(self._config.read_count, 2 * self._credit)
        return max(0, min(self._plan.room, wanted - self._plan.held))

    async def until_room(self) -> None:
        """Return when there is room, and appetite."""
        while self.room < self._room_low or self.appetite <= 0:
            self._has_room.clear()
            await self._has_room.wait()

    def add(self, load: Load) -> None:
        """Take in messages, and hand out at once what can be."""
        if self._spans is not None and load.contexts:
            self._spans.add(load.contexts)
        self._perform(self._plan.add(load))
        self._pump()

    # Leading

    async def lead(self) -> None:
        """Lead until cancelled. Raises `Stale` if another dispatcher does, under a higher epoch."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._source.lead(self))
                tasks.create_task(self._settle())
                tasks.create_task(self._write_dead_letters())
                tasks.create_task(self._tick())
                for address in self._config.workers:
                    tasks.create_task(self._dial(address))
        finally:
            self._count()
            for link in [*self._links.values()]:
                link.close("this dispatcher leads no more", epoch=self.epoch)

    async def flush(self) -> None:
        """Settle what is done, once: what is not will only be done again."""
        stored_batches, self._stored_batches = self._stored_batches, []
        entries, self._entries = self._entries, []
        if stored_batches or entries:
            await self._source.settle(self.epoch, stored_batches=stored_batches, entries=entries)

    def new_link(self, *, is_named: bool = False) -> WorkerLink:
        """Return the protocol of a new connection; to a worker of the list, or from anybody."""
        may_be_simple = is_named or self._config.takes_simple_workers
        return WorkerLink(
            next(_numbers), self._access.handshake(),
            may_be_simple=may_be_simple and self._config.legacy_credit > 0,
            on_made=self._made, on_frames=self._handle, on_lost=self._lost, on_bad=self._bad,
        )  # fmt: skip

    async def _dial(self, address: str) -> None:
        """Keep a connection to a worker of the list."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        new_link = partial(self.new_link, is_named=True)
        while True:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    _, link = await loop.create_connection(
                        new_link, host, int(port), ssl=self._access.dials
                    )
                await link.lost
            await asyncio.sleep(DIAL_S)

    async def _settle(self) -> None:
        """Tell the source what is done, all that came together at once."""
        while True:
            if not (self._stored_batches or self._entries):
                self._has_settled.clear()
                await self._has_settled.wait()
            stored_batches, self._stored_batches = (
                self._stored_batches[:SETTLE_MAX],
                self._stored_batches[SETTLE_MAX:],
            )
            entries, self._entries = self._entries[:SETTLE_MAX], self._entries[SETTLE_MAX:]
            settle = partial(self._source.settle, self.epoch)
            await until_answered(partial(settle, stored_batches=stored_batches, entries=entries))

    async def _write_dead_letters(self) -> None:
        while True:
            if not self._dead_letters:
                self._has_dead_letters.clear()
                await self._has_dead_letters.wait()
            dead_letters, self._dead_letters = self._dead_letters[:100], self._dead_letters[100:]
            for dead_letter in dead_letters:
                log.warning(
                    "message_dead_lettered uuid=%s reason=%s",
                    dead_letter.uuid.hex(),
                    printable(dead_letter.reason),
                )
            await until_answered(partial(self._source.write_dead_letters, self.epoch, dead_letters))
            self._done([dead_letter.uuid for dead_letter in dead_letters])
            self._perform(
                self._plan.dead_lettered([dead_letter.uuid for dead_letter in dead_letters])
            )
            self._changed()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        care_at = 0.0
        while True:
            slept_at = loop.time()
            await asyncio.sleep(TICK_S)
            if loop.time() - slept_at > 10 * TICK_S:
                # We were held up; what workers said meanwhile is about to be read.
                care_at = loop.time() + 4 * TICK_S
            now = now_ms()
            due = self._plan.next_deadline(now)
            if due is not None and due <= now:
                self._perform(self._plan.tick(now))
                self._pump()
            if loop.time() >= care_at:
                care_at = loop.time() + 4 * TICK_S
                self._count()
                for link in [*self._links.values()]:
                    self._care_for(link, loop.time())

    def _care_for(self, link: WorkerLink, now: float) -> None:
        config = self._config
        if not link.is_open:  # it was refused, and takes its time to hang up
            return
        if not link.is_joined:
            may_be_simple = link.may_be_simple and link.is_admitted
            if now - link.made_at > HELLO_S and not may_be_simple:
                self._bad(link, "said no hello")
            elif now - link.made_at > HELLO_S:
                link.is_simple, link.name = True, f"simple-{link.key}"
                self._join(link, config.legacy_credit)
            return
        if link.is_simple:
            # It gives no signs of life, and is handed more after each rest: does it read at all?
            if link.unsent_bytes > UNSENT_BATCHES_MAX * config.batch_bytes_max:
                log.warning("worker_does_not_read worker=%s", link.name)
                link.abort()
            return
        if (now - link.heard_at) * 1_000 > config.silence_ms_max:
            log.warning("worker_silent worker=%s", link.name)
            link.abort()
        elif (now - link.said_at) * 1_000 >= config.heartbeat_ms / 2:
            link.send(encode_heartbeat(epoch=self.epoch))

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Settle(stored_batches, entries):
                    self._stored_batches += stored_batches
                    self._entries += entries
                    self._has_settled.set()
                case WriteDeadLetters(dead_letters):
                    self._dead_letters += dead_letters
                    self._has_dead_letters.set()
                case _:
                    assert_never(effect)

    def _pump(self) -> None:
        """Hand out what can be, if we still lead."""
        now = now_ms()
        if not self._is_held(now):
            return
        for out in self._plan.hand_out(now):
            link = self._links[out.worker]
            if self._spans is not None and not link.is_simple:
                contexts = self._spans.handed_out(out)
                if contexts:
                    link.send(encode_contexts(epoch=self.epoch, contexts=contexts))
            link.hand(out, self.epoch)

    def _changed(self) -> None:
        if self.room >= self._room_low and self.appetite > 0:
            self._has_room.set()
        self._pump()

    # Workers

    def _made(self, link: WorkerLink) -> None:
        self._links[link.key] = link

    def _lost(self, link: WorkerLink) -> None:
        self._links.pop(link.key, None)
        if link.is_joined:
            log.info("worker_left worker=%s", link.name)
            self._perform(self._plan.left(link.key, now_ms()))
            self._recount_credit()
            self._changed()

    def recheck(self) -> None:
        """Hang up on workers that would not be let in any more."""
        for link in [*self._links.values()]:
            if not link.is_open:  # it was refused, and takes its time to hang up
                continue
            try:
                link.recheck()
            except NotAuthenticated as error:
                self._bad(link, str(error))

    def _bad(self, link: WorkerLink, reason: str) -> None:
        self._counts.bad_connections += 1
        log.warning("connection_refused worker=%s reason=%s", link.name, reason)
        link.close(reason, epoch=self.epoch)

    def _join(self, link: WorkerLink, credit: int) -> None:
        link.is_joined = True
        log.info("worker_joined worker=%s credit=%d", link.name, credit)
        self._plan.joined(link.key, name=link.name, credit=credit)
        self._recount_credit()
        self._changed()

    def _recount_credit(self) -> None:
        self._credit = sum(credit for _, _, credit, _ in self._plan.workers())

    def _handle(self, link: WorkerLink, frames: list[Frame]) -> None:
        for frame in frames:
            match frame:
                case AckMessage(uuid):
                    if link.is_joined:
                        self._done([uuid])
                        self._perform(self._plan.acked([uuid], link.key))
                case Hello():
                    self._greeted(link, frame)
                case ProcessBatch() | ProcessMessage() | Welcome() | Auth() | Contexts() | Token():
                    raise AssertionError("the link lets none of these pass to a leader")
                case Close(epoch, reason):
                    log.info("worker_closes worker=%s reason=%s", link.name, printable(reason))
                    link.abort()
                    if epoch > self.epoch and link.is_admitted:
                        self._on_doubt()
                case _:
                    if frame.epoch == self.epoch and link.is_joined:
                        self._answered(link, frame)
        self._changed()

    def _greeted(self, link: WorkerLink, hello: Hello) -> None:
        if hello.epoch > self.epoch:
            # If Redis says so too, we step down; if not, this worker has its epoch from nobody.
            self._on_doubt()
            self._bad(link, f"epoch {hello.epoch} is above ours, {self.epoch}")
            return
        if link.is_joined:
            self._bad(link, "a second hello")
            return
        link.name = hello.name
        config = self._config
        link.send(
            encode_welcome(
                epoch=self.epoch, deadline_ms=config.deadline_ms,
                heartbeat_ms=config.heartbeat_ms, silence_ms_max=config.silence_ms_max,
            )
        )  # fmt: skip
        self._join(link, min(hello.credit, config.worker_credit_max))

    def _answered(
        self, link: WorkerLink, frame: AckBatch | Credit | Progress | Nack | Heartbeat
    ) -> None:
        plan, key = self._plan, link.key
        match frame:
            case AckBatch(_, uuids):
                self._done(uuids)
                self._perform(plan.acked(uuids, key))
            case Credit(_, credit):
                plan.credited(key, min(credit, self._config.worker_credit_max))
                self._recount_credit()
            case Progress(_, uuids):
                plan.progressed(uuids, key, now_ms())
            case Nack(_, uuids, reason, is_permanent):
                effects = plan.nacked(
                    uuids, key, now_ms(), reason=reason, is_permanent=is_permanent
                )
                self._perform(effects)
            case Heartbeat():
                pass
            case _:
                assert_never(frame)

    def _done(self, uuids: Sequence[bytes]) -> None:
        if self._spans is not None:
            self._spans.done(uuids)

    def _count(self) -> None:
        """Add what the plan counted since the last time to what the dispatcher counts."""
        counts = self._counts
        for name, seen in self._seen.items():
            value = getattr(self._plan.counts, name)
            self._seen[name] = value
            if hasattr(counts, name):
                setattr(counts, name, getattr(counts, name) + value - seen)
