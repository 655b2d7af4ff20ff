"""Redis, as far as a dispatcher sees it: a lock, stored batches, a stream, channels and an output.

Each method is one script: it happens at once or not at all. `STALE` is what a fenced one says to an
epoch that is not the newest. Times are those of the world; nobody else may read this clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from waterclock.dispatch.core.identity import MarkerName, Position, SequenceMarker

STALE = "stale"
FAILED = "failed"


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Entry:
    """An entry of the source's stream that the group has read and not acknowledged."""

    body: bytes
    deliveries: int = 0


@dataclass
class ModelRedis:
    """One server; `push` gives what was published to a subscriber."""

    now: Callable[[], int]
    epoch: int = 0
    lock: tuple[str, int, int] | None = None
    """Token, address of the leader, end."""
    lock_epoch: int = 0
    stored_batches: dict[bytes, bytes] = field(default_factory=dict)
    position: Position | None = None
    markers_ms: dict[MarkerName, int] = field(default_factory=dict)
    """When each marker was published."""
    fence: int = 0
    written: dict[bytes, bytes] = field(default_factory=dict)
    """The output and its dedup in one: body by uuid."""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    """Epoch and body of each entry of the output, in order."""
    dead: dict[bytes, bytes] = field(default_factory=dict)
    source_entries: list[tuple[bytes, bytes]] = field(default_factory=list)
    read_to: int = 0
    pending: dict[bytes, Entry] = field(default_factory=dict)
    subscribers: dict[int, Callable[[str, Any], None]] = field(default_factory=dict)

    # The lease

    def acquire(self, token: str, address: int, lease_ms: int) -> tuple[bool, int]:
        """Return (True, epoch), or (False, for how long another has it)."""
        if self.lock is not None and self.lock[2] > self.now():
            return False, self.lock[2] - self.now()
        self.epoch = max(self.epoch + 1, self.now())
        self.lock, self.lock_epoch = (token, address, self.now() + lease_ms), self.epoch
        return True, self.epoch

    def lock_ttl_ms(self) -> int | None:
        """Return for how long the lock is held; None if it is free."""
        if self.lock is None or self.lock[2] <= self.now():
            return None
        return self.lock[2] - self.now()

    def renew(self, token: str, lease_ms: int) -> bool:
        if self.lock is None or self.lock[2] <= self.now() or self.lock[0] != token:
            return False
        self.lock = (token, self.lock[1], self.now() + lease_ms)
        return True

    def release(self, token: str) -> None:
        if self.lock is not None and self.lock[0] == token:
            self.lock = None

    def leader(self) -> int | None:
        return self.lock[1] if self.lock is not None and self.lock[2] > self.now() else None

    # The sources

    def raise_fence(self, epoch: int) -> str | None:
        if epoch < max(self.fence, self.epoch):
            return STALE
        self.fence = epoch
        return None

    def store(
        self, epoch: int, stored_batches: dict[bytes, bytes], position: Position
    ) -> str | None:
        if epoch < self.epoch:
            return STALE
        self.stored_batches |= stored_batches
        self.position = position
        return None

    def load(self, epoch: int) -> Any:
        return STALE if epoch < self.epoch else (self.position, dict(self.stored_batches))

    def read(self, epoch: int, count: int) -> Any:
        """Read new entries into the group's pending list."""
        if epoch < self.epoch:
            return STALE
        new = self.source_entries[self.read_to : self.read_to + count]
        self.read_to += len(new)
        for entry_id, body in new:
            self.pending[entry_id] = Entry(body)
        return new

    def claim(self, epoch: int, count: int) -> Any:
        """Return entries that are pending, oldest first."""
        if epoch < self.epoch:
            return STALE
        for entry in self.pending.values():
            entry.deliveries += 1
        return [(each, entry.body) for each, entry in list(self.pending.items())[:count]]

    def settle(
        self, epoch: int, stored_batches: Sequence[bytes], entries: Sequence[bytes]
    ) -> str | None:
        if epoch < self.epoch:
            return STALE
        for stored_id in stored_batches:
            self.stored_batches.pop(stored_id, None)
        for entry_id in entries:
            self.pending.pop(entry_id, None)
        return None

    def write_dead_letters(self, epoch: int, dead_letters: Sequence[Any]) -> str | None:
        if epoch < self.epoch:
            return STALE
        for dead_letter in dead_letters:
            self.dead.setdefault(dead_letter.uuid, dead_letter.body)
            if dead_letter.entry is not None:
                self.pending.pop(dead_letter.entry, None)
        return None

    # The output

    def write(self, epoch: int, messages: Sequence[tuple[bytes, bytes]]) -> str | None:
        """Write what is not written yet, for a worker that was handed it under this epoch."""
        if epoch < self.fence:
            return STALE
        if self.writes and epoch < self.writes[-1][0]:
            raise Violation(f"epoch {epoch} accepted after {self.writes[-1][0]}")
        for uuid, body in messages:
            if uuid not in self.written:
                self.written[uuid] = body
                self.writes.append((epoch, body))
        return None

    def publish(self, channel: str, payload: Any) -> None:
        if isinstance(payload, SequenceMarker):
            self.markers_ms[payload.name] = self.now()
        for push in list(self.subscribers.values()):
            push(channel, payload)
