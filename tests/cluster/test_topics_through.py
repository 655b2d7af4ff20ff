"""Topics over gRPC, HTTP and the client, asked of a node that leads nothing: another one answers.

Some of each suite; `make test-through` runs all of them so.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from tests.client import test_real_node
from tests.cluster.through import through
from tests.server import (
    test_admin_api,
    test_all_scheduled,
    test_key_search,
    test_replay_stream,
    test_rest_events,
    test_rest_frames,
    test_rest_messages,
    test_rest_schedule,
    test_scheduler_api,
    test_subscribe_stream,
    test_write_registry,
)
from tests.server.http_client import raw_client
from tests.server.members import Member
from tests.server.served import THROUGH
from waterclock.client.client import connect
from waterclock.client.settings import ClientSettings
from waterclock.model.message import ACKS, Acks
from waterclock.node.partition.host import PartitionHost
from waterclock.v1 import admin_pb2 as admin
from waterclock.v1 import broker_pb2 as pb

TEST_S = 60
HTTP = "/topics/orders/messages"
SOME = (
    test_admin_api.test_dead_letters_are_listed_redriven_and_purged,
    test_all_scheduled.test_messages_of_all_topics_are_one_list_by_due_time,
    test_all_scheduled.test_messages_of_all_topics_are_counted_by_topic,
    test_key_search.test_over_grpc_the_same_is_found,
    test_real_node.test_a_message_for_later_comes_when_it_is_due,
    test_replay_stream.test_a_named_replay_goes_on_behind_what_was_reported,
    test_rest_events.test_events_come_as_they_are_published_and_are_acked_by_lease,
    test_rest_events.test_a_stopping_node_finishes_what_was_asked_and_takes_nothing_new,
    test_rest_frames.test_head_tells_the_length_and_no_more,
    test_rest_messages.test_acked_messages_are_done_and_others_come_again,
    test_rest_messages.test_a_poll_waits_for_the_first_message,
    test_rest_schedule.test_messages_are_moved,
    test_scheduler_api.test_a_pending_message_is_cancelled_by_id_or_position_once,
    test_subscribe_stream.test_a_rejected_message_goes_to_the_dead_letters,
    test_subscribe_stream.test_a_client_that_vanishes_gives_its_place_to_others,
    test_write_registry.test_a_batch_is_begun_finished_and_committed,
)


@pytest.mark.parametrize("test", SOME, ids=lambda test: test.__name__.removeprefix("test_"))
async def test_through_a_node_that_leads_nothing(
    test: Callable[[Path], Awaitable[None]], tmp_path, monkeypatch
):
    monkeypatch.setenv(THROUGH, "1")
    request = {"monkeypatch": monkeypatch} if "monkeypatch" in test.__code__.co_varnames else {}
    async with asyncio.timeout(TEST_S):
        await test(tmp_path, **request)


async def test_what_is_published_here_is_stored_where_it_is_led(tmp_path):
    async with asyncio.timeout(TEST_S), through(tmp_path) as it:
        published = await it.publish(b"a", b"b")
        again = await it.publish(b"b", b"c")

        assert (published.first_offset, published.made_partitions) == (0, 1)
        assert list(again.offsets) == [1, 2]
        assert list(again.duplicates) == [0]
        host = it.node.topics.get("orders").partition(0)
        assert host.store.acknowledged_end == 3
        topic = await it.admin.GetTopic(admin.GetTopicRequest(topic="orders"))
        assert topic.partitions[0].end_offset == 3
        assert topic.effective.acks == "quorum"
        fetched = await it.broker.Fetch(pb.FetchRequest(topic="orders"))
        assert fetched.next_offset == 3


async def test_a_publish_through_another_node_waits_for_what_it_asked_for(tmp_path, monkeypatch):
    asked: list[Acks] = []
    wait = PartitionHost.wait_durable

    async def waiting(host: PartitionHost, *args: Any, acks: Acks, **more: Any) -> None:
        asked.append(acks)
        await wait(host, *args, acks=acks, **more)

    async with asyncio.timeout(TEST_S), through(tmp_path) as it:
        await it.publish(b"first")
        monkeypatch.setattr(PartitionHost, "wait_durable", waiting)
        addresses = it.server.addresses
        ways: dict[str, Callable[[Acks], Awaitable[object]]] = {}
        async with (
            raw_client(it.server.http_port) as http,
            connect(addresses.grpc) as by_grpc,
            connect(addresses.grpc, ClientSettings(native=True)) as by_link,
        ):
            message = pb.Message(value=b"x")
            ways["single"] = lambda acks: it.broker.Publish(
                pb.PublishRequest(topic="orders", message=message, acks=ACKS.index(acks))  # type: ignore[arg-type]
            )
            ways["batch"] = lambda acks: it.publish(acks.encode(), acks=ACKS.index(acks))
            ways["http"] = lambda acks: http.post(HTTP, {"value": "x", "acks": acks})
            ways["http, many"] = lambda acks: http.post(
                HTTP, {"messages": [{"value": "x"}], "acks": acks}
            )
            ways["client"] = lambda acks: by_grpc.publish("orders", b"x", acks=acks)
            ways["native"] = lambda acks: by_link.publish("orders", b"x", acks=acks)
            for name, publish in ways.items():
                asked.clear()
                for acks in ACKS:
                    await publish(acks)
                assert asked == [*ACKS], name


async def test_a_member_finishes_what_it_holds_when_the_node_it_asked_stops(tmp_path):
    async with asyncio.timeout(TEST_S), through(tmp_path) as it:
        await it.publish(b"held")
        member = Member(it)
        await member.open()
        held = await member.delivery()

        it.server.calls.stop()
        await member.answer(pb.Answer.ACK, held)

        assert (await member.ended())[0] == StatusCode.UNAVAILABLE
        assert it.node.groups.get("orders", "g").partitions[0].committed == 1


async def test_a_member_that_holds_on_is_ended_with_the_drain_of_the_node_it_asked(tmp_path):
    async with asyncio.timeout(TEST_S), through(tmp_path) as it:
        await it.publish(b"held")
        member = Member(it)
        await member.open()
        await member.delivery()

        it.server.calls.stop()
        it.server.calls.end()

        assert (await member.ended())[0] == StatusCode.UNAVAILABLE


async def test_a_replay_ends_when_the_node_it_was_asked_of_stops(tmp_path):
    async with asyncio.timeout(TEST_S), through(tmp_path) as it:
        await it.publish(b"a")
        reader = await test_replay_stream.Reader(it, topic="orders", name="again").begin()
        assert await reader.values() == [b"a"]

        it.server.calls.stop()

        assert (await reader.ended())[0] == StatusCode.UNAVAILABLE
