"""Manifests of snapshots: what is written is read, and what cannot be is refused by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.snapshot import (
    BadManifest,
    Manifest,
    SnapshotFile,
    SnapshotPartition,
    parse_manifest,
)
from waterclock.model.errors import BadInput

MANIFEST = Manifest(
    topic="orders",
    snapshot="1794766210123-5f3a9c",
    created_ms=1_794_766_210_123,
    partitions=(
        SnapshotPartition(
            0,
            5,
            200_000,
            (
                SnapshotFile("partition=0/0-a.parquet", 3, 1_000, 5, 65_535),
                SnapshotFile("partition=0/1-b.parquet", 1, 900, 199_999, 199_999),
            ),
        ),
        SnapshotPartition(1, 0, 0, (), log_tag=7),
    ),
)


def test_a_manifest_reads_as_it_was_written():
    assert parse_manifest(MANIFEST.encode()) == MANIFEST
    assert (MANIFEST.rows, MANIFEST.size_bytes) == (4, 1_900)
    assert MANIFEST.ends == {0: 200_000, 1: 0}


def test_a_file_knows_its_chunks():
    assert [file.chunks for file in MANIFEST.partitions[0].files] == [range(1), range(3, 4)]


def test_fields_that_later_releases_add_are_ignored():
    manifest = json.loads(MANIFEST.encode()) | {"colour": "blue"}

    assert parse_manifest(json.dumps(manifest).encode()) == MANIFEST


def changed(path: list[str | int], value: object) -> bytes:
    manifest: Any = json.loads(MANIFEST.encode())
    at = manifest
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(manifest).encode()


FILE: list[str | int] = ["partitions", 0, "files", 0]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["format"], 2, "format is 2"),
        (["topic"], "", "topic is not a text"),
        (["topic"], "../etc", "topic name"),
        (["snapshot"], "a/b", "snapshot name"),
        (["created_ms"], -1, "created_ms is -1"),
        (["created_ms"], True, "created_ms is True"),
        (["partitions"], {}, "partitions is not a list"),
        (["partitions", 0], 7, "partitions is not a list of objects"),
        (["partitions", 1, "partition"], 0, "listed twice"),
        (["partitions", 0, "rows"], 5, "rows is 5, but its files have 4"),
        (["partitions", 0, "start_offset"], 300_000, "start_offset is above"),
        (["partitions", 0, "end_offset"], 199_999, "outside the partition"),
        ([*FILE, "path"], "../../secret", "leads out"),
        ([*FILE, "path"], "/etc/passwd", "leads out"),
        ([*FILE, "path"], "a\\b", "leads out"),
        ([*FILE, "rows"], 0, "do not fit"),
        ([*FILE, "last_offset"], 6, "3 rows do not fit"),
        ([*FILE, "first_offset"], 4, "outside the partition"),
        ([*FILE, "first_offset"], 1 << 63, "not a whole number"),
    ],
)
def test_what_cannot_be_is_refused_by_name(path, value, words):
    with pytest.raises(BadInput, match=words):
        parse_manifest(changed(path, value))


@given(st.binary(max_size=60) | st.text('[]{}":,0123 afntu').map(str.encode))
def test_any_bytes_are_a_manifest_or_refused(data):
    with pytest.raises(BadManifest):
        parse_manifest(data)


def test_deeply_nested_json_is_refused():
    with pytest.raises(BadManifest, match="not JSON"):
        parse_manifest(b"[" * 100_000)
