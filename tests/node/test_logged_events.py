"""What comes and goes on a node is told in its log."""

import logging
import os

from tests.node.consuming import consuming
from tests.node.hosts import batch_of, opened
from waterclock.model.message import Message
from waterclock.model.views import TopicSettings
from waterclock.runtime.structured_log import event_of, fields_of


def logged(caplog) -> list[tuple[str, dict[str, object]]]:
    found = [(event_of(each), fields_of(each)) for each in caplog.records]
    caplog.clear()
    return found


async def test_topics_groups_and_members_are_told_as_they_come_and_go(tmp_path, caplog):
    caplog.set_level(logging.INFO, "waterclock")
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.hosts.topics.update("t", TopicSettings(partitions=2))
        (member, group, topic) = ({"member": "m"}, {"group": "g"}, {"topic": "t"})
        assert logged(caplog) == [
            ("topic_made", {**topic, "partitions": 1}),
            ("topic_updated", {**topic, "partitions": 2}),
        ]
        joined = await c.join()
        joined.session.leave()
        await c.settle()
        await c.groups.seek("t", "g")
        await c.groups.delete("t", "g")
        assert logged(caplog) == [
            ("group_made", topic | group),
            ("member_joined", topic | group | member),
            ("member_left", topic | group | member),
            ("group_moved", topic | group),
            ("group_deleted", topic | group),
        ]
        await c.hosts.topics.delete("t")
        assert logged(caplog) == [("topic_deleted", topic)]


async def test_what_a_start_mends_is_told(tmp_path, caplog):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("t")
        await topic.partition(0).publish(batch_of(Message(b"whole")))
    (segment,) = (tmp_path / "topics").glob("*/0/log/*.seg")
    with segment.open("ab") as file:
        file.write(os.urandom(100))
    caplog.set_level(logging.INFO, "waterclock")
    async with opened(tmp_path):
        ((event, fields),) = logged(caplog)

    assert (event, fields["end_offset"]) == ("torn_tail_cut", 1)
    assert str(segment.parent) in str(fields["folder"])
