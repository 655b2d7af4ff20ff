"""What a snapshot of a topic says of itself: its manifest, and the columns of its files.

Drawn in `docs/formats/snapshot.md`. The job that writes snapshots and the node that serves them
share this page, so that what one writes the other takes. A manifest comes from outside: all of it
is checked before anything is believed, and the error names what is wrong.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from waterclock.log.schema import HEADERS, MESSAGE_ID
from waterclock.model.errors import BadInput
from waterclock.model.names import check_name, check_topic_name

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 64 << 20
CHUNK_BITS = 16
"""Files are cut at multiples of 2^16 offsets: no two files share such a chunk."""
ROW_GROUP_ROWS_MAX = 1 << CHUNK_BITS
OFFSET_MAX = (1 << 62) - 1

ROWS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        MESSAGE_ID,
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("due_ms", pa.int64()),
        pa.field("append_ms", pa.int64(), nullable=False),
    ]
)
"""The columns of every Parquet file."""


class BadManifest(BadInput):
    """A manifest is not one, or says what cannot be."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One Parquet file of a partition, rows in order of offset."""

    path: str
    """Below the snapshot's folder, with `/`."""
    rows: int
    size_bytes: int
    first_offset: int
    last_offset: int

    @property
    def chunks(self) -> range:
        """The chunks it may have rows of."""
        return range(self.first_offset >> CHUNK_BITS, (self.last_offset >> CHUNK_BITS) + 1)


@dataclass(frozen=True, slots=True)
class SnapshotPartition:
    """What is left of `[start_offset, end_offset)` of one partition."""

    partition: int
    start_offset: int
    end_offset: int
    files: tuple[SnapshotFile, ...]
    log_tag: int = 0
    """Of the log it was made from, as in its frames; 0: not known. A topic that is deleted and made
    again has other logs, and other messages at these offsets."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole snapshot."""

    topic: str
    snapshot: str
    created_ms: int
    partitions: tuple[SnapshotPartition, ...]

    @property
    def rows(self) -> int:
        return sum(partition.rows for partition in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for partition in self.partitions for file in partition.files)

    @property
    def ends(self) -> dict[int, int]:
        """The end offset of each partition."""
        return {each.partition: each.end_offset for each in self.partitions}

    def encode(self) -> bytes:
        fields = {
            "format": FORMAT,
            "topic": self.topic,
            "snapshot": self.snapshot,
            "created_ms": self.created_ms,
            "partitions": [
                {
                    "partition": each.partition,
                    "start_offset": each.start_offset,
                    "end_offset": each.end_offset,
                    "log_tag": each.log_tag,
                    "rows": each.rows,
                    "files": [
                        {
                            "path": file.path,
                            "rows": file.rows,
                            "bytes": file.size_bytes,
                            "first_offset": file.first_offset,
                            "last_offset": file.last_offset,
                        }
                        for file in each.files
                    ],
                }
                for each in self.partitions
            ],
        }
        return json.dumps(fields, indent=1).encode() + b"\n"


def parse_manifest(data: bytes) -> Manifest:
    """Return a manifest, all of it checked; raise BadManifest."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise BadManifest(f"manifest has {len(data)} bytes; at most {MANIFEST_BYTES_MAX}")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"manifest is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadManifest("manifest is not a JSON object")
    # What a file says is not told to whoever names it, beyond numbers: it may be any file.
    if fields.get("format") != FORMAT:
        raise BadManifest(
            f"format is {_number_text(fields.get('format'))}; this release reads {FORMAT}: use the "
            "release that wrote it, or a newer one"
        )
    topic, snapshot = _text(fields, "topic"), _text(fields, "snapshot")
    _check("topic", topic, check_topic_name)
    _check("snapshot", snapshot, partial(check_name, "snapshot"))
    partitions = tuple(_partition(each) for each in _objects(fields, "partitions"))
    if len({each.partition for each in partitions}) != len(partitions):
        raise BadManifest("partitions: one is listed twice")
    return Manifest(topic, snapshot, _count(fields, "created_ms"), partitions)


def _partition(fields: Mapping[str, Any]) -> SnapshotPartition:
    files = tuple(_file(each) for each in _objects(fields, "files"))
    partition = SnapshotPartition(
        _count(fields, "partition"),
        _count(fields, "start_offset"),
        _count(fields, "end_offset"),
        files,
        _count(fields, "log_tag"),
    )
    where = f"partition {partition.partition}"
    if _count(fields, "rows") != partition.rows:
        raise BadManifest(f"{where}: rows is {fields['rows']}, but its files have {partition.rows}")
    if partition.start_offset > partition.end_offset:
        raise BadManifest(f"{where}: start_offset is above end_offset")
    after = partition.start_offset
    for file in files:
        if not after <= file.first_offset <= file.last_offset < partition.end_offset:
            raise BadManifest(f"{where}: {file.path} is out of order, or outside the partition")
        after = file.last_offset + 1
    return partition


def _file(fields: Mapping[str, Any]) -> SnapshotFile:
    path = _text(fields, "path")
    parts = path.split("/")
    if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise BadManifest("the path of a file leads out of the snapshot's folder")
    file = SnapshotFile(
        path,
        _count(fields, "rows"),
        _count(fields, "bytes"),
        _count(fields, "first_offset"),
        _count(fields, "last_offset"),
    )
    if not 0 < file.rows <= file.last_offset - file.first_offset + 1:
        raise BadManifest(f"{path}: {file.rows} rows do not fit its offsets")
    return file


def _check(what: str, name: str, check: Callable[[str], None]) -> None:
    try:
        check(name)
    except BadInput:
        raise BadManifest(f"{what} name has characters that no name has, or too many") from None


def _objects(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadManifest(f"{name} is not a list of objects")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise BadManifest(f"{name} is not a text")
    return value


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= OFFSET_MAX:
        raise BadManifest(f"{name} is {_number_text(value)}, not a whole number of 0 to 2^62-1")
    return value


def _number_text(value: object) -> str:
    return str(value)[:50] if isinstance(value, int | float) else "something else"
