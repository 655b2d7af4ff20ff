"""When a record that failed is tried again, and which of them are due.

The n-th failure waits min(retry_delay_ms * 2^(n-1), retry_delay_ms_max) and some jitter; what
failed in one call stays together. There are never more entries than records held: those of a
partition that goes are taken out at once and not when their time comes, for partitions can come and
go much more often than that.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random

from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.partition import PartitionState
from waterclock.burrow.core.records import Record


def retry_delay_ms(config: EngineConfig, failures: int, rng: Random) -> int:
    """Return how long to wait after so many failures."""
    # Beyond 2^32 times the delay it is the maximum anyway, and the number stays small.
    delay_ms = min(config.retry_delay_ms << min(failures - 1, 32), config.retry_delay_ms_max)
    return delay_ms + int(rng.random() * (delay_ms * config.retry_jitter_percent // 100 + 1))


@dataclass(order=True, slots=True)
class Retry:
    """Records of one partition that failed together."""

    due_ms: int
    turn: int
    home: PartitionState = field(compare=False)
    records: list[Record] = field(compare=False)
    dead_letter_error: BaseException | None = field(compare=False, default=None)
    """If they are to be dead-lettered and not tried: the error they are dead-lettered for."""


class Retries:
    """All that wait for their time, by time."""

    __slots__ = ("_heap", "_turn")

    def __init__(self) -> None:
        self._heap: list[Retry] = []
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Retries {len(self._heap)} entries>"

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due_ms(self) -> int | None:
        """When the first of them is due."""
        return self._heap[0].due_ms if self._heap else None

    def add(
        self,
        due_ms: int,
        home: PartitionState,
        records: list[Record],
        dead_letter_error: BaseException | None = None,
    ) -> None:
        """Remember records until they are due."""
        self._turn += 1
        heappush(self._heap, Retry(due_ms, self._turn, home, records, dead_letter_error))

    def pop_due(self, now_ms: int) -> list[Retry]:
        """Return those whose time has come, the longest due first."""
        due = []
        while self._heap and self._heap[0].due_ms <= now_ms:
            due.append(heappop(self._heap))
        return due

    def drop(self, home: PartitionState) -> None:
        """Forget those of a partition."""
        kept = [retry for retry in self._heap if retry.home is not home]
        if len(kept) < len(self._heap):
            self._heap = kept
            heapify(kept)
