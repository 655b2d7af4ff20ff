"""Three nodes on a real etcd, topics of which each has a part only: all of them answer for all."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

import waterclock
from tests.cluster.coordinator.etcd_servers import EtcdMember
from tests.cluster.joined import config_of
from tests.cluster.running_nodes import RunningNode, replicated_node
from tests.server.http_client import raw_client
from waterclock.model.views import ScheduledMessage
from waterclock.node.groups.shards import shard_of
from waterclock.server.addresses import Addresses

pytestmark = pytest.mark.etcd

NAMES = "abc"
PARTITIONS = 6
COUNT = 60
TEST_S = 30


class Nodes:
    """Nodes in a thread of their own, for tests that each have a loop."""

    def __init__(self, folder, etcd: EtcdMember) -> None:
        self._cluster = {"etcd": (etcd.endpoint,), "expect": len(NAMES)}
        self._folder = folder
        self._end = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._addresses: dict[str, Future[Addresses]] = {name: Future() for name in NAMES}
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._nodes())
        except BaseException as error:
            for address in self._addresses.values():
                if not address.done():
                    address.set_exception(error)
            raise
        finally:
            self._loop.close()

    async def _nodes(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in NAMES:
                tasks.create_task(self._node(name))

    async def _node(self, name: str) -> None:
        config = config_of(self._folder, name, cluster=self._cluster)
        async with replicated_node(config) as (_, server):
            self._addresses[name].set_result(server.addresses)
            await self._end.wait()

    def address(self, name: str) -> Addresses:
        return self._addresses[name].result(TEST_S)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self.thread.join()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, member: EtcdMember) -> Iterator[Nodes]:
    found = Nodes(tmp_path_factory.mktemp("nodes"), member)
    found.thread.start()
    for name in NAMES:
        found.address(name)
    yield found
    found.end()


@pytest.fixture(scope="module", params=[1, 2], ids=["one copy", "two copies"])
def topic(nodes: Nodes, request: pytest.FixtureRequest) -> str:
    """Return a topic with messages, and no copy of all of it anywhere."""
    name = f"orders-{request.param}"

    async def fill() -> None:
        async with asked(nodes, "a") as client:
            await client.topics.create(
                name, partitions=PARTITIONS, replication_factor=request.param
            )
            for number in range(COUNT):
                await client.publish(name, b"%d" % number, key=b"%d" % number)
            views = [each for each in await client.cluster.replication() if each.topic == name]
            assert [len(view.replicas) for view in views] == [request.param] * PARTITIONS
            assert {view.leader for view in views} == set(NAMES)

    asyncio.run(fill())
    return name


@asynccontextmanager
async def asked(nodes: Nodes, name: str) -> AsyncIterator[waterclock.Client]:
    """Connect to one node and no other."""
    async with (
        asyncio.timeout(TEST_S),
        waterclock.connect(nodes.address(name).grpc) as client,
    ):
        yield client


def groups(prefix: str) -> list[str]:
    """Return groups of many shards: some have their home on each node."""
    found = {shard_of(f"{prefix}{number}"): f"{prefix}{number}" for number in range(100)}
    return [found[shard] for shard in sorted(found)][:6]


def numbers() -> set[int]:
    return set(range(COUNT))


async def test_a_group_is_served_all_partitions_wherever_its_home_is(nodes, topic):
    for group in groups("g"):
        async with asked(nodes, "b") as client, client.subscribe(topic, group=group) as messages:
            found = set()
            async for message in messages:
                found.add(int(message.value or b""))
                message.ack()
                if len(found) == COUNT:
                    break
        assert found == numbers()


async def test_a_group_that_waits_is_woken_and_gets_again_what_failed(nodes, topic):
    async with (
        asked(nodes, "c") as client,
        client.subscribe(topic, group="late", start="latest") as messages,
    ):
        for number in range(PARTITIONS):
            await client.publish(topic, b"late", key=b"late-%d" % number)
        for _ in range(PARTITIONS):
            message = await anext(messages)
            assert (message.value, message.attempt) == (b"late", 1)
            message.nack(retry_in=timedelta(milliseconds=1))
        again = [await anext(messages) for _ in range(PARTITIONS)]
        assert {(message.value, message.attempt) for message in again} == {(b"late", 2)}
        for message in again:
            message.ack()


@pytest.mark.parametrize("name", NAMES)
async def test_any_node_replays_all_partitions(nodes, topic, name):
    async with asked(nodes, name) as client:
        begun = await client.topics.find_offsets(topic, timedelta(hours=1))
        assert begun == dict.fromkeys(range(PARTITIONS), 0)
        places = [(m.partition, m.offset, m.value or b"") async for m in client.replay(topic)]
        every = [value for _, _, value in places]
        assert {int(value) for value in every if value != b"late"} == numbers()
        recent = [m.value or b"" async for m in client.replay(topic, since=timedelta(hours=1))]
        assert sorted(recent) == sorted(every)
        named = [m.value or b"" async for m in client.replay(topic, name=f"by-{topic}-{name}")]
        assert sorted(named) == sorted(every)
        some = [m async for m in client.replay(topic, offset=1, count=2)]
        # A leader begins with a frame of its own, and a slow machine may have had another before.
        later = {n: [at for number, at, _ in places if number == n and at >= 1] for n in begun}
        assert [(m.partition, m.offset) for m in some] == [
            (number, offset) for number in range(PARTITIONS) for offset in later[number][:2]
        ]


async def test_dead_letters_of_all_partitions_are_listed_and_redriven_at_any_node(nodes, topic):
    name = f"{topic}-bad"
    async with asked(nodes, "a") as client:
        replicas = int(topic[-1])
        await client.topics.create(name, partitions=PARTITIONS, replication_factor=replicas)
        await client.topics.create(
            f"{name}.dlq", partitions=PARTITIONS, replication_factor=replicas
        )
        for number in range(12):
            await client.publish(name, b"%d" % number, key=b"%d" % number)
        async with client.subscribe(name, group="fails") as messages:
            for _ in range(12):
                (await anext(messages)).reject()
    for each in NAMES:
        async with asked(nodes, each) as client:
            listed = [dead async for dead in client.dead_letters.list(name, page_size=5)]
            assert {int(dead.value or b"") for dead in listed} == set(range(12))
    async with asked(nodes, "b") as client:
        assert await client.dead_letters.redrive(name) == 12
        assert await client.dead_letters.count(name) == 0
        values = [m.value or b"" async for m in client.replay(name)]
        assert sorted(map(int, values)) == sorted([*range(12), *range(12)])


@pytest.mark.parametrize("name", NAMES)
async def test_any_node_hands_out_frames_and_tells_how_far_each_partition_reaches(
    nodes, topic, name
):
    async with asked(nodes, name) as client, raw_client(nodes.address(name).http_port) as http:
        ends = (await http.get(f"/topics/{topic}/ends")).json()["partitions"]
        known = {each["partition"]: each["endOffset"] for each in ends}
        assert sum(known.values()) >= COUNT
        assert {each["startOffset"] for each in ends} == {0}
        for number, end in known.items():
            fetched = await client.fetch(topic, number, 0)
            # The epoch of the leader stands in front.
            assert (fetched.next_offset, fetched.table().num_rows) == (end, end - 1)
            first = fetched.table().slice(0, 1).to_pylist()[0]
            found = await client.find_messages(topic, number, first["key"])
            assert [each.offset for each in found.messages] == [first["offset"]]
            assert (found.looked_at, found.next_offset, found.is_at_end) == (end - 1, end, True)
            # A copy that has nothing there may be late, and so its leader is asked.
            assert (await client.fetch(topic, number, end)).next_offset == end
            path = f"/topics/{topic}/partitions/{number}/frames?offset="
            empty, beyond = await http.get(f"{path}{end}"), await http.get(f"{path}{end + 1}")
            assert (empty.status, empty.body) == (200, b"")
            assert (beyond.status, beyond.json()["end"]) == (404, end)

        known_ends = ",".join(f"{number}:{end}" for number, end in known.items())
        path = f"/topics/{topic}/ends?beyond={known_ends}&waitMs=20000"
        http.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await client.publish(topic, b"late", partition=5)
        news = (await http.answer()).json()["partitions"]
        assert news[5]["endOffset"] == known[5] + 1
        assert "problem" not in news[0]


async def test_scheduled_messages_of_all_leaders_are_one_list_at_any_node(nodes, topic):
    later = f"{topic}-later"
    async with asked(nodes, "a") as client:
        await client.topics.create(later, partitions=PARTITIONS, replication_factor=int(topic[-1]))
        for number in range(20):
            await client.publish(
                later, b"%d" % number, key=b"%d" % number, at=timedelta(hours=1 + number)
            )
    listed: list[ScheduledMessage] = []
    for name in NAMES:
        async with asked(nodes, name) as client, raw_client(nodes.address(name).http_port) as http:
            listed = [each async for each in client.scheduled(later, page_size=3, with_values=True)]
            assert [int(each.value or b"") for each in listed] == list(range(20))
            keys: list[str] = []
            page = ""
            while len(keys) < 20:
                answer = (await http.get(f"/topics/{later}/scheduled?limit=7{page}")).json()
                keys += [each["key"] for each in answer["scheduled"]]
                page = f"&page={answer['nextPage']}"
            assert (keys, page) == ([str(number) for number in range(20)], "&page=")
            assert sum(each.count for each in await client.count_scheduled(later)) == 20
            # Of all topics: those of others may be among them.
            everything = [each async for each in client.scheduled(page_size=3)]
            places = [(e.message.due_ms, e.topic, e.partition, e.offset) for e in everything]
            assert places == sorted(places)
            mine = [each for each in everything if each.topic == later]
            assert [each.offset for each in mine] == [each.offset for each in listed]
            by_topic = {each.topic: each for each in await client.count_scheduled_by_topic()}
            assert (by_topic[later].count, by_topic[later].next_due) == (20, listed[0].due)
            counted = (await http.get("/scheduled/count")).json()["topics"]
            assert [each["topic"] for each in counted] == [*by_topic]

    async with asked(nodes, "b") as client:
        ids = [each.message_id for each in listed]
        moved = await client.reschedule_many(later, ids[:3], timedelta(hours=50))
        assert [each.reached for each in moved] == [1, 1, 1]
        cancelled = await client.cancel_many(later, [*ids[:3], b"nobody's"])
        assert [each.reached for each in cancelled] == [1, 1, 1, 0]
        counted = await client.cancel_where(later, everything=True)
        assert (counted.matched, counted.cancelled) == (17, 17)
        assert [each async for each in client.scheduled(later)] == []


@pytest.mark.parametrize("name", NAMES)
async def test_topics_and_groups_are_told_whole_by_any_node(nodes, topic, name):
    async with asked(nodes, name) as client, raw_client(nodes.address(name).http_port) as http:
        one = await client.topics.get(topic)
        assert sum(each.end_offset for each in one.partitions) >= COUNT
        assert {each.problem for each in one.partitions} == {""}
        same = next(each for each in await client.topics.list() if each.name == topic)
        assert same.partitions == one.partitions
        shown = (await http.get(f"/topics/{topic}")).json()
        assert [each["endOffset"] for each in shown["partitions"]] == [
            each.end_offset for each in one.partitions
        ]
        listed = (await http.get("/topics")).json()["topics"]
        listed_one = next(each for each in listed if each["topic"] == topic)
        assert listed_one | {"effective": shown["effective"]} == shown  # a list does not tell it
        for group in groups(name):
            async with client.subscribe(topic, group=group) as messages:
                message = await anext(messages)
                info = await client.groups.get(topic, group)
                assert len(info.partitions) == PARTITIONS
                message.give_back()
        found = {each.group for each in await client.groups.list(topic)}
        shown_groups = (await http.get(f"/topics/{topic}/groups")).json()["groups"]
        assert found == {each["group"] for each in shown_groups}
        assert found >= set(groups(name))


async def test_what_is_committed_is_read_when_a_node_with_copies_has_gone(tmp_path, member):
    etcd = {"etcd": (member.endpoint,), "expect": len(NAMES), "name": "other"}
    async with asyncio.timeout(TEST_S), asyncio.TaskGroup() as tasks:
        running = [RunningNode(config_of(tmp_path, name, cluster=etcd)) for name in NAMES]
        ends = [tasks.create_task(node.run()) for node in running]
        addresses = [await node.address for node in running]
        async with waterclock.connect(addresses) as client:
            await client.topics.create("orders", partitions=PARTITIONS, replication_factor=2)
            for number in range(COUNT):
                await client.publish("orders", b"%d" % number, key=b"%d" % number)

            running[0].end()
            await ends[0]

            for group in groups("g"):
                async with client.subscribe("orders", group=group) as messages:
                    found = {int((await anext(messages)).value or b"") for _ in range(COUNT)}
                assert found == numbers()
        for node in running:
            node.end()
