"""Bugs planted in the nodes of a round, each to be given away by a finding that names it.

python -m tests.cluster.chaos.planted NAME up …    is `waterclock up …` with a bug in it
"""

import asyncio
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.chaos.plan import Fault, Plan, Step
from waterclock.cli import main as waterclock
from waterclock.cluster.gossip import Member
from waterclock.node.streams.persister import Persister, Then
from waterclock.server.cluster.forwarder import Forwarder
from waterclock.server.cluster.handover import Handover
from waterclock.server.cluster.membership import Membership
from waterclock.stores.base import Record, Stored
from waterclock.streams.exported import Exported

FORGOTTEN_EACH = 10


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug, the round it is looked for in, and what should give it away."""

    put: Callable[[], None]
    gives_away: frozenset[str]
    steps: tuple[Step, ...]
    load_ms: int = 8_000

    def plan(self, seed: int) -> Plan:
        """Return the round of a seed: the clients differ, what happens does not."""
        return Plan(seed, seed, "planted", self.steps, kept_streams=12, load_ms=self.load_ms)


def streams_dropped() -> None:
    """A node acknowledges streams that come to it, and drops them."""
    Handover._take_in = lambda self, streams: 0  # type: ignore[method-assign]


def begins_anew() -> None:
    """A stream that moves forgets how far its competing receivers are."""

    def of(cls: type[Exported], *args: Any) -> Exported:
        return exported(*args)._replace(taken=0, returned=())

    exported = Exported.of
    Exported.of = classmethod(of)  # type: ignore[method-assign, assignment]


def waits_on() -> None:
    """A node waits for another as long as there is a link, whatever its clients said."""

    async def run(self: Forwarder) -> None:
        await asyncio.Event().wait()

    Forwarder.run = run  # type: ignore[method-assign]


def grudge() -> None:
    """A node that was gone once is never taken for a member again."""
    gone: set[str] = set()

    def lost(self: Membership, member: Member, kind: str, why: str) -> None:
        gone.add(member.name)
        losing(self, member, kind, why)

    def seen(self: Membership, member: Member, kind: str) -> None:
        if member.name not in gone:
            seeing(self, member, kind)

    losing, seeing = Membership._lost, Membership._seen
    Membership._lost = lost  # type: ignore[method-assign]
    Membership._seen = seen  # type: ignore[method-assign]


def not_stored() -> None:
    """A message in ten is acknowledged as stored, and is not."""
    numbers = itertools.count(1)

    async def store(
        self: Persister, stream: str, record: Record, then: Then | None = None
    ) -> Stored:
        if next(numbers) % FORGOTTEN_EACH == 0:
            return Stored(1, True)
        return await as_it_is(self, stream, record, then)

    as_it_is = Persister.store
    Persister.store = store  # type: ignore[method-assign]


_JOIN = (Step(1_500, Fault.JOIN, 3_500, index=3),)
PLANTS = {
    "streams-dropped": Plant(streams_dropped, frozenset({"lost from a ring"}), _JOIN),
    "begins-anew": Plant(begins_anew, frozenset({"received twice"}), _JOIN),
    "waits-on": Plant(
        waits_on, frozenset({"waited too long"}), (Step(1_500, Fault.PAUSE, 9_000, index=0),),
        load_ms=12_000,
    ),
    "grudge": Plant(grudge, frozenset({"not healed"}), (Step(1_500, Fault.KILL, 500, index=1),)),
    "not-stored": Plant(not_stored, frozenset({"lost from a store"}), _JOIN),
}  # fmt: skip


if __name__ == "__main__":
    PLANTS[sys.argv.pop(1)].put()
    waterclock()
