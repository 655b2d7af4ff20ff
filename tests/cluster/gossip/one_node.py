"""One core under a clock that tests turn by hand; what it sends is read back as messages."""

from random import Random
from typing import Any, TypeVar

from waterclock.cluster.gossip import Effect, Gossip, GossipConfig, SendPacket, State
from waterclock.cluster.gossip.messages import Address, Alive, Message, encode
from waterclock.cluster.gossip.packets import packed, unpacked
from waterclock.cluster.gossip.serf import VERSIONS
from waterclock.cluster.gossip.streams import NodeState, PushPull

ME = ("10.0.0.100", 7946)
INCARNATION = 1_000
Kind = TypeVar("Kind")


def address_of(name: str) -> Address:
    """The address of node `b7` is 10.0.0.7."""
    return f"10.0.0.{name[1:]}", 7946


def alive_of(name: str, incarnation: int = 1, meta: bytes = b"", **other: Any) -> Alive:
    return Alive(incarnation, name, address_of(name), meta, VERSIONS)._replace(**other)


def state_of(name: str, state: State, incarnation: int = 1) -> NodeState:
    return NodeState(name, address_of(name), b"", incarnation, state, VERSIONS)


class OneNode:
    """The node `me`, and what it has done."""

    def __init__(self, *others: str, seed: int = 1, **settings: Any) -> None:
        self.now_ms = 10_000
        self.config = GossipConfig(**settings)
        self.gossip = Gossip(
            self.config, name="me", address=ME, tags={}, incarnation=INCARNATION, rng=Random(seed)
        )
        self.effects: list[Effect] = []
        self._did(self.gossip.start(self.now_ms))
        for name in others:
            self.hears(alive_of(name))
        if others:
            self.forget_news()

    def _did(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        self.gossip.check_invariants()
        return effects

    def forget_news(self) -> None:
        """Throw away what waits to be told, and what was done."""
        self.gossip._outbox.broadcasts.clear()
        self.effects.clear()

    def hears(self, *messages: Message, source: str = "b250") -> list[Effect]:
        """Let a packet come; return what is done at once."""
        payload = packed([encode(message) for message in messages], has_crc=False)
        source_address = address_of(source)
        return self._did(self.gossip.packet_received(payload, source_address, self.now_ms))

    def merges(self, *states: NodeState) -> list[Effect]:
        """Let the answer of a push/pull come."""
        return self._did(self.gossip.push_pull_answered(PushPull(states), self.now_ms))

    def declares_failed(self, name: str) -> list[Effect]:
        """See that the process of a node is gone; return what is done at once."""
        return self._did(self.gossip.declare_failed(name, self.now_ms))

    def passes(self, length_ms: int) -> list[Effect]:
        """Let time pass, deadline by deadline; return what is done meanwhile."""
        end_ms, found = self.now_ms + length_ms, []
        while (due_ms := self.gossip.next_deadline()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            found += self._did(self.gossip.tick(self.now_ms))
        self.now_ms = end_ms
        return found

    def state(self, name: str) -> State | None:
        members = self.gossip.members()
        return next((each.state for each in members if each.name == name), None)

    def incarnation(self, name: str = "me") -> int:
        return next(each.incarnation for each in self.gossip.members() if each.name == name)


def sent(effects: list[Effect], kind: type[Kind]) -> list[tuple[Address, Kind]]:
    """Return the messages of a kind in packets, with where they go."""
    return [
        (effect.address, message)
        for effect in effects
        if isinstance(effect, SendPacket)
        for message in unpacked(effect.payload)
        if isinstance(message, kind)
    ]


def only(effects: list[Effect], kind: type[Kind]) -> list[Kind]:
    """Return the effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]
