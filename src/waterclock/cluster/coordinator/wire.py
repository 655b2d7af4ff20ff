"""Questions and answers between the processes of one machine and the one that started them.

Messages are MessagePack arrays behind their length: docs/formats/process_coordinator.md has each.
Both sides are of one release, for the one starts the other.
"""

import struct
from typing import Final, NamedTuple, assert_never

import msgspec

from waterclock.cluster.coordinator.errors import Compacted, LeaseNotFound
from waterclock.cluster.coordinator.questions import (
    Grant,
    KeepAlive,
    Question,
    Read,
    Revoke,
    Watch,
)
from waterclock.cluster.coordinator.requests import (
    Delete,
    Get,
    KeyRange,
    Lease,
    LeaseId,
    Operation,
    Put,
    RangeResult,
    Revision,
    Txn,
    TxnResult,
    Unchanged,
    WatchBatch,
)
from waterclock.model.errors import BadInput

LENGTH: Final = struct.Struct("<I")
QUESTION_BYTES_MAX: Final = 4 << 20
"""More than a transaction may have, with everything around its keys and values."""
ANSWER_BYTES_MAX: Final = 1 << 30


class _Step(NamedTuple):
    """An operation of a transaction: its kind, and one of `Put(first, second, lease)`,
    `Delete(first, second)` or `Get(first, second)`."""

    kind: int
    first: bytes
    second: bytes
    lease: LeaseId


_PUT, _DELETE, _GET = range(3)


class _Message(msgspec.Struct, array_like=True, frozen=True):
    number: int
    """Of the question; a client uses each once."""


class ReadAsked(_Message, tag="read", frozen=True):
    """What does a range hold?"""

    keys: KeyRange


class TxnAsked(_Message, tag="txn", frozen=True):
    """Do this if the conditions hold, else that."""

    conditions: tuple[Unchanged, ...]
    success: tuple[_Step, ...]
    failure: tuple[_Step, ...]


class GrantAsked(_Message, tag="grant", frozen=True):
    """Give me a lease."""

    ttl_s: int


class KeepAliveAsked(_Message, tag="keep", frozen=True):
    """Begin the time of a lease anew."""

    lease: LeaseId


class RevokeAsked(_Message, tag="revoke", frozen=True):
    """End a lease and delete its keys."""

    lease: LeaseId


class WatchAsked(_Message, tag="watch", frozen=True):
    """Tell me all changes of a range from a revision on."""

    keys: KeyRange
    from_revision: Revision


class WatchEnded(_Message, tag="end", frozen=True):
    """Tell me no more of a watch."""


Asked = ReadAsked | TxnAsked | GrantAsked | KeepAliveAsked | RevokeAsked | WatchAsked | WatchEnded


class RangeAnswer(_Message, tag="range", frozen=True):
    """What a range holds."""

    result: RangeResult


class TxnAnswer(_Message, tag="done", frozen=True):
    """What became of a transaction."""

    result: TxnResult


class LeaseAnswer(_Message, tag="lease", frozen=True):
    """A lease, granted or kept alive."""

    lease: Lease


class Revoked(_Message, tag="revoked", frozen=True):
    """The lease has ended."""


class WatchBegun(_Message, tag="begun", frozen=True):
    """Changes come from now on; the store is at this revision."""

    revision: Revision


class ChangesAnswer(_Message, tag="changes", frozen=True):
    """Changes of a range that is watched."""

    batch: WatchBatch


class NoLease(_Message, tag="no lease", frozen=True):
    """The lease is over, and nothing was changed."""

    lease: LeaseId


class CompactedAnswer(_Message, tag="compacted", frozen=True):
    """Changes from there on are forgotten: the watch is over."""

    wanted: Revision
    compacted: Revision


Answer = (
    RangeAnswer
    | TxnAnswer
    | LeaseAnswer
    | Revoked
    | WatchBegun
    | ChangesAnswer
    | NoLease
    | CompactedAnswer
)

_asked_decoder: msgspec.msgpack.Decoder[Asked] = msgspec.msgpack.Decoder(Asked)
_answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Asked | Answer) -> bytes:
    """Return a message with its length before it."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


def decode_asked(data: bytes) -> Asked:
    """Return what a client says; raises BadInput."""
    try:
        return _asked_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"a question to the coordinator: {error}") from error


def decode_answer(data: bytes) -> Answer:
    """Return what the coordinator says; raises BadInput."""
    try:
        return _answer_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"an answer of the coordinator: {error}") from error


def asked_of(number: int, question: Question) -> Asked:
    """Return a question as it is sent."""
    match question:
        case Read(keys):
            return ReadAsked(number, keys)
        case Txn(conditions, success, failure):
            steps = (tuple(map(_step, branch)) for branch in (success, failure))
            return TxnAsked(number, conditions, *steps)
        case Grant(ttl_s):
            return GrantAsked(number, ttl_s)
        case KeepAlive(lease):
            return KeepAliveAsked(number, lease)
        case Revoke(lease):
            return RevokeAsked(number, lease)
        case Watch(keys, from_revision):
            return WatchAsked(number, keys, from_revision)
        case _:
            assert_never(question)


def question_of(asked: Asked) -> Question | None:
    """Return what is asked, None: that a watch ends. Raises BadInput."""
    match asked:
        case ReadAsked(_, keys):
            return Read(_checked(keys))
        case TxnAsked(_, conditions, success, failure):
            return Txn(conditions, _operations(success), _operations(failure))
        case GrantAsked(_, ttl_s):
            return Grant(ttl_s)
        case KeepAliveAsked(_, lease):
            return KeepAlive(lease)
        case RevokeAsked(_, lease):
            return Revoke(lease)
        case WatchAsked(_, keys, from_revision):
            return Watch(_checked(keys), from_revision)
        case WatchEnded():
            return None
        case _:
            assert_never(asked)


def answer_of(
    number: int,
    outcome: RangeResult | TxnResult | Lease | WatchBatch | LeaseNotFound | Compacted | None,
) -> Answer:
    """Return an outcome as it is sent."""
    match outcome:
        case RangeResult():
            return RangeAnswer(number, outcome)
        case TxnResult():
            return TxnAnswer(number, outcome)
        case Lease():
            return LeaseAnswer(number, outcome)
        case WatchBatch():
            return ChangesAnswer(number, outcome)
        case LeaseNotFound():
            return NoLease(number, LeaseId(outcome.lease))
        case Compacted():
            return CompactedAnswer(number, Revision(outcome.wanted), Revision(outcome.compacted))
        case None:
            return Revoked(number)
        case _:
            assert_never(outcome)


def _checked(keys: KeyRange) -> KeyRange:
    if not b"" < keys.start < keys.end:
        raise BadInput("a key is empty, or a range ends before it begins")
    return keys


def _step(operation: Operation) -> _Step:
    match operation:
        case Put(key, value, lease):
            return _Step(_PUT, key, value, lease)
        case Delete(keys):
            return _Step(_DELETE, *keys, LeaseId(0))
        case Get(keys):
            return _Step(_GET, *keys, LeaseId(0))
        case _:
            assert_never(operation)


def _operations(steps: tuple[_Step, ...]) -> tuple[Operation, ...]:
    return tuple(map(_operation, steps))


def _operation(step: _Step) -> Operation:
    kind, first, second, lease = step
    if kind == _PUT:
        return Put(first, second, lease)
    if kind not in (_DELETE, _GET):
        raise BadInput(f"there is no operation {kind}")
    keys = KeyRange(first, second)
    return Delete(keys) if kind == _DELETE else Get(keys)


class Frames:
    """Cuts what comes over a connection into messages."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._data = bytearray()

    def __repr__(self) -> str:
        return f"<Frames {len(self._data)} bytes of the next>"

    def fed(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole by now; raises BadInput if one is too long."""
        self._data += data
        found, at = [], 0
        while len(self._data) - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._data, at)
            if size > self._bytes_max:
                raise BadInput(f"a message has {size} bytes, and at most {self._bytes_max} come")
            end = at + LENGTH.size + size
            if len(self._data) < end:
                break
            found.append(bytes(self._data[at + LENGTH.size : end]))
            at = end
        del self._data[:at]
        return found
