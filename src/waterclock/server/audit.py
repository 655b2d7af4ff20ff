"""The audit of a node: denials and admin calls, written to its own topic `__audit`.

What is noted is decided in `security/audit.py`; here it is written. A call that changed something
is answered once its entry is on disk, so what was answered is not lost. Denials are written once a
tick, and logged then: nobody waits for them, and however many there are, there is one append. If
the disk takes nothing, entries wait for it, within bounds, and calls are answered all the same.

Nothing here fails a call, and nothing that is written here is a call: there is no audit of the
audit.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from waterclock.log.batch import encode_batch
from waterclock.model.config import Config
from waterclock.model.errors import WaterclockError
from waterclock.model.ids import UUID7_ENTROPY_BYTES
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.views import TopicSettings
from waterclock.node.node import Node
from waterclock.node.topics import Topic
from waterclock.runtime.structured_log import REQUEST_ID, redacted, request_id
from waterclock.security.audit import (
    CALLS,
    DENIALS,
    PARTITIONS,
    TICK_S,
    TOPIC,
    AuditBook,
    AuditEntry,
    Outcome,
    printable,
)
from waterclock.security.principals import KnownPrincipal
from waterclock.server.access import Asked, Demand

T = TypeVar("T")

log = logging.getLogger(__name__)

WRITTEN_S: Final = 5.0
"""How long a call waits for its entry to be on disk."""
LOGGED_MAX: Final = 10
"""Lines of a tick in the node's log: fewer than entries, for those have no retention."""
_LIMITS: Final = Limits()
"""Of our own: those that are configured are for clients."""
_LOOKED_CHARS_MAX: Final = 1_024
"""Of a text: what stands behind is cut off before secrets are looked for."""


class Audit:
    """Notes what happened, and writes it for as long as `run` runs."""

    def __init__(self, node: Node, config: Config, *, is_secure: bool) -> None:
        self._node = node
        settings = config.security
        self.is_kept = is_secure if settings.audit is None else settings.audit
        """There is a topic of it; else denials are logged only."""
        self._settings = TopicSettings(
            partitions=PARTITIONS,
            retention_ms=settings.audit_age_ms or 0,
            retention_bytes=settings.audit_bytes or 0,
            retention_wait_for_groups=False,
        )
        self._book = AuditBook()
        self._noted = asyncio.Event()
        self._written = asyncio.Event()
        """Set, and replaced, whenever the calls that were noted are written or cannot be."""
        self._writing = asyncio.Lock()
        self._is_running = False
        self._topic: Topic | None = None
        self._is_failing = False

    def __repr__(self) -> str:
        return f"<Audit {self._book!r}>"

    # What happened

    def denied(self, asked: Asked, error: WaterclockError) -> None:
        """Note that a call was refused; it returns at once."""
        principal = getattr(error, "principal", "")
        if asked.principal is not None:
            principal = asked.principal.name
        about: Demand | None = getattr(error, "about", None)
        resource = getattr(error, "resource", "") if about is None else ""
        self._book.note_denial(
            self._entry(asked, "denied", error, principal=principal, about=about, name=resource)
        )

    async def following(self, asked: Asked, demands: Sequence[Demand], work: Awaitable[T]) -> T:
        """Do the work of a call that changes something, and return once its entry is on disk."""
        try:
            result = await work
        except asyncio.CancelledError as error:
            # The client has gone. What it asked for may be done all the same.
            self.note_call(asked, demands, error)
            raise
        except Exception as error:
            await self.called(asked, demands, error)
            raise
        await self.called(asked, demands)
        return result

    async def called(
        self, asked: Asked, demands: Sequence[Demand], error: BaseException | None = None
    ) -> None:
        """Note how a call ended that changes something, and return once that is on disk."""
        if self.note_call(asked, demands, error):
            written = self._written
            try:
                async with asyncio.timeout(WRITTEN_S):
                    await written.wait()
            except TimeoutError:
                log.error("audit_late operation=%s: answered before its entry", asked.operation)

    def note_call(
        self, asked: Asked, demands: Sequence[Demand], error: BaseException | None = None
    ) -> bool:
        """Note how a call ended, without waiting; False if there will be no entry of it."""
        assert asked.principal is not None
        if not self.is_kept:
            return False
        about = demands[0] if demands else None
        if about is not None and not about.shown:
            about = about._replace(shown=next((each.shown for each in demands if each.shown), ""))
        outcome: Outcome = "allowed" if error is None else "failed"
        entry = self._entry(asked, outcome, error, principal=asked.principal.name, about=about)
        is_noted = self._book.note_call(entry, is_admin=asked.principal.rights.is_admin)
        self._noted.set()
        return is_noted and self._is_running

    def principals_changed(
        self, before: Mapping[str, KnownPrincipal], after: Mapping[str, KnownPrincipal]
    ) -> None:
        """Note whom the secure folder lets in otherwise than before; who wrote it is not known."""
        if not self.is_kept:
            return
        now_ms = self._node.clock.now_ms()
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) == after.get(name):
                continue
            what = "remove" if name not in after else "change" if name in before else "add"
            entry = AuditEntry(
                time_ms=now_ms,
                outcome="allowed",
                operation=f"secure_folder/{what}",
                name=_text(f"principal {name!r}"),
            )
            self._book.note_call(entry, is_admin=False)
        self._noted.set()

    def _entry(
        self,
        asked: Asked,
        outcome: Outcome,
        error: BaseException | None,
        *,
        principal: str,
        about: Demand | None,
        name: str = "",
    ) -> AuditEntry:
        if about is not None:
            name = about.shown
        return AuditEntry(
            time_ms=self._node.clock.now_ms(),
            outcome=outcome,
            principal=_text(principal),
            address=_text(asked.address),
            transport=asked.transport,
            operation=_text(asked.operation),
            topic="" if about is None else _text(about.topic),
            stream="" if about is None else _text(about.stream),
            group="" if about is None else _text(about.group),
            name=_text(name),
            error="" if error is None else type(error).__name__,
            request_id=_text(request_id()),
        )

    # Writing

    async def run(self) -> None:
        """Write what is noted until cancelled."""
        self._is_running = True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write_calls())
                tasks.create_task(self._tick())
        finally:
            self._is_running = False

    async def close(self) -> None:
        """Write what is left, if that can be done soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITTEN_S):
                await self._write_denials()
                await self._write_noted_calls()

    async def _write_calls(self) -> None:
        while True:
            await self._noted.wait()
            self._noted.clear()
            await self._write_noted_calls()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._write_denials()
            if self._book.has_calls:
                self._noted.set()

    async def _write_noted_calls(self) -> None:
        async with self._writing:
            calls = self._book.take_calls()
            written, self._written = self._written, asyncio.Event()
            if calls and not await self._write(CALLS, calls):
                self._book.keep_calls(calls)
            written.set()

    async def _write_denials(self) -> None:
        async with self._writing:
            denials = self._book.tick(self._node.clock.now_ms())
            _log(denials)
            entries = [*self._book.take_kept_denials(), *denials]
            if self.is_kept and entries and not await self._write(DENIALS, entries):
                self._book.keep_denials(entries)

    async def _write(self, partition: int, entries: Sequence[AuditEntry]) -> bool:
        """Append entries; they are durable on return. False if that cannot be now."""
        node = self._node
        messages = [Message(entry.encode()) for entry in entries]
        entropy = os.urandom(UUID7_ENTROPY_BYTES)
        batch = encode_batch(messages, _LIMITS, now_ms=node.clock.now_ms(), entropy=entropy)
        try:
            if self._topic is None:
                self._topic = await node.topics.ensure_own(TOPIC, self._settings)
            await self._topic.partition(partition).publish(batch)
        except WaterclockError as error:
            if not self._is_failing:
                log.error("audit_not_written error=%s: entries wait", error)
            self._is_failing = True
            return False
        if self._is_failing:
            log.info("audit_written entries=%d", len(entries))
        self._is_failing = False
        return True


def _log(denials: Sequence[AuditEntry]) -> None:
    """Log denials, each as of the request that it is of."""
    for entry in denials[:LOGGED_MAX]:
        token = REQUEST_ID.set(entry.request_id)
        try:
            log.warning(
                "denied error=%s principal=%s address=%s operation=%s topic=%s stream=%s group=%s "
                "count=%d",
                entry.error or "several",
                entry.principal,
                entry.address,
                entry.operation,
                entry.topic,
                entry.stream,
                entry.group,
                entry.count,
            )
        finally:
            REQUEST_ID.reset(token)
    if rest := sum(entry.count for entry in denials[LOGGED_MAX:]):
        log.warning("denied_more count=%d", rest)


def _text(text: str | None) -> str:
    return printable(redacted(text[:_LOOKED_CHARS_MAX])) if text else ""
