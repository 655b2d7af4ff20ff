"""Where a call goes: its place (`place.py`), by what this node knows of the others.

The node that is asked looks again, by what it knows itself: `check` refuses what another node is to
answer, so that two nodes which know different leaders never both answer for one partition.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from waterclock.model.errors import Fenced, NotLeader
from waterclock.model.names import is_own
from waterclock.node.places import Places
from waterclock.node.topics import Topic, Topics
from waterclock.server.cluster.calls.place import Place

Read = Callable[[str], Any]
"""Returns a field of a request."""


def is_repeatable(place: Place, read: Read) -> bool:
    """Say if a request may be asked again, though it may have been done."""
    return place.is_repeatable or (
        place.repeatable_if is not None and bool(read(place.repeatable_if))
    )


class Where(NamedTuple):
    """Who is to be asked."""

    what: str
    """What this is about, for people."""
    nodes: Mapping[str, tuple[int, ...]]
    """With the partitions that each is to answer for; none: all that the request is about."""

    @property
    def only(self) -> str | None:
        """The node, if there is one alone."""
        return next(iter(self.nodes)) if len(self.nodes) == 1 else None


class Router:
    """Finds the nodes that answer, for one of them."""

    def __init__(self, topics: Topics, places: Places) -> None:
        self._topics = topics
        self._places = places
        self.me = places.me
        self._here = Where("the node", {self.me: ()})

    def __repr__(self) -> str:
        return f"<Router of {self.me}>"

    def find(self, place: Place, read: Read) -> Where:
        """Return who answers a request; raises NotLeader if nobody does now."""
        kind = place.kind
        topic: str | None = None if place.topic is None else read(place.topic) or None
        if kind == "here" or (topic is not None and is_own(topic)):
            return self._here
        if kind == "meta" or (place.meta_if is not None and read(place.meta_if)):
            return self._meta("the metadata")
        if kind == "group":
            assert place.group is not None
            group = read(place.group)
            return self._one(f"group {group!r}", self._places.group_home(group))
        if kind == "homes":
            return self._every("the groups", self._places.group_homes())
        if topic is None:
            return self._every_leader()
        found = self._topics.find(topic)
        if found is None:
            return self._meta(f"topic {topic!r}")
        numbers = self._partitions(place, read) or range(len(found.partitions))
        if not all(0 <= number < len(found.partitions) for number in numbers):
            return self._meta(f"topic {topic!r}")  # who makes partitions knows them all
        return (self._replica if kind == "replica" else self._leaders)(found, numbers)

    def check(self, place: Place, read: Read, partitions: tuple[int, ...]) -> None:
        """Raise NotLeader unless this node is to answer a request, for these partitions if some are
        named."""
        if partitions:
            assert place.topic is not None
            topic = read(place.topic)
            for number in partitions:
                leader = self._places.leader_of(topic, number)
                if leader != self.me:
                    raise NotLeader(f"{topic}/{number}", leader=leader or "")
            return
        if place.kind == "homes" or (place.kind == "leaders" and not self._topic(place, read)):
            return  # each tells what it has
        where = self.find(place, read)
        if where.only != self.me:  # if it is one of several, it was to be asked for its part
            raise NotLeader(where.what, leader=where.only or "")

    def check_still(self, place: Place, read: Read, partitions: tuple[int, ...]) -> None:
        """Raise if what was answered may lack a partition, which this node has ceased to lead while
        it worked: NotLeader, or Fenced if a part may have been done that is not to be repeated."""
        if place.kind == "leaders":
            try:
                self.check(place, read, partitions)
            except NotLeader as error:
                if is_repeatable(place, read):
                    raise
                raise Fenced(f"a part of it may have been done: {error}") from error

    def leader(self, place: Place, read: Read) -> str | None:
        """Return who leads what a request is about; None if nobody does, or several do."""
        assert place.topic is not None
        found = self._topics.find(read(place.topic))
        if found is None:
            return None
        numbers = self._partitions(place, read) or range(len(found.partitions))
        try:
            return self._leaders(found, numbers).only
        except NotLeader:
            return None

    def regrouped(self, place: Place, read: Read, partitions: Iterable[int]) -> Where:
        """Return who leads partitions by now; raises NotLeader."""
        assert place.topic is not None
        topic = read(place.topic)
        return self._leaders(self._topics.get(topic), partitions)

    @staticmethod
    def _topic(place: Place, read: Read) -> str | None:
        return None if place.topic is None else read(place.topic) or None

    @staticmethod
    def _partitions(place: Place, read: Read) -> tuple[int, ...]:
        """Return the partitions that a request names; none if it names none."""
        named = None if place.partition is None else read(place.partition)
        if named is None:
            return ()
        return (named,) if isinstance(named, int) else tuple(named)

    def _meta(self, what: str) -> Where:
        return self._one(what, self._places.meta_leader())

    def _one(self, what: str, node: str | None) -> Where:
        if node is None:
            raise NotLeader(what)
        return Where(what, {node: ()})

    def _every(self, what: str, nodes: Iterable[str | None]) -> Where:
        found = list(nodes)
        if None in found:
            raise NotLeader(what)
        return Where(what, {node: () for node in found if node is not None})

    def _every_leader(self) -> Where:
        """Return all that lead something; what nobody leads now hides nothing else."""
        leaders = {self._places.meta_leader()}
        for topic in self._topics.all():
            if not is_own(topic.name):
                count = len(topic.partitions)
                leaders |= {self._places.leader_of(topic.name, n) for n in range(count)}
        leaders.discard(None)
        return self._every("the topics", leaders) if leaders else self._here

    def _leaders(self, topic: Topic, numbers: Iterable[int]) -> Where:
        by_node: dict[str, tuple[int, ...]] = {}
        for number in numbers:
            leader = self._places.leader_of(topic.name, number)
            if leader is None:
                raise NotLeader(f"{topic.name}/{number}")
            by_node[leader] = (*by_node.get(leader, ()), number)
        what = f"topic {topic.name!r}"
        return Where(what, dict.fromkeys(by_node, ()) if len(by_node) == 1 else by_node)

    def _replica(self, topic: Topic, numbers: Iterable[int]) -> Where:
        wanted = list(numbers)
        if all(topic.partitions[number].is_open for number in wanted):
            return self._here
        holders = [set(self._places.replicas_of(topic.name, number)) for number in wanted]
        having = set.intersection(*holders) - {self.me} if holders else set()
        if not having:
            return self._here  # no node has all of them: this one reads what others have
        leader = self._places.leader_of(topic.name, wanted[0])
        node = leader if leader in having else min(having)
        assert node is not None
        return Where(f"topic {topic.name!r}", {node: ()})
