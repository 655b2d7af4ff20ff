"""A whole node in its loop: what goes wrong in one place does not end the rest."""

import asyncio

import pytest

from tests.node.hosts import batch_of, config_in, run
from waterclock.model.message import Message
from waterclock.node.node import running_node
from waterclock.node.topics import TopicSettings
from waterclock.storage.clock import SystemClock
from waterclock.testing.clock import ManualClock


def test_a_topic_deleted_in_the_middle_of_a_storm_takes_nothing_with_it(tmp_path, monkeypatch):
    async def delete():
        async with running_node(config_in(tmp_path), SystemClock()) as node:
            host = (await node.topics.create("stormy", TopicSettings())).partition(0)
            is_storming = asyncio.Event()

            def fire() -> bool:
                host.store.check_appendable()
                is_storming.set()
                return True

            monkeypatch.setattr(host.scheduler, "fire_slice", fire)
            host.scheduler.wake()
            await is_storming.wait()
            await node.topics.delete("stormy")
            for _ in range(3):
                await asyncio.sleep(0)
            other = await node.topics.create("other", TopicSettings())
            await other.partition(0).publish(batch_of(Message(b"goes on")))
            return node.problems(), len(node._schedulers)

    assert run(delete()) == ([], 1)


def test_a_store_that_cannot_be_closed_keeps_no_progress_from_being_saved(tmp_path, monkeypatch):
    async def main():
        saved: list[str] = []

        async def close_groups() -> None:
            saved.append("progress")

        async def broken() -> None:
            raise RuntimeError("the database is confused")

        async def live() -> None:
            async with running_node(config_in(tmp_path), ManualClock()) as node:
                monkeypatch.setattr(node.groups, "close", close_groups)
                monkeypatch.setattr(node.storing, "close", broken)

        with pytest.raises(RuntimeError, match="confused"):
            await live()
        assert saved == ["progress"]

    run(main())
