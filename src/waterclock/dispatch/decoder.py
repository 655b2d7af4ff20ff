"""Reading frames: hostile bytes in, frames out, and nothing raised but BadFrame.

A `Decoder` knows which commands its side accepts and how long each may be, so it refuses at the
header, before memory is spent. Whatever cannot be a frame ends the connection it came over, and no
other. A frame of many messages is read in bulk: one unpack for its lists, one slice for each body.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct

from waterclock.dispatch.frames import (
    ACK_BATCH,
    ACK_MESSAGE,
    BATCH_HEAD,
    BODY_BYTES_MAX,
    CLOSE,
    CREDIT,
    CREDIT_MAX,
    EPOCH_HEAD,
    HEADER,
    HEARTBEAT,
    HELLO,
    HELLO_HEAD,
    NACK,
    NACK_HEAD,
    NAME_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PROCESS_BATCH,
    PROCESS_MESSAGE,
    PROGRESS,
    REASON_BYTES_MAX,
    UUID_BYTES,
    UUID_CHARS,
    UUIDS_MAX,
    VERSION,
    WELCOME,
    WELCOME_HEAD,
    AckBatch,
    AckMessage,
    BadFrame,
    Close,
    Credit,
    Frame,
    Heartbeat,
    Hello,
    Nack,
    ProcessBatch,
    ProcessMessage,
    Progress,
    Welcome,
)


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
class _Kind:
    read: Callable[[bytes], Frame]
    least: int
    most: int


_KINDS: Mapping[int, _Kind] = {
    PROCESS_MESSAGE: _Kind(_process_message, UUID_CHARS + 1, UUID_CHARS + 1 + BODY_BYTES_MAX),
    ACK_MESSAGE: _Kind(_ack_message, UUID_CHARS, UUID_CHARS),
    HELLO: _Kind(_hello, HELLO_HEAD.size + 1, HELLO_HEAD.size + NAME_BYTES_MAX),
    WELCOME: _Kind(_welcome, WELCOME_HEAD.size, WELCOME_HEAD.size),
    CREDIT: _Kind(_credit, HELLO_HEAD.size, HELLO_HEAD.size),
    PROGRESS: _Kind(_progress, EPOCH_HEAD.size + UUID_BYTES, EPOCH_HEAD.size + _UUIDS_BYTES_MAX),
    NACK: _Kind(
        _nack, NACK_HEAD.size + UUID_BYTES, NACK_HEAD.size + REASON_BYTES_MAX + _UUIDS_BYTES_MAX
    ),
    PROCESS_BATCH: _Kind(_process_batch, BATCH_HEAD.size + 12 + UUID_BYTES, PAYLOAD_BYTES_MAX),
    ACK_BATCH: _Kind(_ack_batch, EPOCH_HEAD.size + UUID_BYTES, EPOCH_HEAD.size + _UUIDS_BYTES_MAX),
    CLOSE: _Kind(_close, EPOCH_HEAD.size, EPOCH_HEAD.size + REASON_BYTES_MAX),
    HEARTBEAT: _Kind(_heartbeat, EPOCH_HEAD.size, EPOCH_HEAD.size),
}

LEADER_READS = (ACK_MESSAGE, HELLO, CREDIT, PROGRESS, NACK, ACK_BATCH, CLOSE, HEARTBEAT)
WORKER_READS = (PROCESS_MESSAGE, WELCOME, PROCESS_BATCH, CLOSE, HEARTBEAT)


class Decoder:
    """Turns what a connection brought into frames; holds at most one unfinished frame.

    `commands` are what this side accepts: LEADER_READS or WORKER_READS.
    """

    def __init__(self, commands: Iterable[int]) -> None:
        self._kinds = {command: _KINDS[command] for command in commands}
        self._rest = bytearray()
        self._problem: str | None = None

    def __repr__(self) -> str:
        return f"<Decoder {len(self._rest)} bytes wait>"

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that `data` completes; raise BadFrame, from then on always."""
        if self._problem is not None:
            raise BadFrame(self._problem)
        frames: list[Frame] = []
        rest = self._rest
        source: bytes | bytearray
        if rest:
            rest += data
            source = rest
        else:
            source = bytes(data)
        try:
            taken = self._read(source, frames)
        except BadFrame as error:
            self._problem = error.reason
            rest.clear()
            raise BadFrame(error.reason, frames) from None
        if source is rest:
            del rest[:taken]
        else:
            rest += source[taken:]
        return frames

    def _read(self, source: bytes | bytearray, frames: list[Frame]) -> int:
        """Append the whole frames of `source`; return how many bytes they took."""
        start, size = 0, len(source)
        while start < size:
            if source[start] != VERSION:
                raise BadFrame(f"version {source[start]}, this is version {VERSION}")
            if size - start < HEADER.size:
                break
            _, command, length = HEADER.unpack_from(source, start)
            kind = self._kinds.get(command)
            if kind is None:
                raise BadFrame(f"command {command} is not for this side")
            if not kind.least <= length <= kind.most:
                raise BadFrame(f"command {command} with a payload of {length} bytes")
            begin = start + HEADER.size
            start_next = begin + length
            if start_next > size:
                break
            frames.append(kind.read(bytes(source[begin:start_next])))
            start = start_next
        return start
