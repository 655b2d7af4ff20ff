"""Members, the ring and events over HTTP: of a node without others, and of nodes that have some."""

from collections import deque
from contextlib import asynccontextmanager
from typing import Any

from tests.cluster.clustered import meet, member
from tests.cluster.replicated import FakeReplication, partition
from tests.server.http_client import raw_client
from tests.server.secure_serving import secure_node
from tests.server.served import running_server
from waterclock.model.cluster_views import EventView, MemberView
from waterclock.model.sections import NodeConfig


class KnownMembers:
    """Members as gossip would tell of them."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.events = deque([EventView(7, "joined", names[-1], "http://there up")])

    def members(self) -> list[MemberView]:
        return [
            MemberView(name, "127.0.0.1:1", "alive", f"http://{name}", "", "", 1, not index, True)
            for index, name in enumerate(self._names)
        ]


@asynccontextmanager
async def pair(folder):
    """Two nodes of a cluster."""

    def named(name: str) -> dict[str, Any]:
        (folder / name).mkdir()
        return {"node": NodeConfig(name=name, data_folder=str(folder / name))}

    async with (
        member(folder, "a", **named("a")) as first,
        member(folder, "b", **named("b")) as second,
    ):
        await meet(first, second)
        yield first, second


async def got(it, path: str) -> Any:
    async with raw_client(it.server.http_port) as client:
        answer = await client.get(path)
    assert answer.status == 200, answer.body
    return answer.json()


async def test_a_node_without_others_is_the_only_member_and_owns_everything(tmp_path):
    async with running_server(tmp_path) as it:
        (only,) = (await got(it, "/cluster/members"))["members"]
        ring = await got(it, "/cluster/ring")

        assert (only["name"], only["state"], only["isSelf"]) == ("test", "alive", True)
        assert only["http"] == it.server.addresses.http
        assert ring == {"version": 0, "nodes": [{"name": "test", "share": 1.0, "streams": 0}]}
        assert await got(it, "/api/v1/cluster/events") == {"events": []}
        assert await got(it, "/cluster/replication") == {"partitions": []}


async def test_each_node_says_what_it_has_of_the_ring_and_how_many_streams(tmp_path):
    async with pair(tmp_path) as (first, second):
        for number in range(20):
            await got_sent(first, f"stream-{number}")

        rings = [await got(each, "/cluster/ring") for each in (first, second)]

        assert rings[0] == rings[1]
        assert rings[0]["version"] == first.cluster.ownership.version
        nodes = rings[0]["nodes"]
        assert [node["name"] for node in nodes] == ["a", "b"]
        assert abs(sum(node["share"] for node in nodes) - 1) < 1e-9
        assert sum(node["streams"] for node in nodes) == 20
        assert all(node["streams"] > 0 for node in nodes)


async def test_a_node_that_cannot_be_asked_is_on_the_ring_without_its_streams(tmp_path):
    async with pair(tmp_path) as (first, _):
        first.cluster.ownership.update({"a": "http://a", "gone": "http://gone"})

        own, gone = (await got(first, "/cluster/ring"))["nodes"]

        assert (own["name"], own["streams"]) == ("a", 0)
        assert (gone["name"], gone["streams"]) == ("gone", -1)


async def test_any_node_says_of_each_partition_what_its_leader_knows(tmp_path):
    async with pair(tmp_path) as (first, second):
        first.cluster.replication = FakeReplication(
            [
                partition("orders", 0, leader="a", lag=5),
                partition("orders", 1, leader="b", lag=-1),
                partition("orders", 2, leader="gone", lag=-1),
            ]
        )
        second.cluster.replication = FakeReplication(
            [
                partition("orders", 0, leader="b", epoch=2, lag=99),  # it led before, and hung
                partition("orders", 1, leader="b", lag=6),
                partition("orders", 3, leader="b", lag=7),
            ]
        )

        found, through_other = [
            (await got(asked, "/cluster/replication"))["partitions"] for asked in (first, second)
        ]
        assert [each["replicas"][1]["lag"] for each in found] == [5, 6, -1, 7]
        assert through_other == [found[0], found[1], found[3]]
        assert found[0] == {
            "topic": "orders",
            "partition": 0,
            "leader": "a",
            "epoch": 3,
            "state": "leading",
            "replicas": [
                {"name": name, "disk": "d" * 16, "isVoter": True, "flushedEnd": 100 - lag,
                 "lag": lag, "isLinked": True}
                for name, lag in (("a", 0), ("b", 5), ("c", 0))
            ],
            "committedEnd": 100,
            "factor": 3,
        }  # fmt: skip


async def test_replication_can_be_asked_of_one_topic(tmp_path):
    async with pair(tmp_path) as (first, second):
        first.cluster.replication = FakeReplication([partition("orders", 0, leader="a", lag=5)])
        second.cluster.replication = FakeReplication(
            [partition("orders", 1, leader="b", lag=6), partition("others", 0, leader="b", lag=7)]
        )

        def places(found: dict[str, Any]) -> list[tuple[str, int]]:
            return [(each["topic"], each["partition"]) for each in found["partitions"]]

        path = "/cluster/replication"
        assert places(await got(first, path)) == [("orders", 0), ("orders", 1), ("others", 0)]
        assert places(await got(first, path + "?topic=orders")) == [("orders", 0), ("orders", 1)]
        assert places(await got(first, path + "?topic=others")) == [("others", 0)]
        assert places(await got(first, path + "?topic=none")) == []


def test_of_one_topic_replication_is_shown_to_who_may_read_that(tmp_path):
    with secure_node(tmp_path) as node:
        reader = node.add("reader", read="mine")

        def status(path: str) -> int:
            return node.ask("GET", path, reader).status

        assert status("/cluster/replication?topic=mine") == 200
        assert status("/cluster/replication?topic=others") == 403
        assert status("/cluster/replication") == 403


async def test_what_a_leader_knows_of_very_many_partitions_arrives_whole(tmp_path):
    async with pair(tmp_path) as (first, second):
        first.cluster.replication, second.cluster.replication = (
            FakeReplication([partition("orders", n, leader="b", lag=lag) for n in range(1_000)])
            for lag in (-1, 6)
        )

        found = (await got(first, "/cluster/replication"))["partitions"]

        assert [each["replicas"][1]["lag"] for each in found] == [6] * 1_000


async def test_members_and_events_are_those_that_gossip_tells_of(tmp_path):
    async with pair(tmp_path) as (first, _):
        first.cluster.membership = KnownMembers("a", "b")

        members = (await got(first, "/cluster/members"))["members"]
        (event,) = (await got(first, "/cluster/events"))["events"]

        assert [(each["name"], each["isSelf"]) for each in members] == [("a", True), ("b", False)]
        assert event == {
            "timeMs": 7,
            "kind": "joined",
            "member": "b",
            "detail": "http://there up",
        }


async def got_sent(it, stream: str) -> None:
    async with raw_client(it.server.http_port) as client:
        answer = await client.post("/streams/send", {"streamId": stream, "message": 1})
    assert answer.status == 200, answer.body


async def test_a_node_that_replicates_nothing_has_nothing_to_move(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        assert await got(it, "/cluster/placement") == {"drains": [], "moves": []}
        for path, body in (
            ("/cluster/drain", {"node": "a"}),
            ("/cluster/replace", {"node": "a", "target": "b"}),
            ("/cluster/move", {"topic": "t", "partition": 0, "target": "b"}),
        ):
            answer = await client.post(path, body)
            assert (answer.status, answer.json()["error"]) == (501, "NotSupported")
