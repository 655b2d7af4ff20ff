"""Compaction with a real Spark and a real node: what is left, run again, cut off anywhere."""

import json
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.kit.examples import IS_FULL
from tests.spark.spark_node import SparkNode
from waterclock.client._sync.admin import BlockingSnapshots
from waterclock.log.snapshot import MANIFEST, ROWS, Manifest, parse_manifest
from waterclock.model.errors import BadInput, Busy, UnknownTopic
from waterclock.model.message import Message
from waterclock.spark.jobs.compact import compact
from waterclock.spark.jobs.compact.compact import CompactOptions, snapshots_folder
from waterclock.spark.jobs.compact.plan import plan_layout
from waterclock.spark.jobs.compact.snapshot_files import SnapshotFolder, finish, read_whole
from waterclock.spark.jobs.job import Summary
from waterclock.spark.jobs.progress import SilentReporter

Row = tuple[int, int, bytes, bytes | None, bytes]
"""partition, offset, message id, key, value."""


class Notes(SilentReporter):
    """Remembers what a job said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Compacted:
    """A topic and its compactions."""

    def __init__(self, spark: Any, node: SparkNode, topic: str) -> None:
        self.spark = spark
        self.node = node
        self.topic = topic
        self.notes: list[str] = []

    def run(self, **options: Any) -> Summary:
        reporter = Notes()
        chosen = CompactOptions(topic=self.topic, servers=self.node.servers, **options)
        try:
            return compact.run(self.spark, chosen, reporter)
        finally:
            self.notes = reporter.notes

    def publish(self, *messages: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
        made = [Message(key=key, value=value) for key, value in messages]
        self.node.client.publish_many(self.topic, made, partition=partition)

    @property
    def folder(self) -> Path:
        return self.node.folder / "data" / "snapshots" / self.topic

    def names(self) -> list[str]:
        """Return the snapshots the node knows of, the newest first."""
        return [each.name for each in self.node.client.snapshots.list(self.topic)]

    def live_rows(self) -> list[Row]:
        """Return what must be left, by looking at every message."""
        rows: list[Row] = []
        for each in self.node.client.topics.get(self.topic).partitions:
            latest: dict[bytes, Row | None] = {}
            for row in self._delivered(each.partition, each.start_offset, each.end_offset):
                if row[3] is not None:
                    latest[row[3]] = None if row[4] is None else row
                elif row[4] is not None:
                    rows.append(row)
            rows += [row for row in latest.values() if row is not None]
        return sorted(rows)

    def _delivered(self, partition: int, offset: int, end: int) -> list[Any]:
        found = []
        while offset < end:
            fetched = self.node.client.fetch(self.topic, partition, offset, end_offset=end)
            found += [
                (partition, row["offset"], row["message_id"], row["key"], row["value"])
                for row in fetched.table().to_pylist()
            ]
            offset = fetched.next_offset
        return found

    def replayed(self) -> list[Row]:
        """Return what a compacted replay hands out."""
        return sorted(
            (each.partition, each.offset, each.id, each.key, each.value or b"")
            for each in self.node.client.replay(self.topic, compacted=True)
        )


@pytest.fixture
def compacted(spark: Any, node: SparkNode, topic: str) -> Compacted:
    node.client.topics.create(topic, partitions=2)
    return Compacted(spark, node, topic)


def rows_of(folder: Path) -> list[Row]:
    """Return the rows of a snapshot, its manifest and the order in its files proven."""
    manifest = parse_manifest((folder / MANIFEST).read_bytes())
    assert {path.name for path in folder.iterdir()} == {
        MANIFEST,
        *(f"partition={each.partition}" for each in manifest.partitions if each.files),
    }
    listed = {file.path for each in manifest.partitions for file in each.files}
    assert {path.relative_to(folder).as_posix() for path in folder.glob("*/*")} == listed
    rows: list[Row] = []
    for each in manifest.partitions:
        for file in each.files:
            table = pq.read_table(folder / file.path, partitioning=None).cast(ROWS)
            offsets = table.column("offset").to_pylist()
            assert offsets == sorted(offsets)
            assert (offsets[0], offsets[-1]) == (file.first_offset, file.last_offset)
            assert len(offsets) == file.rows
            rows += [
                (each.partition, row["offset"], row["message_id"], row["key"], row["value"])
                for row in table.to_pylist()
            ]
    return rows


def cut_off(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_latest_of_each_key_is_left_and_what_has_no_key(compacted):
    compacted.publish((b"a", b"1"), (b"b", b"2"), (None, b"3"), (b"a", b"4"), (None, b"5"))
    compacted.publish((b"b", None), (b"c", b"6"), (b"d", None), (b"d", b"7"), (None, None))
    compacted.publish((b"a", b"other"), (b"", b"empty key"), partition=1)

    summary = compacted.run()

    folder = compacted.folder / str(summary.facts["snapshot"])
    assert [(row[3], row[4]) for row in rows_of(folder)] == [
        (None, b"3"), (b"a", b"4"), (None, b"5"), (b"c", b"6"), (b"d", b"7"),
        (b"a", b"other"), (b"", b"empty key"),
    ]  # fmt: skip
    assert rows_of(folder) == compacted.live_rows() == compacted.replayed()
    assert summary.rows == 7
    assert compacted.names() == [summary.facts["snapshot"]]


def test_headers_and_times_are_kept(compacted, node):
    client, topic = node.client, compacted.topic
    client.publish(topic, b"v", key=b"a", headers={"h": b"1"}, partition=0)
    client.publish(topic, b"w", key=b"b", at="+300ms", partition=0)
    # What has fired is no longer scheduled, and can be read once it is on disk.
    while len(compacted.live_rows()) < 2:
        pass

    summary = compacted.run()

    path = next((compacted.folder / str(summary.facts["snapshot"])).glob("*/*.parquet"))
    first, second = pq.read_table(path, partitioning=None).cast(ROWS).to_pylist()
    assert dict(first["headers"]) == {"h": b"1"}
    assert first["due_ms"] is None
    assert second["due_ms"] is not None
    assert second["append_ms"] >= second["due_ms"]


def test_run_again_without_anything_new_it_says_so_and_does_nothing(compacted):
    compacted.publish((b"a", b"1"))
    first = compacted.run()

    again = compacted.run()

    assert again.facts["is_new"] is False
    assert again.facts["snapshot"] == first.facts["snapshot"]
    assert again.rows == first.rows == 1
    assert compacted.notes == [f"nothing new since snapshot {first.facts['snapshot']}"]
    assert len(list(compacted.folder.glob("*/"))) == 1


def test_an_empty_topic_has_an_empty_snapshot(compacted):
    summary = compacted.run()

    assert summary.rows == 0
    assert compacted.replayed() == []
    assert compacted.run().facts["is_new"] is False


@pytest.mark.parametrize("seed", [1, 2] if IS_FULL else [1])
def test_going_on_from_a_snapshot_is_the_same_as_beginning_anew(compacted, monkeypatch, seed):
    # Small files are linked too, so that histories have some.
    monkeypatch.setattr(compact, "plan_layout", partial(plan_layout, link_rows_min=1))
    rng = random.Random(seed)
    elsewhere = compacted.folder.parent / "anew"
    for step in range(4):
        for _ in range(rng.randrange(4)):
            compacted.publish(
                *(
                    (
                        rng.choice([None, b"k%d" % rng.randrange(30), b"only %d" % step]),
                        None if rng.random() < 0.2 else b"v%d" % rng.randrange(1 << 30),
                    )
                    for _ in range(rng.randrange(1, 60))
                ),
                partition=rng.randrange(2 if step < 2 else 3),
            )
        if step == 1:
            compacted.node.client.topics.update(compacted.topic, partitions=3)

        gone_on = compacted.run()
        anew = compacted.run(to=str(elsewhere), is_full=True)

        assert gone_on.facts["is_new"] is False or (step > 0) == str(
            gone_on.facts["reads"]
        ).startswith("goes on from")
        name = str(anew.facts["snapshot"])
        compacted.node.client.snapshots.delete(compacted.topic, name)
        expected = compacted.live_rows()
        assert rows_of(compacted.folder / str(gone_on.facts["snapshot"])) == expected
        assert rows_of(elsewhere / compacted.topic / name) == expected
        assert compacted.replayed() == expected
        SnapshotFolder(elsewhere / compacted.topic).remove(name)


def test_a_file_that_lost_nothing_is_linked_not_written(compacted, monkeypatch):
    monkeypatch.setattr(compact, "plan_layout", partial(plan_layout, link_rows_min=1))
    compacted.publish((b"cold", b"1"), partition=0)
    compacted.publish((b"hot", b"1"), partition=1)
    compacted.run()
    compacted.publish((b"hot", b"2"), partition=1)

    summary = compacted.run()

    assert summary.facts["files_linked"] == 1
    folder = compacted.folder / str(summary.facts["snapshot"])
    (cold,) = folder.glob("partition=0/*")
    (hot,) = folder.glob("partition=1/*")
    assert (os.stat(cold).st_nlink, os.stat(hot).st_nlink) == (2, 1)
    assert rows_of(folder) == compacted.live_rows()


@pytest.mark.parametrize(
    ("at", "notes"),
    [
        ("take_written", ["removed 1 unfinished snapshot(s) of an earlier run"]),
        ("finish", ["removed 1 unfinished snapshot(s) of an earlier run"]),
        ("register", ["registered snapshot {} of an earlier run", "nothing new since snapshot {}"]),
    ],
)
def test_cut_off_anywhere_the_last_snapshot_stays_and_the_next_run_makes_it_good(
    compacted, monkeypatch, at, notes
):
    compacted.publish((b"a", b"1"), (b"b", b"2"))
    before = str(compacted.run().facts["snapshot"])
    compacted.publish((b"a", None), (b"c", b"3"))

    with monkeypatch.context() as patch:
        patch.setattr(BlockingSnapshots if at == "register" else compact, at, cut_off)
        with pytest.raises(KeyboardInterrupt):
            compacted.run()

    assert compacted.names() == [before]
    assert read_whole(compacted.folder / before) is not None
    assert [row[3] for row in compacted.replayed()] == [b"a", b"b", b"a", b"c"]
    summary = compacted.run()
    name = str(summary.facts["snapshot"])
    assert compacted.notes == [note.format(name) for note in notes]
    assert compacted.names() == [name, before]
    assert rows_of(compacted.folder / name) == compacted.live_rows() == compacted.replayed()


def test_older_snapshots_go_but_for_those_to_keep(compacted):
    made = []
    for i in range(4):
        compacted.publish((b"a", b"%d" % i))
        made.append(str(compacted.run(keep=1).facts["snapshot"]))

    assert compacted.names() == [made[3], made[2]]
    assert sorted(path.name for path in compacted.folder.glob("*/")) == made[2:]
    compacted.publish((b"a", b"x"))
    last = str(compacted.run(keep=0).facts["snapshot"])
    assert compacted.names() == [last]


def test_a_damaged_snapshot_is_not_gone_on_from(compacted):
    compacted.publish((b"a", b"1"), (b"b", b"2"))
    first = str(compacted.run().facts["snapshot"])
    (path,) = (compacted.folder / first).glob("*/*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    compacted.publish((b"b", b"3"))

    summary = compacted.run()

    assert str(summary.facts["reads"]).startswith("there is no snapshot")
    assert rows_of(compacted.folder / str(summary.facts["snapshot"])) == compacted.live_rows()


def test_a_topic_made_anew_does_not_take_over_the_old_ones_snapshots(compacted, monkeypatch):
    compacted.publish((b"a", b"old"), (b"b", b"old"))
    with monkeypatch.context() as patch:
        patch.setattr(BlockingSnapshots, "register", cut_off)
        with pytest.raises(KeyboardInterrupt):
            compacted.run()
    (old,) = SnapshotFolder(compacted.folder).whole()
    compacted.node.client.topics.delete(compacted.topic)
    compacted.node.client.topics.create(compacted.topic, partitions=2)
    compacted.publish((b"c", b"new"), (b"c", b"newer"), (b"d", b"new"))

    summary = compacted.run()

    assert [row[3:] for row in compacted.replayed()] == [(b"c", b"newer"), (b"d", b"new")]
    assert str(summary.facts["reads"]).startswith("there is no snapshot")
    assert (compacted.folder / old).exists()


def test_a_dry_run_tells_what_would_be_read_and_leaves_nothing(compacted):
    compacted.publish((b"a", b"1"), (b"a", b"2"))

    summary = compacted.run(is_dry_run=True)

    assert summary.is_dry_run
    assert summary.facts["is_new"] is True
    assert summary.facts["offsets_read"] == 2
    assert not compacted.folder.exists()
    json.dumps(summary.plain())


def test_two_compactions_do_not_work_in_one_folder(compacted):
    with SnapshotFolder(compacted.folder).locked(), pytest.raises(Busy, match="another compaction"):
        compacted.run()


def test_without_a_folder_on_this_machine_one_must_be_named(compacted, monkeypatch):
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    options = CompactOptions(topic=compacted.topic)

    with pytest.raises(BadInput, match=r"name a folder that .* share with --to") as caught:
        snapshots_folder(options, compacted.node.client)
    assert "\n" not in str(caught.value)


def test_a_topic_that_is_not_there_is_named(spark, node):
    with pytest.raises(UnknownTopic, match="nowhere"):
        compact.run(spark, CompactOptions(topic="nowhere", servers=node.servers), SilentReporter())


def test_keep_has_its_limits():
    with pytest.raises(BadInput, match="keep is -1"):
        CompactOptions(topic="t", keep=-1)


def test_what_a_failed_task_left_is_not_part_of_the_snapshot(tmp_path):
    folder = tmp_path / "s"
    (folder / "partition=0").mkdir(parents=True)
    (folder / "partition=0" / "stray.parquet").write_bytes(b"?")

    finish(folder, Manifest("t", "s", 1, ()))

    assert [path.name for path in folder.glob("*/*")] == []
    assert read_whole(folder) == Manifest("t", "s", 1, ())
