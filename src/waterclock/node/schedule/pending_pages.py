"""Lists of pending messages, page by page: of one topic, or of all in one order.

What comes next is chosen by due time alone; only what is chosen is read. A page names the place it
ended at, so those that fire or come meanwhile neither repeat nor hide any other.
"""

import asyncio
import base64
import struct
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.log.scheduled import scheduled_rows
from waterclock.model.errors import BadInput, FrameDamaged, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.views import ScheduledMessage
from waterclock.node.partition.host import PartitionHost
from waterclock.node.schedule.pending_filter import Filter
from waterclock.node.schedule.pending_ids import NOWHERE

Int64s = npt.NDArray[np.int64]
Host = tuple[str, PartitionHost]
"""A partition, and the name of its topic; empty in a list of one topic."""

PAGE_MAX = 1_000
PAGE_DEFAULT = 100
LIST_ROWS_MAX = 20_000
"""Messages that are read for one page, at most: a filter that few pass makes pages short."""
PAGE_SLICE = 50
"""Messages read in one go: each may be in a frame of its own."""

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


async def page_of(
    hosts: Sequence[Host],
    wanted: Filter,
    after: PagePosition,
    *,
    limit: int,
    with_values: bool,
) -> Page:
    """Return the first that match behind a place. A page may be short, or empty, and have a next
    one: few of those looked at matched."""
    limit = limit or PAGE_DEFAULT
    if not 1 <= limit <= PAGE_MAX:
        raise LimitExceeded("limit", PAGE_MAX, got=limit)
    count = LIST_ROWS_MAX // 4 if wanted.needs_rows else limit
    chosen: list[tuple[PagePosition, ScheduledMessage]] = []
    next_page = ""
    for _ in range(0, LIST_ROWS_MAX, count):
        ahead = await _ahead(hosts, wanted, after, count)
        listed = await _listed(hosts, wanted, ahead, with_values=with_values)
        chosen += listed[: limit - len(chosen)]
        is_end = len(ahead) < count
        if ahead:
            after = ahead[-1]
        if len(chosen) == limit:
            last = chosen[-1][0]
            is_end &= last == after
            after = last
        next_page = "" if is_end else page_text(after)
        if is_end or len(chosen) == limit:
            break
    return Page([one for _, one in chosen], next_page)


async def _ahead(
    hosts: Sequence[Host], wanted: Filter, after: PagePosition, limit: int
) -> list[PagePosition]:
    """Return the first `limit` pending messages after a place, before any look inside."""
    places: list[PagePosition] = []
    passed = (after.topic, after.partition)
    for topic, host in hosts:
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
    hosts: Sequence[Host], wanted: Filter, places: Sequence[PagePosition], *, with_values: bool
) -> list[tuple[PagePosition, ScheduledMessage]]:
    """Read messages and return those that match, in the same order; others get turns meanwhile."""
    by_host: dict[tuple[str, int], list[PagePosition]] = {}
    for place in places:
        by_host.setdefault((place.topic, place.partition), []).append(place)
    listed: dict[tuple[str, int, int], ScheduledMessage] = {}
    for topic, host in hosts:
        mine = by_host.get((topic, host.partition), [])
        mine.sort(key=attrgetter("offset"))  # neighbours are in one frame
        for start in range(0, len(mine), PAGE_SLICE):
            part = mine[start : start + PAGE_SLICE]
            found = _matching(topic, host, wanted, part, with_values=with_values)
            listed.update({(topic, one.partition, one.offset): one for one in found})
            await asyncio.sleep(0)
    return [(place, listed[place[1:]]) for place in places if place[1:] in listed]


def _matching(
    topic: str,
    host: PartitionHost,
    wanted: Filter,
    places: Sequence[PagePosition],
    *,
    with_values: bool,
) -> list[ScheduledMessage]:
    offsets = np.array([place.offset for place in places], np.int64)
    due_ms = np.array([place.due_ms for place in places], np.int64)
    # What fired since it was found may be gone from the log.
    is_meant = host.scheduler.timers.is_open(offsets)
    try:
        is_meant[is_meant] = wanted.matches(host.store, offsets[is_meant])
        return _read(host, offsets[is_meant], due_ms[is_meant], with_values=with_values)
    except FrameDamaged:
        if not topic:
            raise
        # In a list of all topics it hides nothing else: the list of topics tells of it.
        is_meant &= host.store.reader.undamaged(offsets)
    is_meant[is_meant] = wanted.matches(host.store, offsets[is_meant])
    return _read(host, offsets[is_meant], due_ms[is_meant], with_values=with_values)


def _read(
    host: PartitionHost, offsets: Int64s, due_ms: Int64s, *, with_values: bool
) -> list[ScheduledMessage]:
    if not len(offsets):
        return []
    frames = list(host.store.reader.rows(offsets))
    scheduled = scheduled_rows(frames, offsets).due_at(due_ms)
    appended = np.zeros(len(offsets), np.int64)
    for header, _, _, asks in frames:
        appended[asks] = header.append_ms
    rows = zip(scheduled.offsets.tolist(), scheduled.rows.to_pylist(), strict=True)
    found = []
    for (offset, row), appended_ms in zip(rows, appended.tolist(), strict=False):
        value = row["value"]
        message = Message(
            value,
            key=row["key"],
            message_id=row["message_id"],
            headers=None if row["headers"] is None else dict(row["headers"]),
            due_ms=Millis(row["due_ms"]),
        )
        size = 0 if value is None else len(value)
        shown = message if with_values else replace(message, value=None)
        found.append(
            ScheduledMessage(
                message=shown,
                topic=host.topic,
                partition=host.partition,
                offset=offset,
                timer_id=timer_id(row["message_id"], offset),
                value_bytes=size,
                appended_ms=appended_ms,
            )
        )
    return found
