"""Which dead letters are open, and publishing them again where they came from.

A dead letter that was redriven or purged stays in its log and counts as done, as if a group named
`__redrive` had acked it; which ones are done is a record of the node's metadata (`progress.py`).
Redriving publishes first and saves that record then. If the node dies between, the dead letter is
redriven again under the same id (`<id of the dead letter>#<its offset>`), which the topic
recognises: nothing is published twice. One may be edited, and has the same id all the same: what
was published first is what counts.

A redriven message is a new one to the topic: every group gets it, also those that had no trouble.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from waterclock.delivery.progress import empty_tracker
from waterclock.log.arrays import from_numpy
from waterclock.log.batch import encode_batch
from waterclock.log.frame import Frame
from waterclock.log.schema import (
    HEADERS,
    MESSAGES,
    binaries,
    decode,
    integers,
    maps,
    row_offsets,
)
from waterclock.model.errors import BadInput, Fenced, UnknownTopic
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.node.dead_letters.progress import decode_progress, encode_progress, progress_key
from waterclock.node.dead_letters.rows import (
    PREFIX,
    REDRIVEN,
    Pairs,
    batch_of,
    short_id,
    split_headers,
)
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import Missing
from waterclock.node.partition.remote_log import (
    current_log,
    is_current,
    log_of,
)
from waterclock.node.topics import Topic

OWN = "wc-"
"""Headers that the node writes begin so."""
SLICE_S = 0.005
"""After this long the loop is let go."""

log = logging.getLogger("waterclock.delivery")


class OpenDeadLetters(NamedTuple):
    """Dead letters of one frame that are neither redriven nor purged, with their offsets."""

    rows: pa.RecordBatch
    offsets: list[int]


class Edit(NamedTuple):
    """What a dead letter is published as, where it is not None, in place of what it was."""

    value: bytes | None
    headers: Mapping[str, bytes] | None


class DeadLetterPartition:
    """The dead letters of one partition, and which of them are done."""

    def __init__(self, host: PartitionHost, saved: bytes | None, *, log_id: bytes) -> None:
        """Bring the record that was saved when the partition opens, before more is written."""
        self.host = host
        self._log_id = log_id
        self.key = progress_key(host)
        self.is_gone = False
        """The topic was deleted: there is nothing to read, and nothing to finish."""
        self.is_stale = False
        """The lead of the records was won or lost since: they may say more."""
        self._log = log_of(host)
        self._done = empty_tracker(0)
        if saved is not None:
            # The replica here may be behind; what is done is committed, and lost nowhere.
            log_end = host.store.end if host.role == "alone" else None
            try:
                self._done = decode_progress(saved, log_id=log_id, log_end=log_end)
            except BadInput as error:
                # Showing what was done is allowed, hiding what was not is not.
                log.error("dead_letter_progress_lost partition=%r error=%s", host, error)
        self._counting = asyncio.Lock()
        self._counted_start = 0
        self._counted_end = 0
        self._rows = 0

    @property
    def end(self) -> int:
        """One past the last dead letter there is now."""
        return self._log.end

    async def refresh(self) -> None:
        """Read the log as it is now: copies come and go, and are opened anew."""
        self._log = await current_log(self.host)

    async def open_dead_letters(
        self, start: int, end: int, only: set[int] | None = None
    ) -> AsyncIterator[OpenDeadLetters]:
        """Yield the dead letters in [start, end) that are not done, a frame at a time; of
        `only` some, frames that hold none of them may be left out."""
        if only is not None:
            if not only:
                return
            start, end = max(start, min(only)), min(end, max(only) + 1)
        async for frame in self._frames(max(start, self._done.committed), end):
            rows = decode(frame.header, frame.body)
            offsets = row_offsets(frame.header, rows)
            keep = (offsets >= start) & (offsets < end)
            done = self._done
            keep &= np.fromiter((offset not in done for offset in offsets.tolist()), np.bool_)
            if bool(keep.any()):
                kept = rows.select(MESSAGES.names).filter(from_numpy(keep))
                yield OpenDeadLetters(kept, offsets[keep].tolist())

    async def count(self) -> int:
        """Return how many dead letters are not done."""
        async with self._counting:
            start, end = self._log.start, self.end
            if start != self._counted_start:
                self._counted_start = self._counted_end = start
                self._rows = 0
            async for frame in self._frames(self._counted_end, end):
                # Together: who counts may be given up after any frame.
                self._rows += frame.header.rows
                self._counted_end = frame.header.end_offset
        done = max(0, self._done.committed - start)
        done += sum(high - max(low, start) for low, high in self._done.runs() if high > start)
        return max(0, self._rows - done)

    def finish(self, offsets: Sequence[int]) -> bytes:
        """Note that dead letters are done; return the record, to be saved in this turn.

        Raises UnknownTopic if they are gone: the record would outlive them.
        """
        self._check_there()
        # What retention took is done as well, or it would be a hole for ever.
        self._done.add(0, self._log.start)
        self._done.add_many(np.array(offsets, np.int64))
        return self.record()

    def record(self) -> bytes:
        """Return what is done, to be saved."""
        return encode_progress(self._log_id, self._done)

    @property
    def is_current(self) -> bool:
        """The log is open as it was, and the record what was read."""
        return not self.is_stale and is_current(self._log, self.host)

    def _check_there(self) -> None:
        if self.is_gone:
            raise UnknownTopic(self.host.topic)
        if not self.is_current:
            raise Fenced(f"the lead of {self.host.topic}, or of the records, has moved: ask again")

    async def _frames(self, start: int, end: int) -> AsyncIterator[Frame]:
        """Yield the readable frames with messages, letting the loop go in between."""
        at = max(start, self._log.start)
        begun = time.perf_counter()
        while at < end:
            self._check_there()
            await self._log.load(at)
            frame = self._log.at(at)
            if frame is None:
                return
            if isinstance(frame, Missing):
                at = frame.end
                continue
            if frame.header.is_deliverable:
                yield frame
            at = frame.header.end_offset
            if time.perf_counter() - begun > SLICE_S:
                await asyncio.sleep(0)
                begun = time.perf_counter()


def wanted_by_partition(
    positions: Sequence[tuple[int, int]] | None, partitions: int
) -> dict[int, set[int]] | None:
    """Return the offsets that are wanted of each partition; None for all."""
    if positions is None:
        return None
    wanted: dict[int, set[int]] = {}
    for number, offset in positions:
        if not 0 <= number < partitions:
            raise BadInput(f"partition {number}: there are dead letters in {partitions}")
        wanted.setdefault(number, set()).add(offset)
    return wanted


def chosen(found: OpenDeadLetters, only: set[int] | None, limit: int) -> OpenDeadLetters:
    """Return those at the offsets in `only`, if it is given, and up to a limit, if it is not 0."""
    if only is not None:
        keep = np.array([offset in only for offset in found.offsets], np.bool_)
        kept = [offset for offset in found.offsets if offset in only]
        found = OpenDeadLetters(found.rows.filter(from_numpy(keep)), kept)
    if limit:
        found = OpenDeadLetters(found.rows.slice(0, limit), found.offsets[:limit])
    return found


def edit_of(
    value: bytes | None, headers: Mapping[str, bytes] | None, limits: Limits
) -> Edit | None:
    """Return what is asked for, without headers that are the node's own; raise LimitExceeded if
    no message may be like that."""
    if value is None and headers is None:
        return None
    if headers is not None:
        headers = {name: text for name, text in headers.items() if not name.startswith(OWN)}
    message = Message(value, headers=headers, message_id=b"-")
    encode_batch([message], limits, now_ms=0)  # for its checks
    return Edit(value, headers)


def edited(found: OpenDeadLetters, edit: Edit) -> OpenDeadLetters:
    """Return dead letters with another value, or other headers, that still say whence they are."""
    rows = found.rows
    if edit.value is not None:
        at = rows.schema.get_field_index("value")
        rows = rows.set_column(at, rows.schema.field(at), binaries([edit.value] * len(rows)))
    if edit.headers is not None:
        at, given = rows.schema.get_field_index("headers"), [*edit.headers.items()]
        facts = [
            [pair for pair in pairs or () if pair[0].startswith(PREFIX) or pair[0] == REDRIVEN]
            for pairs in rows.column(at).to_pylist()
        ]
        made = maps([[*given, *each] for each in facts], HEADERS)
        rows = rows.set_column(at, rows.schema.field(at), made)
    return OpenDeadLetters(rows, found.offsets)


async def publish_again(topic: Topic, found: OpenDeadLetters) -> int:
    """Publish dead letters to the partitions they came from; they are durable on return. Return how
    many were published now: the others have been before."""
    if not topic.partitions:
        raise UnknownTopic(topic.name)  # it was deleted meanwhile
    ids: list[bytes] = []
    headers: list[Pairs] = []
    homes: list[int] = []
    columns = (found.rows.column(name).to_pylist() for name in ("message_id", "headers"))
    for offset, id_, pairs in zip(found.offsets, *columns, strict=True):
        facts, kept = split_headers(pairs)
        times = _number(dict(kept).get(REDRIVEN, b"0")) + 1
        kept = [pair for pair in kept if pair[0] != REDRIVEN]
        homes.append(_number(facts.get("partition", b"0")) % len(topic.partitions))
        ids.append(short_id(id_ + b"#%d" % offset))
        headers.append([*kept, (REDRIVEN, b"%d" % times)])
    published = 0
    where = np.array(homes, np.int64)
    for home in np.unique(where).tolist():
        at = np.flatnonzero(where == home).tolist()
        rows = found.rows.take(integers(at))
        batch = batch_of(rows, [ids[i] for i in at], [headers[i] for i in at])
        published += (await topic.partition(home).publish(batch)).new_count
    return published


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 9 else 0
