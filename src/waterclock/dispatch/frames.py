"""The frames between a leader and its workers: bytes in, frames out, and nothing but BadFrame.

    | version 1 | command 1 | length 4, big endian | payload |

Commands 0 and 1 carry one message each, in text, so that a worker of a few lines in any language
can join. The others are for speed and for fencing: they move messages by the hundred, with uuids of
16 bytes, and each of them bears the epoch of the leader it belongs to.
`docs/formats/dispatch_frames.md` draws every byte.

Reading takes hostile bytes (`decoder.py`): whatever cannot be a frame ends the connection it came
over, and no other. Frames of many messages are read and written in bulk.

Changing a layout: give the changed frame a new command, keep
reading the old one, add the bytes to the golden ones in tests/dispatch/test_frames.py, draw them on
the page.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from struct import Struct
from typing import TypeAlias

from waterclock.model.errors import BadInput

VERSION = 1
HEADER = Struct(">BBI")

PROCESS_MESSAGE = 0
ACK_MESSAGE = 1
HELLO = 2
WELCOME = 3
CREDIT = 4
PROGRESS = 5
NACK = 6
PROCESS_BATCH = 7
ACK_BATCH = 8
CLOSE = 9
HEARTBEAT = 10
AUTH = 11
CONTEXTS = 12
TOKEN = 13

UUID_BYTES = 16
UUID_CHARS = 36
UUIDS_MAX = 65_536
"""Messages of one frame; also what bounds the frames a leader reads, at about 1 MiB."""
BODY_BYTES_MAX = 16 << 20
PAYLOAD_BYTES_MAX = 64 << 20
"""Frames that carry bodies; a leader cuts its batches to fit."""
NAME_BYTES_MAX = 255
REASON_BYTES_MAX = 1_024
CREDIT_MAX = 1_000_000
AUTH_BYTES = 32
CONTEXT_BYTES_MAX = 1_024

EPOCH_HEAD = Struct(">Q")
HELLO_HEAD = Struct(">QI")
WELCOME_HEAD = Struct(">QIII")
NACK_HEAD = Struct(">QBH")
BATCH_HEAD = Struct(">QHI")
CONTEXT_HEAD = Struct(">16sH")


class BadFrame(BadInput):
    """The bytes are not a frame this side accepts: close the connection, with `reason`.

    `frames` are the good ones that stood before it in the same bytes.
    """

    def __init__(self, reason: str, frames: Sequence["Frame"] = ()) -> None:
        super().__init__(f"bad frame: {reason}")
        self.reason = reason
        self.frames = tuple(frames)


@dataclass(frozen=True, slots=True)
class ProcessMessage:
    """Leader to a worker that said no hello: one message."""

    uuid: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class AckMessage:
    """A worker that said no hello has written this message."""

    uuid: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's first frame; `epoch` is the highest it has seen, 0 if none."""

    epoch: int
    credit: int
    """How many messages it will hold at once, in all."""
    name: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The leader's answer to Hello."""

    epoch: int
    deadline_ms: int
    """A message not answered for so long goes to another worker."""
    heartbeat_ms: int
    """Say something at least this often."""
    silence_ms_max: int
    """Each side takes the other for gone if it says nothing for so long."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The worker's new credit, which replaces the old one; 0 drains it."""

    epoch: int
    credit: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The worker still works on these: their deadline begins anew."""

    epoch: int
    uuids: list[bytes]


@dataclass(frozen=True, slots=True)
class Nack:
    """The worker could not process these; if permanent, nobody can."""

    epoch: int
    uuids: list[bytes]
    reason: str
    is_permanent: bool


@dataclass(frozen=True, slots=True)
class ProcessBatch:
    """Leader to worker: messages to process, as parallel lists."""

    epoch: int
    deliveries: int
    """How often these were handed out, this time included."""
    uuids: list[bytes]
    births_ms: list[int]
    """What dedup goes by: equal whichever leader sends the message."""
    bodies: list[bytes]


@dataclass(frozen=True, slots=True)
class AckBatch:
    """The worker has written these."""

    epoch: int
    uuids: list[bytes]


@dataclass(frozen=True, slots=True)
class Close:
    """The last frame of a connection, from either side."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Shows that the other side runs, and nothing else."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Auth:
    """A step of the handshake: a nonce, or the proof that its sender knows the secret."""

    is_proof: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Contexts:
    """Leader to worker: which traces messages belong to that the next batch brings."""

    epoch: int
    contexts: dict[bytes, bytes]
    """By uuid: `traceparent` and, behind a blank, `tracestate` if there is one."""


@dataclass(frozen=True, slots=True)
class Token:
    """Who a worker is: the token of its credential."""

    text: str = field(repr=False)


Frame: TypeAlias = (
    ProcessMessage | AckMessage | Hello | Welcome | Credit | Progress | Nack | ProcessBatch
    | AckBatch | Close | Heartbeat | Auth | Contexts | Token
)  # fmt: skip


def uuid_text(uuid: bytes) -> str:
    """Return 16 bytes as people and commands 0 and 1 write a uuid."""
    text = uuid.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def encode_process_message(uuid: bytes, body: bytes) -> bytes:
    """Return the plain frame of one message, for workers that say no hello."""
    return _framed(PROCESS_MESSAGE, b"%b:%b" % (uuid_text(uuid).encode(), body))


def encode_hello(*, epoch: int, credit: int, name: str) -> bytes:
    """Return a worker's first frame; the name is cut to NAME_BYTES_MAX, and must be printable."""
    return _framed(HELLO, HELLO_HEAD.pack(epoch, credit) + (cut(name, NAME_BYTES_MAX) or b"?"))


def encode_welcome(
    *, epoch: int, deadline_ms: int, heartbeat_ms: int, silence_ms_max: int
) -> bytes:
    """Return the leader's answer to a Hello."""
    return _framed(WELCOME, WELCOME_HEAD.pack(epoch, deadline_ms, heartbeat_ms, silence_ms_max))


def encode_credit(*, epoch: int, credit: int) -> bytes:
    """Return the frame that replaces a worker's credit."""
    return _framed(CREDIT, HELLO_HEAD.pack(epoch, credit))


def encode_progress(*, epoch: int, uuids: Sequence[bytes]) -> bytes:
    """Return the frame that extends deadlines; 1 to UUIDS_MAX uuids."""
    return _framed(PROGRESS, EPOCH_HEAD.pack(epoch) + b"".join(uuids))


def encode_nack(*, epoch: int, uuids: Sequence[bytes], reason: str, is_permanent: bool) -> bytes:
    """Return the frame that gives messages back; the reason is cut to REASON_BYTES_MAX."""
    said = cut(reason, REASON_BYTES_MAX)
    return _framed(NACK, NACK_HEAD.pack(epoch, is_permanent, len(said)) + said + b"".join(uuids))


def encode_process_batch(
    *, epoch: int, deliveries: int,
    uuids: Sequence[bytes], births_ms: Sequence[int], bodies: Sequence[bytes],
) -> bytes:  # fmt: skip
    """Return the frame that hands out 1 to UUIDS_MAX messages; the three lists are parallel."""
    count = len(uuids)
    assert count == len(births_ms) == len(bodies)
    assert 0 < count <= UUIDS_MAX
    lists = Struct(f">{count}Q{count}I").pack(*births_ms, *map(len, bodies))
    size = BATCH_HEAD.size + len(lists) + UUID_BYTES * count + sum(map(len, bodies))
    assert size <= PAYLOAD_BYTES_MAX, "cut the batch by bytes before handing it out"
    head = HEADER.pack(VERSION, PROCESS_BATCH, size) + BATCH_HEAD.pack(epoch, deliveries, count)
    return b"".join([head, lists, *uuids, *bodies])


def encode_ack_batch(*, epoch: int, uuids: Sequence[bytes]) -> bytes:
    """Return the frame that acknowledges 1 to UUIDS_MAX messages."""
    return _framed(ACK_BATCH, EPOCH_HEAD.pack(epoch) + b"".join(uuids))


def encode_close(*, epoch: int, reason: str) -> bytes:
    """Return the last frame of a connection; the reason is cut to REASON_BYTES_MAX."""
    return _framed(CLOSE, EPOCH_HEAD.pack(epoch) + cut(reason, REASON_BYTES_MAX))


def encode_heartbeat(*, epoch: int) -> bytes:
    """Return the frame that shows that this side runs."""
    return _framed(HEARTBEAT, EPOCH_HEAD.pack(epoch))


def encode_contexts(*, epoch: int, contexts: Mapping[bytes, bytes]) -> bytes:
    """Return the frame that goes before a batch some of whose messages have a context."""
    parts = (CONTEXT_HEAD.pack(uuid, len(text)) + text for uuid, text in contexts.items())
    return _framed(CONTEXTS, EPOCH_HEAD.pack(epoch) + b"".join(parts))


def encode_auth(data: bytes, *, is_proof: bool) -> bytes:
    """Return a step of the handshake; see `handshake.py`."""
    return _framed(AUTH, bytes([is_proof]) + data)


def encode_token(text: str) -> bytes:
    """Return who a worker is; see `credentials.py`."""
    return _framed(TOKEN, text.encode())


def cut(text: str, bytes_max: int) -> bytes:
    """Return text as UTF-8 of at most so many bytes, never half a character, never a surrogate."""
    whole = text.encode(errors="replace")
    return whole[:bytes_max].decode(errors="ignore").encode()


def _framed(command: int, payload: bytes) -> bytes:
    return HEADER.pack(VERSION, command, len(payload)) + payload


def parse_uuid(text: bytes) -> bytes:
    """Return the 16 bytes of a uuid4 in its text form; raise BadFrame if it is none."""
    # fromhex skips blanks, so that what holds some comes out too short.
    dashes = text[8:9] + text[13:14] + text[18:19] + text[23:24]
    if len(text) == UUID_CHARS and dashes == b"----" and text.isascii():
        try:
            uuid = bytes.fromhex(text.decode().replace("-", ""))
        except ValueError:
            uuid = b""
        if len(uuid) == UUID_BYTES and uuid[6] >> 4 == 4 and uuid[8] >> 6 == 2:
            return uuid
    raise BadFrame("no uuid4")


def _process_message(payload: bytes) -> ProcessMessage:
    if payload[UUID_CHARS : UUID_CHARS + 1] != b":":
        raise BadFrame("no colon behind the uuid")
    return ProcessMessage(parse_uuid(payload[:UUID_CHARS]), payload[UUID_CHARS + 1 :])


def _ack_message(payload: bytes) -> AckMessage:
    return AckMessage(parse_uuid(payload))


def _hello(payload: bytes) -> Hello:
    epoch, credit = HELLO_HEAD.unpack_from(payload)
    name = _text(payload[HELLO_HEAD.size :])
    if not name.isprintable():
        raise BadFrame("a name that cannot be printed")
    return Hello(epoch, _credit_of(credit), name)


def _welcome(payload: bytes) -> Welcome:
    epoch, deadline_ms, heartbeat_ms, silence_ms_max = WELCOME_HEAD.unpack(payload)
    if not (deadline_ms and heartbeat_ms and silence_ms_max):
        raise BadFrame("a time of 0")
    return Welcome(epoch, deadline_ms, heartbeat_ms, silence_ms_max)


def _credit(payload: bytes) -> Credit:
    epoch, credit = HELLO_HEAD.unpack(payload)
    return Credit(epoch, _credit_of(credit))


def _progress(payload: bytes) -> Progress:
    return Progress(EPOCH_HEAD.unpack_from(payload)[0], _uuids(payload, EPOCH_HEAD.size))


def _nack(payload: bytes) -> Nack:
    epoch, permanent, length = NACK_HEAD.unpack_from(payload)
    uuids_at = NACK_HEAD.size + length
    if permanent > 1 or length > REASON_BYTES_MAX or uuids_at > len(payload):
        raise BadFrame("a flag or a length out of range")
    reason = _text(payload[NACK_HEAD.size : uuids_at])
    return Nack(epoch, _uuids(payload, uuids_at), reason, bool(permanent))


def _process_batch(payload: bytes) -> ProcessBatch:
    epoch, deliveries, count = BATCH_HEAD.unpack_from(payload)
    if not 0 < count <= UUIDS_MAX:
        raise BadFrame(f"{count} messages")
    lists_at = BATCH_HEAD.size
    uuids_at = lists_at + 12 * count
    bodies_at = uuids_at + UUID_BYTES * count
    if bodies_at > len(payload):
        raise BadFrame("too short for its messages")
    # No cached Struct: as many formats as there are counts would push the useful ones out.
    lists = Struct(f">{count}Q{count}I").unpack_from(payload, lists_at)
    ends = list(accumulate(lists[count:], initial=bodies_at))
    if ends[-1] != len(payload):
        raise BadFrame("bodies do not fill the frame")
    return ProcessBatch(
        epoch,
        deliveries,
        _uuids(payload[:bodies_at], uuids_at),
        list(lists[:count]),
        [payload[start:end] for start, end in pairwise(ends)],
    )


def _ack_batch(payload: bytes) -> AckBatch:
    return AckBatch(EPOCH_HEAD.unpack_from(payload)[0], _uuids(payload, EPOCH_HEAD.size))


def _close(payload: bytes) -> Close:
    return Close(EPOCH_HEAD.unpack_from(payload)[0], _text(payload[EPOCH_HEAD.size :]))


def _heartbeat(payload: bytes) -> Heartbeat:
    return Heartbeat(EPOCH_HEAD.unpack(payload)[0])


def _auth(payload: bytes) -> Auth:
    if payload[0] > 1:
        raise BadFrame(f"step {payload[0]} of a handshake")
    return Auth(bool(payload[0]), payload[1:])


def _contexts(payload: bytes) -> Contexts:
    at, contexts = EPOCH_HEAD.size, {}
    while at < len(payload):
        if at + CONTEXT_HEAD.size > len(payload):
            raise BadFrame("contexts do not fill the frame")
        uuid, length = CONTEXT_HEAD.unpack_from(payload, at)
        at += CONTEXT_HEAD.size + length
        if length > CONTEXT_BYTES_MAX or at > len(payload):
            raise BadFrame("a context out of range")
        contexts[uuid] = payload[at - length : at]
    return Contexts(EPOCH_HEAD.unpack_from(payload)[0], contexts)


def _uuids(payload: bytes, at: int) -> list[bytes]:
    size = len(payload)
    if size == at or (size - at) % UUID_BYTES:
        raise BadFrame("uuids do not fill the frame")
    return [payload[start : start + UUID_BYTES] for start in range(at, size, UUID_BYTES)]


def _credit_of(credit: int) -> int:
    if credit > CREDIT_MAX:
        raise BadFrame(f"a credit of {credit}")
    return credit


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadFrame("a text that is not UTF-8") from None


_UUIDS_BYTES_MAX = UUID_BYTES * UUIDS_MAX


@dataclass(frozen=True, slots=True)
class Kind:
    """How a command is read, and how long its payload may be."""

    read: Callable[[bytes], Frame]
    least: int
    most: int


KINDS: Mapping[int, Kind] = {
    PROCESS_MESSAGE: Kind(_process_message, UUID_CHARS + 1, UUID_CHARS + 1 + BODY_BYTES_MAX),
    ACK_MESSAGE: Kind(_ack_message, UUID_CHARS, UUID_CHARS),
    HELLO: Kind(_hello, HELLO_HEAD.size + 1, HELLO_HEAD.size + NAME_BYTES_MAX),
    WELCOME: Kind(_welcome, WELCOME_HEAD.size, WELCOME_HEAD.size),
    CREDIT: Kind(_credit, HELLO_HEAD.size, HELLO_HEAD.size),
    PROGRESS: Kind(_progress, EPOCH_HEAD.size + UUID_BYTES, EPOCH_HEAD.size + _UUIDS_BYTES_MAX),
    NACK: Kind(
        _nack, NACK_HEAD.size + UUID_BYTES, NACK_HEAD.size + REASON_BYTES_MAX + _UUIDS_BYTES_MAX
    ),
    PROCESS_BATCH: Kind(_process_batch, BATCH_HEAD.size + 12 + UUID_BYTES, PAYLOAD_BYTES_MAX),
    ACK_BATCH: Kind(_ack_batch, EPOCH_HEAD.size + UUID_BYTES, EPOCH_HEAD.size + _UUIDS_BYTES_MAX),
    CLOSE: Kind(_close, EPOCH_HEAD.size, EPOCH_HEAD.size + REASON_BYTES_MAX),
    HEARTBEAT: Kind(_heartbeat, EPOCH_HEAD.size, EPOCH_HEAD.size),
    AUTH: Kind(_auth, 1 + AUTH_BYTES, 1 + AUTH_BYTES),
    CONTEXTS: Kind(_contexts, EPOCH_HEAD.size + CONTEXT_HEAD.size, PAYLOAD_BYTES_MAX),
    TOKEN: Kind(lambda payload: Token(_text(payload)), 1, 16_384),
}

_BOTH_READ = (CLOSE, HEARTBEAT, AUTH)
LEADER_READS = (ACK_MESSAGE, HELLO, CREDIT, PROGRESS, NACK, ACK_BATCH, TOKEN, *_BOTH_READ)
WORKER_READS = (PROCESS_MESSAGE, WELCOME, PROCESS_BATCH, CONTEXTS, *_BOTH_READ)
STRANGER_READS = (HELLO, WELCOME, CLOSE, AUTH, TOKEN)
"""What both sides read before the other has proved itself: nothing long."""
