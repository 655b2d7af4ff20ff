"""What a data folder has of its own before its node is one of several: records, and their topics.

A node that was alone brings its topics and stored streams into the cluster that it forms. One that
never had any has nothing to bring: its records are put aside, for those of the cluster come in
their place.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import msgspec

from waterclock.log.segment import SUFFIX
from waterclock.model.backup import STREAMS
from waterclock.model.errors import BadConfig
from waterclock.model.sections import DedupConfig
from waterclock.node.metadata import LOG
from waterclock.node.topics import RECORD, TopicRecord
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.local_log import stored_messages
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore

ASIDE = "meta-of-one-node"

log = logging.getLogger(__name__)


class OwnRecords(NamedTuple):
    """The log of records of a folder, and those of its topics' partitions."""

    meta_log: bytes
    logs: tuple[bytes, ...]
    was_shared: bool
    """It has been led before: it is of a cluster."""
    has_streams: bool
    """Messages are stored in its own log of streams."""


def own_records(data_folder: Path, *, now_ms: int) -> OwnRecords | None:
    """Return what a folder brings with it; None if it has nothing. Blocks."""
    data_folder.mkdir(parents=True, exist_ok=True)
    folder = data_folder / "meta"
    if not _has_log(folder):
        return None
    store = _opened(folder, now_ms)
    try:
        topics: dict[str, bytes | None] = {}
        for frame in store.reader.read(store.start, store.end, bytes_max=1 << 62):
            if frame.header.is_deliverable:
                for _, message in stored_messages(frame, frame.header.base_offset):
                    name = (message.key or b"").decode()
                    if name.startswith(RECORD):
                        topics[name] = message.value
        logs = [each for value in topics.values() if value is not None for each in _logs_of(value)]
        has_streams = _has_messages(data_folder / STREAMS, now_ms)
        return OwnRecords(store.log_id, tuple(logs), store.epoch > 0, has_streams)
    finally:
        store.close()


def _has_messages(folder: Path, now_ms: int) -> bool:
    if not _has_log(folder):
        return False
    store = _opened(folder, now_ms)
    try:
        return store.end > 0
    finally:
        store.close()


def _has_log(folder: Path) -> bool:
    return folder.is_dir() and any(each.suffix == SUFFIX for each in folder.iterdir())


def _opened(folder: Path, now_ms: int) -> PartitionStore:
    return open_partition(
        OsFolder(folder),
        log=LOG,
        dedup=DedupConfig(enabled=False),
        now_ms=now_ms,
        new_log_id=bytes(16),
    )


def _logs_of(value: bytes) -> list[bytes]:
    record = msgspec.json.decode(value, type=TopicRecord)
    if len(record.log_ids) < record.settings.partitions or not all(record.log_ids):
        raise BadConfig(
            "cluster.etcd",
            f"the topic in {record.folder} is of a release that did not name its logs: start the "
            "node once without cluster.etcd",
        )
    return [bytes.fromhex(each) for each in record.log_ids]


def put_aside(data_folder: Path) -> None:
    """Make room for the records of a cluster: those here are of nothing."""
    log.info("records_put_aside folder=%s", ASIDE)
    (data_folder / "meta").rename(data_folder / ASIDE)
