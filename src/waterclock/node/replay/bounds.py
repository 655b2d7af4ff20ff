"""Which offsets of a partition a replay has: found from times or counts, once, when it begins."""

from waterclock.model.errors import BadInput, OffsetOutOfRange
from waterclock.node.partition.host import PartitionHost
from waterclock.node.replay.records import OffsetRange, Stretch, TimeRange
from waterclock.node.replay.scan import count_off


def within(times: TimeRange, host: PartitionHost, now_ms: int) -> Stretch:
    """Return what of a partition was appended, or may be due, within times.

    Append times never step back: after the clock was set back, messages bear the log's own time
    until the clock has caught up with it. Until then nobody can tell what of those was appended
    before the end that is asked for. All of it is handed out: rather too much than too little.
    """
    store = host.store
    start, end = int(store.start), int(store.acknowledged_end)
    undated = None
    if store.log_time_ms > now_ms:
        undated = int(store.offset_at(store.log_time_ms))
    if times.by_due:
        return Stretch(host.partition, end, start, undated=undated)
    start = int(store.offset_at(times.start_ms))
    cut = int(store.offset_at(times.end_ms)) if times.end_ms else end
    if undated is None or cut == end:
        return Stretch(host.partition, max(start, cut), start)
    return Stretch(host.partition, max(start, end), start, skip=(cut, undated))


async def from_offsets(offsets: OffsetRange, hosts: list[PartitionHost]) -> list[Stretch]:
    """Return so many messages of each partition from an offset on."""
    if offsets.start < 0 or offsets.count < 0:
        raise BadInput("offsets: neither start nor count may be negative")
    stores = [host.store for host in hosts]
    if not any(store.start <= offsets.start <= store.acknowledged_end for store in stores):
        store = stores[0]
        raise OffsetOutOfRange(offsets.start, start=store.start, end=store.acknowledged_end)
    found = []
    for host in hosts:
        end = int(host.store.acknowledged_end)
        start = min(max(offsets.start, host.store.start), end)
        if offsets.count:
            end = await count_off(host.store, start, offsets.count)
        found.append(Stretch(host.partition, end, start))
    return found
