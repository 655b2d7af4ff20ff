"""The judgement once all is quiet: the logs themselves, read by Fetch, against all that was said.

lost publish      acknowledged, and not in the log where it was said to be
lost delivery     in the log for all to get, and some group never got it
passed over       a group is done with it, and nobody acked it, nor is it a dead letter
not fired         its time has come and gone, and it is still pending
twice in the log  one id, two rows; or one scheduled message, fired twice, or fired and cancelled
fired early       the log says so itself
unasked cancel    a scheduled message ended, and nobody cancelled it, nor had it expired
torn log          offsets that do not follow each other
dead letters      one twice, or one that nobody failed at
"""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tests.integration.history import History, Published
from tests.integration.stint import Place
from waterclock.log.frame import Frame, FrameType, read_frame
from waterclock.log.schema import decode, due_times, row_offsets
from waterclock.v1 import broker_pb2 as pb

FETCH_BYTES = 4 << 20


@dataclass
class LogView:
    """One partition's log, as far as it matters here."""

    ids: dict[int, bytes] = field(default_factory=dict)
    """Of data and scheduled rows, by offset."""
    scheduled: dict[int, int] = field(default_factory=dict)
    """Due times, as they stand at the end."""
    deliverable: dict[int, bytes] = field(default_factory=dict)
    """Ids of data and fired rows, by offset: what every group must get."""
    fired: dict[int, int] = field(default_factory=dict)
    """Where each scheduled message fired."""
    cancelled: set[int] = field(default_factory=set)
    frames: Counter[str] = field(default_factory=Counter)


async def frames_of(broker: Any, topic: str, partition: int) -> AsyncIterator[Frame]:
    """Yield all frames of a partition."""
    offset = 0
    while True:
        request = pb.FetchRequest(
            topic=topic, partition=partition, offset=offset, bytes_max=FETCH_BYTES
        )
        answer = await broker.Fetch(request)
        at = 0
        while at < len(answer.frames):
            frame = read_frame(answer.frames, at)
            at += frame.header.size
            yield frame
        if answer.next_offset == offset:
            return
        offset = answer.next_offset


class Verdict:
    """Judges a topic. Everything it finds goes to the history's findings."""

    def __init__(self, history: History, *, retries_max: int) -> None:
        self._history = history
        self._add = history.findings.add
        self._retries_max = retries_max
        self._seen: dict[bytes, Place] = {}

    async def judge(self, broker: Any, topic: str, partitions: int, *, now_ms: int) -> None:
        """Read the logs of a topic and of its dead letters, and compare."""
        history = self._history
        history.settle_suspects()
        logs = [await self._read(broker, topic, number) for number in range(partitions)]
        dead = await self._dead(broker, topic, partitions)
        for number, log in enumerate(logs):
            self._check_scheduled(number, log, now_ms)
        self._check_publishes(logs)
        for number, log in enumerate(logs):
            for group in history.groups:
                self._check_group(group, number, log, dead, now_ms)
        for kind in FrameType:
            history.counts[f"{kind.name.lower()} frames"] = sum(
                log.frames[kind.name] for log in logs
            )
        history.counts["dead letters"] = len(dead)

    # The log

    async def _read(self, broker: Any, topic: str, partition: int) -> LogView:
        log = LogView()
        end = 0
        async for frame in frames_of(broker, topic, partition):
            header = frame.header
            if header.base_offset != end:
                self._add("torn log", f"{topic}/{partition}: {header.base_offset} follows {end}")
            end = header.end_offset
            log.frames[header.type.name] += 1
            self._take(log, partition, frame)
        return log

    def _take(self, log: LogView, partition: int, frame: Frame) -> None:
        kind = frame.header.type
        rows = decode(frame.header, frame.body)
        if kind in (FrameType.DATA, FrameType.SCHEDULED):
            offsets = row_offsets(frame.header, rows).tolist()
            ids = rows.column("message_id").to_pylist()
            for offset, id_ in zip(offsets, ids, strict=True):
                log.ids[offset] = id_
                known = self._seen.setdefault(id_, (partition, offset))
                if known != (partition, offset):
                    self._add("twice in the log", f"{id_!r}: {known} and {(partition, offset)}")
            if kind is FrameType.DATA:
                log.deliverable.update(zip(offsets, ids, strict=True))
            else:
                log.scheduled.update(zip(offsets, due_times(rows).tolist(), strict=True))
        elif kind is FrameType.FIRED:
            self._take_fired(log, partition, frame)
        elif kind is FrameType.CANCEL:
            for offset in rows.column("scheduled_offset").to_pylist():
                if offset in log.fired or offset in log.cancelled or offset not in log.scheduled:
                    self._add("twice in the log", f"{partition}/{offset} ended again by a cancel")
                log.cancelled.add(offset)
        elif kind is FrameType.RESCHEDULE:
            moved = rows.column("scheduled_offset").to_pylist()
            log.scheduled.update(zip(moved, due_times(rows).tolist(), strict=True))

    def _take_fired(self, log: LogView, partition: int, frame: Frame) -> None:
        rows = decode(frame.header, frame.body)
        order = []
        for offset, timer, id_, due_ms in zip(
            row_offsets(frame.header, rows).tolist(),
            rows.column("scheduled_offset").to_pylist(),
            rows.column("message_id").to_pylist(),
            due_times(rows).tolist(),
            strict=True,
        ):
            where = f"{id_!r}, scheduled at {partition}/{timer}, fired at {offset}"
            if timer in log.fired or timer in log.cancelled:
                self._add("twice in the log", f"{where}: ended before")
            if log.ids.get(timer) != id_ or timer not in log.scheduled:
                self._add("twice in the log", f"{where}: nothing scheduled there")
            elif due_ms != log.scheduled[timer]:
                self._add("fired early", f"{where}: due {log.scheduled[timer]}, fired as {due_ms}")
            if due_ms > frame.header.append_ms:
                self._add("fired early", f"{where}: by {due_ms - frame.header.append_ms} ms")
            log.fired[timer] = offset
            log.deliverable[offset] = id_
            order.append((due_ms, timer))
        if order != sorted(order):
            self._add("out of order", f"{partition}: fired as {order[:20]}")

    # What was said

    def _check_publishes(self, logs: list[LogView]) -> None:
        for id_, message in self._history.messages.items():
            if message.place is None:
                self._history.counts["unsure, in the log"] += id_ in self._seen
                self._history.counts["unsure, not in the log"] += id_ not in self._seen
                continue
            partition, offset = message.place
            if logs[partition].ids.get(offset) != id_:
                self._add("lost publish", f"{id_!r} is not at {message.place}")

    def _check_scheduled(self, partition: int, log: LogView, now_ms: int) -> None:
        for offset, due_ms in log.scheduled.items():
            id_ = log.ids[offset]
            message = self._history.messages.get(id_)
            where = f"{id_!r} at {partition}/{offset}, due {due_ms}"
            if message is None:
                self._add("unpublished", where)
            elif offset in log.cancelled:
                is_expired = message.expires_ms and message.end_ms(due_ms) <= now_ms
                if not message.is_cancel_asked and not is_expired:
                    self._add("unasked cancel", where)
            elif message.cancelled_ms:
                self._add("lost cancel", where)
            elif offset not in log.fired and due_ms < now_ms:
                self._add("not fired", f"{where}, {now_ms - due_ms} ms ago")

    def _check_group(
        self, name: str, partition: int, log: LogView, dead: set[tuple[str, int, int]], now_ms: int
    ) -> None:
        group = self._history.groups[name]
        for offset, id_ in log.deliverable.items():
            place = partition, offset
            message = self._history.messages.get(id_)
            if message is None or (name, *place) in dead or _has_expired(message, now_ms):
                continue
            where = f"{id_!r} at {place} in {name}"
            if place not in group.held:
                self._add("lost delivery", where)
            elif place not in group.acked:
                self._add("passed over", f"{where}: {group.held[place]}")

    # Dead letters

    async def _dead(self, broker: Any, topic: str, partitions: int) -> set[tuple[str, int, int]]:
        found: set[tuple[str, int, int]] = set()
        for number in range(partitions):
            async for frame in frames_of(broker, f"{topic}.dlq", number):
                if frame.header.is_deliverable:
                    for row in decode(frame.header, frame.body).to_pylist():
                        self._note_dead_letter(
                            found, {name: bytes(v).decode() for name, v in row["headers"]}
                        )
        return found

    def _note_dead_letter(self, found: set[tuple[str, int, int]], facts: dict[str, str]) -> None:
        name = facts["wc-dlq-group"]
        place = int(facts["wc-dlq-partition"]), int(facts["wc-dlq-offset"])
        reason, attempts = facts["wc-dlq-reason"], int(facts["wc-dlq-attempts"])
        where = f"{place} in {name}, {reason} after {attempts}"
        if (name, *place) in found:
            self._add("dead letters", f"{where}: twice")
        found.add((name, *place))
        self._history.counts[f"dead, {reason}"] += 1
        group = self._history.groups[name]
        if reason == "rejected":
            is_earned = place in group.rejected
        else:
            is_earned = attempts == self._retries_max + 1 and place in group.held
        if not is_earned:
            self._add("dead letters", f"{where}: nobody failed so often")


def _has_expired(message: Published, now_ms: int) -> bool:
    return bool(message.expires_ms) and message.end_ms(min(message.dues)) <= now_ms
