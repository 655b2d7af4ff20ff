"""All messages of a plan: which batch each is in, what they weigh, and which stored batches they
are of.

A message is in the plan exactly while `index` has it. Batches are not told when a message leaves
them; they only count, and are tidied where the plan needs to see what is left.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

from waterclock.dispatch.core.batches import Batch, BatchState, Home, Settle


class MessageTable:
    """The index of the plan's messages."""

    def __init__(self) -> None:
        self.index: dict[bytes, Batch] = {}
        self.bytes = 0
        """Of the bodies of all batches; a batch that shrinks weighs less once it is tidied."""
        self._homes: dict[bytes, Home] = {}

    def __repr__(self) -> str:
        return f"<MessageTable {len(self.index)} messages of {len(self._homes)} stored batches>"

    def __len__(self) -> int:
        return len(self.index)

    def take_in(self, batch: Batch, stored_id: bytes | None) -> int:
        """Take in the messages of a batch that are new here; return how many were not."""
        count = len(batch.uuids)
        if stored_id is not None and stored_id in self._homes:
            batch.empty()
            return count
        if not self.index.keys().isdisjoint(batch.uuids) or len(set(batch.uuids)) != count:
            batch.keep(self._new(batch.uuids))
        if batch.left:
            if stored_id is not None:
                batch.home = self._homes[stored_id] = Home(stored_id, batch.left)
            self.name(batch)
            self.bytes += batch.bytes
        return count - batch.left

    def has_stored_batch(self, stored_id: bytes) -> bool:
        """Say whether messages of a stored batch are here."""
        return stored_id in self._homes

    def name(self, batch: Batch) -> None:
        """Let the index name this batch for all its messages."""
        self.index.update(zip(batch.uuids, repeat(batch)))

    def is_at(self, uuid: bytes, state: BatchState) -> bool:
        """Say whether a message is here, in a batch at this place."""
        batch = self.index.get(uuid)
        return batch is not None and batch.state is state

    def at_worker(self, worker: int, uuids: Iterable[bytes]) -> dict[Batch, list[bytes]]:
        """Return which of these messages a worker has, by batch, each once."""
        mine = [
            uuid
            for uuid in dict.fromkeys(uuids)
            if self.is_at(uuid, BatchState.OUT) and self.index[uuid].worker == worker
        ]
        return grouped(mine, [self.index[uuid] for uuid in mine])

    def tidy(self, batch: Batch) -> None:
        """Drop from a batch what is gone from it."""
        if batch.left < len(batch.uuids):
            index = self.index
            alive = [at for at, uuid in enumerate(batch.uuids) if index.get(uuid) is batch]
            self.bytes -= batch.bytes
            batch.keep(alive)
            self.bytes += batch.bytes

    def first(self, batch: Batch, count: int) -> Batch:
        """Make a batch of its own of the first messages of a tidy one."""
        part = batch.first(count)
        self.name(part)
        return part

    def part(self, batch: Batch, uuids: Iterable[bytes]) -> Batch:
        """Make a batch of its own of some messages of another."""
        chosen = set(uuids)
        part = batch.pick([at for at, uuid in enumerate(batch.uuids) if uuid in chosen])
        self.name(part)
        self.bytes += part.bytes
        batch.left -= part.left
        self.tidy(batch)
        return part

    def settle(self, batch: Batch, uuids: Sequence[bytes], settle: Settle) -> None:
        """Let go of messages that are popped from the index; add what is settled thereby."""
        count = len(uuids)
        batch.left -= count
        if batch.entries is not None:
            is_whole = count == len(batch.uuids)
            settle.entries.extend(batch.entries if is_whole else batch.entries_of(uuids))
        home = batch.home
        if home is not None:
            home.left -= count
            if not home.left:
                del self._homes[home.stored_id]
                settle.stored_batches.append(home.stored_id)
        if not batch.left:
            self.bytes -= batch.bytes
            batch.empty()

    def check_invariants(self) -> dict[Batch, int]:
        """Return how many messages each batch has; raise AssertionError for a contradiction."""
        left: dict[Batch, int] = {}
        homes: dict[bytes, int] = {}
        for batch in self.index.values():
            left[batch] = left.get(batch, 0) + 1
            if batch.home is not None:
                homes[batch.home.stored_id] = homes.get(batch.home.stored_id, 0) + 1
        assert all(batch.left == count for batch, count in left.items())
        assert self.bytes == sum(batch.bytes for batch in left)
        assert homes == {stored_id: home.left for stored_id, home in self._homes.items()}
        return left

    def _new(self, uuids: Sequence[bytes]) -> list[int]:
        """Return the places of those that are not here, each uuid once."""
        first: dict[bytes, int] = {}
        for at, uuid in enumerate(uuids):
            if uuid not in self.index:
                first.setdefault(uuid, at)
        return list(first.values())


def grouped(uuids: Iterable[bytes], batches: Iterable[Batch | None]) -> dict[Batch, list[bytes]]:
    """Return the messages by the batch they are in, without those that are in none."""
    groups: dict[Batch, list[bytes]] = {}
    for uuid, batch in zip(uuids, batches, strict=True):
        if batch is not None:
            groups.setdefault(batch, []).append(uuid)
    return groups
