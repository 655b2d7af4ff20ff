"""What a client asks of a coordinator, as values: whoever has the store answers with an outcome.

The fake asks so over its pretended network, and processes of one machine over a socket.
"""

from typing import NamedTuple, assert_never

from waterclock.cluster.coordinator.errors import (
    Compacted,
    CoordinatorUnavailable,
    LeaseNotFound,
    RevisionWentBack,
)
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
from waterclock.cluster.coordinator.store import Store


class Read(NamedTuple):
    """What does a range hold?"""

    keys: KeyRange


class Grant(NamedTuple):
    """Give me a lease."""

    ttl_s: int


class KeepAlive(NamedTuple):
    """Begin the time of a lease anew."""

    lease: LeaseId


class Revoke(NamedTuple):
    """End a lease."""

    lease: LeaseId


class Watch(NamedTuple):
    """Tell me all changes of a range; answered many times, the last time with an error."""

    keys: KeyRange
    from_revision: Revision


Single = Read | Txn | Grant | KeepAlive | Revoke
"""Answered once."""
Question = Single | Watch
Refusal = CoordinatorUnavailable | LeaseNotFound | Compacted | RevisionWentBack
Outcome = RangeResult | TxnResult | Lease | WatchBatch | None | Refusal
"""An error is returned as a value: whoever drives the client raises it there."""


def outcome_of(
    question: Single, store: Store, *, now_ms: int
) -> RangeResult | TxnResult | Lease | LeaseNotFound | None:
    """Have a store do what it is asked."""
    try:
        match question:
            case Read(keys):
                return store.read(keys)
            case Txn():
                return store.write(question)
            case Grant(ttl_s):
                return store.grant(ttl_s, now_ms=now_ms)
            case KeepAlive(lease):
                return store.keep_alive(lease, now_ms=now_ms)
            case Revoke(lease):
                store.revoke(lease)
                return None
            case _:
                assert_never(question)
    except LeaseNotFound as error:
        return error
