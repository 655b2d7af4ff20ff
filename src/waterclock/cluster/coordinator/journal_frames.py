"""The journal of a coordinator, as bytes: docs/formats/process_coordinator.md draws them.

A journal is a checkpoint of the store and then its changes, a frame for all that became durable
together. A frame is written when the one before it is on disk. So only the last one can be torn,
and nobody has heard of what is in it; a bad frame with a whole one behind it has rotted, and what
nodes agreed on is lost with it: that is for people to decide.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from waterclock.cluster.coordinator.errors import LeaseNotFound
from waterclock.cluster.coordinator.store import Changes, Checkpoint, Store
from waterclock.model.errors import Damaged

MAGIC: Final = b"\xf3WCCJ\r\n\x01"
MARKER: Final = b"\xf3CJF"
_HEAD = struct.Struct("<4sII")
"""Of a frame: the marker, the bytes of its content, and the checksum of those and of their
number."""
FRAME_BYTES_MAX: Final = 1 << 30

_changes_decoder = msgspec.msgpack.Decoder(Changes)
_checkpoint_decoder = msgspec.msgpack.Decoder(Checkpoint)


class BadJournal(Damaged):
    """The journal is damaged where it was on disk, or is none of ours."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(f"{problem}, at byte {position}")
        self.position = position
        self.problem = problem


class Replayed(NamedTuple):
    """What a journal says."""

    store: Store
    end: int
    """Where its last whole frame ends: what is behind was never acknowledged."""


def encode_frame(content: Checkpoint | Changes) -> bytes:
    """Return a frame: of a checkpoint, the first of a journal, or of changes."""
    data = msgspec.msgpack.encode(content)
    assert len(data) <= FRAME_BYTES_MAX, len(data)
    return _HEAD.pack(MARKER, len(data), _checksum(data)) + data


def replay(data: bytes, *, now_ms: int) -> Replayed:
    """Return the store that a journal tells of; raises BadJournal."""
    if not data.startswith(MAGIC):
        raise BadJournal(0, "it is no journal, or one of another release")
    at, store = len(MAGIC), None
    for start, content in _frames(data):
        try:
            if store is None:
                store = Store.restored(_checkpoint_decoder.decode(content), now_ms=now_ms)
            else:
                _apply(store, _changes_decoder.decode(content), now_ms)
        except (msgspec.DecodeError, UnicodeDecodeError, LeaseNotFound) as error:
            raise BadJournal(start, f"a frame cannot be read ({error})") from error
        at = start + _HEAD.size + len(content)
    if store is None:
        raise BadJournal(at, "its first frame is damaged")
    rotten = _whole_frame_after(data, at)
    if rotten is not None:
        raise BadJournal(at, f"a frame is damaged, and there is a whole one at byte {rotten}")
    return Replayed(store, at)


def _apply(store: Store, changes: Changes, now_ms: int) -> None:
    revisions = [store.revision, *(each.revision for each in changes.events)]
    if revisions != sorted(revisions) or revisions.count(store.revision) > 1:
        raise msgspec.ValidationError("it goes back")
    store.apply(changes, now_ms=now_ms)


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the place and the content of all frames up to the first that is not whole."""
    at = len(MAGIC)
    while (content := _frame_at(data, at)) is not None:
        yield at, content
        at += _HEAD.size + len(content)


def _frame_at(data: bytes, at: int) -> bytes | None:
    if len(data) - at < _HEAD.size:
        return None
    marker, size, checksum = _HEAD.unpack_from(data, at)
    content = data[at + _HEAD.size : at + _HEAD.size + size]
    is_whole = marker == MARKER and len(content) == size and _checksum(content) == checksum
    return content if is_whole else None


def _whole_frame_after(data: bytes, at: int) -> int | None:
    """Return where the next whole frame is, beginning one byte further; None: there is none."""
    while (at := data.find(MARKER, at + 1)) >= 0:
        if _frame_at(data, at) is not None:
            return at
    return None


def _checksum(content: bytes) -> int:
    return crc32c(content, crc32c(len(content).to_bytes(4, "little")))
