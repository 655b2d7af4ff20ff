"""The `Coordinator` over etcd's API.

A read and the leases are asked of one member after the other until one answers. A transaction is
sent once: were it sent again after its answer was lost, its own first coming would fail the second
one's conditions, and the caller would be told that somebody else was faster.

A watch goes on by itself. It remembers the last revision it handed out, and etcd never cuts a
revision in two, so whichever member it goes on with, nothing is lost and nothing comes twice. Each
time it begins, the store is asked for its revision: one below where the watch is to go on would
silently wait for changes that it gives the same numbers again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from logging import getLogger
from typing import TYPE_CHECKING

import grpc.aio

from waterclock.cluster.coordinator.errors import (
    Compacted,
    CoordinatorUnavailable,
    LeaseNotFound,
)
from waterclock.cluster.coordinator.requests import (
    NO_LEASE,
    KeyRange,
    Lease,
    LeaseId,
    Put,
    RangeResult,
    Revision,
    Txn,
    TxnResult,
    WatchBatch,
)
from waterclock.cluster.coordinator.revision_guard import RevisionGuard
from waterclock.server.cluster.etcd.members import EtcdSettings, Members, NotThere
from waterclock.server.cluster.etcd.wire import (
    GRANT,
    KEEP_ALIVE,
    RANGE,
    REVOKE,
    TXN,
    WATCH,
    decode_events,
    decode_items,
    decode_reads,
    encode_range,
    encode_txn,
    encode_watch,
)
from waterclock.v1 import etcd_pb2 as pb

if TYPE_CHECKING:
    WatchCall = grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]

log = getLogger(__name__)


class EtcdCoordinator:
    """One client of an etcd cluster. Make it and close it in the loop that uses it."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._members = Members(settings)
        self._guard = RevisionGuard()

    def __repr__(self) -> str:
        return f"<EtcdCoordinator {self._members}, {self._guard}>"

    @property
    def endpoint(self) -> str:
        """The member that would be asked now."""
        return self._members.first

    async def close(self) -> None:
        """Close all connections. End your watches first."""
        await self._members.close()

    async def read(self, keys: KeyRange) -> RangeResult:
        """Return what a range holds now."""
        at_least = self._guard.asked()
        answer = await self._members.ask(RANGE, encode_range(keys))
        revision = self._answered(answer.header, at_least)
        return RangeResult(revision, decode_items(answer))

    async def write(self, txn: Txn) -> TxnResult:
        """Do a transaction. It is sent once: if the answer is lost, read what became of it."""
        at_least = self._guard.asked()
        try:
            answer = await self._members.ask(TXN, encode_txn(txn), is_repeatable=False)
        except NotThere as error:
            puts = [each for each in (*txn.success, *txn.failure) if isinstance(each, Put)]
            named = next(each.lease for each in puts if each.lease != NO_LEASE)
            raise LeaseNotFound(named) from error
        revision = self._answered(answer.header, at_least)
        return TxnResult(revision, answer.succeeded, decode_reads(answer))

    async def grant(self, ttl_s: int) -> Lease:
        """Return a new lease. One whose answer was lost ends by itself, and has no keys."""
        self._guard.asked()
        answer = await self._members.ask(GRANT, pb.LeaseGrantRequest(TTL=ttl_s))
        return Lease(LeaseId(answer.ID), answer.TTL)

    async def keep_alive(self, lease: LeaseId) -> Lease:
        """Begin the time of a lease anew."""
        self._guard.asked()
        # A stream of etcd's, of which one question and one answer are the same as a plain call.
        answer = await self._members.ask(KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease))
        if answer.TTL <= 0:
            raise LeaseNotFound(lease)
        return Lease(lease, answer.TTL)

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease and delete its keys."""
        self._guard.asked()
        try:
            # Sent once: the second one could not tell that the first was there.
            asked = pb.LeaseRevokeRequest(ID=lease)
            await self._members.ask(REVOKE, asked, is_repeatable=False)
        except NotThere as error:
            raise LeaseNotFound(lease) from error

    def watch(
        self, keys: KeyRange, *, from_revision: Revision
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchBatch]]:
        """Follow all changes of a range, over broken connections too."""
        return aclosing(self._batches(keys, from_revision))

    async def _batches(
        self, keys: KeyRange, from_revision: Revision
    ) -> AsyncGenerator[WatchBatch, None]:
        while True:
            try:
                async with self._members.stream(WATCH) as (member, call):
                    try:
                        async with asyncio.timeout(self._settings.attempt_s):
                            await self._begin(call, keys, from_revision)
                    except TimeoutError as error:
                        self._members.failed(member)
                        raise CoordinatorUnavailable(f"{member} begins no watch") from error
                    while True:
                        batch = await self._next_batch(call, from_revision)
                        if batch.events:
                            self._guard.answered(batch.revision, at_least=Revision(0))
                            from_revision = Revision(batch.revision + 1)
                            yield batch
            except CoordinatorUnavailable as error:
                log.warning("coordinator_watch_broken from_revision=%d: %s", from_revision, error)
                await asyncio.sleep(self._settings.pause_s)

    async def _begin(self, call: "WatchCall", keys: KeyRange, from_revision: Revision) -> None:
        # From one before, for etcd takes a watch from the very revision it compacted, and before
        # 3.4.36 and 3.5.18 it has then forgotten what was deleted in it (its pull request 19251).
        await call.write(encode_watch(keys, max(1, from_revision - 1)))
        answer = await call.read()
        is_begun = isinstance(answer, pb.WatchResponse) and answer.created and not answer.canceled
        at_least = max(self._guard.asked(), Revision(from_revision - 1))
        # If the user may not watch this, or the token was old, this says so or fetches another.
        found = await self._members.ask(
            RANGE, pb.RangeRequest(key=keys.start, range_end=keys.end, count_only=True)
        )
        self._answered(found.header, at_least)
        if not is_begun:
            raise CoordinatorUnavailable("etcd did not begin the watch")

    async def _next_batch(self, call: "WatchCall", from_revision: Revision) -> WatchBatch:
        answer = await call.read()
        if not isinstance(answer, pb.WatchResponse):
            raise CoordinatorUnavailable("etcd ended the watch")
        if answer.compact_revision:
            raise Compacted(wanted=from_revision, compacted=answer.compact_revision)
        if answer.canceled:
            raise CoordinatorUnavailable(f"etcd cancelled the watch: {answer.cancel_reason}")
        events = decode_events(answer)
        return WatchBatch(tuple(each for each in events if each.revision >= from_revision))

    def _answered(self, header: pb.ResponseHeader, at_least: Revision) -> Revision:
        revision = Revision(header.revision)
        self._guard.answered(revision, at_least=at_least)
        return revision
