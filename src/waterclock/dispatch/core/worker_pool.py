"""The workers of a leader: who may be handed how much, in turn.

A worker has credit: how many messages it will hold at once. One that let a deadline pass is not
trusted with more until it answers something: it rests, then is tried with one message, then rests
for twice as long. So a worker that stands still delays few messages, and one that only has a slow
message among many, and goes on answering those, loses nothing.
"""

from collections import deque
from collections.abc import Iterator

from waterclock.dispatch.core.batches import Batch

SUSPECT_CRASHES = 2
"""Messages that were with so many workers when these went away are handed out one by one."""


class Worker:
    """One connection that takes messages."""

    __slots__ = ("batches", "credit", "held", "key", "name", "rest_until_ms", "strikes", "suspects")

    def __init__(self, key: int, name: str, credit: int) -> None:
        self.key = key
        self.name = name
        self.credit = credit
        self.held = 0
        """Messages it has and has not answered, within their deadline."""
        self.batches: dict[Batch, None] = {}
        """What it has, in the order it was handed out."""
        self.suspects = 0
        """Batches among them that may have brought workers down."""
        self.strikes = 0
        self.rest_until_ms = 0

    def __repr__(self) -> str:
        return f"<Worker {self.name} holds {self.held} of {self.credit}>"

    def free(self, now_ms: int) -> int:
        """Return how many messages it may be handed now."""
        if self.strikes:
            return 1 if self.held == 0 and self.credit and now_ms >= self.rest_until_ms else 0
        return max(0, self.credit - self.held)


class WorkerPool:
    """All workers, in turn."""

    def __init__(self, *, rest_ms: int, rest_ms_max: int) -> None:
        self._rest_ms = rest_ms
        self._rest_ms_max = rest_ms_max
        self._workers: dict[int, Worker] = {}
        self._turns: deque[Worker] = deque()

    def __repr__(self) -> str:
        return f"<WorkerPool of {len(self._workers)}>"

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, key: int) -> Worker | None:
        """Return the worker of this key, if it is here."""
        return self._workers.get(key)

    def join(self, worker: Worker) -> None:
        """Take in a worker; it is the last in turn."""
        assert worker.key not in self._workers, f"worker {worker.key} joined twice"
        self._workers[worker.key] = worker
        self._turns.append(worker)

    def leave(self, key: int) -> Worker | None:
        """Forget a worker and return it."""
        worker = self._workers.pop(key, None)
        if worker is not None:
            self._turns.remove(worker)
        return worker

    def free_count(self, now_ms: int) -> int:
        """Return how many workers may be handed something."""
        return sum(1 for worker in self._turns if worker.free(now_ms))

    def next(self, batch: Batch, now_ms: int) -> Worker | None:
        """Return whose turn it is to take from a batch: another one than failed it, if there is."""
        turns = self._turns
        is_suspect = batch.crashes >= SUSPECT_CRASHES
        for _ in range(len(turns)):
            worker = turns[0]
            turns.rotate(-1)
            if not worker.free(now_ms) or (is_suspect and worker.suspects):
                continue
            if worker.key != batch.shunned or not self._has_other(worker):
                return worker
        return None

    def took(self, worker: Worker, batch: Batch) -> None:
        """Note that a worker has a batch; its messages are counted by the caller."""
        worker.batches[batch] = None
        worker.suspects += batch.crashes >= SUSPECT_CRASHES

    def lost(self, batch: Batch) -> None:
        """Note that a worker does not have a batch any more; its messages are uncounted already."""
        worker = self._workers.get(batch.worker)
        if worker is not None and batch in worker.batches:
            del worker.batches[batch]
            worker.suspects -= batch.crashes >= SUSPECT_CRASHES

    def uncount(self, key: int, messages: int) -> None:
        """Note that a worker holds fewer messages."""
        worker = self._workers.get(key)
        if worker is not None:
            worker.held -= messages

    def answered(self, key: int) -> None:
        """Trust a worker again."""
        worker = self._workers.get(key)
        if worker is not None:
            worker.strikes = 0

    def strike(self, key: int, now_ms: int) -> None:
        """Trust a worker less: it let a deadline pass. Once for all that passed together."""
        worker = self._workers.get(key)
        if worker is not None and (not worker.strikes or worker.rest_until_ms <= now_ms):
            rest_ms = min(self._rest_ms << min(worker.strikes, 32), self._rest_ms_max)
            worker.rest_until_ms = now_ms + rest_ms
            worker.strikes += 1

    def next_rest_end(self, now_ms: int) -> int | None:
        """Return when the next worker is to be tried again."""
        ends = [w.rest_until_ms for w in self._turns if w.strikes and w.rest_until_ms > now_ms]
        return min(ends, default=None)

    def _has_other(self, worker: Worker) -> bool:
        """Say whether there is another one who could take something, now or when it has room."""
        return any(
            other.credit and not other.strikes for other in self._turns if other is not worker
        )
