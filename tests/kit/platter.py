"""The bytes of one simulated file: what readers see, what a crash cannot take, what lies between.

A platter keeps the *current* content (the page cache), the *durable* content, and the ordered list
of changes between the two. A write is remembered as the image of the whole sectors it touched, so
a crash replaces a sector by one of the images it really had, never by a blend no disk could hold.
Between two syncs nothing is ordered: any sector may survive without any other, the size without
the bytes (zeros then), the bytes without the size (cut off then).
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

Choose = Callable[[int], int]
"""`choose(n)` answers with a number in [0, n): a script, `Random(seed).randrange`, or a Hypothesis
draw. 0 is always the answer that loses most and n - 1 the one that keeps most."""

BACKING_BYTES_MIN = 4_096
HOLES_MAX = 3
POISON = 0xDB
"""What old views show beyond a truncation; the real thing would be SIGBUS."""


class Written(NamedTuple):
    """The sectors from `start` took this image."""

    start: int
    image: bytes


class Resized(NamedTuple):
    """The file took this size; new bytes read as zeros."""

    size: int


class Platter:
    """One file's bytes; not thread-safe, the folder holds a lock around it."""

    def __init__(self, content: bytes | bytearray = b"", *, sector_bytes: int) -> None:
        self.size = len(content)
        self._sector_bytes = sector_bytes
        # Longer than the file: views are exported, so it is never resized, only replaced.
        self._current = bytearray(content)
        self._durable = bytearray(content)
        self._pending: list[Written | Resized] = []
        self._settled = 0
        self.has_error = False
        """The kernel failed to write it back: the next sync of the file is to hear of that."""

    def __repr__(self) -> str:
        return (
            f"<Platter {self.size} bytes, {len(self._durable)} durable,"
            f" {len(self._pending)} changes pending>"
        )

    def view(self, start: int, end: int) -> memoryview:
        """Return the current bytes, live until the backing is outgrown."""
        return memoryview(self._current).toreadonly()[start:end]

    def durable_bytes(self) -> bytes:
        """Return what no crash can take."""
        return bytes(self._durable)

    def write(self, position: int, data: bytes) -> None:
        """Change the current bytes and remember the sectors as pending."""
        end = position + len(data)
        if end > self.size:
            self._grow(end)
        self._current[position:end] = data
        start = position - position % self._sector_bytes
        stop = min(self.size, end + -end % self._sector_bytes)
        self._pending.append(Written(start, bytes(memoryview(self._current)[start:stop])))

    def resize(self, size: int) -> None:
        """Grow with zeros, or cut: what lies past the cut is gone from readers and disk alike."""
        if size > self.size:
            self._grow(size)
        elif size < self.size:
            self._cut(size)

    def mark(self) -> int:
        """Return the number of changes ever made: the point a sync that starts now covers."""
        return self._settled + len(self._pending)

    def settle(self, mark: int) -> int:
        """Make the changes before `mark` durable; return how many bytes that moved."""
        count = max(0, mark - self._settled)
        settled = self._pending[:count]
        del self._pending[:count]
        self._settled += count
        for change in settled:
            apply(self._durable, change)
        return sum(len(change.image) for change in settled if isinstance(change, Written))

    def forget(self, mark: int) -> None:
        """Mark the bytes written before `mark` clean without making them durable (fsyncgate)."""
        for index in range(mark - self._settled):
            change = self._pending[index]
            if isinstance(change, Written):
                self._pending[index] = Written(change.start, b"")

    def survivor(self, choose: Choose) -> bytearray:
        """Return what a crash leaves: durable bytes and what `choose` keeps of the pending ones."""
        content = bytearray(self._durable)
        resizes = [change for change in self._pending if isinstance(change, Resized)]
        if resizes:
            for resize in resizes[: choose(len(resizes) + 1)]:
                apply(content, resize)
        for sector in _kept(self._sectors(), choose):
            room = max(0, len(content) - sector.start)
            apply(content, Written(sector.start, sector.image[:room]))
        return content

    def flip(self, position: int, bit: int) -> None:
        """Flip one bit wherever the byte is held: durable, current and pending."""
        assert 0 <= position < max(self.size, len(self._durable)), "flip outside the file"
        mask = 1 << bit
        if position < len(self._durable):
            self._durable[position] ^= mask
        if position < self.size:
            self._current[position] ^= mask
        for index, change in enumerate(self._pending):
            if isinstance(change, Written) and 0 <= position - change.start < len(change.image):
                image = bytearray(change.image)
                image[position - change.start] ^= mask
                self._pending[index] = Written(change.start, bytes(image))

    def _grow(self, size: int) -> None:
        if size > len(self._current):
            backing = bytearray(max(size, 2 * len(self._current), BACKING_BYTES_MIN))
            backing[: self.size] = memoryview(self._current)[: self.size]
            self._current = backing
        else:
            self._current[self.size : size] = bytes(size - self.size)
        self.size = size
        self._pending.append(Resized(size))

    def _cut(self, size: int) -> None:
        self._current[size : self.size] = bytes([POISON]) * (self.size - size)
        # Clipped in place, not removed: a sync under way counts changes by position.
        for index, change in enumerate(self._pending):
            if isinstance(change, Written) and change.start + len(change.image) > size:
                clipped = change.image[: max(0, size - change.start)]
                self._pending[index] = Written(change.start, clipped)
        self.size = size
        self._pending.append(Resized(size))

    def _sectors(self) -> list[Written]:
        """Return the pending images sector by sector, in the order of writing."""
        step = self._sector_bytes
        return [
            Written(change.start + skip, change.image[skip : skip + step])
            for change in self._pending
            if isinstance(change, Written)
            for skip in range(0, len(change.image), step)
        ]


def apply(content: bytearray, change: Written | Resized) -> None:
    """Carry one change out on `content`, which holds all changes before it."""
    match change:
        case Written(start, image):
            content[start : start + len(image)] = image
        case Resized(size) if size < len(content):
            del content[size:]
        case Resized(size):
            content.extend(bytes(size - len(content)))


def _kept(sectors: list[Written], choose: Choose) -> list[Written]:
    """Return the sectors that reached the disk, in one of five manners of losing the rest."""
    if not sectors:
        return []
    match choose(5):
        case 0:
            return []
        case 1:  # the head of the writes arrived: the classic torn tail
            return sectors[: 1 + choose(len(sectors))]
        case 2:  # all but a few: a hole before later bytes that did arrive
            holes = {choose(len(sectors)) for _ in range(1 + choose(HOLES_MAX))}
            return [sector for index, sector in enumerate(sectors) if index not in holes]
        case 3:  # each on its own; one draw, for a thousand would drown a shrinker
            toss = Random(choose(1 << 32))
            return [sector for sector in sectors if toss.random() < 0.5]
        case _:
            return sectors
