"""How many messages of a topic wait for their time, and when the next one is due."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from waterclock.model.clock import time_of


@dataclass(frozen=True, slots=True)
class TopicPending:
    """How many messages of a topic are pending."""

    topic: str
    count: int
    next_due_ms: int

    @property
    def next_due(self) -> datetime:
        """When the next one is due."""
        return time_of(self.next_due_ms)

    def and_(self, other: "TopicPending") -> "TopicPending":
        """Return those of both, of the same topic."""
        next_due_ms = min(self.next_due_ms, other.next_due_ms)
        return TopicPending(self.topic, self.count + other.count, next_due_ms)


def merged_topics(counts: Iterable[TopicPending]) -> list[TopicPending]:
    """Return the counts of each topic together, by name."""
    found: dict[str, TopicPending] = {}
    for each in counts:
        known = found.get(each.topic)
        found[each.topic] = each if known is None else known.and_(each)
    return [found[topic] for topic in sorted(found)]
