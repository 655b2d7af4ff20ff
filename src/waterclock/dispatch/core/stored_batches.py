"""A stored batch: a run of pub/sub messages as one value in Redis, until all of them are
acknowledged.

Messages of a stored batch stand behind one marker, one after the other, so that it need not store
their uuids: a prefix and the number of the first say them all. `docs/formats/dispatch_keys.md`
draws it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct
from zlib import crc32

from waterclock.dispatch.core.identity import NUMBER_MAX, PREFIX_BYTES, uuids_from
from waterclock.model.errors import BadInput

MESSAGES_MAX = 500
"""Messages of one stored batch. More makes storing cheaper, and one slow message keep more
bodies."""
BYTES_MAX = 64 << 20
_HEAD = Struct(">2sB10sQQI")
_CRC = Struct(">I")
_MAGIC = b"wp"
_VERSION = 1


class BadStoredBatch(BadInput):
    """The bytes are not a stored batch: another program wrote under our key, or it was damaged."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Messages first, first + 1, ... behind the marker that gave the prefix."""

    prefix: bytes
    first: int
    birth_ms: int
    bodies: Sequence[bytes]

    @property
    def stored_id(self) -> bytes:
        """Return its name, which is the uuid of its first message."""
        return self.prefix + self.first.to_bytes(6, "big")

    def uuids(self) -> list[bytes]:
        """Return the uuids of its messages."""
        return uuids_from(self.prefix, self.first, len(self.bodies))

    def to_bytes(self) -> bytes:
        count = len(self.bodies)
        assert len(self.prefix) == PREFIX_BYTES
        assert 0 < count <= MESSAGES_MAX
        head = _HEAD.pack(_MAGIC, _VERSION, self.prefix, self.first, self.birth_ms, count)
        sizes = Struct(f">{count}I").pack(*map(len, self.bodies))
        whole = b"".join([head, sizes, *self.bodies])
        return whole + _CRC.pack(crc32(whole))


def parse_stored_batch(raw: bytes) -> StoredBatch:
    """Return what was stored; raise BadStoredBatch."""
    if not _HEAD.size + _CRC.size <= len(raw) <= BYTES_MAX:
        raise BadStoredBatch(f"a stored batch of {len(raw)} bytes")
    end = len(raw) - _CRC.size
    if crc32(memoryview(raw)[:end]) != _CRC.unpack_from(raw, end)[0]:
        raise BadStoredBatch("a stored batch that fails its checksum")
    magic, version, prefix, first, birth_ms, count = _HEAD.unpack_from(raw)
    if magic != _MAGIC or version != _VERSION:
        raise BadStoredBatch("not a stored batch of this version")
    bodies_at = _HEAD.size + 4 * count
    if not 0 < count <= MESSAGES_MAX or first + count > NUMBER_MAX or bodies_at > end:
        raise BadStoredBatch("a stored batch whose numbers make no sense")
    sizes = Struct(f">{count}I").unpack_from(raw, _HEAD.size)
    ends = list(accumulate(sizes, initial=bodies_at))
    if ends[-1] != end:
        raise BadStoredBatch("a stored batch whose bodies do not fill it")
    bodies = [raw[start:stop] for start, stop in pairwise(ends)]
    return StoredBatch(prefix, first, birth_ms, bodies)


class Backlog:
    """Names of batches that are stored in Redis while the plan has no room for them, as they came.

    Pub/sub cannot be told to wait, so what the plan cannot hold stays in Redis, and only its name
    here: 16 bytes for up to 500 messages. Oldest first, they are fetched when there is room again.
    """

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._stored_batches: deque[tuple[bytes, int]] = deque()
        self.messages = 0

    def __repr__(self) -> str:
        return f"<Backlog {self.messages} messages>"

    def __bool__(self) -> bool:
        return bool(self._stored_batches)

    @property
    def room(self) -> int:
        """How many messages more may be stored."""
        return max(0, self._messages_max - self.messages)

    def hold(self, stored_id: bytes, count: int) -> None:
        """Take in a batch that is stored."""
        self._stored_batches.append((stored_id, count))
        self.messages += count

    def take(self, room: int) -> list[bytes]:
        """Take out the oldest batches while the plan has room, for fetching and adding them. The
        last may go beyond it: a batch must not wait for ever for a room as large as itself."""
        taken: list[bytes] = []
        while self._stored_batches and room > 0:
            stored_id, count = self._stored_batches.popleft()
            self.messages -= count
            room -= count
            taken.append(stored_id)
        return taken
