"""Topics, groups, dead letters, replays and the node over real sockets."""

from typing import Any

from grpc import StatusCode

import waterclock
from tests.server.members import Member, headers_of, values_of
from tests.server.served import failure, running_server
from waterclock.v1 import admin_pb2 as pb
from waterclock.v1 import broker_pb2 as broker


async def create(it, topic="orders", **settings):
    request = pb.CreateTopicRequest(topic=topic, settings=pb.TopicSettings(**settings))
    return await it.admin.CreateTopic(request)


async def dead_letter(it, *values: bytes) -> None:
    """Have messages rejected by a member."""
    await it.publish(*values)
    member = Member(it)
    await member.open()
    done = 0
    while done < len(values):
        delivery = await member.delivery()
        done += len(values_of(delivery))
        await member.answer(broker.Answer.REJECT, delivery)
    dead = Member(it, topic="orders.dlq", group="watch")
    await dead.open()
    seen = 0
    while seen < len(values):
        seen += len(values_of(await dead.delivery()))
    for one in (member, dead):
        await one.say(leave=True)
        await one.ended()


async def test_a_topic_is_made_with_its_settings_and_told_about(tmp_path):
    async with running_server(tmp_path) as it:
        made = await create(
            it,
            partitions=3,
            retention_ms=0,
            is_compacted=True,
            retries_max=5,
            ack_timeout_ms=1_000,
            replication_factor=2,
        )
        await it.publish(b"a", partition=1)
        topic = await it.admin.GetTopic(pb.GetTopicRequest(topic="orders"))
        topics = await it.admin.ListTopics(pb.ListTopicsRequest())

        assert (
            made.settings
            == topic.settings
            == pb.TopicSettings(
                partitions=3,
                retention_ms=0,
                is_compacted=True,
                retries_max=5,
                ack_timeout_ms=1_000,
                replication_factor=2,
            )
        )
        assert topic.effective == pb.EffectiveSettings(
            partitions=3,
            is_compacted=True,
            retries_max=5,
            ack_timeout_ms=1_000,
            replication_factor=1,
            acks="quorum",
        )
        assert not topics.topics[0].HasField("effective")
        assert [(p.partition, p.end_offset) for p in topic.partitions] == [
            (0, 0),
            (1, 1),
            (2, 0),
        ]
        assert topic.partitions[1].size_bytes > 0
        assert [p.problem for p in topic.partitions] == [""] * 3
        assert [one.topic for one in topics.topics] == ["orders"]


async def test_a_topic_is_made_once_changed_where_told_and_deleted(tmp_path):
    async with running_server(tmp_path) as it:
        await create(it, partitions=2, retries_max=5)
        code, details, facts = await failure(create(it))
        request = pb.CreateTopicRequest(topic="orders", if_absent=True)
        same = await it.admin.CreateTopic(request)
        settings = pb.TopicSettings(partitions=4, retention_ms=1_000)
        updated = await it.admin.UpdateTopic(
            pb.UpdateTopicRequest(topic="orders", settings=settings)
        )
        await it.admin.DeleteTopic(pb.DeleteTopicRequest(topic="orders"))
        gone, _, _ = await failure(it.admin.GetTopic(pb.GetTopicRequest(topic="orders")))

        assert (code, details) == (StatusCode.ALREADY_EXISTS, "topic 'orders' exists already")
        assert facts == {"error": "AlreadyExists", "what": "topic", "name": "orders"}
        assert same.settings.partitions == 2
        assert updated.settings == pb.TopicSettings(
            partitions=4, retention_ms=1_000, retries_max=5, is_compacted=False
        )
        assert len(updated.partitions) == 4
        assert gone == StatusCode.NOT_FOUND


async def test_offsets_are_found_by_time(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        find = it.admin.FindOffsets
        then = await find(pb.FindOffsetsRequest(topic="orders", time_ms=0))
        later = await find(pb.FindOffsetsRequest(topic="orders", time_ms=1 << 60))

        assert list(then.positions) == [broker.Position(partition=0, offset=0)]
        assert list(later.positions) == [broker.Position(partition=0, offset=1)]


async def test_groups_are_listed_moved_and_forgotten(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a", b"b", b"c")
        member = Member(it, member="me")
        await member.open()
        await member.answer(broker.Answer.ACK, await member.delivery())
        seek = pb.SeekGroupRequest(topic="orders", group="g")
        delete = pb.DeleteGroupRequest(topic="orders", group="g")
        await member.say(leave=True)
        await member.ended()
        listed = await it.admin.ListGroups(pb.ListGroupsRequest(topic="orders"))
        seek.positions.add(partition=0, offset=1)
        moved = await it.admin.SeekGroup(seek)

        assert [group.group for group in listed.groups] == ["g"]
        assert listed.groups[0].partitions[0].committed == 3
        assert (moved.partitions[0].committed, moved.partitions[0].lag) == (1, 2)
        await it.admin.DeleteGroup(delete)
        request = pb.GetGroupRequest(topic="orders", group="g")
        code, details, _ = await failure(it.admin.GetGroup(request))
        assert (code, details) == (StatusCode.NOT_FOUND, "there is no group 'orders/g'")
        assert not (await it.admin.ListGroups(pb.ListGroupsRequest())).groups


async def test_dead_letters_are_listed_redriven_and_purged(tmp_path):
    async with running_server(tmp_path) as it:
        await dead_letter(it, b"a", b"b", b"c")
        page = await it.admin.ListDeadLetters(pb.ListDeadLettersRequest(topic="orders", limit=2))
        rest = await it.admin.ListDeadLetters(
            pb.ListDeadLettersRequest(topic="orders", limit=2, page=page.next_page)
        )
        first = page.dead_letters[0]
        redriven = await it.admin.Redrive(
            pb.RedriveRequest(topic="orders", positions=[first.position])
        )
        limited = await it.admin.Redrive(pb.RedriveRequest(topic="orders", limit=1))
        purged = await it.admin.PurgeDeadLetters(pb.PurgeDeadLettersRequest(topic="orders"))
        left = await it.admin.ListDeadLetters(pb.ListDeadLettersRequest(topic="orders"))

        assert [letter.message.value for letter in page.dead_letters] == [b"a", b"b"]
        assert [letter.message.value for letter in rest.dead_letters] == [b"c"]
        assert (page.total, rest.next_page) == (3, "")
        assert (first.group, first.reason, first.message.message_id) == (
            "g",
            "rejected",
            b"id-a",
        )
        assert (redriven.redriven, limited.redriven, purged.purged) == (1, 1, 1)
        assert (left.total, list(left.dead_letters)) == (0, [])
        again = Member(it)
        await again.open()
        assert values_of(await again.delivery()) == [b"a", b"b"]


async def test_a_dead_letter_is_edited_as_it_is_redriven(tmp_path):
    async with running_server(tmp_path) as it:
        await dead_letter(it, b"a")
        page = await it.admin.ListDeadLetters(pb.ListDeadLettersRequest(topic="orders"))
        at = [page.dead_letters[0].position]
        edit = pb.RedriveRequest(topic="orders", positions=at, value=b"")
        edit.headers.headers["why"] = b"\xff"

        assert (await it.admin.Redrive(edit)).redriven == 1
        again = Member(it)
        await again.open()
        delivery = await again.delivery()
        assert values_of(delivery) == [b""]
        assert headers_of(delivery) == [{"why": b"\xff", "wc-redriven": b"1"}]


async def test_the_node_tells_who_it_is(tmp_path):
    async with running_server(tmp_path) as it:
        node = await it.admin.GetNode(pb.GetNodeRequest())

        assert (node.name, node.version) == ("test", waterclock.__version__)
        assert node.http_address == f"http://127.0.0.1:{it.server.http_port}"
        assert node.data_folder == str(tmp_path)
        assert 0 < node.started_ms <= node.now_ms
        assert node.limits.batch_messages_max == 100_000


async def test_bad_requests_are_refused(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        for method, request, code in BAD:
            got, details, facts = await failure(getattr(it.admin, method)(request))

            assert (got, "error" in facts) == (code, True), (method, request, details)


BAD: list[tuple[str, Any, StatusCode]] = [
    ("CreateTopic", pb.CreateTopicRequest(), StatusCode.INVALID_ARGUMENT),
    ("CreateTopic", pb.CreateTopicRequest(topic="__own"), StatusCode.INVALID_ARGUMENT),
    ("CreateTopic", pb.CreateTopicRequest(topic="../../etc"), StatusCode.INVALID_ARGUMENT),
    (
        "CreateTopic",
        pb.CreateTopicRequest(topic="t", settings=pb.TopicSettings(partitions=0)),
        StatusCode.INVALID_ARGUMENT,
    ),
    (
        "CreateTopic",
        pb.CreateTopicRequest(topic="t", settings=pb.TopicSettings(retries_max=99)),
        StatusCode.INVALID_ARGUMENT,
    ),
    ("UpdateTopic", pb.UpdateTopicRequest(topic="no"), StatusCode.NOT_FOUND),
    ("DeleteTopic", pb.DeleteTopicRequest(topic="no"), StatusCode.NOT_FOUND),
    ("FindOffsets", pb.FindOffsetsRequest(topic="no"), StatusCode.NOT_FOUND),
    (
        "FindOffsets",
        pb.FindOffsetsRequest(topic="orders", time_ms=-1),
        StatusCode.INVALID_ARGUMENT,
    ),
    ("ListGroups", pb.ListGroupsRequest(topic="no"), StatusCode.NOT_FOUND),
    ("GetGroup", pb.GetGroupRequest(topic="orders", group="no"), StatusCode.NOT_FOUND),
    ("DeleteGroup", pb.DeleteGroupRequest(topic="orders", group="no"), StatusCode.NOT_FOUND),
    ("SeekGroup", pb.SeekGroupRequest(topic="no", group="g"), StatusCode.NOT_FOUND),
    (
        "SeekGroup",
        pb.SeekGroupRequest(topic="orders", positions=[broker.Position(offset=-1)]),
        StatusCode.INVALID_ARGUMENT,
    ),
    ("ListDeadLetters", pb.ListDeadLettersRequest(topic="no"), StatusCode.NOT_FOUND),
    (
        "ListDeadLetters",
        pb.ListDeadLettersRequest(topic="orders", page="x"),
        StatusCode.INVALID_ARGUMENT,
    ),
    ("Redrive", pb.RedriveRequest(topic="orders", limit=-1), StatusCode.INVALID_ARGUMENT),
    ("PurgeDeadLetters", pb.PurgeDeadLettersRequest(topic="no"), StatusCode.NOT_FOUND),
]
