"""The last messages of a stream, by position.

Positions count from 1 and are never given twice. A full ring forgets its oldest message for each
new one. What was forgotten is known by its position alone: below `first` there was something once.
"""

from typing import NamedTuple

ITEM_BYTES = 200
"""About what an item takes besides its body and its id."""


class Item(NamedTuple):
    """A message in a stream."""

    body: bytes
    """JSON, as it was sent."""
    message_id: str = ""
    """Empty if the sender gave none."""
    sent_ms: int = 0
    expires_ms: int = 0
    """Of no use from then on; 0: for ever."""
    stored: int = 0
    """Its position in the store, if it is there too."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.body) + len(self.message_id) + ITEM_BYTES

    def is_over(self, now_ms: int) -> bool:
        """Return whether it is of no use any more."""
        return 0 < self.expires_ms <= now_ms


def fitting(items: list[Item], room_bytes: int) -> list[Item]:
    """Return as many of the first as may be given at once: what fits, and one more."""
    for count, item in enumerate(items, 1):
        room_bytes -= len(item.body)
        if room_bytes <= 0:
            return items[:count]
    return items


class Ring:
    """Holds up to `size` items; none if it is 0."""

    __slots__ = ("_head", "_items", "end", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.end = 0
        """The last position that was given."""
        self._items: list[Item] = []
        self._head = 0
        """Where the oldest item is, once the ring is full."""

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<Ring {self.first}..{self.end} of {self.size}>"

    @property
    def size_bytes(self) -> int:
        """About what its items take in memory. Slow."""
        return sum(item.size_bytes for item in self._items)

    @property
    def first(self) -> int:
        """The position of the oldest item, or of the next one if there is none."""
        return self.end - len(self._items) + 1

    def put(self, item: Item) -> Item | None:
        """Take an item; return the one it displaced. A ring of size 0 keeps nothing."""
        self.end += 1
        items = self._items
        if len(items) < self.size:
            items.append(item)
            return None
        if not items:
            return item
        head = self._head
        displaced = items[head]
        items[head] = item
        self._head = head + 1 if head + 1 < len(items) else 0
        return displaced

    def get(self, position: int) -> Item:
        """Return the item at a position in `first` .. `end`."""
        # The newest lies before the oldest; Python counts negative places from the end.
        return self._items[self._head + position - self.end - 1]

    def read(self, position: int, count: int) -> list[Item]:
        """Return up to `count` items from a position in `first` .. `end + 1` on."""
        items, length = self._items, len(self._items)
        count = min(count, self.end - position + 1)
        if count <= 0:
            return []
        at = (self._head + position - self.first) % length
        found = items[at : at + count]
        return found if len(found) == count else found + items[: count - len(found)]

    def resize(self, size: int) -> list[Item]:
        """Hold another number of items; return the oldest ones that have no room any more."""
        items = self._items[self._head :] + self._items[: self._head]
        dropped = items[: max(0, len(items) - size)]
        self._items = items[len(dropped) :]
        self._head = 0
        self.size = size
        return dropped
