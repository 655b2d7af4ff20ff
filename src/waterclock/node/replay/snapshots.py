"""The snapshots registered with a node: compacted copies of topics, from which replays begin.

A snapshot is a folder with a manifest and Parquet files (docs/formats/snapshot.md), written by a
job and left where it is. What is kept of it is a record, `snapshot/<topic>/<snapshot>`: where it
is, how far it reaches, and the ids of the logs it was made from. A topic deleted and made again has
other logs, so nothing old speaks for it.

When it is registered every file is opened, and of each partition the tag of the log and the last
message are compared with the log's own, if the log still has it. When it is used, it is looked at
again: files are not ours, and whoever owns them may have taken them away.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from waterclock.log.schema import row_offsets
from waterclock.log.segment import log_tag
from waterclock.log.snapshot import Manifest, SnapshotPartition
from waterclock.model.errors import (
    AlreadyExists,
    BadInput,
    CapacityReached,
    Damaged,
)
from waterclock.model.views import SnapshotInfo, SnapshotPartitionInfo
from waterclock.node.metadata import Metadata, Records
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import Missing
from waterclock.node.partition.remote_log import PartitionLog, current_log
from waterclock.node.replay.snapshot_files import PartitionRows, check_files, read_manifest
from waterclock.node.topics import Topic, Topics

SNAPSHOT = "snapshot/"
SNAPSHOTS_MAX = 100
"""Of a topic."""
FOLDER_CHARS_MAX = 4_096
FOLDER = "snapshots"
"""In the data folder: where snapshots lie unless somebody says otherwise."""


class SnapshotPart(SnapshotPartitionInfo, frozen=True):
    """What a snapshot has of one partition, and of which log."""

    log_id: str


class SnapshotRecord(SnapshotInfo, frozen=True):
    """A snapshot, as it is remembered."""

    partitions: tuple[SnapshotPart, ...]
    manifest_crc: int


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """From where a replay reads one partition of a snapshot."""

    folder: Path
    partition: SnapshotPartition


Sources = Mapping[tuple[str, int], SnapshotSource | Damaged]
"""By snapshot and partition, where it is read, or why it cannot be."""


class Snapshots:
    """All snapshots of a node. `open` it once the topics are."""

    def __init__(self, topics: Topics, metadata: Metadata, folders: Sequence[Path]) -> None:
        """Take those below `folders`, and no other."""
        self._topics = topics
        self._metadata = metadata
        self._folders = folders
        self._known: dict[str, dict[str, SnapshotRecord]] = {}
        """By topic, then by name."""
        self._strangers: list[str] = []
        """Names of records that speak for no topic, to be taken away."""
        metadata.on_leading.append(lambda is_leading: self._load())
        topics.records_of.append(self._records_of)
        topics.on_deleted.append(self._topic_deleted)

    def __repr__(self) -> str:
        return f"<Snapshots {sum(map(len, self._known.values()))}>"

    async def open(self) -> None:
        """Remember those that still speak for a topic."""
        self._load()
        await self.tidy()

    def _load(self) -> None:
        self._known.clear()
        self._strangers.clear()
        for key, value in self._metadata.items(SNAPSHOT):
            info = msgspec.json.decode(value, type=SnapshotRecord)
            topic = self._topics.find(info.topic)
            if topic is None or not any(_is_of(part, topic) for part in info.partitions):
                self._strangers.append(key)
            else:
                self._known.setdefault(info.topic, {})[info.snapshot] = info

    async def tidy(self) -> None:
        """Take away the records of those that speak for no topic."""
        strangers, self._strangers = self._strangers, []
        await self._metadata.put_many(dict.fromkeys(strangers))

    async def register(self, topic_name: str, folder: str) -> SnapshotRecord:
        """Use a snapshot from now on. Again is harmless; raises BadInput or Damaged."""
        topic = self._topics.get(topic_name)
        if not folder.startswith("/") or len(folder) > FOLDER_CHARS_MAX or "\0" in folder:
            raise BadInput("folder must be an absolute path on the node's own machine")
        path = await asyncio.to_thread(self._allowed, folder)
        manifest, crc = await asyncio.to_thread(read_manifest, path)
        if manifest.topic != topic_name:
            raise BadInput(f"topic: the snapshot is one of {manifest.topic!r}, not {topic_name!r}")
        await _check_place(topic, manifest)
        last_ids = await asyncio.to_thread(_checked, path, manifest)
        if self._topics.get(topic_name) is not topic:
            raise BadInput(f"topic: {topic_name!r} was deleted meanwhile")
        await _check_ids(topic, last_ids)
        known = self._known.setdefault(topic_name, {})
        info = _info(topic, manifest, folder, crc)
        before = known.get(info.snapshot)
        if before is not None:
            if before.manifest_crc != crc:
                raise AlreadyExists("snapshot", info.snapshot)
        elif len(known) >= SNAPSHOTS_MAX:
            raise CapacityReached("snapshots of a topic", SNAPSHOTS_MAX)
        written = self._metadata.write({_key(info): msgspec.json.encode(info)})
        known[info.snapshot] = info
        await self._metadata.wait_flushed(written)
        return info

    def _allowed(self, folder: str) -> Path:
        """Return where a folder is, links followed; raises BadInput if no snapshot may be there."""
        path = Path(os.path.realpath(folder))
        if not any(path.is_relative_to(os.path.realpath(each)) for each in self._folders):
            below = ", ".join(map(str, self._folders))
            raise BadInput(f"folder must lie below {below}: see node.snapshot_folders for others")
        return path

    def list(self, topic_name: str) -> list[SnapshotRecord]:
        """Return the snapshots of a topic, the one that reaches farthest first."""
        self._topics.get(topic_name)
        known = self._known.get(topic_name, {}).values()
        return sorted(known, key=_reach, reverse=True)

    async def delete(self, topic_name: str, snapshot: str) -> bool:
        """Use a snapshot no more; False if there is none. Its files stay."""
        self._topics.get(topic_name)
        known = self._known.get(topic_name, {})
        if snapshot not in known:
            return False
        written = self._metadata.write({_key(known[snapshot]): None})
        del known[snapshot]
        await self._metadata.wait_flushed(written)
        return True

    def newest(self, host: PartitionHost, log: PartitionLog) -> tuple[str, SnapshotPart] | None:
        """Return the snapshot that reaches farthest into a partition, if one is of its log."""
        log_id, end = log.log_id.hex(), log.end
        found = [
            (info.snapshot, part)
            for info in self._known.get(host.topic, {}).values()
            for part in info.partitions
            # One that reaches beyond the end speaks of messages that a crash has taken back.
            if part.partition == host.partition and part.log_id == log_id and part.end_offset <= end
        ]
        return max(found, key=lambda each: (each[1].end_offset, each[0]), default=None)

    async def sources(self, topic_name: str, wanted: Sequence[tuple[str, int]]) -> Sources:
        """Return where partitions of snapshots are read, or why they cannot be."""
        found: dict[tuple[str, int], SnapshotSource | Damaged] = {}
        for snapshot in dict.fromkeys(snapshot for snapshot, _ in wanted):
            numbers = [number for name, number in wanted if name == snapshot]
            gone = Damaged(f"snapshot {snapshot!r}: it has other partitions than it had")
            try:
                sources = await self._sources_of(topic_name, snapshot)
                found |= {(snapshot, number): sources.get(number, gone) for number in numbers}
            except Damaged as error:
                found |= {(snapshot, number): error for number in numbers}
        return found

    async def _sources_of(self, topic_name: str, snapshot: str) -> dict[int, SnapshotSource]:
        info = self._known.get(topic_name, {}).get(snapshot)
        if info is None:
            raise Damaged(f"snapshot {snapshot!r} of {topic_name!r} is not known any more")
        folder = Path(info.folder)
        try:
            manifest, crc = await asyncio.to_thread(read_manifest, folder)
        except BadInput as error:
            raise Damaged(f"{folder}: {error}") from error
        if crc != info.manifest_crc:
            raise Damaged(f"{folder}: its manifest is not the one that was registered")
        return {each.partition: SnapshotSource(folder, each) for each in manifest.partitions}

    def _records_of(self, topic: Topic) -> Records:
        return {_key(info): None for info in self._known.get(topic.name, {}).values()}

    def _topic_deleted(self, topic: Topic) -> None:
        self._known.pop(topic.name, None)


def _key(info: SnapshotRecord) -> str:
    return f"{SNAPSHOT}{info.topic}/{info.snapshot}"


def _reach(info: SnapshotRecord) -> tuple[int, int, str]:
    return sum(part.end_offset for part in info.partitions), info.created_ms, info.snapshot


def _is_of(part: SnapshotPart, topic: Topic) -> bool:
    """Say if a part speaks for a topic's log; one that cannot be opened may come back."""
    if part.partition >= len(topic.partitions):
        return False
    log_id = topic.log_id(part.partition)
    return not log_id or log_id == part.log_id


def _info(topic: Topic, manifest: Manifest, folder: str, crc: int) -> SnapshotRecord:
    parts = tuple(
        SnapshotPart(
            each.partition,
            each.start_offset,
            each.end_offset,
            each.rows,
            sum(file.size_bytes for file in each.files),
            len(each.files),
            topic.log_id(each.partition),
        )
        for each in manifest.partitions
    )
    return SnapshotRecord(topic.name, manifest.snapshot, folder, manifest.created_ms, parts, crc)


async def _check_place(topic: Topic, manifest: Manifest) -> None:
    """Raise BadInput if a snapshot speaks of what a topic does not have."""
    for each in manifest.partitions:
        if each.partition >= len(topic.partitions):
            count = len(topic.partitions)
            raise BadInput(
                f"partitions: the snapshot has partition {each.partition}, the topic {count}"
            )
        log = await current_log(topic.partition(each.partition))
        if each.log_tag and each.log_tag != log_tag(log.log_id):
            raise BadInput(
                f"log_tag: partition {each.partition} of the snapshot is of another log: the topic "
                "was deleted and made again since"
            )
        end = log.end
        if each.end_offset > end:
            raise BadInput(
                f"end_offset: the snapshot reaches to {each.end_offset} of partition "
                f"{each.partition}, which ends at {end}: it is not of this topic's log"
            )


def _checked(folder: Path, manifest: Manifest) -> dict[int, tuple[int, bytes]]:
    """Check all files; return offset and id of the last message of each partition."""
    check_files(folder, manifest)
    found = {}
    for each in manifest.partitions:
        if each.files:
            rows = PartitionRows(folder, each, each.files[-1].last_offset)
            last = rows.last_row()
            rows.close()
            if last is None or last[0] != each.files[-1].last_offset:
                raise Damaged(f"{folder}: {each.files[-1].path} does not end where it is said to")
            found[each.partition] = last
    return found


async def _check_ids(topic: Topic, last_ids: dict[int, tuple[int, bytes]]) -> None:
    """Raise BadInput if a message of a snapshot is not the one the log has in its place."""
    for partition, (offset, message_id) in last_ids.items():
        found = await _id_at(topic.partition(partition), offset)
        if found is not None and found != message_id:
            raise BadInput(
                f"partition {partition}: the snapshot and the log have different messages "
                f"at offset {offset}: it is of another log"
            )


async def _id_at(host: PartitionHost, offset: int) -> bytes | None:
    """Return the id of a message; None if the log does not have it any more."""
    log = await current_log(host)
    if offset >= log.end:
        return None
    await log.load(offset)
    frame = log.at(offset)
    if frame is None or isinstance(frame, Missing) or not frame.header.is_deliverable:
        return None
    rows = log.rows(frame)
    at = int(np.searchsorted(offsets := row_offsets(frame.header, rows), offset))
    if at == len(offsets) or offsets[at] != offset:
        return None
    found: bytes = rows.column("message_id")[at].as_py()
    return found
