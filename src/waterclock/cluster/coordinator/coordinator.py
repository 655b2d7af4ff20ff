"""The coordinator: the one place where nodes agree on who leads what. A store like etcd.

Reads and transactions are linearizable: an answer reflects everything that was answered before the
question was asked. Watches are late at worst, never out of order, and miss nothing: each change
comes once, all changes of one revision together.

Nothing here waits for ever on its own account: `read`, `write` and the leases answer or raise
`CoordinatorUnavailable` when no member does, which says nothing about whether it happened. A watch
goes on by itself when a member comes back or another answers.

Safety does not rest on leases: a lease that ended only lets others take over. Who holds it learns
that late, or never while it is cut off.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from waterclock.cluster.coordinator.requests import (
    KeyRange,
    Lease,
    LeaseId,
    RangeResult,
    Revision,
    Txn,
    TxnResult,
    WatchBatch,
)


class Coordinator(Protocol):
    """One client of the store. It remembers the greatest revision it saw: see `RevisionGuard`."""

    async def read(self, keys: KeyRange) -> RangeResult:
        """Return what a range holds now."""
        ...

    async def write(self, txn: Txn) -> TxnResult:
        """Do a transaction. It is sent once: if the answer is lost, read what became of it."""
        ...

    async def grant(self, ttl_s: int) -> Lease:
        """Return a new lease of at least so long. Keep it alive at a third of the time given."""
        ...

    async def keep_alive(self, lease: LeaseId) -> Lease:
        """Begin the time of a lease anew; `LeaseNotFound` if it ended."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease and delete its keys, all in one revision; `LeaseNotFound` if it ended."""
        ...

    def watch(
        self, keys: KeyRange, *, from_revision: Revision
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchBatch]]:
        """Follow all changes of a range from a revision on: one above that of a `read`.

        The iterator raises `Compacted` if changes from there on are no longer known; read again.
        """
        ...
