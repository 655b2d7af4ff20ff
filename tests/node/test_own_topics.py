"""Topics of the node's own: read like others, and written by the node alone."""

import pytest

from tests.node.consuming import consuming
from tests.node.hosts import batch_of, config_in, opened
from waterclock.model.errors import BadInput, CapacityReached, UnknownTopic
from waterclock.model.message import Message
from waterclock.model.sections import TopicsConfig
from waterclock.model.views import TopicSettings
from waterclock.node.groups.session import AnswerKind
from waterclock.node.publish.batcher import PublishBatcher

OWN = "__own"
SETTINGS = TopicSettings(partitions=1)


async def test_nobody_publishes_to_a_topic_of_the_nodes_own_nor_changes_or_deletes_it(tmp_path):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topics.ensure_own(OWN, SETTINGS)
        batcher = PublishBatcher(hosts.topics, hosts.config.limits, hosts.clock, linger_ms=0)

        for call in (
            hosts.publisher.publish_parsed(topic, batch_of(Message(b"forged"))),
            batcher.publish(OWN, Message(b"forged")),
            hosts.topics.update(OWN, TopicSettings(partitions=1, retention_ms=1)),
            hosts.topics.delete(OWN),
            hosts.topics.create(OWN, SETTINGS, if_absent=True),
        ):
            with pytest.raises(BadInput, match="the node's own"):
                await call
        assert topic.partition(0).store.end == 0


async def test_a_node_makes_its_own_topics_also_when_there_may_be_no_more(tmp_path):
    config = config_in(tmp_path, topics=TopicsConfig(topics_max=2, partitions_max=2))
    async with opened(tmp_path, config=config) as hosts:
        await hosts.topic("orders", partitions=1)
        topic = await hosts.topics.ensure_own(OWN, SETTINGS)
        other = TopicSettings(partitions=1, retention_ms=1_000)

        assert await hosts.topics.ensure_own(OWN, SETTINGS) is topic
        assert await hosts.topics.ensure_own(OWN, other) is topic
        assert (hosts.topics.get(OWN), topic.settings) == (topic, other)
        await hosts.topic("bills", partitions=1)
        with pytest.raises(CapacityReached):
            await hosts.topic("others", partitions=1)
        await hosts.topics.ensure_own("__other", SETTINGS)


async def test_a_group_reads_a_topic_of_the_nodes_own_and_redrives_nothing_into_it(tmp_path):
    async with consuming(tmp_path) as c:
        with pytest.raises(UnknownTopic):
            await c.join(topic=OWN)
        topic = await c.hosts.topics.ensure_own(OWN, SETTINGS)
        await topic.partition(0).publish(batch_of(Message(b"told")))
        member = await c.join(topic=OWN)
        await c.settle()
        member.take()
        member.answer(AnswerKind.REJECT, 0)
        await c.settle()

        assert member.values == [b"told"]
        assert (await c.dead_letters.list(OWN)).total == 1
        with pytest.raises(BadInput, match="the node's own"):
            await c.dead_letters.redrive(OWN)
        assert topic.partition(0).store.end == 1
