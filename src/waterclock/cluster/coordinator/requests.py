"""What is asked of a coordinator and what it answers: etcd's model, and only what is needed of it.

Keys and values are bytes. Each transaction that changes something gives the store its next
*revision*; a key remembers the one that changed it last, and a change is made under the condition
that certain keys are still at the revision that was read (compare-and-swap). 0 stands for a key
that is not there. Limits are checked here, so that every coordinator refuses the same.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, NewType

from waterclock.model.errors import BadInput, LimitExceeded

Revision = NewType("Revision", int)
"""Of the whole store: it grows by one with each transaction that changes something."""

LeaseId = NewType("LeaseId", int)

NO_LEASE: Final = LeaseId(0)
ABSENT: Final = Revision(0)
"""The revision of a key that is not there."""

OPERATIONS_MAX: Final = 128
"""In each part of a transaction: etcd's own limit (max-txn-ops)."""
REQUEST_BYTES_MAX: Final = 1_048_576
"""Keys and values of a transaction together; etcd takes 1.5 MiB with everything around them."""
LEASE_S_MAX: Final = 9_000_000_000
"""As in etcd."""


class KeyRange(NamedTuple):
    """The keys from `start` up to and not including `end`."""

    start: bytes
    end: bytes

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.start <= key < self.end


def one_key(key: bytes) -> KeyRange:
    """Return the range that holds this key and no other."""
    return KeyRange(key, key + b"\0")


def all_below(prefix: bytes) -> KeyRange:
    """Return the range of all keys that begin so."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        raise BadInput("a prefix needs a byte below 255")
    return KeyRange(prefix, stem[:-1] + bytes([stem[-1] + 1]))


class KeyValue(NamedTuple):
    """A key as it is at some revision."""

    key: bytes
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    version: int
    """How often it was put since it was created; 1 is the first."""
    lease: LeaseId = NO_LEASE


class Unchanged(NamedTuple):
    """The condition that a key is at the revision it was read at; `ABSENT`: that there is none."""

    key: bytes
    mod_revision: Revision


class Put(NamedTuple):
    """Set a key. With a lease it goes when the lease does; without, it is freed of any it had."""

    key: bytes
    value: bytes
    lease: LeaseId = NO_LEASE


class Delete(NamedTuple):
    """Remove all keys of a range; that there are none is no error."""

    keys: KeyRange


class Get(NamedTuple):
    """Read a range, as the operations before it in the transaction left it."""

    keys: KeyRange


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class Txn:
    """If all conditions hold, do `success` in order, else `failure`: at one moment, or not at all.

    A key is written by one operation only.
    """

    conditions: tuple[Unchanged, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()

    def __post_init__(self) -> None:
        for part in (self.conditions, self.success, self.failure):
            if len(part) > OPERATIONS_MAX:
                raise LimitExceeded("transaction operations", OPERATIONS_MAX, got=len(part))
        size = sum(len(each.key) for each in self.conditions)
        for branch in (self.success, self.failure):
            size += sum(_size(each) for each in branch)
            _check_written_once(branch)
        if size > REQUEST_BYTES_MAX:
            raise LimitExceeded("transaction bytes", REQUEST_BYTES_MAX, got=size)
        if not all(_names_keys(each) for each in (*self.conditions, *self.success, *self.failure)):
            raise BadInput("a key is empty, or a range ends before it begins")


def _size(operation: Operation) -> int:
    match operation:
        case Put(key, value, _):
            return len(key) + len(value)
        case Delete(keys) | Get(keys):
            return len(keys.start) + len(keys.end)


def _names_keys(each: Unchanged | Operation) -> bool:
    match each:
        case Unchanged(key, _) | Put(key, _, _):
            return bool(key)
        case Delete(keys) | Get(keys):
            return b"" < keys.start < keys.end


def _check_written_once(branch: tuple[Operation, ...]) -> None:
    puts = [each.key for each in branch if isinstance(each, Put)]
    deleted = [each.keys for each in branch if isinstance(each, Delete)]
    if len(set(puts)) < len(puts) or any(key in keys for keys in deleted for key in puts):
        raise BadInput("a key is written by two operations of a transaction")


class RangeResult(NamedTuple):
    """What a range held, in the order of keys, and the store's revision at that moment."""

    revision: Revision
    items: tuple[KeyValue, ...]


class TxnResult(NamedTuple):
    """Which branch was done, and what its `Get`s read, in their order."""

    revision: Revision
    succeeded: bool
    reads: tuple[tuple[KeyValue, ...], ...] = ()


class Lease(NamedTuple):
    """A lease ends `ttl_s` after it was granted or last kept alive; then its keys are deleted."""

    lease: LeaseId
    ttl_s: int
    """What was given: at least what was asked for."""


class Event(NamedTuple):
    """One change of a key."""

    revision: Revision
    key: bytes
    item: KeyValue | None
    """As it was put; None: it was deleted."""


class WatchBatch(NamedTuple):
    """Changes of one or more whole revisions, in order. The next batch is of later ones."""

    events: tuple[Event, ...]

    @property
    def revision(self) -> Revision:
        """The last one in here: whoever watches again begins one above it."""
        return self.events[-1].revision
