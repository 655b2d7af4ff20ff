"""What a node makes of what gossip tells it: whom it links, who owns streams, what it shows."""

from collections.abc import Callable
from typing import Any

import pytest

from waterclock.cluster.gossip import (
    Conflicted,
    Failed,
    Joined,
    Left,
    Member,
    MergeRefused,
    PacketsBlocked,
    State,
    Updated,
)
from waterclock.cluster.gossip.serf import encode_tags
from waterclock.cluster.node_tags import NodeTags
from waterclock.cluster.ring_members import CONFIRM_MS
from waterclock.model.views import NodeAddress
from waterclock.server.cluster.membership import EVENTS_MAX, Membership
from waterclock.server.cluster.ownership import RingOwnership

MINE = NodeTags("shop", "http://10.0.0.1:8080", "10.0.0.1", 7947, 200)


def tags_of(number: int, **other: Any) -> NodeTags:
    host = f"10.0.0.{number}"
    return MINE._replace(http=f"http://{host}:8080", peer_host=host)._replace(**other)


def member(
    name: str, tags: NodeTags | None, state: State = State.ALIVE, meta: bytes = b""
) -> Member:
    return Member(name, ("10.0.0.9", 7946), encode_tags(tags.encode()) if tags else meta, 1, state)


class Peers:
    """Notes whom it should link."""

    def __init__(self) -> None:
        self.met: dict[str, tuple[str, int]] = {}
        self.linked: list[str] = []

    def meet(self, name: str, host: str, port: int) -> None:
        self.met[name] = host, port

    def part(self, name: str) -> None:
        del self.met[name]


class Agent:
    """Notes what it should tell the others."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.failed: list[str] = []
        self.known: list[Member] = []

    def members(self) -> list[Member]:
        return self.known

    def set_tags(self, tags: dict[str, str]) -> None:
        self.tags = tags

    def declare_failed(self, name: str) -> None:
        self.failed.append(name)


class Timers:
    """The loop, as far as a membership uses it; time passes when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.due: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now_ms / 1_000

    def call_at(self, when: float, callback: Callable[[], None]) -> "Timers":
        self.due = when, callback
        return self

    def cancel(self) -> None:
        self.due = None

    def pass_ms(self, length_ms: int) -> None:
        self.now_ms += length_ms
        if self.due is not None and self.due[0] <= self.time():
            callback, self.due = self.due[1], None
            callback()


class OneMembership(Membership):
    """With fakes around it."""

    def __init__(self) -> None:
        self.around, self.links = Agent(), Peers()
        owners = RingOwnership("a")
        links: Any = self.links
        self.timers = Timers()
        loop: Any = self.timers
        super().__init__("a", MINE, links, owners, loop=loop, now_ms=lambda: 5)
        agent: Any = self.around
        self.agent = agent
        self.owners = owners

    @property
    def ring(self) -> list[str]:
        return list(self.owners.ring.nodes)

    def kinds(self) -> list[tuple[str, str]]:
        return [(each.kind, each.member) for each in self.events if each.kind != "ring"]


@pytest.fixture
def a():
    return OneMembership()


def test_a_node_that_joined_is_linked_at_once_and_owns_streams_soon(a):
    a.handle(Joined(member("b", tags_of(2))))
    assert a.links.met == {"b": ("10.0.0.2", 7947)}
    assert a.ring == ["a"]

    a.timers.pass_ms(CONFIRM_MS)
    assert a.ring == ["a", "b"]
    assert a.owners.address("b") == "http://10.0.0.2:8080"


def test_clients_are_told_of_nodes_that_are_there_and_stay(a):
    a.tags = a.tags._replace(grpc_port=9000)
    a.handle(Joined(member("b", tags_of(2, grpc_port=9000))))
    a.handle(Joined(member("older", tags_of(3))))
    a.handle(Joined(member("leaving", tags_of(4, grpc_port=9000, state="leaving"))))
    a.handle(Joined(member("gone", tags_of(5, grpc_port=9000))))
    a.handle(Failed(member("gone", tags_of(5, grpc_port=9000))))

    assert a.addresses() == (
        NodeAddress("a", "10.0.0.1:9000", "http://10.0.0.1:8080"),
        NodeAddress("b", "10.0.0.2:9000", "http://10.0.0.2:8080"),
    )


@pytest.mark.parametrize("kind", [Left, Failed])
def test_a_node_that_left_or_failed_is_neither_linked_nor_on_the_ring(a, kind):
    a.handle(Joined(member("b", tags_of(2))))
    a.timers.pass_ms(CONFIRM_MS)

    a.handle(kind(member("b", tags_of(2))))

    assert a.links.met == {}
    assert a.ring == ["a"]
    assert a.kinds() == [("joined", "b"), (kind.__name__.lower(), "b")]


def test_a_node_that_is_leaving_owns_nothing_and_stays_linked(a):
    a.handle(Joined(member("b", tags_of(2))))
    a.timers.pass_ms(CONFIRM_MS)

    a.handle(Updated(member("b", tags_of(2, state="leaving"))))

    assert a.ring == ["a"]
    assert a.links.met == {"b": ("10.0.0.2", 7947)}


def test_a_node_that_moved_is_linked_and_shown_where_it_is_now(a):
    a.handle(Joined(member("b", tags_of(2))))
    a.timers.pass_ms(CONFIRM_MS)

    a.handle(Updated(member("b", tags_of(3))))

    assert a.links.met == {"b": ("10.0.0.3", 7947)}
    assert a.owners.address("b") == "http://10.0.0.3:8080"


@pytest.mark.parametrize(
    ("tags", "kind", "why"),
    [
        (tags_of(2, cluster="test"), "refused", "of cluster 'test'"),
        (tags_of(2, points=7), "refused", "hash_ring.virtual_nodes is 7 there and 200 here"),
        (None, "joined", "no node of Waterclock"),
    ],
)
def test_who_is_no_node_of_this_cluster_has_no_part_in_it(a, tags, kind, why):
    a.handle(Joined(member("b", tags)))
    a.timers.pass_ms(CONFIRM_MS)

    assert a.links.met == {}
    assert a.ring == ["a"]
    assert a.events[-1].kind == kind
    assert why in a.events[-1].detail


def test_a_node_that_leaves_says_so_and_hands_its_streams_to_the_others(a):
    a.handle(Joined(member("b", tags_of(2))))
    a.timers.pass_ms(CONFIRM_MS)

    a.begin_leaving()

    assert a.ring == ["b"]
    assert a.around.tags["state"] == "leaving"


def test_a_process_that_is_gone_is_declared_failed(a):
    a.handle(Joined(member("b", tags_of(2))))

    a.process_gone("b")

    assert a.around.failed == ["b"]
    assert a.kinds() == [("joined", "b"), ("gone", "b")]


def test_members_are_shown_with_what_they_say_and_as_they_are(a):
    a.links.linked = ["b"]
    a.around.known = [
        member("a", MINE),
        member("b", tags_of(2, zone="east", state="leaving")),
        member("c", tags_of(3), State.SUSPECT),
        member("d", tags_of(4), State.DEAD),
        member("e", None, State.LEFT, b"web"),
        member("f", None, State.ALIVE, b"\xff\xc1"),
    ]

    shown = a.members()

    assert [(each.name, each.state, each.is_self, each.is_linked) for each in shown] == [
        ("a", "alive", True, False),
        ("b", "leaving", False, True),
        ("c", "suspect", False, False),
        ("d", "failed", False, False),
        ("e", "left", False, False),
        ("f", "alive", False, False),
    ]
    b = shown[1]
    assert (b.http, b.peer, b.zone, b.level) == (
        "http://10.0.0.2:8080", "10.0.0.2:7947", "east", 1,
    )  # fmt: skip
    assert (shown[4].http, shown[4].level) == ("", 0)
    assert b.address == "10.0.0.9:7946"


def test_what_else_gossip_tells_is_an_event(a):
    a.handle(Conflicted(member("b", tags_of(2)), ("10.0.0.8", 7946)))
    a.handle(PacketsBlocked(member("c", tags_of(3))))
    a.handle(MergeRefused("they speak otherwise"))
    a.linked("d")
    a.unlinked("d", "the other side hung up")

    assert [(each.kind, each.member, each.time_ms) for each in a.events] == [
        ("conflicted", "b", 5),
        ("blocked", "c", 5),
        ("refused", "", 5),
        ("linked", "d", 5),
        ("unlinked", "d", 5),
    ]


def test_the_oldest_events_are_forgotten(a):
    for number in range(EVENTS_MAX + 1):
        a.linked(f"node-{number}")

    assert len(a.events) == EVENTS_MAX
    assert a.events[0].member == "node-1"


def test_a_membership_that_is_closed_changes_nothing_any_more(a):
    a.handle(Joined(member("b", tags_of(2))))
    a.close()

    a.timers.pass_ms(CONFIRM_MS)
    assert a.ring == ["a"]
