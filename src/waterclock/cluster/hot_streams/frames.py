"""What nodes ask each other about split streams, over the peer link: method PARTITION.

    KEEP    1   how a stream is split                           answered by a report, if any
    WANT    2   polls wait: messages u32, stream                answered by the node that has some
    WATCH   3   say when there are messages: stream             answered by how many, u32
    PULL    4   give up to so many: messages u32, stream        answered by messages
    DELETE  5   forget the stream: stream                       answered by nothing

    keep        ring version u64, version u64, write u16, read u16, size u32, length of the stream
                u16, then the stream; for each node the requests it had u32, the messages that wait
                there u32, and its name behind its length u16
    report      version u64, requests u32, messages u32, released u8
    messages    how many are left u32; then of each: sent ms u64, ms left u64 (0: for ever), stored
                u64, length of id u32 and of body u32, then those

A request begins with its kind, u8. A status is none of HTTP's: DONE, or NOT_PART of a node that
has nothing to do with it.
"""

from collections.abc import Iterable
from struct import Struct, error
from typing import Final, NamedTuple

from waterclock.cluster.hot_streams.split import Keep, Report
from waterclock.model.errors import BadInput

PARTITION: Final = 3
"""The method of the peer link."""

KEEP: Final = 1
WANT: Final = 2
WATCH: Final = 3
PULL: Final = 4
DELETE: Final = 5

NOT_PART: Final = 1
DONE: Final = 2

_KEEP = Struct(">QQHHIH")
_NODE = Struct(">IIH")
_REPORT = Struct(">QIIB")
_ITEM = Struct(">QQQII")
_NUMBER = Struct(">I")
NUMBER_MAX: Final = 0xFFFFFFFF


class BadPartition(BadInput):
    """What another node sent about a split stream makes no sense."""


class Moved(NamedTuple):
    """A message on its way from one partition to another."""

    body: bytes
    message_id: str
    sent_ms: int
    left_ms: int
    """Until it expires; 0: it does not."""
    stored: int


class Asked(NamedTuple):
    """A request without its details: KEEP has more."""

    kind: int
    stream: str
    messages: int = 0


def encode_asked(asked: Asked) -> bytes:
    """Return the bytes of a request."""
    return b"%c%b%b" % (asked.kind, _NUMBER.pack(asked.messages), asked.stream.encode())


def encode_keep(keep: Keep) -> bytes:
    """Return the bytes of how a stream is split."""
    stream = keep.stream.encode()
    head = _KEEP.pack(
        keep.ring_version, keep.version, keep.write, keep.read, keep.size, len(stream)
    )
    parts = [b"%c" % KEEP, head, stream]
    for node, *counts in zip(keep.nodes, keep.loads, keep.backlogs, strict=True):
        name = node.encode()
        parts += (_NODE.pack(*(min(each, NUMBER_MAX) for each in counts), len(name)), name)
    return b"".join(parts)


def decode_request(data: bytes) -> Asked | Keep:
    """Read a request."""
    if not data:
        raise BadPartition("an empty request")
    if data[0] == KEEP:
        return _decode_keep(data)
    if data[0] > DELETE or len(data) < 1 + _NUMBER.size:
        raise BadPartition(f"a request of kind {data[0]} and {len(data)} bytes")
    (messages,) = _NUMBER.unpack_from(data, 1)
    return Asked(data[0], _text(data[1 + _NUMBER.size :]), messages)


def _decode_keep(data: bytes) -> Keep:
    nodes: list[str] = []
    loads: list[int] = []
    backlogs: list[int] = []
    try:
        ring_version, version, write, read, size, length = _KEEP.unpack_from(data, 1)
        at = 1 + _KEEP.size
        stream, at = _cut(data, at, length)
        while at < len(data):
            load, backlog, length = _NODE.unpack_from(data, at)
            name, at = _cut(data, at + _NODE.size, length)
            nodes.append(name)
            loads.append(load)
            backlogs.append(backlog)
    except error:
        raise BadPartition("a KEEP ends too soon") from None
    versions, counts = (ring_version, version), (tuple(loads), tuple(backlogs))
    keep = Keep(stream, *versions, write, read, size, tuple(nodes), *counts)
    if not 1 <= keep.write <= keep.read <= len(nodes) or len(set(nodes)) < len(nodes):
        raise BadPartition(f"{keep.write} write, {keep.read} read, {len(nodes)} nodes")
    return keep


def encode_report(report: Report) -> bytes:
    """Return the bytes of how a partition is."""
    numbers = (min(each, NUMBER_MAX) for each in (report.requests, report.backlog))
    return _REPORT.pack(report.version, *numbers, report.is_released)


def decode_report(data: bytes) -> Report | None:
    """Read how a partition is; None: there is none."""
    if not data:
        return None
    if len(data) != _REPORT.size:
        raise BadPartition(f"a report of {len(data)} bytes")
    version, requests, backlog, is_released = _REPORT.unpack(data)
    return Report(version, requests, backlog, bool(is_released))


def encode_number(number: int) -> bytes:
    """Return the bytes of a number of messages."""
    return _NUMBER.pack(min(number, NUMBER_MAX))


def decode_number(data: bytes) -> int:
    """Read a number of messages."""
    if len(data) != _NUMBER.size:
        raise BadPartition(f"a number of {len(data)} bytes")
    return int(_NUMBER.unpack(data)[0])


def encode_messages(items: Iterable[Moved], left: int) -> bytes:
    """Return the bytes of messages, and of how many are left."""
    parts = [encode_number(left)]
    for body, message_id, *numbers in items:
        name = message_id.encode()
        parts += (_ITEM.pack(*numbers, len(name), len(body)), name, body)
    return b"".join(parts)


def decode_messages(data: bytes) -> tuple[list[Moved], int]:
    """Read messages, and how many are left."""
    items: list[Moved] = []
    try:
        (left,) = _NUMBER.unpack_from(data)
        at = _NUMBER.size
        while at < len(data):
            *numbers, id_length, length = _ITEM.unpack_from(data, at)
            message_id, at = _cut(data, at + _ITEM.size, id_length)
            if at + length > len(data):
                raise BadPartition("a message ends too soon")
            items.append(Moved(data[at : at + length], message_id, *numbers))
            at += length
    except error:
        raise BadPartition("messages end too soon") from None
    return items, left


def decode_name(data: bytes) -> str:
    """Read the name of a node."""
    return _text(data)


def _cut(data: bytes, start: int, length: int) -> tuple[str, int]:
    end = start + length
    if end > len(data):
        raise BadPartition("a name ends too soon")
    return _text(data[start:end]), end


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadPartition("a name is not UTF-8") from None
