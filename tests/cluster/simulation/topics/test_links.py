"""Simulated connections: in order, or not at all once they broke."""

from random import Random

import pytest

from tests.cluster.simulation.topics.links import SILENCE_MS, End, Network
from tests.cluster.simulation.topics.timeline import Timeline


class Heard:
    """An end that writes down what it hears."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_running = True
        self.is_gone = False
        self.lines: list[object] = []

    def link_up(self, peer: End) -> None:
        self.lines.append(f"{peer.name} up")

    def link_down(self, peer: End, silent_ms: int) -> None:
        self.lines.append(f"{peer.name} down")

    def refused(self, peer: str) -> None:
        self.lines.append(f"{peer} refused")

    def arrived(self, peer: End, message: object) -> None:
        self.lines.append(message)


class Pair:
    """Two processes that are linked."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.network = Network(self.timeline, Random(1), ["a", "b"])
        self.a, self.b = Heard("a"), Heard("b")
        self.network.ends = {"a": self.a, "b": self.b}
        self.wait(500)
        assert (self.a.lines, self.b.lines) == (["b up"], ["a up"])
        self.a.lines.clear()
        self.b.lines.clear()

    def wait(self, ms: int) -> None:
        self.timeline.run(self.timeline.now_ms + ms)

    def send(self, *messages: int) -> None:
        for message in messages:
            self.network.send(self.a, "b", message)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_messages_arrive_in_order(pair: Pair) -> None:
    pair.network.delay_ms = (0, 50)
    pair.send(*range(20))
    pair.wait(51)
    assert pair.b.lines == list(range(20))


def test_a_direction_that_is_cut_for_a_moment_holds_what_is_sent(pair: Pair) -> None:
    pair.network.block("a", "b")
    pair.send(1, 2)
    pair.wait(1_000)
    assert pair.b.lines == []
    pair.network.unblock("a", "b")
    assert pair.b.lines == [1, 2]


def test_an_end_that_hears_nothing_gives_up_and_all_under_way_is_lost(pair: Pair) -> None:
    pair.network.block("a", "b")
    pair.send(1, 2)
    pair.wait(SILENCE_MS + 600)
    assert (pair.a.lines, pair.b.lines) == (["b down"], ["a down"])
    pair.network.unblock("a", "b")
    pair.wait(600)
    assert (pair.a.lines, pair.b.lines) == (["b down", "b up"], ["a down", "a up"])


def test_a_stopped_process_hears_what_came_when_it_goes_on(pair: Pair) -> None:
    pair.b.is_running = False
    pair.send(1)
    pair.wait(1_000)
    pair.b.is_running = True
    pair.network.resumed(pair.b)
    assert pair.b.lines == [1]


def test_a_reset_loses_what_is_under_way_and_both_are_heard(pair: Pair) -> None:
    pair.network.delay_ms = (3, 3)
    pair.send(1)
    pair.network.cut("a", "b")
    pair.wait(1_000)
    assert (pair.a.lines, pair.b.lines) == (["b down", "b up"], ["a down", "a up"])


def test_a_process_that_is_no_more_refuses_and_a_machine_that_is_off_says_nothing(
    pair: Pair,
) -> None:
    pair.network.ends["b"] = None
    pair.b.is_running, pair.b.is_gone = False, True
    pair.network.ended(pair.b)
    pair.wait(400)
    assert pair.a.lines[0] == "b down"
    assert "b refused" in pair.a.lines
    pair.a.lines.clear()
    pair.network.off.add("b")
    pair.wait(1_000)
    assert pair.a.lines == []


def test_the_end_of_a_machine_is_noticed_by_its_silence(pair: Pair) -> None:
    pair.network.off.add("b")
    pair.network.ends["b"] = None
    pair.b.is_running, pair.b.is_gone = False, True
    pair.network.ended(pair.b)
    pair.wait(SILENCE_MS - 300)
    assert pair.a.lines == []
    pair.wait(900)
    assert pair.a.lines == ["b down"]
