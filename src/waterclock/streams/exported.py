"""A whole stream on its way to another node: what it is made of, and the bytes of that.

Positions, the incarnation and every consumer go along, so readers and their tokens go on as if
nothing had happened. Clocks of two nodes have nothing in common but their pace: what expires goes
as the time that is left, what was used as the time since. Waiters do not go along: they are told to
ask again.

    stream      incarnation u64, flags u8, size u32, end u64, taken u64, missed u64, idle ms u64,
                lengths of name, messages, returned and consumers, u32 each, then those
    message     sent ms u64, ms left u64 (0: for ever), stored u64, length of id u32 and body u32
    returned    position u64
    consumer    position u64, missed u64, idle ms u64, length of name u32
"""

from struct import Struct
from typing import Final, NamedTuple

from waterclock.model.errors import BadInput
from waterclock.streams.consumer import Consumer, consumer_bytes
from waterclock.streams.ring import Item, Ring
from waterclock.streams.stream import Stream

_STREAM: Final = Struct(">QBIQQQQIIII")
_ITEM: Final = Struct(">QQQII")
_RETURNED: Final = Struct(">Q")
_CONSUMER: Final = Struct(">QQQI")

_IS_SHARED: Final = 1
_HAS_RING: Final = 2


class BadExport(BadInput):
    """What another node sent is no stream."""


class ExportedConsumer(NamedTuple):
    """How far a named consumer has come."""

    name: str
    position: int
    missed: int
    idle_ms: int
    """Since it was last heard of."""


class Exported(NamedTuple):
    """All there is to a stream without its waiters. Times are spans."""

    name: str
    incarnation: int
    size: int | None
    """Of the ring; None if nothing was ever sent."""
    end: int
    items: tuple[Item, ...]
    """The last up to `end`; `expires_ms` is the time that is left."""
    taken: int
    missed: int
    is_shared: bool
    returned: tuple[int, ...]
    consumers: tuple[ExportedConsumer, ...]
    idle_ms: int
    """Since it was last used."""

    @classmethod
    def of(cls, stream: Stream, now_ms: int) -> "Exported":
        """Return what a stream is made of."""
        ring = stream.ring
        items = [] if ring is None else ring.read(ring.first, len(ring))
        consumers = stream.consumers or {}
        return cls(
            stream.name,
            stream.incarnation,
            None if ring is None else ring.size,
            0 if ring is None else ring.end,
            tuple(_timed(item, -now_ms) for item in items),
            0 if ring is None else stream.taken,
            stream.missed,
            stream.is_shared,
            () if ring is None else tuple(sorted(stream.returned or ())),
            tuple(
                ExportedConsumer(name, each.position, each.missed, max(0, now_ms - each.seen_ms))
                for name, each in consumers.items()
            ),
            max(0, now_ms - stream.touched_ms),
        )

    @property
    def is_empty(self) -> bool:
        """Nothing would be lost with it."""
        return self.size is None and not self.consumers

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory, as `Stream.size_bytes` counts."""
        messages = sum(item.size_bytes for item in self.items)
        return messages + sum(consumer_bytes(each.name) for each in self.consumers)

    def encode(self) -> bytes:
        """Return the bytes of it."""
        name = _encoded(self.name)
        flags = _IS_SHARED * self.is_shared | _HAS_RING * (self.size is not None)
        counts = (len(name), len(self.items), len(self.returned), len(self.consumers))
        ends = (self.end, self.taken, self.missed, self.idle_ms)
        parts = [_STREAM.pack(self.incarnation, flags, self.size or 0, *ends, *counts), name]
        for body, message_id, sent_ms, left_ms, stored in self.items:
            said = _encoded(message_id)
            parts += (_ITEM.pack(sent_ms, left_ms, stored, len(said), len(body)), said, body)
        parts += map(_RETURNED.pack, self.returned)
        for name_, *facts in self.consumers:
            said = _encoded(name_)
            parts += (_CONSUMER.pack(*facts, len(said)), said)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "Exported":
        """Read it; raises BadExport."""
        reader = _Reader(data)
        incarnation, flags, size, *rest = reader.unpack(_STREAM)
        end, taken, missed, idle_ms, name_length, items, returned, consumers = rest
        if flags > _IS_SHARED | _HAS_RING:
            raise BadExport(f"a stream with flags of {flags}")
        exported = cls(
            reader.text(name_length),
            incarnation,
            size if flags & _HAS_RING else None,
            end,
            tuple(reader.item() for _ in range(items)),
            taken,
            missed,
            bool(flags & _IS_SHARED),
            tuple(reader.unpack(_RETURNED)[0] for _ in range(returned)),
            tuple(reader.consumer() for _ in range(consumers)),
            idle_ms,
        )
        if reader.at != len(data):
            raise BadExport("there is something behind a stream")
        exported._check(size)
        return exported

    def _check(self, size: int) -> None:
        if len(self.items) > min(size, self.end):
            raise BadExport("a ring with more messages than it holds")
        if self.taken > self.end or any(not 0 < each <= self.taken for each in self.returned):
            raise BadExport("more messages were taken than there were")
        if self.size is None and (size or self.end):
            raise BadExport("messages of a stream to which nothing was sent")
        if len({each.name for each in self.consumers}) < len(self.consumers):
            raise BadExport("two consumers of one name")

    def revive(self, now_ms: int) -> Stream:
        """Return it as the stream that it was."""
        stream = Stream(self.name, self.incarnation)
        stream.touched_ms = now_ms - self.idle_ms
        stream.taken, stream.missed = self.taken, self.missed
        stream.is_shared = self.is_shared
        stream.returned = list(self.returned) or None
        if self.size is not None:
            ring = stream.ring = Ring(self.size)
            ring.end = self.end - len(self.items)
            for item in self.items:
                ring.put(_timed(item, now_ms))
        for each in self.consumers:
            stream.consumers = stream.consumers or {}
            consumer = stream.consumers[each.name] = Consumer(each.position)
            consumer.missed = each.missed
            consumer.seen_ms = now_ms - each.idle_ms
        return stream

    def pending(self) -> list[tuple[int, Item]]:
        """Return the messages that no competing receiver has taken, with their positions."""
        first = self.end - len(self.items) + 1
        again = set(self.returned)
        return [
            (position, item)
            for position, item in enumerate(self.items, first)
            if position > self.taken or position in again
        ]

    def append_to(self, stream: Stream, now_ms: int) -> list[Item]:
        """Put what nobody took behind what another stream of the name has; return that.

        After a partition both have gone on, and no order of their messages is right. A consumer
        that only one of them knows goes on with the first message it has not read; what it cannot
        get any more is counted as missed. Neither has waiters.
        """
        ring = stream.ring
        assert ring is not None
        start, pending = ring.end, self.pending()
        items = [_timed(item, now_ms) for _, item in pending]
        for item in items:
            displaced = ring.put(item)
            if displaced is not None:
                stream.displaced += 1
                stream.displaced_bytes += displaced.size_bytes
        stream.missed += self.missed + max(0, self.end - len(self.items) - self.taken)
        stream.is_shared = stream.is_shared or self.is_shared
        stream.touched_ms = max(stream.touched_ms, now_ms - self.idle_ms)
        stream.consumers = stream.consumers or {}
        for each in self.consumers:
            if each.name in stream.consumers:
                continue
            read = sum(position <= each.position for position, _ in pending)
            consumer = stream.consumers[each.name] = Consumer(start + read)
            lost = self.end - each.position - (len(pending) - read)
            consumer.missed = each.missed + max(0, lost)
            consumer.seen_ms = now_ms - each.idle_ms
            stream.displaced_bytes -= consumer_bytes(each.name)
        stream.consumers = stream.consumers or None
        return items


class _Reader:
    """Reads bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def unpack(self, struct: Struct) -> tuple[int, ...]:
        if self.at + struct.size > len(self._data):
            raise BadExport("a stream ends before its parts do")
        found = struct.unpack_from(self._data, self.at)
        self.at += struct.size
        return found

    def cut(self, length: int) -> bytes:
        found = self._data[self.at : self.at + length]
        if len(found) < length:
            raise BadExport("a stream ends before its parts do")
        self.at += length
        return found

    def text(self, length: int) -> str:
        try:
            return self.cut(length).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise BadExport("a name is not UTF-8") from None

    def item(self) -> Item:
        sent_ms, left_ms, stored, id_length, body_length = self.unpack(_ITEM)
        message_id = self.text(id_length)
        return Item(self.cut(body_length), message_id, sent_ms, left_ms, stored)

    def consumer(self) -> ExportedConsumer:
        position, missed, idle_ms, length = self.unpack(_CONSUMER)
        return ExportedConsumer(self.text(length), position, missed, idle_ms)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _timed(item: Item, by_ms: int) -> Item:
    """Return an item that expires so much later; not before it was made, which would be never."""
    if not item.expires_ms:
        return item
    return item._replace(expires_ms=max(1, item.expires_ms + by_ms))
