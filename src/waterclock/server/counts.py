"""How many topics, partitions, groups and streams a principal may have, asked before one is made.

What a principal has is what it could have made: topics and streams that it may publish to, groups
that it may consume in. So nothing need be written down of who made what, and principals that
share a prefix share what is there. A name that is being made counts from the moment it is asked
for, so that many at once do not pass together.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from waterclock.node.node import Node
from waterclock.security.quotas import Counted, Usage
from waterclock.security.rights import Rights
from waterclock.server.access import Demand, Permit

Made = Literal["topic", "group", "stream"]

BEING_MADE_MS = 10_000
"""How long a name counts that was asked for and is not there."""


class Counts:
    """Counts for principals whose quotas have counts; others cost nothing."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._being_made: dict[tuple[str, str, str], tuple[int, int]] = {}
        """By principal, what, and name: until when it counts, and for how much."""

    def __repr__(self) -> str:
        return f"<Counts {len(self._being_made)} being made>"

    def check(
        self, usage: Usage, permit: Permit, makes: Iterable[Made], partitions: int | None = None
    ) -> None:
        """Raise CapacityReached if a call would make more than its principal may have."""
        quotas = usage.quotas
        for what in makes:
            for demand in permit.demands:
                if what == "topic" and (quotas.topics or quotas.partitions):
                    self._check_topic(usage, permit.principal.rights, demand, partitions)
                elif what == "group" and quotas.groups:
                    self._check_group(usage, permit.principal.rights, demand)
                elif what == "stream" and quotas.streams:
                    self._check_stream(usage, permit.principal.rights, demand)

    def _check_topic(
        self, usage: Usage, rights: Rights, demand: Demand, partitions: int | None
    ) -> None:
        topics, name = self._node.topics, demand.topic
        if name is None or topics.find(name) is not None:
            return
        wanted = partitions or topics.default_settings().partitions
        kind, group = demand.kind, demand.group
        mine = [t for t in topics.all() if rights.allows(kind, topic=t.name, group=group)]
        known = {topic.name for topic in mine}
        others = self._others(usage, "topics", name, known.__contains__)
        usage.check_count("topics", len(mine) + len(others) + 1)
        have = sum(len(topic.partitions) for topic in mine)
        usage.check_count("partitions", have + sum(others) + wanted)
        self._note(usage, "topics", name, wanted)

    def _check_group(self, usage: Usage, rights: Rights, demand: Demand) -> None:
        known = {
            f"{host.topic}/{host.name}"
            for host in self._node.groups.hosts()
            if rights.allows(demand.kind, topic=host.topic, group=host.name)
        }
        name = f"{demand.topic}/{demand.group}"
        if name in known:
            return
        others = self._others(usage, "groups", name, known.__contains__)
        usage.check_count("groups", len(known) + len(others) + 1)
        self._note(usage, "groups", name)

    def _check_stream(self, usage: Usage, rights: Rights, demand: Demand) -> None:
        table, name = self._node.streams.table, demand.stream
        if name is None or table.find(name) is not None:
            return
        limit = usage.quotas.streams or 0
        others = self._others(usage, "streams", name, lambda key: table.find(key) is not None)
        mine = (each for each in table.names() if rights.allows(demand.kind, stream=each))
        have = len(others) + _at_most(limit, mine)
        usage.check_count("streams", have + 1)
        self._note(usage, "streams", name)

    def _others(
        self, usage: Usage, what: Counted, name: str, is_there: Callable[[str], bool]
    ) -> list[int]:
        """Return for how much other names count that are being made."""
        now_ms = self._node.clock.monotonic_ms()
        over = [key for key, (until_ms, _) in self._being_made.items() if until_ms <= now_ms]
        for key in over:
            del self._being_made[key]
        return [
            size
            for (principal, kind, key), (_, size) in self._being_made.items()
            if (principal, kind) == (usage.principal, what) and key != name and not is_there(key)
        ]

    def _note(self, usage: Usage, what: Counted, name: str, size: int = 1) -> None:
        until_ms = self._node.clock.monotonic_ms() + BEING_MADE_MS
        self._being_made[usage.principal, what, name] = until_ms, size


def _at_most(limit: int, names: Iterable[str]) -> int:
    """Count names, and stop once they are too many."""
    count = 0
    for _ in names:
        count += 1
        if count > limit:
            break
    return count
