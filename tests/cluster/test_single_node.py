"""What a node of a cluster refuses, in words that say what to do; all else goes on."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from tests.cluster.joined import config_of, joined_node
from tests.server.served import config_in
from waterclock.model.errors import NotSupported
from waterclock.model.sections import SecurityConfig, StreamsConfig
from waterclock.security.rights import Needs
from waterclock.server.app import APIS
from waterclock.server.cluster.single_node import (
    NO_STORE,
    NO_TOPICS,
    check_request,
    of_single_nodes,
    refusal_of_store,
)
from waterclock.server.grpc.needs import METHODS
from waterclock.server.http.messages import Request, Response
from waterclock.server.http.operations import Operation
from waterclock.streams.tokens import STORED, Token
from waterclock.v1 import admin_pb2, broker_pb2, scheduler_pb2

TEST_S = 60
BY_NAME = {f"{api.name}/{method.name}": method for api in APIS for method in api.methods}


def request_of(method: str, topic: str) -> Any:
    """Return a request that names a topic, as far as the method does."""
    request = GetMessageClass(BY_NAME[method].input_type)()
    field = METHODS[method].needs.topic
    if field is not None:
        *parts, name = field.split(".")
        holder = request
        for part in parts:
            holder = getattr(holder, part)
        setattr(holder, name, topic)
    return request


@pytest.mark.parametrize("method", BY_NAME)
def test_every_method_about_topics_is_refused(method):
    if method in ("Admin/GetNode", "Backups/TakeBackup"):
        check_request(method, request_of(method, "orders"))
        return
    with pytest.raises(NotSupported, match=r"set cluster\.etcd"):
        check_request(method, request_of(method, "orders"))


@pytest.mark.parametrize("method", [name for name in BY_NAME if METHODS[name].needs.topic])
def test_the_nodes_own_topics_are_not_refused(method):
    check_request(method, request_of(method, "__audit"))


def test_what_follows_in_a_stream_is_not_refused_again():
    check_request("Broker/Subscribe", broker_pb2.SubscribeRequest(leave=True))
    check_request("Broker/Replay", broker_pb2.ReplayRequest())


def test_a_node_that_is_alone_has_its_operations_as_they_are(tmp_path):
    def handler(request: Request) -> Response:
        return Response(204)

    node = Operation("GET", "/node", handler, "getNode", "Show it.", {}, needs=Needs("read"))
    topics = replace(node, tag="topics")

    assert of_single_nodes(config_in(tmp_path), [topics, node]) == [topics, node]
    refusing, kept = of_single_nodes(config_of(tmp_path, "a"), [topics, node])
    assert kept is node
    with pytest.raises(NotSupported):
        refusing.handler(Request(b"GET", b"/topics", b"", [], b""))


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [("log:", True), ("sqlite:///tmp/a", True), ("postgresql://a@b/c", False)],
)
def test_a_cluster_needs_a_store_that_all_nodes_reach(tmp_path, url, is_refused):
    streams = StreamsConfig(store=url)

    assert refusal_of_store(config_of(tmp_path, "a", streams=streams)) == NO_STORE * is_refused
    assert refusal_of_store(config_in(tmp_path, streams=streams)) == ""


async def test_over_http_and_grpc_topics_and_stores_are_refused_and_streams_go_on(tmp_path):
    sections = {"security": SecurityConfig(audit=True)}
    async with asyncio.timeout(TEST_S), joined_node(tmp_path, "a", **sections) as a:
        refused = [
            await a.get("/topics"),
            await a.get("/groups"),
            await a.get("/recurrences"),
            await a.get("/topics/orders/scheduled"),
            await a.get("/topics/orders/ends"),
            await a.post("/topics/orders/messages", value="hello"),
            await a.post("/topics", topic="orders"),
        ]
        assert {each.status for each in refused} == {501}
        assert {each.json()["detail"] for each in refused} == {NO_TOPICS}
        assert refused[0].json()["error"] == "NotSupported"
        assert (await a.get("/node")).status == 200
        assert (await a.get("/topics/__audit")).status == 200  # POST /topics stands in it

        token = a.node.stream_tokens.encode("s", Token(STORED, 0, 1))
        unstored = [
            await a.post("/streams/sendAndStore", streamId="s", message=1),
            await a.post("/streams/send", streamId="s", message=1, writeToDB=True),
            await a.receive("s", f"resumeToken={token}"),
            await a.get(f"/streams/events?streamId=s&resumeToken={token}"),
        ]
        assert {each.status for each in unstored} == {501}
        assert {each.json()["detail"] for each in unstored} == {NO_STORE}

        assert (await a.send("s", "in memory")).status == 200
        got = await a.receive("s", "resumeToken=earliest")
        assert got.json()["message"] == "in memory"

        calls = (
            a.broker.Publish(broker_pb2.PublishRequest(topic="orders")),
            a.scheduler.ListRecurrences(scheduler_pb2.ListRecurrencesRequest()),
            a.admin.ListTopics(admin_pb2.ListTopicsRequest()),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError, match=r"set cluster\.etcd") as caught:
                await call
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        members = a.broker.Subscribe()
        opening = broker_pb2.SubscribeRequest.Open(topic="orders", group="g")
        await members.write(broker_pb2.SubscribeRequest(open=opening))
        assert await members.code() == grpc.StatusCode.UNIMPLEMENTED
        assert (await a.admin.GetNode(admin_pb2.GetNodeRequest())).name == "a"
