"""A coordinator for simulations: a store behind a network, on virtual time and from one seed.

Many clients, each with numbers of its own for what it asks. A question reaches the store after a
while, takes effect at that one moment, and its answer takes a while too; so answers overtake each
other, and what is answered is linearizable. On top of that, what a real one does:

    away       nobody answers: what comes is lost, and so are answers under way, done or not
    stalled    its process is stopped: clients give up, and what they asked takes effect later
    cut        away for one client
    slow       set `weather`
    compacted  watches that are behind are told
    restored   from an old copy: clients that saw more refuse it

Leases do not end while it is away, and are whole again afterwards, as under a new leader of etcd.
While it is stalled they do not end either; those that are over end at once when it goes on.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple, assert_never

from waterclock.cluster.coordinator.errors import (
    Compacted,
    CoordinatorUnavailable,
    RevisionWentBack,
)
from waterclock.cluster.coordinator.questions import Outcome, Question, Watch, outcome_of
from waterclock.cluster.coordinator.requests import (
    KeyRange,
    RangeResult,
    Revision,
    TxnResult,
    WatchBatch,
)
from waterclock.cluster.coordinator.revision_guard import RevisionGuard
from waterclock.cluster.coordinator.store import Store


class Answered(NamedTuple):
    """What a client is told about one of its questions."""

    client: str
    number: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How long things take, each at random between two bounds."""

    delay_ms: tuple[int, int] = (1, 5)
    """Each way of a question."""
    watch_ms: tuple[int, int] = (1, 10)
    """From a change to those who watch it."""
    attempt_ms: int = 2_000
    """After so long without an answer a client gives up."""


class _Asked(NamedTuple):
    """A question that has not reached the store."""

    id: tuple[str, int]
    question: Question
    at_least: Revision


class _Reply(NamedTuple):
    """An answer on its way back."""

    id: tuple[str, int]
    outcome: Outcome
    at_least: Revision


class _Due(NamedTuple):
    """It is time to look what a watch is to be reply."""

    id: tuple[str, int]


@dataclass(slots=True)
class _Watching:
    keys: KeyRange
    from_revision: Revision
    is_due: bool = False


class FakeCoordinator:
    """The store, its network and all its clients. `tick` returns what they are reply."""

    def __init__(self, rng: Random, *, weather: Weather | None = None) -> None:
        self.weather = weather or Weather()
        self.store = Store()
        self.now_ms = 0
        self._rng = rng
        self._is_away = False
        self._is_stalled = False
        self._cut: set[str] = set()
        self._steps: list[tuple[int, int, _Asked | _Reply | _Due]] = []
        self._order = 0
        self._waiting: set[tuple[str, int]] = set()
        self._piled: list[_Asked] = []
        self._watches: dict[tuple[str, int], _Watching] = {}
        self._guards: dict[str, RevisionGuard] = {}

    def __repr__(self) -> str:
        away = "away" if self._is_away else "stalled" if self._is_stalled else "up"
        return f"<FakeCoordinator {away}, {self.store}, {len(self._watches)} watches>"

    def ask(self, client: str, number: int, question: Question) -> None:
        """Take a question; a number is used once by its client."""
        guard = self._guards.setdefault(client, RevisionGuard())
        try:
            at_least = guard.asked()
        except RevisionWentBack as error:
            self._waiting.add((client, number))
            self._later(0, _Reply((client, number), error, Revision(0)))
            return
        if isinstance(question, Watch):
            self._watches[client, number] = _Watching(question.keys, question.from_revision)
        else:
            self._waiting.add((client, number))
        self._later(self._delay(), _Asked((client, number), question, at_least))

    def end_watch(self, client: str, number: int) -> None:
        """Tell a client no more of a watch."""
        self._watches.pop((client, number), None)

    def forget(self, client: str) -> None:
        """Note that a client is no more. What it asked takes effect all the same."""
        self._waiting = {each for each in self._waiting if each[0] != client}
        self._watches = {key: each for key, each in self._watches.items() if key[0] != client}
        self._guards.pop(client, None)

    def tick(self, now_ms: int) -> list[Answered]:
        """Let time pass, and return what clients are told meanwhile."""
        answers: list[Answered] = []
        while (deadline_ms := self.next_deadline()) is not None and deadline_ms <= now_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            if self._serves():
                self.store.tick(self.now_ms)
            if self._steps and self._steps[0][0] <= self.now_ms:
                answers += self._perform(heappop(self._steps)[2])
            self._wake_watches()
        self.now_ms = max(self.now_ms, now_ms)
        return answers

    def next_deadline(self) -> int | None:
        """Return when something happens next."""
        leases_ms = self.store.next_deadline() if self._serves() else None
        steps_ms = self._steps[0][0] if self._steps else None
        return min((each for each in (leases_ms, steps_ms) if each is not None), default=None)

    def go_away(self) -> None:
        """Answer nobody, and lose what is under way."""
        self._is_away = True

    def come_back(self) -> None:
        """Answer again."""
        self._is_away = False
        self.store.extend_leases(self.now_ms)
        self._wake_watches()

    def stall(self) -> None:
        """Stop as a process is stopped: nobody is told, and nothing is lost."""
        self._is_stalled = True

    def resume(self) -> None:
        """Go on, with everything that was asked meanwhile."""
        self._is_stalled = False
        for each in self._piled:
            self._later(0, each)
        self._piled.clear()
        self._wake_watches()

    def cut(self, client: str) -> None:
        """Let nothing pass from and to a client."""
        self._cut.add(client)

    def heal(self, client: str) -> None:
        """Let everything pass again."""
        self._cut.discard(client)
        self._wake_watches()

    def compact(self, revision: Revision) -> None:
        """Forget the changes up to a revision."""
        self.store.compact(revision)
        for id_ in self._watches:
            self._wake(id_)

    def restore(self, copy: Store) -> None:
        """Put an older copy of the store in its place; everybody connects anew."""
        self.store, last_lease = copy.snapshot(), self.store.last_lease
        # etcd's ids have the time in them: none is given twice.
        self.store.last_lease = last_lease
        self.store.extend_leases(self.now_ms)
        for id_ in self._watches:
            self._wake(id_)

    def check_invariants(self) -> None:
        """Check that every question that waits will be answered."""
        self.store.check_invariants()
        coming = {step.id for _, _, step in self._steps} | {each.id for each in self._piled}
        assert self._waiting <= coming, self._waiting - coming
        due = {step.id for _, _, step in self._steps if isinstance(step, _Due)}
        assert due >= {id_ for id_, each in self._watches.items() if each.is_due}

    def _serves(self) -> bool:
        return not self._is_away and not self._is_stalled

    def _reaches(self, client: str) -> bool:
        return not self._is_away and client not in self._cut

    def _delay(self) -> int:
        return self._rng.randint(*self.weather.delay_ms)

    def _later(self, after_ms: int, step: _Asked | _Reply | _Due) -> None:
        self._order += 1
        heappush(self._steps, (self.now_ms + after_ms, self._order, step))

    def _perform(self, step: _Asked | _Reply | _Due) -> list[Answered]:
        match step:
            case _Asked():
                self._arrived(step)
                return []
            case _Reply():
                return self._answer(step)
            case _Due():
                return self._tell_changes(step.id)
            case _:
                assert_never(step)

    def _arrived(self, asked: _Asked) -> None:
        client, _ = asked.id
        if isinstance(asked.question, Watch):
            if asked.id in self._watches:
                self._wake(asked.id)
        elif not self._reaches(client):
            lost = CoordinatorUnavailable("the fake is away")
            self._later(self._delay(), _Reply(asked.id, lost, asked.at_least))
        elif self._is_stalled:
            self._piled.append(asked)
            given_up = CoordinatorUnavailable("the fake does not answer")
            self._later(self.weather.attempt_ms, _Reply(asked.id, given_up, asked.at_least))
        else:
            outcome = outcome_of(asked.question, self.store, now_ms=self.now_ms)
            self._later(self._delay(), _Reply(asked.id, outcome, asked.at_least))

    def _answer(self, reply: _Reply) -> list[Answered]:
        client, number = reply.id
        if reply.id not in self._waiting:  # it was given up, or its client is no more
            return []
        self._waiting.discard(reply.id)
        outcome = reply.outcome
        if not isinstance(outcome, RevisionWentBack) and not self._reaches(client):
            outcome = CoordinatorUnavailable("the answer of the fake was lost")
        if isinstance(outcome, RangeResult | TxnResult):
            try:
                self._guards[client].answered(outcome.revision, at_least=reply.at_least)
            except RevisionWentBack as error:
                outcome = error
        return [Answered(client, number, outcome)]

    def _wake_watches(self) -> None:
        for id_, watching in self._watches.items():
            if not watching.is_due and watching.from_revision <= self.store.revision:
                self._wake(id_)

    def _wake(self, id_: tuple[str, int]) -> None:
        if self._reaches(id_[0]) and not self._is_stalled and not self._watches[id_].is_due:
            self._watches[id_].is_due = True
            self._later(self._rng.randint(*self.weather.watch_ms), _Due(id_))

    def _tell_changes(self, id_: tuple[str, int]) -> list[Answered]:
        client, number = id_
        watching = self._watches.get(id_)
        if watching is None:
            return []
        watching.is_due = False
        if not self._reaches(client) or self._is_stalled:
            return []  # woken again when it does
        guard = self._guards[client]
        try:
            at_least = max(guard.asked(), Revision(watching.from_revision - 1))
            guard.answered(self.store.revision, at_least=at_least)
            events = self.store.changes(watching.keys, from_revision=watching.from_revision)
        except (Compacted, RevisionWentBack) as error:
            del self._watches[id_]
            return [Answered(client, number, error)]
        # Whole revisions, and not always all there are.
        revisions = sorted({each.revision for each in events})
        if not revisions:
            watching.from_revision = Revision(self.store.revision + 1)
            return []
        last = self._rng.choice(revisions)
        watching.from_revision = Revision(last + 1)
        batch = WatchBatch(tuple(each for each in events if each.revision <= last))
        return [Answered(client, number, batch)]
