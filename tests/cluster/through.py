"""Two nodes, of which the second leads everything: clients ask the first, which leads nothing.

The first has the topics of the second as a node has that follows its records, without any copy of a
partition.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from tests.cluster.clustered import Member, meet, member
from tests.server.served import Served
from waterclock.model.clock import Clock
from waterclock.model.names import is_own
from waterclock.model.views import TopicSettings
from waterclock.node.node import Node
from waterclock.node.partition.host import PartitionHost
from waterclock.node.topics import Topic
from waterclock.server.app import Server

OWNER, FRONT = "owner", "front"


class LedBy:
    """The places of a node whose cluster has one leader of everything."""

    def __init__(self, me: str, leader: str = OWNER) -> None:
        self.me = me
        self.leader = leader

    def meta_leader(self) -> str | None:
        return self.leader

    def group_home(self, group: str) -> str | None:
        return self.leader

    def group_homes(self) -> tuple[str | None, ...]:
        return (self.leader,)

    def leader_of(self, topic: str, partition: int) -> str | None:
        return self.leader

    def replicas_of(self, topic: str, partition: int) -> tuple[str, ...]:
        return (self.leader,)


def no_copy(*, was_here: bool) -> NoReturn:
    raise AssertionError("there is no copy here")


class Following:
    """Gives a node the topics of another one, as its records would."""

    def __init__(self, front: Member, owner: Node) -> None:
        self._front = front.node
        self._topics = front.node.topics
        self._shared = front.server.shared_topics
        self._topics._make = self.make  # type: ignore[method-assign]
        for topic in owner.topics.all():
            for host in topic.partitions:
                self.opened(topic, host)
        owner.topics.on_opened.append(self.opened)
        owner.topics.on_updated.append(self.updated)
        owner.topics.on_deleted.append(self.deleted)

    async def make(self, name: str, settings: TopicSettings) -> Topic:
        assert self._shared is not None
        await self._shared.topics.create_topic(name, settings)
        return self._topics.get(name)

    def opened(self, topic: Topic, host: PartitionHost) -> None:
        if is_own(topic.name):
            return
        mine = self._topics._topics.get(topic.name)
        if mine is None:
            mine = Topic(topic.name, topic.folder, topic.settings)
            self._topics._topics[topic.name] = mine
        mine.settings = topic.settings
        here = PartitionHost(topic.name, host.partition, self._front.clock, opening=no_copy)
        here.follow(OWNER)
        mine.partitions.append(here)
        for callback in self._topics.on_opened:
            callback(mine, here)

    def updated(self, topic: Topic) -> None:
        mine = self._topics.get(topic.name)
        mine.settings = topic.settings
        for callback in self._topics.on_updated:
            callback(mine)

    def deleted(self, topic: Topic) -> None:
        mine = self._topics._topics.pop(topic.name)
        for callback in self._topics.on_deleted:
            callback(mine)


class Through(Served):
    """Asks the node in front; looks into the one that leads."""

    front: Member
    owner: Member

    @property
    def home(self) -> Server:
        return self.owner.server


@asynccontextmanager
async def through(
    folder: Path, *, clock: Clock | None = None, **sections: Any
) -> AsyncIterator[Through]:
    """Run both, and connect to the one in front."""
    async with (
        member(folder, OWNER, clock=clock, places=LedBy(OWNER), **sections) as owner,
        member(folder / "front", FRONT, clock=clock, places=LedBy(FRONT), **sections) as front,
    ):
        await meet(owner, front)
        Following(front, owner.node)
        it = Through(owner.node, front.server, front.channel)
        it.front, it.owner = front, owner
        yield it
