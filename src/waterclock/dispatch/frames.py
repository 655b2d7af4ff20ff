"""The frames between a leader and its workers: bytes in, frames out, and nothing but BadFrame.

    | version 1 | command 1 | length 4, big endian | payload |

Commands 0 and 1 carry one message each, in text, so that a worker of a few lines in any language
can join. The others are for speed and for fencing: they move messages by the hundred, with uuids of
16 bytes, and each of them bears the epoch of the leader it belongs to.
`docs/formats/dispatch_frames.md` draws every byte.

This file writes; `decoder.py` reads. Changing a layout: give the changed frame a new command, keep
reading the old one, add the bytes to the golden ones in tests/dispatch/test_frames.py, draw them on
the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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

EPOCH_HEAD = Struct(">Q")
HELLO_HEAD = Struct(">QI")
WELCOME_HEAD = Struct(">QIII")
NACK_HEAD = Struct(">QBH")
BATCH_HEAD = Struct(">QHI")


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
    """A message not answered for so long goes to somebody else."""
    heartbeat_ms: int
    """Say something at least this often."""
    silence_ms_max: int
    """Who says nothing for so long is taken for gone, on both sides."""


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
    """Nothing but a sign of life."""

    epoch: int


Frame: TypeAlias = (
    ProcessMessage
    | AckMessage
    | Hello
    | Welcome
    | Credit
    | Progress
    | Nack
    | ProcessBatch
    | AckBatch
    | Close
    | Heartbeat
)


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
    *,
    epoch: int,
    deliveries: int,
    uuids: Sequence[bytes],
    births_ms: Sequence[int],
    bodies: Sequence[bytes],
) -> bytes:
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
    """Return a sign of life."""
    return _framed(HEARTBEAT, EPOCH_HEAD.pack(epoch))


def cut(text: str, bytes_max: int) -> bytes:
    """Return text as UTF-8 of at most so many bytes, never half a character, never a surrogate."""
    whole = text.encode(errors="replace")
    return whole[:bytes_max].decode(errors="ignore").encode()


def _framed(command: int, payload: bytes) -> bytes:
    return HEADER.pack(VERSION, command, len(payload)) + payload
