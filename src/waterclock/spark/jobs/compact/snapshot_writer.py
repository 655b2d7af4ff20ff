"""The tasks of a compaction: Spark sends offsets, each task fetches the bodies and writes a file.

A data source of its own, because it is the one way in which Spark hands Arrow to Python without
pandas. A task gets the offsets of one slice, sorted; what is below `from_offset` it takes from
the last snapshot, the rest from the node. Its file has a name of its own in every attempt, and
counts only once the sink commits: a task that failed, or ran twice, leaves a file nobody lists.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from waterclock.client.settings import DEFAULT_ADDRESS
from waterclock.client.target import target_of
from waterclock.log.snapshot import CHUNK_BITS, SnapshotFile
from waterclock.spark.jobs.compact.snapshot_files import (
    file_name,
    partition_folder,
    sync_file,
    sync_folder,
    tell_written,
)
from waterclock.spark.jobs.compact.snapshot_rows import RowGroups, picked_of_file, picked_of_frames
from waterclock.spark.read.fetcher import Fetcher
from waterclock.spark.read.http_node import PATIENCE_S
from waterclock.spark.read.ranges import Range

FORMAT = "waterclock_snapshot"
FETCH_BYTES = 8 << 20
SKIP_OFFSETS_MIN = 1 << CHUNK_BITS
"""Where nothing lives for so many offsets, the log is not read."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bodies:
    """Where the bodies of messages are."""

    address: str
    """Of the node, for HTTP."""
    topic: str
    folder: str
    """Of the snapshot in the making."""
    last_folder: str
    """Of the last snapshot."""
    partitions: dict[int, tuple[int, tuple[str, ...]]]
    """For each: the offset from which on the log is read, and the files for those below it."""

    def encode(self) -> str:
        """Return it as an option of a sink, which is text."""
        partitions = {str(number): each for number, each in self.partitions.items()}
        return json.dumps([self.address, self.topic, self.folder, self.last_folder, partitions])

    @classmethod
    def decode(cls, text: str) -> "Bodies":
        """Return what `encode` made a text of."""
        address, topic, folder, last_folder, partitions = json.loads(text)
        partitions = {
            int(number): (from_offset, tuple(paths))
            for number, (from_offset, paths) in partitions.items()
        }
        return cls(address, topic, folder, last_folder, partitions)


class SnapshotSink(DataSource):
    """Takes (partition, offset), sorted in each Spark partition; writes a file for each."""

    @classmethod
    def name(cls) -> str:
        """Return what the format is called."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what the tasks run."""
        return SnapshotWriter(self.options["bodies"])


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task has written: at most one file."""

    partition: int
    files: tuple[SnapshotFile, ...]


class SnapshotWriter(DataSourceArrowWriter):
    """Writes the file of a slice."""

    def __init__(self, bodies: str) -> None:
        self._bodies = bodies

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one file with the messages at these offsets."""
        batches = [batch for batch in iterator if len(batch)]
        if not batches:
            return Written(-1, ())
        partition = batches[0].column("partition")[0].as_py()
        wanted = np.concatenate([batch.column("offset").to_numpy() for batch in batches])
        return Written(partition, write_file(Bodies.decode(self._bodies), partition, wanted))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Note which files count."""
        written = [message for message in messages if isinstance(message, Written)]
        folder = Path(Bodies.decode(self._bodies).folder)
        tell_written(folder, [(each.partition, file) for each in written for file in each.files])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave it all: the folder has no manifest, and the next run sweeps it away."""


def write_file(bodies: Bodies, partition: int, wanted: Int64s) -> tuple[SnapshotFile, ...]:
    """Write the messages at the offsets wanted (sorted) that are still there, durably."""
    folder = Path(bodies.folder)
    chunk_start = int(wanted[0]) >> CHUNK_BITS << CHUNK_BITS
    path = partition_folder(folder, partition) / file_name(chunk_start, os.urandom(3).hex())
    made = RowGroups(path)
    from_offset, old_files = bodies.partitions[partition]
    split = int(np.searchsorted(wanted, from_offset))
    for old in old_files:
        made.add(picked_of_file(Path(bodies.last_folder) / old, wanted[:split]))
    for stretch in _stretches(wanted[split:]):
        made.add(_picked_of_log(bodies, partition, stretch))
    made.close()
    if not made.rows:  # all of it was overtaken: by retention, or by a newer message of its key
        return ()
    sync_file(path)
    sync_folder(path.parent)
    size = path.stat().st_size
    name = path.relative_to(folder).as_posix()
    return (SnapshotFile(name, made.rows, size, made.first_offset, made.last_offset),)


def _picked_of_log(bodies: Bodies, partition: int, wanted: Int64s) -> Iterator[pa.RecordBatch]:
    stretch = Range(partition, int(wanted[0]), int(wanted[-1]) + 1)
    # What is gone by now was taken by retention, or has a newer message of its key behind the end.
    with Fetcher(
        bodies.address,
        bodies.topic,
        stretch,
        fetch_bytes=FETCH_BYTES,
        with_scheduled=False,
        retained=0,
        fail_on_data_loss=False,
        patience_s=PATIENCE_S,
        # Of the environment: what tells tasks what to do is a text that plans show.
        credential=target_of(DEFAULT_ADDRESS).credential,
    ) as fetching:
        for frames in fetching:
            yield from picked_of_frames(frames, wanted)


def _stretches(wanted: Int64s) -> Iterator[Int64s]:
    """Yield offsets apart where there is a wide gap between them."""
    if not len(wanted):
        return
    gaps = np.nonzero(np.diff(wanted) > SKIP_OFFSETS_MIN)[0] + 1
    for start, end in pairwise([0, *gaps.tolist(), len(wanted)]):
        yield wanted[start:end]
