"""Which node answers a call about topics: said beside what right the call needs.

    here        any node: it is about the node itself, or is forwarded further down (publishes)
    meta        the node that writes topics, recurrences, writers, replays and snapshots
    group       the home of the group that is named
    homes       all homes of groups; their answers are put together
    leaders     the leaders of the partitions that are named, or of all; put together as well
    replica     any node that has a copy of all the partitions that are named; if none has, this
                one, which reads what others have

A topic that this node does not know is asked of the one that makes topics. The node's own topics
(`__audit`) are each node's own: they are answered here.
"""

from dataclasses import dataclass
from typing import Literal

PlaceKind = Literal["here", "meta", "group", "homes", "leaders", "replica"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which node answers; fields are named as those of `Needs` are."""

    kind: PlaceKind
    topic: str | None = None
    """The field with the topic; None, or a topic that is empty: all there are."""
    group: str | None = None
    partition: str | None = None
    """The field with the partition, or the partitions; None, or none named: all of the topic."""
    meta_if: str | None = None
    """If this field is not empty, its place is `meta`: a replay that has a name is a record."""
    is_repeatable: bool = True
    """It may be asked again by a node that does not know whether it was done: the effect is the
    same, and the answer is true. What is not, ends as `Fenced`, and the client decides."""
    repeatable_if: str | None = None
    """If this field is true, it is repeatable nevertheless."""
    wait: str | None = None
    """The field with how long it waits at most, as in `30s`."""


HERE = Place(kind="here")
META = Place(kind="meta")
META_ONCE = Place(kind="meta", is_repeatable=False)
"""A second time it would say that there was nothing to do."""
OF_GROUP = Place(kind="group", topic="topic", group="group")
OF_GROUP_WAITING = Place(kind="group", topic="topic", group="group", wait="wait")
OF_GROUP_ONCE = Place(kind="group", topic="topic", group="group", is_repeatable=False)
LEADERS = Place(kind="leaders", topic="topic")
LEADERS_ONCE = Place(kind="leaders", topic="topic", is_repeatable=False)
"""It answers with how much it has done: a second time, with how much was left."""
