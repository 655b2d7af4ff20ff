"""The registry: a task is begun once, done once, committed once, whatever dies in between."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.clock import ManualClock
from tests.kit.examples import examples
from tests.node.hosts import START_MS, Hosts, batch_of, opened
from waterclock.model.errors import BadInput, CapacityReached, NotFound, UnknownTopic
from waterclock.model.message import Message
from waterclock.model.views import WriteBegun, WriteState
from waterclock.node.metadata import Ticket
from waterclock.node.publish import write_registry as registries
from waterclock.node.publish.write_registry import (
    FORGET_MS,
    WRITE,
    WRITER,
    WriteRegistry,
)


@asynccontextmanager
async def writing(
    folder: Path, *, clock: ManualClock | None = None
) -> AsyncIterator[tuple[Hosts, WriteRegistry]]:
    """Open the registry of a folder; a topic `t` of two partitions is there."""
    async with opened(folder, clock=clock) as hosts:
        registry = WriteRegistry(hosts.topics, hosts.metadata, hosts.clock)
        await registry.open()
        await hosts.topic("t", partitions=2)
        yield hosts, registry


async def publish(hosts: Hosts, partition: int, *values: bytes) -> None:
    host = hosts.topics.get("t").partition(partition)
    await host.publish(batch_of(*map(Message, values)), allow_duplicate=True)


def killed(folder: Path) -> Path:
    """Return what kill -9 would leave: the files as they are, nothing closed."""
    image = folder.with_name(folder.name + "-killed")
    shutil.copytree(folder, image)
    return image


async def test_a_task_begun_again_is_told_where_it_first_began(tmp_path):
    async with writing(tmp_path) as (hosts, registry):
        await publish(hosts, 1, b"a", b"b")
        first = await registry.begin("t", "q", 0, 0)
        await publish(hosts, 0, b"c")
        again = await registry.begin("t", "q", 0, 0)
        other = await registry.begin("t", "q", 0, 1)

        assert first == WriteBegun(WriteState.NEW, {0: 0, 1: 2}, 0)
        assert again == WriteBegun(WriteState.BEGUN, {0: 0, 1: 2}, 0)
        assert other == WriteBegun(WriteState.NEW, {0: 1, 1: 2}, 0)


async def test_a_partition_added_since_is_read_from_its_start(tmp_path):
    async with writing(tmp_path) as (hosts, registry):
        await registry.begin("t", "q", 0, 0)
        settings_ = hosts.topics.get("t").settings
        await hosts.topics.update("t", type(settings_)(partitions=3))
        await publish(hosts, 2, b"x")

        assert (await registry.begin("t", "q", 0, 0)).positions == {0: 0, 1: 0, 2: 0}


async def test_a_task_that_is_done_need_not_be_written_again(tmp_path):
    async with writing(tmp_path) as (_, registry):
        await registry.begin("t", "q", 0, 0)
        assert await registry.finish("t", "q", 0, 0, rows=5) is WriteState.DONE
        assert await registry.finish("t", "q", 0, 0, rows=9) is WriteState.DONE

        assert await registry.begin("t", "q", 0, 0) == WriteBegun(WriteState.DONE, {}, 5)


async def test_a_commit_stands_for_its_batch_and_all_before(tmp_path):
    async with writing(tmp_path) as (hosts, registry):
        for batch in (0, 1, 2):
            await registry.begin("t", "q", batch, 0)
        assert await registry.commit("t", "q", 1) == (False, 1)
        assert await registry.commit("t", "q", 0) == (True, 1)

        states = [(await registry.begin("t", "q", batch, 0)).state for batch in (0, 1, 2)]
        assert states == [WriteState.COMMITTED, WriteState.COMMITTED, WriteState.BEGUN]
        assert await registry.finish("t", "q", 0, 7, rows=1) is WriteState.COMMITTED
        (view,) = registry.list("t")
        assert (view.committed, view.open_tasks) == (1, 1)
        assert len(hosts.metadata.items(WRITE)) == 1


async def test_what_was_never_begun_cannot_be_finished(tmp_path):
    async with writing(tmp_path) as (_, registry):
        with pytest.raises(NotFound):
            await registry.finish("t", "q", 0, 0, rows=1)


async def test_an_abandoned_writer_begins_anew(tmp_path):
    async with writing(tmp_path) as (hosts, registry):
        await registry.commit("t", "q", 3)
        await registry.begin("t", "q", 4, 0)
        assert await registry.abandon("t", "q")
        assert not await registry.abandon("t", "q")

        assert hosts.metadata.items("writ") == []
        assert (await registry.begin("t", "q", 0, 0)).state is WriteState.NEW


async def test_no_answer_goes_out_before_it_is_durable(tmp_path):
    """Also not that of another call: a note that a crash takes back must not have been told."""

    async with writing(tmp_path) as (hosts, registry):
        disk = asyncio.Event()
        wait_flushed = hosts.metadata.wait_flushed

        async def slow(ticket: Ticket) -> None:
            await disk.wait()
            await wait_flushed(ticket)

        hosts.metadata.wait_flushed = slow
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(registry.begin("t", "q", 0, 0)) for _ in range(2)]
            finished = tasks.create_task(registry.finish("t", "q", 0, 0, rows=1))
            begun.append(tasks.create_task(registry.begin("t", "q", 0, 0)))
            commits = [tasks.create_task(registry.commit("t", "q", 0))]
            begun.append(tasks.create_task(registry.begin("t", "q", 0, 0)))
            commits.append(tasks.create_task(registry.commit("t", "q", 0)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not any(call.done() for call in (*begun, finished, *commits))
            disk.set()
        answers = [call.result() for call in begun]
        assert [each.state.name for each in answers] == ["NEW", "BEGUN", "DONE", "COMMITTED"]


async def test_what_is_not_flushed_is_no_place_to_begin_behind(tmp_path):
    """A power cut may take it back, and the task's own rows come to lie there."""

    async with writing(tmp_path) as (hosts, registry):
        host = hosts.topics.get("t").partition(0)
        host.append(batch_of(Message(b"not yet durable")))

        assert (await registry.begin("t", "q", 0, 0)).positions[0] == 0


async def test_a_topic_made_anew_knows_no_writer_of_the_old(tmp_path):
    async with writing(tmp_path / "data") as (hosts, registry):
        await registry.commit("t", "q", 5)
        await registry.begin("t", "q", 6, 0)
        await hosts.topics.delete("t")
        with pytest.raises(UnknownTopic):
            registry.list("t")
        await hosts.topic("t")
        assert registry.list("t") == []
        assert (await registry.begin("t", "q", 6, 1)).state is WriteState.NEW
        image = killed(tmp_path / "data")
    # The old task's note may not be taken away yet; it bears another run_id.
    async with writing(image) as (hosts, registry):
        assert (await registry.begin("t", "q", 6, 0)).state is WriteState.NEW
        assert (await registry.begin("t", "q", 6, 1)).state is WriteState.BEGUN


async def test_clearing_away_old_notes_leaves_new_ones_of_the_same_name(tmp_path):
    async with writing(tmp_path / "data") as (hosts, registry):
        await registry.begin("t", "q", 0, 0)
        await hosts.topics.delete("t")
        await hosts.topic("t")
        await registry.begin("t", "q", 0, 0)
        await registry.commit("t", "other", 0)
        image = killed(tmp_path / "data")
    async with writing(image) as (_, registry):
        assert (await registry.begin("t", "q", 0, 0)).state is WriteState.BEGUN


async def test_notes_that_a_crash_left_behind_are_cleared_away(tmp_path, monkeypatch):
    async def crash() -> None:
        raise asyncio.CancelledError

    async with writing(tmp_path / "data") as (_, registry):
        for task in range(3):
            await registry.begin("t", "q", 0, task)
        monkeypatch.setattr(registry, "tidy", crash)
        with pytest.raises(asyncio.CancelledError):
            await registry.commit("t", "q", 0)
        image = killed(tmp_path / "data")
    async with writing(image) as (hosts, registry):
        assert hosts.metadata.items(WRITE) == []
        assert [(w.committed, w.open_tasks) for w in registry.list("t")] == [(0, 0)]


async def test_writers_and_tasks_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(registries, "WRITERS_MAX", 2)
    monkeypatch.setattr(registries, "TASKS_MAX", 2)

    clock = ManualClock(START_MS)
    async with writing(tmp_path, clock=clock) as (_, registry):
        await registry.begin("t", "a", 0, 0)
        await registry.begin("t", "a", 0, 1)
        with pytest.raises(CapacityReached, match="tasks of a writer"):
            await registry.begin("t", "a", 1, 0)
        await registry.commit("t", "b", 0)
        for call in (registry.begin("t", "c", 0, 0), registry.commit("t", "c", 0)):
            with pytest.raises(CapacityReached, match="writers of a topic"):
                await call

        clock.advance(FORGET_MS)
        await registry.commit("t", "b", 1)
        clock.advance(1)
        await registry.begin("t", "c", 0, 0)
        assert [view.writer for view in registry.list("t")] == ["b", "c"]


async def test_hostile_names_and_numbers_are_refused(tmp_path):
    async with writing(tmp_path) as (_, registry):
        for call in (
            registry.begin("t", "", 0, 0),
            registry.begin("t", "a/b", 0, 0),
            registry.begin("t", "q", -1, 0),
            registry.begin("t", "q", 0, -1),
            registry.finish("t", "q", 0, 0, rows=-1),
            registry.commit("t", "q", -1),
            registry.abandon("t", "../q"),
        ):
            with pytest.raises(BadInput):
                await call
        with pytest.raises(UnknownTopic):
            await registry.begin("none", "q", 0, 0)
        assert registry.list("t") == []


CALLS = st.one_of(
    st.tuples(st.just("begin"), st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("finish"), st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("commit"), st.sampled_from("ab"), st.integers(0, 3)),
    st.tuples(st.just("abandon"), st.sampled_from("ab")),
    st.tuples(st.just("publish"), st.integers(0, 1)),
    st.tuples(st.just("kill")),
)


class Model:
    """What the registry should say."""

    def __init__(self) -> None:
        self.committed: dict[str, int] = {}
        self.tasks: dict[tuple[str, int, int], tuple[dict[int, int], bool]] = {}
        self.ends = {0: 0, 1: 0}

    def begin(self, writer: str, batch: int, task: int) -> tuple[WriteState, dict[int, int]]:
        if batch <= self.committed.get(writer, -1):
            return WriteState.COMMITTED, {}
        known = self.tasks.get((writer, batch, task))
        if known is None:
            self.tasks[writer, batch, task] = dict(self.ends), False
            return WriteState.NEW, dict(self.ends)
        return (WriteState.DONE, {}) if known[1] else (WriteState.BEGUN, known[0])

    def finish(self, writer: str, batch: int, task: int) -> WriteState | None:
        if batch <= self.committed.get(writer, -1):
            return WriteState.COMMITTED
        known = self.tasks.get((writer, batch, task))
        if known is None:
            return None
        self.tasks[writer, batch, task] = known[0], True
        return WriteState.DONE

    def commit(self, writer: str, batch: int) -> None:
        self.committed[writer] = max(batch, self.committed.get(writer, -1))
        self._drop(writer, self.committed[writer])

    def abandon(self, writer: str) -> None:
        self.committed.pop(writer, None)
        self._drop(writer, 1_000)

    def _drop(self, writer: str, up_to: int) -> None:
        self.tasks = {k: v for k, v in self.tasks.items() if k[0] != writer or k[1] > up_to}


async def say(word: tuple[Any, ...], hosts: Hosts, registry: WriteRegistry, model: Model) -> None:
    match word:
        case ("begin", writer, batch, task):
            begun = await registry.begin("t", writer, batch, task)
            assert (begun.state, begun.positions) == model.begin(writer, batch, task)
        case ("finish", writer, batch, task):
            expected = model.finish(writer, batch, task)
            if expected is None:
                with pytest.raises(NotFound):
                    await registry.finish("t", writer, batch, task, rows=1)
            else:
                assert await registry.finish("t", writer, batch, task, rows=1) is expected
        case ("commit", writer, batch):
            await registry.commit("t", writer, batch)
            model.commit(writer, batch)
        case ("abandon", writer):
            await registry.abandon("t", writer)
            model.abandon(writer)
        case ("publish", partition):
            await publish(hosts, partition, b"x")
            model.ends[partition] += 1


@settings(max_examples=examples(25))
@given(st.lists(CALLS, max_size=30))
async def test_whatever_is_said_and_killed_it_says_what_the_model_says(calls):
    async def main(folder: Path) -> None:
        model, left = Model(), list(calls)
        while True:
            async with writing(folder) as (hosts, registry):
                while left and left[0] != ("kill",):
                    await say(left.pop(0), hosts, registry, model)
                assert len(hosts.metadata.items(WRITE)) == len(model.tasks)
                open_ones = {writer for writer, _, _ in model.tasks}
                assert len(hosts.metadata.items(WRITER)) == len({*model.committed, *open_ones})
                if not left:
                    return
                left.pop(0)
                folder = killed(folder)

    with TemporaryDirectory() as folder:
        await main(Path(folder) / "data")
