"""Whom to try again: seeds that are not members, and members that failed.

Failed members are tried as Serf does: one at a time, with a probability of failed to alive, so that
all nodes together try about as many as failed. A node that is alone tries its seeds soon, and then
ever more rarely: after a mass restart everyone waits for somebody.
"""

from collections.abc import Iterable
from random import Random

from waterclock.cluster.gossip.config import GossipConfig
from waterclock.cluster.gossip.members import Members, Node
from waterclock.cluster.gossip.messages import Address
from waterclock.cluster.gossip.streams import NODES_MAX, State

ALONE_DELAY_MS = 1_000
"""The first wait of a node that is alone; it doubles up to the interval."""


class Reconnecting:
    """Remembers where nodes were that are not here."""

    def __init__(self, config: GossipConfig, members: Members, rng: Random) -> None:
        self._interval_ms = config.reconnect_interval_ms
        self._for_ms = config.reconnect_for_ms
        self._members = members
        self._rng = rng
        self._alone_ms = ALONE_DELAY_MS
        self._lost: dict[str, tuple[Address, int]] = {}
        """Of reaped nodes: where they were, and until when they are tried."""
        self.seeds: list[Address] = []

    def lost(self, nodes: Iterable[Node], now_ms: int) -> None:
        """Remember nodes that were reaped, unless they left."""
        for node in nodes:
            if node.state == State.DEAD and len(self._lost) < NODES_MAX:
                self._lost[node.name] = (node.address, now_ms + self._for_ms)

    def is_lost(self, name: str) -> bool:
        """Say whether a node of that name was reaped that had failed."""
        return name in self._lost

    def delay_ms(self) -> int:
        """Return the time until the next try, with some chance so that nodes are not in step."""
        length_ms = self._interval_ms
        if self.seeds and len(self._alive()) == 1:
            length_ms = min(self._alone_ms, self._interval_ms)
            self._alone_ms *= 2
        else:
            self._alone_ms = ALONE_DELAY_MS
        return int(length_ms * (0.75 + self._rng.random() / 2))

    def seeds_missing(self) -> list[Address]:
        """Return the seeds that are not members."""
        here = {node.address for node in self._alive()}
        return [address for address in self.seeds if address not in here]

    def chosen(self, now_ms: int) -> list[Address]:
        """Return whom to try now: one seed, or all if we are alone, and perhaps one that failed."""
        alive = self._alive()
        seeds = self.seeds_missing()
        found = seeds if len(alive) == 1 else self._rng.sample(seeds, min(1, len(seeds)))
        failed = self._failed(now_ms)
        if failed and self._rng.random() < len(failed) / len(alive):
            found = [*found, self._rng.choice(failed)]
        return list(dict.fromkeys(found))

    def _failed(self, now_ms: int) -> list[Address]:
        here = {node.address for node in self._alive()}
        self._lost = {
            name: (address, until_ms)
            for name, (address, until_ms) in self._lost.items()
            if until_ms > now_ms and self._members.get(name) is None and address not in here
        }
        dead = [node.address for node in self._members.all() if node.state == State.DEAD]
        return dead + [address for address, _ in self._lost.values()]

    def _alive(self) -> list[Node]:
        return [node for node in self._members.all() if not node.is_gone]
