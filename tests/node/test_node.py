"""A whole node in its loop: what goes wrong in one place does not end the rest."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from tests.kit.clock import ManualClock
from tests.node.hosts import batch_of, config_in
from tests.node.recurring import recurrence
from waterclock.model.errors import StorageFull
from waterclock.model.message import Message
from waterclock.model.views import TopicSettings
from waterclock.node.node import running_node
from waterclock.node.replay.records import Request
from waterclock.runtime.clock import SystemClock


async def test_a_topic_deleted_in_the_middle_of_a_storm_takes_nothing_with_it(
    tmp_path, monkeypatch
):
    async with running_node(config_in(tmp_path), SystemClock()) as node:
        host = (await node.topics.create("stormy", TopicSettings())).partition(0)
        is_storming = asyncio.Event()

        def fire() -> bool:
            host.store.check_appendable()
            is_storming.set()
            return True

        monkeypatch.setattr(host.scheduler.firing, "fire_slice", fire)
        host.scheduler.wake()
        await is_storming.wait()
        await node.topics.delete("stormy")
        for _ in range(3):
            await asyncio.sleep(0)
        other = await node.topics.create("other", TopicSettings())
        await other.partition(0).publish(batch_of(Message(b"goes on")))
        assert (node.problems(), len(node._schedulers)) == ([], 1)


async def test_a_topic_is_deleted_with_all_that_is_known_of_it_or_not_at_all(tmp_path, monkeypatch):
    async def delete(room: int) -> list[str]:
        """Return what is known of a topic deleted when there is room for so many writes."""
        folder = tmp_path / str(room)
        async with running_node(config_in(folder), ManualClock()) as node:
            await node.topics.create("t", TopicSettings())
            await node.recurrences.put(recurrence("r", every_ms=1_000))
            (await node.replays.begin(Request("t"), name="read")).close()
            await node.replays.begin(Request("t"), name="unread")
            await node.write_registry.begin("t", "writer", 1, 0)
            await node.groups.open_session("t", "g")
            real, left = node.metadata.write, [None] * room

            def write(records: Any) -> Any:
                if not left:
                    raise StorageFull("no space")
                left.pop()
                return real(records)

            with monkeypatch.context() as crowded:
                crowded.setattr(node.metadata, "write", write)
                with nullcontext() if room else pytest.raises(StorageFull):
                    await node.topics.delete("t")
            await node.recurrences.settle()
            kinds = ("topic", "recurrence", "replay", "writer", "group")
            found = [key for kind in kinds for key, _ in node.metadata.items(f"{kind}/")]
            found += [topic.name for topic in node.topics.all()]
            found += [one.name for one in node.recurrences.list()]
            return found

    whole = ["topic/t", "recurrence/r", "replay/read", "replay/unread", "writer/t/writer"]
    assert await delete(0) == [*whole, "group/t/g", "t", "r"]
    assert await delete(1) == []


async def test_a_store_that_cannot_be_closed_keeps_no_progress_from_being_saved(
    tmp_path, monkeypatch
):
    saved: list[str] = []

    async def close_groups() -> None:
        saved.append("progress")

    async def broken() -> None:
        raise RuntimeError("the database is confused")

    async def live() -> None:
        async with running_node(config_in(tmp_path), ManualClock()) as node:
            monkeypatch.setattr(node.groups, "close", close_groups)
            monkeypatch.setattr(node.persister, "close", broken)

    with pytest.raises(RuntimeError, match="confused"):
        await live()
    assert saved == ["progress"]
