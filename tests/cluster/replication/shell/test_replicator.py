"""Three replicators in one loop: what was acknowledged is on all of them, whoever leads."""

import asyncio

import msgspec
import pytest

from tests.cluster.replication.shell.live_coordinator import LiveCoordinator, until
from tests.cluster.replication.shell.trio import LOG_ID, SHORT_LEASE_MS, Node, trio
from tests.node.hosts import batch_of
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.cluster_view import Placed
from waterclock.model.errors import Fenced, NotEnoughReplicas, Unavailable
from waterclock.model.ids import Epoch
from waterclock.model.message import Message
from waterclock.server.cluster.replication.node_replication import NodeReplication
from waterclock.storage.promises import KeptPromise


async def test_what_the_leader_takes_is_readable_everywhere_once_it_is_committed(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        for number in range(20):
            await leader.publish(str(number))

        expected = [str(number) for number in range(20)]
        await until(lambda: all(node.texts() == expected for node in it.nodes))
        assert {node.host.leader for node in it.nodes} == {leader.name}
        assert leader.replicator.leader_of("t", 0) == leader.name


async def test_a_leader_says_of_a_set_of_replicas_how_many_are_to_vote(tmp_path):
    async with trio(tmp_path, LiveCoordinator().client) as it:
        node = await it.leader()
        leader, running = node.replicator, node._task
        await until(lambda: len(leader.channels.up) == 2)
        assert running is not None
        replication = NodeReplication(leader, node.peers, running)
        (whole,) = replication.views()
        leader.set_factor(it.nodes[0].host, 4)
        (lacking,) = replication.views()

        assert (whole.voters, whole.factor, whole.is_under_replicated) == (3, 3, False)
        assert (lacking.voters, lacking.factor, lacking.is_under_replicated) == (3, 4, True)


async def test_only_who_leads_says_that_all_replicas_have_something(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        batch = batch_of(Message(b"", message_id=b"x"))
        await leader.host.publish(batch, acks="all")

        ends = [node.host.store.flushed_end for node in it.nodes]
        assert ends == [leader.host.store.end] * 3
        for node in it.others(leader):
            assert node.host.notify_flushed_by_all is not None
            heard: list[Exception | None] = []
            node.host.notify_flushed_by_all(1, heard.append)
            assert [type(error) for error in heard] == [Fenced]


async def test_a_replica_that_is_away_holds_up_those_who_want_it_on_all(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it, asyncio.TaskGroup() as tasks:
        leader = await it.leader()
        away = it.nodes[2]
        away.isolate()

        for_all = tasks.create_task(leader.publish("a", "all"))
        await leader.publish("b")
        repeated = tasks.create_task(leader.publish("a", "all"))
        again = await leader.publish("a")

        assert leader.texts() == ["b", "a"]  # a majority has both
        assert (for_all.done(), repeated.done(), again.new_count) == (False, False, 0)
        away.rejoin()
        assert [(await each).new_count for each in (for_all, repeated)] == [1, 0]
        assert away.host.store.flushed_end >= leader.host.store.end


async def test_who_waits_too_long_for_all_hears_who_is_missing_and_may_ask_again(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client, acks_all_ms=1) as it:
        leader = await it.leader()
        it.nodes[2].isolate()

        with pytest.raises(NotEnoughReplicas, match="has stored it, but not c within") as late:
            await leader.publish("a", "all")

        assert "t/0" in str(late.value)
        assert (await leader.publish("a")).new_count == 0
        assert leader.texts() == ["a"]


async def test_without_a_majority_only_who_wants_no_more_than_the_leader_is_answered(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it, asyncio.TaskGroup() as tasks:
        leader = await it.leader()
        await leader.publish("before", "all")
        for node in it.others(leader):
            node.isolate()

        waiting = [tasks.create_task(leader.publish(each, each)) for each in ("quorum", "all")]
        appended = await leader.publish("leader", "leader")

        assert appended.new_count == 1
        assert leader.host.store.flushed_end == leader.host.store.end
        assert leader.texts() == ["before"]  # nobody reads what is not committed
        assert not any(each.done() for each in waiting)
        for node in it.others(leader):
            node.rejoin()
        await asyncio.wait(waiting)
        assert leader.texts() == ["before", "leader", "quorum", "all"]


async def test_publishes_go_on_while_the_coordinator_is_away(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client, lease_ms=SHORT_LEASE_MS) as it:
        leader = await it.leader()
        live.fake.go_away()
        await until(lambda: leader.replicator.session.problem)

        await leader.publish("x")

        await until(lambda: all(node.texts() == ["x"] for node in it.nodes))
        live.fake.come_back()


async def test_links_that_break_and_come_back_lose_nothing(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        await leader.publish("before")
        for node in it.others(leader):
            node.cut()
        await leader.publish("after")

        await until(lambda: all(node.texts() == ["before", "after"] for node in it.nodes))


async def test_when_the_leader_is_gone_another_leads_and_nothing_acknowledged_is_lost(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        for number in range(5):
            await leader.publish(str(number))
        await leader.replicator.leave()
        leader.kill()

        successor = await it.leader(but=leader)
        await successor.publish("5")

        expected = [str(number) for number in range(6)]
        alive = it.others(leader)
        await until(lambda: all(node.texts() == expected for node in alive))
        assert successor.host.epoch > 1


async def test_a_node_that_leaves_has_another_lead_first_and_is_given_nothing_back(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        await leader.publish("0")

        await leader.replicator.hand_over()

        assert leader.host.role == "follower"
        successor = await it.leader(but=leader)
        assert not successor.replicator.placing._step_all()
        await successor.publish("1")
        await until(lambda: all(node.texts() == ["0", "1"] for node in it.nodes))


async def test_a_leader_without_others_need_not_wait_to_hand_over(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client, lease_ms=SHORT_LEASE_MS) as it:
        leader = await it.leader()
        for node in it.others(leader):
            node.kill()
        await until(lambda: not leader.replicator.channels.up)

        await leader.replicator.hand_over()

        assert leader.host.role == "leader"


async def test_a_log_that_left_the_leaders_is_cut_and_copied_anew(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client, lease_ms=SHORT_LEASE_MS) as it:
        leader = await it.leader()
        await leader.publish("kept")
        await until(lambda: all(node.texts() == ["kept"] for node in it.nodes))
        leader.isolate()
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(refused(leader, "lost"))
            live.fake.cut(leader.name)
            assert leader.replicator.session._lease is not None
            live.fake.store.revoke(leader.replicator.session._lease.lease)
            live.poke()
            successor = await it.leader(but=leader)
            await successor.publish("new")
            live.fake.heal(leader.name)
            leader.rejoin()
            await lost

        await until(lambda: all(node.texts() == ["kept", "new"] for node in it.nodes))
        assert leader.replicator.truncations == 1


async def refused(node: Node, text: str) -> None:
    """Publish what is never acknowledged."""
    with pytest.raises(Unavailable):
        await node.publish(text)


async def test_a_replicator_that_ends_begins_nothing_more(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        (hosted,) = leader.replicator.hosted
        timers = hosted.timers
        leader.kill()
        await asyncio.sleep(0)  # its tasks are told to end, and have not ended

        leader.replicator.run_timers(hosted)
        leader.replicator.begin_reopening(hosted)

        assert hosted.timers is timers


async def test_files_go_with_a_replica_that_was_removed_and_come_back_with_it(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        await leader.publish("x")
        await until(lambda: all(node.texts() == ["x"] for node in it.nodes))
        removed = it.nodes[2]
        await removed.host.rewriting.acquire()
        async with leader.removing(removed):
            await until(lambda: removed.replicator.hosted[0].core is None)
            assert removed.host.is_open  # a segment is being rewritten
            removed.host.rewriting.release()

        await leader.publish("y")
        # There are three nodes, and so there are to be three replicas: it is placed there again.
        await until(lambda: removed.host.is_open and removed.texts() == ["x", "y"])


@pytest.mark.parametrize("record", ["restored", "other disk", "candidate"])
async def test_files_stay_where_the_record_may_be_wrong(tmp_path, record):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        await leader.publish("x")
        node = it.nodes[2]
        await until(lambda: node.texts() == ["x"])
        hosted = node.replicator.hosted[0]
        assert hosted.core is not None
        assert hosted.core.record is not None
        known = hosted.core.record
        others = tuple(each for each in known.replicas if each != node.replicator.me)
        changed = msgspec.structs.replace(known, replicas=others)
        if record == "restored":
            node.replicator.promises.save({LOG_ID: KeptPromise(Epoch(known.epoch + 1))})
        elif record == "other disk":
            changed = msgspec.structs.replace(changed, replicas=(*others, "c:another"))
        else:
            changed = msgspec.structs.replace(changed, state="candidate")
        await hosted.leave(Placed(changed, Revision(1_000)))

        assert not node.host.is_open
        assert (node.folder / "log").exists()


async def test_one_that_does_not_lead_acknowledges_nothing_for_all(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        appended = await leader.publish("x")
        await until(lambda: all(node.texts() == ["x"] for node in it.nodes))

        for node in it.others(leader):  # it may have led when the publish came
            heard: list[Exception | None] = []
            node.host.notify_acks(appended.durable_at, heard.append, acks="all")
            assert [type(error) for error in heard] == [Fenced]
