"""Lists of pending messages, page by page: of one topic, or of all in one order.

What comes next is chosen by due time alone; only what is chosen is read. A page names the place it
ended at, so those that fire or come meanwhile neither repeat nor hide any other. However large the
messages are, few bytes are read between two turns of everyone else, and a page has not many.
"""

import asyncio
import base64
import struct
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from waterclock.log.scheduled import FoundRows, ScheduledRows, scheduled_rows
from waterclock.model.errors import BadInput, FrameDamaged, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.views import ScheduledMessage
from waterclock.node.partition.host import PartitionHost
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.pending_ids import NOWHERE
from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Host = tuple[str, PartitionHost]
"""A partition, and the name of its topic; empty in a list of one topic."""
T = TypeVar("T")

PAGE_MAX = 1_000
PAGE_DEFAULT = 100
PAGE_BYTES = 16 << 20
"""A page whose values have so many bytes ends there: an answer is made in one go."""
LIST_ROWS_MAX = 20_000
"""Messages that are read for one page, at most: a filter that few pass makes pages short."""
PAGE_SLICE = 50
"""Messages read in one go: each may be in a frame of its own, ..."""
SLICE_BYTES = 8 << 20
"""... or large: at least one is read."""
HOSTS_SLICE = 64
"""Partitions looked at in one go: most have nothing pending, and give nobody a turn."""

_TOKEN = struct.Struct("<qiq")
_TOKEN_CHARS = 28


class Page(NamedTuple):
    """Some of the pending messages, by due time, topic, partition and offset."""

    scheduled: list[ScheduledMessage]
    next_page: str
    """Asks for those that follow; empty if there are none."""


class PagePosition(NamedTuple):
    """A pending message in the order of lists."""

    due_ms: int
    topic: str
    """Empty in a list of one topic."""
    partition: int
    offset: int


Listed = tuple[PagePosition, ScheduledMessage]

_START = PagePosition(-1, "", NOWHERE, NOWHERE)


def page_text(place: PagePosition) -> str:
    """Return what asks for those that follow."""
    due_ms, topic, partition, offset = place
    return base64.urlsafe_b64encode(_TOKEN.pack(due_ms, partition, offset)).decode() + topic


def page_position(page: str) -> PagePosition:
    """Return which one a page follows; raises BadInput."""
    if not page:
        return _START
    token, topic = page[:_TOKEN_CHARS], page[_TOKEN_CHARS:]
    try:
        raw = base64.b64decode(token, altchars=b"-_", validate=True)
        due_ms, partition, offset = _TOKEN.unpack(raw)
    except (ValueError, struct.error) as error:
        raise BadInput("page: is not the next_page of an answer") from error
    return PagePosition(due_ms, topic, partition, offset)


def timer_id(message_id: bytes, offset: int) -> str:
    """Return `message_id-offset`; an id that is no text is shown in hexadecimal."""
    text = message_id.decode("ascii", "replace")
    return f"{text if text.isascii() and text.isprintable() else message_id.hex()}-{offset}"


async def in_turns(hosts: Iterable[T]) -> AsyncIterator[T]:
    """Yield partitions, with a turn for everyone else after some of them."""
    for count, host in enumerate(hosts, 1):
        yield host
        if count % HOSTS_SLICE == 0:
            await asyncio.sleep(0)


async def page_of(
    hosts: Sequence[Host],
    wanted: Filter,
    after: PagePosition,
    *,
    limit: int,
    with_values: bool,
) -> Page:
    """Return the first that match behind a place. A page may be short, or empty, and have a next
    one: few of those looked at matched, or they are large."""
    limit = limit or PAGE_DEFAULT
    if not 1 <= limit <= PAGE_MAX:
        raise LimitExceeded("limit", PAGE_MAX, got=limit)
    count = LIST_ROWS_MAX // 4 if wanted.needs_rows else limit
    chosen: list[Listed] = []
    bytes_left = PAGE_BYTES
    next_page = ""
    for _ in range(0, LIST_ROWS_MAX, count):
        ahead = await _ahead(hosts, wanted, after, count)
        listed = await _listed(hosts, wanted, ahead, with_values=with_values, bytes_max=bytes_left)
        chosen += listed[: limit - len(chosen)]
        bytes_left -= sum(map(_value_bytes, listed))
        is_full = len(chosen) == limit or bytes_left <= 0
        is_end = len(ahead) < count
        if ahead:
            after = ahead[-1]
        if is_full:
            last = chosen[-1][0]
            is_end &= last == after
            after = last
        next_page = "" if is_end else page_text(after)
        if is_end or is_full:
            break
    return Page([one for _, one in chosen], next_page)


async def _ahead(
    hosts: Sequence[Host], wanted: Filter, after: PagePosition, limit: int
) -> list[PagePosition]:
    """Return the first `limit` pending messages after a place, before any look inside."""
    places: list[PagePosition] = []
    passed = (after.topic, after.partition)
    async for topic, host in in_turns(hosts):
        start_ms, end_ms = wanted.span
        last = NOWHERE
        here = (topic, host.partition)
        if after.due_ms >= start_ms:
            # Of those due at the same time, the partitions before were listed whole.
            start_ms = after.due_ms + (here < passed)
            last = after.offset if here == passed else NOWHERE
        offsets, due = await host.scheduler.upcoming(start_ms, end_ms, limit, after=last)
        if len(due):
            found = zip(due.tolist(), offsets.tolist(), strict=True)
            places += [PagePosition(due_ms, *here, offset) for due_ms, offset in found]
            # No more than are asked for, however many topics there are.
            places = sorted(places)[:limit]
    return places


async def _listed(
    hosts: Sequence[Host],
    wanted: Filter,
    places: Sequence[PagePosition],
    *,
    with_values: bool,
    bytes_max: int,
) -> list[Listed]:
    """Read messages and return those that match, in the same order, up to the one with which their
    values have `bytes_max` bytes; others get turns meanwhile."""
    by_host: dict[tuple[str, int], list[PagePosition]] = {}
    for place in places:
        by_host.setdefault((place.topic, place.partition), []).append(place)
    first = _First(bytes_max)
    for topic, host in hosts:
        mine = by_host.get((topic, host.partition), [])
        mine.sort(key=attrgetter("offset"))  # neighbours are in one frame
        while mine := first.wanted(mine):
            part = mine[:PAGE_SLICE]
            found, count = _matching(topic, host, wanted, part, with_values=with_values)
            first.add(found)
            mine = mine[count:]
            await asyncio.sleep(0)
    return sorted(first.listed, key=itemgetter(0))


class _First:
    """The first of what was read, in the order of lists, with enough bytes for a page."""

    def __init__(self, bytes_max: int) -> None:
        self.listed: list[Listed] = []
        self._bytes_max = bytes_max
        self._size = 0
        self._last: PagePosition | None = None
        """There is enough up to here."""

    def wanted(self, places: list[PagePosition]) -> list[PagePosition]:
        """Return those that may be among the first."""
        last = self._last
        return places if last is None else [place for place in places if place <= last]

    def add(self, found: Iterable[Listed]) -> None:
        """Keep the first of these as well, and let go of what comes after them."""
        for each in found:
            self.listed.append(each)
            self._size += _value_bytes(each)
        if self._size < self._bytes_max:
            return
        self.listed.sort(key=itemgetter(0))
        sizes = list(accumulate(map(_value_bytes, self.listed)))
        count = bisect_left(sizes, self._bytes_max) + 1
        del self.listed[count:]
        self._size, self._last = sizes[count - 1], self.listed[-1][0]


def _value_bytes(each: Listed) -> int:
    return len(each[1].message.value or b"")


def _matching(
    topic: str,
    host: PartitionHost,
    wanted: Filter,
    places: Sequence[PagePosition],
    *,
    with_values: bool,
) -> tuple[list[Listed], int]:
    """Return those that match of the first of some messages, and how many these are."""
    offsets = np.array([place.offset for place in places], np.int64)
    # What fired since it was found may be gone from the log.
    is_meant = host.scheduler.timers.is_open(offsets)
    try:
        return _read(host, wanted, places, offsets, is_meant, with_values=with_values)
    except FrameDamaged:
        if not topic:
            raise
    # In a list of all topics it hides nothing else: the list of topics tells of it.
    is_meant &= host.store.reader.undamaged(offsets)
    return _read(host, wanted, places, offsets, is_meant, with_values=with_values)


def _read(
    host: PartitionHost,
    wanted: Filter,
    places: Sequence[PagePosition],
    offsets: Int64s,
    is_meant: Bools,
    *,
    with_values: bool,
) -> tuple[list[Listed], int]:
    count = len(places)
    at = np.flatnonzero(is_meant)
    reached = wanted.reach(host.store, offsets[at])
    if reached < len(at):
        count, at = int(at[reached]), at[:reached]
    at = at[wanted.matches(host.store, offsets[at])]
    if not len(at):
        return [], count
    scheduled, appended_ms = _rows(host.store, offsets[at])
    reached = len(scheduled.offsets)
    if reached < len(at):
        count, at = int(at[reached]), at[:reached]
    chosen = [places[number] for number in at.tolist()]
    due_ms = np.array([place.due_ms for place in chosen], np.int64)
    rows = scheduled.due_at(due_ms).rows.to_pylist()
    found = [
        (place, _shown(host, place.offset, row, ms, with_values=with_values))
        for place, row, ms in zip(chosen, rows, appended_ms.tolist(), strict=True)
    ]
    return found, count


def _rows(store: PartitionStore, offsets: Int64s) -> tuple[ScheduledRows, Int64s]:
    """Return the first of some messages, which ascend, and when each was appended."""
    frames: list[FoundRows] = []
    size = 0
    for found in store.reader.rows(offsets):
        frames.append(found)
        size += found[1].nbytes
        if size >= SLICE_BYTES:
            break
    offsets = offsets[: int(frames[-1][3].max()) + 1]
    scheduled = scheduled_rows(frames, offsets, bytes_max=SLICE_BYTES)
    appended_ms = np.zeros(len(offsets), np.int64)
    for header, _, _, asks in frames:
        appended_ms[asks] = header.append_ms
    return scheduled, appended_ms[: len(scheduled.offsets)]


def _shown(
    host: PartitionHost, offset: int, row: dict[str, Any], appended_ms: int, *, with_values: bool
) -> ScheduledMessage:
    value = row["value"]
    message = Message(
        value,
        key=row["key"],
        message_id=row["message_id"],
        headers=None if row["headers"] is None else dict(row["headers"]),
        due_ms=Millis(row["due_ms"]),
    )
    return ScheduledMessage(
        message=message if with_values else replace(message, value=None),
        topic=host.topic,
        partition=host.partition,
        offset=offset,
        timer_id=timer_id(row["message_id"], offset),
        value_bytes=0 if value is None else len(value),
        appended_ms=appended_ms,
    )
