"""How a group is remembered: the names of its records, and what is in them.

`group/<topic>/<group>` has its generation, the run ids of its partitions, what they missed, when
the group was last in use and whether it ever was in earnest, as JSON;
`progress/<topic>/<group>/<partition>` has a cursor, as drawn in docs/formats/progress.md.
"""

import os
from collections.abc import Callable, Iterator

import msgspec

from waterclock.delivery.progress import decode_progress
from waterclock.model.errors import BadInput
from waterclock.model.names import is_own
from waterclock.node.groups.host import GroupHost
from waterclock.node.metadata import Metadata, Records

GROUP = "group/"
PROGRESS = "progress/"


class GroupRecord(msgspec.Struct, frozen=True):
    """What is remembered of a group besides its progress."""

    generation: int
    run_ids: list[str] = []
    """One for each partition; see `GroupPartition.run_id`."""
    missed: list[int] = []
    """Of each partition; see `GroupPartition.missed`."""
    active_ms: int = 0
    """When it was last noted to be in use; 0: by a release that did not note it."""
    is_used: bool = True
    """See `GroupHost.is_used`; a release that did not note it kept all groups alike."""
    folder: str = ""
    """Of its topic: one made anew under the same name has another. Empty: by a release that did not
    note it."""


def new_run_id() -> str:
    """Return a name for a run of a group through a log that no other run has."""
    return os.urandom(4).hex()


def progress_key(topic: str, group: str, partition: int) -> str:
    """Return the name of the record of a group's progress in a partition."""
    return f"{PROGRESS}{topic}/{group}/{partition}"


def group_record(host: GroupHost, generation: int) -> dict[str, bytes | None]:
    partitions = host.partitions
    record = GroupRecord(
        generation,
        [at.run_id for at in partitions],
        [at.missed for at in partitions],
        host.active_ms,
        host.is_used,
        host.folder,
    )
    return {f"{GROUP}{host.topic}/{host.name}": msgspec.json.encode(record)}


def progress_of(host: GroupHost, *, shift_ms: int) -> dict[str, bytes | None]:
    """Return the records of a group's progress, wherever it can be known."""
    return {
        progress_key(host.topic, host.name, partition.number): partition.encode(shift_ms=shift_ms)
        for partition in host.partitions
        if partition.is_readable
    }


def saved_ends(metadata: Metadata, topic: str, partition: int, *, folder: str) -> Iterator[int]:
    """Yield what each group of a topic has saved as done in a partition; 0: nothing, or who knows.

    `folder` is the topic's: groups of one that had its name before do not count.
    """
    for key, value in metadata.items(f"{GROUP}{topic}/"):
        record = msgspec.json.decode(value, type=GroupRecord)
        if record.folder in ("", folder):
            group = key.rpartition("/")[2]
            saved = metadata.get(progress_key(topic, group, partition))
            try:
                yield 0 if saved is None else decode_progress(saved)[0].committed
            except BadInput:
                yield 0


def folder_of(metadata: Metadata, topic: str, group: str) -> str:
    """Return the folder of the topic that a group was made for; empty if it is not known."""
    value = metadata.get(f"{GROUP}{topic}/{group}")
    return "" if value is None else msgspec.json.decode(value, type=GroupRecord).folder


def records_of_group(metadata: Metadata, topic: str, group: str) -> Records:
    """Return the names of all records of a group, to be ended."""
    keys = [f"{GROUP}{topic}/{group}"]
    keys += [key for key, _ in metadata.items(f"{PROGRESS}{topic}/{group}/")]
    return dict.fromkeys(keys)


def records_of_topic(metadata: Metadata, topic: str) -> Records:
    """Return the names of all records of a topic's groups, to be ended."""
    prefixes = f"{GROUP}{topic}/", f"{PROGRESS}{topic}/"
    return {key: None for prefix in prefixes for key, _ in metadata.items(prefix)}


def records_of_groups(metadata: Metadata, is_meant: Callable[[str], bool]) -> Records:
    """Return all records of the groups that are meant, by their names."""
    found: Records = {}
    for prefix in (GROUP, PROGRESS):
        for key, value in metadata.items(prefix):
            group = key.split("/")[2]
            if not is_own(group) and is_meant(group):
                found[key] = value
    return found
