"""A replica that lacks what its leader has rewritten copies the segments, and goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np

from tests.cluster.replication.shell.live_coordinator import LiveCoordinator, until
from tests.cluster.replication.shell.trio import LEASE_MS, SHORT_LEASE_MS, Node, Trio, trio
from tests.node.hosts import batch_of
from waterclock.model.errors import StorageFull
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.units import HOUR_MS
from waterclock.server.cluster.replication import installs
from waterclock.storage.installation.log_copy import CopyWriter
from waterclock.storage.replica_log import ReplicaLog


@asynccontextmanager
async def lagging(tmp_path, *, lease_ms: int = LEASE_MS) -> AsyncIterator[tuple[Trio, Node, Node]]:
    """Three nodes, the leader, and one that was away while all that it has was rewritten."""
    live = LiveCoordinator()
    async with trio(tmp_path, live.client, lease_ms=lease_ms) as it:
        leader = await it.leader()
        await leader.publish("old")
        due_ms = Millis(leader.host.clock.now_ms() + HOUR_MS)
        scheduled = Message(b"", message_id=b"cancelled", due_ms=due_ms)
        offset = np.array((await leader.host.publish(batch_of(scheduled))).offsets)
        await until(lambda: all(node.texts() == ["old"] for node in it.nodes))
        away = it.others(leader)[1]
        await until(lambda: len(away.host.store.open_scheduled()[0]) == 1)
        away.isolate()
        await until(lambda: len(leader.replicator.channels.up) == 1)
        leader.host.store.cancel(offset, now_ms=leader.host.clock.now_ms())
        await leader.publish("gone")
        leader.drop_below(leader.host.store.end)
        await leader.publish("new")
        assert leader.texts() == ["new"]
        yield it, leader, away


async def test_a_replica_that_lags_behind_a_rewrite_copies_segments_and_then_frames(tmp_path):
    async with lagging(tmp_path) as (_, leader, away):
        away.rejoin()

        await until(lambda: away.texts() == ["new"])
        assert away.replicator.replacements == 1
        counts = away.replicator.installs.counts
        assert (counts.begun, counts.finished, counts.failed) == (1, 1, 0)
        assert counts.received_bytes > 0
        assert away.host.store.start == leader.host.store.start
        await leader.publish("newer")
        await until(lambda: away.texts() == ["new", "newer"])
        # The cancel was compacted away, and so is what it cancelled.
        assert len(away.host.store.open_scheduled()[0]) == 0
        assert not [name for name in (away.folder / "log").iterdir() if name.suffix == ".install"]


async def test_a_replica_that_copied_segments_knows_the_ids_in_them_when_it_leads(tmp_path):
    async with lagging(tmp_path, lease_ms=SHORT_LEASE_MS) as (it, leader, away):
        texts = ("old", "gone", "new")  # of the first two, only their ids are left
        first = [(await leader.publish(text)).offsets[0] for text in texts]
        away.rejoin()
        await until(lambda: away.texts() == ["new"])
        (third,) = [node for node in it.others(leader) if node is not away]
        third.isolate()
        await until(lambda: len(leader.replicator.channels.up) == 1)
        last = (await leader.publish("last")).offsets[0]  # which the third does not have
        leader.kill()
        third.rejoin()

        await until(lambda: away.host.is_led)
        again = [(await away.publish(text)).offsets[0] for text in (*texts, "last")]
        assert again == [*first, last]


async def test_a_stream_that_a_rewrite_overtakes_is_begun_anew(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader = await it.leader()
        slow = it.others(leader)[1]
        await leader.publish("a")
        await until(lambda: all(node.texts() == ["a"] for node in it.nodes))
        streams, held = leader.replicator.streams, list[Callable[[], None]]()
        real = streams.add

        def add(hosted, stream):
            if stream.to == slow.replicator.me:
                held.append(lambda: real(hosted, stream))
            else:
                real(hosted, stream)

        streams.add = add  # type: ignore[method-assign]
        await leader.publish("b")
        leader.drop_below(leader.host.store.end)
        streams.add = real  # type: ignore[method-assign]
        for stream in held:
            stream()
        await leader.publish("c")

        await until(lambda: slow.texts() == ["c"])
        assert slow.replicator.replacements == 1


async def test_a_copy_that_a_broken_link_ends_is_begun_again(tmp_path, monkeypatch):
    monkeypatch.setattr(installs, "READ_BYTES", 100)
    ends = list[CopyWriter]()
    real = CopyWriter.write

    async with lagging(tmp_path) as (_, _, away):

        def write(writer: CopyWriter, data) -> None:
            if not ends:
                ends.append(writer)
                loop.call_soon_threadsafe(away.cut)
            real(writer, data)

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(CopyWriter, "write", write)
        away.rejoin()
        await until(lambda: away.texts() == ["new"])


async def test_a_disk_without_room_for_segments_is_told_and_tried_again(tmp_path, monkeypatch):
    real, is_full = CopyWriter.__init__, [True]

    def full(writer: CopyWriter, *args, **named) -> None:
        if is_full:
            raise StorageFull("999 bytes wanted")
        real(writer, *args, **named)

    monkeypatch.setattr(CopyWriter, "__init__", full)
    async with lagging(tmp_path) as (_, _, away):
        away.rejoin()
        await until(lambda: "999 bytes wanted" in away.replicator.hosted[0].problem)
        assert away.texts() == ["old"]
        is_full.clear()

        await until(lambda: away.texts() == ["new"])


async def test_what_was_copied_goes_if_it_cannot_take_the_place_of_the_log(tmp_path, monkeypatch):
    real, tried = ReplicaLog.install, list[ReplicaLog]()

    def full(log: ReplicaLog, intent) -> None:
        tried.append(log)
        if len(tried) == 1:
            raise StorageFull("999 bytes wanted")
        real(log, intent)

    monkeypatch.setattr(ReplicaLog, "install", full)
    async with lagging(tmp_path) as (_, _, away):
        counts = away.replicator.installs.counts
        away.rejoin()
        await until(lambda: counts.failed == 1)
        assert not [name for name in (away.folder / "log").iterdir() if name.suffix == ".install"]
        assert "999 bytes wanted" in away.replicator.hosted[0].problem
        assert away.texts() == ["old"]

        await until(lambda: away.texts() == ["new"])
        assert (len(tried), counts.begun, counts.finished) == (2, 2, 1)


async def test_who_does_not_lead_gives_no_segments(tmp_path):
    async with lagging(tmp_path) as (it, leader, away):
        follower = next(node for node in it.others(leader) if node is not away)
        hosted = follower.replicator.hosted[0]
        assert hosted.leading_log(hosted.epoch) is None
        hosted = leader.replicator.hosted[0]
        assert hosted.leading_log(hosted.epoch) is not None
        assert hosted.leading_log(hosted.epoch - 1) is None  # type: ignore[arg-type]


async def test_a_replica_that_is_new_after_retention_copies_what_is_left_and_votes(tmp_path):
    live = LiveCoordinator()
    async with trio(tmp_path, live.client) as it:
        leader, new = await it.leader(), it.nodes[2]
        await leader.publish("old")
        await until(lambda: all(node.texts() == ["old"] for node in it.nodes))
        leader.drop_below(leader.host.store.end)
        await leader.publish("new")
        hosted, me = leader.replicator.hosted[0], new.replicator.me
        assert hosted.core is not None
        async with leader.removing(new):
            pass

        # It is placed there again: there are three nodes.
        await until(lambda: new.texts() == ["new"])
        core = hosted.core
        await until(lambda: core.record is not None and me in core.record.replicas)
        assert new.replicator.replacements >= 1
        assert new.host.replica is not None
        assert leader.host.replica is not None
        assert new.host.replica.stream_start == leader.host.replica.stream_start > 0
