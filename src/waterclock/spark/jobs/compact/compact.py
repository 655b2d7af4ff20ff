"""`compact`: the latest message of each key of a topic, as a snapshot that replays read fast.

What is kept is what the log's own compaction keeps (`log/compaction.py`): of each key the message
with the greatest offset, nothing if that is a tombstone, and every message without a key that has a
value. The result is a folder of Parquet files (`docs/formats/snapshot.md`), registered with the
node. It goes on from the last registered snapshot: its keys and offsets and the new part of the
log are read, and files that lost nothing are linked.

A crash at any point leaves the last snapshot as it was. A folder without a manifest is swept by the
next run; a whole snapshot that was not registered yet is registered by it.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from waterclock.client._sync.client import BlockingClient
from waterclock.log.snapshot import Manifest, SnapshotFile, SnapshotPartition
from waterclock.model.errors import BadInput
from waterclock.spark.jobs.compact.plan import (
    Layout,
    Ranges,
    is_up_to_date,
    plan_layout,
    plan_ranges,
)
from waterclock.spark.jobs.compact.snapshot_files import (
    SnapshotFolder,
    finish,
    link_file,
    make_folders,
    read_whole,
    take_written,
)
from waterclock.spark.jobs.job import JobOptions, Reporter, Summary, connector, node_client
from waterclock.spark.options import ReadOptions
from waterclock.spark.read.planning import http_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waterclock.spark.jobs.compact.shuffle import Shuffle
    from waterclock.spark.jobs.compact.snapshot_writer import Bodies

FOLDER = "snapshots"
KEEP_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions(JobOptions):
    """Which topic, and what becomes of its snapshots."""

    topic: str
    to: str = ""
    """The folder of all snapshots; without, `snapshots` in the node's data folder, if that is on
    this machine. The node must see it under the same name, and so must all tasks."""
    keep: int = 1
    """Older snapshots that stay: replays that began with one may still read it."""
    is_full: bool = False
    """Read the log from its beginning, whatever snapshot there is."""

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= KEEP_MAX:
            raise BadInput(f"keep is {self.keep}; it must be from 0 to {KEEP_MAX}")


def run(spark: "SparkSession", options: CompactOptions, reporter: Reporter) -> Summary:
    """Bring the snapshot of a topic up to date."""
    with node_client(options) as client:
        folder = snapshots_folder(options, client)
        if options.is_dry_run:
            return Compaction(spark, options, reporter, client, folder).would_do()
        with folder.locked():
            return Compaction(spark, options, reporter, client, folder).run()


def snapshots_folder(options: CompactOptions, client: BlockingClient) -> SnapshotFolder:
    """Return where the snapshots of the topic are; raise BadInput if no option says so."""
    topic = client.topics.get(options.topic).name
    if options.to:
        return SnapshotFolder(Path(options.to).absolute() / topic)
    data = Path(client.node().data_folder)
    if not data.is_dir() or not os.access(data, os.W_OK):
        raise BadInput(
            f"the node's data folder {data} cannot be written on this machine: name a folder that "
            "the node and this machine share with --to"
        )
    return SnapshotFolder(data / FOLDER / topic)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the node says of a topic."""

    bounds: Mapping[int, tuple[int, int]]
    """(first offset at which a message can be, end) of each partition."""
    tags: Mapping[int, int]
    """Of each partition's log; 0: it is empty."""
    is_compacted: bool
    now_ms: int

    def are_of(self, manifest: Manifest) -> bool:
        """Tell whether a snapshot is of these logs, and not of others of that name."""
        return all(
            each.log_tag in (0, self.tags.get(each.partition))
            and each.end_offset <= self.bounds.get(each.partition, (0, -1))[1]
            for each in manifest.partitions
        )


@dataclass(slots=True)
class Compaction:
    spark: "SparkSession"
    options: CompactOptions
    reporter: Reporter
    client: BlockingClient
    folder: SnapshotFolder
    swept: int = 0
    last: tuple[Path, Manifest] | None = field(default=None)
    """The snapshot to go on from, and where it is."""

    def would_do(self) -> Summary:
        """Say what a run would read."""
        facts = facts_of(self.client, self.options.topic)
        self.last = self._last_registered(facts)
        ranges = self._ranges(facts)
        return self._summary(ranges, None, is_new=not self._is_up_to_date(ranges))

    def run(self) -> Summary:
        """Make a new snapshot if there is anything new, and register it."""
        facts = facts_of(self.client, self.options.topic)
        self.swept = self.folder.sweep()
        if self.swept:
            self.reporter.note(f"removed {self.swept} unfinished snapshot(s) of an earlier run")
        self.last = self._last_registered(facts)
        self._register_finished(facts)
        ranges = self._ranges(facts)
        if self._is_up_to_date(ranges):
            assert self.last is not None
            self._let_old_ones_go(facts)
            self.reporter.note(f"nothing new since snapshot {self.last[1].snapshot}")
            return self._summary(ranges, self.last[1], is_new=False)
        manifest, layout, live_rows = self._make(facts, ranges)
        self.client.snapshots.register(
            self.options.topic, str(self.folder.folder / manifest.snapshot)
        )
        self._let_old_ones_go(facts)
        summary = self._summary(ranges, manifest, is_new=True)
        more = {
            "files_linked": len(layout.links),
            "overtaken": live_rows - manifest.rows,
        }
        return Summary(job=summary.job, rows=summary.rows, facts={**summary.facts, **more})

    # The new snapshot

    def _make(self, facts: Facts, ranges: Ranges) -> tuple[Manifest, Layout, int]:
        from waterclock.spark.jobs.compact.shuffle import Shuffle

        options, last = self.options, self.last
        base = (str(last[0]), last[1]) if last is not None and ranges.is_incremental else None
        with Shuffle(self.spark, options, options.topic, ranges, base) as shuffle:
            return self._write(facts, ranges, shuffle, base)

    def _write(
        self,
        facts: Facts,
        ranges: Ranges,
        shuffle: "Shuffle",
        base: tuple[str, Manifest] | None,
    ) -> tuple[Manifest, Layout, int]:
        with self.reporter.stage("finding the latest of each key", rows=ranges.offsets):
            counts = shuffle.count()
        live_rows = sum(each.rows for each in counts)
        cores = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        layout = plan_layout(counts, base[1] if base else None, cores=cores)
        name = f"{facts.now_ms}-{os.urandom(3).hex()}"
        folder = self.folder.folder / name
        make_folders(folder)
        files = [
            (partition, link_file(Path(base[0]), folder, file))
            for partition, file in layout.links
            if base is not None
        ]
        if layout.slices:
            with self.reporter.stage("writing messages", rows=sum(s.rows for s in layout.slices)):
                shuffle.write(layout, self._bodies(ranges, folder, base))
            files += take_written(folder)
        manifest = _manifest(self.options.topic, name, facts, ranges, files)
        finish(folder, manifest)
        return manifest, layout, live_rows

    def _bodies(self, ranges: Ranges, folder: Path, base: tuple[str, Manifest] | None) -> "Bodies":
        from waterclock.spark.jobs.compact.snapshot_writer import Bodies

        old: dict[int, tuple[str, ...]] = {}
        if base is not None:
            for partition in base[1].partitions:
                old[partition.partition] = tuple(file.path for file in partition.files)
        asked = ReadOptions.parse(connector(self.options, topic=self.options.topic))
        return Bodies(
            address=http_address(asked.servers, asked.credential),
            topic=self.options.topic,
            folder=str(folder),
            last_folder=base[0] if base is not None else "",
            partitions={
                each.partition: (each.from_offset, old.get(each.partition, ()))
                for each in ranges.partitions
            },
        )

    # Older ones

    def _last_registered(self, facts: Facts) -> tuple[Path, Manifest] | None:
        """Return the newest registered snapshot that is whole as this machine sees it."""
        for each in self.client.snapshots.list(self.options.topic):
            manifest = read_whole(Path(each.folder))
            if manifest is not None and facts.are_of(manifest):
                return Path(each.folder), manifest
        return None

    def _register_finished(self, facts: Facts) -> None:
        """Register the snapshot of an earlier run that ended before it could do so."""
        since_ms = -1 if self.last is None else self.last[1].created_ms
        finished = [
            manifest
            for manifest in self.folder.whole().values()
            if manifest.created_ms > since_ms and facts.are_of(manifest)
        ]
        if finished:
            newest = max(finished, key=lambda manifest: manifest.created_ms)
            path = self.folder.folder / newest.snapshot
            self.client.snapshots.register(self.options.topic, str(path))
            self.reporter.note(f"registered snapshot {newest.snapshot} of an earlier run")
            self.last = path, newest

    def _let_old_ones_go(self, facts: Facts) -> None:
        """Forget and remove what is more than is to be kept; what is not of this log stays."""
        here = self.folder.whole()
        registered = {each.name for each in self.client.snapshots.list(self.options.topic)}
        newest_first = sorted(registered & set(here), key=lambda name: -here[name].created_ms)
        kept = newest_first[: self.options.keep + 1]
        for name, manifest in here.items():
            if name not in kept and facts.are_of(manifest):
                if name in registered:
                    self.client.snapshots.delete(self.options.topic, name)
                self.folder.remove(name)

    # The summary

    def _ranges(self, facts: Facts) -> Ranges:
        last = None if self.last is None or self.options.is_full else self.last[1]
        return plan_ranges(facts.bounds, last, is_compacted=facts.is_compacted, now_ms=facts.now_ms)

    def _is_up_to_date(self, ranges: Ranges) -> bool:
        return is_up_to_date(ranges, None if self.last is None else self.last[1])

    def _summary(self, ranges: Ranges, manifest: Manifest | None, *, is_new: bool) -> Summary:
        facts: dict[str, object] = {
            "topic": self.options.topic,
            "is_new": is_new,
            "reads": ranges.why,
            "offsets_read": ranges.offsets if is_new else 0,
            "folder": str(self.folder.folder),
        }
        if manifest is not None:
            facts |= {
                "snapshot": manifest.snapshot,
                "bytes": manifest.size_bytes,
                "files": sum(len(each.files) for each in manifest.partitions),
                "ends": {str(partition): end for partition, end in manifest.ends.items()},
            }
        rows = 0 if manifest is None else manifest.rows
        return Summary(job="compact", rows=rows, facts=facts, is_dry_run=self.options.is_dry_run)


def facts_of(client: BlockingClient, topic: str) -> Facts:
    """Ask the node what it has of a topic."""
    info = client.topics.get(topic)
    now_ms = time.time_ns() // 1_000_000
    bounds, tags = {}, {}
    for each in info.partitions:
        if each.problem:
            raise BadInput(f"partition {each.partition} of {topic} is not whole: {each.problem}")
        start, end = each.start_offset, each.end_offset
        tags[each.partition] = _first_frame(client, topic, each.partition, start, end)[1]
        first, _ = _first_frame(client, topic, each.partition, start, end, deliverable_only=True)
        bounds[each.partition] = first, end
    return Facts(bounds, tags, info.is_compacted, now_ms)


def _first_frame(
    client: BlockingClient,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    deliverable_only: bool = False,
) -> tuple[int, int]:
    """Return where the first frame is, and its log's tag; (end, 0) if there is none."""
    while start < end:
        fetched = client.fetch(
            topic, partition, start, end_offset=end, bytes_max=1, deliverable_only=deliverable_only
        )
        for frame in fetched.frames():
            return max(frame.header.base_offset, start), frame.header.log_tag
        if fetched.next_offset <= start:
            break
        start = fetched.next_offset
    return end, 0


def _manifest(
    topic: str,
    name: str,
    facts: Facts,
    ranges: Ranges,
    files: list[tuple[int, SnapshotFile]],
) -> Manifest:
    partitions = []
    for each in ranges.partitions:
        own = sorted((f for p, f in files if p == each.partition), key=lambda f: f.first_offset)
        partitions.append(
            SnapshotPartition(
                each.partition,
                each.start_offset,
                each.end_offset,
                tuple(own),
                facts.tags[each.partition],
            )
        )
    return Manifest(topic, name, facts.now_ms, tuple(partitions))
