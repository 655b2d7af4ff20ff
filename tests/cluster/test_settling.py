"""Streams that change their owners: none is lost or doubled, and no name waits for ever."""

from collections.abc import Callable
from random import Random

import pytest

from tests.cluster.settling_net import Net, ring_of
from waterclock.cluster.settling import (
    PATIENCE_MS,
    Ask,
    Greet,
    Look,
    Lose,
    Resend,
    Send,
    Settling,
)

NAMES = [f"n{number}" for number in range(6)]


def net_of(seed: int, core: type[Settling] = Settling) -> Net:
    net = Net(Random(seed), NAMES, core)
    for name in NAMES[:3]:
        net.join(name)
    net.settle()
    return net


def come_and_go(net: Net) -> None:
    """Have a node join or leave, if one can."""
    random = net.random
    staying = sorted(name for name in net.members if name in net.nodes)
    free = [name for name in net.names if name not in net.nodes]
    if free and random.random() < 0.5:
        net.join(random.choice(free))
    elif len(staying) > 1:
        net.leave(random.choice(staying))


def run_orderly(seed: int, core: type[Settling] = Settling) -> Net:
    """Have nodes join and leave while clients send and receive."""
    net = net_of(seed, core)
    for _ in range(150):
        if net.random.random() < 0.08:
            come_and_go(net)
        net.step()
    net.settle()
    net.check()
    return net


def run_rough(seed: int, core: type[Settling] = Settling) -> Net:
    """Have nodes killed and links cut as well."""
    net = net_of(seed, core)
    random = net.random
    for _ in range(150):
        chance = random.random()
        if chance < 0.05:
            come_and_go(net)
        elif chance < 0.08 and len(net.members) > 1:
            net.kill(random.choice(sorted(net.members)))
        elif chance < 0.15 and net.links:
            net.cut(*random.choice(sorted(net.links)))
            net.is_orderly = False
        elif chance < 0.25:
            ends = sorted(net.nodes)
            net.link(random.choice(ends), random.choice(ends))
        net.step()
    net.settle()
    net.check()
    return net


@pytest.mark.parametrize("seed", [*range(40), 1_024, 1_396, 3_065])
def test_joins_and_leaves_lose_no_stream_and_begin_none_anew(seed):
    net = run_orderly(seed)

    assert not net.lost
    assert not any(node.core.timeouts for node in net.nodes.values())


@pytest.mark.parametrize("seed", range(60))
def test_kills_and_broken_links_double_no_message_and_all_is_served_at_the_end(seed):
    run_rough(seed)


def is_found(what: str, run: Callable[[int, type[Settling]], Net], core: type[Settling]) -> bool:
    """Say whether a run fails by that; others may fail by something else that the bug does."""
    for seed in range(300):
        try:
            run(seed, core)
        except AssertionError as error:
            if what in str(error):
                return True
    return False


class Hasty(Settling):
    """Begins a stream anew without asking who has it."""

    def may_serve(self, name, *, is_in_memory):
        return True


class Forgetful(Settling):
    """Takes a chunk as often as it comes."""

    def arrives(self, node, number, version, now_ms):
        self._taken.clear()
        return super().arrives(node, number, version, now_ms)


class Careless(Settling):
    """Takes a chunk whatever the ring it was sent by, and says that all is sent when it is not."""

    def arrives(self, node, number, version, now_ms):
        ring = self.ring
        return super().arrives(node, number, ring.version if ring else version, now_ms)

    def _confirm(self):
        chunks, self._chunks = self._chunks, {}
        said = super()._confirm()
        self._chunks = chunks
        return said


class Clinging(Settling):
    """Sends a chunk of unknown fate to whoever owns it then, when its receiver is gone."""

    def _lose_to_the_gone(self):
        there = self._linked.union(() if self.ring is None else self.ring.nodes)
        gone = [node for node in self._chunks if node not in there]
        effects = []
        for node in gone:
            effects += self.put_off(node, self._chunks[node].number, 0)
        return effects


@pytest.mark.parametrize("core", [Hasty, Careless])
def test_the_check_finds_a_core_that_begins_streams_anew(core):
    assert is_found("is begun anew", run_orderly, core)


@pytest.mark.parametrize("core", [Forgetful, Clinging])
def test_the_check_finds_a_core_that_doubles_messages(core):
    assert is_found("received", run_rough, core)


def test_a_node_alone_answers_for_everything_at_once():
    core = Settling("a", run=1)

    assert core.ring_changed(ring_of({"a"}), 0) == [Look()]
    assert core.may_serve("s", is_in_memory=False)
    assert core.looked(0) == []
    assert core.is_settled
    assert core.may_leave


def test_a_node_alone_by_its_ring_that_is_linked_begins_nothing_until_it_has_met_the_others():
    core = Settling("a", run=1)
    core.ring_changed(ring_of({"a"}), 0)
    core.looked(0)

    core.link_up("b", 1_000)

    assert not core.may_serve("s", is_in_memory=False)
    assert core.may_serve("s", is_in_memory=True)
    core.tick(1_000 + PATIENCE_MS)
    assert core.may_serve("s", is_in_memory=False)


def test_a_node_that_comes_answers_for_nothing_until_all_others_have_told_it():
    core = Settling("a", run=1)
    core.link_up("b", 0)
    ring = ring_of({"a", "b", "c"})

    assert core.ring_changed(ring, 0) == [Look(), Ask("b", ring.version)]
    assert core.link_up("c", 0) == [Ask("c", ring.version)]
    assert core.may_serve("s", is_in_memory=True)
    core.confirmed("b", ring.version)
    assert not core.may_serve("s", is_in_memory=False)
    core.confirmed("c", ring.version + 1)
    assert not core.may_serve("s", is_in_memory=False)
    core.confirmed("c", ring.version)
    assert core.may_serve("s", is_in_memory=False)


def test_what_stays_is_answered_for_while_others_settle():
    core = Settling("a", run=1)
    two, three = ring_of({"a", "b"}), ring_of({"a", "b", "c"})
    core.ring_changed(two, 0)
    core.confirmed("b", two.version)
    core.ring_changed(three, 0)

    names = [f"s{number}" for number in range(50)]
    stays = [name for name in names if two.owner(name) == three.owner(name) == "a"]
    assert stays
    assert all(core.may_serve(name, is_in_memory=False) for name in stays)


def test_a_silent_node_is_waited_for_no_longer_than_patience_allows():
    core = Settling("a", run=1)
    ring = ring_of({"a", "b"})
    core.ring_changed(ring, 0)

    core.arrives("b", 1, ring.version, 1_000)
    core.tick(1_000 + PATIENCE_MS - 1)
    assert not core.may_serve("s", is_in_memory=False)
    core.tick(1_000 + PATIENCE_MS)
    assert core.may_serve("s", is_in_memory=False)
    assert core.timeouts == 1


def test_a_node_that_is_gone_is_not_waited_for():
    core = Settling("a", run=1)
    core.link_up("b", 0)
    core.ring_changed(ring_of({"a", "b"}), 0)
    core.ring_changed(ring_of({"a"}), 0)
    assert not core.may_serve("s", is_in_memory=False)

    core.link_down("b")

    assert core.may_serve("s", is_in_memory=False)


def sending() -> tuple[Settling, int]:
    """Return a node with a chunk under way to run 7 of another, and its number."""
    core, ring = Settling("a", run=1), ring_of({"b"})
    core.link_up("b", 0)
    core.ring_changed(ring, 0)
    assert core.found("s")
    assert Greet("b") in core.looked(0)
    assert core.greeted("b", 7, 0) == [Send("b")]
    assert core.next_name("b") == "s"
    return core, core.sent("b", ["s"])


def test_a_chunk_that_may_have_come_is_sent_again_to_the_same_run_of_the_node():
    core, number = sending()
    core.broke("b", number, 0)
    core.link_down("b")

    assert core.link_up("b", 0) == [Greet("b")]
    assert core.greeted("b", 7, 0) == [Resend("b", number)]
    assert core.lost == 0


def test_a_chunk_that_a_run_before_may_have_had_is_lost():
    core, number = sending()
    core.link_down("b")
    core.link_up("b", 0)

    assert core.greeted("b", 8, 0)[0] == Lose(number)
    assert core.lost == 1
    assert core.is_sent


def test_a_node_that_hangs_is_not_waited_for_though_there_is_a_link_to_it():
    core = Settling("a", run=1)
    core.link_up("b", 0)
    core.ring_changed(ring_of({"a", "b"}), 0)

    core.ring_changed(ring_of({"a"}), 0, gone=["b"])
    core.looked(0)

    assert core.may_serve("s", is_in_memory=False)
    assert core.may_leave
