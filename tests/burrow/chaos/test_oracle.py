"""The oracle on small histories: one that is good, and each of its findings on one that is not."""

from dataclasses import replace

import pytest

from tests.burrow.chaos.history import CommitSeen, Fault, History, ProcessRun
from tests.burrow.chaos.journal import Entry, Position, What
from tests.burrow.chaos.oracle import MAPS, Oracle
from tests.burrow.chaos.plan import PARTITIONS, Plan, StepKind

SECOND = 1_000_000_000
PLAN = Plan.of(0, kind="members")
WORK_NS = SECOND // 100


def numbers(*, is_poison: bool = False, key: bytes = b"k0", count: int = 1) -> list[int]:
    """Return the first messages of a nature."""
    found = []
    for number in range(10**6):
        nature = PLAN.nature(number)
        if (nature.is_poison, nature.failures, nature.key) == (is_poison, 0, key):
            found.append(number)
            if len(found) == count:
                break
    return found


class Story:
    """A history that is written step by step."""

    def __init__(self, order: str = "key") -> None:
        self.history = History(replace(PLAN, order=order))  # type: ignore[arg-type]
        self.now_ns = SECOND
        self.history.faults.append(Fault(StepKind.JOIN, "a", 0, 1))
        for partition in range(PARTITIONS):  # something goes on in all of them
            self.store((partition, 0), numbers(key=b"k%d" % partition)[0])

    def store(self, place: Position, number: int) -> None:
        self.history.log[place] = number

    def run(self, name: str) -> ProcessRun:
        known = self.history.runs
        if name not in known:
            known[name] = ProcessRun(name, 0, asked_ns=50 * SECOND, ended_ns=51 * SECOND, code=0)
        return known[name]

    def note(self, name: str, what: What, place: Position) -> None:
        self.now_ns += WORK_NS
        number = self.history.log[place]
        self.run(name).entries.append(Entry(what, place, number, self.now_ns))

    def done(self, name: str, place: Position) -> None:
        self.note(name, What.BEGUN, place)
        self.note(name, What.FINISHED, place)

    def commit(self, partition: int, offset: int, runs: tuple[tuple[int, int], ...] = ()) -> None:
        self.now_ns += WORK_NS
        text = MAPS.encode(offset, runs).text
        seen = CommitSeen(partition, offset, text, self.now_ns)
        self.history.commits.append(seen)
        self.history.final[partition] = seen

    def finish_rest(self, name: str = "a") -> None:
        """Finish and commit whatever nobody has."""
        done = {
            entry.place
            for run in self.history.runs.values()
            for entry in run.entries
            if entry.what in (What.FINISHED, What.DEAD_LETTERED)
        }
        for place in sorted(set(self.history.log) - done):
            self.done(name, place)
        ends = {partition: 1 + offset for partition, offset in sorted(self.history.log)}
        for partition, end in ends.items():
            self.commit(partition, end)

    def found(self) -> set[str]:
        return set(Oracle(self.history).judge().findings)


def test_a_good_round_has_no_findings():
    story = Story()
    story.store((0, 1), numbers(count=2)[1])
    story.done("a", (0, 0))
    story.done("b", (0, 1))
    story.finish_rest()

    assert story.found() == set()


def test_a_message_nobody_finished_is_lost():
    story = Story()
    story.finish_rest()
    story.store((0, 1), numbers(count=2)[1])
    story.history.is_drained = False

    assert story.found() == {"lost"}


@pytest.mark.parametrize(
    ("is_poison", "finding"), [(True, "no dead letter"), (False, "dead-lettered")]
)
def test_dead_letters_are_those_that_should_be(is_poison, finding):
    story = Story()
    number = numbers(is_poison=is_poison, count=2)[1]
    story.store((0, 1), number)
    story.done("a", (0, 0))
    story.note("a", What.BEGUN, (0, 1))
    story.note("a", What.FAILED, (0, 1))
    story.note("a", What.DEAD_LETTERED, (0, 1))
    story.finish_rest()
    if not is_poison:
        story.history.dead_letters.append(number)

    assert story.found() == {finding}


def test_a_commit_above_what_is_not_finished_is_ahead():
    story = Story()
    story.note("a", What.BEGUN, (0, 0))
    story.commit(0, 1)
    story.note("a", What.FINISHED, (0, 0))
    story.finish_rest()

    assert story.found() == {"ahead"}


def test_a_map_that_names_what_is_not_finished_lies():
    story = Story()
    story.store((0, 1), numbers(key=b"k6")[0])
    story.commit(0, 0, ((1, 2),))
    story.finish_rest()

    assert story.found() == {"map"}


def test_a_commit_below_an_earlier_one_went_back():
    story = Story()
    story.done("a", (0, 0))
    story.commit(0, 1)
    story.commit(0, 0)
    story.finish_rest()

    assert story.found() == {"back"}


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_one_that_overtakes_is_out_of_order(order):
    story = Story(order)
    story.store((0, 1), numbers(count=2)[1])
    story.done("a", (0, 1))
    story.finish_rest()

    assert story.found() == (set() if order == "none" else {"order"})


def test_another_key_may_overtake():
    story = Story("key")
    story.store((0, 1), numbers(key=b"k6")[0])
    story.done("a", (0, 1))
    story.finish_rest()

    assert story.found() == set()


@pytest.mark.parametrize(
    ("other", "is_paused", "findings"),
    [("a", True, {"overlap"}), ("b", False, {"overlap"}), ("b", True, set())],
)
def test_an_overlap_is_excused_by_a_pause_of_one_of_two_processes(other, is_paused, findings):
    story = Story("partition")
    if is_paused:
        story.run("a").paused_ns.append(story.now_ns)
    story.note("a", What.BEGUN, (0, 0))
    story.note(other, What.BEGUN, (0, 0))
    story.note("a", What.FINISHED, (0, 0))
    story.note(other, What.FINISHED, (0, 0))
    story.finish_rest()

    assert story.found() == findings


@pytest.mark.parametrize(
    ("excuse", "findings"),
    [("none", {"repeated"}), ("killed", set()), ("paused", set()), ("outage", set())],
)
def test_a_repeat_needs_an_excuse(excuse, findings):
    story = Story()
    story.done("a", (0, 0))
    match excuse:
        case "killed":
            story.run("a").killed_ns = story.now_ns
        case "paused":
            story.run("a").paused_ns.append(story.now_ns)
        case "outage":
            story.history.faults.append(Fault(StepKind.CRASH, "", 1, 2))
    story.done("b", (0, 0))
    story.finish_rest("b")

    assert story.found() == findings


def test_what_is_finished_and_not_committed_at_the_end_is_uncovered():
    story = Story()
    story.finish_rest()
    story.history.final[0] = CommitSeen(0, 0, "", story.now_ns)

    assert story.found() == {"uncovered"}


@pytest.mark.parametrize(("asked_ns", "code"), [(50 * SECOND, 1), (99 * SECOND, 0)])
def test_a_consumer_that_ends_badly_or_unasked_is_found(asked_ns, code):
    story = Story()
    story.finish_rest()
    story.run("a").asked_ns, story.run("a").code = asked_ns, code

    assert story.found() == {"ended"}


def test_a_partition_that_goes_on_late_is_slow():
    story = Story()
    story.now_ns += 11 * SECOND
    story.finish_rest()

    assert story.found() == {"slow"}


def test_one_message_that_was_in_flight_does_not_hide_a_partition_that_stands_still():
    story = Story()
    for place in list(story.history.log):
        story.done("a", place)
    story.store((0, 1), numbers(key=b"k0", count=2)[1])
    story.now_ns += 11 * SECOND
    story.finish_rest()

    assert story.found() == {"slow"}
