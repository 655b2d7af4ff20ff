"""Replays: a stretch of the past read once more, in order, without a group.

A replay is bounded when it begins: by append times, due times or offsets, or by what there is. Each
partition is read from its start to its end, one after the other, at the pace of its
reader. Only deliverable messages are handed out, also those that would be too late for
a group.

One that is `compacted` reads, of each partition, the newest snapshot there is of it first, and the
log from where that ends: the last word about every key, without most of what went before.

A replay with a name is remembered (`replay/<name>`), with its bounds and how far its consumer has
reported to have come; saved every so many messages. After a crash of either side it goes on there:
what was handed out and not reported, or reported and not saved, comes again. The last reports may
come after the last read: all is handed out before all is processed.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from waterclock.model.clock import Clock
from waterclock.model.errors import (
    AlreadyExists,
    BadInput,
    Busy,
    CapacityReached,
    Fenced,
    NotFound,
    OffsetOutOfRange,
    Overloaded,
    StorageFull,
    Unavailable,
)
from waterclock.model.names import check_name
from waterclock.model.views import Position, ReplayInfo
from waterclock.node.groups.outbound import DeliveryBatch
from waterclock.node.metadata import Metadata, Records
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.remote_log import current_log, log_of
from waterclock.node.replay.records import (
    CHECKPOINT_EVERY,
    OffsetRange,
    PartitionOffset,
    ReplayRecord,
    Request,
    SnapshotBase,
    Stretch,
    TimeRange,
)
from waterclock.node.replay.scan import Scan, count_off
from waterclock.node.replay.snapshot_files import SnapshotBatch
from waterclock.node.replay.snapshot_scan import CompactedScan
from waterclock.node.replay.snapshots import Snapshots, Sources
from waterclock.node.topics import Topic, Topics

REPLAY = "replay/"
REPLAYS_MAX = 1_000
"""Named replays that are remembered at a time."""
COMPACTED_MAX = 32
"""Replays that read snapshots at a time: each holds up to two row groups in memory."""

log = logging.getLogger("waterclock.node")


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """Messages of one partition."""

    partition: int
    messages: DeliveryBatch | SnapshotBatch
    next_offset: int
    """Report this as done once they are."""


class Replay:
    """One reading of a replay: iterate, report what is done, then `close`."""

    def __init__(
        self,
        name: str,
        record: ReplayRecord,
        topic: Topic,
        sources: Sources,
        metadata: Metadata,
        on_closed: "Callable[[Replay], None]",
    ) -> None:
        self.name = name
        self.topic = topic
        self.messages = 0
        """Handed out by this reading."""
        self._record = record
        self._metadata = metadata
        self._on_closed = on_closed
        self._scans = [_scan_of(stretch, topic, record, sources) for stretch in record.stretches]
        self._at = 0
        self._unsaved = 0
        self._is_over = self._is_replaced = self._is_fenced = self._has_news = False

    def __repr__(self) -> str:
        return f"<Replay {self.name or 'without a name'} {self._record.request}>"

    def __aiter__(self) -> "Replay":
        return self

    async def __anext__(self) -> ReplayBatch:
        while self._at < len(self._scans):
            self._check_mine()
            found = await self._scans[self._at].next()
            if found is not None:
                messages, next_offset = found
                self.messages += messages.count
                partition = self._record.stretches[self._at].partition
                return ReplayBatch(partition, messages, next_offset)
            self._settle(self._at)
            self._at += 1
        raise StopAsyncIteration

    @property
    def ends(self) -> dict[int, int]:
        """Where it ends in each partition: reported as done, all of it is."""
        return {stretch.partition: stretch.end for stretch in self._record.stretches}

    def report(self, positions: Sequence[PartitionOffset]) -> None:
        """Take note of offsets below which everything was processed; saved now and then."""
        for partition, offset in positions:
            scan = self._scans[self._record.index_of(partition)]
            if offset > scan.handed_out and not scan.is_exhausted:
                raise BadInput(f"offset {offset} of partition {partition} was not replayed yet")
        self._unsaved += self._record.report(positions)
        if self._unsaved >= self._record.checkpoint_every:
            self._save()

    def close(self) -> None:
        """End this reading and save how far it came. Again is harmless."""
        if not self._is_over:
            self._is_over = True
            for scan in self._scans:
                scan.close()
            self._save()
            self._on_closed(self)

    def replace(self) -> None:
        """End this reading because another goes on with the same replay."""
        self.close()
        self._is_replaced = True

    def drop(self) -> None:
        """End this reading because its replay is gone: nothing of it may be saved any more."""
        self._is_replaced = True
        self.close()

    def fence(self) -> None:
        """End this reading because another node may go on with its replay, and save how far."""
        self._is_fenced = True
        self.drop()

    def _settle(self, number: int) -> None:
        """Nothing more is handed out of a stretch: a report of the last of it is one of all of
        it."""
        stretch = self._record.stretches[number]
        stretch.last = self._scans[number].handed_out
        # To be saved also if nothing was reported: reports may come after a restart.
        self._has_news = True
        self._unsaved += stretch.report(stretch.done)

    def _check_mine(self) -> None:
        if self._is_fenced:
            raise Fenced(f"replay {self.name!r}: another node has the records: ask again")
        if self._is_replaced:
            raise Busy(f"replay {self.name!r} goes on elsewhere")

    def _save(self) -> None:
        if not self.name or not (self._unsaved or self._has_news) or self._is_replaced:
            return
        try:
            self._metadata.write({REPLAY + self.name: msgspec.json.encode(self._record)})
            self._unsaved, self._has_news = 0, False
        except (StorageFull, Unavailable) as error:
            log.warning("replay_not_saved name=%s error=%s", self.name, error)


def _scan_of(
    stretch: Stretch, topic: Topic, record: ReplayRecord, sources: Sources
) -> Scan | CompactedScan:
    host, base = topic.partition(stretch.partition), stretch.base
    if base is None:
        return Scan(
            log_of(host),
            stretch.done,
            stretch.end,
            due_ms=record.due_ms,
            skip=stretch.skip,
            undated=stretch.undated,
        )
    return CompactedScan(
        host,
        stretch.done,
        stretch.end,
        source=sources[base.snapshot, stretch.partition],
        snapshot=(base.start, base.end),
    )


class Replays:
    def __init__(
        self, topics: Topics, snapshots: Snapshots, metadata: Metadata, clock: Clock
    ) -> None:
        self._topics = topics
        self._snapshots = snapshots
        self._metadata = metadata
        self._clock = clock
        self._open: dict[str, Replay] = {}
        self._compacted: set[Replay] = set()
        """Those that read snapshots."""
        topics.records_of.append(self._records_of)
        topics.on_deleted.append(self._topic_deleted)
        metadata.on_leading.append(lambda is_leading: self._lead_changed())

    async def begin(
        self,
        request: Request,
        *,
        name: str = "",
        checkpoint_every: int = 0,
        done: Sequence[PartitionOffset] = (),
    ) -> Replay:
        """Begin a replay, or go on with the one of that name: then the request may be empty but for
        its topic, or wholly, and must otherwise be what it was; `done` is reported first. One
        without a name, which nobody remembers, begins behind what is done."""
        if checkpoint_every < 0:
            raise BadInput("checkpoint_every must not be negative")
        if name:
            check_name("replay", name)
        saved = self._metadata.get(REPLAY + name) if name else None
        if saved is None:
            if name and done:
                raise BadInput("done: nothing was replayed yet")
            if name:
                self._check_room()
            return await self._begin(request, name, checkpoint_every, done)
        record = msgspec.json.decode(saved, type=ReplayRecord)
        if request not in (Request(""), Request(record.request.topic), record.request):
            raise AlreadyExists("replay", name)
        await self.report(name, done)
        topic = self._topics.get(record.request.topic)
        for stretch in record.stretches:
            # The copy here may not reach as far yet as that of the node where it was bounded.
            if stretch.done < stretch.end:
                await current_log(topic.partition(stretch.partition))
        sources = await self._sources(record)
        open_one = self._open.get(name)
        if open_one is not None:
            open_one.replace()
        return self._reading(name, self._saved(name), sources)

    def _saved(self, name: str) -> ReplayRecord:
        """Return a named replay as it stands: others may report it, or delete it, at any time."""
        saved = self._metadata.get(REPLAY + name)
        if saved is None:
            raise NotFound("replay", name)
        return msgspec.json.decode(saved, type=ReplayRecord)

    async def report(self, name: str, positions: Sequence[PartitionOffset]) -> None:
        """Take note of how far the reader of a named replay has come. Again is harmless.

        It may be reported while it is read, then it is saved now and then; and after that, since
        the last of it is processed when all was handed out: then it is durable on return.
        """
        open_one = self._open.get(name)
        if open_one is not None:
            open_one.report(positions)
            return
        record = self._saved(name)
        if record.report(positions):
            await self._metadata.put(REPLAY + name, msgspec.json.encode(record))

    async def _begin(
        self, request: Request, name: str, checkpoint_every: int, done: Sequence[PartitionOffset]
    ) -> Replay:
        if not request.topic and name:
            raise NotFound("replay", name)
        record = await self._bounded(request, checkpoint_every or CHECKPOINT_EVERY)
        record.report(done)
        sources = await self._sources(record)
        if name:
            if self._metadata.get(REPLAY + name) is not None:
                raise AlreadyExists("replay", name)
            await self._metadata.put(REPLAY + name, msgspec.json.encode(record))
            record = self._saved(name)
        return self._reading(name, record, sources)

    def _reading(self, name: str, record: ReplayRecord, sources: Sources) -> Replay:
        topic = self._topics.get(record.request.topic)
        if sources and len(self._compacted) >= COMPACTED_MAX:
            raise Overloaded("compacted replays", COMPACTED_MAX)
        replay = Replay(name, record, topic, sources, self._metadata, self._closed)
        if name:
            self._open[name] = replay
        if sources:
            self._compacted.add(replay)
        return replay

    async def _sources(self, record: ReplayRecord) -> Sources:
        """Look where the snapshots of a replay are read."""
        bases = [(s.base.snapshot, s.partition) for s in record.stretches if s.base is not None]
        return await self._snapshots.sources(record.request.topic, bases)

    def _lead_changed(self) -> None:
        for replay in tuple(self._open.values()):
            replay.fence()

    def _closed(self, replay: Replay) -> None:
        self._compacted.discard(replay)
        if self._open.get(replay.name) is replay:
            del self._open[replay.name]

    def _check_room(self) -> None:
        if len(self._metadata.items(REPLAY)) >= REPLAYS_MAX:
            raise CapacityReached("replays", REPLAYS_MAX)

    async def _bounded(self, request: Request, checkpoint_every: int) -> ReplayRecord:
        """Fix the bounds of a replay, from now on and for ever."""
        if request.times is not None and request.offsets is not None:
            raise BadInput("times and offsets: a replay is bounded by one of them")
        if request.compacted and (request.times is not None or request.offsets is not None):
            raise BadInput("compacted: such a replay is of all there is; give no times or offsets")
        topic = self._topics.get(request.topic)
        numbers = request.partitions or tuple(range(len(topic.partitions)))
        hosts = [topic.partition(number) for number in dict.fromkeys(numbers)]
        record = ReplayRecord(request=request, stretches=[], checkpoint_every=checkpoint_every)
        if request.times is not None:
            await self._bound_by_time(record, request.times, hosts)
        elif request.offsets is not None:
            record.stretches += await _from_offsets(request.offsets, hosts)
        else:
            for host in hosts:
                record.stretches.append(await self._whole(host, compacted=request.compacted))
        return record

    async def _whole(self, host: PartitionHost, *, compacted: bool) -> Stretch:
        log = await current_log(host)
        newest = self._snapshots.newest(host, log) if compacted else None
        if newest is None:
            return Stretch(host.partition, log.end, log.start)
        snapshot, part = newest
        base = SnapshotBase(snapshot, part.start_offset, part.end_offset)
        return Stretch(host.partition, log.end, part.start_offset, base)

    async def _bound_by_time(
        self, record: ReplayRecord, times: TimeRange, hosts: list[PartitionHost]
    ) -> None:
        end_ms = times.end_ms or self._clock.now_ms()
        if times.start_ms < 0 or end_ms < times.start_ms:
            raise BadInput(f"times: [{times.start_ms}, {times.end_ms}) is no range of times")
        if times.by_due:
            record.due_ms = times.start_ms, end_ms
        for host in hosts:
            record.stretches.append(await _within(times, host, self._clock.now_ms()))

    def list(self) -> list[ReplayInfo]:
        found = []
        for key, value in self._metadata.items(REPLAY):
            record = msgspec.json.decode(value, type=ReplayRecord)
            done = tuple(Position(each.partition, each.done) for each in record.stretches)
            ends = tuple(Position(each.partition, each.end) for each in record.stretches)
            topic = record.request.topic
            found.append(ReplayInfo(key.removeprefix(REPLAY), topic, done, ends))
        return found

    def topic_of(self, name: str) -> str | None:
        """Return the topic of the replay of that name; None if there is none."""
        if self._metadata.get(REPLAY + name) is None:
            return None
        return self._saved(name).request.topic

    async def delete(self, name: str) -> bool:
        """Forget a named replay, and end its reading; False if there is none."""
        open_one = self._open.get(name)
        if open_one is not None:
            open_one.replace()
        if self._metadata.get(REPLAY + name) is None:
            return False
        await self._metadata.delete(REPLAY + name)
        return True

    def _records_of(self, topic: Topic) -> Records:
        return {REPLAY + info.name: None for info in self.list() if info.topic == topic.name}

    def _topic_deleted(self, topic: Topic) -> None:
        for open_one in list(self._open.values()):
            if open_one.topic is topic:
                open_one.drop()


async def _within(times: TimeRange, host: PartitionHost, now_ms: int) -> Stretch:
    """Return what of a partition was appended, or may be due, within times.

    Append times never step back: after the clock was set back, messages bear the log's own time
    until the clock has caught up with it. Until then nobody can tell what of those was appended
    before the end that is asked for. All of it is handed out: rather too much than too little.
    """
    found = await current_log(host)
    start, end = int(found.start), int(found.end)
    undated = None
    if found.log_time_ms > now_ms:
        undated = int(await found.offset_at(found.log_time_ms))
    if times.by_due:
        return Stretch(host.partition, end, start, undated=undated)
    start = int(await found.offset_at(times.start_ms))
    cut = int(await found.offset_at(times.end_ms)) if times.end_ms else end
    if undated is None or cut == end:
        return Stretch(host.partition, max(start, cut), start)
    return Stretch(host.partition, max(start, end), start, skip=(cut, undated))


async def _from_offsets(offsets: OffsetRange, hosts: list[PartitionHost]) -> list[Stretch]:
    """Return so many messages of each partition from an offset on."""
    if offsets.start < 0 or offsets.count < 0:
        raise BadInput("offsets: neither start nor count may be negative")
    logs = [await current_log(host) for host in hosts]
    if not any(each.start <= offsets.start <= each.end for each in logs):
        raise OffsetOutOfRange(offsets.start, start=logs[0].start, end=logs[0].end)
    found = []
    for host, log_ in zip(hosts, logs, strict=True):
        end = int(log_.end)
        start = min(max(offsets.start, log_.start), end)
        if offsets.count:
            end = await count_off(log_, start, offsets.count)
        found.append(Stretch(host.partition, end, start))
    return found
