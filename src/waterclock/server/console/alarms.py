"""What is wrong with partitions, and with nodes that do not tell, as no node knows it of itself.

The problems of a node are its own to tell. That a partition has no leader, or that one of its
voters cannot be reached, is seen where the counts of all nodes are put together. When that began
nobody knows: it is told since when it was first seen, by the node that is asked.
"""

from collections.abc import Iterable, Iterator

from waterclock.model.ids import Millis
from waterclock.model.names import is_own
from waterclock.node.problems import HealthProblem
from waterclock.server.console.models import Counts

NAMED_MAX = 3
"""Topics that are named; the list of topics has all."""
NODE_AWAY = "nodeAway"
LEADERLESS = "leaderless"
UNDER_REPLICATED = "underReplicated"
ADVICE = {
    NODE_AWAY: "look after it and the links to it; what it alone has is missing in all numbers",
    LEADERLESS: "start the nodes that have their replicas: the list of topics says where, and "
    "nothing of these partitions is read or written until then",
    UNDER_REPLICATED: "start the nodes that are away, or give their replicas to others: the "
    "cluster page says which; until then they outlive fewer failures",
}


class Alarms:
    """Tells what is wrong of what all nodes have counted."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], Millis] = {}
        """What was wrong when it was last asked."""

    def __repr__(self) -> str:
        return f"<Alarms {len(self._since)}>"

    def of(
        self, counts: Counts, now_ms: Millis, *, failed: Iterable[str] = ()
    ) -> list[HealthProblem]:
        """Return what is wrong now, with when it was first seen; of members that have failed, the
        names are given."""
        found = {(name, about): detail for name, about, detail in _wrong(counts, failed)}
        self._since = {key: self._since.get(key, now_ms) for key in found}
        return [
            HealthProblem(key[0], detail, self._since[key], False, ADVICE[key[0]])
            for key, detail in found.items()
        ]


def _wrong(counts: Counts, failed: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong: its name, what it is about, and in words."""
    for name in sorted({*failed, *(row.name for row in counts.node.nodes if not row.is_heard)}):
        yield NODE_AWAY, name, f"{name} does not answer"
    # Of the node's own topics the others do not tell.
    missing = {
        each.topic: each.partitions - each.led
        for each in counts.topics
        if each.led < each.partitions and not is_own(each.topic)
    }
    if missing:
        names = sorted(missing, key=lambda topic: (-missing[topic], topic))
        said = ", ".join(f"{topic} ({missing[topic]})" for topic in names[:NAMED_MAX])
        more = f" and {len(names) - NAMED_MAX} more topics" if len(names) > NAMED_MAX else ""
        many = _partitions(sum(missing.values()))
        yield LEADERLESS, "", f"{many} without a leader that answers: {said}{more}"
    if under := counts.node.under_replicated:
        yield UNDER_REPLICATED, "", f"{_partitions(under)} with a replica that cannot be reached"


def _partitions(count: int) -> str:
    return f"{count:,} partition{'' if count == 1 else 's'}"
