"""What replicas of a partition say to each other. docs/formats/replication.md draws the bytes.

Every message bears the log it is about and an epoch: that of the leader or candidate under which it
is said. Messages of one connection arrive in order, or not at all once it broke. One that arrives
late, over a connection that broke, must do no harm: what it says is true for ever, or it is told by
its fields that it is not about the present.
"""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from waterclock.cluster.replication.lineage import EpochEnd
from waterclock.model.errors import BadInput
from waterclock.model.ids import Epoch, Offset

Bytes: TypeAlias = bytes | bytearray | memoryview

NUMBER_MAX: Final = (1 << 63) - 1
"""Epochs and offsets are below 2^63, as in the log and in the coordinator."""


class BadMessage(BadInput):
    """What another node sent about a replica makes no sense."""


class Promise(NamedTuple):
    """A candidate asks: accept nothing below my epoch, and say how far your log goes."""

    log_id: bytes
    epoch: Epoch


class Promised(NamedTuple):
    """A replica has made that durable. What it has flushed goes so far."""

    log_id: bytes
    epoch: Epoch
    last: EpochEnd
    is_faulty: bool


class Refused(NamedTuple):
    """A replica has promised more than `epoch`, under which it was asked."""

    log_id: bytes
    epoch: Epoch
    promised: Epoch


class TakeOver(NamedTuple):
    """The leader or candidate of the epoch asks another to lead: it is the one that should."""

    log_id: bytes
    epoch: Epoch


class Leading(NamedTuple):
    """The sender leads under the epoch: whoever copies the log may fetch."""

    log_id: bytes
    epoch: Epoch


class Fetch(NamedTuple):
    """A replica claims to have this much of the leader's log, and asks for what follows."""

    log_id: bytes
    epoch: Epoch
    claim: EpochEnd
    flushed_end: Offset


class Flushed(NamedTuple):
    """A replica has flushed the leader's log below `end`."""

    log_id: bytes
    epoch: Epoch
    end: Offset


class Frames(NamedTuple):
    """Frames of the leader's log from an offset on; none: the claim holds, and that is all now."""

    log_id: bytes
    epoch: Epoch
    base_offset: Offset
    commit_end: Offset
    data: Bytes


class Committed(NamedTuple):
    """The leader's log is committed below `end`."""

    log_id: bytes
    epoch: Epoch
    end: Offset


class Diverged(NamedTuple):
    """The leader does not have all that was claimed. It has at most `answer` of it."""

    log_id: bytes
    epoch: Epoch
    claim: EpochEnd
    answer: EpochEnd


class TooOld(NamedTuple):
    """What follows on the claim cannot be streamed: the leader rewrote its log below `start`."""

    log_id: bytes
    epoch: Epoch
    claim: EpochEnd
    start: Offset


Message: TypeAlias = (
    Promise
    | Promised
    | Refused
    | TakeOver
    | Leading
    | Fetch
    | Flushed
    | Frames
    | Committed
    | Diverged
    | TooOld
)


class _Kind(IntEnum):
    """A kind keeps its number for ever; a new one is added at the end."""

    PROMISE = 1
    PROMISED = 2
    REFUSED = 3
    TAKE_OVER = 4
    LEADING = 5
    FETCH = 6
    FLUSHED = 7
    FRAMES = 8
    COMMITTED = 9
    DIVERGED = 10
    TOO_OLD = 11


_HEAD: Final = Struct(">B16sQ")
_ONE: Final = Struct(">B16sQQ")
_TWO: Final = Struct(">B16sQQQ")
_THREE: Final = Struct(">B16sQQQQ")
_FOUR: Final = Struct(">B16sQQQQQ")
_VOTE: Final = Struct(">B16sQQQB")
_STRUCTS: Final[dict[int, Struct]] = {
    _Kind.PROMISE: _HEAD,
    _Kind.PROMISED: _VOTE,
    _Kind.REFUSED: _ONE,
    _Kind.TAKE_OVER: _HEAD,
    _Kind.LEADING: _HEAD,
    _Kind.FETCH: _THREE,
    _Kind.FLUSHED: _ONE,
    _Kind.FRAMES: _TWO,
    _Kind.COMMITTED: _ONE,
    _Kind.DIVERGED: _FOUR,
    _Kind.TOO_OLD: _THREE,
}
_KINDS: Final[dict[type[Message], int]] = {
    Promise: _Kind.PROMISE,
    Refused: _Kind.REFUSED,
    TakeOver: _Kind.TAKE_OVER,
    Leading: _Kind.LEADING,
    Flushed: _Kind.FLUSHED,
    Committed: _Kind.COMMITTED,
}
"""Those whose fields are numbers, packed as they stand."""


def encode(message: Message) -> tuple[Bytes, ...]:
    """Return the bytes of a message, in parts: frames are not copied."""
    match message:
        case Frames(log_id, epoch, base, commit_end, data):
            return _TWO.pack(_Kind.FRAMES, log_id, epoch, base, commit_end), data
        case Fetch(log_id, epoch, claim, flushed_end):
            return (_THREE.pack(_Kind.FETCH, log_id, epoch, *claim, flushed_end),)
        case TooOld(log_id, epoch, claim, start):
            return (_THREE.pack(_Kind.TOO_OLD, log_id, epoch, *claim, start),)
        case Promised(log_id, epoch, last, is_faulty):
            return (_VOTE.pack(_Kind.PROMISED, log_id, epoch, *last, is_faulty),)
        case Diverged(log_id, epoch, claim, answer):
            return (_FOUR.pack(_Kind.DIVERGED, log_id, epoch, *claim, *answer),)
        case _:
            kind = _KINDS[type(message)]
            return (_STRUCTS[kind].pack(kind, *message),)


def decode(data: Bytes) -> Message:
    """Read a message. Frames are a view of `data`: keep it as long as them."""
    view = memoryview(data)
    kind = view[0] if len(view) else 0
    struct = _STRUCTS.get(kind)
    if (
        struct is None
        or len(view) < struct.size
        or (kind != _Kind.FRAMES and len(view) > struct.size)
    ):
        raise BadMessage(f"a message of kind {kind} and {len(view)} bytes")
    _, log_id, *numbers = struct.unpack_from(view)
    if max(numbers) > NUMBER_MAX:
        raise BadMessage(f"an epoch or offset of {max(numbers)}")
    return _message(kind, log_id, numbers, view[struct.size :])


def _message(kind: int, log_id: bytes, numbers: list[int], rest: memoryview) -> Message:
    epoch, *fields = numbers
    head = (log_id, Epoch(epoch))
    match kind, fields:
        case (_Kind.FRAMES, (base, commit_end)):
            return Frames(*head, Offset(base), Offset(commit_end), rest)
        case (_Kind.FLUSHED, (end,)):
            return Flushed(*head, Offset(end))
        case (_Kind.COMMITTED, (end,)):
            return Committed(*head, Offset(end))
        case (_Kind.FETCH, (last, end, flushed_end)):
            return Fetch(*head, EpochEnd(Epoch(last), Offset(end)), Offset(flushed_end))
        case (_Kind.PROMISE, ()):
            return Promise(*head)
        case (_Kind.PROMISED, (last, end, (0 | 1) as is_faulty)):
            return Promised(*head, EpochEnd(Epoch(last), Offset(end)), bool(is_faulty))
        case (_Kind.REFUSED, (promised,)):
            return Refused(*head, Epoch(promised))
        case (_Kind.TAKE_OVER, ()):
            return TakeOver(*head)
        case (_Kind.LEADING, ()):
            return Leading(*head)
        case (_Kind.DIVERGED, (last, end, found, found_end)):
            claim = EpochEnd(Epoch(last), Offset(end))
            return Diverged(*head, claim, EpochEnd(Epoch(found), Offset(found_end)))
        case (_Kind.TOO_OLD, (last, end, start)):
            return TooOld(*head, EpochEnd(Epoch(last), Offset(end)), Offset(start))
    raise BadMessage(f"a message of kind {kind} with {fields}")
