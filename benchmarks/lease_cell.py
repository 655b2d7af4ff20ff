"""One cell of the table in lease.md: a lease, a source and a kind of fault, for a minute or so.

Everything is real: Redis, two standbys, two workers, all as processes. Messages are published at a
steady rate; the leader is killed, or paused, by a schedule that depends on nothing but the lease.
How late a message is: from its publishing to the time in the id that Redis gave its entry.
"""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

from tests.dispatch.chaos.fleet import Fleet, Member
from tests.dispatch.chaos.history import Entry, Published, read_journals
from tests.dispatch.chaos.outcome import Outcome
from tests.dispatch.chaos.plan import Plan, Shares, SourceKind
from tests.dispatch.chaos.publisher import Publisher
from tests.dispatch.chaos.stage import Stage
from tests.dispatch.chaos.watcher import Watcher
from tests.kit.fork_server import ForkServer
from waterclock.dispatch.redis.keys import Keys

Trouble = Literal["kills", "pauses"]

FIRST_S = 3.0
BETWEEN_S = 4.0
"""From the end of a lease to the next kill, or from one pause to the next, at least."""
REPLACE_S = 1.0
PAUSE_S = (0.3, 3.0)
LATE_S = 1.0
LOOK_S = 0.02
REST_S = 12.0
READY_S_MAX = 30.0
ALL_PLAIN = Shares(slow=0, spoiled=0, refuse=0, fail=0)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is tried."""

    source_kind: SourceKind
    trouble: Trouble
    lease_s: float
    rate: int
    seconds: float

    @property
    def faults(self) -> list[tuple[float, float]]:
        """When the leader is hit, and how long it is paused: the same pauses for every lease."""
        rng = Random("pauses of 0.3 to 3 s")
        between_s = self.lease_s + BETWEEN_S if self.trouble == "kills" else BETWEEN_S + 1
        pauses, at_s = [], FIRST_S
        while at_s < self.seconds - 1:
            pauses.append((at_s, rng.uniform(*PAUSE_S)))
            at_s += between_s
        return pauses


@dataclass(slots=True)
class Measured:
    """What came of it."""

    cell: Cell
    published: int = 0
    faults: int = 0
    take_overs: list[float] = field(default_factory=list)
    """From each fault that cost the leader its lease until the next leader held it."""
    false: int = 0
    """Leaders that lost their lease and lived."""
    lost: int = 0
    written_twice: int = 0
    handed_out_again: int = 0
    """Deliveries beyond the first of each message."""
    delays: list[float] = field(default_factory=list)
    """Of all messages, in seconds, sorted."""
    gaps: int = 0

    @property
    def late(self) -> int:
        """Messages that were written more than a second after they were published."""
        return sum(delay > LATE_S for delay in self.delays)

    def delay(self, share: float) -> float:
        """Return the delay that this share of all messages does not exceed."""
        at = min(len(self.delays) - 1, int(share * len(self.delays)))
        return self.delays[at] if self.delays else 0.0


class Trial:
    """Tries one cell; several may run side by side on one Redis."""

    def __init__(
        self, cell: Cell, *, number: int, stage: Stage, fork_server: ForkServer, folder: Path
    ) -> None:
        self._cell = cell
        self._stage = stage
        self._folder = folder
        folder.mkdir(parents=True)
        plan = Plan(
            seed=0, number=number, source_kind=cell.source_kind, theme="lease", steps=(),
            lease_ms=round(cell.lease_s * 1_000), deadline_ms=2_000, standbys=2, workers=2,
            rate=cell.rate, publish_ms=round(cell.seconds * 1_000), deliveries_max=100,
            shares=ALL_PLAIN,
        )  # fmt: skip
        self._plan = plan
        fleet = self._fleet = Fleet(
            plan, stage=stage, network=None, fork_server=fork_server, folder=folder
        )
        self._outcome = Outcome(
            stage, prefix=fleet.prefix, source_kind=cell.source_kind, source=fleet.source,
            output=fleet.output, streams=1,
        )  # fmt: skip
        self._watcher = Watcher(stage.client, Keys(fleet.prefix).lock)
        self._hits: list[tuple[float, int]] = []
        """When a leader was hit, and its epoch."""

    def run(self) -> Measured:
        """Try it, and measure."""
        self._watcher.start()
        try:
            self._begin()
            publisher = Publisher(
                self._stage.client, source=self._fleet.source,
                is_stream=self._cell.source_kind == "stream", rate=self._cell.rate,
                count=self._plan.messages, kind_of=self._plan.kind_of,
            )  # fmt: skip
            offset_s = time.time() - time.monotonic()
            publisher.start()
            self._trouble()
            publisher.join()
            self._wait_for_the_rest(publisher.published)
        finally:
            self._fleet.end()
            self._watcher.stop()
        return self._measure(publisher.published, self._outcome.entries(), offset_s)

    def _begin(self) -> None:
        for _ in range(1 + self._plan.standbys):
            self._start_dispatcher()
        for _ in range(self._plan.workers):
            self._fleet.start_worker()
        deadline_s = time.monotonic() + READY_S_MAX
        while not self._is_ready():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"nobody leads; see {self._folder}/programs.log")
            time.sleep(LOOK_S)

    def _is_ready(self) -> bool:
        journals = read_journals(self._folder.glob("worker-*.jsonl"))
        followed = [any(line["what"] == "followed" for line in each) for each in journals.values()]
        return len(followed) == self._plan.workers and all(followed)

    def _start_dispatcher(self) -> None:
        self._fleet.start_dispatcher()
        for port, name in self._fleet.ports.items():
            self._watcher.call(port, name)

    def _leader(self) -> Member | None:
        leader_epoch = self._watcher.leader
        return self._fleet.everybody.get(leader_epoch.name) if leader_epoch is not None else None

    def _trouble(self) -> None:
        """Hit the leader when it is due; a killed one is replaced, a paused one goes on."""
        started_s = time.monotonic()
        for at_s, pause_s in self._cell.faults:
            time.sleep(max(0.0, started_s + at_s - time.monotonic()))
            leader, leader_epoch = self._leader(), self._watcher.leader
            if leader is None or leader_epoch is None or not leader.is_up:
                continue
            self._hits.append((time.monotonic(), leader_epoch.epoch))
            if self._cell.trouble == "kills":
                leader.process.kill()
                time.sleep(REPLACE_S)
                self._start_dispatcher()
            else:
                leader.process.pause()
                time.sleep(pause_s)
                leader.process.resume()

    def _wait_for_the_rest(self, published: list[Published]) -> None:
        deadline_s = time.monotonic() + self._cell.lease_s + REST_S
        wanted = {each.n for each in published}
        while time.monotonic() < deadline_s:
            if wanted <= self._outcome.numbers():
                return
            time.sleep(0.25)

    def _measure(
        self, published: list[Published], entries: list[Entry], offset_s: float
    ) -> Measured:
        sent_s = {each.n: each.from_s + offset_s for each in published}
        counts = Counter(entry.n for entry in entries)
        first: dict[int, int] = {}
        for entry in entries:
            first.setdefault(entry.n, entry.at_ms)
        journals = read_journals(self._folder.glob("*.jsonl"))
        last = [
            [line for line in each if line["what"] == "counts"][-1:] for each in journals.values()
        ]
        totals: Counter[str] = Counter()
        for lines in last:
            for line in lines:
                totals.update(
                    {name: line.get(name, 0) for name in ("received", "redelivered", "gaps")}
                )
        measured = Measured(self._cell, len(published), len(self._hits))
        measured.lost = sum(not counts[each.n] for each in published)
        measured.written_twice = sum(count - 1 for count in counts.values())
        measured.delays = sorted(at_ms / 1_000 - sent_s[n] for n, at_ms in first.items())
        measured.gaps = totals["gaps"]
        received = sum(
            line["received"]
            for name, lines in zip(journals, last, strict=True)
            for line in lines
            if name.startswith("worker")
        )
        measured.handed_out_again = max(0, received - len(counts))
        self._measure_take_overs(measured)
        return measured

    def _measure_take_overs(self, measured: Measured) -> None:
        leader_epochs, hits = self._watcher.leader_epochs, self._hits
        hit_epochs = {epoch: at_s for at_s, epoch in hits}
        for leader_epoch, following in pairwise(leader_epochs):
            at_s = hit_epochs.get(leader_epoch.epoch)
            if at_s is not None and following.at_s > at_s:
                measured.take_overs.append(following.at_s - at_s)
            if at_s is None or self._cell.trouble == "pauses":
                measured.false += 1


def try_side_by_side(
    cells: list[Cell], *, stage: Stage, fork_server: ForkServer, folder: Path
) -> list[Measured]:
    """Try several cells at the same time; they share Redis and the machine."""
    found: list[Measured] = []
    trials = [
        Trial(
            cell, number=number, stage=stage, fork_server=fork_server, folder=folder / str(number)
        )
        for number, cell in enumerate(cells)
    ]
    threads = [
        threading.Thread(target=lambda trial=trial: found.append(trial.run())) for trial in trials
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
