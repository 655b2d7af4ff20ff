"""The file a node keeps its history in: its bytes. Drawn in `docs/formats/history.md`.

It is of use for a day at most, so whatever is not whole, or of another version, is not read. The
numbers have their names with them: a version that remembers others takes those that it knows.
"""

import struct
import zlib

import msgspec
import numpy as np
from crc32c import crc32c

from waterclock.history.history import History
from waterclock.history.rings import Floats, Ring
from waterclock.history.series import NODE, TOPIC, TOPICS_MAX, topic_columns

MAGIC = b"\xf3WCHIST\n"
VERSION = 1
HEADER_BYTES = 32
BODY_BYTES_MAX = 64 << 20

# To change a byte: raise VERSION, draw the new layout, and let `decode` refuse the old one.
_FIELDS = struct.Struct("<8sH2xIIII")
_CRC = struct.Struct("<I")
assert _FIELDS.size + _CRC.size == HEADER_BYTES


class _Contents(msgspec.Struct):
    """What stands before the numbers."""

    node: list[str]
    topic: list[str]
    topics: list[str]
    newest: list[int]
    """Of the hour, and of the day."""
    slots: list[int]


def encode(history: History) -> bytes:
    """Return the bytes of a history file."""
    rings = (history.hour, history.day)
    contents = _Contents(
        [series.name for series in NODE],
        [series.name for series in TOPIC],
        history.topics,
        [ring.newest for ring in rings],
        [len(ring.values) for ring in rings],
    )
    head = msgspec.json.encode(contents)
    numbers = b"".join(ring.whole().astype("<f4").tobytes() for ring in rings)
    plain = head + numbers
    body = zlib.compress(plain, 1)
    fields = _FIELDS.pack(MAGIC, VERSION, len(head), len(plain), len(body), crc32c(body))
    return fields + _CRC.pack(crc32c(fields)) + body


def decode(data: bytes) -> History | None:
    """Return what a history file holds, None if it is not a whole one of this version."""
    plain = _plain(data)
    if plain is None:
        return None
    head, numbers = plain
    try:
        contents = msgspec.json.decode(head, type=_Contents)
    except msgspec.DecodeError:
        return None
    history = History()
    width = len(contents.node) + len(contents.topics) * len(contents.topic)
    at = 0
    for ring, newest, slots in zip(
        (history.hour, history.day), contents.newest, contents.slots, strict=True
    ):
        rows = numbers[at : at + slots * width].reshape(slots, width)
        at += slots * width
        _fill(ring, newest, rows, contents)
    history.topics = (contents.topics + [""] * TOPICS_MAX)[:TOPICS_MAX]
    return history


def _plain(data: bytes) -> tuple[bytes, Floats] | None:
    """Return what stands before the numbers, and these."""
    if len(data) < HEADER_BYTES:
        return None
    (expected,) = _CRC.unpack_from(data, _FIELDS.size)
    if crc32c(data[: _FIELDS.size]) != expected:
        return None
    magic, version, head_len, plain_len, body_len, body_crc = _FIELDS.unpack_from(data)
    body = data[HEADER_BYTES:]
    is_ours = (magic, version) == (MAGIC, VERSION) and plain_len <= BODY_BYTES_MAX
    if not is_ours or len(body) != body_len or crc32c(body) != body_crc:
        return None
    plain = zlib.decompress(body)
    return plain[:head_len], np.frombuffer(plain, "<f4", offset=head_len)


def _fill(ring: Ring, newest: int, rows: Floats, contents: _Contents) -> None:
    """Put rows into a ring of today's columns, as far as their names are known."""
    taken: Floats = np.full((len(rows), ring.values.shape[1]), np.nan, np.float32)
    for column, series in enumerate(NODE):
        if series.name in contents.node:
            taken[:, column] = rows[:, contents.node.index(series.name)]
    for place in range(min(TOPICS_MAX, len(contents.topics))):
        start = len(contents.node) + place * len(contents.topic)
        for column, series in enumerate(TOPIC):
            if series.name in contents.topic:
                found = rows[:, start + contents.topic.index(series.name)]
                taken[:, topic_columns(place).start + column] = found
    count = min(len(rows), len(ring.values))
    slots = np.arange(newest + 1 - count, newest + 1)
    ring.values[slots % len(ring.values)] = taken[len(rows) - count :]
    ring.newest = newest
