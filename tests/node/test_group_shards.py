"""Groups of several nodes: each has one home, and goes on at another."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

from tests.cluster.replication.shell.live_coordinator import until
from tests.node.consuming import Member
from tests.node.fake_replication import META_LOG, FakeCluster, ReplicatedHosts, joined
from tests.node.hosts import batch_of
from waterclock.log.recovery import Damage
from waterclock.model.config import Config
from waterclock.model.errors import Fenced, NotFound, NotLeader, Unavailable
from waterclock.model.ids import Offset
from waterclock.model.message import Message
from waterclock.model.units import DAY_MS
from waterclock.model.views import TopicSettings
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.groups.groups import Groups
from waterclock.node.groups.records import GROUP, PROGRESS, GroupRecord
from waterclock.node.groups.session import Ending
from waterclock.node.groups.shards import GROUPS_TOPIC, SETTINGS, GroupShards, shard_of
from waterclock.node.metadata import Metadata
from waterclock.node.partition.remote_log import LogAnswer, LogQuery
from waterclock.node.topics import RECORD, TRASH, TopicRecord
from waterclock.server.statuses import session_error

TEST_S = 20


@dataclass
class Home:
    """A node that may be home to groups."""

    hosts: ReplicatedHosts
    groups: Groups
    shards: GroupShards

    async def join(self, member: str = "m", group: str = "g") -> Member:
        return Member(await self.groups.open_session("t", group, member=member))


@dataclass
class Homes:
    """Two nodes with a topic `t`; `a` leads everything at first."""

    cluster: FakeCluster
    a: Home
    b: Home

    async def publish(self, *values: bytes) -> None:
        leader = {"a": self.a, "b": self.b}[self.cluster.leader]
        host = leader.hosts.topics.get("t").partition(0)
        await host.publish(batch_of(*map(Message, values)), allow_duplicate=True)

    async def move(self, node: str) -> None:
        self.cluster.move(node)
        await self.cluster.settled()


@asynccontextmanager
async def homes(tmp_path) -> AsyncIterator[Homes]:
    cluster = FakeCluster("a")
    async with AsyncExitStack() as running:
        made = []
        for name in "ab":
            hosts = await running.enter_async_context(joined(tmp_path / name, cluster, name))
            dead_letters = DeadLetters(hosts.topics, hosts.metadata, hosts.clock)
            shards = GroupShards(hosts.clock)
            groups = Groups(
                hosts.topics, hosts.metadata, dead_letters, Config(), hosts.clock, shards
            )
            task = hosts.tasks.create_task(groups.run())
            running.callback(task.cancel)
            await groups.open()
            made.append(Home(hosts, groups, shards))
        await made[0].hosts.topics.ensure_own(GROUPS_TOPIC, SETTINGS)
        await made[0].hosts.topics.create("t", TopicSettings())
        await cluster.settled()
        yield Homes(cluster, *made)
        for home in made:
            await home.groups.close()
            assert home.hosts.failures == []


async def received(member: Member, count: int) -> list[bytes]:
    """Return what a member gets, once there is so much of it."""
    while len(member.values) < count:
        if not member.take():
            await member.session.ready()
    return member.values


async def test_a_group_is_served_by_the_leader_of_its_shard_alone(tmp_path):
    async with homes(tmp_path) as it:
        await it.publish(b"1", b"2")
        assert await received(await it.a.join(), 2) == [b"1", b"2"]

        with pytest.raises(NotLeader, match="a leads it"):
            await it.b.join()
        with pytest.raises(NotLeader):
            it.b.groups.get("t", "g")
        assert it.b.groups.list() == []
        with pytest.raises(NotFound):
            it.a.groups.get("t", "unknown")


async def test_a_group_goes_on_at_its_new_home_with_what_was_saved(tmp_path):
    async with homes(tmp_path) as it:
        await it.publish(b"1", b"2", b"3")
        member = await it.a.join()
        await received(member, 3)
        first = it.a.groups.get("t", "g").partitions[0].committed
        member.ack(*[place[1] for place in member.offsets[:2]])
        await it.a.groups.save_all()
        generation = it.a.groups.get("t", "g").generation

        await it.move("b")
        again = await it.b.join()

        assert member.session.ending is Ending.MOVED
        assert await received(again, 1) == [b"3"]
        assert it.b.groups.get("t", "g").generation > generation
        assert it.b.groups.get("t", "g").partitions[0].committed == first + 2


async def test_a_topic_goes_and_another_comes_though_its_groups_cannot_be_forgotten(tmp_path):
    async with homes(tmp_path) as it:
        await it.a.join()
        topics = it.a.hosts.topics
        gone = topics.get("t").partition(0)
        shard = topics.get(GROUPS_TOPIC).partition(shard_of("g")).store
        log_ids = (bytes(range(16)).hex(),)
        made = TopicRecord(folder="later-1", settings=TopicSettings(), log_ids=log_ids)
        it.cluster.is_stuck = True
        # Committed together: who is told of the first must be told of the second.
        records = {RECORD + "t": None, RECORD + "u": msgspec.json.encode(made)}
        it.a.hosts.metadata.write(records)
        it.a.hosts.metadata.store.sync()
        shard.faults.append(Damage(0, 0, Offset(0), Offset(0), "rot"))
        it.cluster.is_stuck = False
        it.cluster.replicate(META_LOG)
        shard.faults.clear()
        await until(lambda: not gone.is_open)
        await it.cluster.settled()

        for home in (it.a, it.b):
            assert home.hosts.topics.find("t") is None
            assert home.hosts.topics.get("u").partition(0).is_open
        assert it.a.groups.list() == []


async def test_members_of_a_home_that_was_lost_are_told_to_come_again(tmp_path):
    async with homes(tmp_path) as it:
        member = await it.a.join()
        await it.move("b")

        assert member.session.ending is Ending.MOVED
        assert isinstance(session_error(Ending.MOVED, "t"), Fenced)
        with pytest.raises(NotLeader):
            await it.a.join()


async def test_a_home_that_was_lost_saves_nothing_more(tmp_path):
    async with homes(tmp_path) as it:
        await it.publish(b"1", b"2")
        member = await it.a.join()
        await received(member, 2)
        await it.a.groups.save_all()
        host = it.a.groups._hosts["t", "g"]
        before = dict(host.metadata.items(""))
        await it.move("b")

        member.ack(0, 1)
        await it.a.groups.save_progress([host])
        await it.a.groups.save_generation(host, 99)

        assert dict(host.metadata.items("")) == before


async def test_a_group_comes_back_to_a_home_that_it_had_before(tmp_path):
    async with homes(tmp_path) as it:
        await it.publish(b"1", b"2", b"3", b"4")
        member = await it.a.join()
        await received(member, 4)
        member.ack(member.offsets[0][1])
        await it.a.groups.save_all()
        await it.move("b")
        member = await it.b.join()
        await received(member, 3)
        member.ack(member.offsets[0][1])
        await it.b.groups.save_all()
        generation = it.b.groups.get("t", "g").generation
        await it.move("a")

        assert await received(await it.a.join(), 2) == [b"3", b"4"]
        assert it.a.groups.get("t", "g").generation > generation


async def test_a_member_that_joins_while_the_home_is_lost_hears_of_it(tmp_path):
    async with homes(tmp_path) as it:
        await it.a.join()
        it.cluster.is_stuck = True
        joining = asyncio.ensure_future(it.a.join("n"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not joining.done()
        it.a.hosts.topics.get(GROUPS_TOPIC).partition(shard_of("g")).step_down("a test says so")

        with pytest.raises(Unavailable):
            await joining
        it.cluster.go_on()
        await it.move("b")
        await it.b.join("n")
        assert it.b.groups.get("t", "g").members == ("n",)


async def test_groups_are_read_from_any_replica(tmp_path):
    async with homes(tmp_path) as it:
        topic_logs = [bytes.fromhex(log_id) for log_id in it.a.hosts.topics.get("t").log_ids]
        it.cluster.move("b", but=topic_logs)
        it.cluster.leader = "a"
        await it.cluster.settled()
        member = await it.b.join()
        await it.publish(b"1", b"2")

        assert it.b.hosts.topics.get("t").partition(0).role == "follower"
        assert await received(member, 2) == [b"1", b"2"]


async def test_a_log_opened_anew_is_read_on_by_the_same_session(tmp_path):
    async with homes(tmp_path) as it:
        topic_logs = [bytes.fromhex(log_id) for log_id in it.a.hosts.topics.get("t").log_ids]
        it.cluster.move("b", but=topic_logs)
        it.cluster.leader = "a"
        await it.cluster.settled()
        member = await it.b.join()
        await it.publish(b"1")
        await received(member, 1)
        await it.publish(b"2")
        await it.cluster.settled()
        for _ in range(20):
            await asyncio.sleep(0)
        assert member.session.unsent_messages == 1
        host = it.b.hosts.topics.get("t").partition(0)
        host.close_replica("it is cut")
        receiving = asyncio.ensure_future(received(member, 2))
        await host.open_replica()
        for _ in range(20):  # nobody has told yet what of it is committed
            await asyncio.sleep(0)
        assert not receiving.done()
        it.cluster.go_on()

        # Also if nothing more is published that would have it look again.
        assert await receiving == [b"1", b"2"]


class SlowLeader:
    """The leader, which answers how far it reaches only after something has happened."""

    def __init__(self, happens: Callable[[], Awaitable[None]]) -> None:
        self._happens = happens

    async def read(self, query: LogQuery) -> LogAnswer:
        await self._happens()
        return LogAnswer(0, 0, 0, b"", 0, [], 0, ())


async def made_while(it: Homes, happens: Callable[[], Awaitable[None]]) -> Member:
    """Have a group made on a node that follows the topic while something happens there."""
    topic_logs = [bytes.fromhex(log_id) for log_id in it.a.hosts.topics.get("t").log_ids]
    it.cluster.move("b", but=topic_logs)
    it.cluster.leader = "a"
    await it.cluster.settled()
    it.b.hosts.topics.get("t").partition(0).reads = SlowLeader(happens)
    return await it.b.join()


async def test_a_group_reads_a_log_that_was_opened_anew_while_the_group_was_made(tmp_path):
    async with homes(tmp_path) as it:

        async def opened_anew() -> None:
            host = it.b.hosts.topics.get("t").partition(0)
            host.close_replica("it is cut")
            await host.open_replica()
            it.cluster.go_on()

        member = await made_while(it, opened_anew)
        await it.publish(b"1")

        async with asyncio.timeout(TEST_S):
            assert await received(member, 1) == [b"1"]


async def test_a_group_has_a_partition_that_was_added_while_the_group_was_made(tmp_path):
    async with homes(tmp_path) as it:

        async def grown() -> None:
            await it.b.hosts.topics.update("t", TopicSettings(partitions=2))
            await it.cluster.settled()

        await made_while(it, grown)

        assert len(it.b.groups.get("t", "g").partitions) == 2


async def test_groups_of_a_deleted_topic_are_forgotten_also_by_a_later_home(tmp_path):
    async with homes(tmp_path) as it:
        member = await it.a.join()
        records = it.a.groups._hosts["t", "g"].metadata
        assert records.get(f"{GROUP}t/g") is not None
        await it.a.hosts.topics.delete("t")
        assert member.session.ending is Ending.TOPIC_GONE
        await it.cluster.until(lambda: not records.items(GROUP))

        assert records.items(PROGRESS) == []
        await it.a.hosts.topics.create("t", TopicSettings())
        await it.move("b")
        assert it.b.groups.list() == []


async def test_a_home_that_has_not_heard_of_a_topic_yet_keeps_its_groups(tmp_path):
    async with homes(tmp_path) as it:
        await it.publish(b"1", b"2")
        member = await it.a.join()
        await received(member, 2)
        member.ack(member.offsets[0][1])
        await it.a.groups.save_all()
        await it.cluster.settled()
        topics = it.b.hosts.topics
        topic = topics._topics.pop("t")
        await it.move("b")
        assert it.b.groups.list() == []

        topics._topics["t"] = topic
        topics._tell_opened(topic, 0)

        assert await received(await it.b.join(), 1) == [b"2"]


async def test_groups_of_a_topic_that_was_deleted_elsewhere_are_forgotten(tmp_path):
    async with homes(tmp_path) as it:
        await it.a.join()
        await it.cluster.settled()
        topic = it.b.hosts.topics._topics.pop("t")
        await it.move("b")
        (records,) = (each for each in it.b.shards.led() if each.items(GROUP))

        # As long as nobody says that it was deleted, this node may only be cut off from `__meta`.
        it.b.groups.forget_orphans()
        it.b.hosts.clock.advance(30 * DAY_MS)
        it.b.groups.forget_orphans()
        assert records.items(GROUP) != []

        await it.b.hosts.metadata.put(f"{TRASH}{topic.folder}", b"1")
        it.b.groups.forget_orphans()
        assert records.items(GROUP) == []


async def made_again(it: Homes) -> Metadata:
    """Have `b` be home of the group of a topic that was made anew, which `b` has not heard of."""
    await it.a.join()
    records = it.a.groups._hosts["t", "g"].metadata
    value = records.get(f"{GROUP}t/g")
    assert value is not None
    record = msgspec.json.decode(value, type=GroupRecord)
    old = msgspec.structs.replace(record, folder="t-other")
    await records.put(f"{GROUP}t/g", msgspec.json.encode(old))
    await it.move("b")
    assert it.b.groups.list() == []
    (found,) = (each for each in it.b.shards.led() if each.items(GROUP))
    return found


async def test_a_group_of_a_topic_that_was_made_again_begins_anew(tmp_path):
    async with homes(tmp_path) as it:
        records = await made_again(it)
        await it.b.hosts.metadata.put(f"{TRASH}t-other", b"1")
        it.b.groups.forget_orphans()
        assert records.get(f"{GROUP}t/g") is None

        await it.b.join()
        assert records.get(f"{GROUP}t/g") is not None


async def test_a_group_that_is_made_anew_in_the_turn_in_which_the_old_one_goes_stays(tmp_path):
    async with homes(tmp_path) as it:
        records = await made_again(it)
        await it.b.hosts.metadata.put(f"{TRASH}t-other", b"1")
        topics = it.b.hosts.topics

        joining = asyncio.ensure_future(it.b.join())
        topics._tell_opened(topics.get("t"), 0)
        await joining
        await it.cluster.settled()

        kept = [key for prefix in (GROUP, PROGRESS) for key, _ in records.items(prefix)]
        assert kept == [f"{GROUP}t/g", f"{PROGRESS}t/g/0"]


async def test_a_group_that_is_made_anew_has_nothing_of_the_old_one(tmp_path):
    async with homes(tmp_path) as it:
        records = await made_again(it)
        await records.put(f"{PROGRESS}t/g/5", b"of a partition that the new topic may get")
        await it.b.hosts.metadata.put(f"{TRASH}t-other", b"1")

        await it.b.join()

        assert [key for key, _ in records.items(PROGRESS)] == [f"{PROGRESS}t/g/0"]


async def test_a_home_that_has_not_heard_that_a_topic_was_made_anew_keeps_its_groups(tmp_path):
    async with homes(tmp_path) as it:
        records = await made_again(it)
        before = records.get(f"{GROUP}t/g"), records.items(PROGRESS)
        it.b.groups.forget_orphans()

        with pytest.raises(Unavailable, match="made anew"):
            await it.b.join()

        await it.cluster.settled()
        assert (records.get(f"{GROUP}t/g"), records.items(PROGRESS)) == before


async def test_groups_of_a_node_that_was_alone_are_adopted_once(tmp_path):
    async with homes(tmp_path) as it:
        await it.a.join()
        records = it.a.groups._hosts["t", "g"].metadata
        before = {key: value for key, value in records.items("") if key != "adopted"}
        # As if the records were still where a single node has them.
        await it.a.hosts.metadata.put_many({**before, f"{PROGRESS}t.dlq/__redrive/0": b"other"})
        await records.put_many({key: None for key, _ in records.items("")})
        await it.move("b")
        assert [group.group for group in it.b.groups.list()] == ["g"]

        await it.b.groups.delete("t", "g")
        await it.move("a")

        assert it.a.groups.list() == []


def test_the_shard_of_a_group_never_changes():
    assert [shard_of(group) for group in ("g", "orders", "a-b.c")] == [6, 1, 0]
