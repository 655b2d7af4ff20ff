import asyncio
import threading
from collections.abc import Iterable, Sequence

import pytest

from tests.node.hosts import START_MS, opened
from waterclock.log.compaction import latest_offsets
from waterclock.log.frame import Frame
from waterclock.model.errors import FolderInUse
from waterclock.node import metadata as metadata_module
from waterclock.storage import rewrite as rewriting
from waterclock.storage.fsyncs import OnFsynced, Sync


async def test_what_was_put_is_there_after_a_restart(tmp_path):
    async def first():
        async with opened(tmp_path) as hosts:
            await hosts.metadata.put("a/1", b"one")
            await hosts.metadata.put_many({"a/2": b"two", "b/1": b"other", "a/1": b"newer"})
            await hosts.metadata.delete("b/1")

    async def second():
        async with opened(tmp_path) as hosts:
            return hosts.metadata.items("a/"), hosts.metadata.get("b/1")

    await first()

    assert await second() == ([("a/1", b"newer"), ("a/2", b"two")], None)


async def test_a_folder_serves_one_node(tmp_path):
    async with opened(tmp_path):
        with pytest.raises(FolderInUse):
            async with opened(tmp_path):
                pass


async def test_history_is_dropped_once_there_is_much_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata_module, "HISTORY_BYTES_MIN", 100_000)

    async def write():
        async with opened(tmp_path) as hosts:
            store = hosts.metadata._store
            for number in range(300):
                await hosts.metadata.put(f"k/{number % 3}", b"%d" % number + b"x" * 1_000)
            before = sum(segment.end_position for segment in store.segments)
            await hosts.metadata.compact()
            after = sum(segment.end_position for segment in store.segments)
            return before, after

    async def read():
        async with opened(tmp_path) as hosts:
            return [(name, value[:3]) for name, value in hosts.metadata.items("k/")]

    before, after = await write()

    assert after < before / 10
    assert await read() == [("k/0", b"297"), ("k/1", b"298"), ("k/2", b"299")]


async def test_what_is_latest_is_found_out_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata_module, "HISTORY_BYTES_MIN", 1)
    threads: list[threading.Thread] = []

    def noted(frames: Iterable[Frame]) -> object:
        threads.append(threading.current_thread())
        return latest_offsets(frames)

    monkeypatch.setattr(rewriting, "latest_offsets", noted)

    async with opened(tmp_path) as hosts:
        for number in range(50):
            await hosts.metadata.put("k", b"%d" % number)
        await hosts.metadata.compact()

    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_records_written_together_share_an_fsync(tmp_path):
    # The first begins at the end of the turn in which all were written.

    async with opened(tmp_path) as hosts:
        begun: list[Sync] = []
        fsyncs = hosts.metadata._flush_queue._group.threads.fsyncs
        real = fsyncs.submit

        def noted(syncs: Sequence[Sync], on_end: OnFsynced) -> None:
            begun.extend(syncs)
            real(syncs, on_end)

        fsyncs.submit = noted  # type: ignore[method-assign]
        await asyncio.gather(*(hosts.metadata.put(f"n/{i}", b"v") for i in range(50)))
        assert len(begun) == 1


async def test_times_of_records_are_those_of_the_clock(tmp_path):
    async with opened(tmp_path) as hosts:
        await hosts.metadata.put("a", b"b")
        assert hosts.metadata._store.log_time_ms == START_MS
