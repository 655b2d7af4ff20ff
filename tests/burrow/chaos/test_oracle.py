"""The oracle on small histories: one that is good, and each of its findings on one that is not."""

from dataclasses import replace

import pytest

from tests.burrow.chaos.history import CommitSeen, Fault, History, Life
from tests.burrow.chaos.journal import Entry, Place, What
from tests.burrow.chaos.oracle import MAPS, Oracle
from tests.burrow.chaos.plan import PARTITIONS, Act, Plan

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


class Scene:
    """A history that is written step by step."""

    def __init__(self, order: str = "key") -> None:
        self.history = History(replace(PLAN, order=order))  # type: ignore[arg-type]
        self.now_ns = SECOND
        self.history.faults.append(Fault(Act.JOIN, "a", 0, 1))
        for partition in range(PARTITIONS):  # something goes on in all of them
            self.store((partition, 0), numbers(key=b"k%d" % partition)[0])

    def store(self, place: Place, number: int) -> None:
        self.history.log[place] = number

    def life(self, name: str) -> Life:
        known = self.history.lives
        if name not in known:
            known[name] = Life(name, 0, asked_ns=50 * SECOND, ended_ns=51 * SECOND, code=0)
        return known[name]

    def note(self, name: str, what: What, place: Place) -> None:
        self.now_ns += WORK_NS
        number = self.history.log[place]
        self.life(name).entries.append(Entry(what, place, number, self.now_ns))

    def done(self, name: str, place: Place) -> None:
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
            for life in self.history.lives.values()
            for entry in life.entries
            if entry.what in (What.FINISHED, What.BURIED)
        }
        for place in sorted(set(self.history.log) - done):
            self.done(name, place)
        ends = {partition: 1 + offset for partition, offset in sorted(self.history.log)}
        for partition, end in ends.items():
            self.commit(partition, end)

    def found(self) -> set[str]:
        return set(Oracle(self.history).judge().findings)


def test_a_good_round_has_no_findings():
    scene = Scene()
    scene.store((0, 1), numbers(count=2)[1])
    scene.done("a", (0, 0))
    scene.done("b", (0, 1))
    scene.finish_rest()

    assert scene.found() == set()


def test_a_message_nobody_finished_is_lost():
    scene = Scene()
    scene.finish_rest()
    scene.store((0, 1), numbers(count=2)[1])
    scene.history.is_drained = False

    assert scene.found() == {"lost"}


@pytest.mark.parametrize(("is_poison", "finding"), [(True, "unburied"), (False, "buried")])
def test_dead_letters_are_those_that_should_be(is_poison, finding):
    scene = Scene()
    number = numbers(is_poison=is_poison, count=2)[1]
    scene.store((0, 1), number)
    scene.done("a", (0, 0))
    scene.note("a", What.BEGUN, (0, 1))
    scene.note("a", What.FAILED, (0, 1))
    scene.note("a", What.BURIED, (0, 1))
    scene.finish_rest()
    if not is_poison:
        scene.history.dead_letters.append(number)

    assert scene.found() == {finding}


def test_a_commit_above_what_is_not_finished_is_ahead():
    scene = Scene()
    scene.note("a", What.BEGUN, (0, 0))
    scene.commit(0, 1)
    scene.note("a", What.FINISHED, (0, 0))
    scene.finish_rest()

    assert scene.found() == {"ahead"}


def test_a_map_that_names_what_is_not_finished_lies():
    scene = Scene()
    scene.store((0, 1), numbers(key=b"k6")[0])
    scene.commit(0, 0, ((1, 2),))
    scene.finish_rest()

    assert scene.found() == {"map"}


def test_a_commit_below_an_earlier_one_went_back():
    scene = Scene()
    scene.done("a", (0, 0))
    scene.commit(0, 1)
    scene.commit(0, 0)
    scene.finish_rest()

    assert scene.found() == {"back"}


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_one_that_overtakes_is_out_of_order(order):
    scene = Scene(order)
    scene.store((0, 1), numbers(count=2)[1])
    scene.done("a", (0, 1))
    scene.finish_rest()

    assert scene.found() == (set() if order == "none" else {"order"})


def test_another_key_may_overtake():
    scene = Scene("key")
    scene.store((0, 1), numbers(key=b"k6")[0])
    scene.done("a", (0, 1))
    scene.finish_rest()

    assert scene.found() == set()


@pytest.mark.parametrize(
    ("other", "is_paused", "findings"),
    [("a", True, {"overlap"}), ("b", False, {"overlap"}), ("b", True, set())],
)
def test_an_overlap_is_excused_by_a_pause_of_one_of_two_processes(other, is_paused, findings):
    scene = Scene("partition")
    if is_paused:
        scene.life("a").paused_ns.append(scene.now_ns)
    scene.note("a", What.BEGUN, (0, 0))
    scene.note(other, What.BEGUN, (0, 0))
    scene.note("a", What.FINISHED, (0, 0))
    scene.note(other, What.FINISHED, (0, 0))
    scene.finish_rest()

    assert scene.found() == findings


@pytest.mark.parametrize(
    ("excuse", "findings"),
    [("none", {"repeated"}), ("killed", set()), ("paused", set()), ("outage", set())],
)
def test_a_repeat_needs_an_excuse(excuse, findings):
    scene = Scene()
    scene.done("a", (0, 0))
    match excuse:
        case "killed":
            scene.life("a").killed_ns = scene.now_ns
        case "paused":
            scene.life("a").paused_ns.append(scene.now_ns)
        case "outage":
            scene.history.faults.append(Fault(Act.CRASH, "", 1, 2))
    scene.done("b", (0, 0))
    scene.finish_rest("b")

    assert scene.found() == findings


def test_what_is_finished_and_not_committed_at_the_end_is_uncovered():
    scene = Scene()
    scene.finish_rest()
    scene.history.final[0] = CommitSeen(0, 0, "", scene.now_ns)

    assert scene.found() == {"uncovered"}


@pytest.mark.parametrize(("asked_ns", "code"), [(50 * SECOND, 1), (99 * SECOND, 0)])
def test_a_consumer_that_ends_badly_or_unasked_is_found(asked_ns, code):
    scene = Scene()
    scene.finish_rest()
    scene.life("a").asked_ns, scene.life("a").code = asked_ns, code

    assert scene.found() == {"ended"}


def test_a_partition_that_goes_on_late_is_slow():
    scene = Scene()
    scene.now_ns += 11 * SECOND
    scene.finish_rest()

    assert scene.found() == {"slow"}


def test_one_message_that_was_in_flight_does_not_hide_a_partition_that_stands_still():
    scene = Scene()
    for place in list(scene.history.log):
        scene.done("a", place)
    scene.store((0, 1), numbers(key=b"k0", count=2)[1])
    scene.now_ns += 11 * SECOND
    scene.finish_rest()

    assert scene.found() == {"slow"}
