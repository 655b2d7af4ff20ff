"""What a node writes is for its user and group alone, whatever the umask."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.hosts import batch_of, config_in
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import LogConfig, StreamsConfig
from waterclock.model.units import KIB
from waterclock.model.views import TopicSettings
from waterclock.node.node import running_node
from waterclock.node.replay.snapshots import FOLDER
from waterclock.runtime.clock import SystemClock
from waterclock.spark.jobs.compact.snapshot_files import SnapshotFolder, write_durably
from waterclock.storage.backup.writer import BackupFolder
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.stores.base import Record
from waterclock.stores.sqlite import SqliteStore


@pytest.fixture(params=[0o000, 0o022], ids=["umask 000", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes_in(folder: Path) -> tuple[set[int], set[int]]:
    """Return the modes of all folders, then of all files."""
    found = {True: set[int](), False: set[int]()}
    for path in folder.rglob("*"):
        found[path.is_dir()].add(stat.S_IMODE(path.stat().st_mode))
    return found[True], found[False]


@pytest.mark.usefixtures("umask")
async def test_everything_in_a_data_folder_is_for_its_owner_and_group(tmp_path):
    data = tmp_path / "deep" / "data"
    config = config_in(
        data, log=LogConfig(segment_bytes=4 * KIB), streams=StreamsConfig(store="log:")
    )
    OsFolder(data).close()
    clock = SystemClock()
    async with running_node(config, clock) as node:
        topic = await node.topics.create("t", TopicSettings(partitions=2))
        host = topic.partition(0)
        for _ in range(4):
            await host.publish(batch_of(Message(b"." * 2_000)))
        due_ms = Millis(clock.now_ms() + 3_600_000)
        await host.publish(batch_of(Message(b"later", due_ms=due_ms)))

    names = {path.suffix or path.name for path in data.rglob("*") if path.is_file()}
    assert {".seg", ".index", ".due", ".ids", "LOCK", "recovery-point"} <= names
    assert modes_in(tmp_path) == ({0o750}, {0o640})


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("is_durable", [True, False])
def test_a_folder_is_made_with_its_parents_for_its_owner_and_group(tmp_path, is_durable):
    OsFolder(tmp_path / "a" / "b" / "c", is_durable=is_durable).close()

    assert modes_in(tmp_path) == ({0o750}, set())


@pytest.mark.usefixtures("umask")
async def test_a_store_in_sqlite_is_for_its_owner_and_group(tmp_path):
    store = SqliteStore(tmp_path / "streams.db")
    await store.open()
    try:
        await store.store("s", [Record("id", b"body")], now_ms=1)

        assert len(list(tmp_path.iterdir())) == 3, "the database, its log and its index"
        assert modes_in(tmp_path) == (set(), {0o640})
    finally:
        await store.close()


@pytest.mark.usefixtures("umask")
def test_backups_and_snapshots_are_for_their_owner_and_group(tmp_path):
    BackupFolder(tmp_path / "backups" / "b").close()
    snapshots = SnapshotFolder(tmp_path / FOLDER / "t")
    with snapshots.locked():
        write_durably(snapshots.folder / "manifest.json", b"{}")

    assert modes_in(tmp_path) == ({0o750}, {0o640})
