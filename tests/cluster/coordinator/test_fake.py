"""The fake under faults: its answers are linearizable, whatever happens to it and its clients."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from waterclock.cluster.coordinator.errors import CoordinatorUnavailable, RevisionWentBack
from waterclock.cluster.coordinator.fake import Answered, FakeCoordinator, Weather
from waterclock.cluster.coordinator.questions import Grant, KeepAlive, Read, Watch
from waterclock.cluster.coordinator.requests import (
    ABSENT,
    KeyRange,
    LeaseId,
    Put,
    RangeResult,
    Revision,
    Txn,
    TxnResult,
    Unchanged,
    WatchBatch,
    one_key,
)

EVERYTHING = KeyRange(b"\0", b"\xff")
SLOW = Weather(delay_ms=(1, 400), watch_ms=(1, 900), attempt_ms=500)


@pytest.fixture
def fake() -> Iterator[FakeCoordinator]:
    fake = FakeCoordinator(Random(7))
    yield fake
    fake.check_invariants()


def put(value: bytes, after: int = -1) -> Txn:
    conditions = () if after < 0 else (Unchanged(b"k", Revision(after)),)
    return Txn(conditions, (Put(b"k", value),))


def outcomes(answers: list[Answered]) -> dict[int, Any]:
    return {each.number: each.outcome for each in answers}


def test_an_answer_under_way_is_lost_with_the_fake_though_it_was_done(fake):
    fake.weather = Weather(delay_ms=(10, 10))
    fake.ask("a", 1, put(b"1"))
    assert fake.tick(15) == []
    fake.go_away()

    assert isinstance(outcomes(fake.tick(100))[1], CoordinatorUnavailable)
    assert fake.store.read(EVERYTHING).items[0].value == b"1"


def test_what_comes_while_it_is_away_is_not_done(fake):
    fake.go_away()
    fake.ask("a", 1, put(b"1"))

    assert isinstance(outcomes(fake.tick(100))[1], CoordinatorUnavailable)
    fake.come_back()
    assert fake.tick(10_000) == []
    assert fake.store.read(EVERYTHING).items == ()


def test_what_a_stalled_one_was_asked_is_done_after_its_client_gave_up(fake):
    fake.stall()
    fake.ask("a", 1, put(b"1"))
    assert isinstance(outcomes(fake.tick(10_000))[1], CoordinatorUnavailable)
    assert fake.store.read(EVERYTHING).items == ()

    fake.resume()

    assert fake.tick(20_000) == []
    assert fake.store.read(EVERYTHING).items[0].value == b"1"


def test_a_client_that_is_cut_off_loses_its_lease_while_others_go_on(fake):
    fake.ask("a", 1, Grant(2))
    lease = outcomes(fake.tick(100))[1].lease
    fake.ask("a", 2, Txn((), (Put(b"k", b"", lease),)))
    fake.ask("b", 1, Watch(EVERYTHING, Revision(2)))
    fake.tick(200)
    fake.cut("a")
    fake.ask("a", 3, KeepAlive(lease))

    answers = fake.tick(5_000)

    assert isinstance(outcomes([each for each in answers if each.client == "a"])[3], Exception)
    batches: list[Any] = [each.outcome for each in answers if each.client == "b"]
    assert [(event.key, event.item) for batch in batches for event in batch.events] == [
        (b"k", None)
    ]


def test_leases_do_not_end_while_it_is_away_and_at_once_when_it_was_stalled(fake):
    fake.ask("a", 1, Grant(2))
    fake.tick(100)
    fake.go_away()
    fake.tick(60_000)
    fake.come_back()
    fake.ask("a", 2, KeepAlive(LeaseId(1)))
    assert outcomes(fake.tick(60_500))[2] == (1, 2)

    fake.stall()
    fake.tick(120_000)
    fake.resume()
    fake.ask("a", 3, KeepAlive(LeaseId(1)))

    assert "has ended" in str(outcomes(fake.tick(120_500))[3])


def test_a_client_that_is_no_more_is_told_nothing(fake):
    fake.ask("a", 1, put(b"1"))
    fake.ask("a", 2, Watch(EVERYTHING, Revision(1)))
    fake.forget("a")

    assert fake.tick(1_000) == []
    assert fake.store.revision == 2


def test_lease_ids_are_not_given_again_by_a_restored_store(fake):
    copy = fake.store.snapshot()
    fake.ask("a", 1, Grant(2))
    first = outcomes(fake.tick(100))[1]
    fake.restore(copy)
    fake.ask("b", 1, Grant(2))

    assert outcomes(fake.tick(200))[1].lease != first.lease


class Swappers:
    """Clients that each read, then swap, one after the other; none knows of the others."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.fake = FakeCoordinator(Random(seed), weather=SLOW)
        self.number = 0
        self.asked: dict[tuple[str, int], tuple[int, Any]] = {}
        self.reads: list[tuple[int, int, int]] = []
        """When it was asked, when answered, and the revision."""
        self.swapped: dict[int, bytes] = {}
        """By revision, what was acknowledged."""
        self.writes: list[Any] = []
        self.seen: list[Any] = []

    def ask(self, client: str, question: Any) -> None:
        self.number += 1
        self.asked[client, self.number] = (self.fake.now_ms, question)
        self.fake.ask(client, self.number, question)
        if isinstance(question, Txn):
            self.writes.append(question)

    def run(self, until_ms: int) -> None:
        self.fake.ask("watcher", 0, Watch(one_key(b"k"), Revision(1)))
        for client in ("a", "b", "c", "d"):
            self.ask(client, Read(one_key(b"k")))
        while self.fake.now_ms < until_ms:
            for answer in self.fake.tick(self.fake.now_ms + 50):
                self.answered(answer)
            self.harm()
            self.fake.check_invariants()

    def harm(self) -> None:
        do = self.rng.choice(
            [self.fake.go_away, self.fake.stall, lambda: self.fake.cut("a")]
            + [self.fake.come_back, self.fake.resume, lambda: self.fake.heal("a")] * 3
            + [lambda: None] * 20
        )
        do()

    def answered(self, answer: Answered) -> None:
        client, number, outcome = answer
        if client == "watcher":
            assert isinstance(outcome, WatchBatch)
            self.seen += outcome.events
            return
        asked_ms, question = self.asked.pop((client, number))
        if isinstance(outcome, CoordinatorUnavailable):
            self.ask(client, Read(one_key(b"k")))
        elif isinstance(outcome, TxnResult):
            if outcome.succeeded:
                assert outcome.revision not in self.swapped
                self.swapped[outcome.revision] = question.success[0].value
            self.ask(client, Read(one_key(b"k")))
        else:
            assert isinstance(outcome, RangeResult)
            self.reads.append((asked_ms, self.fake.now_ms, outcome.revision))
            revision = outcome.items[0].mod_revision if outcome.items else ABSENT
            self.ask(client, put(b"%s-%d" % (client.encode(), number), after=revision))


@pytest.mark.parametrize("seed", range(12))
def test_no_acknowledged_swap_is_lost_and_no_answer_is_older_than_its_question(seed):
    story = Swappers(seed)
    story.run(60_000)
    story.fake.come_back()
    story.fake.resume()
    for answer in story.fake.tick(story.fake.now_ms + 5_000):
        if answer.client == "watcher":
            story.seen += answer.outcome.events  # type: ignore[union-attr]

    by_revision = {each.revision: each.item.value for each in story.seen}
    assert len(story.swapped) > 20
    assert len(by_revision) == len(story.seen)
    assert list(by_revision) == list(range(2, story.fake.store.revision + 1))
    assert story.swapped.items() <= by_revision.items()
    asked = {question.success[0].value for question in story.writes}
    assert set(by_revision.values()) <= asked
    assert len(by_revision) > len(story.swapped), "some happened without an answer"
    for asked_ms, _, revision in story.reads:
        before = [known for _, answered_ms, known in story.reads if answered_ms < asked_ms]
        assert revision >= max(before, default=0)


def test_a_story_in_which_the_store_went_back_ends_in_refusals(fake):
    fake.ask("a", 1, put(b"1"))
    fake.tick(100)
    copy = fake.store.snapshot()
    fake.ask("a", 2, put(b"2"))
    fake.ask("a", 3, Watch(EVERYTHING, Revision(3)))
    fake.tick(200)
    fake.restore(copy)
    fake.ask("a", 4, Read(EVERYTHING))
    fake.ask("b", 1, Read(EVERYTHING))

    answers = fake.tick(300)

    refused = outcomes([each for each in answers if each.client == "a"])
    assert [type(refused[number]) for number in (3, 4)] == [RevisionWentBack] * 2
    assert outcomes([each for each in answers if each.client == "b"])[1].revision == 2
