"""Groups and retention: which messages a group misses, and when a group expires.

Retention waits for no group, unless the topic says that it must: a consumer that is gone for good
is to cost a few numbers, not a disk. A group that had messages left to read goes on at the first
that is left; its description, a metric and the node's log say what it missed. What its members hold
at that moment they may finish.

The cleaner forgets a group that was not used for `groups.expire`, and much sooner one that was only
ever asked for (`groups.expire_unused`): whoever may consume a topic makes a group with one request.
When it was last used is remembered with its generation, and while it has members as often as
`NOTED_PARTS` asks, so that it costs next to nothing. A wall clock that is set forward expires no
group: it is believed only as far as the time that has passed since the node started.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

from waterclock.delivery.spans import Range, ranges_of
from waterclock.log.schema import decode, row_offsets
from waterclock.model.clock import Clock
from waterclock.model.errors import Busy, NotFound
from waterclock.model.sections import GroupConfig
from waterclock.model.units import DAY_MS, HOUR_MS
from waterclock.node.groups.groups import Groups
from waterclock.node.groups.host import GroupHost
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.partition.host import PartitionHost
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.segment_file import SegmentFile

SLICE_FRAMES = 256
"""Frames looked at in one go: nobody else is served meanwhile."""
GRACE_MS = 1 * HOUR_MS
"""A node that has just started expires no group: its clock may have been wrong when it last ran,
its consumers have yet to come back, and it may have to hear of topics first."""
NOTED_PARTS = 8
"""Into how many parts the time to expire is divided by notes that a group is in use; at most a day
each."""

log = logging.getLogger("waterclock.delivery")


class GroupCleaner:
    """Looks after groups; called by `LogCleaner`."""

    def __init__(self, groups: Groups, config: GroupConfig, clock: Clock) -> None:
        self._groups = groups
        self._config = config
        self._started_ms = clock.now_ms()

    def configure(self, config: GroupConfig) -> None:
        """Let groups expire by other settings from now on."""
        self._config = config

    def consumed_end(self, topic: str, partition: int) -> int | None:
        """Return what every group of a topic has done in a partition; None without groups, and 0
        if this node does not know of all groups."""
        elsewhere = self._groups.saved_ends(topic, partition)
        if elsewhere is None:
            return 0
        groups = [group for group in self._groups.hosts() if group.topic == topic]
        found = [each.partitions[partition] for each in groups if partition < len(each.partitions)]
        return min((*(each.cursor.committed for each in found), *elsewhere), default=None)

    # Retention

    async def trim(self, host: PartitionHost, start: int) -> None:
        """Have the groups of a partition go on at `start`; what lies below is about to go."""
        behind = self._behind(host, start)
        if not behind:
            return
        first = min(partition.cursor.committed for _, partition in behind)
        messages = await _deliverable(host.store, first, start)
        trimmed = self._behind(host, start)
        for group, partition in trimmed:
            missed = _overlap(partition.cursor.untaken(start), messages)
            group.delivery.trim(partition, start, missed=missed)
            if missed:
                log.warning(
                    "missed topic=%s/%d group=%s messages=%d goes_on_at=%d",
                    group.topic,
                    partition.number,
                    group.name,
                    missed,
                    start,
                )
        await self._groups.save_records(group for group, _ in trimmed)

    def _behind(self, host: PartitionHost, start: int) -> list[tuple[GroupHost, GroupPartition]]:
        return [
            (group, partition)
            for group in self._groups.hosts()
            for partition in group.partitions
            if partition.host is host and partition.cursor.committed < start
        ]

    # Expiry

    async def expire(self) -> None:
        """Forget the groups that were not used for too long, and note which are in use."""
        now_ms = self._groups.now_ms()
        hosts = self._groups.hosts()
        await self._groups.note_in_use([host for host in hosts if self._must_note(host, now_ms)])
        self._groups.forget_orphans()
        for host in hosts:
            limit_ms, idle_ms = self._limit_ms(host), now_ms - host.active_ms
            if (
                limit_ms is not None
                and idle_ms >= limit_ms
                and now_ms - self._started_ms >= min(GRACE_MS, limit_ms)
                and not host.members
                and not host.dead_letters
            ):
                with suppress(Busy, NotFound):
                    await self._groups.delete(host.topic, host.name)
                    log.info(
                        "group_expired topic=%s group=%s idle_ms=%d", host.topic, host.name, idle_ms
                    )

    def _must_note(self, host: GroupHost, now_ms: int) -> bool:
        """Tell whether it is time to note that a group is in use."""
        limit_ms = self._limit_ms(host)
        if limit_ms is None or not host.members:
            return False
        unused_ms = self._config.expire_unused_ms
        if not host.is_used and unused_ms is not None and now_ms - host.opened_ms >= unused_ms:
            host.is_used = True
            return True
        return now_ms - host.active_ms >= min(DAY_MS, limit_ms // NOTED_PARTS)

    def _limit_ms(self, host: GroupHost) -> int | None:
        """Return how long a group may be idle; None: for ever."""
        limits = [self._config.expire_ms]
        if not host.is_used and not host.has_answered:
            limits.append(self._config.expire_unused_ms)
        return min((limit for limit in limits if limit is not None), default=None)


async def _deliverable(store: PartitionStore, start: int, end: int) -> list[Range]:
    """Return where the messages of closed segments lie in [start, end), by their headers."""
    found: list[Range] = []
    for segment in tuple(store.segments[:-1]):
        if segment.end_offset <= start or end <= segment.base_offset:
            continue
        for number, (low, high) in enumerate(_messages(segment)):
            if number % SLICE_FRAMES == 0:
                await asyncio.sleep(0)
            low, high = max(low, start), min(high, end)
            if found and found[-1][1] == low < high:
                found[-1] = found[-1][0], high
            elif low < high:
                found.append((low, high))
    return found


def _messages(segment: SegmentFile) -> Iterator[Range]:
    """Yield the offsets of a segment's messages; an empty range where a frame has none."""
    for header in segment.headers():
        if not header.is_deliverable:
            yield header.base_offset, header.base_offset
        elif header.is_sparse:
            frame = segment.frame_at(header.base_offset)
            yield from ranges_of(row_offsets(header, decode(header, frame.body)))
        else:
            yield header.base_offset, header.end_offset


def _overlap(left: Sequence[Range], right: Sequence[Range]) -> int:
    """Return how many offsets are in both; each is in order."""
    total = at = 0
    for start, end in left:
        while at < len(right) and right[at][0] < end:
            low, high = right[at]
            total += max(0, min(end, high) - max(start, low))
            if high > end:
                break  # it may reach into the next
            at += 1
    return total
