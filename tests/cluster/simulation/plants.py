"""Bugs on purpose: the judge must find each, and by the name it has for it.

A plant takes away one thing that gossip or the ring rely on, and nothing else.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.cluster.simulation.scenarios import played
from tests.kit.verdict import Findings
from waterclock.cluster import hash_ring, settling
from waterclock.cluster.gossip import gossip as core
from waterclock.cluster.gossip import outbox
from waterclock.cluster.gossip.broadcasts import Broadcasts
from waterclock.cluster.gossip.effects import Failed
from waterclock.cluster.gossip.gossip import Gossip
from waterclock.cluster.gossip.lifeguard import Awareness, Suspicion
from waterclock.cluster.gossip.membership import Membership
from waterclock.cluster.gossip.prober import Prober
from waterclock.cluster.gossip.reconnecting import Reconnecting
from waterclock.cluster.settling import Settling

Patch = Callable[[pytest.MonkeyPatch], None]


class Plant(NamedTuple):
    """A bug, and how it is found."""

    patch: Patch
    scenario: str
    gives_away: str
    """The finding that names it."""
    seeds_max: int
    node_count: int | None


PLANTS: dict[str, Plant] = {}


def planted(
    scenario: str, gives_away: str, *, seeds_max: int = 5, node_count: int | None = 30
) -> Callable[[Patch], Patch]:
    """Put a bug among the others; the scenario finds it within so many seeds."""

    def put(patch: Patch) -> Patch:
        name = patch.__name__.replace("_", " ")
        PLANTS[name] = Plant(patch, scenario, gives_away, seeds_max, node_count)
        return patch

    return put


def swap(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, wrap: Callable[[Any], Any]
) -> None:
    """Replace a function by what is made of it."""
    monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))


def first_found(plant: Plant) -> tuple[int | None, Findings]:
    """Return the first seed that finds a bug by its name, and all that it finds."""
    findings = Findings()
    for seed in range(1, plant.seeds_max + 1):
        with pytest.MonkeyPatch.context() as monkeypatch:
            plant.patch(monkeypatch)
            findings = played(plant.scenario, seed, plant.node_count).findings
        if plant.gives_away in findings:
            return seed, findings
    return None, findings


# News


@planted("join", "slow join")
def news_are_sent_twice_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the cluster is."""
    monkeypatch.setattr(outbox, "retransmit_limit", lambda mult, node_count, fanout: 2)


@planted("join", "slow join", seeds_max=100, node_count=8)
def news_are_sent_as_often_as_memberlist_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody misses a join to eight nodes in one of twenty cases."""
    swap(
        monkeypatch,
        outbox,
        "retransmit_limit",
        lambda limit: lambda mult, node_count, fanout: limit(mult, node_count, fanout=node_count),
    )


@planted("idle", "chatty")
def all_is_exchanged_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not every half minute, or less often in a large cluster."""
    monkeypatch.setattr(Gossip, "_push_pull_interval_ms", lambda self: 1_000)


@planted("leave", "slow leave")
def a_leave_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hears of it tells nobody."""

    def wrap(put: Any) -> Any:
        def lax(self: Broadcasts, subject: str, data: bytes) -> None:
            if data[0] != 5:
                put(self, subject, data)

        return lax

    swap(monkeypatch, Broadcasts, "put", wrap)


# Suspicion


@planted("loss", "false positive")
def an_accusation_is_not_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that hears that it is suspected says nothing."""
    monkeypatch.setattr(Membership, "_refute", lambda self, accused, now_ms, source: None)


@planted("loss", "false positive")
def a_refutation_does_not_end_a_suspicion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is alive, and is declared dead when the suspect's time is over."""
    monkeypatch.setattr(Suspicion, "end", lambda self: None)


@planted("sluggish", "false positive", seeds_max=12)
def suspicion_without_lifeguard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspect has as long with one accuser as with many, and no node doubts itself, not even when
    it stood still."""

    def wrap(init: Any) -> Any:
        def lax(self: Suspicion, accuser: str, **how: Any) -> None:
            init(self, accuser, **(how | {"expected": 0}))

        return lax

    swap(monkeypatch, Suspicion, "__init__", wrap)
    monkeypatch.setattr(Awareness, "change", lambda self, delta: None)
    for owner in (Membership, Prober):
        monkeypatch.setattr(owner, "stood_still", lambda self, late_ms: None)


@planted("failure", "ghost")
def a_suspicion_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspect is never declared dead."""
    monkeypatch.setattr(Membership, "_await_refutation", lambda self, node, suspicion: None)


@planted("failure", "slow failure")
def the_suspects_of_others_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confirmations do not count."""
    monkeypatch.setattr(Suspicion, "confirm", lambda self, accuser: False)


# Exchanges of all that is known


@planted("missed-news", "forgotten")
def no_push_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    """What news left out is never mended."""
    monkeypatch.setattr(Gossip, "_push_pull_due", lambda self, now_ms: None)


@planted("partition", "forgotten", seeds_max=12)
def nobody_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is reaped is not looked for."""
    monkeypatch.setattr(Reconnecting, "chosen", lambda self, now_ms: [])


@planted("partition", "slow heal", seeds_max=12)
def reconnecting_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four minutes after it should."""
    swap(monkeypatch, Reconnecting, "delay_ms", lambda delay_ms: lambda self: 8 * delay_ms(self))


@planted("start", "slow start", node_count=None)
def who_joined_does_not_exchange_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node missed when all joined at once it learns at the usual interval."""
    monkeypatch.setattr(core, "_PUSH_PULL_SOON_MS", 1_000_000)


# Partitions


@planted("partition", "false positive", seeds_max=12, node_count=60)
def the_dead_are_believed_on_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one part of a cluster said of deaths counts at once in the other."""
    monkeypatch.setattr(Membership, "_is_doubtful", lambda self, name: False)


@planted("one-way", "false positive", seeds_max=12)
def who_was_not_heard_does_not_accuse_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was cut off tells of deaths that nobody could refute."""

    def wrap(init: Any) -> Any:
        def lax(self: Suspicion, *args: Any, **how: Any) -> None:
            init(self, *args, **how)
            self.announced_ms = 0

        return lax

    swap(monkeypatch, Suspicion, "__init__", wrap)
    monkeypatch.setattr(Membership, "_doubt_deaths", lambda self: None)


# Restarts


@planted("restart", "slow restart")
def who_is_alone_waits_as_long_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose seeds were not there yet tries again after half a minute."""

    def wrap(delay_ms: Any) -> Any:
        def lax(self: Reconnecting) -> Any:
            self._alone_ms = self._interval_ms
            return delay_ms(self)

        return lax

    swap(monkeypatch, Reconnecting, "delay_ms", wrap)


# The ring


@planted("join", "ring disagrees")
def the_ring_goes_by_the_order_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the order in which a node learned of them."""
    # A set has no such order, and another one in each process.
    monkeypatch.setattr(hash_ring, "set", dict.fromkeys, raising=False)
    monkeypatch.setattr(hash_ring, "sorted", list, raising=False)


# Streams that move


@planted("moving-streams", "begun anew")
def a_stream_is_begun_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner does not wait for what others may send it."""
    monkeypatch.setattr(Settling, "may_serve", lambda self, name, is_in_memory: True)


@planted("moving-streams", "begun anew", seeds_max=40)
def who_takes_itself_for_alone_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that others know before it knows them begins streams anew."""

    def wrap(link_up: Any) -> Any:
        def lax(self: Settling, node: str, now_ms: int) -> Any:
            ring, is_settled = self.ring, not self._old
            found = link_up(self, node, now_ms)
            if is_settled and ring is not None and len(ring.nodes) == 1:
                self._old.clear()
                self._awaited.clear()
            return found

        return lax

    swap(monkeypatch, Settling, "link_up", wrap)


@planted("moving-streams", "lost")
def what_a_node_does_not_take_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that came too early for its receiver is not taken back."""
    swap(monkeypatch, Settling, "put_off", lambda put_off: lambda *args: put_off(*args)[1:])


@planted("moving-streams", "misplaced")
def a_stream_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to its new owner."""
    monkeypatch.setattr(Settling, "found", lambda self, name: False)


@planted("stormy-streams", "blocked", seeds_max=12)
def a_node_is_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner never answers while another node says nothing."""
    monkeypatch.setattr(settling, "PATIENCE_MS", 10_000_000)
    monkeypatch.setattr(Settling, "_ask", lambda self, node: [])


@planted("stormy-streams", "received twice", seeds_max=40)
def a_chunk_is_taken_as_often_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent again, for nobody knew whether it had come, is there twice."""

    def wrap(arrives: Any) -> Any:
        def lax(self: Settling, *args: Any) -> Any:
            self._taken.clear()
            return arrives(self, *args)

        return lax

    swap(monkeypatch, Settling, "arrives", wrap)


# The books


@planted("failure", "corrupt")
def a_failure_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node knows of it, and says nothing to those above it."""
    swap(
        monkeypatch,
        outbox.Outbox,
        "add",
        lambda add: lambda self, effect: None if isinstance(effect, Failed) else add(self, effect),
    )
