"""Saving what is known of groups: their generations, their progress, and when they were used.

Records of several groups are one write for each shard. What cannot be saved now (the disk is full,
or another node has become the home) is still to be saved, and stays with the group.
"""

import logging
from collections.abc import Callable, Iterable

from waterclock.model.clock import SteadyClock
from waterclock.model.errors import StorageFull, Unavailable
from waterclock.node.groups.host import GroupHost
from waterclock.node.groups.records import group_record, progress_key
from waterclock.node.metadata import Metadata, Records

log = logging.getLogger("waterclock.delivery")


def by_shard(hosts: Iterable[GroupHost]) -> dict[Metadata, list[GroupHost]]:
    """Return groups by where their records are."""
    found: dict[Metadata, list[GroupHost]] = {}
    for host in hosts:
        found.setdefault(host.metadata, []).append(host)
    return found


class GroupSaver:
    """Saves groups that were not removed meanwhile."""

    def __init__(
        self,
        is_current: Callable[[GroupHost], bool],
        now_ms: Callable[[], int],
        clock: SteadyClock,
    ) -> None:
        self._is_current = is_current
        self._now_ms = now_ms
        self._clock = clock
        self._saving: set[Metadata] = set()

    async def save_generation(self, host: GroupHost, generation: int) -> None:
        """Make a generation of a group durable."""
        if self._is_current(host):
            host.active_ms = max(host.active_ms, self._now_ms())
            await host.metadata.put_many(group_record(host, generation))

    async def save_records(self, hosts: Iterable[GroupHost]) -> None:
        """Save all there is to know of some groups, as far as the disk has room."""
        current = [host for host in hosts if self._is_current(host)]
        for metadata, some in by_shard(current).items():
            records: Records = {}
            for host in some:
                records |= group_record(host, host.generation)
            try:
                await metadata.put_many(records)
            except (StorageFull, Unavailable) as error:
                log.warning("groups_not_saved error=%s", error)
        await self.save_progress(current)

    async def note_in_use(self, hosts: Iterable[GroupHost]) -> None:
        """Remember that groups are in use now."""
        noted = list(hosts)
        for host in noted:
            host.active_ms = max(host.active_ms, self._now_ms())
        await self.save_records(noted)

    async def save_progress(self, hosts: Iterable[GroupHost]) -> None:
        """Save what has changed of the progress of some groups, in one write for each shard."""
        for metadata, some in by_shard(hosts).items():
            try:
                await self._write_progress(metadata, some)
            except (StorageFull, Unavailable) as error:
                log.warning("progress_not_saved error=%s", error)

    def is_saving(self, metadata: Metadata) -> bool:
        """Tell whether `save_shard` is at work on a shard; others do not wait for it."""
        return metadata in self._saving

    async def save_shard(self, metadata: Metadata, hosts: list[GroupHost]) -> None:
        """Save the progress of a shard."""
        self._saving.add(metadata)
        try:
            await self.save_progress(hosts)
        finally:
            self._saving.discard(metadata)

    async def _write_progress(self, metadata: Metadata, hosts: list[GroupHost]) -> None:
        current = [host for host in hosts if self._is_current(host)]
        shift_ms = self._clock.set_by_ms()
        partitions = [(host, partition) for host in current for partition in host.partitions]
        changed = [each for each in partitions if each[1].must_save(shift_ms=shift_ms)]
        for _, partition in changed:
            partition.is_changed = False
        records: dict[str, bytes | None] = {
            progress_key(host.topic, host.name, each.number): each.encode(shift_ms=shift_ms)
            for host, each in changed
        }
        # In one write with the first answers: no crash makes an unused group of one that gave some.
        found_used = {host for host, _ in changed if host.has_answered and not host.is_used}
        for host in found_used:
            host.is_used = True
            records |= group_record(host, host.generation)
        try:
            await metadata.put_many(records)
        except (StorageFull, Unavailable):
            for _, partition in changed:
                partition.is_changed = True
            for host in found_used:
                host.is_used = False
            raise
