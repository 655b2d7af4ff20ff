"""The plan: which message goes to which worker when, and when it is done or given up. Pure.

How a shell uses it (every call is bulk; `now_ms` is a monotonic clock; one thread at a time):

    joined(worker, name=, credit=)       a worker said hello; `worker` is a number of the shell's
    credited(worker, credit)             its credit is this now; 0 drains it
    left(worker)                         its connection ended: what it had goes to others at once
    add(Load)                            the source brought messages; only while `room` > 0
    hand_out() -> [HandOut...]           send these; call it after all that could change something
    acked / progressed / nacked(uuids)   frames of the present epoch, from any worker
    dead_lettered([uuid...])             answer to `WriteDeadLetters`
    tick()                               call it at `next_deadline()`

What comes back as effects: `Settle` (done for good) and `WriteDeadLetters` (given up).

Promises, which the simulator in tests/dispatch checks:

- A message is with at most one worker until its deadline passes or its worker is gone.
- Every message that is added is handed out until it is acknowledged or given up, and then settled.
- A stored batch is settled when all its messages are done, and not before.
- An acknowledgement counts from any worker: the writing is fenced and deduped, so that one
  that comes late still says that the message was written.
- Memory: `room` messages and bytes, and one load; deadlines and queues hold batches, not messages.

A batch that was with a worker when this went away may hold a message that kills workers. So it
comes again in pieces of an eighth, and what was there twice one by one: a poison message takes few
others with it to the dead stream.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from waterclock.dispatch.core.batches import (
    Batch,
    BatchState,
    DeadLetter,
    Effect,
    HandOut,
    Load,
    Settle,
    WriteDeadLetters,
)
from waterclock.dispatch.core.deadline_heap import DeadlineHeap
from waterclock.dispatch.core.message_table import MessageTable, grouped
from waterclock.dispatch.core.worker_pool import SUSPECT_CRASHES, Worker, WorkerPool
from waterclock.model.units import MIB, SECOND_MS

LOOK_AHEAD = 16
"""Batches looked at for a worker that may take one: the first may shun the only one with room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What the plan goes by; the configuration of a dispatcher makes it."""

    deadline_ms: int = 2 * SECOND_MS
    deliveries_max: int = 5
    messages_max: int = 100_000
    bytes_max: int = 256 * MIB
    batch_messages_max: int = 500
    batch_bytes_max: int = 1 * MIB
    body_bytes_max: int = 1 * MIB
    retry_ms: int = 100
    retry_ms_max: int = 30 * SECOND_MS
    rest_ms_max: int = 30 * SECOND_MS


@dataclass(slots=True)
class Counts:
    """What happened since the plan was made, in messages."""

    added: int = 0
    repeated: int = 0
    """Brought by the source while the plan had them."""
    handed_out: int = 0
    redelivered: int = 0
    acked: int = 0
    acked_unknown: int = 0
    """Acknowledged and not here: done already, or never were."""
    nacked: int = 0
    expired: int = 0
    orphaned: int = 0
    """With a worker that went away."""
    dead_lettered: int = 0


class Plan:
    """Decides for one leader, from taking the lease to losing it."""

    def __init__(self, config: PlanConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._pool = WorkerPool(rest_ms=config.deadline_ms, rest_ms_max=config.rest_ms_max)
        self._table = MessageTable()
        self._again: deque[Batch] = deque()
        """Waiting, and handed out before: these go first, they have waited longest."""
        self._fresh: deque[Batch] = deque()
        self._out = DeadlineHeap(BatchState.OUT)
        self._resting = DeadlineHeap(BatchState.RESTING)
        self.waiting = 0
        """Messages that wait for a worker only."""
        self.counts = Counts()

    def __repr__(self) -> str:
        return f"<Plan {len(self._table)} messages, {self.waiting} wait, {len(self._pool)} workers>"

    # What a shell may ask

    @property
    def held(self) -> int:
        """Messages in the plan, wherever they are."""
        return len(self._table)

    @property
    def in_flight(self) -> int:
        """Messages that workers have, within their deadline."""
        return sum(worker.held for worker in self._pool)

    @property
    def room(self) -> int:
        """How many messages may be added; 0 also if there is no room for their bytes."""
        if self._table.bytes >= self._config.bytes_max:
            return 0
        return max(0, self._config.messages_max - len(self._table))

    def workers(self) -> list[tuple[int, str, int, int]]:
        """Return (number, name, credit, held) of each worker, for metrics."""
        return [(each.key, each.name, each.credit, each.held) for each in self._pool]

    def next_deadline(self, now_ms: int) -> int | None:
        """Return when to call `tick` and `hand_out` next, if nothing else happens; None: never."""
        times = [self._out.next_time(), self._resting.next_time()]
        if self.waiting:
            times.append(self._pool.next_rest_end(now_ms))
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    # Workers come and go

    def joined(self, worker: int, *, name: str, credit: int) -> None:
        """Take in a worker under a number that no worker of this plan had before."""
        self._pool.join(Worker(worker, name, credit))

    def credited(self, worker: int, credit: int) -> None:
        """Let a worker hold so many messages from now on."""
        known = self._pool.get(worker)
        if known is not None:
            known.credit = credit

    def left(self, worker: int, now_ms: int) -> list[Effect]:
        """Give what a worker had to others."""
        gone = self._pool.get(worker)
        if gone is None:
            return []
        dead_letters: list[DeadLetter] = []
        for batch in list(gone.batches):
            self._take_back(batch)
            batch.crashes += 1
            self.counts.orphaned += batch.left
            self._again_or_dead(batch, f"its worker {gone.name} went away", dead_letters)
        self._pool.leave(worker)
        return [WriteDeadLetters(dead_letters)] if dead_letters else []

    # Messages come, go out, and are answered

    def add(self, load: Load) -> list[Effect]:
        """Take in messages that are stored; those that the plan has already are dropped, and those
        that are too large are given up."""
        batch = Batch(load.uuids, load.births_ms, load.bodies, load.entries, load.deliveries)
        self.counts.repeated += self._table.take_in(batch, load.stored_id)
        self.counts.added += batch.left
        if not batch.left:
            if load.stored_id is None or self._table.has_stored_batch(load.stored_id):
                return []
            # All of it is done, or in other stored batches too: this one is not needed any more.
            return [Settle([load.stored_id])]
        dead_letters = self._give_up_giants(batch)
        if batch.state is BatchState.WAITING:
            self.waiting += batch.left
            (self._again if load.deliveries else self._fresh).append(batch)
        return [WriteDeadLetters(dead_letters)] if dead_letters else []

    def _give_up_giants(self, batch: Batch) -> list[DeadLetter]:
        """Give up the messages of a batch that are too large, which may be all of it."""
        limit = self._config.body_bytes_max
        dead_letters: list[DeadLetter] = []
        if max(map(len, batch.bodies)) > limit:
            sizes = zip(batch.uuids, map(len, batch.bodies), strict=True)
            giants = [uuid for uuid, size in sizes if size > limit]
            part = batch if len(giants) == batch.left else self._table.part(batch, giants)
            self._give_up(part, f"larger than {limit} bytes", dead_letters)
        return dead_letters

    def hand_out(self, now_ms: int) -> list[HandOut]:
        """Return what to send to which worker; from now on the deadline of each runs."""
        outs: list[HandOut] = []
        free = self._pool.free_count(now_ms) if self.waiting else 0
        if not free:
            return outs
        # A fair part for each who has room: a few messages are worked on by all at once.
        share = -(-self.waiting // free)
        for queue in (self._again, self._fresh):
            passed = 0
            while queue and passed < LOOK_AHEAD:
                batch = queue[0]
                if not batch.left:
                    queue.popleft()
                    continue
                worker = self._pool.next(batch, now_ms)
                if worker is None:
                    queue.rotate(-1)
                    passed += 1
                    continue
                self._table.tidy(batch)
                count = self._count_for(worker, batch, share, now_ms)
                if count < batch.left:
                    batch = self._table.first(batch, count)
                else:
                    queue.popleft()
                outs.append(self._send(worker, batch, now_ms))
            queue.rotate(passed)
        return outs

    def acked(self, uuids: Sequence[bytes], worker: int) -> list[Effect]:
        """Note that messages were written; a worker says so, of its own or of what it once had."""
        pop = self._table.index.pop
        found = [pop(uuid, None) for uuid in uuids]
        self._pool.answered(worker)
        settle = Settle()
        first = found[0] if found else None
        if first is not None and found.count(first) == len(found):
            self._done(first, uuids, settle)
            known = len(found)
        else:
            groups = grouped(uuids, found)
            for batch, group in groups.items():
                self._done(batch, group, settle)
            known = sum(map(len, groups.values()))
        self.counts.acked += known
        self.counts.acked_unknown += len(found) - known
        return [settle] if settle.stored_batches or settle.entries else []

    def progressed(self, uuids: Sequence[bytes], worker: int, now_ms: int) -> None:
        """Let the deadline of messages that this worker has begin anew."""
        for batch, group in self._table.at_worker(worker, uuids).items():
            self._part(batch, group).deadline_ms = now_ms + self._config.deadline_ms
        self._pool.answered(worker)

    def nacked(
        self, uuids: Sequence[bytes], worker: int, now_ms: int, *, reason: str, is_permanent: bool
    ) -> list[Effect]:
        """Try messages that this worker could not process again later, or give them up."""
        dead_letters: list[DeadLetter] = []
        for batch, group in self._table.at_worker(worker, uuids).items():
            part = self._part(batch, group)
            self._take_back(part)
            self.counts.nacked += part.left
            if is_permanent or part.deliveries >= self._config.deliveries_max:
                self._give_up(part, reason, dead_letters)
            else:
                part.state = BatchState.RESTING
                part.deadline_ms = now_ms + self._retry_ms(part.deliveries)
                self._resting.put(part)
        self._pool.answered(worker)
        return [WriteDeadLetters(dead_letters)] if dead_letters else []

    def dead_lettered(self, uuids: Sequence[bytes]) -> list[Effect]:
        """Note that the dead stream has these."""
        given_up = [uuid for uuid in uuids if self._table.is_at(uuid, BatchState.DEAD)]
        settle = Settle()
        for batch, group in grouped(given_up, map(self._table.index.pop, given_up)).items():
            self._done(batch, group, settle)
        self.counts.dead_lettered += len(given_up)
        # Their entries were acknowledged by the same script that dead-lettered them.
        return [Settle(stored_batches=settle.stored_batches)] if settle.stored_batches else []

    def tick(self, now_ms: int) -> list[Effect]:
        """Take back what was not answered in time, and try again what rested long enough."""
        dead_letters: list[DeadLetter] = []
        for batch in self._out.due(now_ms):
            self._pool.strike(batch.worker, now_ms)
            self._take_back(batch)
            self.counts.expired += batch.left
            self._again_or_dead(batch, "not answered in time", dead_letters)
        for batch in self._resting.due(now_ms):
            self._wait(batch)
        return [WriteDeadLetters(dead_letters)] if dead_letters else []

    def check_invariants(self) -> None:
        """Raise AssertionError if the plan contradicts itself; slow, for tests."""
        left = self._table.check_invariants()
        waiting = sum(count for batch, count in left.items() if batch.state is BatchState.WAITING)
        assert self.waiting == waiting == sum(b.left for q in (self._again, self._fresh) for b in q)
        out = [batch for batch in left if batch.state is BatchState.OUT]
        assert set(out) == {batch for worker in self._pool for batch in worker.batches}
        assert all(self._out.has(batch) for batch in out)
        assert all(self._resting.has(b) for b in left if b.state is BatchState.RESTING)
        for worker in self._pool:
            assert worker.held == sum(batch.left for batch in worker.batches), worker
            assert worker.suspects == sum(b.crashes >= SUSPECT_CRASHES for b in worker.batches)

    # How it is done

    def _count_for(self, worker: Worker, batch: Batch, share: int, now_ms: int) -> int:
        """Return how many of a batch to hand to a worker."""
        count_max = max(1, self._config.batch_messages_max >> (3 * batch.crashes))
        if batch.crashes >= SUSPECT_CRASHES:
            count_max = 1
        count = min(batch.left, share, count_max, worker.free(now_ms))
        bytes_max = self._config.batch_bytes_max
        if batch.bytes > bytes_max:
            sums = accumulate(map(len, batch.bodies[:count]))
            count = max(1, sum(1 for total in sums if total <= bytes_max))
        return count

    def _send(self, worker: Worker, batch: Batch, now_ms: int) -> HandOut:
        self.waiting -= batch.left
        self.counts.handed_out += batch.left
        if batch.deliveries:
            self.counts.redelivered += batch.left
        batch.deliveries += 1
        batch.state, batch.worker = BatchState.OUT, worker.key
        batch.deadline_ms = now_ms + self._config.deadline_ms
        worker.held += batch.left
        self._pool.took(worker, batch)
        self._out.put(batch)
        return HandOut(worker.key, batch.deliveries, batch.uuids, batch.births_ms, batch.bodies)

    def _part(self, batch: Batch, uuids: Sequence[bytes]) -> Batch:
        """Make a batch of its own, with the same worker, of some messages of one that is out."""
        if len(uuids) == batch.left:
            return batch
        part = self._table.part(batch, uuids)
        worker = self._pool.get(batch.worker)
        assert worker is not None
        self._pool.took(worker, part)
        self._out.put(part)
        return part

    def _take_back(self, batch: Batch) -> None:
        """Take a batch from its worker."""
        self._table.tidy(batch)
        self._pool.uncount(batch.worker, batch.left)
        self._pool.lost(batch)
        batch.shunned = batch.worker

    def _again_or_dead(self, batch: Batch, why: str, dead_letters: list[DeadLetter]) -> None:
        if batch.deliveries >= self._config.deliveries_max:
            self._give_up(
                batch, f"handed out {batch.deliveries} times, at last {why}", dead_letters
            )
        else:
            self._wait(batch)

    def _wait(self, batch: Batch) -> None:
        self._table.tidy(batch)
        batch.state = BatchState.WAITING
        self.waiting += batch.left
        self._again.append(batch)

    def _give_up(self, batch: Batch, reason: str, dead_letters: list[DeadLetter]) -> None:
        batch.state = BatchState.DEAD
        stored_id = batch.home.stored_id if batch.home is not None else None
        entries: Sequence[bytes | None] = batch.entries or [None] * batch.left
        dead_letters += [
            DeadLetter(uuid, body, birth_ms, batch.deliveries, reason, stored_id, entry)
            for uuid, body, birth_ms, entry in zip(
                batch.uuids, batch.bodies, batch.births_ms, entries, strict=True
            )
        ]

    def _retry_ms(self, deliveries: int) -> int:
        doubled_ms = self._config.retry_ms << min(deliveries - 1, 32)
        delay_ms = min(doubled_ms, self._config.retry_ms_max)
        return delay_ms + self._rng.randrange(delay_ms // 5 + 1)

    def _done(self, batch: Batch, uuids: Sequence[bytes], settle: Settle) -> None:
        """Let go of messages that are popped from the index; add what is settled thereby."""
        if batch.state is BatchState.OUT:
            self._pool.uncount(batch.worker, len(uuids))
            if len(uuids) == batch.left:
                self._pool.lost(batch)
        elif batch.state is BatchState.WAITING:
            self.waiting -= len(uuids)
        self._table.settle(batch, uuids, settle)
