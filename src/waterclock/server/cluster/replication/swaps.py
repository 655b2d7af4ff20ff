"""Changes of partition records, sent to the coordinator: many at once, each judged for itself.

Those that come together are one transaction of up to 128, for a node that dies makes many. If one
of them has lost its race the transaction does nothing, and each is tried by itself.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from waterclock.cluster.coordinator.coordinator import Coordinator
from waterclock.cluster.coordinator.errors import (
    CoordinatorRefused,
    CoordinatorUnavailable,
    RevisionWentBack,
)
from waterclock.cluster.coordinator.records import (
    Keys,
    PartitionRecord,
    decode_record,
    encode_record,
)
from waterclock.cluster.coordinator.requests import (
    OPERATIONS_MAX,
    Get,
    KeyValue,
    Put,
    Revision,
    Txn,
    Unchanged,
    one_key,
)
from waterclock.cluster.replication.effects import Lost, Succeeded, Swapped, Unknown

READ_PAUSE_S: Final = 0.3
AT_ONCE: Final = 64
"""Single questions that are under way at the same time."""

Found = tuple[PartitionRecord | None, Revision]


class _Swap(NamedTuple):
    log_id: bytes
    record: PartitionRecord
    revision: Revision


class Swaps:
    """Asks the coordinator about records. `run` it in a task.

    `on_swapped` and `on_read` tell what became of it, in the loop.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        keys: Keys,
        *,
        on_swapped: Callable[[bytes, Swapped], None],
        on_read: Callable[[bytes, PartitionRecord | None, Revision], None],
    ) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._on_swapped = on_swapped
        self._on_read = on_read
        self._swaps: list[_Swap] = []
        self._reads: set[bytes] = set()
        self._is_asked = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)

    def __repr__(self) -> str:
        return f"<Swaps {len(self._swaps)} to send, {len(self._reads)} to read>"

    def swap(self, log_id: bytes, record: PartitionRecord, revision: Revision) -> None:
        """Replace a record, if it is at the revision."""
        self._swaps.append(_Swap(log_id, record, revision))
        self._is_asked.set()

    def read(self, log_id: bytes) -> None:
        """Read a record, trying until it is read."""
        self._reads.add(log_id)
        self._is_asked.set()

    async def run(self) -> None:
        """Send what is asked for, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._is_asked.wait()
                self._is_asked.clear()
                swaps, self._swaps = self._swaps, []
                reads, self._reads = self._reads, set()
                for start in range(0, len(swaps), OPERATIONS_MAX):
                    tasks.create_task(self._send(swaps[start : start + OPERATIONS_MAX]))
                for log_id in reads:
                    tasks.create_task(self._read(log_id))

    async def _send(self, swaps: list[_Swap]) -> None:
        if len(swaps) == 1:
            await self._send_one(swaps[0])
            return
        conditions = tuple(Unchanged(self._key(each), each.revision) for each in swaps)
        puts = tuple(Put(self._key(each), encode_record(each.record)) for each in swaps)
        try:
            result = await self._coordinator.write(Txn(conditions, puts))
        except (CoordinatorUnavailable, CoordinatorRefused, RevisionWentBack):
            for each in swaps:
                self._on_swapped(each.log_id, Unknown())
            return
        if result.succeeded:
            for each in swaps:
                self._on_swapped(each.log_id, Succeeded(result.revision))
            return
        async with asyncio.TaskGroup() as tasks:
            for each in swaps:
                tasks.create_task(self._send_one(each))

    async def _send_one(self, swap: _Swap) -> None:
        key = self._key(swap)
        put = Put(key, encode_record(swap.record))
        txn = Txn((Unchanged(key, swap.revision),), (put,), (Get(one_key(key)),))
        outcome: Swapped
        try:
            async with self._room:
                result = await self._coordinator.write(txn)
        except (CoordinatorUnavailable, CoordinatorRefused, RevisionWentBack):
            outcome = Unknown()
        else:
            if result.succeeded:
                outcome = Succeeded(result.revision)
            else:
                outcome = Lost(*self._found(result.reads[0], result.revision))
        self._on_swapped(swap.log_id, outcome)

    async def _read(self, log_id: bytes) -> None:
        keys = one_key(self._keys.partition(log_id))
        while True:
            try:
                async with self._room:
                    result = await self._coordinator.read(keys)
            except (CoordinatorUnavailable, CoordinatorRefused):
                await asyncio.sleep(READ_PAUSE_S)
            except RevisionWentBack:
                return  # nothing it says can be trusted any more
            else:
                self._on_read(log_id, *self._found(result.items, result.revision))
                return

    def _key(self, swap: _Swap) -> bytes:
        return self._keys.partition(swap.log_id)

    @staticmethod
    def _found(items: tuple[KeyValue, ...], revision: Revision) -> Found:
        if not items:
            return None, revision
        item = items[0]
        return decode_record(PartitionRecord, item.value, key=item.key), item.mod_revision
