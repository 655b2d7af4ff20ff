"""The backlog: batches that are stored in Redis while the plan has no room for them.

Pub/sub cannot be told to wait, so what the plan cannot hold stays in Redis, and only its name here:
16 bytes for up to 500 messages. Oldest first, they are fetched when there is room again.
"""

from collections import deque


class Backlog:
    """Names of stored batches, in the order they came."""

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._stored_batches: deque[tuple[bytes, int]] = deque()
        self.messages = 0
        self.refused = 0
        """Messages that there was no room for: they are lost, and must not be stored."""

    def __repr__(self) -> str:
        return f"<Backlog {self.messages} messages>"

    def __bool__(self) -> bool:
        return bool(self._stored_batches)

    @property
    def room(self) -> int:
        """How many messages `offer` would still take."""
        return max(0, self._messages_max - self.messages)

    def offer(self, stored_id: bytes, count: int) -> bool:
        """Take in a batch before it is stored; False: drop it, it is counted as refused."""
        if self.messages + count > self._messages_max:
            self.refused += count
            return False
        self.hold(stored_id, count)
        return True

    def hold(self, stored_id: bytes, count: int) -> None:
        """Take in a batch that is stored already, whatever the limit."""
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
