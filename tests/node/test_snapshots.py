"""Snapshots: what a node believes before it hands out files that are not its own."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from tests.node.hosts import Hosts, batch_of, opened
from tests.node.snapshot_writing import Row, latest, write_snapshot
from waterclock.log.segment import log_tag
from waterclock.log.snapshot import MANIFEST
from waterclock.model.errors import (
    AlreadyExists,
    BadInput,
    CapacityReached,
    Damaged,
    UnknownTopic,
    WaterclockError,
)
from waterclock.model.message import Message
from waterclock.model.views import TopicSettings
from waterclock.node.partition.remote_log import log_of
from waterclock.node.replay import snapshots as module
from waterclock.node.replay.snapshots import SNAPSHOT, Snapshots

ROWS = [Row(n, b"id-%d" % n, b"k%d" % (n % 3), b"v%d" % n) for n in range(10)]


async def publish(hosts: Hosts, rows: list[Row], topic: str = "orders") -> None:
    """Publish rows, which lie at the offsets they say."""
    host = hosts.topics.get(topic).partition(0)
    batch = batch_of(*(Message(row.value, key=row.key, message_id=row.message_id) for row in rows))
    assert (await host.publish(batch)).offsets[0] == rows[0].offset


@asynccontextmanager
async def known(folder: Path, rows: list[Row] = ROWS) -> AsyncIterator[tuple[Hosts, Snapshots]]:
    """Open a node's snapshots; the topic `orders` has the rows."""
    async with opened(folder / "data") as hosts:
        snapshots = Snapshots(hosts.topics, hosts.metadata, [folder])
        await snapshots.open()
        is_new = hosts.topics.find("orders") is None
        await hosts.topic("orders")
        if is_new:
            await publish(hosts, rows)
        yield hosts, snapshots


def good(folder: Path, **options: Any) -> Path:
    return write_snapshot(folder, {0: (0, 10, latest(ROWS))}, **options)


def change_manifest(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps(manifest | changes))


async def test_a_snapshot_is_registered_listed_remembered_and_forgotten(tmp_path):
    folder = good(tmp_path)
    async with known(tmp_path) as (_, snapshots):
        info = await snapshots.register("orders", str(folder))
        again = await snapshots.register("orders", str(folder))
        assert info == again
        part = info.partitions[0]
        assert (part.start_offset, part.end_offset, part.rows, part.files) == (0, 10, 3, 1)
    async with known(tmp_path) as (hosts, snapshots):
        assert snapshots.list("orders") == [info]
        assert await snapshots.delete("orders", "s1")
        assert not await snapshots.delete("orders", "s1")
        assert hosts.metadata.items(SNAPSHOT) == []
        assert (folder / MANIFEST).exists()


async def test_the_one_that_reaches_farthest_is_used(tmp_path):
    async with known(tmp_path) as (hosts, snapshots):
        for name, end in (("a", 4), ("b", 9), ("c", 7)):
            rows = latest(ROWS[:end])
            folder = write_snapshot(tmp_path, {0: (0, end, rows)}, snapshot=name)
            await snapshots.register("orders", str(folder))
        assert [info.snapshot for info in snapshots.list("orders")] == ["b", "c", "a"]
        partition = hosts.topics.get("orders").partition(0)
        newest = snapshots.newest(partition, log_of(partition))
        assert newest is not None
        assert (newest[0], newest[1].end_offset) == ("b", 9)


async def test_one_of_another_topic_or_log_is_refused(tmp_path):
    async with known(tmp_path) as (hosts, snapshots):
        other = good(tmp_path, topic="other", snapshot="other")
        with pytest.raises(BadInput, match="one of 'other'"):
            await snapshots.register("orders", str(other))
        beyond = write_snapshot(tmp_path, {0: (0, 11, latest(ROWS))}, snapshot="beyond")
        with pytest.raises(BadInput, match="which ends at 10"):
            await snapshots.register("orders", str(beyond))
        two = write_snapshot(tmp_path, {1: (0, 0, [])}, snapshot="two")
        with pytest.raises(BadInput, match="partition 1"):
            await snapshots.register("orders", str(two))
        strange = [row._replace(message_id=b"x" + row.message_id) for row in latest(ROWS)]
        foreign = write_snapshot(tmp_path, {0: (0, 10, strange)}, snapshot="foreign")
        with pytest.raises(BadInput, match="another log"):
            await snapshots.register("orders", str(foreign))
        tag = log_tag(hosts.topics.get("orders").partition(0).store.log_id)
        older = good(tmp_path, snapshot="older", log_tag=tag ^ 1)
        with pytest.raises(BadInput, match="made again"):
            await snapshots.register("orders", str(older))
        with pytest.raises(UnknownTopic):
            await snapshots.register("none", str(other))
        assert snapshots.list("orders") == []
        assert hosts.metadata.items(SNAPSHOT) == []
        await snapshots.register("orders", str(good(tmp_path, snapshot="own", log_tag=tag)))


async def test_a_topic_made_anew_uses_nothing_of_the_old(tmp_path):
    folder = good(tmp_path)
    async with known(tmp_path) as (hosts, snapshots):
        await snapshots.register("orders", str(folder))
        record = hosts.metadata.items(SNAPSHOT)
        await hosts.topics.delete("orders")
        assert hosts.metadata.items(SNAPSHOT) == []
        await hosts.topic("orders")
        await publish(hosts, ROWS)
        # As if a crash had kept the record.
        await hosts.metadata.put_many(dict(record))
    async with known(tmp_path) as (hosts, snapshots):
        assert snapshots.list("orders") == []
        partition = hosts.topics.get("orders").partition(0)
        assert snapshots.newest(partition, log_of(partition)) is None


async def test_one_partition_of_another_log_is_not_used(tmp_path):
    """Somebody put another log into its folder: the other partitions' snapshots still hold."""

    both = {0: (0, 10, latest(ROWS)), 1: (0, 0, [])}
    folder = write_snapshot(tmp_path, both)
    async with known(tmp_path) as (hosts, snapshots):
        await hosts.topics.update("orders", TopicSettings(partitions=2))
        info = await snapshots.register("orders", str(folder))
        strange = msgspec.structs.replace(info.partitions[0], log_id="00" * 16)
        info = msgspec.structs.replace(info, partitions=(strange, info.partitions[1]))
        await hosts.metadata.put(f"{SNAPSHOT}orders/s1", msgspec.json.encode(info))
    async with known(tmp_path) as (hosts, snapshots):
        first, second = hosts.topics.get("orders").partitions
        assert snapshots.newest(first, log_of(first)) is None
        assert snapshots.newest(second, log_of(second)) is not None


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def without_footer(file: Path) -> None:
    file.write_bytes(b"x" * file.stat().st_size)


def with_other_columns(file: Path) -> None:
    pq.write_table(pq.read_table(file).drop_columns(["headers"]), file)


def with_other_types(file: Path) -> None:
    table = pq.read_table(file)
    at = table.schema.get_field_index("value")
    values = table.column("value").cast(pa.large_binary())
    pq.write_table(table.set_column(at, "value", values), file)


def with_fewer_rows(file: Path) -> None:
    pq.write_table(pq.read_table(file).slice(1), file)


@pytest.mark.parametrize(
    "harm",
    [Path.unlink, cut_short, without_footer, with_other_columns, with_other_types, with_fewer_rows],
)
async def test_files_that_are_not_what_the_manifest_says_are_refused(tmp_path, harm):
    folder = good(tmp_path)
    (file,) = folder.glob("*/*.parquet")
    harm(file)
    if file.exists():
        # Not only by its size.
        manifest = json.loads((folder / MANIFEST).read_bytes())
        manifest["partitions"][0]["files"][0]["bytes"] = file.stat().st_size
        (folder / MANIFEST).write_text(json.dumps(manifest))
    async with known(tmp_path) as (_, snapshots):
        with pytest.raises(Damaged, match=r"\.parquet"):
            await snapshots.register("orders", str(folder))


async def test_a_snapshot_lies_where_it_may_and_nothing_is_read_elsewhere(tmp_path):
    async with known(tmp_path) as (hosts, _):
        allowed = tmp_path / "allowed"
        snapshots = Snapshots(hosts.topics, hosts.metadata, [allowed])
        outside = good(tmp_path / "outside")
        allowed.mkdir()
        (allowed / "link").symlink_to(outside)
        for folder in (outside, allowed / "link", allowed / ".." / "outside" / outside.name):
            with pytest.raises(BadInput, match="must lie below"):
                await snapshots.register("orders", str(folder))

        assert (await snapshots.register("orders", str(good(allowed)))).topic == "orders"


async def test_a_manifest_that_is_none_is_not_quoted(tmp_path):
    secret = "wc1.planted-secret"
    async with known(tmp_path) as (_, snapshots):
        for number, text in enumerate(
            (
                f'{{"format": "{secret}"}}',
                f"{secret}",
                f'{{"format": 1, "topic": "{secret}/", "snapshot": "s"}}',
                f'{{"format": 1, "topic": "t", "snapshot": "{secret}/"}}',
                f'{{"format": 1, "topic": "t", "snapshot": "s", "created_ms": "{secret}",'
                ' "partitions": []}',
            )
        ):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / MANIFEST).write_text(text)
            with pytest.raises(WaterclockError) as caught:
                await snapshots.register("orders", str(folder))
            assert "planted" not in str(caught.value)


async def test_folders_that_are_none_are_refused(tmp_path):
    async with known(tmp_path) as (_, snapshots):
        for folder in ("", "here", "../up", str(tmp_path / "gone"), "/a\0b", "/" * 5_000):
            with pytest.raises(WaterclockError):
                await snapshots.register("orders", folder)
        (tmp_path / "odd" / MANIFEST).mkdir(parents=True)
        with pytest.raises(Damaged, match="no such file"):
            await snapshots.register("orders", str(tmp_path / "odd"))


async def test_a_name_means_one_manifest_for_ever(tmp_path):
    folder = good(tmp_path)
    async with known(tmp_path) as (_, snapshots):
        await snapshots.register("orders", str(folder))
        change_manifest(folder, created_ms=7)
        with pytest.raises(AlreadyExists):
            await snapshots.register("orders", str(folder))
        found = await snapshots.sources("orders", [("s1", 0), ("none", 0)])
        assert "not the one that was registered" in str(found["s1", 0])
        assert "not known any more" in str(found["none", 0])


async def test_a_topic_has_so_many_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SNAPSHOTS_MAX", 1)

    async with known(tmp_path) as (_, snapshots):
        await snapshots.register("orders", str(good(tmp_path)))
        with pytest.raises(CapacityReached):
            await snapshots.register("orders", str(good(tmp_path, snapshot="s2")))
