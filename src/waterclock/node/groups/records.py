"""How a group is remembered: the names of its records, and what is in them.

`group/<topic>/<group>` has its generation, the run ids of its partitions, what they missed, when
the group was last in use and whether it ever was in earnest, as JSON;
`progress/<topic>/<group>/<partition>` has a cursor, as drawn in docs/formats/progress.md.
"""

import os

import msgspec

from waterclock.node.groups.host import GroupHost

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
    )
    return {f"{GROUP}{host.topic}/{host.name}": msgspec.json.encode(record)}


def progress_of(host: GroupHost, *, shift_ms: int) -> dict[str, bytes | None]:
    """Return the records of a group's progress, wherever it can be known."""
    return {
        progress_key(host.topic, host.name, partition.number): partition.encode(shift_ms=shift_ms)
        for partition in host.partitions
        if partition.is_readable
    }
