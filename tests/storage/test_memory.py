"""What is saved is mapped instead of kept, and mapped files can be left to the page cache."""

import numpy as np
import pytest

from tests.storage.stores import DEDUP, LOG, batch_of, message, offsets, open_store
from waterclock.log.id_index.index import IdIndex
from waterclock.log.id_index.runs import IdRun
from waterclock.storage.folders import memory
from waterclock.storage.folders.mapped_file import MappedFile
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewrite import Wanted, rewrites

NOW = 1_000


@pytest.fixture
def store(tmp_path):
    store = open_store(OsFolder(tmp_path), log=LOG, dedup=DEDUP, now_ms=NOW)
    yield store
    store.close()


def schedule(store: PartitionStore, *numbers: int) -> None:
    messages = [message(number, due_ms=NOW + 60_000) for number in numbers]
    store.append(batch_of(messages, NOW), now_ms=NOW)


def holder(array: np.ndarray) -> object:
    """Return what an array's bytes belong to in the end."""
    found: object = array
    while isinstance(found, np.ndarray | memoryview):
        found = found.base if isinstance(found, np.ndarray) else found.obj
    return found


def test_a_sealed_segment_has_its_scheduled_messages_and_ids_in_files(store):
    schedule(store, *range(10))
    store.cancel(offsets(3), now_ms=NOW)
    store.roll(NOW)
    assert not isinstance(holder(store.deltas[0].opened), MappedFile)
    before = store.open_scheduled()

    store.run_jobs()

    assert isinstance(holder(store.deltas[0].opened), MappedFile)
    assert store.ids is not None
    assert all(isinstance(holder(run), MappedFile) for run in store.ids.sealed_runs())
    assert np.array_equal(before, store.open_scheduled())
    answer = store.append(batch_of([message(4), message(99)], NOW), now_ms=NOW)
    assert answer.is_new is not None
    assert answer.is_new.tolist() == [False, True]


def test_the_directory_of_ids_is_made_by_the_job_not_by_the_owner(store, monkeypatch):
    given = []
    monkeypatch.setattr(IdIndex, "replace", lambda self, base, run, untracked: given.append(run))
    schedule(store, *range(10))
    store.roll(NOW)

    store.run_jobs()

    assert [type(run) for run in given] == [IdRun]
    assert len(given[0]) == 10


def test_so_has_a_segment_that_was_opened_or_rewritten(tmp_path):
    store = open_store(OsFolder(tmp_path), log=LOG, dedup=DEDUP, now_ms=NOW)
    schedule(store, *range(10))
    store.roll(NOW)
    schedule(store, 10)
    store.cancel(offsets(3), now_ms=NOW)
    store.close()

    store = open_store(OsFolder(tmp_path), log=LOG, dedup=DEDUP, now_ms=NOW)
    assert isinstance(holder(store.deltas[0].opened), MappedFile)
    scheduled = store.open_scheduled()
    for job in rewrites(store, Wanted(keep_from=store.end), now_ms=NOW):
        job.run()
        job.finish()
    assert isinstance(holder(store.deltas[0].opened), MappedFile)
    assert len(store.deltas[0].opened) == 9
    assert store.ids is not None
    assert isinstance(holder(store.ids.sealed_runs()[0]), MappedFile)
    assert np.array_equal(scheduled, store.open_scheduled())
    store.close()


def test_a_segment_rewritten_before_its_side_cars_were_saved_keeps_the_new_ones(store):
    schedule(store, *range(4))
    store.roll(NOW)
    job = store.jobs[0]
    job.run()
    other = store.deltas[0] = type(store.deltas[0])(*(offsets() for _ in range(5)))

    job.finish()

    assert store.deltas[0] is other
    store.jobs.clear()


def test_released_pages_come_back(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(100_000).tobytes())
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno(), 800_000).view()
    array = np.frombuffer(mapped, np.int64)[10:]

    memory.release_pages(array)

    assert array.sum() == sum(range(10, 100_000))


def test_what_is_not_mapped_is_left_alone():
    array = np.arange(10)

    memory.release_pages(array)
    memory.release_pages(np.frombuffer(bytes(80), np.int64))
    memory.trim()

    assert array.sum() == 45


def test_a_frame_tells_what_kind_of_offset_it_has(store):
    schedule(store, 0, 1)
    store.append(batch_of([message(2)], NOW), now_ms=NOW)
    store.cancel(offsets(0), now_ms=NOW)

    assert store.reader.types(offsets(3, 99, 0, 2, 1, -5)).tolist() == [4, 0, 2, 1, 2, 0]


def test_ids_are_confirmed_where_they_are(store):
    schedule(store, 0, 1, 2)
    store.append(batch_of([message(3)], NOW), now_ms=NOW, allow_duplicate=True)
    store.cancel(offsets(0), now_ms=NOW)
    asked = [(2, b"id-2"), (2, b"id-1"), (0, b"id-0"), (3, b"id-3"), (4, b"id-0"), (99, b"id-1")]

    found = store.reader.has_ids(offsets(*(o for o, _ in asked)), [i for _, i in asked])

    assert found.tolist() == [True, False, True, True, False, False]
